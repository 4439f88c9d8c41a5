//! MySQL and MariaDB text: quoting, exact comparison, and the little that must be understood of a user's expression.

use std::ops::Range;

use sqlparser::dialect::MySqlDialect;
use sqlparser::tokenizer::Token;

use crate::engine::catalog::Column;
use crate::engine::tokens;
use crate::plan::TableName;

/// An identifier. The only place where one is quoted.
pub fn ident(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

pub fn qualified(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", ident(schema), ident(&table.name)),
        None => ident(&table.name),
    }
}

/// A string constant, for the few statements that take no parameters (DDL, trigger bodies). NO_BACKSLASH_ESCAPES is off in our sessions.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// What kind of value a type holds, as far as its equality and its defaults go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Whole and decimal numbers, dates and times, years: `<=>` is exact between two values of one type.
    Exact,
    /// -0 and 0 are equal, and so may be two texts.
    Float,
    /// Compared under a collation.
    Text,
    Binary,
    Json,
    Bit,
    /// Points, polygons: whatever else there is.
    Other,
}

/// The first word of a type, in lower case: `varchar` of `varchar(20) CHARACTER SET …`.
pub fn type_word(type_name: &str) -> String {
    type_name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>().to_lowercase()
}

pub fn class(type_name: &str) -> Class {
    match type_word(type_name).as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" | "date" | "time" | "datetime" | "timestamp" | "year" => Class::Exact,
        "float" | "double" => Class::Float,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum" | "set" => Class::Text,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" | "uuid" | "inet4" | "inet6" => Class::Binary,
        "json" => Class::Json,
        "bit" => Class::Bit,
        _ => Class::Other,
    }
}

/// Whether two values of a column's type differ, exactly: by bytes where the type's own equality is lax. Never NULL.
pub fn differ(a: &str, b: &str, column: &Column) -> String {
    match class(&column.type_name) {
        Class::Exact | Class::Bit => format!("NOT ({a} <=> {b})"),
        // As text the server writes a document in one way only.
        Class::Json => format!("NOT (CAST(CAST({a} AS CHAR) AS BINARY) <=> CAST(CAST({b} AS CHAR) AS BINARY))"),
        // As text it has fewer digits than it has, and by value -0 is 0.
        Class::Float => format!("(NOT ({a} <=> {b}) OR NOT (CAST({a} AS BINARY) <=> CAST({b} AS BINARY)))"),
        Class::Text | Class::Binary | Class::Other => format!("NOT (CAST({a} AS BINARY) <=> CAST({b} AS BINARY))"),
    }
}

pub(super) fn tokens(sql: &str) -> Option<Vec<(Token, Range<usize>)>> {
    tokens::tokens(&MySqlDialect {}, sql)
}

/// The name that a word stands for. Columns' names are the same in any case.
fn name_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_some() => Some(word.value.replace("``", "`").to_lowercase()),
        Token::Word(word) => Some(word.value.to_lowercase()),
        _ => None,
    }
}

fn is_bare(token: &Token, words: &[&str]) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && words.contains(&word.value.to_uppercase().as_str()))
}

/// Whether a text can be taken apart at all: no quote or comment is left open.
pub fn is_whole(sql: &str) -> bool {
    tokens(sql).is_some()
}

/// The words of a text that could be names, in lower case: a superset of the columns it reads.
pub fn names_in(sql: &str) -> Vec<String> {
    tokens(sql).unwrap_or_default().iter().filter_map(|(token, _)| name_of(token)).collect()
}

/// The column, in lower case, if the expression is nothing but a column.
pub fn plain_column(sql: &str) -> Option<String> {
    match tokens(sql)?.as_slice() {
        [(token, _)] => name_of(token),
        _ => None,
    }
}

/// Whether the expression is made of constants alone.
pub fn is_constant(sql: &str) -> bool {
    let Some(tokens) = tokens(sql) else { return false };
    tokens.iter().all(|(token, _)| match token {
        Token::Word(word) => {
            word.quote_style.is_none() && (matches!(word.value.to_uppercase().as_str(), "NULL" | "TRUE" | "FALSE") || word.value.starts_with('_'))
        }
        Token::Number(..) | Token::SingleQuotedString(_) | Token::DoubleQuotedString(_) | Token::HexStringLiteral(_) => true,
        Token::SingleQuotedByteStringLiteral(_) | Token::Minus | Token::Plus | Token::LParen | Token::RParen => true,
        _ => false,
    })
}

const UNITS: &[&str] = &[
    "MICROSECOND",
    "SECOND",
    "MINUTE",
    "HOUR",
    "DAY",
    "WEEK",
    "MONTH",
    "QUARTER",
    "YEAR",
    "SECOND_MICROSECOND",
    "MINUTE_MICROSECOND",
    "MINUTE_SECOND",
    "HOUR_MICROSECOND",
    "HOUR_SECOND",
    "HOUR_MINUTE",
    "DAY_MICROSECOND",
    "DAY_SECOND",
    "DAY_MINUTE",
    "DAY_HOUR",
    "YEAR_MONTH",
];
const TYPES: &[&str] = &[
    "BINARY", "CHAR", "DATE", "DATETIME", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTEGER", "JSON", "NCHAR", "REAL", "SIGNED", "TIME", "UNSIGNED",
    "YEAR",
];

