//! Chunks on PostgreSQL: finding the next, filling it, comparing it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio_postgres::types::ToSql;

use super::sql::{ident, qualified, rename_columns};
use super::sync::{differ, error_call};
use super::{Postgres, Settings, Tx, conn, store};
use crate::crash;
use crate::engine::catalog::{Key, Leaf};
use crate::engine::{Batch, Chunk, Compare, Compared, Fence, Fill, Filled, Place, Pressure, Rows, Side, Stripe, Walk, Watermark};
use crate::error::{Code, Error, Result};
use crate::plan::Plan;
use crate::resolve::{Conversion, Resolved};
use crate::secret::DbUrl;
use crate::state::{Progress, Reject};

/// A batch is short; one that is not was caught in something, and is halved.
const BATCH_LIMIT: Duration = Duration::from_secs(30);

/// Pages of a striped region: its stripes find them in the cache, and each holds a page's lock for a moment only.
const STRIPED_PAGES: u32 = 100;

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
            let condition = format!("{new} IS NULL AND CASE WHEN {} IS NULL THEN (\n{forward}\n) IS NOT NULL ELSE false END", error_call(r, Side::New));
            (new, forward, condition)
        }
        // A row that either direction explains is left alone: a lossy conversion would alter it.
        Fill::Forward => (new, forward, divergent(r, true)),
        Fill::Reverse => (ident(&r.old.name), reverse, divergent(r, true)),
    }
}

/// The line number within the page decides: every page gives an equal part of its rows to each stripe.
fn in_stripe(stripe: Stripe) -> String {
    if stripe == Stripe::WHOLE { String::new() } else { format!(" AND ((ctid::text::point)[1])::int % {} = {}", stripe.of, stripe.index) }
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
        Compare::Empty => format!("{} IS NULL", ident(&r.new.name)),
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
    r.leaves.iter().find(|l| l.id == chunk.next.leaf).or_else(|| r.leaves.iter().find(|l| qualified(&l.name) == chunk.relation)).ok_or_else(|| {
        Error::new(Code::TargetChanged, format!("the partition {} is gone", chunk.relation))
    })
}

#[async_trait]
impl Rows for Postgres {
    async fn next_chunk(&self, r: &Resolved, walk: Walk, after: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
        let tx = self.begin_for(&r.table, Settings::LOOK).await?;
        let chunk = next_chunk(&tx, r, walk, after, rows, stripes).await;
        tx.end(chunk).await
    }

    async fn fill(&self, r: &Resolved, batch: &Batch<'_>, fence: &Fence) -> Result<Filled> {
        let bounds = Bounds::of(r, batch.chunk, leaf_of(r, batch.chunk)?)?;
        let sql = fill_sql(r, &batch.chunk.relation, &bounds.sql, batch.what, batch.stripe);
        let settings = Settings { lock_timeout: batch.lock_wait, statement_timeout: BATCH_LIMIT, lazy_commit: true, read_only: false };
        let mut ours = format!("SET LOCAL sete.by = {}", super::sql::literal(&r.names.marker));
        if r.suppress_triggers {
            ours += "; SET LOCAL session_replication_role = replica";
        }
        self.prepared(&r.table, &[store::FENCE, &sql]).await?;
        let began = Instant::now();
        let tx = self.tx().await?;
        let filled = fill(&tx, r, &ours, settings, &sql, &bounds, batch.progress, fence).await;
        let (rows, paused) = tx.end(filled).await?;
        Ok(Filled { rows, took: began.elapsed(), paused })
    }

