//! One look at how the server feels: sessions, replicas, its log, what is to be purged.

use std::time::Duration;

use mysql_async::{Row, Value};

use super::conn::{Address, Connector, Session, get};
use super::sql::qualified;
use super::{MySql, Settings};
use crate::engine::Pressure;
use crate::error::{Code, Error, Result, Trouble};
use crate::plan::{Plan, TableName};
use crate::secret::DbUrl;

pub async fn look(engine: &MySql, plan: &Plan) -> Result<Pressure> {
    let ours = engine.ours();
    let mut tx = engine.begin(Settings::LOOK).await?;
    let pressure = pressure(&mut tx, plan, &ours).await;
    let mut pressure = tx.end(pressure).await?;
    for name in &plan.throttle.replicas {
        pressure.lag.insert(format!("env:{name}"), replica_lag(name, plan.throttle.heartbeat.as_deref()).await);
    }
    Ok(pressure)
}

async fn pressure(session: &mut Session, plan: &Plan, ours: &[u32]) -> Result<Pressure> {
    let rows = session.query(STATUS, (), "looking at the server's load").await?;
    let status = rows.iter().map(|row| Ok((get::<String>(row, 0)?, get::<String>(row, 1)?))).collect::<Result<Vec<_>>>()?;
    let number = |name: &str| status.iter().find(|(n, _)| n == name).and_then(|(_, value)| value.parse::<u64>().ok());
    // What was made, which MySQL counts every ten milliseconds; what was written to disk, in which there is padding, only on older servers.
    let log = number("Innodb_redo_log_current_lsn").or(number("Innodb_lsn_current")).or(number("Innodb_os_log_written"));
    Ok(Pressure {
        // Ours, that asks, is one of them.
        active: u32::try_from(number("Threads_running").unwrap_or(0).saturating_sub(1)).unwrap_or(u32::MAX),
        waiting: waiting(session, ours).await?,
        wal_bytes: log.unwrap_or(0),
        history_list: match number("Innodb_history_list_length") {
            None if plan.throttle.max_history_list.is_some() => history_list(session).await?,
            length => length,
        },
        redo_fill: share(number("Innodb_checkpoint_age"), number("Innodb_checkpoint_max_age")).or_else(|| {
            let age = number("Innodb_redo_log_current_lsn")?.saturating_sub(number("Innodb_redo_log_checkpoint_lsn")?);
            share(Some(age), number("Innodb_redo_log_capacity_resized"))
        }),
        query: answer(session, plan).await?,
        ..Pressure::default()
    })
}

/// MySQL has the first of the redo log since 8.0.30, MariaDB has the last four.
const STATUS: &str = "SHOW GLOBAL STATUS WHERE variable_name IN ('Threads_running', 'Innodb_os_log_written', 'Innodb_redo_log_current_lsn', \
    'Innodb_redo_log_checkpoint_lsn', 'Innodb_redo_log_capacity_resized', 'Innodb_lsn_current', 'Innodb_checkpoint_age', 'Innodb_checkpoint_max_age', \
    'Innodb_history_list_length')";

fn share(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    Some(part? as f64 / whole.filter(|whole| *whole > 0)? as f64)
}

/// On MySQL. None where we may not look.
async fn history_list(session: &mut Session) -> Result<Option<u64>> {
    let sql = "SELECT CAST(count AS UNSIGNED) FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len' AND status = 'enabled'";
    match session.query(sql, (), "looking at the history list").await {
        Ok(rows) => rows.first().map(|row| get(row, 0)).transpose(),
        Err(e) if e.trouble() == Trouble::Rights => Ok(None),
        Err(e) => Err(e),
    }
}

/// Sessions of others that wait for a row lock of ours. Who may not look at locks sees none.
async fn waiting(session: &mut Session, ours: &[u32]) -> Result<u32> {
    let ours = ours.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let sql = if session.version().is_mariadb() {
        format!(
            "SELECT COUNT(DISTINCT w.requesting_trx_id) FROM information_schema.innodb_lock_waits w \
             JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id JOIN information_schema.innodb_trx q ON q.trx_id = w.requesting_trx_id \
             WHERE b.trx_mysql_thread_id IN ({ours}) AND q.trx_mysql_thread_id NOT IN ({ours})"
        )
    } else {
        format!(
            "SELECT COUNT(DISTINCT w.requesting_thread_id) FROM performance_schema.data_lock_waits w \
             JOIN performance_schema.threads b ON b.thread_id = w.blocking_thread_id JOIN performance_schema.threads q ON q.thread_id = w.requesting_thread_id \
             WHERE b.processlist_id IN ({ours}) AND q.processlist_id NOT IN ({ours})"
        )
    };
    match session.one(&sql, (), "looking at lock waits").await {
        Ok(row) => get(&row, 0),
        Err(e) if matches!(e.trouble(), Trouble::Rights | Trouble::Undefined) => Ok(0),
        Err(e) => Err(e),
    }
}

async fn answer(session: &mut Session, plan: &Plan) -> Result<Option<bool>> {
    let Some(query) = &plan.throttle.query else { return Ok(None) };
    let rows = session.query(query, (), "asking throttle.query").await?;
    let row = rows.first().ok_or_else(|| Error::new(Code::PaceGivenUp, "throttle.query gave no row"))?;
    let number = get::<Option<i64>>(row, 0).map_err(|_| Error::new(Code::PaceGivenUp, "throttle.query must give one boolean"))?;
    Ok(Some(number.unwrap_or(0) != 0))
}

/// Asks a replica itself. Whatever goes wrong makes its lag unknown, which stops the backfill.
async fn replica_lag(variable: &str, heartbeat: Option<&str>) -> Option<Duration> {
    let url = std::env::var(variable).ok()?;
    let connector = Connector::new(Address::parse(&DbUrl::new(url)).ok()?, "sete").ok()?;
    let mut session = connector.connect().await.ok()?;
    if let Some(table) = heartbeat {
        return since_heartbeat(&mut session, &TableName::parse(table).ok()?).await;
    }
    let sql = if session.version().is_mariadb() {
        "SHOW ALL SLAVES STATUS"
    } else if session.version().number >= (8, 0, 22) {
        "SHOW REPLICA STATUS"
    } else {
        "SHOW SLAVE STATUS"
    };
    let channels = session.query(sql, (), "asking a replica for its lag").await.ok()?;
    // Of several sources the one that is furthest behind; one that is not followed makes all of it unknown.
    channels.iter().map(seconds_behind).collect::<Option<Vec<_>>>()?.into_iter().max().map(Duration::from_secs)
}

/// By the replica's clock. One that beats in the future beats by another clock, or in another zone: then the lag is unknown.
async fn since_heartbeat(session: &mut Session, table: &TableName) -> Option<Duration> {
    let sql = format!("SELECT TIMESTAMPDIFF(MICROSECOND, MAX(CAST(ts AS DATETIME(6))), UTC_TIMESTAMP(6)) FROM {}", qualified(table));
    let row = session.one(&sql, (), "asking a replica for its heartbeat").await.ok()?;
    let behind = get::<Option<i64>>(&row, 0).ok()??;
    (behind >= -1_000_000).then(|| Duration::from_micros(behind.max(0).unsigned_abs()))
}

fn seconds_behind(channel: &Row) -> Option<u64> {
    let place = channel.columns_ref().iter().position(|c| matches!(c.name_str().as_ref(), "Seconds_Behind_Source" | "Seconds_Behind_Master"))?;
    match channel.as_ref(place)? {
        Value::NULL => None,
        _ => get::<u64>(channel, place).ok(),
    }
}
