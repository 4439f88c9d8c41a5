//! Schema actions on PostgreSQL: their text, their cost, looking and acting.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio_postgres::Row;

use super::conn::database_error;
use super::sql::{ident, literal, qualified};
use super::{Postgres, Settings, Tx, catalog, rows, sync};
use crate::change::Mapping;
use crate::crash;
use crate::engine::{Applied, Catalog, Cost, CostClass, Ddl, Fence, Fill, Probe, Schema, Side, StatementRead};
use crate::error::{Blocker, Code, Error, Result, Trouble};
use crate::plan::{Plan, TableName};
use crate::resolve::{ConstraintSpec, IndexSpec, Resolved, Rule, partition_index_name};
use crate::state::Origin;

/// No catalog-only statement takes this long. One that does is scanning after all, and is taken back.
const BRIEF: Duration = Duration::from_secs(10);

const ACCESS_EXCLUSIVE: &str = "ACCESS EXCLUSIVE";
const SHARE_ROW_EXCLUSIVE: &str = "SHARE ROW EXCLUSIVE";
const SHARE_UPDATE_EXCLUSIVE: &str = "SHARE UPDATE EXCLUSIVE";

#[async_trait]
impl Schema for Postgres {
    async fn catalog(&self, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>) -> Result<Catalog> {
        let open = self.open().await?;
        let open = open.as_ref().ok_or_else(|| Error::new(Code::Internal, "the session is gone"))?;
        catalog::read(open.session.client(), plan, mapping, origin, open.session.host()).await
    }

    fn render(&self, r: &Resolved, ddl: &Ddl) -> Vec<String> {
        render(r, ddl)
    }

    fn render_fill(&self, r: &Resolved, what: Fill) -> String {
        rows::example_fill(r, what)
    }

    fn cost(&self, r: &Resolved, ddl: &Ddl) -> Cost {
        cost(r, ddl)
    }

    async fn present(&self, r: &Resolved, ddl: &Ddl) -> Result<bool> {
        // Under pg_catalog alone, where types are written as the catalog reader writes them.
        let tx = self.begin(Settings::LOOK).await?;
        let found = present(&tx, r, ddl).await;
        tx.end(found).await
    }

    async fn blockers(&self, r: &Resolved, ddl: &Ddl) -> Result<Vec<Blocker>> {
        let tx = self.begin(Settings::LOOK).await?;
        let found = blockers(&tx, &cost(r, ddl)).await;
        tx.end(found).await
    }

    async fn apply(&self, r: &Resolved, ddl: &Ddl, timeout: Duration, fence: &Fence) -> Result<Applied> {
        match ddl {
            Ddl::BuildIndex(index) => self.build_index(r, index, timeout, fence).await,
            Ddl::DropIndex(index) => self.drop_index(r, index, timeout, fence).await,
            Ddl::Statement(text) if text.to_uppercase().contains("CONCURRENTLY") => {
                self.check_fence(fence).await?;
                self.concurrently(text, timeout).await
            }
            _ => self.apply_in_transaction(r, ddl, timeout, fence).await,
        }
    }

    async fn probe_sync(&self, r: &Resolved) -> Result<Probe> {
        let tx = self.begin_for(&r.table, Settings { read_only: false, ..Settings::LOOK }).await?;
        let probe = probe_sync(&tx, r).await;
        rolled_back(tx, probe).await
    }

    async fn probe_insert(&self, r: &Resolved) -> Result<Probe> {
        let tx = self.begin_for(&r.table, Settings { read_only: false, ..Settings::LOOK }).await?;
        let probe = probe_insert(&tx, r).await;
        rolled_back(tx, probe).await
    }

    async fn reads_of_old(&self, r: &Resolved) -> Result<Option<Vec<StatementRead>>> {
        let tx = self.begin(Settings::LOOK).await?;
        let reads = reads_of_old(&tx, r).await;
        tx.end(reads).await
    }
}

/// Ends a probe: its writes are never committed, and a value that was refused is an answer.
async fn rolled_back(tx: Tx<'_>, probe: Result<Probe>) -> Result<Probe> {
    tx.take_back().await?;
    match probe {
        Err(e) if e.trouble() == Trouble::BadData => Ok(Probe::Failed(e.to_string())),
        other => other,
    }
}

