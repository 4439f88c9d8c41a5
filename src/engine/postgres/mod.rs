//! PostgreSQL 13 to 18.
//!
//! | file | holds |
//! |---|---|
//! | [`sql`] | quoting and what must be understood of an expression |
//! | [`sync`] | the text of the sync trigger and the observer |
//! | [`schema`] | actions: their text, their cost, looking and acting |
//! | [`rows`] | chunks: finding, filling, comparing |
//! | [`pressure`] | how the server feels |
//! | [`regions`] | which worker has which part of the walk |
//! | [`store`] | our own tables in schema `sete` |
//! | [`catalog`] | what the live catalog says |
//! | [`conn`] | addresses, TLS, sessions |

pub mod catalog;
pub mod conn;
mod pressure;
mod regions;
pub mod rows;
pub mod schema;
pub mod sql;
pub mod store;
pub mod sync;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

use crate::engine::Engine;
use crate::error::{Code, Error, Result, Trouble};
use crate::plan::TableName;
use crate::secret::DbUrl;
use conn::{Address, Connector, Session, database_error};

/// One plan's engine on PostgreSQL: one session, opened when it is first needed and again when it broke.
pub struct Postgres {
    connector: Connector,
    session: Mutex<Option<Open>>,
}

struct Open {
    session: Session,
    statements: HashMap<String, Statement>,
    version: u32,
    /// A transaction was begun and, as far as we know, has not ended.
    in_transaction: bool,
}

/// A client that was frozen in the middle of a transaction holds row locks no longer than this. Shorter than the wait for the
/// lease, whose row it holds as well, so that another can take over.
const FROZEN: Duration = Duration::from_secs(5);

/// What a transaction of ours sets for itself, and for itself only.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub lock_timeout: Duration,
    pub statement_timeout: Duration,
    /// A crash of the server may lose the last of these commits, never their order.
    pub lazy_commit: bool,
    pub read_only: bool,
}

impl Settings {
    /// For our own tables: nobody else locks them for long.
    pub const STATE: Settings =
        Settings { lock_timeout: Duration::from_secs(10), statement_timeout: Duration::from_secs(30), lazy_commit: false, read_only: false };
    /// For looking at the catalog and at rows.
    pub const LOOK: Settings =
        Settings { lock_timeout: Duration::from_secs(2), statement_timeout: Duration::from_secs(60), lazy_commit: false, read_only: true };
}

/// An open transaction. It ends with [`Tx::end`]; one that is dropped is rolled back before the session's next use.
pub struct Tx<'a> {
    open: MutexGuard<'a, Option<Open>>,
    /// The one before it was dropped.
    left_open: bool,
}

impl Engine for Postgres {
    fn another(&self) -> Arc<dyn Engine> {
        Arc::new(Postgres { connector: self.connector.clone(), session: Mutex::new(None) })
    }
}

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Postgres {
    pub fn new(url: &DbUrl, application: &str) -> Result<Postgres> {
        Ok(Postgres { connector: Connector::new(Address::parse(url)?, application)?, session: Mutex::new(None) })
    }

    async fn open(&self) -> Result<MutexGuard<'_, Option<Open>>> {
        let mut guard = self.session.lock().await;
        if guard.as_ref().is_none_or(|open| open.session.is_closed()) {
            let session = self.connector.connect().await?;
            let row = session.client().query_one("SELECT current_setting('server_version_num')::int", &[]).await;
            let version: i32 = row.map_err(|e| database_error("reading the server's version", e))?.get(0);
            *guard = Some(Open { session, statements: HashMap::new(), version: version.unsigned_abs(), in_transaction: false });
        }
        Ok(guard)
    }

    /// A session of its own for what can't run in a transaction. Its settings go with it.
    async fn dedicated(&self) -> Result<Session> {
        self.connector.connect().await
    }

    /// Begins a transaction on our own tables.
    async fn begin(&self, settings: Settings) -> Result<Tx<'_>> {
        self.begin_with(settings, "pg_catalog, pg_temp").await
    }

    /// Begins a transaction in which the plan's expressions mean what they mean in the triggers.
    async fn begin_for(&self, table: &TableName, settings: Settings) -> Result<Tx<'_>> {
        self.begin_with(settings, &sql::search_path(table)).await
    }

    /// Every limit is set inside the transaction, and the lock timeout is read back.
    async fn begin_with(&self, settings: Settings, search_path: &str) -> Result<Tx<'_>> {
        let tx = self.tx().await?;
        tx.batch(&tx.begin_sql(settings, search_path), "beginning a transaction").await?;
        // Not from pg_settings, which makes a row of each setting first.
        let read = "SELECT pg_catalog.date_part('epoch', pg_catalog.current_setting('lock_timeout')::pg_catalog.interval)";
        let set_s: f64 = tx.one(read, &[], "reading lock_timeout back").await?.get(0);
        let (set, wanted) = ((set_s * 1000.0).round() as u128, ms(settings.lock_timeout));
        if set != wanted {
            return Err(Error::new(Code::Internal, format!("lock_timeout reads back as {set} ms after it was set to {wanted} ms")));
        }
        Ok(tx)
    }

    /// The session, in which a transaction is to be begun by [`Tx::begin_sql`].
    async fn tx(&self) -> Result<Tx<'_>> {
        let mut open = self.open().await?;
        let left_open = open.as_mut().is_some_and(|open| std::mem::replace(&mut open.in_transaction, true));
        Ok(Tx { open, left_open })
    }

    /// Prepares statements for this session, once. Under limits, since preparing looks at the table.
    async fn prepared(&self, table: &TableName, statements: &[&str]) -> Result<()> {
        let open = self.open().await?;
        let missing = open.as_ref().is_some_and(|open| statements.iter().any(|sql| !open.statements.contains_key(*sql)));
        drop(open);
        if !missing {
            return Ok(());
        }
        let mut tx = self.begin_for(table, Settings::LOOK).await?;
        let prepared = tx.prepare(statements).await;
        tx.end(prepared).await
    }
}

