//! What is kept in the database about a plan, and the one function that says which move is legal.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::{Walk, Walked, Watermark};
use crate::error::{Code, Error, Result, Trouble};
use crate::plan::Change;
use crate::stage::Stage;

/// Where one stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Running,
    /// Its work is done, its condition doesn't hold yet.
    Waiting,
    Failed,
    Done,
    /// `back` is under way, or was killed.
    Undoing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Start,
    Hold,
    Fail,
    Finish,
    Undo,
    Undone,
}

/// The only place that decides which move is legal.
pub fn next(stage: Stage, status: Status, mv: Move) -> Result<Status> {
    use Status::*;
    Ok(match (status, mv) {
        // Running and Undoing: the one before was killed; both are safe to start again.
        (Pending | Running | Waiting | Failed | Undoing, Move::Start) => Running,
        (Running, Move::Hold) => Waiting,
        (Running, Move::Fail) => Failed,
        (Running, Move::Finish) => Done,
        (Done, Move::Undo) if stage == Stage::Drop => return Err(Error::new(Code::CannotUndo, "the old column was dropped")),
        (Running | Waiting | Failed | Done | Undoing, Move::Undo) => Undoing,
        (Undoing, Move::Undone) => Pending,
        (status, mv) => return Err(Error::new(Code::IllegalMove, format!("stage {stage} is {status:?}: {mv:?} is not possible"))),
    })
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageState {
    pub stage: Stage,
    pub status: Status,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// What the stage itself remembers, shown as it is in `status --format json`.
    pub detail: Value,
    /// What it waits for, or why it failed, in words.
    pub waiting_for: Option<String>,
    /// Not before this time.
    pub until: Option<Timestamp>,
}

impl StageState {
    pub fn pending(stage: Stage) -> Self {
        StageState {
            stage,
            status: Status::Pending,
            started_at: None,
            finished_at: None,
            detail: Value::Object(Default::default()),
            waiting_for: None,
            until: None,
        }
    }

    /// A time that the stage remembers under `key`.
    pub fn time(&self, key: &str) -> Option<Timestamp> {
        self.detail.get(key)?.as_str()?.parse().ok()
    }
}

/// What the table was when the plan began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub table_id: u64,
    pub old_type: String,
    pub new_type: String,
    pub old_not_null: bool,
    pub old_default: Option<String>,
    /// The new column was there before us, so `back` leaves it.
    pub adopted: bool,
}

/// A plan as the database knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanState {
    pub id: String,
    pub text: String,
    pub fingerprint: String,
    pub change: Change,
    /// `schema.table`.
    pub table: String,
    pub origin: Origin,
    pub stages: Vec<StageState>,
    pub progress: Option<Progress>,
    pub passes: Vec<Pass>,
    pub rejected: u64,
    pub paused: bool,
    pub lease: Option<Lease>,
}

impl PlanState {
    pub fn stage(&self, stage: Stage) -> &StageState {
        &self.stages[stage as usize]
    }

    /// The first stage that is not done; the last one when all are.
    pub fn current(&self) -> Stage {
        Stage::ALL.into_iter().find(|s| self.stage(*s).status != Status::Done).unwrap_or(Stage::Drop)
    }

    pub fn done(&self, stage: Stage) -> bool {
        self.stage(stage).status == Status::Done
    }

    /// The stage that `back` would undo: the current one if it has begun, else the one before.
    pub fn last_begun(&self) -> Option<Stage> {
        Stage::ALL.into_iter().rev().find(|s| self.stage(*s).status != Status::Pending)
    }

    /// Zero passes in a row since validate began, counted back from the last. One that had to repair is none.
    pub fn zero_passes(&self) -> u32 {
        let began = self.stage(Stage::Validate).started_at;
        self.passes.iter().rev().take_while(|p| p.divergent == 0 && p.repaired == 0 && began.is_some_and(|at| p.started_at >= at)).count() as u32
    }
}

/// How far the backfill is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub walk: Walk,
    /// All before it has been given out; what is not done yet has a region of its own.
    pub watermark: Option<Watermark>,
    /// 0 is the first way through the table; later ones look for what was skipped or moved.
    pub sweep: u32,
    /// Rewrite what differs, not only what is empty: there was a time without sync.
    pub refresh: bool,
    pub finished: bool,
    /// Rows visited, estimated, and how many there are.
    pub done: u64,
    pub total: u64,
    pub filled: u64,
    /// Regions of which a part was left for a later sweep because the application held a row.
    pub deferred: u64,
    /// Rows that this sweep has found empty, though nothing is pending there.
    pub empty: u64,
    pub retries: Retries,
    pub at: Timestamp,
    #[serde(flatten)]
    pub pace: Pace,
}

