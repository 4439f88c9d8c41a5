//! Chunks on PostgreSQL: finding the next, filling it, comparing it.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio_postgres::types::{ToSql, Type};

use super::sql::{ident, qualified, rename_columns};
use super::sync::{differ, error_call, temporary_error_function};
use super::{Postgres, Settings, Tx, pressure, regions, store};
use crate::crash;
use crate::engine::catalog::{Key, Leaf};
use crate::engine::{
    Batch, Chunk, Compare, Compared, Fence, Fill, Filled, Guard, Place, Pressure, Region, Rows, Side, Stripe, Unfit, Walk, Watermark,
};
use crate::error::{Code, Error, Result, Trouble};
use crate::plan::Plan;
use crate::resolve::{Conversion, Resolved};
use crate::state::Reject;

/// A batch is short; one that is not was caught in something, and is halved.
const BATCH_LIMIT: Duration = Duration::from_secs(30);

/// Pages that are striped together: the stripes find them in the cache, and each holds a page's lock for a moment only.
const STRIPED_PAGES: u32 = 100;
/// So many such parts make a region, so that their stripes can take turns.
const PARTS: u32 = 2;

/// An expression of the plan over the columns as they are named now.
pub fn actual(r: &Resolved, conversion: &Conversion) -> String {
    if !r.swapped {
        return conversion.sql.clone();
    }
    let names = [(r.plan_old.as_str(), r.old.name.as_str()), (r.plan_new.as_str(), r.new.name.as_str())];
    rename_columns(&conversion.sql, &names).unwrap_or_else(|| conversion.sql.clone())
}

/// The walk key of a chunk's leaf.
fn key<'a>(r: &'a Resolved, leaf: &'a Leaf) -> Result<&'a Key> {
    leaf.key.as_ref().or(r.key.as_ref()).ok_or_else(|| Error::new(Code::NoKey, format!("{} has no key to walk by", leaf.name)))
}

/// `"a", "b"` and `$1::text::int4, $2::text::text`, counting parameters from `first`.
fn key_sql(key: &Key, first: usize) -> (String, String) {
    let columns = key.columns.iter().map(|(name, _)| ident(name)).collect::<Vec<_>>().join(", ");
    let values = key.columns.iter().enumerate().map(|(i, (_, t))| format!("${}::text::{t}", first + i)).collect::<Vec<_>>().join(", ");
    (columns, values)
}

/// What names a row to a person: its key, or its place in the file where it has none.
fn row_name(leaf_key: Option<&Key>) -> String {
    match leaf_key {
        None => "'ctid ' || ctid::text".to_string(),
        Some(key) => {
            let parts: Vec<String> = key.columns.iter().map(|(name, _)| format!("({})::text", ident(name))).collect();
            if parts.len() == 1 { parts[0].clone() } else { format!("'(' || concat_ws(', ', {}) || ')'", parts.join(", ")) }
        }
    }
}

/// The chunk as a condition with its parameters.
struct Bounds {
    sql: String,
    params: Vec<String>,
}

impl Bounds {
    fn of(r: &Resolved, chunk: &Chunk, leaf: &Leaf) -> Result<Bounds> {
        match (&chunk.from, &chunk.to) {
            (Place::Page(from), Place::Page(to)) => Ok(Bounds {
                sql: "ctid >= $1::text::tid AND ctid < $2::text::tid".to_string(),
                params: vec![format!("({from},0)"), format!("({to},0)")],
            }),
            (Place::Key(from), Place::Key(to)) => {
                let key = key(r, leaf)?;
                let (mut sql, mut params) = (Vec::new(), Vec::new());
                for (operator, bound) in [(">", from), ("<=", to)] {
                    if let Some(values) = bound {
                        let (columns, placeholders) = key_sql(key, params.len() + 1);
                        sql.push(format!("({columns}) {operator} ({placeholders})"));
                        params.extend(values.iter().cloned());
                    }
                }
                let sql = if sql.is_empty() { "true".to_string() } else { sql.join(" AND ") };
                Ok(Bounds { sql, params })
            }
            _ => Err(Error::new(Code::Internal, "a chunk begins by page and ends by key, or the other way round")),
        }
    }

    fn refs(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.params.iter().map(|p| p as &(dyn ToSql + Sync)).collect()
    }
}

