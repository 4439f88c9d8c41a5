//! The user's triggers, and ours.

use crate::engine::catalog::Trigger;
use crate::engine::mysql::conn::{Session, get};
use crate::error::Result;
use crate::plan::TableName;

/// Our triggers' names begin so: see [`crate::resolve::Names`].
const OURS: &str = "~sete_";
/// And those of the sync.
const SYNC: &str = "~sete_sync_";

pub(super) async fn read(session: &mut Session, name: &TableName) -> Result<Vec<Trigger>> {
    let query = "SELECT TRIGGER_NAME, ACTION_TIMING, EVENT_MANIPULATION, ACTION_ORDER, ACTION_STATEMENT FROM information_schema.TRIGGERS \
                 WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ? ORDER BY EVENT_MANIPULATION, ACTION_TIMING, ACTION_ORDER";
    let mut out: Vec<Trigger> = Vec::new();
    let mut synced: Vec<String> = Vec::new();
    for row in session.query(query, (name.schema.as_deref().unwrap_or_default(), &name.name), "reading the triggers").await? {
        let (trigger, timing, event, text): (String, String, String, String) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?, get(&row, 4)?);
        let ours = trigger.starts_with(OURS);
        // In the order in which they run: what comes after the sync on the same event has not been seen by it.
        let after_sync = !ours && timing == "BEFORE" && synced.contains(&event);
        if trigger.starts_with(SYNC) {
            synced.push(event.clone());
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        out.push(Trigger {
            function: String::new(),
            fires_on_backfill: !ours && event == "UPDATE",
            before_row: timing == "BEFORE" && event != "DELETE",
            ours,
            enabled: true,
            after_sync,
            definition: format!("{timing} {event}: {text}"),
            name: trigger,
        });
    }
    Ok(out)
}
