//! The two directions of the mapping: their SQL, tried on a table of the same columns.

use super::frame::Frame;
use crate::change::Expr;
use crate::engine::catalog::Expression;
use crate::engine::mysql::conn::Session;
use crate::engine::mysql::sql::{Class, class, ident, is_whole, plain_column, type_word};
use crate::error::Result;

pub(super) async fn read(session: &mut Session, frame: &Frame, expr: &Expr, forward: bool) -> Result<Expression> {
    // What goes into a column is converted to its type, and under our sql_mode refused if it doesn't fit: no cast is needed.
    let text = match expr {
        Expr::Column(column) | Expr::Cast { column, .. } => ident(column),
        Expr::Sql(text) => text.clone(),
    };
    let refused = |message: String| Expression { sql: text.clone(), reads: Vec::new(), result: Err(message), assignable: false, safe: false };
    if !is_whole(&text) {
        return Ok(refused("it can't be taken apart: a quote or a comment is not closed".to_string()));
    }
    let reads = frame.named_in(&text);
    if let Err(message) = frame.make(session, &reads, None).await? {
        return Ok(refused(message));
    }
    let over = frame.over_tried(&text, &reads);
    let result = match frame.accepts(session, &format!("(\n{over}\n) IS NOT NULL")).await? {
        Ok(()) => frame.type_of_result(session, &over).await?,
        Err(message) => Err(message),
    };
    let (source, source_type, target_type) = if forward { (&frame.from, &frame.old_type, &frame.new_type) } else { (&frame.to, &frame.new_type, &frame.old_type) };
    let plain = plain_column(&text).is_some_and(|column| column == source.to_lowercase());
    let safe = match (source_type, target_type) {
        (Some(from), Some(to)) => plain && result.is_ok() && keeps_every_value(from, to),
        _ => false,
    };
    Ok(Expression { sql: text, reads, assignable: result.is_ok(), result, safe })
}

/// Whether each value of one type goes into a column of the other as it is, whatever the session has set.
fn keeps_every_value(from: &str, to: &str) -> bool {
    if from == to {
        return true;
    }
    let length = |ty: &str| ty.split_once('(').and_then(|(_, rest)| rest.split(')').next()?.parse::<u64>().ok());
    let unsigned = |ty: &str| ty.contains("unsigned");
    match (integer_bits(from), integer_bits(to)) {
        (Some(a), Some(b)) => match (unsigned(from), unsigned(to)) {
            (true, false) => a < b,
            (false, true) => false,
            _ => a <= b,
        },
        (None, None) if class(from) == Class::Text && class(to) == Class::Text => {
            // An ENUM's members are a limit too, and a wider character set is needed for a wider text.
            let same_charset = charset(from) == charset(to) || charset(to) == "utf8mb4";
            type_word(from) == "varchar" && type_word(to) == "varchar" && same_charset && length(from).zip(length(to)).is_some_and(|(a, b)| a <= b)
        }
        _ => false,
    }
}

fn charset(type_name: &str) -> &str {
    type_name.split_once(" CHARACTER SET ").and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or_default()
}

fn integer_bits(type_name: &str) -> Option<u32> {
    Some(match type_word(type_name).as_str() {
        "tinyint" => 8,
        "smallint" => 16,
        "mediumint" => 24,
        "int" => 32,
        "bigint" => 64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::keeps_every_value;

    #[test]
    fn only_what_keeps_every_value_is_safe() {
        for (from, to) in [
            ("int", "bigint"),
            ("int unsigned", "bigint"),
            ("int(11)", "bigint(20)"),
            ("varchar(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci", "varchar(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        ] {
            assert!(keeps_every_value(from, to), "{from} {to}");
        }
        for (from, to) in [
            ("bigint", "int"),
            ("int", "bigint unsigned"),
            ("varchar(20)", "enum('a')"),
            ("varchar(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "varchar(30) CHARACTER SET latin1 COLLATE latin1_bin"),
            ("timestamp", "datetime"),
            ("decimal(10,2)", "decimal(12,4)"),
        ] {
            assert!(!keeps_every_value(from, to), "{from} {to}");
        }
    }
}
