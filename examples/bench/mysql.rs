//! The same on MySQL and MariaDB: InnoDB updates in place, so that there is no HOT and little growth; what counts is time,
//! redo, and what the application feels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::BoxError;
use crate::application::Application;
use crate::measure::{IDLE, Run, share};
use crate::shape::Shape;
use crate::way::{self, KEYSET_ROWS, Way};

/// The table that is copied for each run.
pub struct Base {
    url: String,
    pub rows: u64,
    pub size: u64,
    pub version: String,
}

pub async fn connect(url: &str) -> Result<Conn, BoxError> {
    let mut conn = Conn::new(mysql_async::Opts::from_url(url)?).await?;
    conn.query_drop("SET SESSION transaction_isolation = 'READ-COMMITTED'").await?;
    Ok(conn)
}

async fn one<T: mysql_async::prelude::FromRow + Send + 'static>(conn: &mut Conn, sql: &str) -> Result<T, BoxError> {
    conn.query_first(sql).await?.ok_or_else(|| format!("no row: {sql}").into())
}

const COLUMNS: &str = "id bigint NOT NULL, customer int NOT NULL, created datetime NOT NULL, status varchar(20) NOT NULL, amount int NOT NULL, \
                       weight decimal(10, 2), note varchar(200), PRIMARY KEY (id), KEY (customer), KEY (created), KEY (weight)";

impl Base {
    pub async fn make(url: &str, rows: u64) -> Result<Base, BoxError> {
        let mut conn = connect(url).await?;
        conn.query_drop("DROP DATABASE IF EXISTS bench").await?;
        conn.query_drop("CREATE DATABASE bench").await?;
        conn.query_drop(format!("CREATE TABLE bench.base ({COLUMNS})")).await?;
        let thousand = "(WITH RECURSIVE t AS (SELECT 0 n UNION ALL SELECT n + 1 FROM t WHERE n < 999) SELECT n FROM t)";
        for thousands in 0..rows.div_ceil(1000) {
            conn.query_drop(format!(
                "INSERT INTO bench.base SELECT n, n % 5000, now() - INTERVAL n SECOND, ELT(1 + n % 3, 'new', 'paid', 'shipped'), n % 100000, \
                 (n % 1000) / 7.0, repeat('x', 40 + n % 41) FROM (SELECT {thousands} * 1000 + t.n + 1 AS n FROM {thousand} t) numbers"
            ))
            .await?;
        }
        let version: String = one(&mut conn, "SELECT version()").await?;
        conn.query_drop("ANALYZE TABLE bench.base").await?;
        let size =
            one(&mut conn, "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = 'bench' AND table_name = 'base'")
                .await?;
        Ok(Base { url: url.to_string(), rows, size, version })
    }

    /// A copy with the new column and the sync triggers.
    async fn copy(&self, conn: &mut Conn) -> Result<(), BoxError> {
        let sete: Vec<String> =
            conn.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'bench' AND table_name LIKE 'sete%'").await?;
        conn.query_drop("SET foreign_key_checks = 0").await?;
        for table in sete.iter().map(String::as_str).chain(["orders"]) {
            conn.query_drop(format!("DROP TABLE IF EXISTS bench.{table}")).await?;
        }
        conn.query_drop("CREATE TABLE bench.orders LIKE bench.base").await?;
        conn.query_drop("INSERT INTO bench.orders SELECT * FROM bench.base").await?;
        conn.query_drop("ANALYZE TABLE bench.orders").await?;
        way::prepare(&self.url, Shape::Plain).await
    }

    pub async fn remove(self) -> Result<(), BoxError> {
        Ok(connect(&self.url).await?.query_drop("DROP DATABASE bench").await?)
    }
}

async fn redo(conn: &mut Conn) -> Result<u64, BoxError> {
    let (_, written): (String, u64) = one(conn, "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'").await?;
    Ok(written)
}

