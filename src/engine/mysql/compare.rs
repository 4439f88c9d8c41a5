//! Which rows differ, exactly. A cheap look names the rows that may; those are tried.
//!
//! The cheap look compares what both columns look like as bytes of text: two values of one type that look alike are the same.
//! The other way round it may be wrong (1.5 and 1.50), which costs time and nothing else.

use std::collections::HashMap;

use mysql_async::Row;

use super::chunks::{key, key_of};
use super::conn::{Session, get};
use super::keys::{self, Condition, one_of, within};
use super::sql::{Class, class, ident, qualified, type_word};
use super::sync::expression;
use super::trial::{Trial, Tried};
use crate::engine::catalog::{Column, Key};
use crate::engine::{Chunk, Compare, Compared, Fill, Side, Unfit};
use crate::error::{Code, Error, Result, Trouble};
use crate::resolve::Resolved;
use crate::state::Reject;

/// So many rows are named in one statement.
const NAMED: usize = 1000;

/// A value that may be of another type than its column.
fn seen(value: &str, column: &Column) -> Option<String> {
    match class(&column.type_name) {
        Class::Bit | Class::Other => None,
        Class::Binary if matches!(type_word(&column.type_name).as_str(), "uuid" | "inet4" | "inet6") => {
            Some(format!("CAST(CAST(({value}) AS CHAR) AS BINARY)"))
        }
        Class::Binary => Some(format!("CAST(({value}) AS BINARY)")),
        _ => Some(format!("CAST(CONVERT(({value}) USING utf8mb4) AS BINARY)")),
    }
}

/// The conversion may give another value than the column has.
fn may_differ(r: &Resolved, side: Side) -> String {
    let column = r.column(side);
    let (name, given) = (ident(&column.name), format!("\n{}\n", expression(r, r.conversion_to(side), "")));
    let Some((a, b)) = seen(&name, column).zip(seen(&given, column)) else { return "TRUE".into() };
    match class(&column.type_name) {
        // As text a float has fewer digits than it has.
        Class::Float => format!("(NOT ({a} <=> {b}) OR NOT ({name} <=> ({given})))"),
        _ => format!("NOT ({a} <=> {b})"),
    }
}

/// New is empty though forward is not.
pub fn pending(r: &Resolved) -> String {
    format!("{} IS NULL AND (\n{}\n) IS NOT NULL", ident(&r.new.name), expression(r, &r.forward, ""))
}

/// Neither direction may explain the row.
fn suspicious(r: &Resolved) -> String {
    format!("(({}) OR ({} AND {}))", pending(r), may_differ(r, Side::New), may_differ(r, Side::Old))
}

/// The key's columns of some rows, in the order of the index.
fn keys_sql(r: &Resolved, key: &Key, rows: &Condition) -> String {
    format!(
        "SELECT {} FROM {} {} WHERE {} ORDER BY {}",
        keys::shown_columns(key).join(", "),
        qualified(&r.table),
        keys::force(key),
        rows.sql,
        keys::columns(key)
    )
}

pub fn keys_of(rows: &[Row], key: &Key) -> Result<Vec<Vec<String>>> {
    rows.iter().map(|row| key_of(row, 0, key)).collect()
}

fn bad_data(context: &str, message: String) -> Error {
    Error::Database { code: Code::Database, trouble: Trouble::BadData, context: context.into(), message, sqlstate: None }
}

/// The condition that the cheap look is, where it can be trusted: the server only warns of a value that it could not convert.
async fn look(session: &mut Session, r: &Resolved, chunk: &Condition, what: &str) -> Result<(Row, Option<String>)> {
    let sql = format!(
        "SELECT COUNT(*), CAST(COALESCE(SUM({what}), 0) AS UNSIGNED), COUNT(*) - COUNT({}) FROM {} {} WHERE {}",
        ident(&r.new.name),
        qualified(&r.table),
        keys::force(key(r)?),
        chunk.sql
    );
    let row = session.one(&sql, chunk.params.clone(), "comparing a chunk").await?;
    let warning = session.first_warning().await?;
    Ok((row, warning))
}

