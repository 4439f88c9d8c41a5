//! Indexes: those over the old column with what builds them again, and the one that the rows are ordered by.

use crate::engine::catalog::{Column, Index, Key};
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::sql::{Class, class, ident, names_in, type_word};
use crate::error::Result;
use crate::plan::TableName;

struct Part {
    /// None for an expression.
    column: Option<String>,
    length: Option<u64>,
    descending: bool,
    expression: Option<String>,
}

pub(super) struct Found {
    pub name: String,
    pub unique: bool,
    /// BTREE, FULLTEXT, SPATIAL, HASH.
    pub kind: String,
    ignored: bool,
    parts: Vec<Part>,
}

pub(super) async fn read(session: &mut Session, name: &TableName) -> Result<Vec<Found>> {
    // The last two differ between the servers.
    let (expression, ignored) = if session.version().is_mariadb() { ("NULL", "IGNORED = 'YES'") } else { ("EXPRESSION", "IS_VISIBLE = 'NO'") };
    let query = format!(
        "SELECT INDEX_NAME, NON_UNIQUE = 0, INDEX_TYPE, {ignored}, COLUMN_NAME, SUB_PART, COLLATION = 'D', {expression} \
         FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY INDEX_NAME = 'PRIMARY' DESC, INDEX_NAME, SEQ_IN_INDEX"
    );
    let mut out: Vec<Found> = Vec::new();
    for row in session.query(&query, (name.schema.as_deref().unwrap_or_default(), &name.name), "reading the indexes").await? {
        let index: String = get(&row, 0)?;
        if out.last().is_none_or(|last| last.name != index) {
            out.push(Found { name: index, unique: get(&row, 1)?, kind: get(&row, 2)?, ignored: get::<Option<bool>>(&row, 3)?.unwrap_or(false), parts: Vec::new() });
        }
        let part = Part { column: get(&row, 4)?, length: get(&row, 5)?, descending: get::<Option<bool>>(&row, 6)?.unwrap_or(false), expression: get(&row, 7)? };
        if let Some(last) = out.last_mut() {
            last.parts.push(part);
        }
    }
    Ok(out)
}

/// What InnoDB orders the rows by: the primary key, or else the first unique index over NOT NULL columns.
/// The two columns of the plan change, so that they are no key to walk by; a primary key over them is refused elsewhere.
pub(super) fn clustered(indexes: &[Found], columns: &[Column], changing: [&str; 2]) -> Option<Key> {
    let column = |part: &Part| columns.iter().find(|c| Some(&c.name) == part.column.as_ref() && part.length.is_none());
    let usable = |index: &&Found| index.unique && index.kind == "BTREE" && index.parts.iter().all(|p| column(p).is_some_and(|c| c.not_null));
    let index = indexes.iter().find(|i| i.name == "PRIMARY").filter(usable).or_else(|| indexes.iter().find(|i| usable(i) && !changing.iter().any(|c| i.covers(c))))?;
    let columns = index.parts.iter().filter_map(column).map(|c| (c.name.clone(), c.type_name.clone())).collect();
    Some(Key { name: index.name.clone(), primary: index.name == "PRIMARY", columns })
}

impl Found {
    pub fn covers(&self, column: &str) -> bool {
        self.parts.iter().any(|part| match (&part.column, &part.expression) {
            (Some(name), _) => name == column,
            (None, Some(text)) => names_in(text).contains(&column.to_lowercase()),
            (None, None) => false,
        })
    }

    /// With the statement that builds the same over the new column, or why there is none.
    pub fn describe(&self, old: &str, new: &str, new_type: &str) -> Index {
        let template = self.template(old, new, new_type);
        Index {
            name: self.name.clone(),
            definition: self.statement(&ident(&self.name), "…", &self.parts.iter().map(|p| p.text()).collect::<Vec<_>>()),
            unique: self.unique,
            constraint: None,
            primary: self.name == "PRIMARY",
            not_copyable: template.as_ref().err().cloned(),
            template: template.unwrap_or_default(),
        }
    }

    fn statement(&self, name: &str, table: &str, parts: &[String]) -> String {
        let kind = match (self.unique, self.kind.as_str()) {
            (true, _) => "UNIQUE ",
            (_, "FULLTEXT") => "FULLTEXT ",
            (_, "SPATIAL") => "SPATIAL ",
            _ => "",
        };
        let ignored = if self.ignored { " /* not used by the optimizer */" } else { "" };
        format!("CREATE {kind}INDEX {name} ON {table} ({}){ignored}", parts.join(", "))
    }

    fn template(&self, old: &str, new: &str, new_type: &str) -> std::result::Result<String, String> {
        if self.name == "PRIMARY" {
            return Err("it is the primary key".to_string());
        }
        if self.kind != "BTREE" {
            return Err(format!("a {} index is built while writes wait", self.kind));
        }
        if self.ignored {
            return Err("the optimizer is told not to use it".to_string());
        }
        if let Some(text) = self.parts.iter().find_map(|p| p.expression.as_ref()) {
            return Err(format!("it is over an expression, {text}, and such an index is built while writes wait"));
        }
        let needs_length = matches!(type_word(new_type).as_str(), "tinytext" | "text" | "mediumtext" | "longtext" | "tinyblob" | "blob" | "mediumblob" | "longblob");
        let takes_length = needs_length || matches!(type_word(new_type).as_str(), "char" | "varchar" | "binary" | "varbinary");
        let mut parts = Vec::new();
        for part in &self.parts {
            let is_old = part.column.as_deref() == Some(old);
            if is_old && needs_length && part.length.is_none() {
                return Err(format!("an index over {new_type} needs a length"));
            }
            if is_old && matches!(class(new_type), Class::Json | Class::Other) {
                return Err(format!("a column of type {new_type} can't be in an index"));
            }
            parts.push(if is_old { part.renamed(new, takes_length).text() } else { part.text() });
        }
        Ok(self.statement("{concurrently} {name}", "{table}", &parts))
    }
}

impl Part {
    fn renamed(&self, column: &str, takes_length: bool) -> Part {
        Part { column: Some(column.to_string()), length: self.length.filter(|_| takes_length), descending: self.descending, expression: None }
    }

    fn text(&self) -> String {
        let name = self.column.as_deref().map(ident).or_else(|| self.expression.as_ref().map(|e| format!("({e})"))).unwrap_or_default();
        let length = self.length.map(|n| format!("({n})")).unwrap_or_default();
        format!("{name}{length}{}", if self.descending { " DESC" } else { "" })
    }
}
