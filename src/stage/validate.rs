//! Stage 4: old and new are compared, row by row and exactly, until they agreed twice, hours apart; meanwhile the new column
//! gets the structure of the old one: indexes, NOT NULL, CHECKs, foreign keys, statistics. Its default comes in stage 6.
//!
//! One divergence sets the count of zero passes back. Undone by dropping what was built.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::backfill::stopped_by;
use super::{Outcome, Stage};
use crate::crash;
use crate::ddl::{act, action};
use crate::engine::{Batch, Chunk, Compare, Compared, Ddl, Engine, Fill, Guard, Side, Stripe};
use crate::error::{Code, Error, Result, Trouble, count};
use crate::report::Event;
use crate::run::Cx;
use crate::state::Pass;
use crate::walk::{self, Purpose};

/// A write in two statements, or in flight, is given this long to settle before its row counts as divergent.
const SETTLE: Duration = Duration::from_millis(250);
/// Keys of rows that differ are remembered up to this number, to be looked for again.
const RECHECKED: u32 = 1000;
/// For repairs: longer than a batch of the backfill waits, since a divergent row is worth it.
const LOCK_WAIT: Duration = Duration::from_millis(500);

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    let mut outcome = due(cx).await?;
    while outcome == Outcome::Done && cx.state.zero_passes() < cx.plan().validate.passes {
        let pass = pass(cx, false).await?;
        let (divergent, sample) = (pass.divergent, pass.sample.join(", "));
        record(cx, pass).await?;
        if divergent > 0 {
            let differ = if divergent == 1 { "differs" } else { "differ" };
            let message = format!("{} of {} {differ}, for example {sample}", count(divergent as usize, "row"), cx.resolved.table);
            return Err(Error::new(Code::Diverged, message));
        }
        outcome = due(cx).await?;
    }
    // Built while the next pass is waited for, so that no time is lost.
    build(cx).await?;
    Ok(outcome)
}

/// Whether the next pass is due, or none is needed any more.
async fn due(cx: &Cx<'_>) -> Result<Outcome> {
    let settings = &cx.plan().validate;
    let zero = cx.state.zero_passes();
    match cx.state.passes.last() {
        Some(last) if zero > 0 && zero < settings.passes => {
            let what = format!("zero pass {} of {}", zero + 1, settings.passes);
            Ok(Outcome::at(last.started_at, settings.apart, cx.engine().now().await?, &what))
        }
        _ => Ok(Outcome::Done),
    }
}

async fn record(cx: &mut Cx<'_>, pass: Pass) -> Result<()> {
    crash::point("before saving a pass");
    cx.engine().add_pass(&cx.fence, &pass).await?;
    crash::point("after saving a pass");
    cx.state.passes.push(pass.clone());
    let event = Event::ValidatePass { pass, zero_in_a_row: cx.state.zero_passes(), needed: cx.plan().validate.passes };
    cx.report(event).await
}

/// The structure of the old column, for the new one. What was there before us is noted first, so that `back` leaves it.
async fn build(cx: &mut Cx<'_>) -> Result<()> {
    let structure = cx.resolved.structure.clone();
    if cx.remembered(Stage::Validate, "found").is_null() {
        let mut found = Vec::new();
        for ddl in &structure {
            if cx.engine().present(&cx.resolved, ddl).await? {
                found.push(action(&cx.resolved, ddl));
            }
        }
        cx.remember(Stage::Validate, "found", json!(found)).await?;
    }
    let mut built: Vec<String> = serde_json::from_value(cx.remembered(Stage::Validate, "built")).unwrap_or_default();
    let mut new = false;
    for ddl in &structure {
        let name = action(&cx.resolved, ddl);
        let stands = match ddl {
            // A statement of the user's own can't be looked for in the catalog, so it is remembered.
            Ddl::Statement(_) => built.contains(&name),
            Ddl::Analyze => built.contains(&name) && !new,
            _ => built.contains(&name) && cx.engine().present(&cx.resolved, ddl).await?,
        };
        if stands {
            continue;
        }
        act(cx, ddl).await?;
        new = true;
        if !built.contains(&name) {
            built.push(name);
            cx.remember(Stage::Validate, "built", json!(built)).await?;
        }
    }
    Ok(())
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    let found: Vec<String> = serde_json::from_value(cx.remembered(Stage::Validate, "found")).unwrap_or_default();
    let structure = cx.resolved.structure.clone();
    for ddl in structure.iter().rev().filter(|ddl| !found.contains(&action(&cx.resolved, ddl))) {
        let inverse = match ddl {
            Ddl::BuildIndex(index) => Ddl::DropIndex(index.clone()),
            Ddl::AddConstraint(spec) => Ddl::DropConstraint(spec.clone()),
            Ddl::SetNotNull(Side::New) => Ddl::DropNotNull(Side::New),
            Ddl::Statement(text) => {
                let text = format!("left as it is, since only you know how to undo it: {text}");
                cx.report(Event::Note { text }).await?;
                continue;
            }
            _ => continue,
        };
        act(cx, &inverse).await?;
    }
    Ok(())
}

