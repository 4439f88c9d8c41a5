//! PostgreSQL text: quoting, and the little that must be understood of a user's expression.

use std::ops::Range;

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

use crate::engine::tokens;
use crate::plan::TableName;

/// An identifier. The only place where one is quoted.
pub fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub fn qualified(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", ident(schema), ident(&table.name)),
        None => ident(&table.name),
    }
}

/// Where the names in a plan's expressions are looked up: the table's schema, then public. pg_temp comes last, since it
/// would otherwise come first and let any role put its own types in front.
pub fn search_path(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}, public, pg_temp", ident(schema)),
        None => "public, pg_temp".to_string(),
    }
}

/// A string constant, for the few statements that take no parameters (DDL, function bodies).
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// A dollar-quoted text, with a tag that it doesn't hold.
pub fn dollar(body: &str) -> String {
    let tag = (0..).map(|n| format!("$sete{n}$")).find(|tag| !body.contains(tag.as_str())).unwrap_or_default();
    format!("{tag}{body}{tag}")
}

fn tokens(sql: &str) -> Option<Vec<(Token, Range<usize>)>> {
    tokens::tokens(&PostgreSqlDialect {}, sql)
}

/// The name that a word stands for: unquoted ones are folded to lower case.
fn name_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_some() => Some(word.value.replace("\"\"", "\"")),
        Token::Word(word) => Some(word.value.to_lowercase()),
        _ => None,
    }
}

/// The words of an expression that could be column names: a superset of the columns it reads.
pub fn names_in(sql: &str) -> Vec<String> {
    tokens(sql).unwrap_or_default().iter().filter_map(|(token, _)| name_of(token)).collect()
}

/// The column, if the expression is nothing but a column or one cast of it.
pub fn column_or_cast(sql: &str) -> Option<String> {
    let tokens: Vec<Token> = tokens(sql)?.into_iter().map(|(token, _)| token).collect();
    let name = name_of(tokens.first()?)?;
    let is_type = |rest: &[Token]| {
        rest.iter().all(|t| matches!(t, Token::Word(_) | Token::Period | Token::LParen | Token::RParen | Token::Comma | Token::Number(..)))
    };
    match &tokens[1..] {
        [] => Some(name),
        [Token::DoubleColon, rest @ ..] if !rest.is_empty() && is_type(rest) => Some(name),
        _ => None,
    }
}

/// Whether the expression is made of constants and casts alone: no column, no function call.
pub fn is_constant(sql: &str) -> bool {
    let Some(tokens) = tokens(sql) else { return false };
    let tokens: Vec<Token> = tokens.into_iter().map(|(token, _)| token).collect();
    let mut in_type = false;
    tokens.iter().enumerate().all(|(i, token)| {
        in_type = match token {
            Token::DoubleColon => true,
            Token::Word(_) | Token::Period | Token::LParen | Token::Number(..) | Token::LBracket | Token::RBracket => in_type,
            // Within a length or precision only: `numeric(10,2)`, `timestamp(3) with time zone`.
            Token::Comma => in_type && matches!(tokens.get(i + 1), Some(Token::Number(..))),
            Token::RParen => in_type && matches!(tokens[..i].last(), Some(Token::Number(..))),
            _ => false,
        };
        match token {
            Token::Word(_) if in_type => true,
            Token::Word(word) => match word.keyword {
                Keyword::TRUE | Keyword::FALSE | Keyword::NULL => true,
                Keyword::ARRAY => matches!(tokens.get(i + 1), Some(Token::LBracket)),
                _ => false,
            },
            Token::Number(..) | Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_) => true,
            Token::DoubleColon | Token::LParen | Token::RParen | Token::LBracket | Token::RBracket | Token::Comma | Token::Minus | Token::Period => {
                true
            }
            _ => false,
        }
    })
}

/// `sql` with columns renamed, by whole identifiers outside of strings. Function names and types keep theirs.
/// None when the text can't be taken apart.
pub fn rename_columns(sql: &str, names: &[(&str, &str)]) -> Option<String> {
    let tokens = tokens(sql)?;
    let mut out = String::with_capacity(sql.len());
    let mut copied = 0;
    for (i, (token, span)) in tokens.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| &tokens[i].0);
        let is_type = matches!(before, Some(Token::DoubleColon)) || matches!(before, Some(Token::Word(w)) if w.keyword == Keyword::AS);
        let is_qualifier = matches!(tokens.get(i + 1), Some((Token::LParen | Token::Period, _)));
        if is_type || is_qualifier {
            continue;
        }
        if let Some((_, to)) = name_of(token).and_then(|name| names.iter().find(|(from, _)| *from == name)) {
            out.push_str(&sql[copied..span.start]);
            out.push_str(&ident(to));
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
        assert_eq!(ident("a\"b"), "\"a\"\"b\"");
        assert_eq!(qualified(&TableName { schema: Some("tenant-1".into()), name: "Order".into() }), "\"tenant-1\".\"Order\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\b"), " E'a\\\\b'");
        assert_eq!(dollar("$sete0$"), "$sete1$$sete0$$sete1$");
    }

    #[test]
    fn columns_are_renamed_but_not_strings_types_or_functions() {
        for (sql, renamed) in [
            ("status::order_status", "\"s2\"::order_status"),
            ("date::date", "\"d2\"::date"),
            ("lower(status) || 'status'", "lower(\"s2\") || 'status'"),
            ("status(status)", "status(\"s2\")"),
            ("orders.status", "orders.\"s2\""),
            ("STATUS", "\"s2\""),
            ("\"Status\"", "\"Status\""),
            ("cast(status as status)", "cast(\"s2\" as status)"),
            (
                "CHECK (((status)::text = ANY ((ARRAY['a'::character varying, 'b'])::text[])))",
                "CHECK (((\"s2\")::text = ANY ((ARRAY['a'::character varying, 'b'])::text[])))",
            ),
            ("'é' || E'\\'status' ||\n status", "'é' || E'\\'status' ||\n \"s2\""),
            ("E'\\'status' || status", "E'\\'status' || \"s2\""),
            ("$x$status$x$ || status -- status", "$x$status$x$ || \"s2\" -- status"),
        ] {
            assert_eq!(rename_columns(sql, &[("status", "s2"), ("date", "d2")]).as_deref(), Some(renamed), "{sql}");
        }
        assert_eq!(rename_columns("a || b", &[("a", "b"), ("b", "a")]).as_deref(), Some("\"b\" || \"a\""));
    }

    #[test]
    fn constants_and_casts_are_told_from_the_rest() {
        for sql in [
            "'new'::character varying",
            "0",
            "(-1)",
            "true",
            "'{}'::jsonb",
            "'x'::character varying(10)",
            "ARRAY['a'::text]",
            "'a'::shop.\"Kind\"",
            "NULL::text",
        ] {
            assert!(is_constant(sql), "{sql}");
        }
        for sql in [
            "now()",
            "CURRENT_TIMESTAMP",
            "nextval('s'::regclass)",
            "status",
            "('now'::text)::date || x",
            "CURRENT_USER",
            "'a'::text || lower('B'::text)",
        ] {
            assert!(!is_constant(sql), "{sql}");
        }
        assert_eq!(column_or_cast(" Status -- as it is"), Some("status".into()));
        assert_eq!(column_or_cast("\"Status\"::numeric(10, 2)"), Some("Status".into()));
        for sql in ["lower(status)", "status::text::int", "status || 'x'", "1", "'status'"] {
            assert_eq!(column_or_cast(sql), None, "{sql}");
        }
    }
}