    async fn bad_rows(&self, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>> {
        let tx = self.begin_for(&r.table, Settings { statement_timeout: BATCH_LIMIT, ..Settings::LOOK }).await?;
        let bad = bad_rows(&tx, r, chunk, what).await;
        tx.end(bad).await
    }

    async fn compare(&self, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
        let tx = self.begin_for(&r.table, Settings { statement_timeout: BATCH_LIMIT, ..Settings::LOOK }).await?;
        let compared = compare(&tx, r, chunk, what, safely, sample).await;
        tx.end(compared).await
    }

    async fn pressure(&self, plan: &Plan) -> Result<Pressure> {
        let tx = self.begin(Settings::LOOK).await?;
        let pressure = pressure(&tx, plan).await;
        let mut pressure = tx.end(pressure).await?;
        for name in &plan.throttle.replicas {
            pressure.lag.insert(format!("env:{name}"), replica_lag(name).await);
        }
        Ok(pressure)
    }
}

async fn next_chunk(tx: &Tx<'_>, r: &Resolved, walk: Walk, after: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
    // Leaves are walked in the order of their numbers, so that a partition made meanwhile comes last.
    let mut leaves: Vec<&Leaf> = r.leaves.iter().collect();
    leaves.sort_by_key(|leaf| leaf.id);
    for leaf in leaves.into_iter().filter(|leaf| after.is_none_or(|mark| leaf.id >= mark.leaf)) {
        let mark = after.filter(|mark| mark.leaf == leaf.id);
        let chunk = match walk {
            Walk::Physical => next_pages(tx, leaf, mark, rows, stripes).await?,
            Walk::Key => next_keys(tx, key(r, leaf)?, leaf, mark, rows).await?,
        };
        if chunk.is_some() {
            return Ok(chunk);
        }
    }
    Ok(None)
}

/// A region of pages. A table that was rewritten since the watermark was saved is begun anew: its page numbers mean nothing now.
async fn next_pages(tx: &Tx<'_>, leaf: &Leaf, mark: Option<&Watermark>, rows: u32, stripes: u32) -> Result<Option<Chunk>> {
    let relation = qualified(&leaf.name);
    let sql = "SELECT coalesce(pg_catalog.pg_relation_filenode(c.oid), 0)::int8, (pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int)::int8 \
               FROM pg_catalog.pg_class c WHERE c.oid = $1::text::pg_catalog.regclass";
    let row = tx.one(sql, &[&relation], "reading the table's size").await?;
    let (file, pages): (i64, i64) = (row.get(0), row.get(1));
    let (file, pages) = (file.unsigned_abs(), u32::try_from(pages).unwrap_or(u32::MAX));
    let from = match mark {
        Some(Watermark { file: then, at: Place::Page(page), .. }) if *then == file => *page,
        _ => 0,
    };
    if from >= pages {
        return Ok(None);
    }
    let per_page = (leaf.rows as f64 / f64::from(leaf.pages.max(1))).clamp(1.0, 300.0);
    let most = if stripes > 1 { STRIPED_PAGES } else { u32::MAX };
    let size = ((f64::from(rows) * f64::from(stripes) / per_page).ceil() as u32).clamp(1, most);
    let to = from.saturating_add(size).min(pages);
    Ok(Some(Chunk {
        relation,
        from: Place::Page(from),
        to: Place::Page(to),
        next: Watermark { leaf: leaf.id, file, at: Place::Page(to) },
        rows: (f64::from(to - from) * per_page) as u64,
    }))
}

/// The next `rows` keys. The last chunk has no end, so that it also holds what was inserted behind it.
async fn next_keys(tx: &Tx<'_>, key: &Key, leaf: &Leaf, mark: Option<&Watermark>, rows: u32) -> Result<Option<Chunk>> {
    let relation = qualified(&leaf.name);
    let from = match mark {
        // The end of this leaf was reached.
        Some(Watermark { at: Place::Key(None), .. }) => return Ok(None),
        Some(Watermark { at: Place::Key(values), .. }) => values.clone(),
        _ => None,
    };
    let (columns, values) = key_sql(key, 1);
    let shown = key.columns.iter().map(|(name, _)| format!("({})::text", ident(name))).collect::<Vec<_>>().join(", ");
    let after = if from.is_some() { format!("WHERE ({columns}) > ({values})") } else { String::new() };
    let sql = format!("SELECT {shown} FROM ONLY {relation} {after} ORDER BY {columns} OFFSET {} LIMIT 1", rows.max(1) - 1);
    let params: Vec<&(dyn ToSql + Sync)> = from.iter().flatten().map(|v| v as &(dyn ToSql + Sync)).collect();
    let found = tx.query(&sql, &params, "finding the next keys").await?.pop();
    let to: Option<Vec<String>> = found.map(|row| (0..key.columns.len()).map(|i| row.get::<_, String>(i)).collect());
    Ok(Some(Chunk {
        relation,
        from: Place::Key(from),
        to: Place::Key(to.clone()),
        next: Watermark { leaf: leaf.id, file: leaf.file, at: Place::Key(to) },
        rows: u64::from(rows),
    }))
}

/// Sent in one go, answered in one go. The rows count only if the fence held: else all is taken back.
#[expect(clippy::too_many_arguments, reason = "the parts of one batch, used here only")]
async fn fill(
    tx: &Tx<'_>,
    r: &Resolved,
    ours: &str,
    settings: Settings,
    sql: &str,
    bounds: &Bounds,
    progress: Option<&Progress>,
    fence: &Fence,
) -> Result<(u64, bool)> {
    let begin = format!("{}; {ours}", tx.begin_sql(settings, &super::sql::search_path(&r.table)));
    let params = bounds.refs();
    let fence_params: [&(dyn ToSql + Sync); 2] = [&fence.plan, &fence.token];
    let (begun, held, rows) = tokio::join!(
        biased;
        tx.batch(&begin, "beginning a batch"),
        tx.query_kept(store::FENCE, &fence_params, "checking the lease"),
        tx.execute_kept(sql, &params, "filling a batch")
    );
    begun?;
    let paused = store::held(held?, fence)?;
    let rows = rows?;
    crash::point("between a batch and its progress");
    if let Some(progress) = progress {
        let progress = Progress { filled: progress.filled + rows, ..progress.clone() };
        store::write_progress(tx, fence, &progress).await?;
        crash::point("before committing a batch");
    }
    Ok((rows, paused))
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

async fn compare(tx: &Tx<'_>, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
    let leaf = leaf_of(r, chunk)?;
    let bounds = Bounds::of(r, chunk, leaf)?;
    let apart = counted(r, what, safely);
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE {apart}), (array_agg({} ORDER BY ctid) FILTER (WHERE {apart}))[1:{sample}] FROM ONLY {} AS {} WHERE {}",
        row_name(leaf.key.as_ref()),
        chunk.relation,
        ident(&r.table.name),
        bounds.sql
    );
    let rows = tx.query(&sql, &bounds.refs(), "comparing a chunk").await?;
    let row = rows.first().ok_or_else(|| Error::new(Code::Internal, "a count gave no row"))?;
    Ok(Compared {
        rows: row.get::<_, i64>(0).unsigned_abs(),
        divergent: row.get::<_, i64>(1).unsigned_abs(),
        sample: row.get::<_, Option<Vec<String>>>(2).unwrap_or_default(),
    })
}