/// Which rows are meant, and what they get: `(column, value, condition)`.
fn assignment(r: &Resolved, what: Fill) -> (String, String, String) {
    let (forward, reverse) = (actual(r, &r.forward), actual(r, &r.reverse));
    let new = ident(&r.new.name);
    let pending = format!("{new} IS NULL AND (\n{forward}\n) IS NOT NULL");
    match what {
        Fill::Pending => (new, forward, pending),
        // CASE, since the order in which AND looks is the planner's choice.
        Fill::PendingGood => {
            let condition =
                format!("{new} IS NULL AND CASE WHEN {} IS NULL THEN (\n{forward}\n) IS NOT NULL ELSE false END", error_call(r, Side::New));
            (new, forward, condition)
        }
        // A row that either direction explains is left alone: a lossy conversion would alter it.
        Fill::Forward => (new, forward, divergent(r, true)),
        Fill::Reverse => (ident(&r.old.name), reverse, divergent(r, true)),
    }
}

/// The line number within the page decides: every page gives an equal part of its rows to each stripe. Its low byte is the
/// last of a tid's binary form, which costs less to make than its text (docs/performance.md).
fn in_stripe(stripe: Stripe) -> String {
    match stripe {
        Stripe::WHOLE => String::new(),
        Stripe { index, of } => format!(" AND pg_catalog.get_byte(pg_catalog.tidsend(ctid), 5) % {of} = {index}"),
    }
}

fn fill_sql(r: &Resolved, relation: &str, bounds: &str, what: Fill, stripe: Stripe) -> String {
    let (column, value, condition) = assignment(r, what);
    let in_stripe = in_stripe(stripe);
    format!("UPDATE ONLY {relation} AS {} SET {column} = (\n{value}\n) WHERE {bounds} AND ({condition}){in_stripe}", ident(&r.table.name))
}

/// One batch as the preview shows it.
pub fn example_fill(r: &Resolved, what: Fill) -> String {
    let relation = r.leaves.first().map_or_else(|| qualified(&r.table), |leaf| qualified(&leaf.name));
    let bounds = match (r.walk, &r.key) {
        (Walk::Key, Some(key)) => {
            let (columns, first) = key_sql(key, 1);
            let (_, second) = key_sql(key, key.columns.len() + 1);
            format!("({columns}) > ({first}) AND ({columns}) <= ({second})")
        }
        _ => "ctid >= $1::text::tid AND ctid < $2::text::tid".to_string(),
    };
    fill_sql(r, &relation, &bounds, what, Stripe::WHOLE).replace("(\n", "(").replace("\n)", ")")
}

/// The rows that a comparison counts. `safely` also where one of them doesn't convert.
fn counted(r: &Resolved, what: Compare, safely: bool) -> String {
    match what {
        Compare::Pending => {
            let what = if safely && !r.forward.safe { Fill::PendingGood } else { Fill::Pending };
            assignment(r, what).2
        }
        Compare::Divergent => divergent(r, safely),
    }
}

/// Neither direction explains the row. The reverse is only asked where the forward doesn't; a direction that fails explains nothing.
fn divergent(r: &Resolved, safely: bool) -> String {
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let (forward, reverse) = (actual(r, &r.forward), actual(r, &r.reverse));
    // CASE, since the order in which AND looks is the planner's choice.
    let unless_it_fails = |side: Side, then: String, fails: &str| match safely && !r.conversion_to(side).safe {
        true => format!("CASE WHEN {} IS NULL THEN {then} ELSE {fails} END", error_call(r, side)),
        false => then,
    };
    let by_reverse = differ(&old, &format!("(\n{reverse}\n)::{}", r.old.type_name), &r.old);
    let by_reverse = unless_it_fails(Side::Old, format!("({by_reverse})"), "true");
    let by_forward = differ(&new, &format!("(\n{forward}\n)::{}", r.new.type_name), &r.new);
    let pending = format!("{new} IS NULL AND (\n{forward}\n) IS NOT NULL");
    let by_both = format!("(({pending}) OR CASE WHEN {by_forward} THEN {by_reverse} ELSE false END)");
    unless_it_fails(Side::New, by_both, &by_reverse)
}

fn leaf_of<'a>(r: &'a Resolved, chunk: &Chunk) -> Result<&'a Leaf> {
    r.leaves
        .iter()
        .find(|l| l.id == chunk.next.leaf)
        .or_else(|| r.leaves.iter().find(|l| qualified(&l.name) == chunk.relation))
        .ok_or_else(|| Error::new(Code::TargetChanged, format!("the partition {} is gone", chunk.relation)))
}

