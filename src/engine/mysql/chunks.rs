//! The next part of the table, by keyset on the clustered key.

use mysql_async::{Row, Value};

use super::conn::{Session, get};
use super::keys::{self, between};
use super::sql::qualified;
use crate::engine::catalog::{Key, Leaf};
use crate::engine::{Chunk, Place, Watermark};
use crate::error::{Code, Error, Result};
use crate::resolve::Resolved;

/// The walk key.
pub fn key(r: &Resolved) -> Result<&Key> {
    let leaf = r.leaves.iter().find_map(|leaf| leaf.key.as_ref());
    leaf.or(r.key.as_ref()).ok_or_else(|| Error::new(Code::NoKey, format!("{} has no key to walk by", r.table)))
}

/// The table is its own only leaf.
fn leaf(r: &Resolved) -> Result<&Leaf> {
    r.leaves.first().ok_or_else(|| Error::new(Code::TargetChanged, format!("{} holds no rows", r.table)))
}

/// A key that was read as [`keys::shown_columns`], from column `first` of a row on.
pub fn key_of(row: &Row, first: usize, key: &Key) -> Result<Vec<String>> {
    (first..first + key.columns.len()).map(|place| get(row, place)).collect()
}

pub async fn next_chunk(session: &mut Session, r: &Resolved, after: Option<&Watermark>, rows: u32) -> Result<Option<Chunk>> {
    let leaf = leaf(r)?;
    let from = match after.filter(|mark| mark.leaf == leaf.id).map(|mark| &mark.at) {
        // The end was reached.
        Some(Place::Key(None)) => return Ok(None),
        Some(Place::Key(key)) => key.clone(),
        _ => None,
    };
    next_keys(session, r, from, None, rows).await.map(Some)
}

/// The next part of a chunk.
pub async fn next_part(session: &mut Session, r: &Resolved, chunk: &Chunk, after: Option<&Place>, rows: u32) -> Result<Option<Chunk>> {
    if after.is_some_and(|after| *after == chunk.to) {
        return Ok(None);
    }
    match (after.unwrap_or(&chunk.from), &chunk.to) {
        (Place::Key(from), Place::Key(end)) => next_keys(session, r, from.clone(), end.as_deref(), rows).await.map(Some),
        _ => Err(Error::new(Code::Internal, "a chunk of this server goes by key, not by page")),
    }
}

/// The next `rows` keys, up to `end`.
async fn next_keys(session: &mut Session, r: &Resolved, from: Option<Vec<String>>, end: Option<&[String]>, rows: u32) -> Result<Chunk> {
    let (key, leaf) = (key(r)?, leaf(r)?);
    let bounds = between(key, from.as_deref(), end, false)?;
    let relation = qualified(&r.table);
    let sql = format!(
        "SELECT {} FROM {relation} {} WHERE {} ORDER BY {} LIMIT 1 OFFSET ?",
        keys::shown_columns(key).join(", "),
        keys::force(key),
        bounds.sql,
        keys::columns(key)
    );
    let mut params = bounds.params;
    params.push(Value::from(rows.max(1) - 1));
    let found = session.query(&sql, params, "finding the next keys").await?.pop();
    let found = found.map(|row| key_of(&row, 0, key)).transpose()?;
    Chunk::by_key(relation, leaf, from, found, end, rows)
}