async fn pressure(tx: &Tx<'_>, plan: &Plan) -> Result<Pressure> {
    let sql = "SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend')::int4, \
               (SELECT count(*) FROM pg_catalog.pg_locks w JOIN pg_catalog.pg_stat_activity a ON a.pid = ANY (pg_catalog.pg_blocking_pids(w.pid)) \
                WHERE NOT w.granted AND a.application_name LIKE 'sete%')::int4, \
               pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), '0/0')::int8";
    let row = tx.one(sql, &[], "looking at the server's load").await?;
    let (active, waiting, wal): (i32, i32, i64) = (row.get(0), row.get(1), row.get(2));
    let mut lag = HashMap::new();
    // A standby that has replayed all there is has no lag, however long ago that was; one that is not streaming has an unknown one.
    let sql = "SELECT coalesce(nullif(application_name, ''), host(client_addr), pid::text) || ' (' || coalesce(host(client_addr), 'local') || ')' AS name, \
               CASE WHEN state <> 'streaming' THEN NULL WHEN replay_lsn >= pg_current_wal_lsn() THEN 0 \
               ELSE extract(epoch FROM replay_lag)::float8 END AS lag, state IS NULL AS hidden \
               FROM pg_catalog.pg_stat_replication WHERE state IS NULL OR state IN ('streaming', 'catchup')";
    for row in tx.query(sql, &[], "looking at the replicas").await? {
        let hidden: bool = row.get("hidden");
        if !hidden {
            lag.insert(row.get("name"), row.get::<_, Option<f64>>("lag").map(Duration::from_secs_f64));
        }
    }
    let query = match &plan.throttle.query {
        None => None,
        Some(query) => {
            let rows = tx.query(query, &[], "asking throttle.query").await?;
            let row = rows.first().ok_or_else(|| Error::new(Code::PaceGivenUp, "throttle.query gave no row"))?;
            Some(row.try_get::<_, Option<bool>>(0).map_err(|_| Error::new(Code::PaceGivenUp, "throttle.query must give one boolean"))?.unwrap_or(false))
        }
    };
    Ok(Pressure { lag, active: active.unsigned_abs(), waiting: waiting.unsigned_abs(), wal_bytes: wal.unsigned_abs(), query })
}

/// Asks a replica itself. Whatever goes wrong makes its lag unknown, which stops the backfill.
async fn replica_lag(variable: &str) -> Option<Duration> {
    let url = std::env::var(variable).ok()?;
    let connector = conn::Connector::new(conn::Address::parse(&DbUrl::new(url)).ok()?, "sete").ok()?;
    let session = connector.connect().await.ok()?;
    let sql = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN 0 WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0 \
               ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8";
    let row = session.client().query_one(sql, &[]).await.ok()?;
    row.get::<_, Option<f64>>(0).map(|s| Duration::from_secs_f64(s.max(0.0)))
}
