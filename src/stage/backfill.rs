//! Stage 3: the history is filled in, in small batches, only where the new column is still empty.
//!
//! The walk goes through the table with a moving bound, so that rows which stay empty for good (forward gives NULL) never
//! hold it up. A batch that meets a held row lock gives way at once, shrinks, and in the end leaves its chunk for the next
//! sweep. Sweeps go on until one finds nothing: that also finds rows that moved behind the walk. Progress is saved in the
//! batch's own transaction; killed anywhere, the next run goes on from there. `back` clears nothing.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::validate::compare;
use super::{Outcome, Stage};
use crate::crash;
use crate::engine::{Batch, Chunk, Compare, Fill, Filled, Stripe};
use crate::error::{Code, Error, Result, Trouble, count};
use crate::plan::OnBadRow;
use crate::report::Event;
use crate::run::Cx;
use crate::state::{Progress, Reject};
use crate::walk::Walker;

/// Shorter than the server's deadlock detector takes (1 s by default), so that it never has to choose a victim.
const LOCK_WAIT: Duration = Duration::from_millis(50);
/// How often a batch of the smallest size is tried before its chunk is left for the next sweep.
const TRIES: u32 = 3;
/// How often one batch is tried again for reasons other than a lock.
const RETRIES: u32 = 20;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.state.paused {
        return Err(Error::new(Code::Paused, format!("plan {} is paused", cx.state.id)));
    }
    if cx.state.rejected > 0 {
        // Corrected or not: the walk finds out.
        start_over(cx).await?;
    }
    let mut progress = match cx.state.progress.take() {
        Some(progress) if progress.walk == cx.resolved.walk => progress,
        _ => Progress::begin(cx.resolved.walk, cx.resolved.rows, Timestamp::now()),
    };
    let mut idle_since = Instant::now();
    loop {
        // Of a sweep that another run began, nobody knows what it left behind: it proves nothing.
        let whole = progress.watermark.is_none();
        let before = (progress.filled, progress.deferred);
        sweep(cx, &mut progress).await?;
        let (filled, deferred) = (progress.filled - before.0, progress.deferred - before.1);
        if whole && progress.sweep > 0 && filled == 0 && deferred == 0 {
            break;
        }
        if filled > 0 {
            idle_since = Instant::now();
        } else if idle_since.elapsed() > cx.plan().ddl.patience {
            return Err(Error::new(Code::PaceGivenUp, format!("{} left: rows in them stayed locked by others", count(deferred as usize, "chunk"))));
        }
        if deferred > 0 {
            cx.sleep(Duration::from_secs(1).min(cx.plan().ddl.patience)).await?;
        }
        // A partition that was attached meanwhile has its rows yet to be filled.
        cx.refresh().await?;
        next_sweep(cx, &mut progress).await?;
    }
    // Not before the last sweep: a row that differs may move behind the walk, and unlike an empty one no update puts it right.
    progress.refresh = false;
    progress.finished = true;
    crash::point("before saving the end of the backfill");
    cx.engine().save_progress(&cx.fence, Some(&progress)).await?;
    crash::point("after saving the end of the backfill");
    cx.report(Event::BackfillProgress { progress: progress.clone() }).await?;
    cx.state.progress = Some(progress);
    let (left, some) = cx.engine().rejects(&cx.state.id, 1).await?;
    cx.state.rejected = left;
    if let Some(first) = some.first() {
        let message = format!("{} not convert, the first {}: {}", if left == 1 { "1 row does".into() } else { format!("{left} rows do") }, first.key, first.message);
        return Err(Error::new(Code::Rejects, message));
    }
    count_empty(cx).await?;
    Ok(Outcome::Done)
}

/// Says how many rows stay NULL because forward gives NULL: what to expect of NOT NULL, and of a typo in the expression.
async fn count_empty(cx: &mut Cx<'_>) -> Result<()> {
    let mut walker = Walker::new(cx, None);
    let mut empty = 0;
    while let Some(chunk) = walker.next(cx).await? {
        let began = Instant::now();
        let seen = compare(cx, &chunk, Compare::Empty, 0).await?;
        empty += seen.divergent;
        walker.mark = Some(chunk.next);
        walker.finished(cx, seen.rows, began.elapsed()).await?;
    }
    cx.remember(Stage::Backfill, "stay_null", empty).await?;
    if empty > 0 {
        let (rows, stay) = (count(usize::try_from(empty).unwrap_or(usize::MAX), "row"), if empty == 1 { "stays" } else { "stay" });
        cx.report(Event::Note { text: format!("{rows} {stay} NULL, since forward gives NULL there") }).await?;
    }
    Ok(())
}

async fn next_sweep(cx: &Cx<'_>, progress: &mut Progress) -> Result<()> {
    // Rows that are empty again after every sweep are emptied by somebody, and would be filled for ever.
    if progress.sweep >= 1000 {
        return Err(Error::new(Code::PaceGivenUp, "rows are empty again after each of 1000 sweeps: something sets the new column back to NULL"));
    }
    *progress = Progress { sweep: progress.sweep + 1, watermark: None, done: 0, total: cx.resolved.rows, ..progress.clone() };
    crash::point("before saving the next sweep");
    cx.engine().save_progress(&cx.fence, Some(progress)).await?;
    crash::point("after saving the next sweep");
    Ok(())
}