/// The SQL of an action, as it is sent.
pub fn render(r: &Resolved, ddl: &Ddl) -> Vec<String> {
    let table = qualified(&r.table);
    let alter = |what: String| vec![format!("ALTER TABLE {table} {what}")];
    match ddl {
        Ddl::AddColumn => {
            let collation = r.new.collation.as_ref().map_or(String::new(), |c| format!(" COLLATE {c}"));
            alter(format!("ADD COLUMN {} {}{collation}", ident(&r.new.name), r.new.type_name))
        }
        Ddl::DropNewColumn => alter(format!("DROP COLUMN {}", ident(&r.new.name))),
        Ddl::DropOldColumn => alter(format!("DROP COLUMN {}", ident(&r.old.name))),
        Ddl::InstallSync { watch: false } => sync::install_sync(r, false),
        Ddl::InstallSync { watch: true } => vec![sync::sync_function(r, true)],
        Ddl::DropSync => sync::drop_sync(r),
        Ddl::InstallObserver { watch: false } => sync::install_observer(r, false),
        Ddl::InstallObserver { watch: true } => vec![sync::observer_function(r, true)],
        Ddl::DropObserver => sync::drop_observer(r),
        Ddl::BuildIndex(index) => index_steps(r, index).into_iter().map(|step| step.sql).collect(),
        Ddl::DropIndex(index) => vec![drop_index(r, index)],
        Ddl::AddConstraint(spec) => alter(format!("ADD CONSTRAINT {} {} NOT VALID", ident(&spec.name), definition(r, spec))),
        Ddl::ValidateConstraint(spec) => alter(format!("VALIDATE CONSTRAINT {}", ident(&spec.name))),
        Ddl::DropConstraint(spec) => alter(format!("DROP CONSTRAINT IF EXISTS {}", ident(&spec.name))),
        Ddl::SetNotNull(side) => alter(format!("ALTER COLUMN {} SET NOT NULL", ident(&r.column(*side).name))),
        Ddl::DropNotNull(side) => alter(format!("ALTER COLUMN {} DROP NOT NULL", ident(&r.column(*side).name))),
        Ddl::Statement(text) => vec![text.clone()],
        Ddl::Analyze => vec![format!("ANALYZE {table}")],
        Ddl::SwapNames { .. } => swap(r),
        Ddl::MoveDefault => move_default(r, &r.old.name, &r.new.name),
        Ddl::MoveDefaultBack => move_default_back(r),
        // There are no invisible columns; a plan that asks for them is refused.
        Ddl::HideOldColumn | Ddl::ShowOldColumn => Vec::new(),
    }
}

fn definition(r: &Resolved, spec: &ConstraintSpec) -> String {
    match &spec.rule {
        Rule::NotNull(side) => format!("CHECK ({} IS NOT NULL)", ident(&r.column(*side).name)),
        Rule::Check(definition) | Rule::ForeignKey(definition) => definition.clone(),
    }
}

/// The new column gets the default and the sequence; the old one keeps neither, or an insert would draw two numbers.
fn move_default(r: &Resolved, old: &str, new: &str) -> Vec<String> {
    let table = qualified(&r.table);
    let mut out = Vec::new();
    if let Some(default) = &r.default {
        out.push(format!("ALTER TABLE {table} ALTER COLUMN {} SET DEFAULT {default}", ident(new)));
        out.push(format!("ALTER TABLE {table} ALTER COLUMN {} DROP DEFAULT", ident(old)));
    }
    if let Some(sequence) = &r.sequence {
        if ["smallint", "integer", "bigint"].contains(&r.new.type_name.as_str()) && sequence.type_name != r.new.type_name {
            out.push(format!("ALTER SEQUENCE {} AS {}", sequence.name, r.new.type_name));
        }
        out.push(format!("ALTER SEQUENCE {} OWNED BY {table}.{}", sequence.name, ident(new)));
    }
    out
}

fn move_default_back(r: &Resolved) -> Vec<String> {
    let table = qualified(&r.table);
    let mut out = Vec::new();
    if let Some(default) = &r.origin_default {
        out.push(format!("ALTER TABLE {table} ALTER COLUMN {} SET DEFAULT {default}", ident(&r.old.name)));
        out.push(format!("ALTER TABLE {table} ALTER COLUMN {} DROP DEFAULT", ident(&r.new.name)));
    }
    if let Some(sequence) = &r.sequence {
        out.push(format!("ALTER SEQUENCE {} OWNED BY {table}.{}", sequence.name, ident(&r.old.name)));
    }
    out
}

