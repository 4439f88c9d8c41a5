//! The name of a table, as a plan writes it.

use super::TableName;

impl TableName {
    /// Reads one or two parts, each of which may be in double quotes. Unquoted parts are taken as the catalog has them.
    pub fn parse(text: &str) -> Result<TableName, String> {
        let wrong = || format!("`{text}` is not a table's name: write `schema.table` or `table`, parts with odd characters in double quotes");
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = match rest.strip_prefix('"') {
                Some(quoted) => unquote(quoted).ok_or_else(wrong)?,
                None => {
                    let end = rest.find('.').unwrap_or(rest.len());
                    (rest[..end].to_string(), &rest[end..])
                }
            };
            if part.is_empty() {
                return Err(wrong());
            }
            parts.push(part);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return Err(wrong()),
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, _) => Ok(TableName { schema: None, name }),
            (Some(schema), Some(name), None) => Ok(TableName { schema: Some(schema), name }),
            _ => Err(wrong()),
        }
    }
}

/// The part up to its closing quote, and what comes after.
fn unquote(text: &str) -> Option<(String, &str)> {
    let (mut part, mut rest) = (String::new(), text);
    loop {
        let end = rest.find('"')?;
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        let Some(more) = rest.strip_prefix('"') else { return Some((part, rest)) };
        part.push('"');
        rest = more;
    }
}
