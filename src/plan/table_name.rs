//! The name of a table, as a plan writes it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::fault::shown;

/// `schema.table` or `table`, each part exactly as the catalog has it: unquoted parts are not folded to lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableName {
    pub schema: Option<String>,
    pub name: String,
}

impl TableName {
    /// Reads one or two parts, each of which may be in double quotes (`"Order"."user"`, a quote inside doubled).
    /// The error goes on after the key that holds the name.
    pub fn parse(text: &str) -> Result<TableName, String> {
        let wrong = |why: &str| Err(format!("is not a table's name, {why}: {}", shown(text)));
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = match rest.strip_prefix('"') {
                Some(quoted) => match unquote(quoted) {
                    Some(read) => read,
                    None => return wrong("a quote is not closed"),
                },
                None => {
                    let end = rest.find('.').unwrap_or(rest.len());
                    (rest[..end].to_owned(), &rest[end..])
                }
            };
            if part.is_empty() {
                return wrong("a part is empty");
            }
            if !rest.starts_with('"') && part.contains(|c: char| c.is_whitespace() || c == '"' || c == ';') {
                return wrong("a part needs double quotes");
            }
            parts.push(part);
            match (after.is_empty(), after.strip_prefix('.')) {
                (true, _) => break,
                (_, Some(next)) => rest = next,
                _ => return wrong("a dot is missing after a quoted part"),
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, _) => Ok(TableName { schema: None, name }),
            (Some(schema), Some(name), None) => Ok(TableName { schema: Some(schema), name }),
            _ => wrong("it has more than two parts"),
        }
    }
}

/// The part up to its closing quote, and what comes after.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                part.push('"');
                rest = more;
            }
            None => return Some((part, rest)),
        }
    }
}

/// For people: nothing is quoted.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_literally() {
        for (text, schema, name) in [
            ("orders", None, "orders"),
            ("public.orders", Some("public"), "orders"),
            ("public.Orders", Some("public"), "Orders"),
            (r#""Order"."user""#, Some("Order"), "user"),
            (r#"shop."a.b ""c""""#, Some("shop"), r#"a.b "c""#),
            ("größe.maß", Some("größe"), "maß"),
        ] {
            assert_eq!(TableName::parse(text), Ok(TableName { schema: schema.map(Into::into), name: name.into() }));
        }
        assert_eq!(TableName::parse(r#""Order"."user""#).unwrap().to_string(), "Order.user");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", ".", "a.", ".a", "a..b", "a.b.c", "\"a", "\"\"", "\"a\"b", "a b", "a\"b", " a", "a;b"] {
            assert!(TableName::parse(text).is_err(), "{text}");
        }
    }
}
