//! The drive loop: take the lease, run the stage, move the state, save it, report it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::engine::{Catalog, Ddl, Engine, Fence};
use crate::error::{Code, Error, Result, Trouble};
use crate::finding::{Finding, Severity};
use crate::lease::Held;
use crate::plan::{DualWriteMode, Plan, fingerprint};
use crate::report::{Event, Reporter};
use crate::resolve::{Resolved, resolve};
use crate::stage::{Outcome, Stage};
use crate::state::{Move, Origin, Pass, PlanState, StageState, Status, next};
use crate::{change, crash, lease, preflight, stage};

mod survey;

pub use survey::{check_data, preview};

const SERVER_AWAY: Duration = Duration::from_secs(30);
/// How often in a row a connection may be lost with nothing achieved in between.
const FRUITLESS: u32 = 10;

/// A plan and the database it is for.
pub struct Job {
    pub plan: Plan,
    /// The plan file's text, kept in the database.
    pub text: String,
    pub engine: Arc<dyn Engine>,
    /// A second connection for the lease: it says "alive" while the first one works.
    pub lease_engine: Arc<dyn Engine>,
    pub reporter: Arc<dyn Reporter>,
    pub stop: Stop,
}

/// A flag that is looked at between batches: Ctrl-C, SIGTERM, or a lease that is lost.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far a step goes.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// Go on until this stage is done.
    pub through: Option<Stage>,
    /// Wait for conditions this long; `Duration::MAX` without an end. None: don't wait.
    pub wait: Option<Duration>,
    /// The drop is confirmed.
    pub yes: bool,
}

/// What a stage has at hand.
pub struct Cx<'a> {
    pub job: &'a Job,
    pub resolved: Resolved,
    pub catalog: Catalog,
    pub state: PlanState,
    pub fence: Fence,
    pub who: String,
    pub lost: Stop,
    pub yes: bool,
    /// We help another run, under its lease.
    pub joined: bool,
    /// Connections that broke and were opened again since it was last asked.
    pub lost_connections: Cell<u64>,
}

impl<'a> Cx<'a> {
    /// One that holds no lease yet, or needs none.
    fn new(job: &'a Job, catalog: Catalog, resolved: Resolved, state: PlanState, fence: Fence) -> Cx<'a> {
        let (who, lost) = (lease::holder(), Stop::default());
        Cx { job, resolved, catalog, state, fence, who, lost, yes: false, joined: false, lost_connections: Cell::new(0) }
    }

    pub fn engine(&self) -> &dyn Engine {
        self.job.engine.as_ref()
    }

    pub fn plan(&self) -> &Plan {
        &self.job.plan
    }

    /// Whether we may go on.
    pub fn check(&self) -> Result<()> {
        if self.lost.asked() {
            return Err(Error::new(Code::LeaseLost, format!("the lease on plan {} was lost", self.state.id)));
        }
        if self.job.stop.asked() {
            return Err(Error::new(Code::Interrupted, "stopped as asked"));
        }
        Ok(())
    }

    /// Waits, but not longer than until we must stop.
    pub async fn sleep(&self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(Duration::from_millis(100))).await;
        }
    }

    /// Tells the user, and the journal if the event belongs there.
    pub async fn report(&self, event: Event) -> Result<()> {
        self.job.reporter.report(&event);
        if event.is_for_the_journal() { self.engine().add_event(&self.fence, &self.who, &event).await } else { Ok(()) }
    }

    /// Saves something that a stage must know when it is run again. Before the action that depends on it.
    pub async fn remember(&mut self, stage: Stage, key: &str, value: impl Into<Value>) -> Result<()> {
        let state = &mut self.state.stages[stage as usize];
        state.detail[key] = value.into();
        crash::point(&format!("before remembering {key} of {stage}"));
        self.job.engine.save_stage(&self.fence, &self.state.stages[stage as usize]).await?;
        crash::point(&format!("after remembering {key} of {stage}"));
        Ok(())
    }

    /// What a stage remembers under `key`; Null if nothing.
    pub fn remembered(&self, stage: Stage, key: &str) -> Value {
        self.state.stage(stage).detail.get(key).cloned().unwrap_or(Value::Null)
    }

    /// Forgets what a stage remembers, once it is undone.
    pub fn forget(&mut self, stage: Stage) {
        self.state.stages[stage as usize] = StageState { status: self.state.stage(stage).status, ..StageState::pending(stage) };
    }

    /// Looks at the catalog again: after a swap the names are others.
    pub async fn refresh(&mut self) -> Result<()> {
        let (catalog, resolved) = look(self.job, Some(&self.state.origin)).await?;
        self.catalog = catalog;
        self.resolved = resolved;
        Ok(())
    }

    /// How long the server may stay away before we stop asking.
    pub fn server_away(&self) -> Duration {
        SERVER_AWAY.min(self.plan().ddl.patience)
    }

    /// After a lost connection: everything as it is now, once the server answers again.
    async fn reconnect(&mut self, lost: &Error) -> Result<()> {
        let began = Instant::now();
        loop {
            self.sleep(Duration::from_millis(200)).await?;
            match self.look_around().await {
                Err(e) if e.trouble() == Trouble::ConnectionLost => {
                    if began.elapsed() >= self.server_away() {
                        return Err(Error::new(Code::ConnectionLost, format!("{lost}; and when we tried again: {e}")));
                    }
                }
                done => return done,
            }
        }
    }

    async fn look_around(&mut self) -> Result<()> {
        // The lease's session may be gone too, and the lease with it. One that we have joined is not ours to renew.
        if !self.joined && !lease::renew(self.job, &self.fence).await? {
            return Err(Error::new(Code::LeaseLost, format!("another runner has taken over plan {}", self.state.id)));
        }
        let state = self.job.engine.load(&self.state.id).await?;
        self.state = state.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("plan {} was forgotten meanwhile", self.state.id)))?;
        self.refresh().await
    }

    async fn shift(&mut self, stage: Stage, mv: Move) -> Result<()> {
        let status = next(stage, self.state.stage(stage).status, mv)?;
        self.state.stages[stage as usize].status = status;
        crash::point(&format!("before saving {stage} {status:?}"));
        self.job.engine.save_stage(&self.fence, &self.state.stages[stage as usize]).await?;
        crash::point(&format!("after saving {stage} {status:?}"));
        Ok(())
    }
}

