//! The application that lives through a migration: a few clients that insert, update, delete and read one table, each
//! statement timed, each failure kept. Nothing is retried and nothing is forgiven, so that "the application noticed
//! nothing" is a number.
//!
//! Every client also remembers what it last wrote to the rows that it inserted itself, and compares that with what it
//! reads: a lost write shows up as a wrong read, even while some clients write the old column and others the new one.
//!
//! Used by `examples/workload.rs` and, as a module, by the tests:
//!
//! ```ignore
//! let running = Workload { url, mode: "old".parse()?, ..Workload::default() }.start().await?;
//! running.deploy("old/new".parse()?).await;
//! let summary = running.stop().await;
//! assert_eq!(summary.failed, 0, "{summary}");
//! ```

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[path = "workload_connection.rs"]
mod connection;

use connection::{Answer, Argument, Connection, Refusal};

/// A rolling deploy reaches one client after the other.
const BETWEEN_CLIENTS: Duration = Duration::from_millis(200);
/// How long a statement that is still running may hold up the end.
const LAST_STATEMENT: Duration = Duration::from_secs(30);
const ERRORS_KEPT: usize = 5;
/// Rows of its own that a client keeps before it deletes the oldest.
const OWN_ROWS: usize = 200;

pub type BoxError = Box<dyn StdError + Send + Sync>;

// --- what the application does with the two columns ------------------------------------------------------------------

/// Which of the two columns a client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    Old,
    New,
    Both,
    Neither,
    /// Another one of the four for every statement.
    Mixed,
}

/// One release of the application: `old`, `new`, `both`, `neither`, `mixed`, or with what it reads: `old/new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub writes: Writes,
    /// The column that it reads and searches by.
    pub reads: Reads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    Old,
    New,
    Neither,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (writes, reads) = match text.trim().split_once('/') {
            Some((writes, reads)) => (writes, Some(reads)),
            None => (text.trim(), None),
        };
        let (writes, usual) = match writes {
            "old" => (Writes::Old, Reads::Old),
            "new" => (Writes::New, Reads::New),
            "both" => (Writes::Both, Reads::Old),
            "neither" => (Writes::Neither, Reads::Neither),
            "mixed" => (Writes::Mixed, Reads::Old),
            other => return Err(format!("`{other}` is none of old, new, both, neither, mixed")),
        };
        let reads = match reads {
            None => usual,
            Some("old") => Reads::Old,
            Some("new") => Reads::New,
            Some("neither") => Reads::Neither,
            Some(other) => return Err(format!("after the slash: `{other}` is none of old, new, neither")),
        };
        Ok(Self { writes, reads })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes = match self.writes {
            Writes::Old => "old",
            Writes::New => "new",
            Writes::Both => "both",
            Writes::Neither => "neither",
            Writes::Mixed => "mixed",
        };
        let reads = match self.reads {
            Reads::Old => "old",
            Reads::New => "new",
            Reads::Neither => "neither",
        };
        write!(f, "{writes}/{reads}")
    }
}

/// What to run, and against what. The table needs a key that numbers itself and a text column to touch.
#[derive(Clone, Debug)]
pub struct Workload {
    pub url: String,
    pub table: String,
    pub key: String,
    pub old: String,
    pub new: String,
    /// A text column that the change has nothing to do with.
    pub touch: String,
    /// Set to `now()` by every write, if the table has such a column.
    pub updated_at: Option<String>,
    /// What every inserted row has besides: column, SQL expression.
    pub fixed: Vec<(String, String)>,
    /// What is written to the two columns. Both must take these words.
    pub values: Vec<String>,
    /// Rows that are there already are updated up to this key; by default the highest one at the start. Say it when
    /// two workloads run at once, so that the second leaves the first one's rows alone.
    pub rows: Option<i64>,
    pub clients: usize,
    /// Statements per second and client; 0 is as fast as it goes.
    pub rate: f64,
    /// `application_name` of the clients: web-1, web-2, …
    pub name: String,
    pub mode: Mode,
}

