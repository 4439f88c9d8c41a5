//! The seven stages, in order. Start reading here, then open the files in this order.
//!
//! A stage knows neither SQL nor the engine nor the terminal: it looks, acts through [`crate::ddl::act`], writes rows
//! through [`crate::walk`], and says whether it is done or what it waits for. Running it again is always safe.

mod actions;
pub mod backfill;
mod drop;
mod dual_write;
mod expand;
pub mod read_switch;
mod stop_writes;
pub mod validate;

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::Fill;
use crate::error::Result;
use crate::run::Cx;
use crate::state::StrayWriter;
use crate::walk::{self, Purpose};

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

/// How a stage ended this time.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done,
    /// Its work is done; this must come to hold, not before `until` if that is known.
    Waiting {
        waiting_for: String,
        until: Option<Timestamp>,
    },
}

impl Outcome {
    /// Done once `wait` has passed since `from`.
    fn at(from: Timestamp, wait: Duration, now: Timestamp, what: &str) -> Outcome {
        let until = from.saturating_add(wait).unwrap_or(Timestamp::MAX);
        if now >= until { Outcome::Done } else { Outcome::Waiting { waiting_for: what.to_string(), until: Some(until) } }
    }
}

pub async fn run(cx: &mut Cx<'_>, stage: Stage) -> Result<Outcome> {
    match stage {
        Stage::Expand => expand::run(cx).await,
        Stage::DualWrite => dual_write::run(cx).await,
        Stage::Backfill => backfill::run(cx).await,
        Stage::Validate => validate::run(cx).await,
        Stage::ReadSwitch => read_switch::run(cx).await,
        Stage::StopWrites => stop_writes::run(cx).await,
        Stage::Drop => drop::run(cx).await,
    }
}

pub async fn undo(cx: &mut Cx<'_>, stage: Stage) -> Result<()> {
    match stage {
        Stage::Expand => expand::undo(cx).await,
        Stage::DualWrite => dual_write::undo(cx).await,
        Stage::Backfill => Ok(()),
        Stage::Validate => validate::undo(cx).await,
        Stage::ReadSwitch => read_switch::undo(cx).await,
        Stage::StopWrites => stop_writes::undo(cx).await,
        Stage::Drop => drop::undo(cx).await,
    }
}

/// The time that a stage remembers under `key`: now, if it is the first to ask.
async fn since(cx: &mut Cx<'_>, stage: Stage, key: &str, now: Timestamp) -> Result<Timestamp> {
    if let Some(time) = cx.state.stage(stage).time(key) {
        return Ok(time);
    }
    cx.remember(stage, key, now.to_string()).await?;
    Ok(now)
}

/// Writes every row of the table for which `what` holds, outside of the backfill.
async fn write_all(cx: &Cx<'_>, what: Fill) -> Result<u64> {
    let written = Cell::new(0);
    walk::over_table(cx, Purpose::Write, async |engine, chunk| {
        let rows = validate::write(cx, engine, chunk, what).await?;
        written.set(written.get() + rows);
        Ok(chunk.rows)
    })
    .await?;
    Ok(written.get())
}

/// What is waited for until nothing stray was seen for `quiet_for`. None when it has been quiet for long enough.
fn quiet(strays: &[StrayWriter], watching_since: Timestamp, quiet_for: Duration, now: Timestamp, what: &str) -> Option<Outcome> {
    let last = strays.iter().max_by_key(|s| s.last_at);
    let from = last.map_or(watching_since, |s| s.last_at.max(watching_since));
    let by = last.map_or(String::new(), |s| format!("; the last was by {} ({}, {}) at {}", s.application, s.address, s.user, s.last_at));
    let waiting_for = format!("no {what} for {}{by}", crate::plan::duration::show(quiet_for));
    match Outcome::at(from, quiet_for, now, &waiting_for) {
        Outcome::Done => None,
        waiting => Some(waiting),
    }
}
