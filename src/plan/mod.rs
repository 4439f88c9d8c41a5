//! The plan file: exactly what it says, checked without a database.

pub mod duration;
pub mod fingerprint;
mod parse;
mod table_name;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Code;

pub use parse::parse;

/// A mistake in a plan file, with the bytes it is at.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub code: Code,
    pub span: std::ops::Range<usize>,
    pub message: String,
    /// For example "did you mean `lock_timeout`?".
    pub help: Option<String>,
}

/// A table's name; without a schema it is looked up on the search path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableName {
    pub schema: Option<String>,
    pub name: String,
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One destructive schema change on one table.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ddl {
    /// Longest single wait for a lock.
    pub lock_timeout: Duration,
    /// The first, short try.
    pub first_try: Duration,
    /// How long to go on trying.
    pub patience: Duration,
    /// A transaction older than this is not queued behind.
    pub max_blocker_age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DualWriteMode {
    Trigger,
    App,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DualWrite {
    pub mode: DualWriteMode,
    pub quiet_for: Duration,
    pub min_writes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkChoice {
    Auto,
    Key,
    Physical,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    Stop,
    SetAside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UserTriggers {
    Refuse,
    Fire,
    Suppress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backfill {
    pub walk: WalkChoice,
    /// Rows of the first batch; the pacer takes it from there.
    pub batch_rows: u32,
    pub batch_target: Duration,
    pub workers: u32,
    pub max_rows_per_s: Option<u32>,
    pub pause: Duration,
    pub on_bad_row: OnBadRow,
    pub user_triggers: UserTriggers,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Throttle {
    /// Names of environment variables with a replica's address each.
    pub replicas: Vec<String>,
    pub max_replica_lag: Duration,
    pub max_active_sessions: Option<u32>,
    /// A SELECT whose single value says whether to go on.
    pub query: Option<String>,
    /// Bytes per second.
    pub max_wal_rate: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Validate {
    pub passes: u32,
    pub apart: Duration,
    /// Divergent keys that are kept as a sample.
    pub sample: u32,
}

/// `"auto"` copies what the old column has; a list replaces that by the user's own statements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Auto,
    Statements(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultPart {
    Auto,
    /// The new column's default, an SQL expression.
    Expression(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Structure {
    pub index: Part,
    pub not_null: Part,
    pub check: Part,
    pub foreign_key: Part,
    pub default: DefaultPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchMode {
    App,
    Swap,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadSwitch {
    pub mode: SwitchMode,
    pub soak: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StopWrites {
    pub quiet_for: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drop {
    pub soak: Duration,
}
