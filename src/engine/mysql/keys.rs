//! Places in a table by its clustered key: how a key's values are shown, bound and compared, each in the order of the index.

use mysql_async::Value;

use super::sql::{ident, type_word};
use crate::engine::catalog::Key;
use crate::engine::{Chunk, Place};
use crate::error::{Code, Error, Result};

/// How the values of one key column travel as text.
enum Kind {
    /// Whole numbers; enums, sets and bits by their number, which is what their index is sorted by.
    Whole {
        by_number: bool,
    },
    Float,
    /// Text in the column's own character set and collation, as hex digits.
    Text {
        charset: String,
        collation: String,
    },
    Binary,
    /// As it is: MySQL 9.7 takes `CAST(? AS TIME(6))` for another value in some conditions of a prepared statement.
    Time,
    /// What the server reads from text by a cast: decimals, uuids.
    Cast(String),
}

/// The word after `name` in a type: the collation of `varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`.
fn word_after(type_name: &str, name: &str) -> Option<String> {
    let at = type_name.to_uppercase().rfind(name)?;
    type_name.get(at + name.len()..)?.split_whitespace().next().map(str::to_owned)
}

fn kind(type_name: &str) -> Kind {
    match type_word(type_name).as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "year" => Kind::Whole { by_number: false },
        "enum" | "set" | "bit" => Kind::Whole { by_number: true },
        "float" | "double" => Kind::Float,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => {
            match (word_after(type_name, "CHARACTER SET "), word_after(type_name, "COLLATE ")) {
                (Some(charset), Some(collation)) => Kind::Text { charset, collation },
                _ => Kind::Cast("CHAR".into()),
            }
        }
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Kind::Binary,
        "decimal" => Kind::Cast("DECIMAL(65,30)".into()),
        "date" | "time" | "datetime" | "timestamp" => Kind::Time,
        word => Kind::Cast(word.to_uppercase()),
    }
}

/// A column as the text that stands for its value in a [`Place`].
fn shown(name: &str, type_name: &str) -> String {
    let column = ident(name);
    match kind(type_name) {
        Kind::Whole { by_number: false } | Kind::Time | Kind::Cast(_) => format!("CAST({column} AS CHAR)"),
        Kind::Whole { by_number: true } => format!("CAST({column} + 0 AS CHAR)"),
        Kind::Float => format!("CAST({column} + 0e0 AS CHAR)"),
        Kind::Text { .. } | Kind::Binary => format!("HEX({column})"),
    }
}

/// What a parameter must go through to be compared as the index compares.
fn placeholder(type_name: &str) -> String {
    match kind(type_name) {
        Kind::Whole { .. } | Kind::Float | Kind::Time => "?".to_string(),
        Kind::Text { charset, collation } => format!("CONVERT(UNHEX(?) USING {charset}) COLLATE {collation}"),
        Kind::Binary => "UNHEX(?)".to_string(),
        Kind::Cast(to) => format!("CAST(? AS {to})"),
    }
}

fn value(type_name: &str, text: &str) -> Result<Value> {
    let wrong = || Error::new(Code::Internal, format!("{text} is no value of a key of type {type_name}"));
    Ok(match kind(type_name) {
        Kind::Whole { .. } => match text.parse::<i64>() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::UInt(text.parse().map_err(|_| wrong())?),
        },
        Kind::Float => Value::Double(text.parse().map_err(|_| wrong())?),
        _ => Value::from(text),
    })
}

/// A condition with its parameters.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    pub sql: String,
    pub params: Vec<Value>,
}

impl Condition {
    /// Both hold.
    pub fn and(mut self, other: Condition) -> Condition {
        self.sql = format!("{} AND {}", self.sql, other.sql);
        self.params.extend(other.params);
        self
    }
}

/// `a, b`
pub fn columns(key: &Key) -> String {
    key.columns.iter().map(|(name, _)| ident(name)).collect::<Vec<_>>().join(", ")
}

/// One text for each column.
pub fn shown_columns(key: &Key) -> Vec<String> {
    key.columns.iter().map(|(name, type_name)| shown(name, type_name)).collect()
}

/// What names a row to a person.
pub fn row_name(key: &Key) -> String {
    let part = |(name, type_name): &(String, String)| match kind(type_name) {
        Kind::Binary => format!("CONCAT('0x', HEX({}))", ident(name)),
        _ => format!("CONVERT({} USING utf8mb4)", ident(name)),
    };
    let parts: Vec<String> = key.columns.iter().map(part).collect();
    if parts.len() == 1 { parts[0].clone() } else { format!("CONCAT('(', CONCAT_WS(', ', {}), ')')", parts.join(", ")) }
}

/// The index itself: another one might be thought cheaper, and its order is another.
pub fn force(key: &Key) -> String {
    format!("FORCE INDEX ({})", ident(&key.name))
}

