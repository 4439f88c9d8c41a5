//! The tables in which we keep our state: making them, changing their format, removing them.
//!
//! Without foreign keys: a check of one would lock the plan's row for everybody. DDL commits by itself here, so that each
//! statement is safe to run twice, and the format's number comes last.

use super::conn::get;
use super::sql::ident;
use super::{MySql, Settings, Tx};
use crate::error::{Code, Error, Result};

/// Raised with every change of these tables; [`MIGRATIONS`] leads from one to the next.
const FORMAT: i64 = 1;

/// Names are told apart by case, and times are UTC.
const OPTIONS: &str = "ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin";

/// What is in a table, by format from 1 on. Each has a primary key: some clusters ask for it.
const MIGRATIONS: [&[(&str, &str)]; 1] = [&[
    (
        "sete_plan",
        "id VARCHAR(64) NOT NULL PRIMARY KEY, table_name VARCHAR(400) NOT NULL, fingerprint VARCHAR(128) NOT NULL, `change` JSON NOT NULL, \
         origin JSON NOT NULL, text LONGTEXT NOT NULL, paused BOOLEAN NOT NULL DEFAULT FALSE, created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    ),
    (
        "sete_lease",
        "plan_id VARCHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL DEFAULT 0, holder VARCHAR(255), session BIGINT UNSIGNED, mark VARCHAR(64), \
         until DATETIME(6)",
    ),
    ("sete_stage", "plan_id VARCHAR(64) NOT NULL, stage VARCHAR(32) NOT NULL, data JSON NOT NULL, PRIMARY KEY (plan_id, stage)"),
    ("sete_progress", "plan_id VARCHAR(64) NOT NULL PRIMARY KEY, data JSON NOT NULL"),
    // A row for each region that a worker has, gone once it is done: few, and rewritten all the time.
    (
        "sete_chunk",
        "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, plan_id VARCHAR(64) NOT NULL, data JSON NOT NULL, token BIGINT NOT NULL DEFAULT 1, \
         filled BIGINT NOT NULL DEFAULT 0, worker VARCHAR(255) NOT NULL, session BIGINT UNSIGNED NOT NULL, mark VARCHAR(64) NOT NULL, \
         ttl BIGINT NOT NULL, until DATETIME(6) NOT NULL, touched DATETIME(6) NOT NULL",
    ),
    ("sete_pass", "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, plan_id VARCHAR(64) NOT NULL, data JSON NOT NULL, KEY (plan_id)"),
    // A key may be longer than an index takes.
    (
        "sete_reject",
        "plan_id VARCHAR(64) NOT NULL, key_hash BINARY(32) NOT NULL, `key` LONGTEXT NOT NULL, value LONGTEXT, message LONGTEXT NOT NULL, \
         at DATETIME(6) NOT NULL, PRIMARY KEY (plan_id, key_hash)",
    ),
    // These two are written by the application's statements: a row each, so that no two wait for each other.
    (
        "sete_stray_write",
        "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, plan_id VARCHAR(64) NOT NULL, at DATETIME(6) NOT NULL, application VARCHAR(255) NOT NULL, \
         address VARCHAR(255) NOT NULL, usr VARCHAR(255) NOT NULL, wrote_only VARCHAR(255) NOT NULL, KEY (plan_id)",
    ),
    ("sete_write", "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, plan_id VARCHAR(64) NOT NULL, KEY (plan_id)"),
    (
        "sete_event",
        "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, plan_id VARCHAR(64) NOT NULL, at DATETIME(6) NOT NULL, who VARCHAR(255) NOT NULL, \
         token BIGINT NOT NULL, data JSON NOT NULL, KEY (plan_id, id)",
    ),
    ("sete_format", "version INT NOT NULL PRIMARY KEY"),
]];

/// None when our tables aren't there.
async fn format(tx: &mut Tx<'_>) -> Result<Option<i64>> {
    let sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'sete_format'";
    if tx.query(sql, (), "looking for our tables").await?.is_empty() {
        return Ok(None);
    }
    let row = tx.one("SELECT CAST(COALESCE(MAX(version), 0) AS SIGNED) FROM sete_format", (), "reading the format of our tables").await?;
    get(&row, 0).map(Some)
}

/// Whether our tables are there, in the format that we know.
pub async fn known(tx: &mut Tx<'_>) -> Result<bool> {
    match format(tx).await? {
        Some(version) if version > FORMAT => {
            Err(Error::new(Code::StateTooNew, format!("the tables sete_* have format {version}, this version of sete knows up to {FORMAT}")))
        }
        version => Ok(version == Some(FORMAT)),
    }
}

pub async fn prepare(engine: &MySql) -> Result<()> {
    const MAKING: &str = "making the tables sete_*";
    let mut tx = engine.begin(Settings::LOOK).await?;
    let found = known(&mut tx).await;
    if tx.end(found).await? {
        return Ok(());
    }
    let mut session = engine.plain().await?;
    session.check_writable()?;
    // Two runners that begin at the same moment: the second waits here, and then finds all done. The lock ends with the session, too.
    let lock = format!("sete_tables.{}", engine.database());
    let lock: String = lock.chars().take(64).collect();
    let got = session.one("SELECT GET_LOCK(?, 30)", (&lock,), MAKING).await?;
    if get::<Option<i64>>(&got, 0)? != Some(1) {
        return Err(Error::new(Code::LeaseHeld, "another runner is making the tables sete_* for more than 30 s"));
    }
    let made = migrate(&mut session).await;
    session.query("SELECT RELEASE_LOCK(?)", (&lock,), MAKING).await?;
    made
}

async fn migrate(session: &mut Tx<'_>) -> Result<()> {
    const MAKING: &str = "making the tables sete_*";
    let from = usize::try_from(format(session).await?.unwrap_or(0)).unwrap_or(0);
    for tables in MIGRATIONS.get(from..).unwrap_or_default() {
        for (name, columns) in *tables {
            session.batch(&format!("CREATE TABLE IF NOT EXISTS {} ({columns}) {OPTIONS}", ident(name)), MAKING).await?;
        }
    }
    session.execute("REPLACE INTO sete_format VALUES (?)", (FORMAT,), MAKING).await?;
    session.execute("DELETE FROM sete_format WHERE version < ?", (FORMAT,), MAKING).await.map(|_| ())
}

/// The plan's rows go; with the last plan, our tables go too.
pub async fn forget(engine: &MySql, plan: &str) -> Result<()> {
    let mut tx = engine.begin(Settings::STATE).await?;
    let left = forget_rows(&mut tx, engine.database(), plan).await;
    if tx.end(left).await? {
        return Ok(());
    }
    let mut session = engine.plain().await?;
    for (name, _) in MIGRATIONS.iter().flat_map(|tables| tables.iter()) {
        session.batch(&format!("DROP TABLE IF EXISTS {}", ident(name)), "removing the tables sete_*").await?;
    }
    Ok(())
}

/// Whether our tables are still needed: by other plans, or by triggers.
async fn forget_rows(tx: &mut Tx<'_>, database: &str, plan: &str) -> Result<bool> {
    for (name, _) in MIGRATIONS.iter().flat_map(|tables| tables.iter()) {
        let column = match *name {
            "sete_format" => continue,
            "sete_plan" => "id",
            _ => "plan_id",
        };
        tx.execute(&format!("DELETE FROM {} WHERE {column} = ?", ident(name)), (plan,), "forgetting the plan").await?;
    }
    let plans = tx.one("SELECT COUNT(*) FROM sete_plan", (), "counting the plans").await?;
    // By force a plan may be forgotten while its triggers are in place: what they write to stays.
    let ours = format!("{}.`sete_", ident(database));
    let sql = "SELECT COUNT(*) FROM information_schema.triggers WHERE LOCATE(?, action_statement) > 0";
    let triggers = tx.one(sql, (ours,), "looking for triggers that need our tables").await?;
    Ok(get::<i64>(&plans, 0)? > 0 || get::<i64>(&triggers, 0)? > 0)
}