impl Progress {
    pub fn begin(walk: Walk, total: u64, at: Timestamp) -> Progress {
        Progress {
            walk,
            watermark: None,
            sweep: 0,
            refresh: false,
            finished: false,
            done: 0,
            total,
            filled: 0,
            deferred: 0,
            empty: 0,
            retries: Retries::default(),
            at,
            pace: Pace::default(),
        }
    }

    /// Counts a region that is done, with the rows that were filled in it.
    pub fn count(&mut self, walked: &Walked, filled: u64) {
        self.done = (self.done + walked.region.chunk.rows).min(self.total.max(self.done));
        self.filled += filled;
        self.deferred += u64::from(walked.deferred);
        self.empty += walked.empty;
        self.retries += walked.retries;
    }
}

/// Batches that were tried again, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retries {
    /// A held row lock (55P03).
    pub lock: u64,
    /// 40P01.
    pub deadlock: u64,
    /// 40001.
    pub serialization: u64,
    /// Cancelled or out of time (57014).
    pub cancelled: u64,
    pub connection: u64,
}

impl Retries {
    pub fn add(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::LockTimeout => self.lock += 1,
            Trouble::Deadlock => self.deadlock += 1,
            Trouble::Serialization => self.serialization += 1,
            Trouble::Cancelled => self.cancelled += 1,
            Trouble::ConnectionLost => self.connection += 1,
            _ => {}
        }
    }

    pub fn total(&self) -> u64 {
        self.lock + self.deadlock + self.serialization + self.cancelled + self.connection
    }
}

impl std::ops::AddAssign for Retries {
    fn add_assign(&mut self, other: Retries) {
        self.lock += other.lock;
        self.deadlock += other.deadlock;
        self.serialization += other.serialization;
        self.cancelled += other.cancelled;
        self.connection += other.connection;
    }
}

/// What a running backfill measures of itself and of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    pub workers: u32,
    pub rows_per_s: f64,
    /// Of the last 200 batches.
    pub batch_ms_p50: f64,
    pub batch_ms_p95: f64,
    /// Of all batches of the sweep.
    pub batch_ms_p99: f64,
    pub batch_ms_max: f64,
    pub eta_s: Option<u64>,
    /// Share of the table's updates that left all indexes alone; the application's are among them.
    pub hot_share: Option<f64>,
    /// Bytes a second, of the whole server.
    pub wal_rate: Option<f64>,
    /// The worst replica's delay in seconds; None without replicas.
    pub lag_s: Option<f64>,
    pub throttled_by: Option<String>,
}

/// One full comparison of the two columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub rows: u64,
    pub divergent: u64,
    pub repaired: u64,
    pub sample: Vec<String>,
}

/// A row whose conversion failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The row's key, or its place where the table has none.
    pub key: String,
    pub value: Option<String>,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub holder: String,
    pub until: Timestamp,
    pub token: i64,
    /// The holder's server session exists, and the lease has not ended.
    pub alive: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    Ours { token: i64 },
    Held(Lease),
}

/// An application that wrote one of the two columns only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrayWriter {
    pub application: String,
    pub address: String,
    pub user: String,
    pub wrote_only: String,
    pub count: u64,
    pub last_at: Timestamp,
}

/// A row of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub at: Timestamp,
    pub who: String,
    pub event: Value,
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::*;

    const MOVES: [Move; 6] = [Move::Start, Move::Hold, Move::Fail, Move::Finish, Move::Undo, Move::Undone];

    #[test]
    fn only_a_running_stage_finishes() {
        for status in [Pending, Waiting, Failed, Done, Undoing] {
            assert!(next(Stage::Backfill, status, Move::Finish).is_err(), "{status:?}");
        }
    }

    #[test]
    fn a_done_stage_can_only_be_undone_and_the_drop_not_even_that() {
        for mv in MOVES {
            assert_eq!(next(Stage::Expand, Done, mv).ok(), (mv == Move::Undo).then_some(Undoing));
            assert!(next(Stage::Drop, Done, mv).is_err());
        }
    }

    #[test]
    fn a_killed_stage_starts_again_from_anywhere_but_done() {
        for status in [Pending, Running, Waiting, Failed, Undoing] {
            assert_eq!(next(Stage::DualWrite, status, Move::Start).unwrap(), Running);
        }
    }
}
