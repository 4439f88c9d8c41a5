//! Who has which region of the walk: rows of `sete_chunk`, each with an end and a token of its own.
//!
//! The watermark in `sete_progress` is the front: what lies before it was given out. A region that is done loses its row; one
//! whose worker is gone or silent is given to the next who asks.

use mysql_async::Row;

use super::Tx;
use super::chunks::next_chunk;
use super::conn::get;
use super::store::{fenced, from_json, json};
use crate::crash;
use crate::engine::{Next, Region, Turn, Turned};
use crate::error::{Code, Error, Result};
use crate::resolve::Resolved;
use crate::state::Progress;

/// Holds a worker's right to its region until the transaction ends; no row when it has none any more.
const HOLD: &str = "SELECT (SELECT p.paused FROM sete_plan p WHERE p.id = c.plan_id) FROM sete_chunk c WHERE c.id = ? AND c.token = ? FOR UPDATE";
/// What a batch has filled counts with the batch, and the region's end is moved.
const FILLED: &str =
    "UPDATE sete_chunk SET filled = filled + ?, until = SYSDATE(6) + INTERVAL ttl MICROSECOND, touched = SYSDATE(6) WHERE id = ? AND token = ?";
/// One whose end has come, or whose worker's session is gone; one of our own session is left over from a run that failed.
const TAKEN_OVER: &str = "SELECT id, token, data FROM sete_chunk WHERE plan_id = ? \
    AND (until < SYSDATE(6) OR NOT (IS_USED_LOCK(mark) <=> session) OR session = CONNECTION_ID()) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
const TAKE_OVER: &str = "UPDATE sete_chunk SET token = ?, worker = ?, session = CONNECTION_ID(), mark = ?, ttl = ?, \
    until = SYSDATE(6) + INTERVAL ? MICROSECOND, touched = SYSDATE(6) WHERE id = ?";
const GIVE: &str = "INSERT INTO sete_chunk (plan_id, data, worker, session, mark, ttl, until, touched) \
    VALUES (?, ?, ?, CONNECTION_ID(), ?, ?, SYSDATE(6) + INTERVAL ? MICROSECOND, SYSDATE(6))";

fn taken(region: &Region) -> Error {
    Error::new(Code::RegionTaken, format!("region {} of plan {} was taken over (our token was {})", region.id, region.plan, region.token))
}

/// True when somebody asked for a pause.
pub async fn hold(tx: &mut Tx<'_>, region: &Region) -> Result<bool> {
    let rows = tx.query(HOLD, (region.id, region.token), "checking the region").await?;
    get::<Option<bool>>(rows.first().ok_or_else(|| taken(region))?, 0).map(|paused| paused.unwrap_or(false))
}

pub async fn filled(tx: &mut Tx<'_>, region: &Region, rows: u64) -> Result<()> {
    match tx.execute(FILLED, (rows, region.id, region.token), "counting a batch").await? {
        0 => Err(taken(region)),
        _ => Ok(()),
    }
}

/// Where the walk stands, locked for others who would move it.
pub async fn front(tx: &mut Tx<'_>, plan: &str) -> Result<Option<Progress>> {
    let row = tx.query("SELECT data FROM sete_progress WHERE plan_id = ? FOR UPDATE", (plan,), "reading progress").await?.pop();
    row.map(|row| from_json(&get::<String>(&row, 0)?)).transpose()
}

pub async fn save_front(tx: &mut Tx<'_>, plan: &str, progress: &Progress) -> Result<()> {
    tx.execute("UPDATE sete_progress SET data = ? WHERE plan_id = ?", (json(progress)?, plan), "saving progress").await.map(|_| ())
}

pub async fn turn(tx: &mut Tx<'_>, r: &Resolved, turn: &Turn<'_>) -> Result<Turned> {
    let plan = &turn.fence.plan;
    crash::point("before a turn");
    let mark = tx.mark().await?;
    fenced(tx, turn.fence).await?;
    let mut progress = front(tx, plan).await?.ok_or_else(|| Error::new(Code::Internal, format!("plan {plan} has no walk")))?;
    if let Some(walked) = turn.walked {
        let region = &walked.region;
        let row =
            tx.query("SELECT filled FROM sete_chunk WHERE id = ? AND token = ?", (region.id, region.token), "giving a region back").await?.pop();
        let filled = get(&row.ok_or_else(|| taken(region))?, 0)?;
        if tx.execute("DELETE FROM sete_chunk WHERE id = ? AND token = ?", (region.id, region.token), "giving a region back").await? == 0 {
            return Err(taken(region));
        }
        progress.count(walked, filled);
    }
    let region = match taken_over(tx, turn, &mark).await? {
        None if !progress.finished => give(tx, r, turn, &mark, &mut progress).await?,
        region => region,
    };
    progress.at = jiff::Timestamp::now();
    progress.pace = turn.pace.cloned().unwrap_or(progress.pace);
    save_front(tx, plan, &progress).await?;
    let workers = out(tx, plan).await?;
    let next = match region {
        Some(region) => Next::Region(Box::new(region)),
        None if workers > 0 => Next::Others,
        None => Next::End,
    };
    crash::point("after a turn");
    Ok(Turned { next, progress, workers })
}

async fn taken_over(tx: &mut Tx<'_>, turn: &Turn<'_>, mark: &str) -> Result<Option<Region>> {
    let Some(row) = tx.query(TAKEN_OVER, (&turn.fence.plan,), "looking for a region to take over").await?.pop() else { return Ok(None) };
    let mut region = region_of(&turn.fence.plan, &row)?;
    region.token += 1;
    let ttl = turn.ttl.as_micros() as u64;
    tx.execute(TAKE_OVER, (region.token, turn.worker, mark, ttl, ttl, region.id), "taking a region over").await?;
    Ok(Some(region))
}

/// The next part of the table.
async fn give(tx: &mut Tx<'_>, r: &Resolved, turn: &Turn<'_>, mark: &str, progress: &mut Progress) -> Result<Option<Region>> {
    let plan = &turn.fence.plan;
    let Some(chunk) = next_chunk(tx, r, progress.watermark.as_ref(), turn.rows).await? else { return Ok(None) };
    progress.watermark = Some(chunk.next.clone());
    let ttl = turn.ttl.as_micros() as u64;
    tx.execute(GIVE, (plan, json(&chunk)?, turn.worker, mark, ttl, ttl), "taking a region").await?;
    let id = tx.inserted_id().and_then(|id| i64::try_from(id).ok()).ok_or_else(|| Error::new(Code::Internal, "a region got no number"))?;
    Ok(Some(Region { plan: plan.clone(), id, token: 1, chunk }))
}

async fn out(tx: &mut Tx<'_>, plan: &str) -> Result<u32> {
    get(&tx.one("SELECT COUNT(*) FROM sete_chunk WHERE plan_id = ?", (plan,), "looking for regions").await?, 0)
}

fn region_of(plan: &str, row: &Row) -> Result<Region> {
    Ok(Region { plan: plan.to_string(), id: get(row, 0)?, token: get(row, 1)?, chunk: from_json(&get::<String>(row, 2)?)? })
}
