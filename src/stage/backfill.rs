//! Stage 3: the history is filled in, in small batches, only where the new column is still empty.
//!
//! The walk goes through the table with a moving front, so that rows which stay empty for good (forward gives NULL) never
//! hold it up. Workers, of this run and of others that joined it, take one region after the other from the front. A batch that
//! meets a held row lock gives way at once, shrinks, and in the end leaves its part for the next sweep. Sweeps go on until one
//! finds nothing: that also finds rows that moved behind the front. A region's rows are counted in the batch's own transaction;
//! killed anywhere, the next run goes on from there. `back` clears nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Outcome, Stage};
use crate::crash;
use crate::engine::{Batch, Chunk, Compare, Engine, Fill, Filled, Guard, Next, Place, Region, Stripe, Turn, Turned, Walked};
use crate::error::{Code, Error, Result, Trouble, count};
use crate::plan::OnBadRow;
use crate::report::Event;
use crate::run::Cx;
use crate::state::{Progress, Reject, Retries};
use crate::walk::{self, Purpose, Shared};

/// Shorter than the server's deadlock detector takes (1 s by default), so that it never has to choose a victim.
const LOCK_WAIT: Duration = Duration::from_millis(50);
/// How often a batch of the smallest size is tried before its part is left for the next sweep.
const TRIES: u32 = 3;
/// How often one batch is tried again for reasons other than a lock.
const RETRIES: u32 = 20;
/// A region whose worker is silent for so long is given to another. Each batch begins it anew.
const REGION_TTL: Duration = Duration::from_secs(30);
/// While others are at the last regions.
const OTHERS: Duration = Duration::from_millis(100);
/// Below this share of HOT updates the stripes of a region don't pay: each reads all of it, and none finds room on its page.
const STRIPES_PAY: f64 = 0.3;
/// Enough to find out when they pay again: then half of the updates are HOT.
const FEW_STRIPES: u32 = 2;
/// Parts of a region whose stripes take turns.
const IN_TURNS: usize = 2;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.state.paused {
        return Err(Error::new(Code::Paused, format!("plan {} is paused", cx.state.id)));
    }
    if cx.state.rejected > 0 {
        // Corrected or not: the walk finds out.
        start_over(cx).await?;
    }
    say_what_costs(cx).await?;
    let mut progress = match cx.state.progress.take() {
        Some(progress) if progress.walk == cx.resolved.walk && !progress.finished => progress,
        // It was done once, and gone back from: what has come since is looked for.
        Some(progress) if progress.walk == cx.resolved.walk => {
            begin(cx, Progress { watermark: None, finished: false, done: 0, empty: 0, ..progress }).await?
        }
        _ => begin(cx, Progress::begin(cx.resolved.walk, cx.resolved.rows, Timestamp::now())).await?,
    };
    let (mut idle_since, mut pace) = (Instant::now(), None);
    loop {
        // Of a sweep that another run began, nobody knows what it left behind: it proves nothing.
        let whole = progress.watermark.is_none();
        let before = (progress.filled, progress.deferred);
        progress = sweep(cx, &progress).await?;
        if progress.sweep == 0 {
            pace = Some(progress.pace.clone());
        }
        let (filled, deferred) = (progress.filled.saturating_sub(before.0), progress.deferred - before.1);
        if whole && progress.sweep > 0 && filled == 0 && deferred == 0 {
            break;
        }
        if filled > 0 {
            idle_since = Instant::now();
        } else if idle_since.elapsed() > cx.plan().ddl.patience {
            return Err(Error::new(Code::PaceGivenUp, format!("{} left: rows in them stayed locked by others", count(deferred as usize, "region"))));
        }
        if deferred > 0 {
            cx.sleep(Duration::from_secs(1).min(cx.plan().ddl.patience)).await?;
        }
        // A partition that was attached meanwhile has its rows yet to be filled.
        cx.refresh().await?;
        progress = next_sweep(cx, progress).await?;
    }
    // Not before the last sweep: a row that differs may move behind the walk, and unlike an empty one no update puts it right.
    progress.refresh = false;
    progress.finished = true;
    // Later sweeps only look: theirs is not the speed of a backfill.
    progress.pace = pace.unwrap_or(progress.pace);
    progress.pace.eta_s = None;
    crash::point("before saving the end of the backfill");
    cx.engine().save_progress(&cx.fence, &progress).await?;
    crash::point("after saving the end of the backfill");
    cx.report(Event::BackfillProgress { progress: progress.clone() }).await?;
    let empty = progress.empty;
    cx.state.progress = Some(progress);
    let (left, some) = cx.engine().rejects(&cx.state.id, 1).await?;
    cx.state.rejected = left;
    if let Some(first) = some.first() {
        let message = format!(
            "{} not convert, the first {}: {}",
            if left == 1 { "1 row does".into() } else { format!("{left} rows do") },
            first.key,
            first.message
        );
        return Err(Error::new(Code::Rejects, message));
    }
    say_what_stays_empty(cx, empty).await?;
    Ok(Outcome::Done)
}

