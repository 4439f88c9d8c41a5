//! The table itself: what it is, its columns, and what we may do with it.

use super::types::{self, Ty};
use super::{Reader, TypedColumn};
use crate::engine::catalog::{Column, MissingRight, RelationKind, ReplicaIdentity, Sequence, Table, Ways};
use crate::engine::postgres::sql::ident;
use crate::error::Result;
use crate::plan::TableName;

/// A relation that was found under the plan's name.
pub(super) struct Found {
    pub id: u32,
    pub name: TableName,
    pub kind: RelationKind,
    /// It and all its partitions, itself first.
    pub tree: Vec<u32>,
}

/// Looks the name up; without a schema, on the search path that the role has by default.
pub(super) async fn find(reader: &Reader<'_>, name: &TableName) -> Result<Option<Found>> {
    let id: Option<u32> = match &name.schema {
        Some(schema) => reader
            .rows(
                "looking for the table",
                "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
                &[schema, &name.name],
            )
            .await?
            .first()
            .map(|r| r.get(0)),
        None => reader.row("looking for the table", "SELECT pg_catalog.to_regclass($1)::oid", &[&ident(&name.name)]).await?.get(0),
    };
    let Some(id) = id else { return Ok(None) };
    let r = reader
        .row(
            "reading the table",
            "SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, c.relispartition AS partition, c.relpersistence = 't' AS temporary
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1",
            &[&id],
        )
        .await?;
    let schema: String = r.get("schema");
    let kind = match r.get::<_, &str>("kind") {
        _ if r.get("temporary") => RelationKind::Temporary,
        _ if matches!(schema.as_str(), "pg_catalog" | "information_schema" | "pg_toast") => RelationKind::System,
        "r" | "p" if r.get("partition") => RelationKind::Partition,
        "r" => RelationKind::Table,
        "p" => RelationKind::Partitioned,
        "v" => RelationKind::View,
        "m" => RelationKind::MaterializedView,
        "f" => RelationKind::Foreign,
        "S" => RelationKind::Sequence,
        _ => RelationKind::Other,
    };
    let tree = match kind {
        RelationKind::Partitioned => reader
            .rows("reading the partitions", "SELECT relid::oid FROM pg_catalog.pg_partition_tree($1::oid::regclass) ORDER BY level, relid", &[&id])
            .await?
            .iter()
            .map(|r| r.get(0))
            .collect(),
        _ => vec![id],
    };
    Ok(Some(Found { id, name: TableName { schema: Some(schema), name: r.get("name") }, kind, tree }))
}

/// The table without what other files of this folder fill in.
pub(super) async fn read(reader: &Reader<'_>, found: &Found) -> Result<Table> {
    let name = &found.name;
    let r = reader
        .row(
            &name.to_string(),
            "SELECT pg_get_userbyid(c.relowner)::text AS owner,
                    (SELECT bool_and(pg_has_role(t.relowner, 'USAGE')) FROM pg_class t WHERE t.oid = ANY ($2)) AS owned,
                    (SELECT bool_or(row_security_active(t)) FROM unnest($2::oid[]) t) AS hidden,
                    (SELECT max(t.relnatts)::int FROM pg_class t WHERE t.oid = ANY ($2)) AS columns_used,
                    (SELECT coalesce(sum(pg_total_relation_size(t)), 0)::int8 FROM unnest($2::oid[]) t) AS bytes,
                    c.relreplident::text AS identity,
                    (SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (number, place), pg_attribute a
                     WHERE i.indrelid = c.oid AND i.indisreplident AND a.attrelid = c.oid AND a.attnum = k.number) AS identity_columns
             FROM pg_class c WHERE c.oid = $1",
            &[&found.id, &found.tree],
        )
        .await?;
    Ok(Table {
        id: u64::from(found.id),
        kind: found.kind,
        owner: r.get("owner"),
        owned_by_us: r.get::<_, Option<bool>>("owned").unwrap_or(false),
        missing_rights: missing_rights(reader, found).await?,
        rows: 0,
        bytes: u64::try_from(r.get::<_, i64>("bytes")).unwrap_or(0),
        columns: columns(reader, found.id).await?,
        columns_used: u32::try_from(r.get::<_, i32>("columns_used")).unwrap_or(0),
        columns_max: 1600,
        key: None,
        leaves: Vec::new(),
        partitions: Vec::new(),
        partition_key: partition_key(reader, found).await?,
        inherits: inherits(reader, found).await?,
        rows_hidden: r.get::<_, Option<bool>>("hidden").unwrap_or(false),
        replica_identity: match r.get::<_, &str>("identity") {
            "f" => ReplicaIdentity::Full,
            "n" => ReplicaIdentity::Nothing,
            "i" => r.get::<_, Option<Vec<String>>>("identity_columns").map_or(ReplicaIdentity::Nothing, ReplicaIdentity::Index),
            _ => ReplicaIdentity::Default,
        },
        publications: Vec::new(),
        triggers: Vec::new(),
        indexes: Vec::new(),
        new_indexes: Vec::new(),
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        dependents: Vec::new(),
        rebuilds: Vec::new(),
        new_default: None,
        sequence: None,
        ways: Ways { not_null_by_check: true, null_instantly: true, relaxed: None, goes_before: Vec::new(), in_place: "", set_statement: false },
        innodb: None,
        name: name.clone(),
    })
}

