//! An application that reads, updates and inserts single rows at a fixed rate, and notes how long each statement took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tokio::task::JoinHandle;

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
    clients: Vec<JoinHandle<Result<Vec<f64>, BoxError>>>,
}

impl Application {
    /// Starts its clients, which together send `rate` statements a second to the rows with these keys.
    pub async fn start(url: &str, keys: Arc<Vec<String>>, shape: Shape, rate: f64) -> Application {
        let stop = Arc::new(AtomicBool::new(false));
        let every = Duration::from_secs_f64(CLIENTS as f64 / rate);
        let clients = (0..CLIENTS).map(|n| {
            let (url, keys, stop) = (url.to_string(), keys.clone(), stop.clone());
            tokio::spawn(client(url, keys, shape, every, every.mul_f64(n as f64 / CLIENTS as f64), stop))
        });
        Application { clients: clients.collect(), stop }
    }

    /// The times of all its statements in milliseconds, ascending.
    pub async fn end(self) -> Result<Vec<f64>, BoxError> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for client in self.clients {
            times.extend(client.await??);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
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