/// Helps a run on another machine or in another process, under its lease, until its backfill is done.
pub async fn join(cx: &Cx<'_>) -> Result<()> {
    loop {
        let state = cx
            .engine()
            .load(&cx.state.id)
            .await?
            .ok_or_else(|| Error::new(Code::NoSuchPlan, format!("plan {} was forgotten meanwhile", cx.state.id)))?;
        let joined = state.lease.as_ref().is_some_and(|lease| lease.alive && lease.token == cx.fence.token);
        let progress = match &state.progress {
            Some(progress) if !progress.finished && state.current() == Stage::Backfill => progress,
            _ => return Ok(()),
        };
        if !joined {
            return Err(Error::new(Code::LeaseLost, format!("the run of plan {} that was joined has ended before the backfill", cx.state.id)));
        }
        match sweep(cx, progress).await {
            // The run may have ended with the backfill: that is for the next look to say.
            Err(e) if e.code() == Code::LeaseLost => {}
            done => drop(done?),
        }
        cx.sleep(Duration::from_millis(500)).await?;
    }
}

/// What takes from the walk what it gains, as far as it is known before.
async fn say_what_costs(cx: &Cx<'_>) -> Result<()> {
    let Some(table) = cx.catalog.table.as_ref().filter(|_| cx.resolved.stripes > 1) else { return Ok(()) };
    if !table.new_indexes.is_empty() {
        let text = format!(
            "{} on the new column: no update can leave the indexes alone, so that the backfill costs what a plain one costs",
            table.new_indexes.join(", ")
        );
        cx.report(Event::Note { text }).await?;
    }
    let fires: Vec<&str> = table.triggers.iter().filter(|t| t.fires_on_backfill).map(|t| t.name.as_str()).collect();
    if !fires.is_empty() && !cx.resolved.suppress_triggers {
        cx.report(Event::Note { text: format!("trigger {} runs for each row that is filled, which slows the backfill down", fires.join(", ")) })
            .await?;
    }
    Ok(())
}

/// Says how many rows stay NULL because forward gives NULL: what to expect of NOT NULL, and of a typo in the expression.
async fn say_what_stays_empty(cx: &mut Cx<'_>, empty: u64) -> Result<()> {
    cx.remember(Stage::Backfill, "stay_null", empty).await?;
    if empty > 0 {
        let (rows, stay) = (count(usize::try_from(empty).unwrap_or(usize::MAX), "row"), if empty == 1 { "stays" } else { "stay" });
        cx.report(Event::Note { text: format!("{rows} {stay} NULL, since forward gives NULL there") }).await?;
    }
    Ok(())
}

async fn begin(cx: &Cx<'_>, progress: Progress) -> Result<Progress> {
    crash::point("before saving the begin of the walk");
    cx.engine().save_progress(&cx.fence, &progress).await?;
    crash::point("after saving the begin of the walk");
    Ok(progress)
}

