//! The only place that prints an error.

use std::error::Error as _;
use std::io::IsTerminal;

use serde_json::{Value, json};

use crate::error::Error;
use crate::finding::Finding;
use crate::plan::{self, Problem};
use crate::preview::{FindingView, weight};
use crate::report::Sink;
use crate::secret::mask;

/// To stderr in words; with `as_json` to stdout as an object too.
pub fn print(error: &Error, as_json: bool) {
    // Nobody is left to be told that nobody listens.
    if as_json {
        Sink::stdout().line(&object(error).to_string()).ok();
    }
    Sink::stderr().line(&text(error, colour_on_stderr())).ok();
}

/// A terminal that NO_COLOR doesn't silence.
pub fn colour_on_stderr() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn text(error: &Error, colour: bool) -> String {
    let heading = format!("error[{}]", error.code());
    let heading = if colour { format!("\u{1b}[1;31m{heading}\u{1b}[0m") } else { heading };
    let mut out = mask(&format!("{heading}: {error}\n"));
    for cause in causes(error) {
        out += &mask(&format!("  caused by: {cause}\n"));
    }
    match error {
        // It hides passwords itself, without moving what its carets point at.
        Error::PlanInvalid { path, text, problems } => out += &format!("\n{}\n\n", plan::render(path, text, problems).trim_end()),
        // Each finding has its own way out.
        Error::Blocked { findings } => return out + mask(&list(findings)).trim_end(),
        _ => {}
    }
    format!("{out}hint: {}", error.hint())
}

fn list(findings: &[Finding]) -> String {
    findings.iter().map(|f| format!("\n  {}[{}] {}: {}\n    hint: {}\n", weight(f.severity), f.code, f.subject, f.message, f.code.advice())).collect()
}

/// What the message does not say already.
fn causes(error: &Error) -> Vec<String> {
    let said = error.to_string();
    std::iter::successors(error.source(), |&e| e.source()).map(|e| e.to_string()).filter(|cause| !said.contains(cause.as_str())).collect()
}

fn object(error: &Error) -> Value {
    let findings: Vec<FindingView> = match error {
        Error::Blocked { findings } => findings.iter().map(FindingView::from).collect(),
        _ => Vec::new(),
    };
    let mut object = json!({"error": error.code(), "message": mask(&error.to_string()), "hint": error.hint(), "findings": findings});
    if let Error::PlanInvalid { text, problems, .. } = error {
        object["problems"] = problems.iter().map(|p| problem(text, p)).collect();
    }
    object
}

fn problem(text: &str, p: &Problem) -> Value {
    let (line, column) = p.position(text);
    json!({"code": p.code, "line": line, "column": column, "message": mask(&p.message), "help": p.help})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::finding::Severity;
    use crate::stage::Stage;

    fn blocked() -> Error {
        let finding = |code, severity, subject: &str| Finding { code, severity, subject: subject.into(), message: "it reads `status`".into() };
        Error::Blocked {
            findings: vec![
                finding(Code::TableMissing, Severity::Blocker, "table x"),
                finding(Code::Dependent, Severity::Later(Stage::Drop), "view v"),
            ],
        }
    }

    #[test]
    fn an_error_has_code_message_and_hint() {
        let error = Error::new(Code::LockNotGot, "no lock on public.orders");
        insta::assert_snapshot!(text(&error, false), @r"
        error[E401]: no lock on public.orders
        hint: Nothing was changed. End or wait for the session that is named, then run again.
        ");
        assert!(text(&error, true).starts_with("\u{1b}[1;31merror[E401]\u{1b}[0m: no"));
    }

    #[test]
    fn findings_are_listed_one_by_one() {
        insta::assert_snapshot!(text(&blocked(), false));
        let object = object(&blocked());
        assert_eq!((&object["error"], object["findings"].as_array().unwrap().len()), (&json!("E101"), 2));
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        let shown = text(&Error::PlanUnreadable { path: "p.toml".into(), source }, false);
        assert!(!shown.contains("caused by"), "{shown}");
    }

    #[test]
    fn no_password_is_shown() {
        let error = Error::new(Code::Connect, "postgres://shop:s3cret@db/x: refused");
        assert!(!text(&error, false).contains("s3cret") && !object(&error).to_string().contains("s3cret"));
    }

    #[test]
    fn mistakes_of_the_plan_have_their_place() {
        let problems = vec![Problem { code: Code::PlanInvalid, span: 4..5, message: "unknown key `b`".into(), help: None }];
        let error = Error::PlanInvalid { path: "p.toml".into(), text: "a=1\nb=2\n".into(), problems };
        assert!(text(&error, false).contains("unknown key `b`"));
        let object = object(&error);
        assert_eq!((&object["problems"][0]["line"], &object["problems"][0]["column"]), (&json!(2), &json!(1)));
    }
}
