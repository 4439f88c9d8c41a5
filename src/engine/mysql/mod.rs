//! MySQL 8.0 to 9.x and MariaDB 10.6 to 11.x.
//!
//! | file | holds |
//! |---|---|
//! | [`sql`] | quoting, exact comparison, what must be understood of an expression |
//! | [`definition`] | a column's definition, taken apart and put together |
//! | [`sync`] | the text of the sync triggers and the observer's |
//! | [`render`] | actions: their text and their cost |
//! | [`look`] | looking: an action's effect, lock holders, readers of the old column |
//! | [`schema`] | acting |
//! | [`probe`] | real writes that are taken back |
//! | [`catalog`] | what the live catalog says |
//! | [`conn`] | addresses, TLS, sessions |
//! | [`rows`] | chunks: filling, comparing |
//! | [`keys`], [`chunks`] | places in a table by its key; the next part of it |
//! | [`compare`], [`trial`] | rows that differ or don't convert, exactly |
//! | [`pressure`] | how the server feels |
//! | [`regions`] | which worker has which part of the walk |
//! | [`store`], [`tables`] | our own tables `sete_*` |

pub mod catalog;
mod chunks;
mod compare;
pub mod conn;
pub mod definition;
mod keys;
mod look;
mod pressure;
mod probe;
mod regions;
pub mod render;
pub mod rows;
pub mod schema;
pub mod sql;
pub mod store;
pub mod sync;
mod tables;
mod trial;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use crate::engine::Engine;
use crate::error::{Code, Result};
use crate::secret::DbUrl;
use conn::{Address, Connector, Session};

/// Which of the two families a server is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    MySql,
    MariaDb,
}

/// For example MySQL 9.7.4, MariaDB 10.11.19.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub flavor: Flavor,
    pub number: (u32, u32, u32),
    /// As the server says it.
    pub text: String,
}

impl Version {
    pub fn parse(text: &str) -> Version {
        let flavor = if text.to_lowercase().contains("mariadb") { Flavor::MariaDb } else { Flavor::MySql };
        // Some proxies put the version in front that MariaDB once gave to old replicas.
        let plain = text.strip_prefix("5.5.5-").unwrap_or(text);
        let mut parts = plain.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Version { flavor, number: (next(), next(), next()), text: text.to_owned() }
    }

    pub fn is_mariadb(&self) -> bool {
        self.flavor == Flavor::MariaDb
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.number;
        write!(f, "{} {major}.{minor}.{patch}", if self.is_mariadb() { "mariadb" } else { "mysql" })
    }
}

/// One plan's engine on MySQL or MariaDB: one session, opened when it is first needed and again when it broke.
pub struct MySql {
    connector: Connector,
    session: Mutex<Option<Session>>,
}

/// A client that was frozen in the middle of a transaction holds row locks no longer than this. Shorter than the wait for the
/// lease, whose row it holds as well, so that another can take over.
const FROZEN: Duration = Duration::from_secs(5);

/// The limits of one transaction. The server counts lock waits in whole seconds, and at least one.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For row locks (innodb_lock_wait_timeout).
    pub row_wait: Duration,
    /// For metadata locks (lock_wait_timeout).
    pub table_wait: Duration,
    /// For each statement; on MySQL it holds for SELECT alone.
    pub statement: Duration,
    pub read_only: bool,
}

impl Settings {
    /// For our own tables: nobody else locks them for long.
    pub const STATE: Settings =
        Settings { row_wait: Duration::from_secs(10), table_wait: Duration::from_secs(10), statement: Duration::from_secs(30), read_only: false };
    /// For looking at the catalog and at rows.
    pub const LOOK: Settings =
        Settings { row_wait: Duration::from_secs(1), table_wait: Duration::from_secs(2), statement: Duration::from_secs(60), read_only: true };
}

/// An open transaction. It ends with [`Tx::end`]; one that is dropped is rolled back before the session's next use.
pub struct Tx<'a> {
    open: MutexGuard<'a, Option<Session>>,
}

impl Engine for MySql {
    fn another(&self) -> Arc<dyn Engine> {
        Arc::new(MySql { connector: self.connector.clone(), session: Mutex::new(None) })
    }
}

impl MySql {
    pub fn new(url: &DbUrl, application: &str) -> Result<MySql> {
        Ok(MySql { connector: Connector::new(Address::parse(url)?, application)?, session: Mutex::new(None) })
    }

    /// Host and port, for people.
    fn place(&self) -> String {
        self.connector.address().place()
    }