/// The catalog, and the plan resolved against it.
async fn look(job: &Job, origin: Option<&Origin>) -> Result<(Catalog, Resolved)> {
    let catalog = job.engine.catalog(&job.plan, &change::mapping(&job.plan.change), origin).await?;
    if origin.is_none() {
        refuse(preflight::findings(&job.plan, &catalog, None))?;
    }
    let resolved = resolve(&job.plan, &catalog, origin)?;
    refuse_another_table(&resolved, origin)?;
    Ok((catalog, resolved))
}

/// A table that was dropped and made again has the name, and nothing of what was done.
fn refuse_another_table(resolved: &Resolved, origin: Option<&Origin>) -> Result<()> {
    match origin {
        Some(origin) if resolved.table_id != origin.table_id => {
            let message = format!("{} has the number {}, the plan began on {}", resolved.table, resolved.table_id, origin.table_id);
            Err(Error::new(Code::TargetChanged, message))
        }
        _ => Ok(()),
    }
}

fn refuse(findings: Vec<Finding>) -> Result<()> {
    if findings.iter().any(Finding::blocks) { Err(Error::Blocked { findings }) } else { Ok(()) }
}

/// Half of the old change is in the database already.
fn refuse_edits(job: &Job, state: &PlanState) -> Result<()> {
    if state.fingerprint == fingerprint::of(&job.plan.change) {
        return Ok(());
    }
    let differences = fingerprint::differences(&state.change, &job.plan.change).join("; ");
    Err(Error::new(Code::PlanEdited, format!("plan {} was begun with another change: {differences}", state.id)))
}

/// What the database knows of the plan, or what it will know once the first stage runs. Refused plans leave no trace.
async fn known_state(job: &Job) -> Result<PlanState> {
    if let Some(state) = job.engine.load(&job.plan.id).await? {
        refuse_edits(job, &state)?;
        return Ok(state);
    }
    let (catalog, resolved) = look(job, None).await?;
    let state = new_state(job, &catalog, &resolved);
    crash::point("before making our tables");
    job.engine.prepare().await?;
    crash::point("before saving the plan");
    job.engine.create(&state).await?;
    crash::point("after saving the plan");
    Ok(state)
}

