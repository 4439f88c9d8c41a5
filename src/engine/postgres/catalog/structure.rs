//! Constraints over the old column, and the same over the new one.

use tokio_postgres::Row;

use super::frame::Frame;
use super::table::Found;
use super::{Reader, Tried};
use crate::engine::catalog::{Constraint, RelationKind};
use crate::engine::postgres::sql::{self, ident};
use crate::error::Result;

/// The checks that prove NOT NULL of the new and the old column: see [`crate::resolve::Names`].
const OUR_PROOFS: [&str; 2] = ["sete_not_null_", "sete_old_not_null_"];

/// CHECK constraints that mention `old`.
pub(super) async fn checks(reader: &Reader<'_>, found: &Found, frame: &Frame, old: &str, new: &str) -> Result<Vec<Constraint>> {
    let query = "SELECT k.conname::text AS name, coalesce(pg_get_constraintdef(k.oid), '') AS definition, coalesce(pg_get_expr(k.conbin, k.conrelid), '') AS expression,
                        coalesce((to_jsonb(k) ->> 'conenforced')::bool, true) AS enforced
                 FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attname = $2
                 WHERE k.conrelid = $1 AND k.contype = 'c' AND a.attnum = ANY (k.conkey) AND NOT starts_with(k.conname::text, $3) AND NOT starts_with(k.conname::text, $4) ORDER BY k.conname";
    let mut out = Vec::new();
    for row in reader.rows("reading the CHECK constraints", query, &[&found.id, &old, &OUR_PROOFS[0], &OUR_PROOFS[1]]).await? {
        let definition: String = row.get("definition");
        let rewritten = check(reader, frame, &row, old, new).await?;
        out.push(Constraint { name: row.get("name"), definition, rewritten });
    }
    Ok(out)
}

async fn check(reader: &Reader<'_>, frame: &Frame, row: &Row, old: &str, new: &str) -> Result<Tried<String>> {
    if !row.get::<_, bool>("enforced") {
        return Ok(Err("it is NOT ENFORCED".to_string()));
    }
    let rename = |text: &str| sql::rename_columns(text, &[(old, new)]).ok_or_else(|| "its text can't be taken apart".to_string());
    let definition: &str = row.get("definition");
    let (expression, definition) = match (rename(row.get("expression")), rename(definition.strip_suffix(" NOT VALID").unwrap_or(definition))) {
        (Ok(expression), Ok(definition)) => (expression, definition),
        (Err(message), _) | (_, Err(message)) => return Ok(Err(message)),
    };
    let query = format!("SELECT 1 FROM {} WHERE (\n{expression}\n)", frame.named(&frame.current()));
    Ok(reader.try_prepare(&frame.table, &query).await?.map(|_| definition).map_err(|message| format!("over the new column: {message}")))
}

/// Foreign keys from `old`.
pub(super) async fn foreign_keys(reader: &Reader<'_>, found: &Found, frame: &Frame, old: &str, new: &str) -> Result<Vec<Constraint>> {
    let query = "SELECT k.conname::text AS name, coalesce(pg_get_constraintdef(k.oid), '') AS definition, coalesce((to_jsonb(k) ->> 'conenforced')::bool, true) AS enforced,
                        (SELECT array_agg(c.attname::text ORDER BY p.place) FROM unnest(k.conkey) WITH ORDINALITY p (number, place) JOIN pg_attribute c ON c.attrelid = k.conrelid AND c.attnum = p.number) AS columns,
                        (SELECT string_agg(quote_ident(c.attname), ', ' ORDER BY p.place) FROM unnest(k.conkey) WITH ORDINALITY p (number, place) JOIN pg_attribute c ON c.attrelid = k.conrelid AND c.attnum = p.number) AS quoted,
                        (SELECT array_agg(c.attname::text ORDER BY p.place) FROM unnest(k.confkey) WITH ORDINALITY p (number, place) JOIN pg_attribute c ON c.attrelid = k.confrelid AND c.attnum = p.number) AS referenced,
                        k.confrelid::regclass::text AS target, coalesce(to_jsonb(k) -> 'confdelsetcols' @> to_jsonb(a.attnum), false) AS set_on_delete
                 FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attname = $2
                 WHERE k.conrelid = $1 AND k.contype = 'f' AND k.conparentid = 0 AND a.attnum = ANY (k.conkey) ORDER BY k.conname";
    let mut out = Vec::new();
    for row in reader.rows("reading the foreign keys", query, &[&found.id, &old]).await? {
        let rewritten = foreign_key(reader, found, frame, &row, old, new).await?;
        out.push(Constraint { name: row.get("name"), definition: row.get("definition"), rewritten });
    }
    Ok(out)
}

async fn foreign_key(reader: &Reader<'_>, found: &Found, frame: &Frame, row: &Row, old: &str, new: &str) -> Result<Tried<String>> {
    if !row.get::<_, bool>("enforced") {
        return Ok(Err("it is NOT ENFORCED".to_string()));
    }
    if found.kind == RelationKind::Partitioned && reader.version < 180_000 {
        return Ok(Err(
            "before PostgreSQL 18 a foreign key of a partitioned table can't be added NOT VALID, so it would be checked under a lock".to_string()
        ));
    }
    if row.get("set_on_delete") {
        return Ok(Err("its ON DELETE names the column".to_string()));
    }
    let definition: &str = row.get("definition");
    let definition = definition.strip_suffix(" NOT VALID").unwrap_or(definition);
    // Only the referencing side is renamed: the referenced column often has the same name.
    let Some(rest) = definition.strip_prefix(&format!("FOREIGN KEY ({})", row.get::<_, &str>("quoted"))) else {
        return Ok(Err("its text can't be taken apart".to_string()));
    };
    let columns: Vec<String> = row.get::<_, Vec<String>>("columns").into_iter().map(|c| if c == old { new.to_string() } else { c }).collect();
    let pairs: Vec<String> = columns
        .iter()
        .zip(row.get::<_, Vec<String>>("referenced"))
        .map(|(a, b)| format!("sete_a.{} OPERATOR(pg_catalog.=) sete_b.{}", ident(a), ident(&b)))
        .collect();
    let query = format!("SELECT 1 FROM ({}) AS sete_a, {} AS sete_b WHERE {}", frame.current(), row.get::<_, &str>("target"), pairs.join(" AND "));
    let quoted: Vec<String> = columns.iter().map(|c| ident(c)).collect();
    Ok(reader
        .try_prepare(&frame.table, &query)
        .await?
        .map(|_| format!("FOREIGN KEY ({}){rest}", quoted.join(", ")))
        .map_err(|message| format!("the new column can't be compared with the referenced one: {message}")))
}
