//! The one boundary between engines. Words are ours; SQL stays below this line.
//!
//! An engine is three things: it reads the catalog and applies schema actions ([`Schema`]), it reads and writes rows in
//! chunks ([`Rows`]), and it keeps our state ([`Store`]). Each is safe to call twice.

pub mod catalog;
pub mod mysql;
pub mod postgres;
mod tokens;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::change::Mapping;
use crate::error::{Blocker, Code, Error, Result};
use crate::plan::{EngineKind, Plan, WalkChoice};
use crate::report::Event;
use crate::resolve::{ConstraintSpec, IndexSpec, Resolved};
use crate::secret::DbUrl;
use crate::state::{Entry, Origin, Pace, Pass, PlanState, Progress, Reject, Retries, StageState, StrayWriter, Taken};

pub use catalog::Catalog;

/// One schema action, as data: rendered for `sete plan`, applied by `sete step`. The preview can't lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ddl {
    AddColumn,
    DropNewColumn,
    /// The sync trigger with its function. With `watch`, it also records direct writes to the old column.
    InstallSync {
        watch: bool,
    },
    DropSync,
    /// Records writes that leave old and new apart; with `watch`, direct writes to the old column instead.
    InstallObserver {
        watch: bool,
    },
    DropObserver,
    BuildIndex(IndexSpec),
    DropIndex(IndexSpec),
    /// Added NOT VALID: checks new writes at once, old rows later.
    AddConstraint(ConstraintSpec),
    ValidateConstraint(ConstraintSpec),
    DropConstraint(ConstraintSpec),
    /// Cheap on the new column because a validated CHECK proves it.
    SetNotNull(Side),
    DropNotNull(Side),
    /// A statement of the user's own from [structure].
    Statement(String),
    Analyze,
    /// Exchanges the two names, with all that goes by name: the sync, the default, policies and views.
    SwapNames {
        swapped: bool,
    },
    /// Default and sequence ownership move to the new column.
    MoveDefault,
    MoveDefaultBack,
    DropOldColumn,
    /// Out of SELECT *, and back again.
    HideOldColumn,
    ShowOldColumn,
}

/// One of the two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Old,
    New,
}

/// What an action costs and whom it blocks. Source: the measured DDL table of the project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Relations that are locked, with the mode in the server's words.
    pub locks: Vec<(String, &'static str)>,
    pub class: CostClass,
    /// A build or a check that blocks nobody has a longer limit: a short one would only leave an invalid index behind.
    pub online: bool,
    /// Others queue behind it while it waits for its lock, so that the wait must be short whatever comes after.
    pub queues: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostClass {
    /// The catalog only: no page of the table is read.
    Catalog,
    Scan,
    Index,
    /// All rows are written anew, while others read and write.
    Rebuild,
}

/// How an applied action went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// How long it waited for its locks.
    pub wait: Duration,
    /// How long it held them.
    pub hold: Duration,
}

/// Which way through the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Walk {
    Key,
    Physical,
}

impl Walk {
    /// The walk that a plan gets on a server that can or can't walk physically.
    pub fn choose(choice: WalkChoice, physical_possible: bool) -> Walk {
        match choice {
            WalkChoice::Key => Walk::Key,
            WalkChoice::Physical => Walk::Physical,
            WalkChoice::Auto if physical_possible => Walk::Physical,
            WalkChoice::Auto => Walk::Key,
        }
    }
}

/// A place in a walk: everything before it has been visited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// Which of the table's leaves (0 unless it is partitioned), by the server's own number for it.
    pub leaf: u64,
    /// Changes when the leaf is rewritten, which makes page numbers worthless.
    pub file: u64,
    pub at: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The first page that was not visited.
    Page(u32),
    /// The last key that was visited, as text; none before the first.
    Key(Option<Vec<String>>),
}

/// A part of the table: from its start up to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The leaf, quoted and qualified.
    pub relation: String,
    pub from: Place,
    /// `Key(None)` is the end of the table.
    pub to: Place,
    /// Where the walk stands once the chunk is done.
    pub next: Watermark,
    /// Roughly how many rows the chunk holds.
    pub rows: u64,
    /// In how many batches it is to be written.
    pub stripes: u32,
}