async fn columns(reader: &Reader<'_>, table: u32) -> Result<Vec<Column>> {
    let query = "SELECT a.attname::text AS name, a.attnotnull AS not_null, a.attgenerated::text AS generated, a.attidentity::text AS identity,
                        CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END AS default_text,
                        CASE WHEN a.attcollation <> t.typcollation THEN (SELECT format('%I.%I', n.nspname, c.collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation) END AS collation
                 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let rows = reader.rows("reading the columns", query, &[&table]).await?;
    let types = column_types(reader, table).await?;
    Ok(rows
        .iter()
        .zip(types)
        .map(|(r, typed)| Column {
            name: typed.name,
            type_name: typed.ty.name,
            exact_equality: typed.ty.exact,
            not_null: r.get("not_null"),
            default: r.get("default_text"),
            generated: !r.get::<_, &str>("generated").is_empty(),
            identity: !r.get::<_, &str>("identity").is_empty(),
            collation: r.get("collation"),
            definition: String::new(),
            on_update: false,
            invisible: false,
        })
        .collect())
}

/// The columns' types. One statement for each different type: a table has few.
pub(super) async fn column_types(reader: &Reader<'_>, table: u32) -> Result<Vec<TypedColumn>> {
    let query = "SELECT attname::text, atttypid, atttypmod, attcollation FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let mut seen: Vec<((u32, i32, u32), Ty)> = Vec::new();
    let mut out = Vec::new();
    for r in reader.rows("reading the columns' types", query, &[&table]).await? {
        let (oid, typmod, collation) = (r.get(1), r.get(2), r.get(3));
        let ty = match seen.iter().find(|(key, _)| *key == (oid, typmod, collation)) {
            Some((_, ty)) => ty.clone(),
            None => types::describe(reader, oid, typmod, Some(collation)).await?,
        };
        seen.push(((oid, typmod, collation), ty.clone()));
        out.push(TypedColumn { name: r.get(0), ty });
    }
    Ok(out)
}

/// What a run needs on the table, and on each leaf since those are addressed by name. Rights on columns don't suffice.
async fn missing_rights(reader: &Reader<'_>, found: &Found) -> Result<Vec<MissingRight>> {
    let query = "SELECT r AS name, 'table ' || t::regclass::text AS on_what FROM unnest($1::oid[]) WITH ORDINALITY u (t, place), unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) r
                 WHERE NOT has_table_privilege(t, r)
                 UNION ALL SELECT DISTINCT 'USAGE', 'schema ' || c.relnamespace::regnamespace::text FROM pg_class c WHERE c.oid = ANY ($1) AND NOT has_schema_privilege(c.relnamespace, 'USAGE')";
    let rows = reader.rows("reading our rights", query, &[&found.tree]).await?;
    Ok(rows.iter().map(|r| MissingRight { right: r.get(0), on: r.get(1) }).collect())
}

/// Columns of the partition keys at every level, those inside of expressions too: the server makes each depend on the table.
async fn partition_key(reader: &Reader<'_>, found: &Found) -> Result<Vec<String>> {
    let query = "SELECT DISTINCT a.attname::text FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum > 0
                 WHERE p.partrelid = ANY ($1) AND (a.attnum = ANY (p.partattrs::int2[])
                    OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p.partrelid AND d.objsubid = a.attnum
                               AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.partrelid AND d.refobjsubid = 0 AND d.deptype = 'i'))";
    Ok(reader.rows("reading the partition key", query, &[&found.tree]).await?.iter().map(|r| r.get(0)).collect())
}

/// Parents, and children that are not partitions.
async fn inherits(reader: &Reader<'_>, found: &Found) -> Result<Vec<String>> {
    let query = "SELECT 'parent ' || inhparent::regclass::text FROM pg_inherits WHERE inhrelid = $1
                 UNION ALL SELECT 'child ' || i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = ANY ($2) AND NOT c.relispartition AND c.relkind IN ('r', 'f')";
    Ok(reader.rows("reading the inheritance", query, &[&found.id, &found.tree]).await?.iter().map(|r| r.get(0)).collect())
}

/// The sequence that one of the columns owns, the first column's before the others'.
pub(super) async fn sequence(reader: &Reader<'_>, table: u32, columns: &[&str]) -> Result<Option<Sequence>> {
    let query = "SELECT format('%I.%I', n.nspname, c.relname) AS name, format_type(s.seqtypid, NULL) AS type_name
                 FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_sequence s ON s.seqrelid = c.oid
                      JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.deptype IN ('a', 'i') AND a.attname::text = ANY ($2::text[])
                 ORDER BY array_position($2::text[], a.attname::text) LIMIT 1";
    let columns: Vec<String> = columns.iter().map(|c| c.to_string()).collect();
    let rows = reader.rows("reading the sequence", query, &[&table, &columns]).await?;
    Ok(rows.first().map(|r| Sequence { name: r.get("name"), type_name: r.get("type_name") }))
}