impl Default for Workload {
    fn default() -> Self {
        let text = str::to_owned;
        Self {
            url: String::new(),
            table: text("public.orders"),
            key: text("id"),
            old: text("status"),
            new: text("status_v2"),
            touch: text("note"),
            updated_at: Some(text("updated_at")),
            fixed: vec![(text("customer_id"), text("(random() * 5000)::int")), (text("total_cents"), text("(random() * 90000)::int + 100"))],
            values: ["new", "paid", "packed", "shipped", "delivered", "returned", "cancelled", "refunded"].map(text).to_vec(),
            rows: None,
            clients: 4,
            rate: 50.0,
            name: text("web"),
            mode: Mode { writes: Writes::Old, reads: Reads::Old },
        }
    }
}

// --- running ---------------------------------------------------------------------------------------------------------

/// A workload under way.
pub struct Running {
    releases: Vec<watch::Sender<Mode>>,
    stop: watch::Sender<bool>,
    clients: Vec<JoinHandle<()>>,
    stats: Vec<Arc<Mutex<Stats>>>,
    deploys: Mutex<Vec<Deploy>>,
    table: String,
    started: Instant,
}

impl Workload {
    /// Connects all clients and lets them run. Fails when the very first connection does.
    pub async fn start(self) -> Result<Running, BoxError> {
        let shared = Arc::new(self);
        let top = shared.highest_row().await?;
        let (stop, stopped) = watch::channel(false);
        let started = Instant::now();
        let (mut releases, mut clients, mut stats) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..shared.clients {
            let (release, released) = watch::channel(shared.mode);
            let seen = Arc::new(Mutex::new(Stats::default()));
            let session = Session {
                name: format!("{}-{}", shared.name, number + 1),
                number: i64::try_from(number)?,
                top,
                connection: Some(shared.connect(&format!("{}-{}", shared.name, number + 1)).await?),
                mode: released,
                own: Vec::new(),
                stats: Arc::clone(&seen),
                started,
                workload: Arc::clone(&shared),
            };
            clients.push(tokio::spawn(session.run(stopped.clone())));
            releases.push(release);
            stats.push(seen);
        }
        let deploys = Mutex::new(vec![Deploy { at_s: 0.0, mode: shared.mode }]);
        Ok(Running { releases, stop, clients, stats, deploys, table: shared.table.clone(), started })
    }

    async fn connect(&self, name: &str) -> Result<Connection, Refusal> {
        Connection::open(&self.url, name).await
    }

    async fn highest_row(&self) -> Result<i64, BoxError> {
        if let Some(rows) = self.rows {
            return Ok(rows);
        }
        let mut connection = self.connect(&self.name).await?;
        let sql = connection.own_sql(&format!("select coalesce(max({}), 0)::bigint, '' from {}", self.key, self.table));
        Ok(connection.query(&sql, &[]).await?.key.unwrap_or_default())
    }
}

impl Running {
    /// Rolls another release out, one client after the other, without a restart. Returns when the last one has it.
    pub async fn deploy(&self, mode: Mode) {
        for (number, release) in self.releases.iter().enumerate() {
            if number > 0 {
                tokio::time::sleep(BETWEEN_CLIENTS).await;
            }
            release.send_replace(mode);
        }
        lock(&self.deploys).push(Deploy { at_s: self.started.elapsed().as_secs_f64(), mode });
    }

    /// Up to now.
    pub fn summary(&self) -> Summary {
        let mut all = Stats::default();
        for stats in &self.stats {
            all.add(&lock(stats));
        }
        Summary::new(&all, self)
    }