impl Chunk {
    /// A part of `leaf` by key, of `rows` rows: after `from`, up to the key that was `found` so many rows on. Where there is none
    /// it goes up to `end`, without which it also holds what was inserted behind the table's last row.
    pub fn by_key(
        relation: String,
        leaf: &catalog::Leaf,
        from: Option<Vec<String>>,
        found: Option<Vec<String>>,
        end: Option<&[String]>,
        rows: u32,
    ) -> Result<Chunk> {
        if found.is_some() && found == from {
            return Err(Error::new(Code::Internal, format!("the walk of {relation} makes no way from key {}", found.unwrap_or_default().join(", "))));
        }
        let to = found.or_else(|| end.map(<[String]>::to_vec));
        let next = Watermark { leaf: leaf.id, file: leaf.file, at: Place::Key(to.clone()) };
        Ok(Chunk { relation, from: Place::Key(from), to: Place::Key(to), next, rows: u64::from(rows), stripes: 1 })
    }
}

/// A k-th part of a chunk's rows, spread evenly over its pages: once the first is committed, its room on each page takes the
/// new versions of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    pub index: u32,
    pub of: u32,
}

impl Stripe {
    pub const WHOLE: Stripe = Stripe { index: 0, of: 1 };
}

/// One transaction of a walk that writes.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub chunk: &'a Chunk,
    pub stripe: Stripe,
    pub what: Fill,
    /// A held row lock is given up on after this long.
    pub lock_wait: Duration,
    pub guard: Guard<'a>,
}

/// What allows a batch to write. Checked in its own transaction, so that one who was replaced writes nothing more.
#[derive(Clone, Copy, Debug)]
pub enum Guard<'a> {
    /// The plan's lease: nobody else works on it.
    Lease(&'a Fence),
    /// A worker's region: others work on other ones. The batch's rows are added to its count.
    Region(&'a Region),
}

/// A chunk of the backfill that one worker has for itself until it is done, or until its lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub plan: String,
    pub id: i64,
    /// Raised when another worker takes the region over.
    pub token: i64,
    pub chunk: Chunk,
}

/// A region that has been walked through.
#[derive(Clone, Debug)]
pub struct Walked {
    pub region: Region,
    /// Rows whose new column is empty for good, where they were counted.
    pub empty: u64,
    /// A part was left for a later sweep, because the application held a row.
    pub deferred: bool,
    pub retries: Retries,
}

/// A worker's call between two regions: what it has done, and how large the next one should be.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    pub fence: &'a Fence,
    /// Who asks, for people to read.
    pub worker: &'a str,
    pub walked: Option<&'a Walked>,
    /// About so many rows a batch, in so many stripes.
    pub rows: u32,
    pub stripes: u32,
    /// How long the region may stay without a batch before others may take it.
    pub ttl: Duration,
    /// What the run measures, for `status`.
    pub pace: Option<&'a Pace>,
}

/// What a worker is told at its turn.
#[derive(Clone, Debug)]
pub struct Turned {
    pub next: Next,
    /// How far the walk is, without the regions that are not done.
    pub progress: Progress,
    /// That have a region now, those of other runs too.
    pub workers: u32,
}

/// What a worker does next.
#[derive(Clone, Debug)]
pub enum Next {
    Region(Box<Region>),
    /// The walk has no region left to give, but others are still at theirs.
    Others,
    /// The sweep is through.
    End,
}

/// Which rows of a chunk are written, and in which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// new := forward(old) where the new column is still empty.
    Pending,
    /// The same, leaving out rows that don't convert.
    PendingGood,
    /// new := forward(old) wherever they differ: after a time without sync.
    Forward,
    /// old := reverse(new) wherever they differ: the way back from stage 6.
    Reverse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Filled {
    pub rows: u64,
    pub took: Duration,
    /// Somebody asked for a pause since the last batch.
    pub paused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Compared {
    pub rows: u64,
    pub divergent: u64,
    /// Rows whose new column is empty, for whatever reason.
    pub empty: u64,
    /// Keys of divergent rows, at most as many as asked for.
    pub sample: Vec<String>,
}

/// Rows that don't convert, counted before anything is done.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Unfit {
    /// Rows looked at.
    pub rows: u64,
    pub unfit: u64,
    pub sample: Vec<Reject>,
}