/// One full comparison. With `repair`, divergent rows are rewritten from the side that owns the value, and compared again.
async fn pass(cx: &Cx<'_>, repair: bool) -> Result<Pass> {
    let started_at = cx.engine().now().await?;
    let pass = RefCell::new(Pass { started_at, finished_at: started_at, rows: 0, divergent: 0, repaired: 0, sample: Vec::new() });
    let wanted = cx.plan().validate.sample;
    walk::over_table(cx, Purpose::Read, async |engine, chunk| {
        let mut seen = compare(cx, engine, chunk, RECHECKED).await?;
        if seen.divergent > 0 {
            cx.sleep(SETTLE).await?;
            seen = staying(&seen, compare(cx, engine, chunk, RECHECKED).await?, cx.resolved.key.is_some());
        }
        let mut repaired = 0;
        if seen.divergent > 0 && repair {
            repaired = repair_chunk(cx, engine, chunk).await?;
            seen = Compared { rows: seen.rows, ..compare(cx, engine, chunk, wanted).await? };
        }
        let rows = seen.rows;
        let event = {
            let mut pass = pass.borrow_mut();
            pass.rows += rows;
            pass.divergent += seen.divergent;
            pass.repaired += repaired;
            let room = (wanted as usize).saturating_sub(pass.sample.len());
            pass.sample.extend(seen.sample.into_iter().take(room));
            Event::ValidateProgress { rows: pass.rows, total: cx.resolved.rows.max(pass.rows), divergent: pass.divergent }
        };
        cx.report(event).await?;
        Ok(rows)
    })
    .await?;
    let mut pass = pass.into_inner();
    pass.finished_at = cx.engine().now().await?;
    Ok(pass)
}

/// A row that differs in both looks differs; one that comes and goes is a write in two statements, seen between them. Where rows
/// have no key, or too many differ, the second look alone decides.
fn staying(first: &Compared, second: Compared, keyed: bool) -> Compared {
    if !keyed || first.divergent > u64::from(RECHECKED) || second.divergent > u64::from(RECHECKED) {
        return second;
    }
    let before: HashSet<&String> = first.sample.iter().collect();
    let sample: Vec<String> = second.sample.into_iter().filter(|key| before.contains(key)).collect();
    Compared { divergent: sample.len() as u64, sample, ..second }
}

/// A row that doesn't convert must not end the comparison: then each row is asked whether it does.
async fn compare(cx: &Cx<'_>, engine: &dyn Engine, chunk: &Chunk, sample: u32) -> Result<Compared> {
    let mut attempt = 0;
    loop {
        let error = match engine.compare(&cx.resolved, chunk, Compare::Divergent, false, sample).await {
            Ok(compared) => return Ok(compared),
            Err(e) if e.trouble() == Trouble::BadData => return engine.compare(&cx.resolved, chunk, Compare::Divergent, true, sample).await,
            Err(e) => e,
        };
        attempt += 1;
        if !error.trouble().passes() || attempt > 10 {
            return Err(error);
        }
        cx.sleep(Duration::from_millis(200 * attempt)).await?;
    }
}

/// Before the reads are switched the old column owns the value, afterwards the new one.
async fn repair_chunk(cx: &Cx<'_>, engine: &dyn Engine, chunk: &Chunk) -> Result<u64> {
    let what = if cx.state.done(Stage::ReadSwitch) { Fill::Reverse } else { Fill::Forward };
    write(cx, engine, chunk, what).await
}

/// Writes a chunk outside of the backfill, waiting for locks as long as `ddl.patience` allows.
pub async fn write(cx: &Cx<'_>, engine: &dyn Engine, chunk: &Chunk, what: Fill) -> Result<u64> {
    let batch = Batch { chunk, stripe: Stripe::WHOLE, what, lock_wait: LOCK_WAIT, guard: Guard::Lease(&cx.fence) };
    let began = std::time::Instant::now();
    let mut attempt = 0;
    loop {
        match engine.fill(&cx.resolved, &batch).await {
            Ok(filled) => return Ok(filled.rows),
            Err(e) if e.trouble().passes() && began.elapsed() < cx.plan().ddl.patience => {
                attempt += 1;
                cx.report(Event::BatchRetried { reason: e.to_string(), attempt }).await?;
                cx.sleep(Duration::from_millis(100 * u64::from(attempt.min(10)))).await?;
            }
            Err(e) if e.trouble().passes() => return Err(Error::new(Code::PaceGivenUp, e.to_string())),
            Err(e) if e.trouble() == Trouble::BadData => {
                let bad = engine.bad_rows(&cx.resolved, chunk, what).await?;
                let from = if what == Fill::Reverse { &cx.resolved.new } else { &cx.resolved.old };
                return Err(if bad.is_empty() { e } else { stopped_by(&bad, &from.name) });
            }
            Err(e) => return Err(e),
        }
    }
}

/// `sete validate`: one pass more. It counts like any other.
pub async fn extra_pass(cx: &mut Cx<'_>, repair: bool) -> Result<Pass> {
    let pass = pass(cx, repair).await?;
    if repair && pass.repaired > 0 {
        cx.report(Event::Repaired { rows: pass.repaired }).await?;
    }
    record(cx, pass.clone()).await?;
    Ok(pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(keys: &[&str], divergent: u64) -> Compared {
        Compared { rows: 100, divergent, empty: 0, sample: keys.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn only_rows_that_differ_twice_count() {
        assert_eq!(staying(&seen(&["1", "2"], 2), seen(&["2", "3"], 2), true), seen(&["2"], 1));
        assert_eq!(staying(&seen(&["1"], 1), seen(&["3"], 1), true), seen(&[], 0));
    }

    #[test]
    fn without_keys_or_with_too_many_the_second_look_decides() {
        assert_eq!(staying(&seen(&["1"], 1), seen(&["3"], 1), false), seen(&["3"], 1));
        assert_eq!(staying(&seen(&["1"], 5000), seen(&["3"], 1), true), seen(&["3"], 1));
    }
}