pub async fn compare(session: &mut Session, r: &Resolved, chunk: &Chunk, what: Compare, safely: bool, sample: u32) -> Result<Compared> {
    let rows = within(key(r)?, chunk)?;
    let named = match what {
        Compare::Pending => pending(r),
        Compare::Divergent => suspicious(r),
    };
    let (row, warning) = look(session, r, &rows, &named).await?;
    let mut compared = Compared { rows: get(&row, 0)?, divergent: get(&row, 1)?, empty: get(&row, 2)?, sample: Vec::new() };
    let condition = match warning {
        Some(warning) if !safely => return Err(bad_data("comparing a chunk", warning)),
        // Anything may be behind a value that was taken for another.
        Some(_) if what == Compare::Pending => format!("{} IS NULL", ident(&r.new.name)),
        Some(_) => "TRUE".into(),
        None if compared.divergent == 0 || what == Compare::Pending => return Ok(compared),
        None => named,
    };
    let candidates = rows.and(Condition { sql: format!("({condition})"), params: Vec::new() });
    let apart = match what {
        Compare::Pending => pending_exactly(session, r, &candidates).await?,
        Compare::Divergent => divergent(session, r, &candidates).await?,
    };
    compared.divergent = apart.len() as u64;
    compared.sample = names(session, r, apart.get(..apart.len().min(sample as usize)).unwrap_or_default()).await?;
    Ok(compared)
}

async fn pending_exactly(session: &mut Session, r: &Resolved, rows: &Condition) -> Result<Vec<Vec<String>>> {
    let key = key(r)?;
    let all = keys_of(&session.query(&keys_sql(r, key, rows), rows.params.clone(), "comparing a chunk").await?, key)?;
    let tried = tried(session, r, Side::New, true, &all).await?;
    Ok(all.into_iter().filter(|key| matches!(tried.get(key), Some(Tried::Differs { .. }))).collect())
}

/// The keys of the rows that neither direction explains. A direction that fails explains nothing.
pub async fn divergent(session: &mut Session, r: &Resolved, rows: &Condition) -> Result<Vec<Vec<String>>> {
    let key = key(r)?;
    let all = keys_of(&session.query(&keys_sql(r, key, rows), rows.params.clone(), "comparing a chunk").await?, key)?;
    divergent_of(session, r, all).await
}

/// Candidates for [`divergent`], held for us: those that others hold are left out.
pub async fn locked_candidates(session: &mut Session, r: &Resolved, chunk: &Chunk) -> Result<(Vec<Vec<String>>, u64)> {
    let key = key(r)?;
    let rows = within(key, chunk)?;
    let (row, warning) = look(session, r, &rows, &suspicious(r)).await?;
    let (total, suspects): (u64, u64) = (get(&row, 0)?, get(&row, 1)?);
    let (condition, expected) = if warning.is_some() { ("TRUE".to_string(), total) } else { (suspicious(r), suspects) };
    if expected == 0 {
        return Ok((Vec::new(), 0));
    }
    let rows = rows.and(Condition { sql: condition, params: Vec::new() });
    let sql = format!("{} FOR UPDATE SKIP LOCKED", keys_sql(r, key, &rows));
    let found = keys_of(&session.query(&sql, rows.params, "locking rows that differ").await?, key)?;
    let left = expected.saturating_sub(found.len() as u64);
    Ok((found, left))
}

pub async fn divergent_of(session: &mut Session, r: &Resolved, all: Vec<Vec<String>>) -> Result<Vec<Vec<String>>> {
    let forward = tried(session, r, Side::New, true, &all).await?;
    let unexplained: Vec<Vec<String>> = all.iter().filter(|key| forward.contains_key(*key)).cloned().collect();
    let reverse = tried(session, r, Side::Old, true, &unexplained).await?;
    let apart = |key: &Vec<String>| match forward.get(key) {
        None => false,
        Some(Tried::Differs { empty: true }) => true,
        Some(_) => reverse.contains_key(key),
    };
    Ok(all.into_iter().filter(apart).collect())
}