/// Until the purge has caught up with the copy: it would fall on the run that follows.
async fn settle(conn: &mut Conn) -> Result<(), BoxError> {
    let began = Instant::now();
    loop {
        let (_, _, status): (String, String, String) = one(conn, "SHOW ENGINE INNODB STATUS").await?;
        let length = status.split("History list length ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        if length.is_none_or(|length| length < 100) || began.elapsed() > Duration::from_secs(60) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub async fn once(base: &Base, way: Way, live: f64, plan: &str) -> Result<Run, BoxError> {
    let mut conn = connect(&base.url).await?;
    base.copy(&mut conn).await?;
    settle(&mut conn).await?;
    let keys: Arc<Vec<String>> =
        Arc::new(conn.query("SELECT id FROM bench.base WHERE id % 53 = 0").await?.into_iter().map(|id: i64| id.to_string()).collect());
    let mut idle = Vec::new();
    let mut application = None;
    if live > 0.0 {
        let alone = Application::start(&base.url, keys.clone(), Shape::Plain, live)?;
        tokio::time::sleep(IDLE).await;
        idle = alone.end()?;
        application = Some(Application::start(&base.url, keys, Shape::Plain, live)?);
    }
    let log = redo(&mut conn).await?;
    let began = Instant::now();
    let batch_ms = match way {
        Way::Single => single(&mut conn).await?,
        Way::Keyset => keyset(&mut conn).await?,
        Way::Sete => way::with_sete(&base.url, Shape::Plain, 1, plan).await?,
        Way::Sete2 => way::with_sete(&base.url, Shape::Plain, 2, plan).await?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let wal = redo(&mut conn).await? - log;
    let times = match application {
        Some(application) => application.end()?,
        None => Vec::new(),
    };
    let left: u64 = one(&mut conn, "SELECT count(*) FROM bench.orders WHERE NOT (status_v2 <=> status)").await?;
    if left > 0 {
        return Err(format!("{left} rows are not filled, or wrong").into());
    }
    conn.query_drop("ANALYZE TABLE bench.orders").await?;
    let size: u64 =
        one(&mut conn, "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = 'bench' AND table_name = 'orders'")
            .await?;
    Ok(Run {
        way,
        seconds,
        wal,
        heap_growth: size as f64 / base.size.max(1) as f64,
        index_growth: 0.0,
        hot: 0.0,
        batch_ms,
        application: [share(&times, 0.5), share(&times, 0.99), share(&times, 1.0)],
        idle_p99: share(&idle, 0.99),
    })
}

/// So that the trigger leaves the session alone, as it does the backfill's.
async fn mark(conn: &mut Conn) -> Result<(), BoxError> {
    let body: String = one(
        conn,
        "SELECT action_statement FROM information_schema.triggers WHERE event_object_schema = 'bench' AND event_object_table = 'orders' LIMIT 1",
    )
    .await?;
    let marker = body.split("@sete_by <=> '").nth(1).and_then(|rest| rest.split('\'').next()).ok_or("the trigger names no marker")?.to_string();
    Ok(conn.exec_drop("SET @sete_by = ?", (marker,)).await?)
}

async fn single(conn: &mut Conn) -> Result<[f64; 3], BoxError> {
    mark(conn).await?;
    let began = Instant::now();
    conn.query_drop("UPDATE bench.orders SET status_v2 = status WHERE status_v2 IS NULL").await?;
    Ok([began.elapsed().as_secs_f64() * 1000.0; 3])
}

async fn keyset(conn: &mut Conn) -> Result<[f64; 3], BoxError> {
    mark(conn).await?;
    let (mut times, mut after) = (Vec::new(), 0_i64);
    loop {
        let began = Instant::now();
        let end: Option<Option<i64>> = conn
            .exec_first(format!("SELECT max(id) FROM (SELECT id FROM bench.orders WHERE id > ? ORDER BY id LIMIT {KEYSET_ROWS}) batch"), (after,))
            .await?;
        let Some(Some(end)) = end else { break };
        conn.exec_drop("UPDATE bench.orders SET status_v2 = status WHERE id > ? AND id <= ? AND status_v2 IS NULL", (after, end)).await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        after = end;
    }
    times.sort_by(f64::total_cmp);
    Ok([share(&times, 0.5), share(&times, 0.99), share(&times, 1.0)])
}