async fn start_over(cx: &mut Cx<'_>) -> Result<()> {
    crash::point("before clearing rejects");
    cx.engine().clear_rejects(&cx.fence).await?;
    crash::point("after clearing rejects");
    cx.state.rejected = 0;
    if let Some(progress) = cx.state.progress.take() {
        let progress = Progress { watermark: None, finished: false, done: 0, ..progress };
        cx.engine().save_progress(&cx.fence, Some(&progress)).await?;
        cx.state.progress = Some(progress);
    }
    Ok(())
}

/// Once through the table from the watermark on.
async fn sweep(cx: &Cx<'_>, progress: &mut Progress) -> Result<()> {
    let mut walker = Walker::new(cx, progress.watermark.clone()).showing(progress);
    // Later sweeps find little; they read the table in one go.
    walker.stripes = if progress.sweep == 0 { cx.resolved.stripes } else { 1 };
    let mut refused = 0;
    while let Some(chunk) = walker.next(cx).await? {
        match fill(cx, &mut walker, &chunk, progress).await {
            Ok(()) => refused = 0,
            Err(e) if matches!(e.trouble(), Trouble::LockTimeout | Trouble::Deadlock | Trouble::Cancelled | Trouble::Serialization) => {
                refused = if walker.pacer.refused() { 0 } else { refused + 1 };
                progress.retries += 1;
                cx.report(Event::BatchRetried { reason: e.to_string(), attempt: refused + 1 }).await?;
                if refused >= TRIES {
                    *progress = Progress { deferred: progress.deferred + 1, ..past(progress, &chunk) };
                    cx.engine().save_progress(&cx.fence, Some(progress)).await?;
                    walker.mark = Some(chunk.next);
                    refused = 0;
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The progress once a chunk is behind us.
fn past(progress: &Progress, chunk: &Chunk) -> Progress {
    Progress {
        watermark: Some(chunk.next.clone()),
        done: (progress.done + chunk.rows).min(progress.total.max(progress.done)),
        ..progress.clone()
    }
}

/// All stripes of a chunk, one transaction each; the watermark moves with the last.
async fn fill(cx: &Cx<'_>, walker: &mut Walker, chunk: &Chunk, progress: &mut Progress) -> Result<()> {
    let stripes = walker.stripes;
    for index in 0..stripes {
        let after = if index + 1 == stripes { past(progress, chunk) } else { progress.clone() };
        let what = if progress.refresh { Fill::Forward } else { Fill::Pending };
        let stripe = Stripe { index, of: stripes };
        let filled = batch(cx, &Batch { chunk, stripe, what, lock_wait: LOCK_WAIT, progress: Some(&after) }).await?;
        crash::point("after a batch");
        *progress = Progress { filled: progress.filled + filled.rows, ..after };
        walker.finished(cx, chunk.rows / u64::from(stripes), filled.took).await?;
        walker.measure(progress);
        cx.report(Event::BackfillProgress { progress: progress.clone() }).await?;
        if filled.paused {
            walker.while_paused(cx).await?;
        }
    }
    walker.mark = Some(chunk.next.clone());
    Ok(())
}

/// One batch: filled, or told why not; a row that doesn't convert is found. A connection that breaks is not for here: whether
/// the batch was committed is only known once the saved progress is read again.
async fn batch(cx: &Cx<'_>, batch: &Batch<'_>) -> Result<Filled> {
    let mut attempt = 0;
    loop {
        cx.check()?;
        crash::point("before a batch");
        let error = match cx.engine().fill(&cx.resolved, batch, &cx.fence).await {
            Ok(filled) => return Ok(filled),
            Err(e) => e,
        };
        attempt += 1;
        match error.trouble() {
            Trouble::BadData => match set_aside(cx, batch).await? {
                Some(filled) => return Ok(filled),
                None if attempt < RETRIES => {}
                None => return Err(error),
            },
            _ => return Err(error),
        }
    }
}

/// Names the rows that don't convert. None when there are none any more: somebody has corrected them meanwhile.
async fn set_aside(cx: &Cx<'_>, batch: &Batch<'_>) -> Result<Option<Filled>> {
    let bad = cx.engine().bad_rows(&cx.resolved, batch.chunk, batch.what).await?;
    let Some(first) = bad.first().cloned() else { return Ok(None) };
    if cx.plan().backfill.on_bad_row == OnBadRow::Stop {
        return Err(stopped_by(&bad, &cx.resolved.old.name));
    }
    crash::point("before saving rejects");
    cx.engine().add_rejects(&cx.fence, &bad).await?;
    crash::point("after saving rejects");
    cx.report(Event::RowsRejected { count: bad.len() as u64, first_key: first.key, message: first.message }).await?;
    cx.engine().fill(&cx.resolved, &Batch { what: Fill::PendingGood, ..*batch }, &cx.fence).await.map(Some)
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
    let mut progress = Progress::begin(cx.resolved.walk, cx.resolved.rows, Timestamp::now());
    progress.filled = cx.state.progress.as_ref().map_or(0, |p| p.filled);
    sweep(cx, &mut progress).await?;
    let (left, _) = cx.engine().rejects(&cx.state.id, 1).await?;
    if left == 0 && cx.state.done(Stage::Backfill) {
        progress.finished = true;
        cx.engine().save_progress(&cx.fence, Some(&progress)).await?;
    }
    Ok(left)
}
