//! An application that reads, updates and inserts single rows at a fixed rate, and notes how long each statement took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use rand::RngExt as _;

use crate::BoxError;
use crate::shape::Shape;
use crate::way::is_mysql;

#[path = "../../tests/support/workload_connection.rs"]
#[allow(dead_code, reason = "the workload of the tests uses all of it")]
mod connection;

use connection::{Argument, Connection};

const CLIENTS: usize = 4;

pub struct Application {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>, BoxError>>,
}

impl Application {
    /// Starts its clients, which together send `rate` statements a second to the rows with these keys. They have a thread of
    /// their own, as an application is a process of its own.
    pub fn start(url: &str, keys: Arc<Vec<String>>, shape: Shape, rate: f64) -> Result<Application, BoxError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (url, told) = (url.to_string(), stop.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || runtime.block_on(clients(url, keys, shape, rate, told)));
        Ok(Application { stop, thread })
    }

    /// The times of all its statements in milliseconds, ascending.
    pub fn end(self) -> Result<Vec<f64>, BoxError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the application broke down")?
    }
}

async fn clients(url: String, keys: Arc<Vec<String>>, shape: Shape, rate: f64, stop: Arc<AtomicBool>) -> Result<Vec<f64>, BoxError> {
    let every = Duration::from_secs_f64(CLIENTS as f64 / rate);
    let clients = (0..CLIENTS).map(|n| client(url.clone(), keys.clone(), shape, every, every.mul_f64(n as f64 / CLIENTS as f64), stop.clone()));
    let mut times = try_join_all(clients).await?.concat();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Half of the statements read, half write.
async fn client(
    url: String,
    keys: Arc<Vec<String>>,
    shape: Shape,
    every: Duration,
    first: Duration,
    stop: Arc<AtomicBool>,
) -> Result<Vec<f64>, BoxError> {
    let mut client = Connection::open(&url, "bench application").await?;
    let write = shape.change().write;
    let (table, key) = if is_mysql(&url) { ("bench.orders", "$1".to_string()) } else { ("orders", format!("$1::text::{}", shape.key_type())) };
    let read = client.own_sql(&format!("SELECT amount::bigint, status FROM {table} WHERE id = {key}"));
    let write = format!("UPDATE {table} SET {write} WHERE id = {key}");
    let (mut times, mut due) = (Vec::new(), Instant::now() + first);
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let key = &keys[rand::rng().random_range(0..keys.len())];
        let began = Instant::now();
        if n.is_multiple_of(2) {
            client.query(&read, &[Argument::Word(key.clone())]).await?;
        } else {
            client.query(&write, &[Argument::Word(key.clone())]).await?;
        }
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        due += every;
        // One that waited long goes on from now: it is one client, and not a queue of them.
        due = due.max(Instant::now());
    }
    Ok(times)
}