/// The server counts timeouts in whole milliseconds, and 0 means none.
fn ms(duration: Duration) -> u128 {
    duration.as_millis().max(1)
}

impl Tx<'_> {
    fn session(&self) -> Result<&Session> {
        self.open.as_ref().map(|open| &open.session).ok_or_else(|| Error::new(Code::Internal, "the session is gone"))
    }

    fn version(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.version)
    }

    /// Statements without parameters.
    async fn batch(&self, sql: &str, context: &str) -> Result<()> {
        self.session()?.client().batch_execute(sql).await.map_err(|e| database_error(context, e))
    }

    async fn query(&self, sql: &str, params: Params<'_>, context: &str) -> Result<Vec<Row>> {
        self.session()?.client().query(sql, params).await.map_err(|e| database_error(context, e))
    }

    async fn one(&self, sql: &str, params: Params<'_>, context: &str) -> Result<Row> {
        self.session()?.client().query_one(sql, params).await.map_err(|e| database_error(context, e))
    }

    /// One row, in one round trip: the types need not be asked for.
    async fn one_typed(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)], context: &str) -> Result<Row> {
        let rows = self.session()?.client().query_typed(sql, params).await.map_err(|e| database_error(context, e))?;
        rows.into_iter().next().ok_or_else(|| Error::new(Code::Internal, format!("{context}: no row")))
    }

    async fn execute(&self, sql: &str, params: Params<'_>, context: &str) -> Result<u64> {
        self.session()?.client().execute(sql, params).await.map_err(|e| database_error(context, e))
    }

    /// What begins a transaction with all its limits. A transaction that was left open is taken back first.
    fn begin_sql(&self, settings: Settings, search_path: &str) -> String {
        let mut sql = format!(
            "{}BEGIN{}; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; \
             SET LOCAL row_security = off; SET LOCAL search_path = {search_path}; SET LOCAL synchronous_commit = {}",
            // Only then: a ROLLBACK of nothing is a warning in the server's log.
            if self.left_open { "ROLLBACK; " } else { "" },
            if settings.read_only { " READ ONLY" } else { "" },
            ms(settings.lock_timeout),
            ms(settings.statement_timeout),
            ms(FROZEN),
            // `local` and not `on`: a standby that is down must not stop our own bookkeeping for ever.
            if settings.lazy_commit { "off" } else { "local" },
        );
        if self.version() >= 170_000 {
            sql += "; SET LOCAL transaction_timeout = 0";
        }
        for (name, value) in sync::PINNED {
            sql += &format!("; SET LOCAL \"{name}\" = {}", sql::literal(value));
        }
        sql
    }

    /// Like `query`, with a statement that [`Postgres::prepared`] has prepared.
    async fn query_kept(&self, sql: &str, params: Params<'_>, context: &str) -> Result<Vec<Row>> {
        let statement = self.kept(sql)?;
        self.session()?.client().query(&statement, params).await.map_err(|e| database_error(context, e))
    }

    async fn execute_kept(&self, sql: &str, params: Params<'_>, context: &str) -> Result<u64> {
        let statement = self.kept(sql)?;
        self.session()?.client().execute(&statement, params).await.map_err(|e| database_error(context, e))
    }

    /// The session may have been opened anew since it was prepared.
    fn kept(&self, sql: &str) -> Result<Statement> {
        let lost = || Error::Database {
            code: Code::ConnectionLost,
            trouble: Trouble::ConnectionLost,
            context: "filling a batch".into(),
            message: "the session was opened anew".into(),
            sqlstate: None,
        };
        self.open.as_ref().and_then(|open| open.statements.get(sql).cloned()).ok_or_else(lost)
    }

    async fn prepare(&mut self, statements: &[&str]) -> Result<()> {
        let open = self.open.as_mut().ok_or_else(|| Error::new(Code::Internal, "the session is gone"))?;
        for sql in statements {
            let statement = open.session.client().prepare(sql).await.map_err(|e| database_error("preparing a batch", e))?;
            open.statements.insert((*sql).to_string(), statement);
        }
        Ok(())
    }

    /// Commits what went well, takes back what did not.
    async fn end<T>(mut self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => {
                self.batch("COMMIT", "committing").await?;
                self.ended();
                Ok(value)
            }
            Err(error) => self.take_back().await.and(Err(error)),
        }
    }

    /// Rolls back. A lost connection rolls back by itself.
    async fn take_back(mut self) -> Result<()> {
        if self.session()?.is_closed() {
            return Ok(());
        }
        match self.batch("ROLLBACK", "rolling back").await {
            Ok(()) => self.ended(),
            Err(e) if e.code() == Code::ConnectionLost => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The server has answered the statement that ends the transaction.
    fn ended(&mut self) {
        if let Some(open) = self.open.as_mut() {
            open.in_transaction = false;
        }
    }
}