#[async_trait]
impl Rows for Postgres {
    async fn next_chunk(&self, r: &Resolved, walk: Walk, after: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
        let tx = self.begin_for(&r.table, Settings::LOOK).await?;
        let chunk = next_chunk(&tx, r, walk, after, rows, stripes).await;
        tx.end(chunk).await
    }

    async fn next_part(&self, r: &Resolved, chunk: &Chunk, after: Option<&Place>, rows: u32) -> Result<Option<Chunk>> {
        let leaf = leaf_of(r, chunk)?;
        match (after.unwrap_or(&chunk.from), &chunk.to) {
            (Place::Page(from), Place::Page(end)) => Ok((from < end).then(|| pages(leaf, chunk.next.file, *from, *end, rows, chunk.stripes, 1))),
            (from, Place::Key(end)) => {
                if after.is_some_and(|after| *after == chunk.to) {
                    return Ok(None);
                }
                let tx = self.begin_for(&r.table, Settings::LOOK).await?;
                let part = next_keys(&tx, key(r, leaf)?, leaf, from, end.as_deref(), rows).await;
                tx.end(part).await.map(Some)
            }
            _ => Err(Error::new(Code::Internal, "a chunk begins by page and ends by key, or the other way round")),
        }
    }

    async fn fill(&self, r: &Resolved, batch: &Batch<'_>) -> Result<Filled> {
        let bounds = Bounds::of(r, batch.chunk, leaf_of(r, batch.chunk)?)?;
        let sql = fill_sql(r, &batch.chunk.relation, &bounds.sql, batch.what, batch.stripe);
        let settings = Settings { lock_timeout: batch.lock_wait, statement_timeout: BATCH_LIMIT, lazy_commit: true, read_only: false };
        let mut ours = format!("SET LOCAL sete.by = {}", super::sql::literal(&r.names.marker));
        if r.suppress_triggers {
            ours += "; SET LOCAL session_replication_role = replica";
        }
        let guarded = match batch.guard {
            Guard::Lease(_) => sql,
            Guard::Region(_) => regions::counted(&sql, bounds.params.len()),
        };
        self.prepared(&r.table, &[store::FENCE, regions::HOLD, &guarded]).await?;
        let began = Instant::now();
        let tx = self.tx().await?;
        let begin = format!("{}; {ours}", tx.begin_sql(settings, &super::sql::search_path(&r.table)));
        let (rows, paused) = match batch.guard {
            Guard::Lease(fence) => {
                let filled = fill(&tx, &begin, &guarded, &bounds, fence).await;
                tx.end(filled).await?
            }
            Guard::Region(region) => fill_in_region(tx, &begin, &guarded, &bounds, region).await?,
        };
        Ok(Filled { rows, took: began.elapsed(), paused })
    }

    async fn bad_rows(&self, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>> {
        let tx = self.begin_for(&r.table, Settings { statement_timeout: BATCH_LIMIT, ..Settings::LOOK }).await?;
        let bad = bad_rows(&tx, r, chunk, what).await;
        tx.end(bad).await
    }

    async fn unfit_rows(&self, r: &Resolved, chunk: &Chunk, sample: u32) -> Result<Unfit> {
        let leaf = leaf_of(r, chunk)?;
        let bounds = Bounds::of(r, chunk, leaf)?;
        let from = format!("FROM ONLY {} AS {} WHERE {}", chunk.relation, ident(&r.table.name), bounds.sql);
        let settings = Settings { statement_timeout: BATCH_LIMIT, ..Settings::LOOK };
        let tx = self.begin_for(&r.table, settings).await?;
        let sql = format!("SELECT count(*), count((\n{}\n)) {from}", actual(r, &r.forward));
        let all = tx.query(&sql, &bounds.refs(), "converting a chunk").await;
        match tx.end(all).await {
            Ok(rows) => return Ok(Unfit { rows: rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()), ..Unfit::default() }),
            Err(e) if e.trouble() == Trouble::BadData => {}
            Err(e) => return Err(e),
        }
        // Row by row, with a function that goes with the transaction.
        let tx = self.begin_for(&r.table, Settings { read_only: false, ..settings }).await?;
        let unfit = unfit_rows(&tx, r, leaf, &from, &bounds, sample).await;
        tx.take_back().await?;
        unfit
    }

