//! Where a plan stands, as `sete status` tells it: for a script, and for whoever is woken by it. Pure.

mod words;

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Code, exit};
use crate::gate::{self, Gates};
use crate::plan::{EngineKind, Plan};
use crate::stage::Stage;
use crate::state::{PlanState, Progress, Retries, StageState, Status, StrayWriter};

pub use words::{NEXT_STEP, waiting_for};

/// A running backfill that saved no progress for this long is shown as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// One element of `sete status --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatusReport {
    pub plan: String,
    pub target: String,
    pub engine: EngineKind,
    pub table: String,
    pub stage: Stage,
    pub state: State,
    pub stages: Vec<StageReport>,
    pub gates: Gates,
    pub backfill: Option<BackfillReport>,
    pub validate: Option<ValidateReport>,
    pub in_the_way: Vec<StrayWriter>,
    pub waiting_for: Option<String>,
}

/// How a stage, or the whole plan, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Pending,
    Running,
    Waiting,
    Paused,
    /// A condition of preflight doesn't hold.
    Blocked,
    /// It failed, or its runner died.
    Failed,
    Done,
}

impl State {
    pub const ALL: [State; 7] = [State::Pending, State::Running, State::Waiting, State::Paused, State::Blocked, State::Failed, State::Done];

    pub const fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Running => "running",
            State::Waiting => "waiting",
            State::Paused => "paused",
            State::Blocked => "blocked",
            State::Failed => "failed",
            State::Done => "done",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    pub name: Stage,
    pub state: State,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub detail: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackfillReport {
    pub done: u64,
    pub total: u64,
    pub filled: u64,
    pub rejected: u64,
    /// Of the run itself; those of runs that joined it are not counted.
    pub workers: u32,
    pub rows_per_s: u64,
    /// None when it doesn't move or its speed is not known yet.
    pub eta_s: Option<u64>,
    pub batch_ms_p50: f64,
    pub batch_ms_p95: f64,
    /// Share of the table's updates that left all indexes alone; None where the server doesn't say.
    pub hot_share: Option<f64>,
    pub wal_bytes_per_s: Option<u64>,
    /// Of the slowest replica; None without any, or when it is unknown.
    pub replica_lag_s: Option<f64>,
    pub retries: Retries,
    pub last_progress_at: Timestamp,
    pub stalled: bool,
    pub throttled_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidateReport {
    /// Zero passes in a row.
    pub passes: u32,
    pub needed: u32,
    pub last_divergent: Option<u64>,
    pub next_pass_at: Option<Timestamp>,
}

/// The report on a plan. Without a state it has never run.
pub fn report(plan: &Plan, state: Option<&PlanState>, strays: &[StrayWriter], now: Timestamp) -> StatusReport {
    let stage = state.map_or(Stage::Expand, PlanState::current);
    let stages: Vec<StageReport> = Stage::ALL.into_iter().map(|s| stage_report(s, state)).collect();
    StatusReport {
        plan: plan.id.clone(),
        target: "main".to_string(),
        engine: plan.engine,
        table: state.map_or_else(|| plan.change.table.clone(), |s| s.table.clone()),
        stage,
        state: stages[stage as usize].state,
        stages,
        gates: gate::gates(plan, state, now),
        backfill: state.and_then(|s| Some(backfill(s, s.progress.as_ref()?, now))),
        validate: state.and_then(|s| validate(plan, s)),
        in_the_way: state.map_or(Vec::new(), |s| in_the_way(plan, s, strays, now)),
        waiting_for: waiting_for(plan, state, now),
    }
}

fn stage_report(stage: Stage, state: Option<&PlanState>) -> StageReport {
    let own = state.map_or_else(|| StageState::pending(stage), |s| s.stage(stage).clone());
    let mut detail = own.detail.clone();
    if let (Some(object), true) = (detail.as_object_mut(), state.is_some_and(|s| is_interrupted(s, stage))) {
        object.insert("interrupted".to_string(), Value::Bool(true));
    }
    StageReport {
        name: stage,
        state: state.map_or(State::Pending, |s| state_of(s, stage)),
        started_at: own.started_at,
        finished_at: own.finished_at,
        detail,
    }
}

/// How one stage is, the runner's life considered.
pub fn state_of(state: &PlanState, stage: Stage) -> State {
    let own = state.stage(stage);
    let plain = match own.status {
        Status::Done => return State::Done,
        Status::Failed => match failure(own) {
            Some(Code::Paused) => State::Waiting,
            Some(code) if code.exit() == exit::BLOCKED => return State::Blocked,
            _ => return State::Failed,
        },
        Status::Pending => State::Pending,
        Status::Waiting => State::Waiting,
        Status::Running | Status::Undoing if is_interrupted(state, stage) => State::Failed,
        Status::Running | Status::Undoing => State::Running,
    };
    // Only the backfill can be held.
    if state.paused && stage == Stage::Backfill { State::Paused } else { plain }
}

/// The stage says that it runs, and no runner is there.
fn is_interrupted(state: &PlanState, stage: Stage) -> bool {
    matches!(state.stage(stage).status, Status::Running | Status::Undoing) && !has_runner(state)
}

fn has_runner(state: &PlanState) -> bool {
    state.lease.as_ref().is_some_and(|l| l.alive)
}

/// The code of a stage's failure, which is what the words about it begin with.
fn failure(stage: &StageState) -> Option<Code> {
    let code = stage.waiting_for.as_ref()?.split(':').next()?;
    Code::ALL.iter().copied().find(|c| c.as_str() == code)
}

fn backfill(state: &PlanState, p: &Progress, now: Timestamp) -> BackfillReport {
    let stalled = silence(state, now).is_some();
    let moves = state_of(state, Stage::Backfill) == State::Running && !stalled;
    let tenths = |ms: f64| (ms * 10.0).round() / 10.0;
    BackfillReport {
        done: p.done,
        total: p.total,
        filled: p.filled,
        rejected: state.rejected,
        workers: p.pace.workers,
        rows_per_s: p.pace.rows_per_s.round() as u64,
        eta_s: if moves { p.pace.eta_s } else { None },
        batch_ms_p50: tenths(p.pace.batch_ms_p50),
        batch_ms_p95: tenths(p.pace.batch_ms_p95),
        hot_share: p.pace.hot_share.map(|share| (share * 1000.0).round() / 1000.0),
        wal_bytes_per_s: p.pace.wal_rate.map(|rate| rate as u64),
        replica_lag_s: p.pace.lag_s.map(|s| (s * 10.0).round() / 10.0),
        retries: p.retries,
        last_progress_at: p.at,
        stalled,
        throttled_by: p.pace.throttled_by.clone(),
    }
}

/// How long a running backfill has been without progress, once that is too long.
fn silence(state: &PlanState, now: Timestamp) -> Option<Duration> {
    let own = state.stage(Stage::Backfill);
    if own.status != Status::Running || state_of(state, Stage::Backfill) != State::Running {
        return None;
    }
    // A run that has just begun has its last progress from before.
    let last = state.progress.as_ref().map(|p| p.at).max(own.started_at)?;
    let silent = Duration::try_from(now.duration_since(last)).ok()?;
    (silent >= STALLED_AFTER).then_some(silent)
}

fn validate(plan: &Plan, state: &PlanState) -> Option<ValidateReport> {
    if state.passes.is_empty() && state.stage(Stage::Validate).status == Status::Pending {
        return None;
    }
    Some(ValidateReport {
        passes: state.zero_passes(),
        needed: plan.validate.passes,
        last_divergent: state.passes.last().map(|p| p.divergent),
        next_pass_at: next_pass_at(plan, state),
    })
}

/// When the next pass may start. None when it may now, or none is needed.
fn next_pass_at(plan: &Plan, state: &PlanState) -> Option<Timestamp> {
    let last = state.passes.last()?;
    let some = (1..plan.validate.passes).contains(&state.zero_passes());
    (state.current() == Stage::Validate && some).then(|| later(last.started_at, plan.validate.apart))
}

/// Writers that hold the current stage up. In the stages that wait for silence, all that it has counted; between them,
/// those who wrote a moment ago.
pub fn in_the_way(plan: &Plan, state: &PlanState, strays: &[StrayWriter], now: Timestamp) -> Vec<StrayWriter> {
    let counts = |stray: &&StrayWriter| match state.current() {
        Stage::Expand | Stage::Drop => false,
        Stage::DualWrite | Stage::StopWrites => true,
        Stage::Backfill | Stage::Validate | Stage::ReadSwitch => later(stray.last_at, plan.dual_write.quiet_for) > now,
    };
    let mut out: Vec<StrayWriter> = strays.iter().filter(counts).cloned().collect();
    out.sort_by_key(|stray| std::cmp::Reverse(stray.last_at));
    out
}

/// The time, if it is still to come, before which nothing can move the plan on.
pub fn not_before(plan: &Plan, state: &PlanState, now: Timestamp) -> Option<Timestamp> {
    let stage = state.current();
    let soaked = || (stage == Stage::Drop && !state.done(Stage::Drop)).then(|| drop_from(plan, state)).flatten();
    state.stage(stage).until.or_else(|| next_pass_at(plan, state)).or_else(soaked).filter(|at| *at > now)
}

/// When the soak before the drop is over. None until writes have stopped.
pub fn drop_from(plan: &Plan, state: &PlanState) -> Option<Timestamp> {
    let stopped = state.stage(Stage::StopWrites);
    (stopped.status == Status::Done).then(|| later(stopped.finished_at.unwrap_or(Timestamp::MAX), plan.drop.soak))
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
