//! Reads the catalog: everything that preflight and resolve need, in one look.
//!
//! One read-only transaction, so that it works on a standby too and leaves nothing behind. Definitions are read under an
//! empty search path, so that they are qualified and mean the same wherever they are run; the plan's own expressions are
//! tried under [`sql::search_path`]. Nothing here waits for a lock longer than [`LOCK_TIMEOUT`].

mod default;
mod dependents;
mod expressions;
mod frame;
mod indexes;
mod leaves;
mod publications;
mod rebuilds;
mod server;
mod structure;
mod table;
mod triggers;
mod types;

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::change::{Mapping, NewType};
use crate::engine::catalog::{Catalog, Expression, TypeFacts};
use crate::error::{Blocker, Code, Error, Result};
use crate::plan::{Plan, TableName};
use crate::resolve::is_swapped;
use crate::state::Origin;

use super::conn::database_error;
use super::sql;
use frame::Frame;
use types::Ty;

/// A look at the catalog is never worth queuing for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Where everything is qualified that isn't built in.
const QUALIFIED: &str = "pg_catalog, pg_temp";

/// Reads everything about the plan's table. `address` is shown, and holds no credentials.
pub async fn read(client: &Client, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>, address: &str) -> Result<Catalog> {
    let name = TableName::parse(&plan.change.table).map_err(|message| Error::new(Code::PlanInvalid, message))?;
    let version = server::version_number(client).await?;
    let reader = Reader { client, version };
    // What the role is given by default must be seen before our own settings hide it.
    let timeouts = server::timeouts(&reader).await?;
    reader.begin().await?;
    let read = read_all(&reader, &name, mapping, origin, address, timeouts).await;
    // After an error that broke the connection there is nothing left to roll back; the first error says more.
    let ended = client.batch_execute("ROLLBACK").await.map_err(|e| refused("ending the look at the catalog", e));
    let catalog = match read {
        Err(Error::LockNotGot { relation, patience, .. }) => {
            let blocker = reader.lock_holder(&name).await?;
            return Err(Error::LockNotGot { relation, patience, blocker });
        }
        read => read?,
    };
    ended?;
    Ok(catalog)
}

