//! One look at how the server feels: sessions, replicas, the growth of its log, who holds old row versions.

use std::collections::HashMap;
use std::time::Duration;

use super::{Postgres, Settings, Tx, conn};
use crate::engine::{Horizon, Pressure};
use crate::error::{Code, Error, Result};
use crate::plan::Plan;
use crate::resolve::Resolved;
use crate::secret::DbUrl;

pub async fn look(postgres: &Postgres, plan: &Plan, r: &Resolved) -> Result<Pressure> {
    let tx = postgres.begin(Settings::LOOK).await?;
    let pressure = pressure(&tx, plan, r).await;
    let mut pressure = tx.end(pressure).await?;
    for name in &plan.throttle.replicas {
        pressure.lag.insert(format!("env:{name}"), replica_lag(name).await);
    }
    Ok(pressure)
}

async fn pressure(tx: &Tx<'_>, plan: &Plan, r: &Resolved) -> Result<Pressure> {
    let sql = "SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend')::int4, \
               (SELECT count(*) FROM pg_catalog.pg_locks w JOIN pg_catalog.pg_stat_activity a ON a.pid = ANY (pg_catalog.pg_blocking_pids(w.pid)) \
                WHERE NOT w.granted AND a.application_name LIKE 'sete%')::int4, \
               pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), '0/0')::int8";
    let row = tx.one(sql, &[], "looking at the server's load").await?;
    let (active, waiting, wal): (i32, i32, i64) = (row.get(0), row.get(1), row.get(2));
    let leaves: Vec<u32> = r.leaves.iter().filter_map(|leaf| u32::try_from(leaf.id).ok()).collect();
    let sql = "SELECT coalesce(sum(pg_catalog.pg_stat_get_tuples_updated(l)), 0)::int8, coalesce(sum(pg_catalog.pg_stat_get_tuples_hot_updated(l)), 0)::int8 \
               FROM unnest($1::oid[]) l";
    let row = tx.one(sql, &[&leaves], "looking at the table's updates").await?;
    let updates = (row.get::<_, i64>(0).unsigned_abs(), row.get::<_, i64>(1).unsigned_abs());
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
            Some(
                row.try_get::<_, Option<bool>>(0)
                    .map_err(|_| Error::new(Code::PaceGivenUp, "throttle.query must give one boolean"))?
                    .unwrap_or(false),
            )
        }
    };
    Ok(Pressure {
        lag,
        active: active.unsigned_abs(),
        waiting: waiting.unsigned_abs(),
        wal_bytes: wal.unsigned_abs(),
        updates: Some(updates),
        horizon: horizon(tx).await?,
        query,
        ..Pressure::default()
    })
}

/// The oldest of all that old row versions are kept for. Of the sessions those of our database count, of the rest all.
async fn horizon(tx: &Tx<'_>) -> Result<Option<Horizon>> {
    let sql = "SELECT holder, snapshot::text, age_s FROM ( \
        SELECT 'session ' || pid || ' (' || concat_ws(', ', nullif(application_name, ''), 'user ' || usename) || ')' AS holder, \
               coalesce(backend_xmin, backend_xid) AS snapshot, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s \
        FROM pg_catalog.pg_stat_activity WHERE pid <> pg_catalog.pg_backend_pid() AND datname = current_database() AND backend_type <> 'walsender' \
          AND application_name NOT LIKE 'sete%' AND coalesce(backend_xmin, backend_xid) IS NOT NULL \
        UNION ALL SELECT 'replication slot ' || slot_name, xmin, NULL FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL \
        UNION ALL SELECT 'prepared transaction ' || gid, transaction, extract(epoch FROM clock_timestamp() - prepared)::float8 \
        FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() \
        UNION ALL SELECT 'standby ' || coalesce(nullif(application_name, ''), pid::text) || ' (hot_standby_feedback)', backend_xmin, NULL \
        FROM pg_catalog.pg_stat_replication WHERE backend_xmin IS NOT NULL) found ORDER BY age(snapshot) DESC, holder LIMIT 1";
    let row = tx.query(sql, &[], "looking who holds old row versions").await?.pop();
    Ok(row.map(|row| Horizon { holder: row.get(0), snapshot: row.get(1), age_s: row.get(2) }))
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
