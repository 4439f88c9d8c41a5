//! The old column's default, as the new column's; and one that does no harm once nobody writes the old column.

use super::frame::{Frame, tried};
use crate::engine::catalog::Expression;
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::sql::{ident, is_constant, literal, type_word};
use crate::error::Result;

/// The new column's default, or why the old one can't be translated.
pub(super) async fn translate(
    session: &mut Session,
    frame: &Frame,
    default: &str,
    on_update: Option<String>,
    forward: &Expression,
    mapped_by_user: bool,
) -> Result<Result<String, String>> {
    let with_update = |default: String| match &on_update {
        Some(function) => format!("{default} ON UPDATE {function}"),
        None => default,
    };
    if !mapped_by_user && frame.old_type == frame.new_type {
        return Ok(Ok(with_update(default.to_string())));
    }
    let of_time = |ty: &Option<String>| ty.as_deref().is_some_and(|ty| matches!(type_word(ty).as_str(), "datetime" | "timestamp"));
    if !is_constant(default) && !mapped_by_user && of_time(&frame.old_type) && of_time(&frame.new_type) {
        // The fraction must be the column's own.
        let digits = frame.new_type.as_deref().and_then(|ty| ty.split_once('(')).map_or(String::new(), |(_, rest)| format!("({}", rest.split(')').next().unwrap_or_default()) + ")");
        let now = format!("CURRENT_TIMESTAMP{digits}");
        return Ok(Ok(if on_update.is_some() { format!("{now} ON UPDATE {now}") } else { now }));
    }
    if !is_constant(default) || on_update.is_some() {
        return Ok(Err(format!("the default {} is not a constant, so `forward` can't be applied to it beforehand", with_update(default.to_string()))));
    }
    if let Some(other) = forward.reads.iter().find(|column| **column != frame.from) {
        return Ok(Err(format!("`forward` reads {other} too, which a default can't")));
    }
    let Some(new_type) = &frame.new_type else { return Ok(Err("there is no new type".to_string())) };
    let value = evaluate(session, frame, default, new_type, forward).await?;
    Ok(value.map_err(|message| format!("`forward` refuses the default {default}: {message}")))
}

/// What `forward` makes of a constant, as a constant.
async fn evaluate(session: &mut Session, frame: &Frame, default: &str, new_type: &str, forward: &Expression) -> Result<Result<String, String>> {
    const TARGET: &str = "sete_default";
    let from = vec![frame.from.clone()];
    if let Err(message) = frame.make(session, &from, Some((TARGET, new_type))).await? {
        return Ok(Err(message));
    }
    let over = frame.over_tried(&forward.sql, &from);
    let put = format!("INSERT INTO sete_tried ({}) VALUES ({default}); UPDATE sete_tried SET {TARGET} = (\n{over}\n)", ident(&frame.from));
    if let Err(message) = tried(session.batch(&put, "trying the default").await)? {
        return Ok(Err(message));
    }
    let row = session.one(&format!("SELECT CAST({TARGET} AS CHAR) FROM sete_tried"), (), "reading the default").await?;
    let value: Option<String> = get(&row, 0)?;
    Ok(Ok(value.map_or("NULL".to_string(), |value| literal(&value))))
}

/// A value that an insert may leave in the old column when nobody reads it any more. None for types that take no such default.
pub(super) fn harmless(type_name: &str, mariadb: bool) -> Option<String> {
    Some(match type_word(type_name).as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" | "float" | "double" => "0".to_string(),
        "char" | "varchar" | "set" | "binary" | "varbinary" => "''".to_string(),
        "date" => "'1970-01-01'".to_string(),
        "datetime" => "'1970-01-01 00:00:00'".to_string(),
        "timestamp" => "'1970-01-02 00:00:00'".to_string(),
        "time" => "'00:00:00'".to_string(),
        "year" => "'1970'".to_string(),
        "bit" => "b'0'".to_string(),
        // Its first member.
        "enum" => format!("'{}'", type_name.split_once("('")?.1.split_once("'")?.0),
        // MySQL takes them as an expression only.
        "tinytext" | "text" | "mediumtext" | "longtext" | "tinyblob" | "blob" | "mediumblob" | "longblob" => if mariadb { "''" } else { "('')" }.to_string(),
        _ => return None,
    })
}