/// `sql` with columns exchanged for other text, by whole identifiers outside of strings: what `becomes` gives for the name in
/// lower case. Functions, types, units and aliases stay. A name qualified by the table's own loses the qualifier. None when the
/// text can't be taken apart.
pub fn replace_columns(sql: &str, table: &str, becomes: impl Fn(&str) -> Option<String>) -> Option<String> {
    let tokens = tokens(sql)?;
    let mut out = String::with_capacity(sql.len());
    let mut copied = 0;
    // For each open parenthesis the word before it, and whether an INTERVAL was seen inside.
    let mut open: Vec<(String, bool)> = vec![(String::new(), false)];
    for (i, (token, span)) in tokens.iter().enumerate() {
        let before = |n: usize| i.checked_sub(n).map(|i| &tokens[i].0);
        let after = tokens.get(i + 1).map(|(token, _)| token);
        match token {
            Token::LParen => open.push((before(1).and_then(name_of).unwrap_or_default(), false)),
            Token::RParen if open.len() > 1 => drop(open.pop()),
            _ => {}
        }
        let Some(name) = name_of(token) else { continue };
        let bare = matches!(token, Token::Word(word) if word.quote_style.is_none());
        let Some((function, interval)) = open.last_mut() else { continue };
        if bare && name == "interval" {
            *interval = true;
        }
        let is_unit = is_bare(token, UNITS)
            && (*interval && !before(1).is_some_and(|t| is_bare(t, &["INTERVAL"]))
                || (matches!(function.as_str(), "extract" | "timestampadd" | "timestampdiff") && before(1) == Some(&Token::LParen)));
        if is_unit {
            *interval = false;
        }
        let is_type = is_bare(token, TYPES) && function == "convert" && before(1) == Some(&Token::Comma);
        let follows = before(1).is_some_and(|t| matches!(t, Token::AtSign) || is_bare(t, &["AS", "COLLATE", "USING", "CHARSET"]));
        let is_introducer = bare && name.starts_with('_') && matches!(after, Some(Token::SingleQuotedString(_) | Token::DoubleQuotedString(_)));
        if is_unit || is_type || follows || is_introducer || matches!(after, Some(Token::LParen | Token::Period)) {
            continue;
        }
        let start = if before(1) == Some(&Token::Period) {
            match before(2).and_then(name_of) {
                Some(qualifier) if qualifier == table.to_lowercase() && before(3) != Some(&Token::Period) => tokens[i - 2].1.start,
                _ => continue,
            }
        } else {
            span.start
        };
        if let Some(text) = becomes(&name) {
            out.push_str(&sql[copied..start]);
            out.push_str(&text);
            copied = span.end;
        }
    }
    out.push_str(&sql[copied..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_quoted() {
        assert_eq!(ident("a`b"), "`a``b`");
        assert_eq!(qualified(&TableName { schema: Some("tenant-1".into()), name: "Order".into() }), "`tenant-1`.`Order`");
        assert_eq!(literal("it's \\n"), "'it''s \\\\n'");
    }

    #[test]
    fn columns_are_replaced_but_not_strings_types_units_or_functions() {
        for (sql, replaced) in [
            ("Status", "NEW.`status`"),
            ("`STATUS`", "NEW.`status`"),
            ("orders.status + l.status", "NEW.`status` + l.status"),
            ("lower(status) || 'status'", "lower(NEW.`status`) || 'status'"),
            ("status(status)", "status(NEW.`status`)"),
            ("cast(status as date)", "cast(NEW.`status` as date)"),
            ("convert(date, date)", "convert(NEW.`date`, date)"),
            ("day + interval day day", "NEW.`day` + interval NEW.`day` day"),
            ("timestampdiff(day, day, date)", "timestampdiff(day, NEW.`day`, NEW.`date`)"),
            ("extract(day from day)", "extract(day from NEW.`day`)"),
            ("_latin1'status' # status\n + status", "_latin1'status' # status\n + NEW.`status`"),
            ("'it\\'s status', \"status\", status -- status", "'it\\'s status', \"status\", NEW.`status` -- status"),
            ("@status + status", "@status + NEW.`status`"),
            ("é + status", "é + NEW.`status`"),
        ] {
            let known = ["status", "date", "day"];
            let becomes = |name: &str| known.contains(&name).then(|| format!("NEW.{}", ident(name)));
            assert_eq!(replace_columns(sql, "orders", becomes).as_deref(), Some(replaced), "{sql}");
        }
        assert_eq!(replace_columns("'open", "orders", |_| None), None);
    }

    #[test]
    fn constants_are_told_from_the_rest() {
        for sql in ["'new'", "0", "-1.5", "NULL", "_utf8mb4'x'", "('')", "TRUE"] {
            assert!(is_constant(sql), "{sql}");
        }
        for sql in ["now()", "CURRENT_TIMESTAMP", "uuid()", "status", "`status`"] {
            assert!(!is_constant(sql), "{sql}");
        }
        assert_eq!(plain_column(" `Status` # as it is"), Some("status".into()));
        assert_eq!(plain_column("lower(status)"), None);
    }
}