async fn next_sweep(cx: &Cx<'_>, progress: Progress) -> Result<Progress> {
    // Rows that are empty again after every sweep are emptied by somebody, and would be filled for ever.
    if progress.sweep >= 1000 {
        return Err(Error::new(Code::PaceGivenUp, "rows are empty again after each of 1000 sweeps: something sets the new column back to NULL"));
    }
    begin(cx, Progress { sweep: progress.sweep + 1, watermark: None, done: 0, empty: 0, total: cx.resolved.rows, ..progress }).await
}

async fn start_over(cx: &mut Cx<'_>) -> Result<()> {
    crash::point("before clearing rejects");
    cx.engine().clear_rejects(&cx.fence).await?;
    crash::point("after clearing rejects");
    cx.state.rejected = 0;
    if let Some(progress) = cx.state.progress.take() {
        cx.state.progress = Some(begin(cx, Progress { watermark: None, finished: false, done: 0, empty: 0, ..progress }).await?);
    }
    Ok(())
}

/// Through the table from the front on, with all workers. Where the walk stands then.
async fn sweep(cx: &Cx<'_>, progress: &Progress) -> Result<Progress> {
    let shared = Shared::new(cx, Purpose::Backfill(progress)).await?;
    let sessions = walk::sessions(cx);
    let workers = sessions.iter().enumerate().map(|(n, engine)| {
        let name = format!("{} worker {}", cx.who, n + 1);
        Worker { cx, engine: engine.clone(), shared: &shared, name }.walk()
    });
    walk::together(&shared, workers).await?;
    Ok(shared.progress().unwrap_or_else(|| progress.clone()))
}

/// One session that takes a region after the other.
struct Worker<'a> {
    cx: &'a Cx<'a>,
    engine: Arc<dyn Engine>,
    shared: &'a Shared,
    name: String,
}

