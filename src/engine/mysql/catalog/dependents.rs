//! What would break when the old column goes. The servers keep no record of what a text reads, so that names are looked for.

use super::constraints::Constraints;
use crate::engine::catalog::{Dependent, DependentKind, Table};
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::sql::names_in;
use crate::error::Result;
use crate::plan::TableName;

/// Begins the names of our triggers.
const OURS: &str = "~sete_";

/// Whether a text has a name as a whole word outside of strings and comments.
pub(super) fn mentions(text: &str, name: &str) -> bool {
    names_in(text).contains(&name.to_lowercase())
}

pub(super) async fn read(session: &mut Session, name: &TableName, table: &Table, constraints: &Constraints, old: &str) -> Result<Vec<Dependent>> {
    let mut out = Vec::new();
    let mut add = |kind, name: String, text: &str| {
        let definition = text.split_whitespace().collect::<Vec<_>>().join(" ");
        out.push(Dependent { kind, name, definition, certain: true });
    };
    for column in table.columns.iter().filter(|c| c.generated && c.name != old && mentions(&c.definition, old)) {
        add(DependentKind::GeneratedColumn, column.name.clone(), &column.definition);
    }
    for (key, _) in constraints.incoming.iter().filter(|(_, column)| column == old) {
        add(DependentKind::ForeignKey, key.clone(), "points at the column");
    }
    let schema = name.schema.as_deref().unwrap_or_default();
    // A trigger of the table itself names the column as NEW.… or OLD.…, without the table.
    let own = "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ? ORDER BY 1";
    for row in session.query(own, (schema, &name.name), "looking through the triggers").await? {
        let (trigger, text): (String, String) = (get(&row, 0)?, get(&row, 1)?);
        if !trigger.starts_with(OURS) && mentions(&text, old) {
            add(DependentKind::Trigger, trigger, &text);
        }
    }
    let texts = [
        (DependentKind::View, "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), VIEW_DEFINITION FROM information_schema.VIEWS", "TABLE_SCHEMA", "VIEW_DEFINITION"),
        (DependentKind::Trigger, "SELECT CONCAT(TRIGGER_SCHEMA, '.', TRIGGER_NAME), ACTION_STATEMENT FROM information_schema.TRIGGERS", "TRIGGER_SCHEMA", "ACTION_STATEMENT"),
        (DependentKind::Routine, "SELECT CONCAT(ROUTINE_SCHEMA, '.', ROUTINE_NAME), ROUTINE_DEFINITION FROM information_schema.ROUTINES", "ROUTINE_SCHEMA", "ROUTINE_DEFINITION"),
        (DependentKind::Event, "SELECT CONCAT(EVENT_SCHEMA, '.', EVENT_NAME), EVENT_DEFINITION FROM information_schema.EVENTS", "EVENT_SCHEMA", "EVENT_DEFINITION"),
    ];
    for (kind, select, schema_column, text_column) in texts {
        // The server looks for the name first: there may be thousands of texts.
        let mut query = format!(
            "{select} WHERE {schema_column} NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema') AND LOCATE(LOWER(?), LOWER({text_column})) > 0 AND LOCATE(LOWER(?), LOWER({text_column})) > 0"
        );
        let mut params = vec![name.name.clone(), old.to_string()];
        if kind == DependentKind::Trigger {
            query += " AND NOT (EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ?)";
            params.extend([schema.to_string(), name.name.clone()]);
        }
        for row in session.query(&format!("{query} ORDER BY 1"), params, "looking for the column's name").await? {
            let (object, text): (String, Option<String>) = (get(&row, 0)?, get(&row, 1)?);
            let text = text.unwrap_or_default();
            if mentions(&text, &name.name) && mentions(&text, old) {
                add(kind, object, &text);
            }
        }
    }
    Ok(out)
}
