//! One run in a fresh copy of the table's database, and what it cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use crate::BoxError;
use crate::application::Application;
use crate::shape::Shape;
use crate::way::{self, Way};

/// The database that is copied for each run.
pub struct Base {
    url: String,
    shape: Shape,
    pub rows: u64,
    pub heap: u64,
    pub indexes: u64,
    pub version: String,
}

/// What one run took.
pub struct Run {
    pub way: Way,
    pub seconds: f64,
    pub wal: u64,
    pub heap_growth: f64,
    pub index_growth: f64,
    /// Share of HOT updates.
    pub hot: f64,
    /// Its transactions: median, 99 of 100, longest.
    pub batch_ms: [f64; 3],
    /// The application's statements meanwhile: median, 99 of 100, longest.
    pub application: [f64; 3],
    /// The application's 99 of 100 before it.
    pub idle_p99: f64,
}

/// How long the application is measured alone.
pub const IDLE: Duration = Duration::from_secs(15);

pub async fn connect(url: &str) -> Result<Client, BoxError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The same address with another database.
fn with_database(url: &str, name: &str) -> String {
    let (before, query) = url.split_once('?').map_or((url, String::new()), |(a, b)| (a, format!("?{b}")));
    let server = before.rfind('/').filter(|at| *at > "postgres://".len()).map_or(before, |at| &before[..at]);
    format!("{server}/{name}{query}")
}

async fn size_and_log(client: &Client) -> Result<(u64, u64, u64), BoxError> {
    let sql = "SELECT pg_relation_size('orders'), pg_indexes_size('orders'), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8";
    let row = client.query_one(sql, &[]).await?;
    let at = |n: usize| row.get::<_, i64>(n).unsigned_abs();
    Ok((at(0), at(1), at(2)))
}

/// Updates and HOT updates of the table, once the server has counted at least so many.
async fn updates(client: &Client, at_least: i64) -> Result<(i64, i64), BoxError> {
    let began = Instant::now();
    loop {
        client.batch_execute("SELECT pg_stat_clear_snapshot()").await?;
        let row = client.query_one("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'orders'", &[]).await?;
        let seen = (row.get(0), row.get(1));
        if seen.0 >= at_least || began.elapsed() > Duration::from_secs(15) {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl Base {
    pub async fn make(url: &str, shape: Shape, rows: u64) -> Result<Base, BoxError> {
        let server = connect(url).await?;
        server.batch_execute("DROP DATABASE IF EXISTS bench_base").await?;
        server.batch_execute("CREATE DATABASE bench_base").await?;
        let client = connect(&with_database(url, "bench_base")).await?;
        for sql in shape.setup(rows) {
            client.batch_execute(&sql).await?;
        }
        let (heap, indexes, _) = size_and_log(&client).await?;
        let version: String = client.query_one("SELECT 'PostgreSQL ' || current_setting('server_version')", &[]).await?.get(0);
        Ok(Base { url: url.to_string(), shape, rows: shape.rows(rows), heap, indexes, version })
    }

    /// A copy with the new column and the sync trigger.
    async fn copy(&self) -> Result<String, BoxError> {
        let server = connect(&self.url).await?;
        server.batch_execute("DROP DATABASE IF EXISTS bench_run").await?;
        // Sessions of the run before may take a moment to end.
        let began = Instant::now();
        while let Err(e) = server.batch_execute("CREATE DATABASE bench_run TEMPLATE bench_base").await {
            if began.elapsed() > Duration::from_secs(30) {
                return Err(e.into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let url = with_database(&self.url, "bench_run");
        way::prepare(&url, self.shape).await?;
        // Into the cache, for all alike.
        connect(&url).await?.batch_execute("SELECT count(*), sum(amount) FROM orders; CHECKPOINT").await?;
        Ok(url)
    }

    async fn keys(&self, client: &Client) -> Result<Arc<Vec<String>>, BoxError> {
        let rows = client.query("SELECT id::text FROM orders TABLESAMPLE SYSTEM (2)", &[]).await?;
        Ok(Arc::new(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// The statement that a person would compare the columns with.
    fn differences(&self) -> String {
        let change = self.shape.change();
        format!("SELECT count(*) FROM orders WHERE {} IS DISTINCT FROM {}", change.to, change.forward)
    }

    pub async fn remove(self) -> Result<(), BoxError> {
        let server = connect(&self.url).await?;
        for name in ["bench_run", "bench_base"] {
            server.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }
}

pub async fn once(base: &Base, way: Way, live: f64, plan: &str) -> Result<Run, BoxError> {
    let url = base.copy().await?;
    let client = connect(&url).await?;
    let holder = connect(&url).await?;
    if base.shape == Shape::Held {
        holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
    }
    let keys = base.keys(&client).await?;
    let mut idle = Vec::new();
    let mut application = None;
    if live > 0.0 {
        let alone = Application::start(&url, keys.clone(), base.shape, live)?;
        tokio::time::sleep(IDLE).await;
        idle = alone.end()?;
        application = Some(Application::start(&url, keys, base.shape, live)?);
    }
    let before = updates(&client, 0).await?;
    let (heap, indexes, log) = size_and_log(&client).await?;
    let began = Instant::now();
    let batch_ms = way::fill(way, &url, &client, base.shape, plan).await?;
    let seconds = began.elapsed().as_secs_f64();
    let (heap_after, indexes_after, log_after) = size_and_log(&client).await?;
    let times = match application {
        Some(application) => application.end()?,
        None => Vec::new(),
    };
    let after = updates(&client, before.0 + base.rows as i64).await?;
    let left: i64 = client.query_one(&base.differences(), &[]).await?.get(0);
    if left > 0 {
        return Err(format!("{left} rows are not filled, or wrong").into());
    }
    Ok(Run {
        way,
        seconds,
        wal: log_after - log,
        heap_growth: heap_after as f64 / heap as f64,
        index_growth: indexes_after as f64 / indexes.max(1) as f64,
        hot: (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64,
        batch_ms,
        application: [share(&times, 0.5), share(&times, 0.99), share(&times, 1.0)],
        idle_p99: share(&idle, 0.99),
    })
}

/// Seconds of one SELECT that counts differences, and of a pass of `sete validate`: medians over some rounds, alternating.
pub async fn validation(base: &Base, workers: u32, rounds: usize) -> Result<(f64, f64), BoxError> {
    let url = base.copy().await?;
    let client = connect(&url).await?;
    way::fill(Way::Sete, &url, &client, base.shape, "").await?;
    client.batch_execute("VACUUM orders").await?;
    let (mut scans, mut passes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let began = Instant::now();
        // As the planner does it by itself, but with one process, as sete has with one worker.
        client.batch_execute(&format!("SET max_parallel_workers_per_gather = 0; {}", base.differences())).await?;
        scans.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        way::validate(&url, base.shape, workers).await?;
        passes.push(began.elapsed().as_secs_f64());
    }
    Ok((median(scans.into_iter()), median(passes.into_iter())))
}

/// Of an ascending list.
pub fn share(times: &[f64], q: f64) -> f64 {
    if times.is_empty() { 0.0 } else { times[((times.len() - 1) as f64 * q).round() as usize] }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    share(&values, 0.5)
}

/// What the kernel says of this process.
pub fn peak_memory() -> Result<String, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(format!("{} MiB", kib / 1024))
}