/// Old becomes new and new becomes old, with all that goes by name.
fn swap(r: &Resolved) -> Vec<String> {
    let table = qualified(&r.table);
    let rename = |from: &str, to: &str| format!("ALTER TABLE {table} RENAME COLUMN {} TO {}", ident(from), ident(to));
    let between = format!("~sete_{}", r.names.marker);
    let mut exchanged = r.clone();
    std::mem::swap(&mut exchanged.old.name, &mut exchanged.new.name);
    exchanged.swapped = !r.swapped;
    for column in &mut exchanged.columns {
        if column.name == r.old.name {
            column.name.clone_from(&r.new.name);
        } else if column.name == r.new.name {
            column.name.clone_from(&r.old.name);
        }
    }
    let remade: Vec<_> = r.rebuilds.iter().filter_map(|b| b.statements.as_ref().ok()).collect();
    let mut out: Vec<String> = remade.iter().flat_map(|(before, _)| before.clone()).collect();
    out.extend([rename(&r.old.name, &between), rename(&r.new.name, &r.old.name), rename(&between, &r.new.name)]);
    // The functions go by name; the triggers' conditions follow the columns by number.
    out.extend(sync::error_functions(&exchanged));
    out.push(sync::sync_function(&exchanged, false));
    out.extend(if exchanged.swapped { move_default(&exchanged, &exchanged.old.name, &exchanged.new.name) } else { move_default_back(&exchanged) });
    out.extend(remade.into_iter().flat_map(|(_, after)| after.clone()));
    out
}

/// One statement of an index build, and how to see that it is done.
struct IndexStep {
    sql: String,
    name: TableName,
    /// Runs outside a transaction, blocking nobody.
    concurrent: bool,
    /// Attaches it to its parent's index.
    attach: bool,
}

/// A plain table's index is one concurrent build. A partitioned one's: an empty index on the parent, likewise on partitions
/// that are partitioned themselves, and a concurrent build on each leaf; each is attached to its parent's, which turns valid
/// with the last.
fn index_steps(r: &Resolved, index: &IndexSpec) -> Vec<IndexStep> {
    let step = |table: &TableName, leaf: bool| {
        let own = if *table == r.table { index.name.clone() } else { partition_index_name(&index.name, &table.name) };
        let (concurrently, on) = if leaf { ("CONCURRENTLY", qualified(table)) } else { ("", format!("ONLY {}", qualified(table))) };
        let sql = index.statement(concurrently, &ident(&own), &on);
        IndexStep { sql, name: TableName { schema: table.schema.clone(), name: own }, concurrent: leaf, attach: false }
    };
    let mut steps = vec![step(&r.table, !r.partitioned)];
    for partition in &r.partitions {
        let (parent, own) = (step(&partition.parent, false).name, step(&partition.name, partition.leaf));
        let attach = format!("ALTER INDEX {} ATTACH PARTITION {}", qualified(&parent), qualified(&own.name));
        let attached = IndexStep { sql: attach, name: own.name.clone(), concurrent: false, attach: true };
        steps.extend([own, attached]);
    }
    steps
}

fn drop_index(r: &Resolved, index: &IndexSpec) -> String {
    let name = qualified(&TableName { schema: r.table.schema.clone(), name: index.name.clone() });
    // A partitioned index can't be dropped concurrently; its parts go with it.
    format!("DROP INDEX {}IF EXISTS {name}", if r.partitioned { "" } else { "CONCURRENTLY " })
}

/// Modes and classes as measured on PostgreSQL 13, 15 and 18.
pub fn cost(r: &Resolved, ddl: &Ddl) -> Cost {
    let table = qualified(&r.table);
    let on = |mode: &'static str, class, online: bool| Cost { locks: vec![(table.clone(), mode)], class, online, queues: !online };
    match ddl {
        Ddl::InstallSync { watch: false } | Ddl::InstallObserver { watch: false } => on(SHARE_ROW_EXCLUSIVE, CostClass::Catalog, false),
        // The function is exchanged under triggers that are there.
        Ddl::InstallSync { watch: true } | Ddl::InstallObserver { watch: true } => {
            Cost { locks: Vec::new(), class: CostClass::Catalog, online: false, queues: true }
        }
        Ddl::BuildIndex(_) => on(SHARE_UPDATE_EXCLUSIVE, CostClass::Index, true),
        Ddl::DropIndex(_) if r.partitioned => on(ACCESS_EXCLUSIVE, CostClass::Catalog, false),
        Ddl::DropIndex(_) => on(SHARE_UPDATE_EXCLUSIVE, CostClass::Catalog, true),
        Ddl::AddConstraint(ConstraintSpec { rule: Rule::ForeignKey(_), .. }) => on(SHARE_ROW_EXCLUSIVE, CostClass::Catalog, false),
        Ddl::ValidateConstraint(_) => on(SHARE_UPDATE_EXCLUSIVE, CostClass::Scan, true),
        Ddl::Analyze => on(SHARE_UPDATE_EXCLUSIVE, CostClass::Scan, true),
        Ddl::Statement(text) if text.to_uppercase().contains("CONCURRENTLY") => on(SHARE_UPDATE_EXCLUSIVE, CostClass::Index, true),
        Ddl::AddColumn
        | Ddl::DropNewColumn
        | Ddl::DropSync
        | Ddl::DropObserver
        | Ddl::AddConstraint(_)
        | Ddl::DropConstraint(_)
        | Ddl::SetNotNull(_)
        | Ddl::DropNotNull(_)
        | Ddl::Statement(_)
        | Ddl::SwapNames { .. }
        | Ddl::MoveDefault
        | Ddl::MoveDefaultBack
        | Ddl::HideOldColumn
        | Ddl::ShowOldColumn
        | Ddl::DropOldColumn => on(ACCESS_EXCLUSIVE, CostClass::Catalog, false),
    }
}

