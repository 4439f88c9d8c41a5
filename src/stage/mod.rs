//! The seven stages, in order. Start reading here, then open the files in this order.

use serde::{Deserialize, Serialize};

/// One of the seven. The order is the order of the change; nothing else is derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Expand,
    DualWrite,
    Backfill,
    Validate,
    ReadSwitch,
    StopWrites,
    Drop,
}

impl Stage {
    pub const ALL: [Stage; 7] =
        [Stage::Expand, Stage::DualWrite, Stage::Backfill, Stage::Validate, Stage::ReadSwitch, Stage::StopWrites, Stage::Drop];

    /// The name in plans, state rows, JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Expand => "expand",
            Stage::DualWrite => "dual_write",
            Stage::Backfill => "backfill",
            Stage::Validate => "validate",
            Stage::ReadSwitch => "read_switch",
            Stage::StopWrites => "stop_writes",
            Stage::Drop => "drop",
        }
    }

    /// Its place, 1 to 7.
    pub const fn number(self) -> usize {
        self as usize + 1
    }

    pub fn from_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|s| s.name() == name)
    }

    pub fn next(self) -> Option<Stage> {
        Stage::ALL.get(self as usize + 1).copied()
    }

    pub fn prev(self) -> Option<Stage> {
        (self as usize).checked_sub(1).map(|i| Stage::ALL[i])
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