    async fn compare(&self, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
        let tx = self.begin_for(&r.table, Settings { statement_timeout: BATCH_LIMIT, ..Settings::LOOK }).await?;
        let compared = compare(&tx, r, chunk, what, safely, sample).await;
        tx.end(compared).await
    }

    async fn pressure(&self, plan: &Plan, r: &Resolved) -> Result<Pressure> {
        pressure::look(self, plan, r).await
    }

    async fn densities(&self, r: &Resolved) -> Result<Vec<(u32, u32)>> {
        if r.walk == Walk::Key {
            return Ok(Vec::new());
        }
        let tx = self.begin_for(&r.table, Settings::LOOK).await?;
        let found = densities(&tx, r).await;
        tx.end(found).await
    }
}

pub async fn next_chunk(tx: &Tx<'_>, r: &Resolved, walk: Walk, after: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
    // Leaves are walked in the order of their numbers, so that a partition made meanwhile comes last.
    let mut leaves: Vec<&Leaf> = r.leaves.iter().collect();
    leaves.sort_by_key(|leaf| leaf.id);
    for leaf in leaves.into_iter().filter(|leaf| after.is_none_or(|mark| leaf.id >= mark.leaf)) {
        let mark = after.filter(|mark| mark.leaf == leaf.id);
        let chunk = match (walk, mark.map(|mark| &mark.at)) {
            (Walk::Physical, _) => next_pages(tx, leaf, mark, rows, stripes).await?,
            // The end of this leaf was reached.
            (Walk::Key, Some(Place::Key(None))) => None,
            (Walk::Key, at) => Some(next_keys(tx, key(r, leaf)?, leaf, at.unwrap_or(&Place::Key(None)), None, rows).await?),
        };
        if chunk.is_some() {
            return Ok(chunk);
        }
    }
    Ok(None)
}

/// A leaf's file number, 0 when the leaf is gone, and its pages.
async fn file_and_pages(tx: &Tx<'_>, leaf: u64) -> Result<(u64, u32)> {
    let sql = "SELECT coalesce(pg_catalog.pg_relation_filenode($1), 0)::int8, (coalesce(pg_catalog.pg_relation_size($1), 0) / current_setting('block_size')::int)::int8";
    let row = tx.one_typed(sql, &[(&oid(leaf), Type::OID)], "reading the table's size").await?;
    let (file, pages): (i64, i64) = (row.get(0), row.get(1));
    Ok((file.unsigned_abs(), u32::try_from(pages).unwrap_or(u32::MAX)))
}

/// Whether the leaf is another file now than the one that the chunk's pages are of.
pub async fn was_rewritten(tx: &Tx<'_>, chunk: &Chunk) -> Result<bool> {
    match chunk.next.at {
        Place::Page(_) => Ok(file_and_pages(tx, chunk.next.leaf).await?.0 != chunk.next.file),
        Place::Key(_) => Ok(false),
    }
}

fn oid(leaf: u64) -> u32 {
    u32::try_from(leaf).unwrap_or_default()
}

/// A region of pages. A table that was rewritten since the watermark was saved is begun anew: its page numbers mean nothing now.
async fn next_pages(tx: &Tx<'_>, leaf: &Leaf, mark: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
    let (file, pages_now) = file_and_pages(tx, leaf.id).await?;
    // What has come behind the table since the run began are new versions and new rows, filled already; the next sweep looks.
    let end = if stripes > 1 { pages_now.min(leaf.pages.max(1)) } else { pages_now };
    let from = match mark {
        Some(Watermark { file: then, at: Place::Page(page), .. }) if *then == file => *page,
        _ => 0,
    };
    Ok((from < end).then(|| pages(leaf, file, from, end, rows, stripes, PARTS)))
}

