//! Problems as a person reads them: the place, the line, a caret, the way out.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::{Problem, password};
use crate::error::Code;

/// All problems of the file `path`, plain text without colour. No password of the file is shown.
pub fn render(path: &str, text: &str, problems: &[Problem]) -> String {
    let text = without_passwords(text, problems);
    let reports: Vec<String> = problems.iter().map(|problem| Renderer::plain().render(&[group(path, &text, problem)])).collect();
    reports.join("\n\n")
}

fn group<'a>(path: &'a str, text: &'a str, problem: &'a Problem) -> Group<'a> {
    let place = AnnotationKind::Primary.span(problem.span.clone());
    let title = Level::ERROR.primary_title(problem.message.as_str()).id(problem.code.as_str());
    let group = title.element(Snippet::source(text).path(path).annotation(place));
    match &problem.help {
        Some(help) => group.element(Level::HELP.message(help.as_str())),
        None => group,
    }
}

/// The same bytes in the same places, but for passwords.
fn without_passwords(text: &str, problems: &[Problem]) -> String {
    let mut out = password::blank(text);
    for Problem { span, .. } in problems.iter().filter(|p| p.code == Code::PlanHasPassword) {
        let (before, after) = (text.get(span.clone()), out.get(span.clone()));
        // Written with escapes, a password may not look like one here: then nothing of the value is shown.
        if let Some(value) = before.filter(|value| value.contains('\\') || before == after) {
            let lines: Vec<String> = value.split('\n').map(|line| "*".repeat(line.len())).collect();
            out.replace_range(span.clone(), &lines.join("\n"));
        }
    }
    out
}