/// One row of the catalog about a column, or none.
async fn column(tx: &Tx<'_>, r: &Resolved, name: &str) -> Result<Option<Row>> {
    let sql = "SELECT a.attnotnull, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS default \
               FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
               WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped";
    Ok(tx.query(sql, &[&oid(r.table_id), &name], "looking at the column").await?.pop())
}

/// Oids are 32 bits wide; ours are kept as u64 for all engines.
fn oid(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(0)
}

async fn exists(tx: &Tx<'_>, sql: &str, params: super::Params<'_>) -> Result<bool> {
    Ok(!tx.query(sql, params, "looking at the catalog").await?.is_empty())
}

async fn present(tx: &Tx<'_>, r: &Resolved, ddl: &Ddl) -> Result<bool> {
    let not_null = async |side: Side| -> Result<bool> { Ok(column(tx, r, &r.column(side).name).await?.is_some_and(|row| row.get("attnotnull"))) };
    Ok(match ddl {
        Ddl::AddColumn => column(tx, r, &r.new.name).await?.is_some(),
        Ddl::DropNewColumn => column(tx, r, &r.new.name).await?.is_none(),
        Ddl::DropOldColumn => column(tx, r, &r.old.name).await?.is_none(),
        Ddl::InstallSync { watch } => watched_by(tx, r, &r.names.sync_triggers, &r.names.sync_function, &sync::sync_body(r, *watch)).await?,
        Ddl::InstallObserver { watch } => {
            watched_by(tx, r, &r.names.observer_triggers, &r.names.observer_function, &sync::observer_body(r, *watch)).await?
        }
        Ddl::DropSync => !any_function(tx, &r.names.sync_function).await? && triggers(tx, r, &r.names.sync_triggers).await?.is_empty(),
        Ddl::DropObserver => !any_function(tx, &r.names.observer_function).await? && triggers(tx, r, &r.names.observer_triggers).await?.is_empty(),
        Ddl::BuildIndex(index) => {
            let sql = "SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
                       WHERE c.relname = $1 AND i.indrelid = $2 AND i.indisvalid";
            exists(tx, sql, &[&index.name, &oid(r.table_id)]).await?
        }
        Ddl::DropIndex(index) => {
            let sql =
                "SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid WHERE c.relname = $1 AND i.indrelid = $2";
            !exists(tx, sql, &[&index.name, &oid(r.table_id)]).await?
        }
        // NOT NULL itself makes its proof superfluous.
        Ddl::AddConstraint(spec) | Ddl::ValidateConstraint(spec) => {
            let proven = match spec.rule {
                Rule::NotNull(side) => not_null(side).await?,
                _ => false,
            };
            let validated = matches!(ddl, Ddl::ValidateConstraint(_));
            let sql = "SELECT 1 FROM pg_catalog.pg_constraint WHERE conrelid = $1 AND conname = $2 AND (convalidated OR NOT $3)";
            proven || exists(tx, sql, &[&oid(r.table_id), &spec.name, &validated]).await?
        }
        Ddl::DropConstraint(spec) => {
            let sql = "SELECT 1 FROM pg_catalog.pg_constraint WHERE conrelid = $1 AND conname = $2";
            !exists(tx, sql, &[&oid(r.table_id), &spec.name]).await?
        }
        Ddl::SetNotNull(side) => not_null(*side).await?,
        Ddl::DropNotNull(side) => !not_null(*side).await?,
        Ddl::Statement(_) | Ddl::Analyze | Ddl::HideOldColumn => false,
        Ddl::ShowOldColumn => true,
        Ddl::SwapNames { swapped } => {
            // Told by the types: after a swap the plan's old name carries the new type.
            let row = column(tx, r, &r.plan_old).await?;
            row.is_some_and(|row| (row.get::<_, &str>("type") == r.new.type_name) == *swapped)
        }
        Ddl::MoveDefault => has_default(tx, r, Side::New, r.default.is_some()).await? && owns_sequence(tx, r, Side::New).await?,
        Ddl::MoveDefaultBack => has_default(tx, r, Side::Old, r.origin_default.is_some()).await? && owns_sequence(tx, r, Side::Old).await?,
    })
}

