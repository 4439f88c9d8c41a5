//! CHECKs and foreign keys of the table, read from its own text, and foreign keys of others that point at it.

use crate::engine::catalog::{Cascade, Constraint};
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::sql::{Class, class, ident, names_in, type_word};
use crate::error::Result;
use crate::plan::TableName;

pub(super) struct Constraints {
    /// Name and `CHECK (…)`.
    checks: Vec<(String, String)>,
    keys: Vec<ForeignKey>,
    /// Foreign keys of other tables: the name, and our column that they point at.
    pub incoming: Vec<(String, String)>,
}

struct ForeignKey {
    name: String,
    definition: String,
    columns: Vec<String>,
}

pub(super) async fn read(session: &mut Session, name: &TableName, text: &str) -> Result<Constraints> {
    let query = "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME, ' ', CONSTRAINT_NAME), REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE \
                 WHERE REFERENCED_TABLE_SCHEMA = ? AND REFERENCED_TABLE_NAME = ? ORDER BY 1";
    let rows = session.query(query, (name.schema.as_deref().unwrap_or_default(), &name.name), "reading foreign keys to the table").await?;
    let incoming = rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<Vec<_>>>()?;
    let mut out = Constraints { checks: Vec::new(), keys: Vec::new(), incoming };
    for line in text.lines() {
        let line = line.strip_suffix(',').unwrap_or(line);
        let Some((name, definition)) = line.strip_prefix("  CONSTRAINT `").and_then(quoted) else {
            // A CHECK of MariaDB's may stand with its column, and has its name.
            if let Some((column, rest)) = line.strip_prefix("  `").and_then(quoted)
                && let Some(at) = rest.find(" CHECK (")
                && !rest[at..].starts_with(" CHECK (json_valid(")
            {
                out.checks.push((column, rest[at + 1..].to_string()));
            }
            continue;
        };
        if definition.starts_with("CHECK ") {
            out.checks.push((name, definition.to_string()));
        } else if let Some(list) = definition.strip_prefix("FOREIGN KEY (").and_then(|rest| rest.split_once(") REFERENCES ")) {
            let columns = list.0.split(", ").filter_map(|c| quoted(c.strip_prefix('`')?)).map(|(column, _)| column).collect();
            out.keys.push(ForeignKey { name, definition: definition.to_string(), columns });
        }
    }
    Ok(out)
}

/// A quoted name, of which the first quote is gone already, and what comes after it and a blank.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut at = 0;
    loop {
        at += text.get(at..)?.find('`')?;
        if !text[at + 1..].starts_with('`') {
            return Some((text[..at].replace("``", "`"), text[at + 1..].trim_start()));
        }
        at += 2;
    }
}

impl Constraints {
    /// CHECKs that mention the column. None can be added online, on either server.
    pub fn checks_over(&self, column: &str) -> Vec<Constraint> {
        let over = self.checks.iter().filter(|(_, definition)| names_in(definition).contains(&column.to_lowercase()));
        let reason = "the server adds a CHECK by a copy of the table only, with all writes waiting";
        over.map(|(name, definition)| Constraint { name: name.clone(), definition: definition.clone(), rewritten: Err(reason.to_string()) }).collect()
    }

    /// Foreign keys from the old column, and the same from the new one.
    pub fn foreign_keys_over(&self, old: &str, new: &str, old_type: Option<&str>, new_type: &str) -> Vec<Constraint> {
        let over = self.keys.iter().filter(|key| key.columns.iter().any(|c| c == old));
        over.map(|key| {
            let rewritten = match old_type {
                Some(old_type) if comparable(old_type, new_type) => Ok(renamed(key, old, new)),
                _ => Err(format!("the referenced column is of another type than {new_type}, which the server refuses")),
            };
            Constraint { name: key.name.clone(), definition: key.definition.clone(), rewritten }
        })
        .collect()
    }

    /// Those by which the server writes columns of this table itself.
    pub fn cascades(&self) -> Vec<Cascade> {
        let mut out = Vec::new();
        for key in &self.keys {
            let rules = ["ON DELETE SET NULL", "ON DELETE SET DEFAULT", "ON UPDATE CASCADE", "ON UPDATE SET NULL", "ON UPDATE SET DEFAULT"];
            let rule = rules.iter().filter(|rule| key.definition.contains(**rule)).copied().collect::<Vec<_>>().join(" ");
            if !rule.is_empty() {
                out.push(Cascade { name: key.name.clone(), columns: key.columns.clone(), rule });
            }
        }
        out
    }
}

fn renamed(key: &ForeignKey, old: &str, new: &str) -> String {
    let columns: Vec<String> = key.columns.iter().map(|c| ident(if c == old { new } else { c })).collect();
    let rest = key.definition.split_once(") REFERENCES ").map(|(_, rest)| rest).unwrap_or_default();
    format!("FOREIGN KEY ({}) REFERENCES {rest}", columns.join(", "))
}

/// Whether a foreign key can lead from either type to the same column: numbers of one size and sign, texts of one collation.
fn comparable(a: &str, b: &str) -> bool {
    let collation = |ty: &str| ty.split_once(" COLLATE ").map(|(_, c)| c.to_string());
    match class(a) {
        Class::Exact => type_word(a) == type_word(b) && a.contains("unsigned") == b.contains("unsigned"),
        Class::Text => class(b) == Class::Text && collation(a) == collation(b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_up_to_their_closing_quote() {
        assert_eq!(quoted("a``b` CHECK (1)"), Some(("a`b".to_string(), "CHECK (1)")));
        assert_eq!(quoted("a``"), None);
    }
}
