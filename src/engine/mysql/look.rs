//! Looking at what is there: an action's effect, who holds a lock in its way, who still reads the old column.

use super::conn::{SQL_MODE, Session, get};
use super::definition::Definition;
use super::sql::{ident, literal, names_in};
use super::sync::Watcher;
use crate::engine::{Ddl, Side, StatementRead};
use crate::error::{Blocker, Code, Error, Result, Trouble};
use crate::resolve::{ConstraintSpec, Resolved, Rule};

/// A trigger of the table, as the server has it.
#[derive(Debug)]
pub struct Trigger {
    pub name: String,
    body: String,
    sql_mode: String,
    timing: String,
    event: String,
    /// The account that it runs as: `name@host`, without quotes.
    definer: String,
}

/// A column's definition as the server has it now.
struct Now {
    type_name: String,
    not_null: bool,
    default: Option<String>,
    invisible: bool,
}

fn place(r: &Resolved) -> (&str, &str) {
    (r.table.schema.as_deref().unwrap_or_default(), &r.table.name)
}

async fn column(session: &mut Session, r: &Resolved, name: &str) -> Result<Option<Now>> {
    let (schema, table) = place(r);
    let query = "SELECT COLUMN_TYPE, IS_NULLABLE = 'NO', COLUMN_DEFAULT, EXTRA, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS \
                 WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND COLUMN_NAME = ?";
    let rows = session.query(query, (schema, table, name), "looking at the column").await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (mut type_name, charset, collation): (String, Option<String>, Option<String>) = (get(row, 0)?, get(row, 4)?, get(row, 5)?);
    if let (Some(charset), Some(collation)) = (charset, collation) {
        type_name = format!("{type_name} CHARACTER SET {charset} COLLATE {collation}");
    }
    let extra: String = get(row, 3)?;
    // MariaDB writes NULL where there is none.
    let default = get::<Option<String>>(row, 2)?.filter(|d| d != "NULL");
    Ok(Some(Now { type_name, not_null: get(row, 1)?, default, invisible: extra.to_uppercase().contains("INVISIBLE") }))
}

async fn index_is_there(session: &mut Session, r: &Resolved, name: &str) -> Result<bool> {
    let (schema, table) = place(r);
    let query = "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND INDEX_NAME = ? LIMIT 1";
    Ok(!session.query(query, (schema, table, name), "looking at the indexes").await?.is_empty())
}

async fn constraint_is_there(session: &mut Session, r: &Resolved, spec: &ConstraintSpec) -> Result<bool> {
    let (schema, table) = place(r);
    let query = "SELECT 1 FROM information_schema.TABLE_CONSTRAINTS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND CONSTRAINT_NAME = ?";
    Ok(!session.query(query, (schema, table, &spec.name), "looking at the constraints").await?.is_empty())
}

pub async fn triggers(session: &mut Session, r: &Resolved) -> Result<Vec<Trigger>> {
    let (schema, table) = place(r);
    let query = "SELECT TRIGGER_NAME, ACTION_STATEMENT, SQL_MODE, ACTION_TIMING, EVENT_MANIPULATION, DEFINER FROM information_schema.TRIGGERS \
                 WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ? ORDER BY EVENT_MANIPULATION, ACTION_TIMING, ACTION_ORDER";
    let rows = session.query(query, (schema, table), "looking at the triggers").await?;
    rows.iter()
        .map(|row| {
            let [name, body, sql_mode, timing, event, definer] = [0, 1, 2, 3, 4, 5].map(|n| get(row, n));
            Ok(Trigger { name: name?, body: body?, sql_mode: sql_mode?, timing: timing?, event: event?, definer: definer? })
        })
        .collect()
}

/// Without its account no trigger runs, and no write of the application either (error 1449). Who may not look at other
/// accounts is not told.
async fn definer_is_there(session: &mut Session, r: &Resolved, trigger: &Trigger) -> Result<()> {
    let Some((name, host)) = trigger.definer.rsplit_once('@') else { return Ok(()) };
    let account = format!("{}@{}", literal(name), literal(host));
    match session.query(&format!("SHOW GRANTS FOR {account}"), (), "looking at the account of a trigger").await {
        Err(Error::Database { sqlstate: Some(number), .. }) if number == NO_SUCH_ACCOUNT => {
            let message = format!(
                "the sync triggers on {} run as {account}, an account that does not exist: every write to the table fails with error 1449. \
                 Create it again, with the rights of docs/privileges.md",
                r.table
            );
            Err(Error::new(Code::SyncBroken, message))
        }
        Err(e) if e.trouble() != Trouble::Rights => Err(e),
        _ => Ok(()),
    }
}

