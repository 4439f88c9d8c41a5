//! The plan file: exactly what it says, checked without a database.

pub mod duration;
mod fault;
pub mod fingerprint;
mod names;
mod parse;
mod password;
mod render;
mod section;
mod table_name;
#[cfg(test)]
mod tests;
mod unknown;
mod value;
mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Code;

pub use parse::{keys, parse};
pub use render::render;
pub use table_name::TableName;
pub use window::Window;

/// A mistake in a plan file, with the bytes it is at.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub code: Code,
    pub span: std::ops::Range<usize>,
    pub message: String,
    /// For example "did you mean `lock_timeout`?".
    pub help: Option<String>,
}

impl Problem {
    /// Line and column of its first character, both from 1.
    pub fn position(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// One destructive schema change on one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub id: String,
    pub engine: EngineKind,
    /// Name of the environment variable that holds the address (`database = "env:NAME"`).
    pub database: Option<String>,
    pub change: Change,
    pub ddl: Ddl,
    pub dual_write: DualWrite,
    pub backfill: Backfill,
    pub throttle: Throttle,
    pub validate: Validate,
    pub structure: Structure,
    pub read_switch: ReadSwitch,
    pub stop_writes: StopWrites,
    pub drop: Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    Postgres,
    Mysql,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Type,
    Rename,
}

/// The change itself. This is what the fingerprint covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub kind: Kind,
    /// As written: `schema.table` or `table`, parts may be quoted: `"Order"."user"`.
    pub table: String,
    pub from: String,
    pub to: String,
    /// Required for `type`, absent for `rename`.
    #[serde(rename = "type")]
    pub new_type: Option<String>,
    pub forward: Option<String>,
    pub reverse: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ddl {
    /// Longest single wait for a lock.
    #[serde(with = "duration::as_text")]
    pub lock_timeout: Duration,
    /// The first, short try.
    #[serde(with = "duration::as_text")]
    pub first_try: Duration,
    /// How long to go on trying.
    #[serde(with = "duration::as_text")]
    pub patience: Duration,
    /// A transaction older than this is not queued behind.
    #[serde(with = "duration::as_text")]
    pub max_blocker_age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DualWriteMode {
    Trigger,
    App,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DualWrite {
    pub mode: DualWriteMode,
    #[serde(with = "duration::as_text")]
    pub quiet_for: Duration,
    pub min_writes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkChoice {
    Auto,
    Key,
    Physical,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    Stop,
    SetAside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserTriggers {
    Refuse,
    Fire,
    Suppress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backfill {
    pub walk: WalkChoice,
    /// Rows of the first batch; the pacer takes it from there.
    pub batch_rows: u32,
    #[serde(with = "duration::as_text")]
    pub batch_target: Duration,
    pub workers: u32,
    pub max_rows_per_s: Option<u32>,
    #[serde(with = "duration::as_text")]
    pub pause: Duration,
    pub on_bad_row: OnBadRow,
    pub user_triggers: UserTriggers,
    /// How long to wait for a snapshot to go that keeps old row versions; zero: not at all.
    #[serde(with = "duration::as_text")]
    pub wait_for_horizon: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    /// Names of environment variables with a replica's address each.
    pub replicas: Vec<String>,
    #[serde(with = "duration::as_text")]
    pub max_replica_lag: Duration,
    pub max_active_sessions: Option<u32>,
    /// A SELECT whose single value says whether to go on.
    pub query: Option<String>,
    /// Bytes per second.
    pub max_wal_rate: Option<u64>,
    /// A table on each replica into whose `ts` somebody writes the source's time in UTC, as pt-heartbeat does. MySQL and MariaDB.
    #[serde(default)]
    pub heartbeat: Option<String>,
    /// Transactions whose old row versions InnoDB has yet to purge.
    #[serde(default)]
    pub max_history_list: Option<u32>,
    /// How much of InnoDB's redo log may be waiting for a checkpoint, in percent.
    #[serde(default)]
    pub max_redo_fill: Option<u32>,
    /// The hours in which the backfill and the validation may work.
    pub window: Option<Window>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validate {
    pub passes: u32,
    #[serde(with = "duration::as_text")]
    pub apart: Duration,
    /// Divergent keys that are kept as a sample.
    pub sample: u32,
}

/// `"auto"` copies what the old column has; a list replaces that by the user's own statements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Auto,
    Statements(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultPart {
    Auto,
    /// The new column's default, an SQL expression.
    Expression(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Structure {
    pub index: Part,
    pub not_null: Part,
    pub check: Part,
    pub foreign_key: Part,
    pub default: DefaultPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchMode {
    App,
    Swap,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSwitch {
    pub mode: SwitchMode,
    #[serde(with = "duration::as_text")]
    pub soak: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopWrites {
    #[serde(with = "duration::as_text")]
    pub quiet_for: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    #[serde(with = "duration::as_text")]
    pub soak: Duration,
    /// For so long the column is invisible before it goes.
    pub hide: Option<Duration>,
    pub rebuild: DropRebuild,
    /// The command that drops the column where that takes a rebuild of the table.
    pub external: Option<String>,
}

/// What happens where the server can't drop the column in its catalog alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropRebuild {
    Refuse,
    External,
}