fn new_state(job: &Job, catalog: &Catalog, resolved: &Resolved) -> PlanState {
    let adopted = catalog.table.as_ref().is_some_and(|t| t.column(&job.plan.change.to).is_some());
    PlanState {
        id: job.plan.id.clone(),
        text: job.text.clone(),
        fingerprint: fingerprint::of(&job.plan.change),
        change: job.plan.change.clone(),
        table: resolved.table.to_string(),
        origin: Origin {
            table_id: resolved.table_id,
            old_type: resolved.old.type_name.clone(),
            new_type: resolved.new.type_name.clone(),
            old_not_null: resolved.old.not_null,
            old_default: resolved.old.default.clone(),
            adopted,
        },
        stages: Stage::ALL.into_iter().map(StageState::pending).collect(),
        progress: None,
        passes: Vec::new(),
        rejected: 0,
        paused: false,
        lease: None,
    }
}

/// The lease, the state as it is under it, and the plan resolved again.
async fn begin<'a>(job: &'a Job, wait: Option<Duration>, yes: bool) -> Result<(Cx<'a>, Held)> {
    let known = known_state(job).await?;
    let held = Held::take(job, &known.id, wait).await?;
    let begun = begin_held(job, &held, yes).await;
    match begun {
        Ok(cx) => Ok((cx, held)),
        Err(e) => finish(held, Err(e)).await,
    }
}

/// Gives the lease back, which must not hide what came of the work. A server that is away has ended the lease with its session.
async fn finish<T>(held: Held, result: Result<T>) -> Result<T> {
    match held.release().await {
        Err(e) if result.is_ok() && e.trouble() != Trouble::ConnectionLost => Err(e),
        _ => result,
    }
}

/// Does the work through lost connections: each time it starts again from what is saved, as the next run would. Gives up on
/// one that gets nowhere: it might be our statement that ends the server's sessions.
async fn persist<'a, T>(cx: &mut Cx<'a>, work: impl AsyncFn(&mut Cx<'a>) -> Result<T>) -> Result<T> {
    let saved = |cx: &Cx<'_>| PlanState { lease: None, ..cx.state.clone() };
    let (mut before, mut fruitless) = (saved(cx), 0);
    loop {
        let lost = match work(cx).await {
            Err(e) if e.trouble() == Trouble::ConnectionLost => e,
            other => return other,
        };
        cx.job.reporter.report(&Event::ConnectionLost { reason: lost.to_string() });
        cx.reconnect(&lost).await?;
        cx.lost_connections.set(cx.lost_connections.get() + 1);
        let now = saved(cx);
        fruitless = if now == before { fruitless + 1 } else { 0 };
        if fruitless >= FRUITLESS {
            return Err(lost);
        }
        before = now;
    }
}

async fn begin_held<'a>(job: &'a Job, held: &Held, yes: bool) -> Result<Cx<'a>> {
    let state =
        job.engine.load(&job.plan.id).await?.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("plan {} was forgotten meanwhile", job.plan.id)))?;
    refuse_edits(job, &state)?;
    let (catalog, resolved) = look(job, Some(&state.origin)).await?;
    if state.text != job.text {
        job.engine.save_plan_text(&held.fence, &job.text).await?;
    }
    let cx = Cx::new(job, catalog, resolved, state, held.fence.clone());
    Ok(Cx { who: held.who.clone(), lost: held.lost.clone(), yes, ..cx })
}

/// Runs the current stage, or all through `options.through`. The last stage run, as it stands now: `Done` or `Waiting`.
pub async fn step(job: &Job, options: &StepOptions) -> Result<StageState> {
    let deadline = options.wait.map(|wait| Instant::now().checked_add(wait));
    let (mut cx, held) = begin(job, options.wait, options.yes).await?;
    let result = drive(&mut cx, options, deadline).await;
    finish(held, result).await
}

/// Helps a run of the backfill that another process drives, until that is done.
pub async fn join(job: &Job) -> Result<()> {
    let state = job.engine.load(&job.plan.id).await?;
    let state = state.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("the database has no plan {}", job.plan.id)))?;
    refuse_edits(job, &state)?;
    let running = state.lease.as_ref().filter(|lease| lease.alive && state.current() == Stage::Backfill);
    let Some(lease) = running else {
        return Err(Error::new(Code::NothingToJoin, format!("no run is at the backfill of plan {}; stage {} is current", state.id, state.current())));
    };
    let fence = Fence { plan: state.id.clone(), token: lease.token };
    let (catalog, resolved) = look(job, Some(&state.origin)).await?;
    sync_stands(&job.plan, job.engine.as_ref(), &resolved).await?;
    let mut cx = Cx { joined: true, ..Cx::new(job, catalog, resolved, state, fence) };
    persist(&mut cx, async |cx| stage::backfill::join(cx).await).await
}