    /// The server's numbers of our own sessions.
    fn our_sessions(&self) -> Vec<u32> {
        self.connector.ours()
    }

    /// The database of the address: our tables are there.
    pub fn database(&self) -> &str {
        self.connector.address().database()
    }

    /// The server's numbers of our sessions, this one's and those of its likes.
    fn ours(&self) -> Vec<u32> {
        self.connector.ours()
    }

    async fn open(&self) -> Result<MutexGuard<'_, Option<Session>>> {
        let mut guard = self.session.lock().await;
        if !guard.as_ref().is_some_and(Session::is_usable) {
            *guard = None;
            *guard = Some(self.connector.connect().await?);
        }
        Ok(guard)
    }

    /// A session of its own for what can't run in a transaction. Its settings go with it.
    async fn dedicated(&self) -> Result<Session> {
        self.connector.connect().await
    }

    /// The session outside of a transaction: each statement is its own.
    async fn plain(&self) -> Result<Tx<'_>> {
        let mut tx = Tx { open: self.open().await? };
        if tx.in_transaction() {
            tx.batch("ROLLBACK", "rolling back").await?;
            tx.set_in_transaction(false);
        }
        Ok(tx)
    }

    /// Begins a transaction under limits.
    async fn begin(&self, settings: Settings) -> Result<Tx<'_>> {
        let mut tx = Tx { open: self.open().await? };
        match tx.start(settings).await {
            // A session that broke while nobody looked: nothing had been done in it yet.
            Err(e) if e.code() == Code::ConnectionLost => {
                drop(tx);
                tx = Tx { open: self.open().await? };
                tx.start(settings).await?;
            }
            started => started?,
        }
        Ok(tx)
    }
}

/// The server counts in whole seconds, at least one.
fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).clamp(1, 31_536_000) as u64
}

impl Deref for Tx<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        // Only `open` makes one, and it leaves a session there.
        self.open.as_ref().unwrap_or_else(|| unreachable!("a transaction without a session"))
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        self.open.as_mut().unwrap_or_else(|| unreachable!("a transaction without a session"))
    }
}

impl Tx<'_> {
    /// What sets the limits and begins. An idle transaction ends with its session, on both servers alike.
    fn begin_sql(&self, settings: Settings) -> String {
        let statement = if self.version().is_mariadb() {
            format!("max_statement_time = {}", settings.statement.as_secs_f64())
        } else {
            format!("max_execution_time = {}", settings.statement.as_millis())
        };
        format!(
            "SET SESSION innodb_lock_wait_timeout = {}, lock_wait_timeout = {}, wait_timeout = {}, {statement}; START TRANSACTION {}",
            seconds(settings.row_wait),
            seconds(settings.table_wait),
            FROZEN.as_secs(),
            if settings.read_only { "READ ONLY" } else { "READ WRITE" },
        )
    }

    async fn start(&mut self, settings: Settings) -> Result<()> {
        if !settings.read_only {
            self.check_writable()?;
        }
        let begin = self.begin_sql(settings);
        // A transaction that was left open is taken back first.
        let begin = if self.in_transaction() { format!("ROLLBACK; {begin}") } else { begin };
        self.set_in_transaction(true);
        self.batch(&begin, "beginning a transaction").await
    }

    /// Commits what went well, takes back what did not.
    async fn end<T>(mut self, result: Result<T>) -> Result<T> {
        let error = match result {
            Ok(value) => return self.finish("COMMIT", "committing").await.map(|()| value),
            Err(error) => error,
        };
        self.take_back().await.and(Err(error))
    }

    /// Rolls back. A lost connection rolls back by itself.
    async fn take_back(mut self) -> Result<()> {
        if !self.is_usable() {
            return Ok(());
        }
        self.finish("ROLLBACK", "rolling back").await.or_else(|e| if e.code() == Code::ConnectionLost { Ok(()) } else { Err(e) })
    }

    async fn finish(&mut self, verb: &str, context: &str) -> Result<()> {
        self.batch(&format!("{verb}; SET @sete_by = NULL, SESSION wait_timeout = {}", conn::IDLE.as_secs()), context).await?;
        self.set_in_transaction(false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (text, shown) in [
            ("9.7.4-2", "mysql 9.7.4"),
            ("8.0.36", "mysql 8.0.36"),
            ("10.11.19-MariaDB-0+deb12u1-log", "mariadb 10.11.19"),
            ("5.5.5-10.6.1-MariaDB", "mariadb 10.6.1"),
        ] {
            assert_eq!(Version::parse(text).to_string(), shown);
        }
    }
}