impl Worker<'_> {
    async fn walk(self) -> Result<()> {
        let mut walked: Option<Walked> = None;
        loop {
            self.shared.ready(self.cx).await?;
            let turned = match self.turn(walked.as_ref()).await {
                Err(e) if e.code() == Code::RegionTaken => {
                    walked = None;
                    continue;
                }
                turned => turned?,
            };
            let (sweep, refresh) = (turned.progress.sweep, turned.progress.refresh);
            self.shared.turned(turned.progress, turned.workers, walked.as_ref().map(|w| w.region.id));
            walked = match turned.next {
                Next::Region(region) => self.region(*region, sweep, refresh).await?,
                Next::Others => {
                    self.cx.sleep(OTHERS).await?;
                    None
                }
                Next::End => return Ok(()),
            };
        }
    }

    async fn turn(&self, walked: Option<&Walked>) -> Result<Turned> {
        let (r, first) = (&self.cx.resolved, self.shared.progress().is_none_or(|p| p.sweep == 0));
        // Later sweeps find little; they read the table in one go.
        let stripes = match self.shared.hot_share() {
            _ if !first => 1,
            Some(share) if share < STRIPES_PAY => FEW_STRIPES.min(r.stripes),
            _ => r.stripes,
        };
        let pace = self.shared.pace();
        let turn = Turn {
            fence: &self.cx.fence,
            worker: &self.name,
            walked,
            rows: self.shared.rows(),
            stripes,
            ttl: REGION_TTL,
            pace: (!self.cx.joined).then_some(&pace),
        };
        self.engine.turn(r, &turn).await
    }

    /// All of a region. None when another worker has it by now.
    async fn region(&self, region: Region, sweep: u32, refresh: bool) -> Result<Option<Walked>> {
        let mut walked = Walked { empty: 0, deferred: false, retries: self.lost_connections(), region };
        let what = if refresh { Fill::Forward } else { Fill::Pending };
        let done = match sweep {
            0 => self.in_turns(&walked, what).await,
            _ => self.look_and_fill(&mut walked, what).await,
        };
        let done = match done {
            Err(e) if gives_way(&e) => {
                self.refused(&mut walked, &e, 1).await?;
                self.shared.again(&walked.region);
                self.in_small_parts(&mut walked, what).await
            }
            done => done,
        };
        match done {
            Err(e) if e.code() == Code::RegionTaken => Ok(None),
            done => done.map(|()| Some(walked)),
        }
    }

    /// The stripes of a region's parts in turns: between two stripes of one part lies one of another, so that a snapshot which
    /// another worker took meanwhile has gone, and the room of the first stripe is free for the next.
    async fn in_turns(&self, walked: &Walked, what: Fill) -> Result<()> {
        let region = &walked.region;
        let mut parts: Vec<Chunk> = Vec::new();
        if region.chunk.stripes == 1 {
            return self.stripe(region, &region.chunk, 0, what).await;
        }
        while let Some(part) = self.engine.next_part(&self.cx.resolved, &region.chunk, parts.last().map(|p| &p.to), self.shared.rows()).await? {
            parts.push(part);
        }
        for some in parts.chunks(IN_TURNS) {
            for index in 0..region.chunk.stripes {
                for part in some {
                    self.stripe(region, part, index, what).await?;
                }
            }
        }
        Ok(())
    }

    /// Later sweeps look before they write: most of what they see is done.
    async fn look_and_fill(&self, walked: &mut Walked, what: Fill) -> Result<()> {
        let (began, chunk) = (Instant::now(), walked.region.chunk.clone());
        let compare = if what == Fill::Pending { Compare::Pending } else { Compare::Divergent };
        match self.engine.compare(&self.cx.resolved, &chunk, compare, false, 0).await {
            Ok(seen) if seen.divergent == 0 => {
                walked.empty += seen.empty;
                self.shared.filled(&walked.region, chunk.rows, 0);
                self.shared.finished(self.cx, chunk.rows, began.elapsed()).await
            }
            // What is read in one go may be too much to write in one go.
            Ok(_) => self.in_small_parts(walked, what).await,
            // A row that doesn't convert is found, and set aside, by its batch.
            Err(e) if e.trouble() == Trouble::BadData => self.in_small_parts(walked, what).await,
            Err(e) => Err(e),
        }
    }

    /// Where the application is at some of the region's rows: smaller and smaller parts, of which the last is left for the next sweep.
    async fn in_small_parts(&self, walked: &mut Walked, what: Fill) -> Result<()> {
        let (mut at, mut refused): (Option<Place>, u32) = (None, 0);
        let rows = || self.shared.rows().min(self.cx.plan().backfill.batch_rows);
        while let Some(part) = self.engine.next_part(&self.cx.resolved, &walked.region.chunk, at.as_ref(), rows()).await? {
            let mut done = Ok(());
            for index in 0..part.stripes {
                done = self.stripe(&walked.region, &part, index, what).await;
                if done.is_err() {
                    break;
                }
            }
            match done {
                Ok(()) => (at, refused) = (Some(part.to), 0),
                Err(e) if gives_way(&e) => {
                    refused += 1;
                    if self.refused(walked, &e, refused).await? {
                        refused = 0;
                    } else if refused >= TRIES {
                        walked.deferred = true;
                        (at, refused) = (Some(part.to), 0);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Counts a batch that gave way, and makes the next one smaller. False when it can't get any smaller.
    async fn refused(&self, walked: &mut Walked, error: &Error, attempt: u32) -> Result<bool> {
        walked.retries.add(error.trouble());
        let smaller = self.shared.refused();
        self.cx.report(Event::BatchRetried { reason: error.to_string(), attempt: attempt + 1 }).await?;
        Ok(smaller)
    }

    /// Those that ended the run before this one, counted once.
    fn lost_connections(&self) -> Retries {
        Retries { connection: self.cx.lost_connections.take(), ..Retries::default() }
    }

    /// One stripe of a part: one transaction.
    async fn stripe(&self, region: &Region, part: &Chunk, index: u32, what: Fill) -> Result<()> {
        self.shared.ready(self.cx).await?;
        let stripe = Stripe { index, of: part.stripes };
        let filled = self.batch(&Batch { chunk: part, stripe, what, lock_wait: LOCK_WAIT, guard: Guard::Region(region) }).await?;
        crash::point("after a batch");
        let rows = part.rows / u64::from(part.stripes);
        self.shared.filled(region, rows, filled.rows);
        self.shared.finished(self.cx, rows, filled.took).await?;
        if let Some(progress) = self.shared.news() {
            self.cx.report(Event::BackfillProgress { progress }).await?;
        }
        if filled.paused { self.shared.while_paused(self.cx).await } else { Ok(()) }
    }

    /// One batch: filled, or told why not; a row that doesn't convert is found. A connection that breaks is not for here:
    /// whether the batch was committed is only known once the saved progress is read again.
    async fn batch(&self, batch: &Batch<'_>) -> Result<Filled> {
        let mut attempt = 0;
        loop {
            self.cx.check()?;
            crash::point("before a batch");
            let error = match self.engine.fill(&self.cx.resolved, batch).await {
                Ok(filled) => return Ok(filled),
                Err(e) => e,
            };
            attempt += 1;
            match error.trouble() {
                Trouble::BadData => match set_aside(self.cx, self.engine.as_ref(), batch).await? {
                    Some(filled) => return Ok(filled),
                    None if attempt < RETRIES => {}
                    None => return Err(error),
                },
                _ => return Err(error),
            }
        }
    }
}

/// The application comes first: what it holds is tried again later.
fn gives_way(error: &Error) -> bool {
    matches!(error.trouble(), Trouble::LockTimeout | Trouble::Deadlock | Trouble::Cancelled | Trouble::Serialization)
}

/// Names the rows that don't convert. None when there are none any more: somebody has corrected them meanwhile.
async fn set_aside(cx: &Cx<'_>, engine: &dyn Engine, batch: &Batch<'_>) -> Result<Option<Filled>> {
    let bad = engine.bad_rows(&cx.resolved, batch.chunk, batch.what).await?;
    let Some(first) = bad.first().cloned() else { return Ok(None) };
    if cx.plan().backfill.on_bad_row == OnBadRow::Stop {
        return Err(stopped_by(&bad, &cx.resolved.old.name));
    }
    crash::point("before saving rejects");
    cx.engine().add_rejects(&cx.fence, &bad).await?;
    crash::point("after saving rejects");
    cx.report(Event::RowsRejected { count: bad.len() as u64, first_key: first.key, message: first.message }).await?;
    engine.fill(&cx.resolved, &Batch { what: Fill::PendingGood, ..*batch }).await.map(Some)
}

/// The first of some bad rows, with what it has in the column that was converted.
pub fn stopped_by(bad: &[Reject], column: &str) -> Error {
    let Some(first) = bad.first() else { return Error::new(Code::Internal, "no bad row") };
    let value = first.value.as_ref().map_or("NULL".to_string(), |v| format!("{v:?}"));
    let others = if bad.len() > 1 { format!(", and {} more nearby", bad.len() - 1) } else { String::new() };
    Error::new(Code::BadRow, format!("row {} with {column} = {value}: {}{others}", first.key, first.message))
}

/// Walks again for the rows that were set aside. How many are left.
pub async fn retry_rejects(cx: &mut Cx<'_>) -> Result<u64> {
    start_over(cx).await?;
    let fresh = Progress::begin(cx.resolved.walk, cx.resolved.rows, Timestamp::now());
    let filled = cx.state.progress.as_ref().map_or(0, |p| p.filled);
    let progress = begin(cx, Progress { filled, ..fresh }).await?;
    let progress = sweep(cx, &progress).await?;
    let (left, _) = cx.engine().rejects(&cx.state.id, 1).await?;
    if left == 0 && cx.state.done(Stage::Backfill) {
        cx.engine().save_progress(&cx.fence, &Progress { finished: true, ..progress }).await?;
    }
    Ok(left)
}
