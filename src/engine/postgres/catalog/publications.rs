//! The publications that carry the table.

use super::Reader;
use crate::engine::catalog::Publication;
use crate::error::Result;

pub(super) async fn read(reader: &Reader<'_>, table: u32) -> Result<Vec<Publication>> {
    // Column lists and publications of whole schemas came with 15.
    let modern = reader.version >= 150_000;
    let columns = if modern {
        "(SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]))"
    } else {
        "NULL::text[]"
    };
    let by_schema = if modern {
        "OR EXISTS (SELECT FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid WHERE n.pnpubid = p.oid AND c.oid = $1)"
    } else {
        ""
    };
    let query = format!(
        "SELECT p.pubname::text AS name, {columns} AS columns, p.pubupdate AS updates FROM pg_publication p
         LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = $1 WHERE p.puballtables OR r.prrelid IS NOT NULL {by_schema} ORDER BY 1"
    );
    let rows = reader.rows("reading the publications", &query, &[&table]).await?;
    Ok(rows.iter().map(|r| Publication { name: r.get("name"), columns: r.get("columns"), updates: r.get("updates") }).collect())
}
