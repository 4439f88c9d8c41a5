//! Problems as a person reads them.

use super::Problem;

/// All problems of the file `path`, plain text without colour.
pub fn render(path: &str, text: &str, problems: &[Problem]) -> String {
    let place = |start: usize| {
        let before = text.get(..start).unwrap_or(text);
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    };
    let lines = problems.iter().map(|p| {
        let (line, column) = place(p.span.start);
        format!("{path}:{line}:{column}: {}{}", p.message, p.help.as_ref().map_or(String::new(), |h| format!(" ({h})")))
    });
    lines.collect::<Vec<_>>().join("\n")
}
