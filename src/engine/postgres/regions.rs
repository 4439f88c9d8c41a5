//! Who has which region of the walk: rows of `sete.chunk`, each with an end and a token of its own.
//!
//! The watermark in `sete.progress` is the front: what lies before it was given out. A region that is done loses its row; one
//! whose worker is gone or silent is given to the next who asks.

use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::rows::{next_chunk, was_rewritten};
use super::store::{FENCE, from_json, held, json};
use super::{Postgres, Settings, Tx};
use crate::crash;
use crate::engine::{Next, Region, Turn, Turned};
use crate::error::{Code, Error, Result};
use crate::resolve::Resolved;
use crate::state::Progress;

/// Holds a worker's right to its region until the transaction ends, and keeps it from ending; no row when it has none any more.
pub const HOLD: &str = "UPDATE sete.chunk c SET until = clock_timestamp() + c.ttl, touched = clock_timestamp() FROM sete.plan p \
    WHERE c.id = $1 AND c.token = $2 AND p.id = c.plan_id RETURNING p.paused";

/// `update`, a statement with `params` parameters, for a worker who still has its region, whose number and token are two
/// parameters more. Its rows are counted in the same statement: what is sent in one go can't be half done.
pub fn counted(update: &str, params: usize) -> String {
    let (id, token) = (params + 1, params + 2);
    format!(
        "WITH filled AS ({update} AND EXISTS (SELECT FROM sete.chunk WHERE id = ${id} AND token = ${token}) RETURNING 1) \
         UPDATE sete.chunk SET filled = filled + (SELECT count(*) FROM filled) WHERE id = ${id} AND token = ${token} \
         RETURNING (SELECT count(*) FROM filled)"
    )
}

const FRONT: &str = "SELECT data FROM sete.progress WHERE plan_id = $1 FOR NO KEY UPDATE";
const DONE: &str = "DELETE FROM sete.chunk WHERE id = $1 AND token = $2 RETURNING filled";
/// One whose end has come, or whose worker's session is gone; one of our own session is left over from a run that failed.
const TAKE_OVER: &str = "UPDATE sete.chunk SET token = token + 1, worker = $2, pid = pg_catalog.pg_backend_pid(), \
    session_began = (SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()), \
    ttl = make_interval(secs => $3), until = clock_timestamp() + make_interval(secs => $3), touched = clock_timestamp() \
    WHERE id = (SELECT c.id FROM sete.chunk c WHERE c.plan_id = $1 AND (c.until < clock_timestamp() OR c.pid = pg_catalog.pg_backend_pid() \
        OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_stat_activity a WHERE a.pid = c.pid AND coalesce(a.backend_start, c.session_began) = c.session_began)) \
        ORDER BY c.id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, token, data";
const GIVE: &str = "INSERT INTO sete.chunk (plan_id, data, worker, pid, session_began, ttl, until) \
    VALUES ($1, $2, $3, pg_catalog.pg_backend_pid(), (SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()), \
    make_interval(secs => $4), clock_timestamp() + make_interval(secs => $4)) RETURNING id, token, data";
const SAVE: &str = "UPDATE sete.progress SET data = $2 WHERE plan_id = $1";
const OUT: &str = "SELECT count(*) FROM sete.chunk WHERE plan_id = $1";

/// What the answer to [`HOLD`] means: true when somebody asked for a pause.
pub fn region_held(rows: &[Row], region: &Region) -> Result<bool> {
    rows.first().map(|row| row.get(0)).ok_or_else(|| taken(region))
}

fn taken(region: &Region) -> Error {
    Error::new(Code::RegionTaken, format!("region {} of plan {} was taken over (our token was {})", region.id, region.plan, region.token))
}

pub async fn turn(postgres: &Postgres, r: &Resolved, turn: &Turn<'_>) -> Result<Turned> {
    postgres.prepared(&r.table, &[FENCE, FRONT, DONE, TAKE_OVER, GIVE, SAVE, OUT]).await?;
    let tx = postgres.tx().await?;
    let settings = Settings { lazy_commit: true, ..Settings::STATE };
    let begin = tx.begin_sql(settings, &super::sql::search_path(&r.table));
    crash::point("before a turn");
    let turned = one_turn(&tx, r, turn, &begin).await;
    let turned = tx.end(turned).await;
    crash::point("after a turn");
    turned
}

async fn one_turn(tx: &Tx<'_>, r: &Resolved, turn: &Turn<'_>, begin: &str) -> Result<Turned> {
    let plan = &turn.fence.plan;
    let ttl = turn.ttl.as_secs_f64();
    let region = turn.walked.map(|w| &w.region);
    // No region has the number 0.
    let (id, token) = region.map_or((0, 0), |region| (region.id, region.token));
    let fence: [&(dyn ToSql + Sync); 2] = [plan, &turn.fence.token];
    let done: [&(dyn ToSql + Sync); 2] = [&id, &token];
    let over: [&(dyn ToSql + Sync); 3] = [plan, &turn.worker, &ttl];
    let (begun, fenced, front, done, over) = tokio::join!(
        biased;
        tx.batch(begin, "taking a region"),
        tx.query_kept(FENCE, &fence, "checking the lease"),
        tx.query_kept(FRONT, &fence[..1], "reading progress"),
        tx.query_kept(DONE, &done, "giving a region back"),
        tx.query_kept(TAKE_OVER, &over, "taking a region over")
    );
    begun?;
    held(fenced?, turn.fence)?;
    let front = front?.pop().ok_or_else(|| Error::new(Code::Internal, format!("plan {plan} has no walk")))?;
    let mut progress: Progress = from_json(front.get(0))?;
    if let Some(walked) = turn.walked {
        let filled = done?.first().map(|row| row.get::<_, i64>(0).unsigned_abs()).ok_or_else(|| taken(&walked.region))?;
        let mut walked = walked.clone();
        // Its page numbers meant other rows from some moment on.
        walked.deferred |= was_rewritten(tx, &walked.region.chunk).await?;
        progress.count(&walked, filled);
    }
    let mut given = over?;
    if given.is_empty()
        && !progress.finished
        && let Some(chunk) = next_chunk(tx, r, progress.walk, progress.watermark.as_ref(), turn.rows, turn.stripes).await?
    {
        progress.watermark = Some(chunk.next.clone());
        given = tx.query_kept(GIVE, &[plan, &json(&chunk)?, &turn.worker, &ttl], "taking a region").await?;
    }
    progress.at = SystemTime::now().try_into().unwrap_or(progress.at);
    progress.pace = turn.pace.cloned().unwrap_or(progress.pace);
    let saved: [&(dyn ToSql + Sync); 2] = [plan, &json(&progress)?];
    let (saved, out) = tokio::join!(
        biased;
        tx.execute_kept(SAVE, &saved, "saving progress"),
        tx.query_kept(OUT, &saved[..1], "looking for regions")
    );
    saved?;
    let workers = out?.first().map_or(0, |row| u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX));
    let next = match given.first() {
        Some(row) => Next::Region(Box::new(region_of(plan, row)?)),
        None if workers > 0 => Next::Others,
        None => Next::End,
    };
    Ok(Turned { next, progress, workers })
}

fn region_of(plan: &str, row: &Row) -> Result<Region> {
    Ok(Region { plan: plan.to_string(), id: row.get(0), token: row.get(1), chunk: from_json(row.get::<_, Value>(2))? })
}
