//! The session in which the catalog is read, and statements that are only tried.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::engine::postgres::conn::database_error;
use crate::engine::postgres::sql;
use crate::error::{Blocker, Error, Result};
use crate::plan::TableName;

/// A look at the catalog is never worth queuing for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The session, inside our transaction.
pub(super) struct Reader<'a> {
    pub client: &'a Client,
    pub version: u32,
}

/// The server's message about a statement that was only tried.
pub(super) type Tried<T> = std::result::Result<T, String>;

impl Reader<'_> {
    pub async fn begin(&self) -> Result<()> {
        let mut settings = vec![
            ("lock_timeout", format!("{}ms", LOCK_TIMEOUT.as_millis())),
            ("statement_timeout", "60s".to_string()),
            ("idle_in_transaction_session_timeout", "60s".to_string()),
            // Off: the server then refuses instead of hiding rows.
            ("row_security", "off".to_string()),
            ("check_function_bodies", "off".to_string()),
            // What a default evaluates to must not depend on who looks: the same as in the sync trigger.
            ("TimeZone", "UTC".to_string()),
            ("DateStyle", "ISO, MDY".to_string()),
            ("IntervalStyle", "postgres".to_string()),
            ("extra_float_digits", "1".to_string()),
            ("bytea_output", "hex".to_string()),
        ];
        if self.version >= 170_000 {
            settings.push(("transaction_timeout", "0".to_string()));
        }
        let settings: String = settings.iter().map(|(name, value)| format!("; SET LOCAL {name} = {}", sql::literal(value))).collect();
        let begin = format!("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY{settings}");
        self.client.batch_execute(&begin).await.map_err(|e| refused("starting to read the catalog", e))
    }

    pub async fn rows(&self, what: &str, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client.query(query, params).await.map_err(|e| refused(what, e))
    }

    pub async fn row(&self, what: &str, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        self.client.query_one(query, params).await.map_err(|e| refused(what, e))
    }

    pub async fn search_path(&self, path: &str) -> Result<()> {
        self.client.batch_execute(&format!("SET LOCAL search_path = {path}")).await.map_err(|e| refused("setting the search path", e))
    }

    /// Runs a try under another search path, and comes back to the qualified one.
    pub async fn try_under<T>(&self, path: &str, attempt: impl AsyncFnOnce() -> std::result::Result<T, tokio_postgres::Error>) -> Result<Tried<T>> {
        let failed = |e| refused("trying an expression", e);
        self.client.batch_execute(&format!("SAVEPOINT sete_try; SET LOCAL search_path = {path}")).await.map_err(failed)?;
        let tried = attempt().await;
        // Rolling back to the savepoint brings the search path back as well.
        let tried = match tried {
            Err(e) if e.as_db_error().is_none() || is_lock_timeout(&e) => return Err(failed(e)),
            tried => tried.map_err(words),
        };
        self.client.batch_execute("ROLLBACK TO SAVEPOINT sete_try; RELEASE SAVEPOINT sete_try").await.map_err(failed)?;
        Ok(tried)
    }

    /// Has the server read a statement, under the search path of the plan's expressions. Nothing is run.
    pub async fn try_prepare(&self, table: &TableName, query: &str) -> Result<Tried<Statement>> {
        self.try_under(&sql::search_path(table), async || self.client.prepare(query).await).await
    }

    /// Who holds the lock that made us give up.
    pub async fn lock_holder(&self, table: &TableName) -> Result<Option<Blocker>> {
        let rows = self
            .rows(
                "looking for the holder of a lock",
                "SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(extract(epoch from clock_timestamp() - a.xact_start)::float8, 0),
                        coalesce(a.state, ''), coalesce(left(a.query, 200), '')
                 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
                 WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation'
                   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
                   AND a.pid <> pg_catalog.pg_backend_pid()
                 ORDER BY l.relation IN (SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relname = $1) DESC, a.xact_start LIMIT 1",
                &[&table.name],
            )
            .await?;
        Ok(rows.first().map(|r| Blocker {
            pid: i64::from(r.get::<_, i32>(0)),
            application: r.get(1),
            user: r.get(2),
            age_s: r.get(3),
            state: r.get(4),
            query: crate::secret::mask(r.get(5)),
            certain: true,
        }))
    }
}

fn is_lock_timeout(e: &tokio_postgres::Error) -> bool {
    e.code() == Some(&tokio_postgres::error::SqlState::LOCK_NOT_AVAILABLE)
}

pub(super) fn refused(context: &str, e: tokio_postgres::Error) -> Error {
    if is_lock_timeout(&e) {
        return Error::LockNotGot { relation: context.to_string(), patience: LOCK_TIMEOUT, blocker: None };
    }
    database_error(context, e)
}

/// The server's words about a statement that was only tried.
fn words(e: tokio_postgres::Error) -> String {
    match database_error("", e) {
        Error::Database { message, .. } => message,
        other => other.to_string(),
    }
}

/// One line of a definition, for people.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
