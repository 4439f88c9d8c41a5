//! What a conversion gives for each of some rows: tried in a temporary table with a column of the very type, so that the server
//! converts, cuts and refuses exactly as it would in the real one. Touches no row of the user's, fires no trigger.

use std::collections::HashMap;

use super::chunks::{key, key_of};
use super::conn::{Session, get};
use super::keys::{self, Condition, one_of};
use super::sql::{differ, ident, qualified};
use super::sync::expression;
use crate::engine::Side;
use crate::error::{Error, Result, Trouble};
use crate::resolve::Resolved;

/// Ours alone: it is seen by this session only.
const TABLE: &str = "`sete_trial`";

/// What became of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The column holds something else than the conversion gives.
    Differs { empty: bool },
    /// The conversion fails, with the server's words.
    Fails(String),
}

/// A conversion that is being tried.
pub struct Trial<'a> {
    r: &'a Resolved,
    side: Side,
    insert: String,
    found: String,
}

impl<'a> Trial<'a> {
    /// The conversion that gives `side` its value; `exists` says whether its column is there to compare with.
    pub async fn begin(session: &mut Session, r: &'a Resolved, side: Side, exists: bool) -> Result<Trial<'a>> {
        let (key, column) = (key(r)?, r.column(side));
        let places: Vec<String> = (0..key.columns.len()).map(|n| format!("k{n}")).collect();
        let definitions = places.iter().map(|place| format!("{place} LONGTEXT NOT NULL, ")).collect::<String>();
        // Not in a transaction that only reads, which may not make a table.
        session.batch(&format!("DROP TEMPORARY TABLE IF EXISTS {TABLE}"), "trying a conversion").await?;
        let create = format!(
            "CREATE TEMPORARY TABLE {TABLE} (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, {definitions}was {0} NULL, v {0} NULL) ENGINE = InnoDB \
             DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin",
            column.type_name
        );
        session.batch(&create, "trying a conversion").await?;
        let was = if exists { ident(&column.name) } else { "NULL".into() };
        let insert = format!(
            "INSERT INTO {TABLE} ({}, was, v) SELECT {}, {was}, (\n{}\n) FROM {} {} WHERE ",
            places.join(", "),
            keys::shown_columns(key).join(", "),
            expression(r, r.conversion_to(side), ""),
            qualified(&r.table),
            keys::force(key)
        );
        let found = format!("SELECT {}, was IS NULL FROM {TABLE} WHERE {}", places.join(", "), differ("was", "v", column));
        Ok(Trial { r, side, insert, found })
    }

    pub async fn end(self, session: &mut Session) -> Result<()> {
        session.batch(&format!("DROP TEMPORARY TABLE IF EXISTS {TABLE}"), "trying a conversion").await
    }

    /// Tries all rows that the condition names, in one go; None when one of them fails.
    async fn all(&self, session: &mut Session, rows: &Condition) -> Result<Result<HashMap<Vec<String>, Tried>, String>> {
        let done = session.execute(&format!("{}{}", self.insert, rows.sql), rows.params.clone(), "trying a conversion").await;
        match done {
            Ok(_) => {}
            Err(Error::Database { trouble: Trouble::BadData, message, .. }) => return Ok(Err(self.in_users_words(&message))),
            Err(e) => return Err(e),
        }
        if let Some(warning) = session.first_warning().await? {
            session.batch(&format!("DELETE FROM {TABLE}"), "trying a conversion").await?;
            return Ok(Err(self.in_users_words(&warning)));
        }
        let key = key(self.r)?;
        let mut tried = HashMap::new();
        for row in session.query(&self.found, (), "trying a conversion").await? {
            tried.insert(key_of(&row, 0, key)?, Tried::Differs { empty: get(&row, key.columns.len())? });
        }
        session.batch(&format!("DELETE FROM {TABLE}"), "trying a conversion").await?;
        Ok(Ok(tried))
    }

    /// The server names our column; the user knows another.
    fn in_users_words(&self, message: &str) -> String {
        let name = &self.r.column(self.side).name;
        let plain = message.replace("`sete_trial`.`v`", &ident(name)).replace("'v'", &format!("'{name}'"));
        plain.replace(" at row 1", "")
    }

    /// Tries the rows with these keys. Those that fail are found by halving. Only what is not the same is in the answer.
    pub async fn rows(&self, session: &mut Session, of: &[Vec<String>]) -> Result<HashMap<Vec<String>, Tried>> {
        let mut tried = HashMap::new();
        let mut parts = vec![of];
        while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
            match (self.all(session, &one_of(key(self.r)?, part)?).await?, part) {
                (Ok(found), _) => tried.extend(found),
                (Err(message), [only]) => drop(tried.insert(only.clone(), Tried::Fails(message))),
                (Err(_), part) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        Ok(tried)
    }
}
