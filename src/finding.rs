//! Preflight findings: what `plan` has to say about a change before anything is written.

use crate::error::Code;
use crate::stage::Stage;

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing may start.
    Blocker,
    /// The stage that is named will be refused; what comes before may run.
    Later(Stage),
    Warning,
    Note,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    /// The object it is about, for example `view public.v_orders`.
    pub subject: String,
    pub message: String,
}

impl Finding {
    pub fn blocks(&self) -> bool {
        self.severity == Severity::Blocker
    }
}