/// One sample of the server.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct Pressure {
    /// Each replica's delay. None means unknown, which is not zero.
    pub lag: HashMap<String, Option<Duration>>,
    pub active: u32,
    /// Sessions that wait for a lock of ours.
    pub waiting: u32,
    /// Where the log of changes stands, in bytes: its growth is a rate.
    pub wal_bytes: u64,
    /// Transactions whose old row versions are yet to be purged (InnoDB). None means unknown.
    pub history_list: Option<u64>,
    /// How much of the redo log waits for a checkpoint, as a share (InnoDB). None means unknown.
    pub redo_fill: Option<f64>,
    /// Updates of the table since its statistics began, and how many of them left all indexes alone. None where the server doesn't count.
    pub updates: Option<(u64, u64)>,
    /// Who keeps the server from reusing the room of old row versions.
    pub horizon: Option<Horizon>,
    /// The answer of the plan's own query.
    pub query: Option<bool>,
}

/// The oldest snapshot that the server must keep old row versions for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Horizon {
    /// "session 71 (psql, user shop)", "replication slot old", "prepared transaction x", "standby y".
    pub holder: String,
    /// The same as long as the snapshot is.
    pub snapshot: String,
    /// Seconds since its transaction began, where the server knows.
    pub age_s: Option<f64>,
}

/// How a probe of the sync went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    Passed,
    /// There was no row to try it on; the catalog was checked instead.
    NoRow,
    Failed(String),
}

/// A statement that names the old column, with how often it has run in all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementRead {
    pub text: String,
    pub calls: i64,
}

/// Identifies this runner to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub plan: String,
    pub token: i64,
}

#[async_trait]
pub trait Schema: Send + Sync {
    /// Everything preflight and resolve need, in one look.
    async fn catalog(&self, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>) -> Result<Catalog>;
    /// The SQL of an action. Pure.
    fn render(&self, r: &Resolved, ddl: &Ddl) -> Vec<String>;
    /// The statement that one batch sends. Pure, for the preview.
    fn render_fill(&self, r: &Resolved, what: Fill) -> String;
    /// What an action costs. Pure.
    fn cost(&self, r: &Resolved, ddl: &Ddl) -> Cost;
    /// Whether the action's effect is there already.
    async fn present(&self, r: &Resolved, ddl: &Ddl) -> Result<bool>;
    /// Sessions that hold a lock in the action's way, the oldest transaction first.
    async fn blockers(&self, r: &Resolved, ddl: &Ddl) -> Result<Vec<Blocker>>;
    /// Acts once, giving up on a lock after `timeout` with [`crate::error::Code::LockNotGot`].
    async fn apply(&self, r: &Resolved, ddl: &Ddl, timeout: Duration, fence: &Fence) -> Result<Applied>;
    /// A real write through the sync trigger, rolled back.
    async fn probe_sync(&self, r: &Resolved) -> Result<Probe>;
    /// A real insert without the old column and without the sync, rolled back.
    async fn probe_insert(&self, r: &Resolved) -> Result<Probe>;
    /// Statements that name the old column, as the server counts them. None when the server keeps no such record.
    async fn reads_of_old(&self, r: &Resolved) -> Result<Option<Vec<StatementRead>>>;
}