/// Whether a side has the default, or there is none to have.
async fn has_default(tx: &Tx<'_>, r: &Resolved, side: Side, any: bool) -> Result<bool> {
    Ok(!any || column(tx, r, &r.column(side).name).await?.is_some_and(|row| row.get::<_, Option<&str>>("default").is_some()))
}

async fn owns_sequence(tx: &Tx<'_>, r: &Resolved, side: Side) -> Result<bool> {
    let Some(sequence) = &r.sequence else { return Ok(true) };
    let sql = "SELECT 1 WHERE pg_catalog.pg_get_serial_sequence($1, $2)::pg_catalog.regclass = $3::text::pg_catalog.regclass";
    exists(tx, sql, &[&qualified(&r.table), &r.column(side).name, &sequence.name]).await
}

async fn any_function(tx: &Tx<'_>, name: &str) -> Result<bool> {
    let sql =
        "SELECT 1 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'sete' AND p.proname = $1";
    exists(tx, sql, &[&name]).await
}

/// Which of our two triggers the table has, enabled as we enable them.
async fn triggers(tx: &Tx<'_>, r: &Resolved, names: &[String; 2]) -> Result<Vec<(String, bool)>> {
    let sql = "SELECT tgname::text, tgenabled = 'A' FROM pg_catalog.pg_trigger WHERE tgrelid = $1 AND tgname = ANY($2) AND NOT tgisinternal";
    let rows = tx.query(sql, &[&oid(r.table_id), &&names[..]], "looking at the triggers").await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Both triggers are there and enabled, and their function has exactly this body.
async fn watched_by(tx: &Tx<'_>, r: &Resolved, names: &[String; 2], function: &str, body: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
               WHERE n.nspname = 'sete' AND p.proname = $1 AND p.prosrc = $2";
    let found = triggers(tx, r, names).await?;
    Ok(found.len() == 2 && found.iter().all(|(_, enabled)| *enabled) && exists(tx, sql, &[&function, &body]).await?)
}

/// Who holds a lock that conflicts with what the action needs, or a snapshot that a concurrent build waits for, on whatever
/// table it was taken. An autovacuum gives way by itself once it is waited for.
async fn blockers(tx: &Tx<'_>, cost: &Cost) -> Result<Vec<Blocker>> {
    let mut out = Vec::new();
    let waits_for_snapshots = cost.class == CostClass::Index;
    for (relation, mode) in &cost.locks {
        let conflicting: &[&str] = match *mode {
            ACCESS_EXCLUSIVE => &[
                "AccessShareLock",
                "RowShareLock",
                "RowExclusiveLock",
                "ShareUpdateExclusiveLock",
                "ShareLock",
                "ShareRowExclusiveLock",
                "ExclusiveLock",
                "AccessExclusiveLock",
            ],
            SHARE_ROW_EXCLUSIVE => {
                &["RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"]
            }
            _ => &["ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"],
        };
        let sql = "SELECT DISTINCT coalesce(l.pid, 0) AS pid, coalesce(a.application_name, 'prepared transaction ' || x.gid, '') AS application, coalesce(a.usename::text, x.owner::text, '?') AS usr, \
                   coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8, 0) AS age, coalesce(a.state, CASE WHEN x.gid IS NULL THEN 'state hidden' ELSE 'prepared' END) AS state, \
                   coalesce(left(a.query, 200), '') AS query \
                   FROM (SELECT pid, virtualtransaction FROM pg_catalog.pg_locks \
                   WHERE locktype = 'relation' AND granted AND mode = ANY($2) \
                   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
                   AND relation IN (SELECT $1::text::pg_catalog.regclass UNION SELECT relid FROM pg_catalog.pg_partition_tree($1::text::pg_catalog.regclass)) \
                   UNION SELECT pid, NULL FROM pg_catalog.pg_stat_activity WHERE $3 AND datname = current_database() AND backend_xmin IS NOT NULL) l \
                   LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
                   LEFT JOIN (SELECT t.virtualtransaction, x.gid, x.owner, x.prepared FROM pg_catalog.pg_prepared_xacts x \
                   JOIN pg_catalog.pg_locks t ON t.locktype = 'transactionid' AND t.transactionid = x.transaction AND t.pid IS NULL) x \
                   ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction \
                   WHERE l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker' ORDER BY age DESC";
        for row in tx.query(sql, &[relation, &conflicting, &waits_for_snapshots], "looking who holds a lock").await? {
            out.push(Blocker {
                pid: i64::from(row.get::<_, i32>("pid")),
                application: row.get("application"),
                user: row.get("usr"),
                age_s: row.get("age"),
                state: row.get("state"),
                query: row.get::<_, String>("query").split_whitespace().collect::<Vec<_>>().join(" "),
                certain: true,
            });
        }
    }
    Ok(out)
}

