//! The old column's default, as the new column's.

use super::Reader;
use super::frame::Frame;
use super::types::Ty;
use crate::engine::catalog::Expression;
use crate::engine::postgres::sql::{self, ident, literal};
use crate::error::Result;

/// The new column's default, or why the old one can't be translated.
pub(super) async fn translate(
    reader: &Reader<'_>,
    frame: &Frame,
    default: &str,
    new_type: &Ty,
    forward: &Expression,
    mapped_by_user: bool,
) -> Result<std::result::Result<String, String>> {
    let same_type = frame.old_type.as_ref().is_some_and(|old| old.name == new_type.name);
    if !mapped_by_user && same_type {
        return Ok(Ok(default.to_string()));
    }
    // A sequence's next value goes into every integer as it is.
    let integer = matches!(new_type.name.as_str(), "smallint" | "integer" | "bigint" | "numeric");
    if default.starts_with("nextval(") && integer {
        return Ok(Ok(default.to_string()));
    }
    if !mapped_by_user {
        let cast = format!("({default})::{}", new_type.cast);
        let tried = reader.try_prepare(&frame.table, &format!("SELECT {cast}")).await?;
        return Ok(tried.map(|_| cast).map_err(|message| format!("the default {default} can't be cast to {}: {message}", new_type.name)));
    }
    if !sql::is_constant(default) {
        return Ok(Err(format!("the default {default} is not a constant, so `forward` can't be applied to it beforehand")));
    }
    if let Some(other) = forward.reads.iter().find(|column| **column != frame.from) {
        return Ok(Err(format!("`forward` reads {other} too, which a default can't")));
    }
    evaluate(reader, frame, default, new_type, forward).await
}

/// What `forward` makes of a constant, as a constant.
async fn evaluate(
    reader: &Reader<'_>,
    frame: &Frame,
    default: &str,
    new_type: &Ty,
    forward: &Expression,
) -> Result<std::result::Result<String, String>> {
    let old_type = frame.old_type.as_ref().map(|ty| format!("::{}", ty.name)).unwrap_or_default();
    let row = frame.named(&format!("SELECT ({default}){old_type} AS {}", ident(&frame.from)));
    let query = format!("SELECT (\n{}\n)::text FROM {row}", forward.sql);
    let value = reader.try_under(&sql::search_path(&frame.table), async || reader.client.query_one(&query, &[]).await).await?;
    Ok(match value {
        Ok(row) => match row.get::<_, Option<String>>(0) {
            Some(value) => Ok(format!("{}::{}", literal(&value).trim_start(), new_type.cast)),
            None => Ok(format!("NULL::{}", new_type.cast)),
        },
        Err(message) => Err(format!("`forward` refuses the default {default}: {message}")),
    })
}
