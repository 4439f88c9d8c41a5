//! The user's triggers, and ours.

use super::table::Found;
use super::{Reader, one_line};
use crate::engine::catalog::Trigger;
use crate::error::Result;

/// What `pg_trigger.tgtype` is made of.
const ROW: i16 = 1;
const BEFORE: i16 = 2;
const INSERT: i16 = 4;
const UPDATE: i16 = 16;

/// Our triggers' names begin so: see [`crate::resolve::Names`].
pub(super) const OURS: &str = "~sete_";

/// Begins the names of our sync triggers.
const SYNC: &str = "~sete_sync_";

pub(super) async fn read(reader: &Reader<'_>, found: &Found, new: &str) -> Result<Vec<Trigger>> {
    // A trigger of a partitioned table is cloned to its partitions (tgparentid); a partition can have more of its own.
    let query = "SELECT t.tgname::text AS name, t.tgfoid::regprocedure::text AS function, t.tgtype, t.tgenabled::text AS enabled, coalesce(pg_get_triggerdef(t.oid), '') AS definition,
                        cardinality(t.tgattr::int2[]) = 0 OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr::int2[]) AND a.attname = $2) AS for_new
                 FROM pg_trigger t WHERE t.tgrelid = ANY ($1::oid[]) AND NOT t.tgisinternal AND t.tgparentid = 0 ORDER BY array_position($1::oid[], t.tgrelid), t.tgname";
    let rows = reader.rows("reading the triggers", query, &[&found.tree, &new]).await?;
    Ok(rows
        .iter()
        .map(|r| {
            let (kind, enabled): (i16, &str) = (r.get("tgtype"), r.get("enabled"));
            let name: String = r.get("name");
            let ours = name.starts_with(OURS);
            // An ordinary session has the role "origin": triggers of the replica role don't fire in it.
            let fires = matches!(enabled, "O" | "A") && kind & UPDATE != 0 && r.get("for_new");
            let before_row = kind & ROW != 0 && kind & BEFORE != 0 && kind & (INSERT | UPDATE) != 0;
            Trigger {
                // The server orders triggers by the bytes of their names.
                after_sync: before_row && enabled != "D" && !ours && name.as_str() > SYNC,
                ours,
                function: r.get("function"),
                fires_on_backfill: fires && !ours,
                before_row,
                enabled: enabled != "D",
                definition: one_line(r.get("definition")),
                name,
            }
        })
        .collect())
}