async fn read_all(
    reader: &Reader<'_>,
    name: &TableName,
    mapping: &Mapping,
    origin: Option<&Origin>,
    address: &str,
    timeouts: Vec<(String, String)>,
) -> Result<Catalog> {
    let found = table::find(reader, name).await?;
    reader.search_path(QUALIFIED).await?;
    let server = server::read(reader, address, timeouts).await?;
    let Some(found) = found else {
        let nothing = |sql: &str| Expression {
            sql: sql.to_string(),
            reads: Vec::new(),
            result: Err("there is no such table".into()),
            assignable: false,
            safe: false,
        };
        return Ok(Catalog { server, table: None, new_type: None, forward: nothing(""), reverse: nothing("") });
    };
    let mut table = table::read(reader, &found).await?;
    let columns = table::column_types(reader, found.id).await?;
    let column = |name: &str| columns.iter().find(|c| c.name == name);

    let (from, to) = (table.column(&mapping.old), table.column(&mapping.new));
    let swapped = origin.is_some_and(|o| is_swapped(o, from, to));
    let (old_name, new_name) = if swapped { (&mapping.new, &mapping.old) } else { (&mapping.old, &mapping.new) };
    // After the drop, what is known of the old column comes from the origin.
    let old_type = match (column(old_name), origin) {
        (Some(column), _) => Some(column.ty.clone()),
        (None, Some(origin)) => types::named(reader, &table.name, &origin.old_type).await?,
        (None, None) => None,
    };
    let planned_type = match &mapping.new_type {
        NewType::SameAsOld => old_type.clone(),
        NewType::Named(text) => types::named(reader, &table.name, text).await?,
    };
    let new_type = column(new_name).map(|c| c.ty.clone()).or_else(|| planned_type.clone());
    let old_column = table.column(old_name).cloned();
    let frame = Frame {
        table: table.name.clone(),
        others: columns.iter().map(|c| c.name.clone()).filter(|c| *c != mapping.old && *c != mapping.new).collect(),
        from: mapping.old.clone(),
        to: mapping.new.clone(),
        swapped,
        old: column(old_name).map(|c| c.name.clone()),
        new: column(new_name).map(|c| c.name.clone()),
        old_type,
        new_type: planned_type.clone(),
    };
    let forward = expressions::read(reader, &frame, &mapping.forward, expressions::Direction::Forward).await?;
    let reverse = expressions::read(reader, &frame, &mapping.reverse, expressions::Direction::Reverse).await?;

    let new_type_facts = planned_type.as_ref().map(|ty| TypeFacts {
        type_name: ty.name.clone(),
        exact_equality: ty.exact,
        collation: old_column.as_ref().and_then(|c| c.collation.clone()).filter(|_| ty.collatable()),
    });
    table.leaves = leaves::read(reader, &found).await?;
    table.rows = table.leaves.iter().map(|l| l.rows).sum();
    table.key = leaves::walk_key(reader, found.id, &[&mapping.old, &mapping.new]).await?;
    for leaf in &mut table.leaves {
        leaf.key = leaves::walk_key(reader, u32::try_from(leaf.id).unwrap_or_default(), &[&mapping.old, &mapping.new]).await?;
    }
    table.publications = publications::read(reader, found.id).await?;
    table.triggers = triggers::read(reader, &found, new_name).await?;
    if let Some(old) = &frame.old {
        table.indexes = indexes::read(reader, found.id, old, new_name, new_type.as_ref()).await?;
        table.checks = structure::checks(reader, &found, &frame, old, new_name).await?;
        table.foreign_keys = structure::foreign_keys(reader, &found, &frame, old, new_name).await?;
        table.dependents = dependents::read(reader, &found, old, true).await?.into_iter().map(|d| d.dependent).collect();
    }
    let mapped_by_user = matches!(mapping.forward, crate::change::Expr::Sql(_));
    let old_default = match origin {
        Some(origin) => origin.old_default.clone(),
        None => old_column.and_then(|c| c.default.clone()),
    };
    if let (Some(default), Some(new_type)) = (old_default, &new_type) {
        table.new_default = Some(default::translate(reader, &frame, &default, new_type, &forward, mapped_by_user).await?);
    }
    // Once the default has moved, the sequence hangs on the new column.
    let owners: Vec<&str> = frame.old.iter().chain(frame.new.iter().filter(|_| origin.is_some())).map(String::as_str).collect();
    table.sequence = table::sequence(reader, found.id, &owners).await?;
    table.rebuilds = rebuilds::read(reader, &found, &frame).await?;
    Ok(Catalog { server, table: Some(table), new_type: new_type_facts, forward, reverse })
}

/// A column with what else must be known of its type.
struct TypedColumn {
    name: String,
    ty: Ty,
}

/// The session, inside our transaction.
struct Reader<'a> {
    client: &'a Client,
    version: u32,
}

/// The server's message about a statement that was only tried.
type Tried<T> = std::result::Result<T, String>;

impl Reader<'_> {
    async fn begin(&self) -> Result<()> {
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

    async fn rows(&self, what: &str, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client.query(query, params).await.map_err(|e| refused(what, e))
    }

    async fn row(&self, what: &str, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        self.client.query_one(query, params).await.map_err(|e| refused(what, e))
    }

    async fn search_path(&self, path: &str) -> Result<()> {
        self.client.batch_execute(&format!("SET LOCAL search_path = {path}")).await.map_err(|e| refused("setting the search path", e))
    }

    /// Runs a try under another search path, and comes back to the qualified one.
    async fn try_under<T>(&self, path: &str, attempt: impl AsyncFnOnce() -> std::result::Result<T, tokio_postgres::Error>) -> Result<Tried<T>> {
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
    async fn try_prepare(&self, table: &TableName, query: &str) -> Result<Tried<Statement>> {
        self.try_under(&sql::search_path(table), async || self.client.prepare(query).await).await
    }

    /// Who holds the lock that made us give up.
    async fn lock_holder(&self, table: &TableName) -> Result<Option<Blocker>> {
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
        }))
    }
}

fn is_lock_timeout(e: &tokio_postgres::Error) -> bool {
    e.code() == Some(&tokio_postgres::error::SqlState::LOCK_NOT_AVAILABLE)
}

fn refused(context: &str, e: tokio_postgres::Error) -> Error {
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
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