impl Postgres {
    /// Lock first, so that waiting and holding are measured apart; then the statements; all or nothing.
    async fn apply_in_transaction(&self, r: &Resolved, ddl: &Ddl, timeout: Duration, fence: &Fence) -> Result<Applied> {
        let cost = cost(r, ddl);
        // A build or a check may take long, and blocks nobody.
        let limit = if cost.online { Duration::from_secs(7 * 86_400) } else { timeout + BRIEF };
        let settings = Settings { lock_timeout: timeout, statement_timeout: limit, lazy_commit: false, read_only: false };
        let tx = self.begin_for(&r.table, settings).await?;
        let began = Instant::now();
        let done = apply_statements(&tx, r, ddl, &cost, fence).await;
        let locked = *done.as_ref().unwrap_or(&began);
        crash::point("before committing an action");
        tx.end(done).await.map_err(|e| not_got(e, &r.table, timeout))?;
        crash::point("after committing an action");
        Ok(Applied { wait: locked - began, hold: locked.elapsed() })
    }

    async fn check_fence(&self, fence: &Fence) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let held = super::store::fenced(&tx, fence).await.map(|_| ());
        tx.end(held).await
    }

    /// A statement that can't run in a transaction, on a session of its own whose settings end with it.
    async fn concurrently(&self, sql: &str, timeout: Duration) -> Result<Applied> {
        let session = self.dedicated().await?;
        // The last one is PostgreSQL 17's.
        let settings = format!(
            "SET lock_timeout = {}; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
             SELECT pg_catalog.set_config('transaction_timeout', '0', false) WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL",
            timeout.as_millis().max(1)
        );
        let began = Instant::now();
        session.client().batch_execute(&settings).await.map_err(|e| database_error("setting the limits of a build", e))?;
        session.client().batch_execute(sql).await.map_err(|e| database_error(sql, e))?;
        Ok(Applied { wait: Duration::ZERO, hold: began.elapsed() })
    }

    /// Counts only a valid index as success; an invalid leftover, of ours or of one who was killed, is dropped first.
    async fn build_index(&self, r: &Resolved, index: &IndexSpec, timeout: Duration, fence: &Fence) -> Result<Applied> {
        let mut total = Applied { wait: Duration::ZERO, hold: Duration::ZERO };
        for step in index_steps(r, index) {
            crash::point("before a step of an index build");
            self.check_fence(fence).await?;
            let found = self.look_at_index(&step.name).await?;
            let done = match (step.attach, found) {
                (true, Some(found)) => found.attached,
                (false, Some(found)) if step.concurrent && !found.valid => {
                    let name = qualified(&step.name);
                    self.concurrently(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}"), timeout)
                        .await
                        .map_err(|e| not_got(e, &r.table, timeout))?;
                    false
                }
                (false, Some(_)) => true,
                (_, None) => false,
            };
            if done {
                continue;
            }
            let applied = if step.concurrent {
                let built = self.concurrently(&step.sql, timeout).await;
                if built.is_err() && self.look_at_index(&step.name).await?.is_some_and(|found| !found.valid) {
                    // Patience has ended: one that can't be removed soon is removed by the next run.
                    let limit = timeout.min(BRIEF);
                    self.concurrently(&format!("DROP INDEX CONCURRENTLY IF EXISTS {}", qualified(&step.name)), limit)
                        .await
                        .map_err(|e| not_got(e, &r.table, limit))?;
                }
                built.map_err(|e| not_got(e, &r.table, timeout))?
            } else {
                let brief = timeout.min(Duration::from_secs(2));
                self.apply_in_transaction(r, &Ddl::Statement(step.sql), brief, fence).await?
            };
            crash::point("after a step of an index build");
            total = Applied { wait: total.wait + applied.wait, hold: total.hold + applied.hold };
        }
        Ok(total)
    }

    async fn drop_index(&self, r: &Resolved, index: &IndexSpec, timeout: Duration, fence: &Fence) -> Result<Applied> {
        let sql = drop_index(r, index);
        if r.partitioned {
            return self.apply_in_transaction(r, &Ddl::Statement(sql), timeout, fence).await;
        }
        self.check_fence(fence).await?;
        self.concurrently(&sql, timeout).await.map_err(|e| not_got(e, &r.table, timeout))
    }

    async fn look_at_index(&self, name: &TableName) -> Result<Option<FoundIndex>> {
        let tx = self.begin(Settings::LOOK).await?;
        let sql = "SELECT i.indisvalid, EXISTS (SELECT 1 FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid) \
                   FROM pg_catalog.pg_index i WHERE i.indexrelid = pg_catalog.to_regclass($1)";
        let found = tx.query(sql, &[&qualified(name)], "looking at the index").await;
        Ok(tx.end(found).await?.pop().map(|row| FoundIndex { valid: row.get(0), attached: row.get(1) }))
    }
}

