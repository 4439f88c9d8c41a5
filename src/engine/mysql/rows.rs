//! Batches on MySQL and MariaDB: one short READ COMMITTED transaction each, which never waits for a row of the application's.
//!
//! The deadlock detector picks the transaction that has changed less, and that would be the application's. So the rows are
//! locked first, leaving out those that others hold, and only those that are ours by then are written. What was left out is
//! told as a lock that was not to be had, after the rest is committed.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::chunks::{key, next_chunk, next_part};
use super::compare::{bad_keys, bad_rows, compare, divergent_of, locked_candidates, pending, unfit_rows};
use super::conn::{Session, get};
use super::keys::{self, Condition, one_of, within};
use super::sql::{ident, literal, qualified};
use super::sync::expression;
use super::{MySql, Settings, Tx, pressure, regions, store};
use crate::crash;
use crate::engine::catalog::Key;
use crate::engine::{Batch, Chunk, Compare, Compared, Fill, Filled, Guard, Place, Pressure, Rows, Side, Unfit, Walk, Watermark};
use crate::error::{Code, Error, Result, Trouble};
use crate::plan::Plan;
use crate::resolve::Resolved;
use crate::state::Reject;

/// A batch is short; one that is not was caught in something, and is halved.
const BATCH_LIMIT: Duration = Duration::from_secs(30);
const BATCH: Settings = Settings { row_wait: Duration::from_secs(1), table_wait: Duration::from_secs(1), statement: BATCH_LIMIT, read_only: false };
/// Conversions are tried in a temporary table, which a transaction that only reads may not make.
const TRY: Settings = Settings { read_only: false, ..Settings::LOOK };
/// So many rows are written in one statement that names each.
const NAMED: usize = 1000;

/// `SET` of a batch: the column gets its value, and what moves by itself on an update keeps its own.
fn assignments(r: &Resolved, side: Side) -> String {
    let column = ident(&r.column(side).name);
    let mut sql = format!("{column} = (\n{}\n)", expression(r, r.conversion_to(side), ""));
    for kept in r.columns.iter().filter(|c| c.on_update && c.name != r.column(side).name) {
        let name = ident(&kept.name);
        sql += &format!(", {name} = {name}");
    }
    sql
}

/// An update of all rows that the condition names. All of them are locked already.
fn update(r: &Resolved, key: &Key, side: Side, rows: &str) -> String {
    format!("UPDATE {} {} SET {} WHERE {rows}", qualified(&r.table), keys::force(key), assignments(r, side))
}

/// The same, leaving out rows that others hold. The limit keeps the server from making one SELECT of both, which would wait.
fn update_free(r: &Resolved, key: &Key, side: Side, rows: &str) -> String {
    let (table, columns) = (qualified(&r.table), key.columns.iter().enumerate());
    let named = columns.clone().map(|(n, (name, _))| format!("{} AS `~sete{n}`", ident(name))).collect::<Vec<_>>().join(", ");
    let joined = columns.map(|(n, (name, _))| format!("{table}.{} = free.`~sete{n}`", ident(name))).collect::<Vec<_>>().join(" AND ");
    format!(
        "UPDATE (SELECT {named} FROM {table} {} WHERE {rows} LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED) AS free STRAIGHT_JOIN {table} ON {joined} SET {}",
        keys::force(key),
        assignments(r, side)
    )
}

/// One batch as the preview shows it.
pub fn example_fill(r: &Resolved, what: Fill) -> String {
    let side = if what == Fill::Reverse { Side::Old } else { Side::New };
    let Ok(key) = key(r) else { return String::new() };
    let place = |operator: &str| {
        let marks = vec!["?"; key.columns.len()].join(", ");
        format!("({}) {operator} ({marks})", keys::columns(key))
    };
    update(r, key, side, &format!("{} AND {} AND {}", place(">"), place("<="), pending(r))).replace("(\n", "(").replace("\n)", ")")
}

async fn count(session: &mut Session, r: &Resolved, key: &Key, rows: &Condition, lock: &str) -> Result<u64> {
    let sql = format!("SELECT COUNT(*) FROM {} {} WHERE {}{lock}", qualified(&r.table), keys::force(key), rows.sql);
    let row = session.one(&sql, rows.params.clone(), "looking for rows to fill").await?;
    get(&row, 0)
}

fn bad_data(message: String) -> Error {
    Error::Database { code: Code::Database, trouble: Trouble::BadData, context: "filling a batch".into(), message, sqlstate: None }
}

/// Rows written, and rows left because others hold them.
struct Written {
    rows: u64,
    left: u64,
}