/// The key comes after `values` (or before them), as the index sorts. Written out, since the server finds no range in a
/// comparison of rows.
fn beyond(key: &Key, values: &[String], operator: &str, or_equal: bool) -> Result<Condition> {
    let mut condition = Condition::default();
    let last = key.columns.len() - 1;
    let sql = beyond_from(key, values, 0, last, operator, or_equal, &mut condition.params)?;
    // The first column's own bound, by which the range is found.
    condition.sql = if last == 0 {
        sql
    } else {
        let (name, type_name) = &key.columns[0];
        condition.params.insert(0, value(type_name, &values[0])?);
        format!("{} {operator}= {} AND ({sql})", ident(name), placeholder(type_name))
    };
    Ok(condition)
}

fn beyond_from(key: &Key, values: &[String], at: usize, last: usize, operator: &str, or_equal: bool, params: &mut Vec<Value>) -> Result<String> {
    let ((name, type_name), text) = (&key.columns[at], &values[at]);
    let (column, parameter) = (ident(name), placeholder(type_name));
    params.push(value(type_name, text)?);
    if at == last {
        let equal = if or_equal { "=" } else { "" };
        return Ok(format!("{column} {operator}{equal} {parameter}"));
    }
    params.push(value(type_name, text)?);
    let rest = beyond_from(key, values, at + 1, last, operator, or_equal, params)?;
    Ok(format!("{column} {operator} {parameter} OR ({column} = {parameter} AND ({rest}))"))
}

/// From after `from` up to `to`, itself included or not; None is the table's end.
pub fn between(key: &Key, from: Option<&[String]>, to: Option<&[String]>, to_included: bool) -> Result<Condition> {
    let fits = |values: &[String]| values.len() == key.columns.len();
    if !from.is_none_or(fits) || !to.is_none_or(fits) {
        return Err(Error::new(Code::TargetChanged, "the table's key is another than when the walk began"));
    }
    let lower = from.map(|values| beyond(key, values, ">", false)).transpose()?;
    let upper = to.map(|values| beyond(key, values, "<", to_included)).transpose()?;
    Ok(match (lower, upper) {
        (Some(lower), Some(upper)) => lower.and(upper),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => Condition { sql: "TRUE".into(), params: Vec::new() },
    })
}

/// The rows of a chunk.
pub fn within(key: &Key, chunk: &Chunk) -> Result<Condition> {
    match (&chunk.from, &chunk.to) {
        (Place::Key(from), Place::Key(to)) => between(key, from.as_deref(), to.as_deref(), true),
        _ => Err(Error::new(Code::Internal, "a chunk of this server goes by key, not by page")),
    }
}

/// Exactly these rows.
pub fn one_of(key: &Key, rows: &[Vec<String>]) -> Result<Condition> {
    let one = format!("({})", key.columns.iter().map(|(_, type_name)| placeholder(type_name)).collect::<Vec<_>>().join(", "));
    let mut params = Vec::with_capacity(rows.len() * key.columns.len());
    for row in rows {
        for ((_, type_name), text) in key.columns.iter().zip(row) {
            params.push(value(type_name, text)?);
        }
    }
    Ok(Condition { sql: format!("({}) IN ({})", columns(key), vec![one; rows.len()].join(", ")), params })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(columns: &[(&str, &str)]) -> Key {
        Key { name: "PRIMARY".into(), primary: true, columns: columns.iter().map(|(n, t)| ((*n).into(), (*t).into())).collect() }
    }

    #[test]
    fn ranges_are_written_out_column_by_column() {
        let one = key(&[("id", "bigint unsigned")]);
        let found = between(&one, Some(&["5".into()]), Some(&["18446744073709551615".into()]), true).unwrap();
        assert_eq!(found.sql, "`id` > ? AND `id` <= ?");
        assert_eq!(found.params, [Value::Int(5), Value::UInt(u64::MAX)]);
        let two = key(&[("a", "int"), ("b", "varchar(9) CHARACTER SET latin1 COLLATE latin1_bin")]);
        let found = between(&two, Some(&["5".into(), "41".into()]), None, true).unwrap();
        assert_eq!(found.sql, "`a` >= ? AND (`a` > ? OR (`a` = ? AND (`b` > CONVERT(UNHEX(?) USING latin1) COLLATE latin1_bin)))");
        assert_eq!(found.params.len(), 4);
        assert_eq!(between(&two, None, None, true).unwrap().sql, "TRUE");
        assert!(between(&two, Some(&["5".into()]), None, true).is_err());
    }

    #[test]
    fn values_are_shown_so_that_they_come_back() {
        assert_eq!(shown("a", "enum('x','y')"), "CAST(`a` + 0 AS CHAR)");
        assert_eq!(shown("a", "binary(16)"), "HEX(`a`)");
        assert_eq!(placeholder("decimal(5,2)"), "CAST(? AS DECIMAL(65,30))");
        assert_eq!(placeholder("uuid"), "CAST(? AS UUID)");
        assert!(value("int", "x").is_err());
    }
}