/// As many pages as hold `stripes` times `rows` rows on average, so many times if they are striped.
fn pages(leaf: &Leaf, file: u64, from: u32, end: u32, rows: u32, stripes: u32, parts: u32) -> Chunk {
    let per_page = (leaf.rows as f64 / f64::from(leaf.pages.max(1))).clamp(1.0, 300.0);
    // Where a page holds fewer rows than there are stripes, the others would find nothing.
    let stripes = if stripes > 1 { stripes.min((per_page as u32).max(2)) } else { 1 };
    let size = (f64::from(rows) * f64::from(stripes) / per_page).ceil() as u32;
    let size = if stripes > 1 { size.clamp(1, STRIPED_PAGES) * parts } else { size.max(1) };
    let to = from.saturating_add(size).min(end);
    Chunk {
        relation: qualified(&leaf.name),
        from: Place::Page(from),
        to: Place::Page(to),
        next: Watermark { leaf: leaf.id, file, at: Place::Page(to) },
        rows: (f64::from(to - from) * per_page) as u64,
        stripes,
    }
}

/// The next `rows` keys, up to `end`.
async fn next_keys(tx: &Tx<'_>, key: &Key, leaf: &Leaf, from: &Place, end: Option<&[String]>, rows: u32) -> Result<Chunk> {
    let relation = qualified(&leaf.name);
    let from = if let Place::Key(values) = from { values.clone() } else { None };
    let (columns, _) = key_sql(key, 1);
    let shown = key.columns.iter().map(|(name, _)| format!("({})::text", ident(name))).collect::<Vec<_>>().join(", ");
    let (mut bounds, mut params): (Vec<String>, Vec<&(dyn ToSql + Sync)>) = (Vec::new(), Vec::new());
    for (operator, bound) in [(">", from.as_deref()), ("<", end)] {
        if let Some(values) = bound {
            bounds.push(format!("({columns}) {operator} ({})", key_sql(key, params.len() + 1).1));
            params.extend(values.iter().map(|v| v as &(dyn ToSql + Sync)));
        }
    }
    let bounds = if bounds.is_empty() { String::new() } else { format!("WHERE {}", bounds.join(" AND ")) };
    let sql = format!("SELECT {shown} FROM ONLY {relation} {bounds} ORDER BY {columns} OFFSET {} LIMIT 1", rows.max(1) - 1);
    let found = tx.query(&sql, &params, "finding the next keys").await?.pop();
    let found: Option<Vec<String>> = found.map(|row| (0..key.columns.len()).map(|i| row.get::<_, String>(i)).collect());
    Chunk::by_key(relation, leaf, from, found, end, rows)
}

/// The rows count only if the lease is ours: else all is taken back.
async fn fill(tx: &Tx<'_>, begin: &str, sql: &str, bounds: &Bounds, fence: &Fence) -> Result<(u64, bool)> {
    tx.batch(begin, "beginning a batch").await?;
    let paused = store::held(tx.query_kept(store::FENCE, &[&fence.plan, &fence.token], "checking the lease").await?, fence)?;
    Ok((tx.execute_kept(sql, &bounds.refs(), "filling a batch").await?, paused))
}

/// All of a transaction sent in one go and answered in one go. A worker that has lost its region finds no row to write; after
/// a statement that fails, COMMIT takes all back.
async fn fill_in_region(mut tx: Tx<'_>, begin: &str, sql: &str, bounds: &Bounds, region: &Region) -> Result<(u64, bool)> {
    let of: [&(dyn ToSql + Sync); 2] = [&region.id, &region.token];
    let mut params = bounds.refs();
    params.extend(of);
    crash::point("before sending a batch");
    let (begun, held, filled, committed) = tokio::join!(
        biased;
        tx.batch(begin, "beginning a batch"),
        tx.query_kept(regions::HOLD, &of, "checking the region"),
        tx.query_kept(sql, &params, "filling a batch"),
        tx.batch("COMMIT", "committing")
    );
    if committed.is_ok() {
        tx.ended();
    }
    begun?;
    let paused = regions::region_held(&held?, region)?;
    let rows = filled?.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs());
    committed.map(|()| (rows, paused))
}

/// Pages that tell how full the table's pages are.
const SAMPLED_PAGES: u32 = 200;