/// What a conversion gives for each of these rows, where it isn't what the column has.
async fn tried(session: &mut Session, r: &Resolved, side: Side, exists: bool, rows: &[Vec<String>]) -> Result<HashMap<Vec<String>, Tried>> {
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let trial = Trial::begin(session, r, side, exists).await?;
    let mut out = HashMap::new();
    for some in rows.chunks(NAMED) {
        out.extend(trial.rows(session, some).await?);
    }
    trial.end(session).await.map(|()| out)
}

async fn names(session: &mut Session, r: &Resolved, rows: &[Vec<String>]) -> Result<Vec<String>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let key = key(r)?;
    let these = one_of(key, rows)?;
    let sql = format!("SELECT {} FROM {} WHERE {} ORDER BY {}", keys::row_name(key), qualified(&r.table), these.sql, keys::columns(key));
    session.query(&sql, these.params, "naming the rows that differ").await?.iter().map(|row| get(row, 0)).collect()
}

/// The rows of a chunk that `what` would write and whose conversion fails.
pub async fn bad_rows(session: &mut Session, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<Vec<Reject>> {
    let (bad, from) = bad_keys(session, r, chunk, what).await?;
    rejects(session, r, &bad, from).await
}

/// Their keys, each with the reason.
pub async fn bad_keys(session: &mut Session, r: &Resolved, chunk: &Chunk, what: Fill) -> Result<(Vec<(Vec<String>, String)>, Side)> {
    let key = key(r)?;
    let (side, from) = match what {
        Fill::Pending | Fill::PendingGood | Fill::Forward => (Side::New, Side::Old),
        Fill::Reverse => (Side::Old, Side::New),
    };
    let mut rows = within(key, chunk)?;
    let concerned = match what {
        Fill::Pending | Fill::PendingGood => {
            rows.sql = format!("{} AND {} IS NULL", rows.sql, ident(&r.new.name));
            keys_of(&session.query(&keys_sql(r, key, &rows), rows.params.clone(), "looking for rows that don't convert").await?, key)?
        }
        Fill::Forward | Fill::Reverse => divergent(session, r, &rows).await?,
    };
    let mut tried = tried(session, r, side, true, &concerned).await?;
    let bad = concerned.into_iter().filter_map(|key| match tried.remove(&key) {
        Some(Tried::Fails(message)) => Some((key, message)),
        _ => None,
    });
    Ok((bad.collect(), from))
}

async fn rejects(session: &mut Session, r: &Resolved, bad: &[(Vec<String>, String)], from: Side) -> Result<Vec<Reject>> {
    let key = key(r)?;
    let mut out = Vec::with_capacity(bad.len());
    for (of, message) in bad {
        let this = one_of(key, std::slice::from_ref(of))?;
        let sql = format!(
            "SELECT {}, LEFT(CONVERT({} USING utf8mb4), 200) FROM {} WHERE {}",
            keys::row_name(key),
            ident(&r.column(from).name),
            qualified(&r.table),
            this.sql
        );
        // One that has gone meanwhile is bad no more.
        if let Some(row) = session.query(&sql, this.params, "naming rows that don't convert").await?.first() {
            out.push(Reject { key: get(row, 0)?, value: get(row, 1)?, message: message.clone() });
        }
    }
    Ok(out)
}

pub async fn unfit_rows(session: &mut Session, r: &Resolved, chunk: &Chunk, sample: u32) -> Result<Unfit> {
    let key = key(r)?;
    let rows = within(key, chunk)?;
    let all = keys_of(&session.query(&keys_sql(r, key, &rows), rows.params.clone(), "converting a chunk").await?, key)?;
    let mut tried = tried(session, r, Side::New, false, &all).await?;
    let total = all.len() as u64;
    let bad = all.into_iter().filter_map(|key| match tried.remove(&key) {
        Some(Tried::Fails(message)) => Some((key, message)),
        _ => None,
    });
    let bad: Vec<_> = bad.collect();
    let sample = rejects(session, r, bad.get(..bad.len().min(sample as usize)).unwrap_or_default(), Side::Old).await?;
    Ok(Unfit { rows: total, unfit: bad.len() as u64, sample })
}