#[async_trait]
pub trait Rows: Send + Sync {
    /// The next part of the table after `after`, for `stripes` batches of about `rows` rows. None at the end.
    async fn next_chunk(&self, r: &Resolved, walk: Walk, after: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>>;
    /// The next part of a chunk after `after`, None for its beginning. None when there is none left.
    async fn next_part(&self, r: &Resolved, chunk: &Chunk, after: Option<&Place>, rows: u32) -> Result<Option<Chunk>>;
    /// Writes one batch in one short transaction. [`Code::RegionTaken`] when its region is another worker's by now.
    async fn fill(&self, r: &Resolved, batch: &Batch<'_>) -> Result<Filled>;
    /// Rows of a chunk that `what` would write and whose conversion fails, with the server's messages.
    async fn bad_rows(&self, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>>;
    /// How many rows of a chunk don't convert, with some of them. Also before the new column exists; changes nothing.
    async fn unfit_rows(&self, r: &Resolved, chunk: &Chunk, sample: u32) -> Result<Unfit>;
    /// Counts the rows of a chunk that `what` names. `safely` asks row by row whether it converts at all, which is slower.
    async fn compare(&self, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared>;
    async fn pressure(&self, plan: &Plan, r: &Resolved) -> Result<Pressure>;
    /// Rows on a few pages, evenly spread: page number and live rows, in order. Empty where the walk isn't by page.
    async fn densities(&self, r: &Resolved) -> Result<Vec<(u32, u32)>>;
}

/// What is counted by [`Rows::compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// New is empty though forward(old) is not.
    Pending,
    /// Neither direction explains the row.
    Divergent,
}

#[async_trait]
pub trait Store: Send + Sync {
    /// Makes or migrates our tables.
    async fn prepare(&self) -> Result<()>;
    /// The server's clock.
    async fn now(&self) -> Result<jiff::Timestamp>;
    /// None when the plan, or our whole schema, is not there.
    async fn load(&self, plan: &str) -> Result<Option<PlanState>>;
    async fn list(&self) -> Result<Vec<String>>;
    /// Does nothing when the plan is there already.
    async fn create(&self, state: &PlanState) -> Result<()>;
    async fn take_lease(&self, plan: &str, holder: &str, ttl: Duration) -> Result<Taken>;
    /// False when another runner has taken over.
    async fn renew_lease(&self, fence: &Fence, ttl: Duration) -> Result<bool>;
    async fn release_lease(&self, fence: &Fence) -> Result<()>;
    /// Takes over edits of pacing.
    async fn save_plan_text(&self, fence: &Fence, text: &str) -> Result<()>;
    async fn save_stage(&self, fence: &Fence, stage: &StageState) -> Result<()>;
    /// The walk stands there, and nobody has a region of it any more. A worker that still has one is fenced off.
    async fn save_progress(&self, fence: &Fence, progress: &Progress) -> Result<()>;
    /// What `status` shows of the speed.
    async fn save_pace(&self, fence: &Fence, pace: &Pace) -> Result<()>;
    /// Notes a region that is done, and gives the next: one whose worker is gone or silent, else the next of the walk.
    /// All of it or nothing.
    async fn turn(&self, r: &Resolved, turn: &Turn<'_>) -> Result<Turned>;
    async fn add_event(&self, fence: &Fence, who: &str, event: &Event) -> Result<()>;
    async fn events(&self, plan: &str, limit: u32) -> Result<Vec<Entry>>;
    async fn add_pass(&self, fence: &Fence, pass: &Pass) -> Result<()>;
    async fn add_rejects(&self, fence: &Fence, rejects: &[Reject]) -> Result<()>;
    async fn rejects(&self, plan: &str, limit: u32) -> Result<(u64, Vec<Reject>)>;
    async fn clear_rejects(&self, fence: &Fence) -> Result<()>;
    /// Who wrote one column only, folded by writer.
    async fn stray_writers(&self, plan: &str) -> Result<Vec<StrayWriter>>;
    /// Writes that the observer has seen.
    async fn writes_seen(&self, plan: &str) -> Result<u64>;
    async fn clear_strays(&self, fence: &Fence) -> Result<()>;
    async fn set_paused(&self, plan: &str, paused: bool) -> Result<()>;
    /// Removes the plan's rows; our schema too when it was the last.
    async fn forget(&self, plan: &str) -> Result<()>;
}

/// Opens an engine. Nothing is sent before it is first used.
pub fn connect(kind: EngineKind, url: &DbUrl, application: &str) -> Result<Arc<dyn Engine>> {
    match kind {
        EngineKind::Postgres => Ok(Arc::new(postgres::Postgres::new(url, application)?)),
        EngineKind::Mysql => Ok(Arc::new(mysql::MySql::new(url, application)?)),
    }
}

pub trait Engine: Schema + Rows + Store {
    /// The same database over a session of its own, opened when it is first used.
    fn another(&self) -> Arc<dyn Engine>;
}