/// Of a partitioned table the leaves follow each other, as the walk takes them; page numbers count through all of them.
async fn densities(tx: &Tx<'_>, r: &Resolved) -> Result<Vec<(u32, u32)>> {
    let mut leaves: Vec<&Leaf> = r.leaves.iter().collect();
    leaves.sort_by_key(|leaf| leaf.id);
    let all: u32 = leaves.iter().map(|leaf| leaf.pages).sum();
    let percent = (f64::from(SAMPLED_PAGES) * 100.0 / f64::from(all.max(1))).min(100.0);
    let (mut out, mut before) = (Vec::new(), 0);
    for leaf in leaves {
        let sql = format!(
            "SELECT ((ctid::text::point)[0])::int8, count(*) FROM ONLY {} TABLESAMPLE SYSTEM ({percent:.6}) REPEATABLE (7) GROUP BY 1 ORDER BY 1",
            qualified(&leaf.name)
        );
        for row in tx.query(&sql, &[], "sampling the table").await? {
            let (page, rows): (i64, i64) = (row.get(0), row.get(1));
            out.push((before + u32::try_from(page).unwrap_or(u32::MAX - before), u32::try_from(rows).unwrap_or(u32::MAX)));
        }
        before += leaf.pages;
    }
    Ok(out)
}

async fn bad_rows(tx: &Tx<'_>, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>> {
    let leaf = leaf_of(r, chunk)?;
    let bounds = Bounds::of(r, chunk, leaf)?;
    let (to, from, concerned) = match what {
        Fill::Pending | Fill::PendingGood => (Side::New, &r.old, format!("{} IS NULL", ident(&r.new.name))),
        Fill::Forward => (Side::New, &r.old, divergent(r, true)),
        Fill::Reverse => (Side::Old, &r.new, divergent(r, true)),
    };
    let sql = format!(
        "SELECT * FROM (SELECT {} AS key, left(({})::text, 200) AS value, {} AS message FROM ONLY {} AS {} WHERE {} AND ({concerned})) AS found \
         WHERE message IS NOT NULL",
        row_name(leaf.key.as_ref()),
        ident(&from.name),
        error_call(r, to),
        chunk.relation,
        ident(&r.table.name),
        bounds.sql,
    );
    let rows = tx.query(&sql, &bounds.refs(), "looking for rows that don't convert").await?;
    Ok(rows.iter().map(|row| Reject { key: row.get("key"), value: row.get("value"), message: row.get("message") }).collect())
}

async fn unfit_rows(tx: &Tx<'_>, r: &Resolved, leaf: &Leaf, from: &str, bounds: &Bounds, sample: u32) -> Result<Unfit> {
    let (function, call) = temporary_error_function(r, Side::New);
    tx.batch(&function, "making a temporary function").await?;
    let count = tx.query(&format!("SELECT count(*), count({call}) {from}"), &bounds.refs(), "counting rows that don't convert").await?;
    let [rows, unfit] = [0, 1].map(|n| count.first().map_or(0, |row| row.get::<_, i64>(n).unsigned_abs()));
    let (name, old) = (row_name(leaf.key.as_ref()), ident(&r.old.name));
    let sql = format!("SELECT {name} AS key, left(({old})::text, 200) AS value, {call} AS message {from} AND {call} IS NOT NULL LIMIT {sample}");
    let some = tx.query(&sql, &bounds.refs(), "naming rows that don't convert").await?;
    let sample = some.iter().map(|row| Reject { key: row.get("key"), value: row.get("value"), message: row.get("message") }).collect();
    Ok(Unfit { rows, unfit, sample })
}

async fn compare(tx: &Tx<'_>, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
    let leaf = leaf_of(r, chunk)?;
    let bounds = Bounds::of(r, chunk, leaf)?;
    let apart = counted(r, what, safely);
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE {apart}), count(*) - count({}) FROM ONLY {} AS {} WHERE {}",
        ident(&r.new.name),
        chunk.relation,
        ident(&r.table.name),
        bounds.sql
    );
    let rows = tx.query(&sql, &bounds.refs(), "comparing a chunk").await?;
    let row = rows.first().ok_or_else(|| Error::new(Code::Internal, "a count gave no row"))?;
    let [rows, divergent, empty] = [0, 1, 2].map(|n| row.get::<_, i64>(n).unsigned_abs());
    let mut keys = Vec::new();
    // Asked apart, since nearly every chunk has none.
    if divergent > 0 && sample > 0 {
        let name = row_name(leaf.key.as_ref());
        let sql = format!(
            "SELECT {name} FROM ONLY {} AS {} WHERE {} AND ({apart}) ORDER BY ctid LIMIT {sample}",
            chunk.relation,
            ident(&r.table.name),
            bounds.sql
        );
        keys = tx.query(&sql, &bounds.refs(), "naming the rows that differ").await?.iter().map(|row| row.get(0)).collect();
    }
    Ok(Compared { rows, divergent, empty, sample: keys })
}