struct FoundIndex {
    valid: bool,
    attached: bool,
}

/// The moment at which the locks were had.
async fn apply_statements(tx: &Tx<'_>, r: &Resolved, ddl: &Ddl, cost: &Cost, fence: &Fence) -> Result<Instant> {
    super::store::fenced(tx, fence).await?;
    // Again, now that no earlier try of ours can still be under way: it would have held the fence. A second swap would undo the first.
    tx.batch("SET LOCAL search_path = pg_catalog, pg_temp", "looking at the catalog").await?;
    if present(tx, r, ddl).await? {
        return Ok(Instant::now());
    }
    tx.batch(&format!("SET LOCAL search_path = {}", super::sql::search_path(&r.table)), "looking at the catalog").await?;
    let mut statements = render(r, ddl);
    let mut locks = cost.locks.clone();
    if let Some(repaired) = watchers(tx, r, ddl).await? {
        statements = repaired.statements;
        locks = repaired.lock.map(|mode| (qualified(&r.table), mode)).into_iter().collect();
    }
    // ANALYZE takes its own lock, and would only deadlock with ours on partitions.
    if !matches!(ddl, Ddl::Analyze) {
        for (relation, mode) in &locks {
            tx.batch(&format!("LOCK TABLE {relation} IN {mode} MODE"), "locking the table").await?;
        }
    }
    let locked = Instant::now();
    if let Ddl::SwapNames { .. } = ddl {
        tx.batch(&format!("SET LOCAL sete.by = {}", literal(&r.names.marker)), "naming ourselves").await?;
    }
    for sql in &statements {
        tx.batch(sql, sql).await?;
    }
    Ok(locked)
}

/// What an installation comes down to, given the triggers that are there.
struct Watchers {
    statements: Vec<String>,
    lock: Option<&'static str>,
}

async fn watchers(tx: &Tx<'_>, r: &Resolved, ddl: &Ddl) -> Result<Option<Watchers>> {
    let (names, function, all) = match ddl {
        Ddl::InstallSync { watch } => (&r.names.sync_triggers, sync::sync_function(r, *watch), sync::install_sync(r, *watch)),
        Ddl::InstallObserver { watch } => (&r.names.observer_triggers, sync::observer_function(r, *watch), sync::install_observer(r, *watch)),
        _ => return Ok(None),
    };
    let found = triggers(tx, r, names).await?;
    Ok(Some(if found.len() == 2 && found.iter().all(|(_, enabled)| *enabled) {
        Watchers { statements: vec![function], lock: None }
    } else if found.is_empty() {
        Watchers { statements: all, lock: Some(SHARE_ROW_EXCLUSIVE) }
    } else {
        // Half of them, or disabled. DROP TRIGGER needs more than CREATE TRIGGER does.
        Watchers { statements: sync::drop_triggers(r, names).into_iter().chain(all).collect(), lock: Some(ACCESS_EXCLUSIVE) }
    }))
}

/// A refused lock, in the door's words.
fn not_got(error: Error, table: &TableName, timeout: Duration) -> Error {
    match error.trouble() {
        Trouble::LockTimeout | Trouble::Deadlock => Error::LockNotGot { relation: table.to_string(), patience: timeout, blocker: None },
        _ => error,
    }
}