const NO_SUCH_ACCOUNT: &str = "1141";

/// Both triggers are there exactly as we make them, with nothing of ours beside them.
pub async fn stands(session: &mut Session, home: &str, r: &Resolved, watcher: Watcher) -> Result<bool> {
    let found = triggers(session, r).await?;
    let (names, bodies, all) = (watcher.names(r), watcher.bodies(r, home), watcher.all_names(r));
    if found.iter().filter(|t| all.contains(&t.name)).count() != names.len() {
        return Ok(false);
    }
    for ((name, body), event) in names.iter().zip(&bodies).zip(["INSERT", "UPDATE"]) {
        let ours = |t: &&Trigger| t.name == *name && t.timing == watcher.timing() && t.event == event && same_mode(&t.sql_mode);
        let Some(trigger) = found.iter().find(ours) else { return Ok(false) };
        definer_is_there(session, r, trigger).await?;
        if trigger.body.trim() != body.trim() && !original(session, r, name).await?.trim_end().ends_with(body.trim_end()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The statement as it was sent: in the list of triggers MySQL 9.7 garbles names that have a backtick in them.
async fn original(session: &mut Session, r: &Resolved, name: &str) -> Result<String> {
    let schema = ident(r.table.schema.as_deref().unwrap_or_default());
    let row = session.one(&format!("SHOW CREATE TRIGGER {schema}.{}", ident(name)), (), "reading a trigger").await?;
    get(&row, 2)
}

/// The modes in any order.
fn same_mode(mode: &str) -> bool {
    let sorted = |text: &str| {
        let mut modes: Vec<String> = text.split(',').map(|m| m.trim().to_uppercase()).collect();
        modes.sort();
        modes
    };
    sorted(mode) == sorted(SQL_MODE)
}

async fn gone(session: &mut Session, r: &Resolved, watcher: Watcher) -> Result<bool> {
    let all = watcher.all_names(r);
    Ok(!triggers(session, r).await?.iter().any(|t| all.contains(&t.name)))
}

pub async fn present(session: &mut Session, home: &str, r: &Resolved, ddl: &Ddl) -> Result<bool> {
    Ok(match ddl {
        Ddl::AddColumn => column(session, r, &r.new.name).await?.is_some(),
        Ddl::DropNewColumn => column(session, r, &r.new.name).await?.is_none(),
        Ddl::DropOldColumn => column(session, r, &r.old.name).await?.is_none(),
        Ddl::HideOldColumn => column(session, r, &r.old.name).await?.is_none_or(|c| c.invisible),
        Ddl::ShowOldColumn => column(session, r, &r.old.name).await?.is_none_or(|c| !c.invisible),
        Ddl::InstallSync { watch } => stands(session, home, r, Watcher::Sync { watch: *watch }).await?,
        Ddl::InstallObserver { watch } => stands(session, home, r, Watcher::Observer { watch: *watch }).await?,
        Ddl::DropSync => gone(session, r, Watcher::Sync { watch: false }).await?,
        Ddl::DropObserver => gone(session, r, Watcher::Observer { watch: false }).await?,
        Ddl::BuildIndex(index) => index_is_there(session, r, &index.name).await?,
        Ddl::DropIndex(index) => !index_is_there(session, r, &index.name).await?,
        Ddl::AddConstraint(spec) => constraint_is_there(session, r, spec).await?,
        // The server keeps no record of it, so the rows are looked through again; other constraints hold from the start.
        Ddl::ValidateConstraint(spec) => !matches!(spec.rule, Rule::ForeignKey(_)),
        Ddl::DropConstraint(spec) => !constraint_is_there(session, r, spec).await?,
        Ddl::SetNotNull(Side::Old) if r.ways.relaxed.is_some() => {
            column(session, r, &r.old.name).await?.is_some_and(|c| c.not_null && c.default.is_some() == r.origin_default.is_some())
        }
        Ddl::SetNotNull(side) => column(session, r, &r.column(*side).name).await?.is_some_and(|c| c.not_null),
        Ddl::DropNotNull(Side::Old) => column(session, r, &r.old.name).await?.is_none_or(|c| !c.not_null || c.default.is_some()),
        Ddl::DropNotNull(Side::New) => column(session, r, &r.new.name).await?.is_none_or(|c| !c.not_null),
        Ddl::Statement(_) | Ddl::Analyze => false,
        Ddl::SwapNames { swapped } => {
            let named = if r.swapped == *swapped { r.clone() } else { super::render::exchanged(r) };
            names_are(session, r, *swapped).await? && stands(session, home, &named, Watcher::Sync { watch: false }).await?
        }
        Ddl::MoveDefault => r.default.is_none() || column(session, r, &r.new.name).await?.is_some_and(|c| c.default.is_some()),
        Ddl::MoveDefaultBack => r.default.is_none() || column(session, r, &r.new.name).await?.is_none_or(|c| c.default.is_none()),
    })
}

/// Told by the types: after a swap the plan's old name carries the new one.
pub async fn names_are(session: &mut Session, r: &Resolved, swapped: bool) -> Result<bool> {
    let plain = |ty: &str| Definition::parse(ty).type_name;
    let wanted = if swapped { &r.new.type_name } else { &r.old.type_name };
    let found = column(session, r, &r.plan_old).await?;
    Ok(found.is_some_and(|c| c.type_name == *wanted || (wanted == "json" && plain(&c.type_name).starts_with("longtext"))))
}

/// Who holds a metadata lock on the table, the oldest transaction first.
pub async fn blockers(tx: &mut Session, r: &Resolved, ours: &[u32]) -> Result<Vec<Blocker>> {
    let (schema, table) = place(r);
    let recorded =
        "SELECT 1 FROM performance_schema.setup_instruments WHERE NAME = 'wait/lock/metadata/sql/mdl' AND ENABLED = 'YES' AND @@performance_schema";
    let holds = match tx.query(recorded, (), "asking whether metadata locks are recorded").await {
        Ok(rows) if !rows.is_empty() => RECORDED,
        Ok(_) => "",
        Err(e) if e.trouble() == Trouble::Rights => "",
        Err(e) => return Err(e),
    };
    let (query, certain) = match holds {
        "" if has_lock_info(tx).await? => (LOCK_INFO, true),
        "" => (OPEN_TRANSACTIONS, false),
        recorded => (recorded, true),
    };
    let params: Vec<String> = if certain { vec![schema.to_string(), table.to_string()] } else { Vec::new() };
    let rows = match tx.query(query, params, "looking who holds a lock").await {
        Err(e) if e.trouble() == Trouble::Rights => return Ok(Vec::new()),
        rows => rows?,
    };
    let mut out = Vec::new();
    for row in rows {
        let pid: i64 = get(&row, 0)?;
        if ours.iter().any(|id| i64::from(*id) == pid) {
            continue;
        }
        let query: Option<String> = get(&row, 5)?;
        out.push(Blocker {
            pid,
            application: get::<Option<String>>(&row, 1)?.unwrap_or_default(),
            user: get::<Option<String>>(&row, 2)?.unwrap_or_default(),
            age_s: get::<Option<f64>>(&row, 3)?.unwrap_or(0.0),
            state: get::<Option<String>>(&row, 4)?.unwrap_or_default(),
            query: query.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect(),
            certain,
        });
    }
    Ok(out)
}

async fn has_lock_info(tx: &mut Session) -> Result<bool> {
    let query = "SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'METADATA_LOCK_INFO' AND PLUGIN_STATUS = 'ACTIVE'";
    Ok(!tx.query(query, (), "asking for metadata_lock_info").await?.is_empty())
}

/// Each session once, with the age of its transaction, or of its statement where there is none.
const RECORDED: &str = "SELECT DISTINCT CAST(t.PROCESSLIST_ID AS SIGNED), a.ATTR_VALUE, CONCAT(t.PROCESSLIST_USER, '@', t.PROCESSLIST_HOST), \
     CAST(COALESCE(IF(x.STATE = 'ACTIVE', x.TIMER_WAIT / 1e12, NULL), t.PROCESSLIST_TIME) AS DOUBLE) AS sete_age, \
     IF(t.PROCESSLIST_COMMAND = 'Sleep', 'idle', t.PROCESSLIST_COMMAND), COALESCE(t.PROCESSLIST_INFO, s.SQL_TEXT) \
     FROM performance_schema.metadata_locks m JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID \
     LEFT JOIN performance_schema.events_transactions_current x ON x.THREAD_ID = t.THREAD_ID \
     LEFT JOIN performance_schema.events_statements_current s ON s.THREAD_ID = t.THREAD_ID AND s.NESTING_EVENT_LEVEL = 0 \
     LEFT JOIN performance_schema.session_connect_attrs a ON a.PROCESSLIST_ID = t.PROCESSLIST_ID AND a.ATTR_NAME = 'program_name' \
     WHERE m.OBJECT_TYPE = 'TABLE' AND m.OBJECT_SCHEMA = ? AND m.OBJECT_NAME = ? AND m.LOCK_STATUS = 'GRANTED' AND t.PROCESSLIST_ID <> CONNECTION_ID() \
     ORDER BY sete_age DESC";

const LOCK_INFO: &str = "SELECT DISTINCT CAST(p.ID AS SIGNED), '', CONCAT(p.USER, '@', p.HOST), \
     CAST(COALESCE(TIMESTAMPDIFF(MICROSECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', 'SYSTEM')) / 1e6, p.TIME) AS DOUBLE) AS sete_age, IF(p.COMMAND = 'Sleep', 'idle', p.COMMAND), p.INFO \
     FROM information_schema.METADATA_LOCK_INFO m JOIN information_schema.PROCESSLIST p ON p.ID = m.THREAD_ID \
     LEFT JOIN information_schema.INNODB_TRX x ON x.trx_mysql_thread_id = p.ID \
     WHERE m.TABLE_SCHEMA = ? AND m.TABLE_NAME = ? AND p.ID <> CONNECTION_ID() ORDER BY sete_age DESC";

/// Neither record is kept: any open transaction may be the one.
const OPEN_TRANSACTIONS: &str = "SELECT CAST(p.ID AS SIGNED), '', CONCAT(p.USER, '@', p.HOST), \
     CAST(TIMESTAMPDIFF(MICROSECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', 'SYSTEM')) / 1e6 AS DOUBLE) AS sete_age, IF(p.COMMAND = 'Sleep', 'idle', p.COMMAND), p.INFO \
     FROM information_schema.INNODB_TRX x JOIN information_schema.PROCESSLIST p ON p.ID = x.trx_mysql_thread_id \
     WHERE p.ID <> CONNECTION_ID() ORDER BY sete_age DESC";

/// From the statements' digests, where the server keeps them.
pub async fn reads_of_old(session: &mut Session, r: &Resolved) -> Result<Option<Vec<StatementRead>>> {
    let kept = "SELECT 1 FROM performance_schema.setup_consumers WHERE NAME = 'statements_digest' AND ENABLED = 'YES' AND @@performance_schema";
    match session.query(kept, (), "asking whether statements are counted").await {
        Ok(rows) if rows.is_empty() => return Ok(None),
        Err(e) if e.trouble() == Trouble::Rights => return Ok(None),
        rows => rows.map(|_| ())?,
    }
    // Our own are told by what no application writes: an alias of ours, or the walk's way to take its index.
    let query = "SELECT DIGEST_TEXT, CAST(SUM(COUNT_STAR) AS SIGNED) FROM performance_schema.events_statements_summary_by_digest \
                 WHERE LOCATE(LOWER(?), LOWER(DIGEST_TEXT)) > 0 AND LOCATE(LOWER(?), LOWER(DIGEST_TEXT)) > 0 \
                 AND (SCHEMA_NAME = ? OR LOCATE(CONCAT('`', ?, '` . `'), DIGEST_TEXT) > 0) \
                 AND DIGEST_TEXT NOT REGEXP '^(ALTER|CREATE|DROP|SHOW|EXPLAIN|LOCK|ANALYZE|SET) ' AND LOCATE('sete_', DIGEST_TEXT) = 0 \
                 AND DIGEST_TEXT NOT REGEXP 'FORCE INDEX [(] `[^`]+` [)] (WHERE TRUE|SET )' GROUP BY DIGEST_TEXT";
    let (schema, table) = place(r);
    let rows = session.query(query, (&r.old.name, table, schema, schema), "reading the statements' digests").await?;
    let reads = rows.iter().map(|row| Ok(StatementRead { text: get(row, 0)?, calls: get(row, 1)? })).collect::<Result<Vec<_>>>()?;
    let named = |text: &str| names_in(text).contains(&r.old.name.to_lowercase());
    Ok(Some(reads.into_iter().filter(|s| named(&s.text)).collect()))
}
