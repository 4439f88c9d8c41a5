//! A temporary table that has the columns of the plan's table, so that expressions can be tried before a column exists.

use super::is_text;
use crate::engine::catalog::Column;
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::sql::{ident, replace_columns, type_word};
use crate::error::{Error, Result, Trouble};

/// Ours alone: a temporary table hides one of the same name in its session only.
const TRIED: &str = "sete_tried";
const RESULT: &str = "sete_result";

/// The table's columns under the plan's names: `from` holds the old values, whatever it is called at the moment.
pub(super) struct Frame {
    /// The table's own name, which may stand before a column.
    pub table: String,
    pub others: Vec<Column>,
    pub from: String,
    pub to: String,
    pub old_type: Option<String>,
    pub new_type: Option<String>,
}

/// The server's message about a statement that was only tried.
pub(super) type Tried<T> = std::result::Result<T, String>;

impl Frame {
    /// Columns of the table that a text names, under the names that the catalog has for them.
    pub fn named_in(&self, sql: &str) -> Vec<String> {
        let named = std::cell::RefCell::new(Vec::new());
        let replaced = replace_columns(sql, &self.table, |name| {
            let all = self.others.iter().map(|c| &c.name).chain([&self.from, &self.to]);
            if let Some(found) = all.into_iter().find(|c| c.to_lowercase() == name) {
                let mut named = named.borrow_mut();
                if !named.contains(found) {
                    named.push(found.clone());
                }
            }
            None
        });
        if replaced.is_some() { named.into_inner() } else { Vec::new() }
    }

    fn type_of(&self, column: &str) -> Option<&str> {
        if column == self.from {
            self.old_type.as_deref()
        } else if column == self.to {
            self.new_type.as_deref()
        } else {
            self.others.iter().find(|c| c.name == column).map(|c| c.type_name.as_str())
        }
    }

    /// Makes the table with these columns, plus one of another type that is to take a result.
    pub async fn make(&self, session: &mut Session, columns: &[String], target: Option<(&str, &str)>) -> Result<Tried<()>> {
        forget(session).await?;
        let mut defined: Vec<String> = columns.iter().filter_map(|c| Some(format!("{} {} NULL", ident(c), self.type_of(c)?))).collect();
        if let Some((name, ty)) = target {
            defined.push(format!("{} {ty} NULL", ident(name)));
        }
        if defined.is_empty() {
            defined.push("`sete_nothing` INT".to_string());
        }
        tried(session.batch(&format!("CREATE TEMPORARY TABLE {TRIED} ({}) ENGINE=InnoDB", defined.join(", ")), "trying the columns").await)
    }

    /// The expression with its columns told apart from anything else in the table of the try.
    pub fn over_tried(&self, sql: &str, columns: &[String]) -> String {
        let becomes = |name: &str| columns.iter().find(|c| c.to_lowercase() == name).map(|c| format!("{TRIED}.{}", ident(c)));
        replace_columns(sql, &self.table, becomes).unwrap_or_else(|| sql.to_string())
    }

    /// The type that a SELECT over the table gives.
    pub async fn type_of_result(&self, session: &mut Session, sql: &str) -> Result<Tried<String>> {
        let made = session.batch(&format!("CREATE TEMPORARY TABLE {RESULT} AS SELECT (\n{sql}\n) AS v FROM {TRIED} WHERE FALSE"), "trying an expression").await;
        if let Err(message) = tried(made)? {
            return Ok(Err(message));
        }
        let found = shown_type(session, RESULT).await?;
        Ok(Ok(found))
    }

    /// Whether a condition can stand in WHERE: no aggregates, no window functions.
    pub async fn accepts(&self, session: &mut Session, condition: &str) -> Result<Tried<()>> {
        tried(session.query(&format!("EXPLAIN SELECT 1 FROM {TRIED} WHERE {condition}"), (), "trying an expression").await.map(|_| ()))
    }
}

/// Removes what a try has left.
pub(super) async fn forget(session: &mut Session) -> Result<()> {
    session.batch(&format!("DROP TEMPORARY TABLE IF EXISTS {TRIED}, {RESULT}"), "removing our temporary tables").await
}

/// A refusal of a statement that was only tried is an answer; that we lack the right to try is not.
pub(super) fn tried<T>(result: Result<T>) -> Result<Tried<T>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Database { trouble, message, .. }) if !trouble.passes() && !matches!(trouble, Trouble::Rights | Trouble::ReadOnly) => Ok(Err(message)),
        Err(e) => Err(e),
    }
}

/// The type of a temporary table's only column, complete.
async fn shown_type(session: &mut Session, table: &str) -> Result<String> {
    let row = session.one(&format!("SHOW FULL COLUMNS FROM {table}"), (), "reading a type").await?;
    let (type_name, collation): (String, Option<String>) = (get(&row, 1)?, get(&row, 2)?);
    complete(session, type_name, collation).await
}

async fn complete(session: &mut Session, type_name: String, collation: Option<String>) -> Result<String> {
    let Some(collation) = collation.filter(|_| is_text(&type_name)) else { return Ok(type_name) };
    let query = "SELECT CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE COLLATION_NAME = ?";
    let row = session.query(query, (&collation,), "reading a collation").await?;
    // MariaDB names some of them without the character set in front.
    let charset = row.first().map(|row| get::<String>(row, 0)).transpose()?.unwrap_or_else(|| collation.split('_').next().unwrap_or_default().to_string());
    Ok(format!("{type_name} CHARACTER SET {charset} COLLATE {collation}"))
}

/// A type by the text that a plan has for it, as the server writes it. None when no column can be of it. A text without a
/// collation gets the old column's, or else the table's.
pub(super) async fn named(session: &mut Session, text: &str, old_type: Option<&str>, table_collation: &str) -> Result<Option<String>> {
    let lower = text.to_lowercase();
    let says = ["collate", "character set", "charset", " binary", "ascii", "unicode"].iter().any(|word| lower.contains(word));
    let inherited = old_type.and_then(|ty| ty.split_once(" COLLATE ")).map(|(_, collation)| collation.to_string()).unwrap_or_else(|| table_collation.to_string());
    forget(session).await?;
    let options = if says || inherited.is_empty() { String::new() } else { format!(" COLLATE={inherited}") };
    let made = session.batch(&format!("CREATE TEMPORARY TABLE {TRIED} (v {text} NULL) ENGINE=InnoDB{options}"), "trying the new type").await;
    if tried(made)?.is_err() {
        return Ok(None);
    }
    let found = shown_type(session, TRIED).await?;
    let json = type_word(text) == "json";
    Ok(Some(if json { "json".to_string() } else { found }))
}