/// Empties the new column of one row behind the trigger's back, then lets the trigger fill it again.
async fn probe_sync(tx: &Tx<'_>, r: &Resolved) -> Result<Probe> {
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let forward = rows::actual(r, &r.forward);
    for leaf in &r.leaves {
        let relation = format!("ONLY {} AS {}", qualified(&leaf.name), ident(&r.table.name));
        let pick = format!(
            "SELECT ctid::text FROM {relation} WHERE CASE WHEN {} IS NULL THEN (\n{forward}\n) IS NOT NULL END LIMIT 1 FOR UPDATE SKIP LOCKED",
            sync::error_call(r, Side::New)
        );
        let Some(row) = tx.query(&pick, &[], "picking a row for the probe").await?.pop() else { continue };
        let mark = |marker: &str| format!("SET LOCAL sete.by = {}", literal(marker));
        tx.batch(&mark(&r.names.marker), "naming ourselves").await?;
        let emptied = tx
            .one(
                &format!("UPDATE {relation} SET {new} = NULL WHERE ctid = $1::text::tid RETURNING ctid::text"),
                &[&row.get::<_, String>(0)],
                "emptying the new column for the probe",
            )
            .await?;
        tx.batch(&mark(""), "writing as an application does").await?;
        let differ = sync::differ(&new, &format!("({forward})::{}", r.new.type_name), &r.new);
        let row = tx
            .one(
                &format!("UPDATE {relation} SET {old} = {old} WHERE ctid = $1::text::tid RETURNING {differ}, ({new})::text, ({old})::text"),
                &[&emptied.get::<_, String>(0)],
                "writing through the sync trigger",
            )
            .await?;
        let (differs, filled, from): (bool, Option<String>, Option<String>) = (row.get(0), row.get(1), row.get(2));
        return Ok(if differs {
            let show = |v: Option<String>| v.map_or("NULL".into(), |v| format!("{v:?}"));
            Probe::Failed(format!("a row with {} = {} got {} = {}", r.old.name, show(from), r.new.name, show(filled)))
        } else {
            Probe::Passed
        });
    }
    Ok(Probe::NoRow)
}

/// A copy of an existing row with the old column NULL, as it will be once its default has gone: a default that is still
/// there would hide what is to be seen, and draw a sequence's number. ON CONFLICT comes after NOT NULL and CHECK, so unique
/// keys don't matter.
async fn probe_insert(tx: &Tx<'_>, r: &Resolved) -> Result<Probe> {
    let columns: Vec<String> = r.columns.iter().filter(|c| c.name != r.old.name && !c.generated).map(|c| ident(&c.name)).collect();
    let (columns, old) = (columns.join(", "), ident(&r.old.name));
    tx.batch(&format!("SET LOCAL sete.by = {}", literal(&r.names.marker)), "naming ourselves").await?;
    let mut any = false;
    for leaf in &r.leaves {
        let relation = qualified(&leaf.name);
        let sql = format!(
            "WITH one AS (SELECT * FROM ONLY {relation} WHERE {new} IS NOT NULL LIMIT 1), \
             copied AS (INSERT INTO {relation} ({columns}, {old}) OVERRIDING SYSTEM VALUE SELECT {columns}, NULL FROM one ON CONFLICT DO NOTHING) \
             SELECT count(*) > 0 FROM one",
            new = ident(&r.new.name)
        );
        any |= tx.one(&sql, &[], "inserting without the old column").await?.get::<_, bool>(0);
        if any {
            break;
        }
    }
    Ok(if any { Probe::Passed } else { Probe::NoRow })
}

/// From pg_stat_statements, where it is installed.
async fn reads_of_old(tx: &Tx<'_>, r: &Resolved) -> Result<Option<Vec<StatementRead>>> {
    let sql = "SELECT quote_ident(n.nspname) FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace \
               WHERE e.extname = 'pg_stat_statements'";
    let Some(row) = tx.query(sql, &[], "looking for pg_stat_statements").await?.pop() else { return Ok(None) };
    let schema: String = row.get(0);
    let sql = format!(
        "SELECT query, sum(calls)::int8 FROM {schema}.pg_stat_statements s \
         WHERE s.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
         AND position(lower($1) IN lower(query)) > 0 AND position(lower($2) IN lower(query)) > 0 AND query !~* 'sete|^(alter|create|drop|comment)' GROUP BY query"
    );
    let rows = match tx.query(&sql, &[&r.old.name, &r.table.name], "reading pg_stat_statements").await {
        // It is not in shared_preload_libraries, which not everybody may look at.
        Err(Error::Database { sqlstate: Some(state), .. }) if state == "55000" => return Ok(None),
        rows => rows?,
    };
    let names_it = |text: &str| super::sql::names_in(text).contains(&r.old.name);
    Ok(Some(rows.iter().map(|row| StatementRead { text: row.get(0), calls: row.get(1) }).filter(|s| names_it(&s.text)).collect()))
}
