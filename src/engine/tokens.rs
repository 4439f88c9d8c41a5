//! A user's expression taken apart, alike for both engines: we must tell a name from a string, not understand the SQL.

use std::ops::Range;

use sqlparser::dialect::Dialect;
use sqlparser::tokenizer::{Location, Token, Tokenizer};

/// The tokens of an expression with the bytes each stands at, without white space and comments. None when the text can't be taken apart.
pub fn tokens(dialect: &dyn Dialect, sql: &str) -> Option<Vec<(Token, Range<usize>)>> {
    let spans = Tokenizer::new(dialect, sql).with_unescape(false).tokenize_with_location().ok()?;
    let lines: Vec<usize> = std::iter::once(0).chain(sql.match_indices('\n').map(|(i, _)| i + 1)).collect();
    let byte = |at: Location| {
        let start = *lines.get(usize::try_from(at.line).ok()?.checked_sub(1)?)?;
        let column = usize::try_from(at.column).ok()?.checked_sub(1)?;
        Some(start + sql[start..].chars().take(column).map(char::len_utf8).sum::<usize>())
    };
    let code = spans.into_iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    code.map(|t| Some((t.token, byte(t.span.start)?..byte(t.span.end)?))).collect()
}