/// `deadline`: None: don't wait; Some(None): wait without an end.
async fn drive(cx: &mut Cx<'_>, options: &StepOptions, deadline: Option<Option<Instant>>) -> Result<StageState> {
    if Stage::ALL.into_iter().all(|s| cx.state.done(s)) {
        return Err(Error::new(Code::NothingToDo, format!("plan {} has been through all seven stages", cx.state.id)));
    }
    if options.through.is_some_and(|last| cx.state.done(last)) {
        return Err(Error::new(Code::NothingToDo, format!("stage {} is done already", options.through.map_or("", Stage::name))));
    }
    loop {
        let stage = cx.state.current();
        persist(cx, async |cx| if cx.state.done(stage) { Ok(()) } else { run_stage(cx, stage).await }).await?;
        let state = cx.state.stage(stage).clone();
        if state.status == Status::Waiting {
            if !wait_on(cx, &state, deadline).await? {
                return Ok(state);
            }
        } else if options.through.is_none_or(|last| last == stage) {
            return Ok(state);
        }
    }
}

/// False when the wait would end before the condition can hold.
async fn wait_on(cx: &Cx<'_>, state: &StageState, deadline: Option<Option<Instant>>) -> Result<bool> {
    let Some(deadline) = deadline else { return Ok(false) };
    let now = cx.engine().now().await?;
    let until = state.until.map_or(Duration::ZERO, |at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    // Conditions other than time are looked at every few seconds.
    let nap = if state.until.is_some() { until } else { Duration::from_secs(2) }.clamp(Duration::from_millis(100), Duration::from_secs(30));
    if deadline.is_some_and(|end| Instant::now() + nap > end) {
        return Ok(false);
    }
    cx.sleep(nap).await?;
    Ok(true)
}

async fn run_stage(cx: &mut Cx<'_>, stage: Stage) -> Result<()> {
    cx.check()?;
    cx.refresh().await?;
    let findings = preflight::findings(cx.plan(), &cx.catalog, Some(&cx.state.origin));
    let now = cx.engine().now().await?;
    let entry = &mut cx.state.stages[stage as usize];
    let resumed = entry.status != Status::Pending;
    entry.started_at = entry.started_at.or(Some(now));
    if entry.status == Status::Failed {
        // Why it failed before is no longer what it waits for.
        entry.waiting_for = None;
    }
    cx.shift(stage, Move::Start).await?;
    if !resumed {
        cx.report(Event::StageStarted { stage }).await?;
    }
    let blocking = |f: &Finding| f.blocks() || f.severity == Severity::Later(stage);
    let outcome = if findings.iter().any(blocking) {
        let findings = findings.into_iter().filter(blocking).map(|f| Finding { severity: Severity::Blocker, ..f }).collect();
        Err(Error::Blocked { findings })
    } else {
        match check_sync(cx, stage).await {
            Ok(()) => stage::run(cx, stage).await,
            Err(e) => Err(e),
        }
    };
    settle(cx, stage, outcome).await
}

/// Between its installation and its removal, the sync must be exactly what was installed.
async fn check_sync(cx: &Cx<'_>, stage: Stage) -> Result<()> {
    // A swap that was cut short puts that right itself.
    let expected = matches!(stage, Stage::Backfill | Stage::Validate | Stage::ReadSwitch) && !stage::read_switch::is_swapping(cx);
    if expected { sync_stands(cx.plan(), cx.engine(), &cx.resolved).await } else { Ok(()) }
}

/// What a gate must know before it lets an application rely on both columns: that the sync is still at work.
pub async fn gate_sync(plan: &Plan, engine: &dyn Engine, state: &PlanState) -> Result<()> {
    if !state.done(Stage::DualWrite) || state.stage(Stage::StopWrites).status != Status::Pending {
        return Ok(());
    }
    let catalog = engine.catalog(plan, &change::mapping(&plan.change), Some(&state.origin)).await?;
    sync_stands(plan, engine, &resolve(plan, &catalog, Some(&state.origin))?).await
}

async fn sync_stands(plan: &Plan, engine: &dyn Engine, r: &Resolved) -> Result<()> {
    if plan.dual_write.mode == DualWriteMode::App || engine.present(r, &Ddl::InstallSync { watch: false }).await? {
        return Ok(());
    }
    Err(Error::new(Code::SyncBroken, format!("the sync trigger on {} is not as it was installed", r.table)))
}

/// Saves what came of a stage. A lost lease saves nothing; an interruption leaves the stage as it is, to go on later.
async fn settle(cx: &mut Cx<'_>, stage: Stage, outcome: Result<Outcome>) -> Result<()> {
    let now = if outcome.is_ok() { Some(cx.engine().now().await?) } else { None };
    let entry = &mut cx.state.stages[stage as usize];
    match outcome {
        Ok(Outcome::Done) => {
            entry.finished_at = now;
            (entry.waiting_for, entry.until) = (None, None);
            cx.shift(stage, Move::Finish).await?;
            cx.report(Event::StageFinished { stage }).await
        }
        Ok(Outcome::Waiting { waiting_for, until }) => {
            let news = entry.waiting_for.as_ref() != Some(&waiting_for);
            entry.waiting_for = Some(waiting_for.clone());
            entry.until = until;
            cx.shift(stage, Move::Hold).await?;
            if news { cx.report(Event::StageWaiting { stage, waiting_for, until }).await } else { Ok(()) }
        }
        Err(e) if matches!(e.code(), Code::LeaseLost | Code::Interrupted) || e.trouble() == Trouble::ConnectionLost => Err(e),
        Err(e) => {
            entry.waiting_for = Some(format!("{}: {e}", e.code()));
            entry.until = None;
            match save_failure(cx, stage, &e).await {
                // What went wrong says more than that it could not be written down.
                Err(unsaved) if unsaved.trouble() != Trouble::ConnectionLost => Err(unsaved),
                _ => Err(e),
            }
        }
    }
}

async fn save_failure(cx: &mut Cx<'_>, stage: Stage, e: &Error) -> Result<()> {
    // Not a failure: the stage waits for a person.
    if e.code() == Code::NeedsConfirmation {
        return cx.shift(stage, Move::Hold).await;
    }
    cx.shift(stage, Move::Fail).await?;
    cx.report(Event::StageFailed { stage, code: e.code(), message: e.to_string() }).await
}

/// Undoes the last stage that has begun.
pub async fn back(job: &Job) -> Result<Stage> {
    if job.engine.load(&job.plan.id).await?.is_none() {
        return Err(Error::new(Code::NothingToUndo, format!("no stage of plan {} has run", job.plan.id)));
    }
    let (mut cx, held) = begin(job, None, false).await?;
    let result = undo(&mut cx).await;
    finish(held, result).await
}

async fn undo(cx: &mut Cx<'_>) -> Result<Stage> {
    let stage = cx.state.last_begun().ok_or_else(|| Error::new(Code::NothingToUndo, format!("no stage of plan {} has run", cx.state.id)))?;
    persist(cx, async |cx| if cx.state.stage(stage).status == Status::Pending { Ok(()) } else { undo_stage(cx, stage).await }).await?;
    Ok(stage)
}

async fn undo_stage(cx: &mut Cx<'_>, stage: Stage) -> Result<()> {
    cx.shift(stage, Move::Undo).await?;
    stage::undo(cx, stage).await?;
    cx.forget(stage);
    cx.shift(stage, Move::Undone).await?;
    cx.report(Event::StageUndone { stage }).await
}

/// One extra divergence pass, repairing what it finds if asked to.
pub async fn validate(job: &Job, repair: bool) -> Result<Pass> {
    let (mut cx, held) = begin_existing(job).await?;
    let result = persist(&mut cx, async |cx| stage::validate::extra_pass(cx, repair).await).await;
    finish(held, result).await
}

/// Tries the rejected rows again. How many are left.
pub async fn retry_rejects(job: &Job) -> Result<u64> {
    let (mut cx, held) = begin_existing(job).await?;
    let result = persist(&mut cx, async |cx| stage::backfill::retry_rejects(cx).await).await;
    finish(held, result).await
}

/// For what makes sense only while both columns are there.
async fn begin_existing(job: &Job) -> Result<(Cx<'_>, Held)> {
    let state = job.engine.load(&job.plan.id).await?;
    let state = state.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("the database has no plan {}", job.plan.id)))?;
    if !state.done(Stage::DualWrite) || state.done(Stage::StopWrites) {
        let message = format!("stage {} is current: the columns are compared while both are written", state.current());
        return Err(Error::new(Code::IllegalMove, message));
    }
    begin(job, None, false).await
}
