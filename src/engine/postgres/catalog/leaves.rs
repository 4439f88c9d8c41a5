//! The physical tables, and the key that each can be walked by.

use super::Reader;
use super::table::Found;
use crate::engine::catalog::{Key, Leaf, Partition, RelationKind};
use crate::error::Result;
use crate::plan::TableName;

/// The table itself, or the partitions that hold rows, without their keys.
pub(super) async fn read(reader: &Reader<'_>, found: &Found) -> Result<Vec<Leaf>> {
    if !matches!(found.kind, RelationKind::Table | RelationKind::Partitioned | RelationKind::Partition) {
        return Ok(Vec::new());
    }
    // Rows as the planner guesses them: the last known density, over the pages that there are now. Never a count: the
    // table may be huge. Without statistics, what the statistics collector has seen, or a guess of 60 rows a page.
    let query = "SELECT c.oid AS id, coalesce(pg_relation_filenode(c.oid), 0::oid) AS file, n.nspname::text AS schema, c.relname::text AS name, c.relkind = 'f' AS foreign_table, s.pages,
                        CASE WHEN c.reltuples >= 0 AND c.relpages > 0 THEN (c.reltuples / c.relpages * s.pages)::int8
                             WHEN c.relkind = 'f' THEN greatest(c.reltuples, 0)::int8
                             ELSE coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), s.pages * 60) END AS rows
                 FROM unnest($1::oid[]) WITH ORDINALITY u (id, place) JOIN pg_class c ON c.oid = u.id JOIN pg_namespace n ON n.oid = c.relnamespace,
                      LATERAL (SELECT CASE WHEN c.relkind = 'f' THEN 0 ELSE coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8 END AS pages) s
                 WHERE c.relkind IN ('r', 'f') ORDER BY u.place";
    let rows = reader.rows(&found.name.to_string(), query, &[&found.tree]).await?;
    Ok(rows
        .iter()
        .map(|r| Leaf {
            id: u64::from(r.get::<_, u32>("id")),
            file: u64::from(r.get::<_, u32>("file")),
            name: TableName { schema: Some(r.get("schema")), name: r.get("name") },
            rows: u64::try_from(r.get::<_, i64>("rows")).unwrap_or(0),
            pages: u32::try_from(r.get::<_, i64>("pages")).unwrap_or(u32::MAX),
            key: None,
            foreign: r.get("foreign_table"),
        })
        .collect())
}

/// The tree below a partitioned table, from the top down; nothing below another.
pub(super) async fn partitions(reader: &Reader<'_>, found: &Found) -> Result<Vec<Partition>> {
    if found.kind != RelationKind::Partitioned {
        return Ok(Vec::new());
    }
    let query =
        "SELECT n.nspname::text AS schema, c.relname::text AS name, pn.nspname::text AS parent_schema, p.relname::text AS parent, t.isleaf AS leaf
                 FROM pg_partition_tree($1::oid::regclass) t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
                      JOIN pg_class p ON p.oid = t.parentrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
                 WHERE t.level > 0 ORDER BY t.level, t.relid";
    let name = |schema: String, name: String| TableName { schema: Some(schema), name };
    let rows = reader.rows("reading the tree of partitions", query, &[&found.id]).await?;
    Ok(rows
        .iter()
        .map(|r| Partition { name: name(r.get("schema"), r.get("name")), parent: name(r.get("parent_schema"), r.get("parent")), leaf: r.get("leaf") })
        .collect())
}

/// The primary key, else the smallest unique index that tells every row apart. One over a column that the change writes
/// would move under the walk. From 18 on a NOT NULL can be there without having been checked.
pub(super) async fn walk_key(reader: &Reader<'_>, relation: u32, changing: &[&str]) -> Result<Option<Key>> {
    let query = "SELECT c.relname::text AS name, i.indisprimary AS is_primary, k.names, k.types
                 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid,
                      LATERAL (SELECT array_agg(a.attname::text ORDER BY p.place) AS names, array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY p.place) AS types, bool_and(a.attnotnull) AS all_not_null
                               FROM unnest(i.indkey) WITH ORDINALITY p (number, place) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.number WHERE p.place <= i.indnkeyatts) k
                 WHERE i.indrelid = $1 AND i.indisunique AND NOT i.indisexclusion AND i.indimmediate AND i.indisvalid AND i.indisready AND i.indexprs IS NULL AND i.indpred IS NULL
                   AND k.all_not_null AND NOT EXISTS (SELECT FROM pg_constraint n WHERE n.conrelid = i.indrelid AND n.contype = 'n' AND NOT n.convalidated AND n.conkey && i.indkey::int2[])
                   AND (i.indisprimary OR NOT k.names && $2)
                 ORDER BY i.indisprimary DESC, cardinality(k.names), c.relname LIMIT 1";
    let changing: Vec<String> = changing.iter().map(|c| c.to_string()).collect();
    let rows = reader.rows("reading the keys", query, &[&relation, &changing]).await?;
    Ok(rows.first().map(|r| Key {
        name: r.get("name"),
        primary: r.get("is_primary"),
        columns: r.get::<_, Vec<String>>("names").into_iter().zip(r.get::<_, Vec<String>>("types")).collect(),
    }))
}