    /// Lets every client finish its statement. One that hangs counts as failed.
    pub async fn stop(mut self) -> Summary {
        self.stop.send_replace(true);
        let end = tokio::time::Instant::now() + LAST_STATEMENT;
        for (client, stats) in std::mem::take(&mut self.clients).into_iter().zip(&self.stats) {
            let abort = client.abort_handle();
            let failure = match tokio::time::timeout_at(end, client).await {
                Ok(Ok(())) => continue,
                Ok(Err(panic)) => format!("the client died: {panic}"),
                Err(_) => format!("still running {} s after the end", LAST_STATEMENT.as_secs()),
            };
            abort.abort();
            let at_s = self.started.elapsed().as_secs_f64();
            lock(stats).failed(Kind::Connect, Failure { message: failure, sqlstate: None, statement: String::new(), client: String::new(), at_s });
        }
        self.summary()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// --- one client ------------------------------------------------------------------------------------------------------

/// A row that this client inserted, and what its columns must hold; None: not known (the insert named neither).
struct Own {
    id: i64,
    word: Option<String>,
}

struct Session {
    name: String,
    number: i64,
    top: i64,
    connection: Option<Connection>,
    mode: watch::Receiver<Mode>,
    own: Vec<Own>,
    stats: Arc<Mutex<Stats>>,
    started: Instant,
    workload: Arc<Workload>,
}

impl Session {
    async fn run(mut self, stopped: watch::Receiver<bool>) {
        let mut clock = (self.workload.rate > 0.0).then(|| {
            let mut clock = tokio::time::interval(Duration::from_secs_f64(1.0 / self.workload.rate));
            clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            clock
        });
        while !*stopped.borrow() {
            if let Some(clock) = &mut clock {
                clock.tick().await;
            }
            if self.connection.is_some() {
                self.one_statement().await;
            } else {
                self.reconnect().await;
            }
        }
    }

    async fn reconnect(&mut self) {
        let begin = Instant::now();
        match self.workload.connect(&self.name).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.note(Kind::Connect, "connect", begin, None);
            }
            Err(error) => {
                self.note(Kind::Connect, "connect", begin, Some(&error));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn one_statement(&mut self) {
        let mode = *self.mode.borrow();
        let (dice, word, writes) = {
            let mut rng = rand::rng();
            let writes = match mode.writes {
                Writes::Mixed => [Writes::Old, Writes::New, Writes::Both, Writes::Neither][rng.random_range(0..4)],
                fixed => fixed,
            };
            (rng.random_range(0..100), self.workload.values[rng.random_range(0..self.workload.values.len())].clone(), writes)
        };
        match dice {
            0..15 => self.insert(writes, word).await,
            15..45 => self.update(writes, word).await,
            45..60 => self.touch(&word).await,
            60..70 if self.own.len() > 10 => self.delete().await,
            60..90 => self.read(mode.reads).await,
            _ => self.find(mode.reads, word).await,
        }
        if self.own.len() > OWN_ROWS {
            self.delete().await;
        }
    }

    /// The columns that a write names.
    fn written(&self, writes: Writes) -> Vec<&str> {
        match writes {
            Writes::Old => vec![&self.workload.old],
            Writes::New => vec![&self.workload.new],
            Writes::Both => vec![&self.workload.old, &self.workload.new],
            Writes::Neither | Writes::Mixed => vec![],
        }
    }

    fn read_column(&self, reads: Reads) -> Option<&str> {
        match reads {
            Reads::Old => Some(&self.workload.old),
            Reads::New => Some(&self.workload.new),
            Reads::Neither => None,
        }
    }

    /// Half of the time one of its own rows, else one of the older rows that this client alone updates.
    fn pick(&self) -> Option<(i64, Option<usize>)> {
        let mut rng = rand::rng();
        let clients = i64::try_from(self.workload.clients).unwrap_or(1);
        let older = self.top / clients;
        if !self.own.is_empty() && (older == 0 || rng.random_bool(0.5)) {
            let place = rng.random_range(0..self.own.len());
            return Some((self.own[place].id, Some(place)));
        }
        (older > 0).then(|| (rng.random_range(0..older) * clients + self.number + 1, None))
    }

    async fn insert(&mut self, writes: Writes, word: String) {
        let w = &self.workload;
        let written = self.written(writes);
        let mut columns: Vec<&str> = w.fixed.iter().map(|(column, _)| column.as_str()).collect();
        let mut values: Vec<String> = w.fixed.iter().map(|(_, value)| value.clone()).collect();
        columns.extend(&written);
        values.extend((1..=written.len()).map(|n| format!("${n}")));
        let sql = format!("insert into {} ({}) values ({}) returning {}::bigint", w.table, columns.join(", "), values.join(", "), w.key);
        let known = !written.is_empty();
        let arguments = vec![Argument::Word(word.clone()); written.len()];
        if let Some(answer) = self.query(Kind::Insert, &sql, &arguments).await {
            match answer.key {
                Some(id) => self.own.push(Own { id, word: known.then_some(word) }),
                None => self.wrong(Kind::Insert, "no key came back".to_owned(), &sql),
            }
        }
    }

    async fn update(&mut self, writes: Writes, word: String) {
        let written = self.written(writes);
        if written.is_empty() {
            return self.touch(&word).await;
        }
        let Some((id, own)) = self.pick() else { return };
        let set: Vec<String> = written.iter().enumerate().map(|(n, column)| format!("{column} = ${}", n + 2)).collect();
        let sql = self.update_sql(&set.join(", "));
        let mut arguments = vec![Argument::Key(id)];
        arguments.resize(written.len() + 1, Argument::Word(word.clone()));
        let done = self.query(Kind::Update, &sql, &arguments).await;
        let Some(place) = own else { return };
        match done {
            Some(answer) if answer.rows == 1 => self.own[place].word = Some(word),
            Some(answer) => self.wrong(Kind::Update, format!("row {id} of its own: {} rows updated", answer.rows), &sql),
            // It failed, or the connection broke: nobody knows what the row holds.
            None => self.own[place].word = None,
        }
    }

    async fn touch(&mut self, word: &str) {
        let Some((id, own)) = self.pick() else { return };
        let sql = self.update_sql(&format!("{} = $2", self.workload.touch));
        let done = self.query(Kind::Touch, &sql, &[Argument::Key(id), Argument::Word(format!("{} says {word}", self.name))]).await;
        if let (Some(answer), Some(_)) = (done, own)
            && answer.rows != 1
        {
            self.wrong(Kind::Touch, format!("row {id} of its own: {} rows updated", answer.rows), &sql);
        }
    }

    fn update_sql(&self, set: &str) -> String {
        let w = &self.workload;
        let stamp = w.updated_at.as_ref().map(|column| format!(", {column} = now()")).unwrap_or_default();
        format!("update {} set {set}{stamp} where {key} = $1 returning {key}::bigint", w.table, key = w.key)
    }

    async fn delete(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let oldest = self.own.remove(0);
        let sql = format!("delete from {} where {key} = $1 returning {key}::bigint", self.workload.table, key = self.workload.key);
        if let Some(answer) = self.query(Kind::Delete, &sql, &[Argument::Key(oldest.id)]).await
            && answer.rows != 1
        {
            self.wrong(Kind::Delete, format!("row {} of its own: {} rows deleted", oldest.id, answer.rows), &sql);
        }
    }

    /// By key, and compared with what this client wrote.
    async fn read(&mut self, reads: Reads) {
        let Some((id, own)) = self.pick() else { return };
        let w = &self.workload;
        let column = self.read_column(reads);
        let list = column.map(|column| format!(", {column}")).unwrap_or_default();
        let sql = format!("select {}::bigint{list}, {} from {} where {} = $1", w.key, w.touch, w.table, w.key);
        let known = column.is_some();
        let Some(answer) = self.query(Kind::Read, &sql, &[Argument::Key(id)]).await else { return };
        let Some(place) = own else { return };
        if answer.rows == 0 {
            return self.wrong(Kind::Read, format!("row {id} of its own is gone"), &sql);
        }
        if let (true, Some(written)) = (known, &self.own[place].word)
            && answer.word.as_ref() != Some(written)
        {
            let found = answer.word.unwrap_or_else(|| "NULL".to_owned());
            self.wrong(Kind::Read, format!("row {id}: wrote {written}, reads {found}"), &sql);
        }
    }

    /// The newest rows with a value: what an index on the column is for.
    async fn find(&mut self, reads: Reads, word: String) {
        let Some(column) = self.read_column(reads) else { return self.read(reads).await };
        let w = &self.workload;
        let sql = format!("select {key}::bigint, {column} from {} where {column} = $1 limit 20", w.table, key = w.key);
        self.query(Kind::Find, &sql, &[Argument::Word(word)]).await;
    }

    /// One statement, timed from its start to its last row, preparing included. None: it failed.
    async fn query(&mut self, kind: Kind, sql: &str, arguments: &[Argument]) -> Option<Answer> {
        let connection = self.connection.as_mut()?;
        let sql = &connection.own_sql(sql);
        let begin = Instant::now();
        let result = connection.query(sql, arguments).await;
        let lost = connection.is_closed() || result.as_ref().is_err_and(|refusal| refusal.lost);
        self.note(kind, sql, begin, result.as_ref().err());
        if lost {
            self.connection = None;
            if result.is_ok() {
                self.lost_between_statements();
            }
        }
        result.ok()
    }

    fn note(&self, kind: Kind, sql: &str, begin: Instant, error: Option<&Refusal>) {
        let took = begin.elapsed();
        let at_s = begin.duration_since(self.started).as_secs_f64();
        let mut stats = lock(&self.stats);
        stats.took(kind, took, || Slowest { kind, ms: millis(took), statement: sql.to_owned(), client: self.name.clone(), at_s });
        if let Some(error) = error {
            let (message, sqlstate) = (error.message.clone(), error.sqlstate.clone());
            stats.failed(kind, Failure { message, sqlstate, statement: sql.to_owned(), client: self.name.clone(), at_s });
        }
    }

    fn lost_between_statements(&self) {
        let (message, statement, client) = ("the connection was lost".to_owned(), String::new(), self.name.clone());
        let at_s = self.started.elapsed().as_secs_f64();
        lock(&self.stats).failed(Kind::Connect, Failure { message, sqlstate: None, statement, client, at_s });
    }

    fn wrong(&self, kind: Kind, message: String, sql: &str) {
        let at_s = self.started.elapsed().as_secs_f64();
        lock(&self.stats).wrong(kind, Failure { message, sqlstate: None, statement: sql.to_owned(), client: self.name.clone(), at_s });
    }
}

// --- what was seen ---------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Insert,
    /// Of the two columns.
    Update,
    /// An update of an unrelated column.
    Touch,
    Delete,
    /// By key.
    Read,
    /// By value.
    Find,
    /// A lost connection, its being made anew, or a client that did not end.
    Connect,
}

#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub message: String,
    pub sqlstate: Option<String>,
    pub statement: String,
    pub client: String,
    pub at_s: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Slowest {
    pub kind: Kind,
    pub ms: f64,
    pub statement: String,
    pub client: String,
    /// Seconds after the start.
    pub at_s: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Deploy {
    pub at_s: f64,
    #[serde(serialize_with = "as_text")]
    pub mode: Mode,
}

fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// How often a latency of about so many microseconds occurred: 32 steps for each doubling, so 3 % exact, in little
/// room even after hours at full speed.
#[derive(Clone, Default)]
struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    const STEPS: f64 = 32.0;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a logarithm of at most 64 bits, times 32")]
    fn add(&mut self, took: Duration) {
        let micros = (took.as_secs_f64() * 1e6).max(1.0);
        *self.0.entry((micros.log2() * Self::STEPS).round() as u32).or_default() += 1;
    }

    fn count(&self) -> u64 {
        self.0.values().sum()
    }

    fn percentile(&self, percent: u64) -> f64 {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        for (step, count) in &self.0 {
            seen += count;
            if seen >= rank {
                return rounded((f64::from(*step) / Self::STEPS).exp2() / 1000.0);
            }
        }
        0.0
    }
}

fn millis(took: Duration) -> f64 {
    rounded(took.as_secs_f64() * 1000.0)
}

fn rounded(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}

#[derive(Clone, Default)]
struct KindStats {
    latency: Histogram,
    failed: u64,
    wrong: u64,
    errors: Vec<Failure>,
    wrongs: Vec<Failure>,
    slowest: Option<Slowest>,
}

#[derive(Clone, Default)]
struct Stats(BTreeMap<Kind, KindStats>);

impl Stats {
    fn took(&mut self, kind: Kind, took: Duration, details: impl FnOnce() -> Slowest) {
        let seen = self.0.entry(kind).or_default();
        seen.latency.add(took);
        if seen.slowest.as_ref().is_none_or(|slowest| slowest.ms < millis(took)) {
            seen.slowest = Some(details());
        }
    }

    fn failed(&mut self, kind: Kind, failure: Failure) {
        let seen = self.0.entry(kind).or_default();
        seen.failed += 1;
        keep(&mut seen.errors, [failure]);
    }

    fn wrong(&mut self, kind: Kind, failure: Failure) {
        let seen = self.0.entry(kind).or_default();
        seen.wrong += 1;
        keep(&mut seen.wrongs, [failure]);
    }

    fn add(&mut self, other: &Self) {
        for (kind, more) in &other.0 {
            let seen = self.0.entry(*kind).or_default();
            for (step, count) in &more.latency.0 {
                *seen.latency.0.entry(*step).or_default() += count;
            }
            seen.failed += more.failed;
            seen.wrong += more.wrong;
            keep(&mut seen.errors, more.errors.iter().cloned());
            keep(&mut seen.wrongs, more.wrongs.iter().cloned());
            if let Some(slow) = &more.slowest
                && seen.slowest.as_ref().is_none_or(|slowest| slowest.ms < slow.ms)
            {
                seen.slowest = Some(slow.clone());
            }
        }
    }
}

/// The earliest few.
fn keep(kept: &mut Vec<Failure>, more: impl IntoIterator<Item = Failure>) {
    kept.extend(more);
    kept.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    kept.truncate(ERRORS_KEPT);
}

/// What the application noticed. Its JSON is what `examples/workload` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub table: String,
    pub clients: usize,
    pub seconds: f64,
    pub statements: u64,
    /// Statements and connections that failed.
    pub failed: u64,
    /// Results that contradict what the same client wrote before.
    pub wrong: u64,
    pub per_second: f64,
    pub slowest: Option<Slowest>,
    pub deploys: Vec<Deploy>,
    pub kinds: BTreeMap<Kind, KindSummary>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KindSummary {
    pub count: u64,
    pub failed: u64,
    pub wrong: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub slowest: Option<Slowest>,
    /// The first five failures.
    pub errors: Vec<Failure>,
    /// The first five wrong results.
    pub wrongs: Vec<Failure>,
}

impl Summary {
    #[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
    fn new(stats: &Stats, running: &Running) -> Self {
        let kinds: BTreeMap<Kind, KindSummary> = stats
            .0
            .iter()
            .map(|(kind, seen)| {
                let summary = KindSummary {
                    count: seen.latency.count(),
                    failed: seen.failed,
                    wrong: seen.wrong,
                    p50_ms: seen.latency.percentile(50),
                    p99_ms: seen.latency.percentile(99),
                    max_ms: seen.slowest.as_ref().map_or(0.0, |slowest| slowest.ms),
                    slowest: seen.slowest.clone(),
                    errors: seen.errors.clone(),
                    wrongs: seen.wrongs.clone(),
                };
                (*kind, summary)
            })
            .collect();
        let seconds = running.started.elapsed().as_secs_f64();
        let statements = kinds.iter().filter(|(kind, _)| **kind != Kind::Connect).map(|(_, kind)| kind.count).sum::<u64>();
        Self {
            table: running.table.clone(),
            clients: running.releases.len(),
            seconds: rounded(seconds),
            statements,
            failed: kinds.values().map(|kind| kind.failed).sum(),
            wrong: kinds.values().map(|kind| kind.wrong).sum(),
            per_second: (statements as f64 / seconds).round(),
            slowest: kinds.values().filter_map(|kind| kind.slowest.clone()).max_by(|a, b| a.ms.total_cmp(&b.ms)),
            deploys: lock(&running.deploys).clone(),
            kinds,
        }
    }

    /// No statement failed, no result was wrong, and there were some at all.
    pub fn unnoticed(&self) -> bool {
        self.failed == 0 && self.wrong == 0 && self.statements > 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} statements in {:.1} s by {} clients: {} failed, {} wrong",
            self.statements, self.seconds, self.clients, self.failed, self.wrong
        )?;
        writeln!(f, "{:<8} {:>8} {:>7} {:>6} {:>9} {:>9} {:>10}", "", "count", "failed", "wrong", "p50 ms", "p99 ms", "max ms")?;
        for (kind, seen) in &self.kinds {
            let name = format!("{kind:?}").to_lowercase();
            let (count, failed, wrong) = (seen.count, seen.failed, seen.wrong);
            writeln!(f, "{name:<8} {count:>8} {failed:>7} {wrong:>6} {:>9.2} {:>9.2} {:>10.2}", seen.p50_ms, seen.p99_ms, seen.max_ms)?;
        }
        if let Some(slowest) = &self.slowest {
            writeln!(f, "slowest: {:.1} ms, {} at {:.1} s: {}", slowest.ms, slowest.client, slowest.at_s, slowest.statement)?;
        }
        for error in self.kinds.values().flat_map(|kind| kind.errors.iter().chain(&kind.wrongs)) {
            let sqlstate = error.sqlstate.as_deref().unwrap_or("-");
            writeln!(f, "noticed: {} at {:.1} s, {sqlstate}, {}\n         {}", error.client, error.at_s, error.message, error.statement)?;
        }
        Ok(())
    }
}