/// New := forward where new is empty. `except` are rows that don't convert.
async fn fill_pending(session: &mut Session, r: &Resolved, chunk: &Chunk, except: &[Vec<String>]) -> Result<Written> {
    let key = key(r)?;
    let mut rows = within(key, chunk)?;
    if !except.is_empty() {
        // CASE, so that forward is not even asked about them.
        let bad = one_of(key, except)?;
        rows.sql += &format!(" AND {} IS NULL AND CASE WHEN {} THEN FALSE ELSE TRUE END", ident(&r.new.name), bad.sql);
        rows.params.extend(bad.params);
    }
    rows.sql += &format!(" AND {}", pending(r));
    let ours = count(session, r, key, &rows, " FOR UPDATE SKIP LOCKED").await?;
    let all = count(session, r, key, &rows, "").await?;
    // A value that a SELECT takes for NULL with a warning is an error in an UPDATE.
    if let Some(warning) = session.first_warning().await? {
        return Err(bad_data(warning));
    }
    if ours == 0 {
        return Ok(Written { rows: 0, left: all });
    }
    let sql = if ours == all { update(r, key, Side::New, &rows.sql) } else { update_free(r, key, Side::New, &rows.sql) };
    let written = session.execute(&sql, rows.params, "filling a batch").await?;
    match session.first_warning().await? {
        Some(warning) => Err(bad_data(warning)),
        None => Ok(Written { rows: written, left: all.saturating_sub(ours) }),
    }
}

/// One column := its conversion where neither direction explains the row.
async fn fill_divergent(session: &mut Session, r: &Resolved, chunk: &Chunk, side: Side) -> Result<Written> {
    let key = key(r)?;
    let (ours, left) = locked_candidates(session, r, chunk).await?;
    let mut rows = 0;
    for some in divergent_of(session, r, ours).await?.chunks(NAMED) {
        let these = one_of(key, some)?;
        rows += session.execute(&update(r, key, side, &these.sql), these.params, "filling a batch").await?;
        if let Some(warning) = session.first_warning().await? {
            return Err(bad_data(warning));
        }
    }
    Ok(Written { rows, left })
}

async fn fill(tx: &mut Tx<'_>, r: &Resolved, batch: &Batch<'_>) -> Result<(Written, bool)> {
    let paused = match batch.guard {
        Guard::Lease(fence) => store::fenced(tx, fence).await?,
        Guard::Region(region) => regions::hold(tx, region).await?,
    };
    let written = match batch.what {
        Fill::Pending => fill_pending(tx, r, batch.chunk, &[]).await?,
        Fill::PendingGood => {
            let bad: Vec<Vec<String>> = bad_keys(tx, r, batch.chunk, batch.what).await?.0.into_iter().map(|(key, _)| key).collect();
            fill_pending(tx, r, batch.chunk, &bad).await?
        }
        Fill::Forward => fill_divergent(tx, r, batch.chunk, Side::New).await?,
        Fill::Reverse => fill_divergent(tx, r, batch.chunk, Side::Old).await?,
    };
    if let Guard::Region(region) = batch.guard {
        regions::filled(tx, region, written.rows).await?;
    }
    Ok((written, paused))
}

fn held_by_others(written: &Written) -> Error {
    let message = format!("{} of the batch's rows are held by other transactions; {} were filled", written.left, written.rows);
    Error::Database { code: Code::Database, trouble: Trouble::LockTimeout, context: "filling a batch".into(), message, sqlstate: None }
}

#[async_trait]
impl Rows for MySql {
    async fn next_chunk(&self, r: &Resolved, _walk: Walk, after: Option<&Watermark>, rows: u32, _stripes: u32) -> Result<Option<Chunk>> {
        let mut tx = self.begin(Settings::LOOK).await?;
        let chunk = next_chunk(&mut tx, r, after, rows).await;
        tx.end(chunk).await
    }

    async fn next_part(&self, r: &Resolved, chunk: &Chunk, after: Option<&Place>, rows: u32) -> Result<Option<Chunk>> {
        let mut tx = self.begin(Settings::LOOK).await?;
        let part = next_part(&mut tx, r, chunk, after, rows).await;
        tx.end(part).await
    }

    async fn fill(&self, r: &Resolved, batch: &Batch<'_>) -> Result<Filled> {
        let began = Instant::now();
        crash::point("before sending a batch");
        let mut tx = self.begin(BATCH).await?;
        // By which the triggers tell our writes from the application's.
        tx.batch(&format!("SET @sete_by = {}", literal(&r.names.marker)), "beginning a batch").await?;
        let done = fill(&mut tx, r, batch).await;
        let (written, paused) = tx.end(done).await?;
        if written.left > 0 {
            return Err(held_by_others(&written));
        }
        Ok(Filled { rows: written.rows, took: began.elapsed(), paused })
    }

    async fn bad_rows(&self, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>> {
        let mut tx = self.begin(TRY).await?;
        let bad = bad_rows(&mut tx, r, chunk, what).await;
        tx.end(bad).await
    }

    async fn unfit_rows(&self, r: &Resolved, chunk: &Chunk, sample: u32) -> Result<Unfit> {
        let mut tx = self.begin(TRY).await?;
        let unfit = unfit_rows(&mut tx, r, chunk, sample).await;
        tx.end(unfit).await
    }

    async fn compare(&self, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
        let mut tx = self.begin(TRY).await?;
        let compared = compare(&mut tx, r, chunk, what, safely, sample).await;
        tx.end(compared).await
    }

    async fn pressure(&self, plan: &Plan, _r: &Resolved) -> Result<Pressure> {
        pressure::look(self, plan).await
    }

    async fn densities(&self, _r: &Resolved) -> Result<Vec<(u32, u32)>> {
        Ok(Vec::new())
    }
}
