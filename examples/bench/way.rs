//! How the new column is filled.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sete::engine;
use sete::plan::EngineKind;
use sete::report::{Event, Reporter};
use sete::run::{self, Job, StepOptions, Stop};
use sete::secret::DbUrl;
use sete::stage::Stage;
use tokio_postgres::Client;

use crate::BoxError;
use crate::shape::{Change, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// One UPDATE of the whole table
    Single,
    /// Batches of 1,000 rows by key, one after the other
    Keyset,
    /// sete with one worker
    Sete,
    /// sete with two workers
    Sete2,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Single, Way::Keyset, Way::Sete, Way::Sete2];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Single => "one UPDATE",
            Way::Keyset => "keyset, 1,000 rows",
            Way::Sete => "sete, 1 worker",
            Way::Sete2 => "sete, 2 workers",
        })
    }
}

pub const KEYSET_ROWS: i64 = 1000;

/// The plan. Its trigger is there for every way.
fn plan(url: &str, shape: Shape, workers: u32, more: &str) -> String {
    if is_mysql(url) {
        return format!(
            "id = \"bench\"\nengine = \"mysql\"\n[change]\nkind = \"type\"\ntable = \"bench.orders\"\nfrom = \"status\"\nto = \"status_v2\"\n\
             type = \"enum('new', 'paid', 'shipped')\"\n[structure]\nindex = []\nnot_null = []\n[backfill]\nworkers = {workers}\n{more}"
        );
    }
    let Change { from, to, new_type, forward, .. } = shape.change();
    format!(
        "id = \"bench\"\nengine = \"postgres\"\n[change]\nkind = \"type\"\ntable = \"public.orders\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
         type = \"{new_type}\"\nforward = \"{forward}\"\n[structure]\nindex = []\nnot_null = []\n{}",
        if more.contains("[backfill]") {
            more.replace("[backfill]", &format!("[backfill]\nworkers = {workers}"))
        } else {
            format!("[backfill]\nworkers = {workers}\n{more}")
        }
    )
}

pub fn is_mysql(url: &str) -> bool {
    url.starts_with("mysql:")
}

/// Keeps what the backfill last said of itself.
#[derive(Default)]
struct Last(Mutex<Option<sete::state::Pace>>);

impl Reporter for Last {
    fn report(&self, event: &Event) {
        if let (Event::BackfillProgress { progress }, Ok(mut last)) = (event, self.0.lock())
            && progress.sweep == 0
        {
            *last = Some(progress.pace.clone());
        }
    }
}

fn job(url: &str, shape: Shape, workers: u32, more: &str, reporter: Arc<dyn Reporter>) -> Result<Job, BoxError> {
    let text = plan(url, shape, workers, more);
    let plan = sete::plan::parse(&text).map_err(|problems| format!("{problems:?}"))?;
    let kind = if is_mysql(url) { EngineKind::Mysql } else { EngineKind::Postgres };
    let url = DbUrl::new(if is_mysql(url) { format!("{}/bench", url.trim_end_matches('/')) } else { url.to_string() });
    let connect = |name: &str| engine::connect(kind, &url, name);
    Ok(Job { plan, text, engine: connect("sete bench")?, lease_engine: connect("sete bench lease")?, reporter, stop: Stop::default() })
}

/// Stages 1 and 2: the new column and the sync trigger are there.
pub async fn prepare(url: &str, shape: Shape) -> Result<(), BoxError> {
    let job = job(url, shape, 1, "", Arc::new(Last::default()))?;
    run::step(&job, &StepOptions { through: Some(Stage::DualWrite), ..StepOptions::default() }).await?;
    Ok(())
}

/// One divergence pass.
pub async fn validate(url: &str, shape: Shape, workers: u32) -> Result<(), BoxError> {
    let job = job(url, shape, workers, "", Arc::new(Last::default()))?;
    let pass = run::validate(&job, false).await?;
    if pass.divergent == 0 { Ok(()) } else { Err(format!("{} rows differ", pass.divergent).into()) }
}

/// Fills the column. The times of its transactions in milliseconds: median, 99 of 100, longest.
pub async fn fill(way: Way, url: &str, client: &Client, shape: Shape, more: &str) -> Result<[f64; 3], BoxError> {
    match way {
        Way::Single => single(client, shape).await,
        Way::Keyset => keyset(client, shape).await,
        Way::Sete => with_sete(url, shape, 1, more).await,
        Way::Sete2 => with_sete(url, shape, 2, more).await,
    }
}

pub async fn with_sete(url: &str, shape: Shape, workers: u32, more: &str) -> Result<[f64; 3], BoxError> {
    let last = Arc::new(Last::default());
    let job = job(url, shape, workers, more, last.clone())?;
    run::step(&job, &StepOptions { through: Some(Stage::Backfill), ..StepOptions::default() }).await?;
    let last = last.0.lock().map_err(|_| "the reporter is gone")?.clone().ok_or("the backfill has said nothing")?;
    Ok([last.batch_ms_p50, last.batch_ms_p99, last.batch_ms_max])
}

/// The backfill's own session is told apart by its marker, so that the trigger's function is not called.
const MARK: &str = "SELECT set_config('sete.by', 'bench', true)";

async fn single(client: &Client, shape: Shape) -> Result<[f64; 3], BoxError> {
    let Change { to, forward, .. } = shape.change();
    let began = Instant::now();
    client.batch_execute(&format!("BEGIN; {MARK}; UPDATE orders SET {to} = {forward} WHERE {to} IS NULL; COMMIT")).await?;
    Ok([began.elapsed().as_secs_f64() * 1000.0; 3])
}

async fn keyset(client: &Client, shape: Shape) -> Result<[f64; 3], BoxError> {
    let (key, Change { to, forward, .. }) = (shape.key_type(), shape.change());
    let sql = |bound: &str| {
        format!(
            "WITH batch AS (SELECT id FROM orders {bound} ORDER BY id LIMIT {KEYSET_ROWS} FOR NO KEY UPDATE), \
             filled AS (UPDATE orders o SET {to} = {forward} FROM batch WHERE o.id = batch.id AND o.{to} IS NULL) \
             SELECT id::text FROM batch ORDER BY id DESC LIMIT 1"
        )
    };
    let (first, next) = (client.prepare(&sql("")).await?, client.prepare(&sql(&format!("WHERE id > $1::text::{key}"))).await?);
    let (mut times, mut last): (Vec<f64>, Option<String>) = (Vec::new(), None);
    loop {
        let began = Instant::now();
        client.batch_execute(&format!("BEGIN; {MARK}")).await?;
        let row = match &last {
            None => client.query_opt(&first, &[]).await?,
            Some(key) => client.query_opt(&next, &[key]).await?,
        };
        client.batch_execute("COMMIT").await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        match row {
            Some(row) => last = Some(row.get(0)),
            None => break,
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    Ok([at(0.5), at(0.99), at(1.0)])
}
