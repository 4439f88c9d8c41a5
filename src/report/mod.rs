//! What happened, as data. Stages emit events; only reporters write text.

pub mod figures;
mod json;
mod line;
mod plain;
mod sink;
mod terminal;

pub use json::Json;
pub use line::{passed, signals};
pub use plain::Plain;
pub use sink::Sink;
pub use terminal::Terminal;

use serde::Serialize;

use crate::engine::Applied;
use crate::error::Blocker;
use crate::stage::Stage;
use crate::state::{Pass, Progress};

/// The only way from logic to the outside.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    StageStarted {
        stage: Stage,
    },
    /// A schema statement went through the door.
    DdlApplied {
        action: String,
        statements: Vec<String>,
        wait_ms: f64,
        hold_ms: f64,
        tries: u32,
    },
    /// Nothing to do: its effect is there already.
    DdlPresent {
        action: String,
    },
    /// The lock was not to be had; another try follows.
    DdlBlocked {
        action: String,
        relation: String,
        tried_ms: Option<f64>,
        retry_in_ms: f64,
        blocker: Option<Blocker>,
    },
    SyncProbed {
        passed: bool,
        detail: String,
    },
    BackfillProgress {
        progress: Progress,
    },
    /// The backfill stands still, by what.
    Throttled {
        by: String,
    },
    Resumed,
    /// It is opened again, and the work goes on from what is saved.
    ConnectionLost {
        reason: String,
    },
    /// A batch was taken back and will be tried again.
    BatchRetried {
        reason: String,
        attempt: u32,
    },
    RowsRejected {
        count: u64,
        first_key: String,
        message: String,
    },
    ValidateProgress {
        rows: u64,
        total: u64,
        divergent: u64,
    },
    ValidatePass {
        pass: Pass,
        zero_in_a_row: u32,
        needed: u32,
    },
    Repaired {
        rows: u64,
    },
    StageWaiting {
        stage: Stage,
        waiting_for: String,
        until: Option<jiff::Timestamp>,
    },
    StageFinished {
        stage: Stage,
    },
    StageFailed {
        stage: Stage,
        code: crate::error::Code,
        message: String,
    },
    StageUndone {
        stage: Stage,
    },
    /// A line that the command of `drop.external` wrote.
    ExternalOutput {
        line: String,
    },
    /// A remark that needs no answer.
    Note {
        text: String,
    },
    LeaseWaiting {
        holder: String,
    },
}

impl Event {
    /// Whether the event belongs in the journal: what changed something, not how far it is.
    pub fn is_for_the_journal(&self) -> bool {
        !matches!(
            self,
            Event::BackfillProgress { .. }
                | Event::ValidateProgress { .. }
                | Event::Throttled { .. }
                | Event::Resumed
                | Event::BatchRetried { .. }
                | Event::ConnectionLost { .. }
                | Event::LeaseWaiting { .. }
                | Event::DdlPresent { .. }
                | Event::ExternalOutput { .. }
        )
    }

    pub fn applied(action: &str, statements: Vec<String>, applied: Applied, tries: u32) -> Event {
        Event::DdlApplied {
            action: action.to_string(),
            statements,
            wait_ms: applied.wait.as_secs_f64() * 1000.0,
            hold_ms: applied.hold.as_secs_f64() * 1000.0,
            tries,
        }
    }
}

pub trait Reporter: Send + Sync {
    fn report(&self, event: &Event);
}
