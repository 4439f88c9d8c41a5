//! Real writes that are taken back: they show what the catalog can't.

use mysql_async::{Row, Value};

use super::conn::{Session, get};
use super::sql::{ident, literal, qualified};
use super::sync::expression;
use crate::engine::Probe;
use crate::error::{Result, Trouble};
use crate::resolve::Resolved;

/// So many rows are tried, since some may not convert at all.
const CANDIDATES: u32 = 10;

fn marked(r: &Resolved) -> String {
    format!("SET @sete_by = {}", literal(&r.names.marker))
}

const UNMARKED: &str = "SET @sete_by = NULL";

/// Fills a row as the backfill does, empties it, and lets the trigger fill it again: both must give the same.
pub async fn sync(session: &mut Session, r: &Resolved) -> Result<Probe> {
    let Some(key) = &r.key else { return Ok(Probe::NoRow) };
    let (table, old, new) = (qualified(&r.table), ident(&r.old.name), ident(&r.new.name));
    let columns: Vec<String> = key.columns.iter().map(|(name, _)| ident(name)).collect();
    let forward = expression(r, &r.forward, "");
    let pick =
        format!("SELECT {} FROM {table} sete_probe WHERE (\n{forward}\n) IS NOT NULL LIMIT {CANDIDATES} FOR UPDATE SKIP LOCKED", columns.join(", "));
    // What doesn't convert is a warning here and an error below.
    let rows = session.query(&pick, (), "picking rows for the probe").await?;
    let here = columns.iter().map(|c| format!("{c} = ?")).collect::<Vec<_>>().join(" AND ");
    let kept: String = r.columns.iter().filter(|c| c.on_update && c.name != r.new.name).map(|c| format!(", {0} = {0}", ident(&c.name))).collect();
    let look = format!("SELECT QUOTE(CAST({new} AS BINARY)), QUOTE(CAST({old} AS BINARY)) FROM {table} sete_probe WHERE {here}");
    for row in rows {
        let key: Vec<Value> = values(row);
        session.batch(&marked(r), "naming ourselves").await?;
        match session
            .execute(&format!("UPDATE {table} sete_probe SET {new} = (\n{forward}\n){kept} WHERE {here}"), key.clone(), "filling a row for the probe")
            .await
        {
            Err(e) if e.trouble() == Trouble::BadData => continue,
            done => done?,
        };
        let filled = session.one(&look, key.clone(), "reading the probe's row").await?;
        session
            .execute(&format!("UPDATE {table} sete_probe SET {new} = NULL{kept} WHERE {here}"), key.clone(), "emptying the new column for the probe")
            .await?;
        session.batch(UNMARKED, "writing as an application does").await?;
        session
            .execute(&format!("UPDATE {table} sete_probe SET {old} = {old}{kept} WHERE {here}"), key.clone(), "writing through the sync trigger")
            .await?;
        let synced = session.one(&look, key, "reading the probe's row").await?;
        let show = |row: &Row| -> Result<(String, String)> {
            Ok((get::<Option<String>>(row, 0)?.unwrap_or_default(), get::<Option<String>>(row, 1)?.unwrap_or_default()))
        };
        let ((wanted, _), (found, from)) = (show(&filled)?, show(&synced)?);
        return Ok(if wanted == found {
            Probe::Passed
        } else {
            Probe::Failed(format!("a row with {} = {from} got {} = {found} from the trigger, and {wanted} from the backfill", r.old.name, r.new.name))
        });
    }
    Ok(Probe::NoRow)
}

fn values(row: Row) -> Vec<Value> {
    row.unwrap()
}

/// A copy of an existing row without the old column. A key that is there already comes after NOT NULL and CHECK, and changes nothing.
pub async fn insert(session: &mut Session, r: &Resolved) -> Result<Probe> {
    let Some(key) = &r.key else { return Ok(Probe::NoRow) };
    let (table, new) = (qualified(&r.table), ident(&r.new.name));
    let columns: Vec<String> = r.columns.iter().filter(|c| c.name != r.old.name && !c.generated).map(|c| ident(&c.name)).collect();
    let columns = columns.join(", ");
    let any = session.query(&format!("SELECT 1 FROM {table} sete_probe WHERE {new} IS NOT NULL LIMIT 1"), (), "picking a row for the probe").await?;
    if any.is_empty() {
        return Ok(Probe::NoRow);
    }
    let first = key.columns.first().map(|(name, _)| ident(name)).unwrap_or_default();
    session.batch(&marked(r), "naming ourselves").await?;
    let copy = format!(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM (SELECT {columns} FROM {table} WHERE {new} IS NOT NULL LIMIT 1) sete_probe \
         ON DUPLICATE KEY UPDATE {first} = {table}.{first}"
    );
    let inserted = session.execute(&copy, (), "inserting without the old column").await;
    session.batch(UNMARKED, "writing as an application does").await?;
    inserted.map(|_| Probe::Passed)
}
