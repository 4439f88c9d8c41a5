//! What is collected while a plan is read: every mistake, not the first one only.

use std::cell::RefCell;
use std::ops::Range;

use super::{Problem, password};
use crate::error::Code;

/// Why one value can't be taken. Its message goes on after the key: "must be a duration, not …".
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    pub code: Code,
    pub message: String,
    pub help: Option<String>,
}

impl Fault {
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Fault { code: Code::PlanInvalid, message: message.into(), help: Some(help.into()) }
    }

    /// A key or value of the plan format that this version can't run.
    pub fn not_yet(what: &str) -> Self {
        let help = "this version runs the kinds `type` and `rename` on one PostgreSQL database, with one worker";
        Fault { code: Code::NotSupported, ..Fault::new(format!("{what} is not supported yet"), help) }
    }
}

/// All mistakes found so far, and every key that was asked for: together these are the plan format.
#[derive(Default)]
pub(super) struct Notes {
    problems: RefCell<Vec<Problem>>,
    keys: RefCell<Vec<(&'static str, &'static str)>>,
}

impl Notes {
    /// Notes a mistake. No message repeats a password, whatever value it quotes.
    pub fn add(&self, span: Range<usize>, fault: Fault) {
        let Fault { code, message, help } = fault;
        let problem = Problem { code, span, message: password::hide(&message), help: help.as_deref().map(password::hide) };
        self.problems.borrow_mut().push(problem);
    }

    /// Notes that `key` exists in `section` ("" is the top of the file).
    pub fn know(&self, section: &'static str, key: &'static str) {
        if !self.knows(section, key) {
            self.keys.borrow_mut().push((section, key));
        }
    }

    pub fn knows(&self, section: &str, key: &str) -> bool {
        self.keys.borrow().contains(&(section, key))
    }

    pub fn keys(&self) -> Vec<(&'static str, &'static str)> {
        self.keys.borrow().clone()
    }

    pub fn keys_of(&self, section: &str) -> Vec<&'static str> {
        self.keys.borrow().iter().filter(|(s, _)| *s == section).map(|(_, key)| *key).collect()
    }

    pub fn sections_with(&self, key: &str) -> Vec<&'static str> {
        self.keys.borrow().iter().filter(|(section, k)| *k == key && !section.is_empty()).map(|(section, _)| *section).collect()
    }

    pub fn is_section(&self, name: &str) -> bool {
        self.keys.borrow().iter().any(|(section, _)| *section == name)
    }

    /// The mistakes in the order of the file. A value that holds a password has no other mistake worth naming.
    pub fn finish(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        let secret: Vec<_> = problems.iter().filter(|p| p.code == Code::PlanHasPassword).map(|p| p.span.clone()).collect();
        problems.retain(|p| p.code == Code::PlanHasPassword || !secret.contains(&p.span));
        problems.sort_by_key(|p| (p.span.start, p.span.end));
        problems
    }
}

/// `text` for a message: short, on one line.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    if text.chars().nth(MOST).is_some() { format!("{short}…") } else { short }
}
