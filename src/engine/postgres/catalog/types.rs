//! Types: their names, whether their equality is exact, and which converts to which.

use super::Reader;
use crate::engine::postgres::sql;
use crate::error::Result;
use crate::plan::TableName;

/// A type with its length or precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ty {
    pub oid: u32,
    pub typmod: i32,
    /// Length and precision included, qualified unless built in.
    pub name: String,
    /// What an explicit cast may name. Where that would cut silently to the length, it is the type without it: the
    /// assignment that follows raises an error instead.
    pub cast: String,
    pub exact: bool,
    /// Itself, or what a domain is over.
    pub base: u32,
    /// The collation that its columns have by default; 0 where it takes none.
    pub collation: u32,
}

impl Ty {
    pub fn collatable(&self) -> bool {
        self.collation != 0
    }
}

/// Whose `=` says yes for equal bytes only. Not among them: numeric (1.0 = 1.00), floats (-0 = 0), interval, bpchar, json,
/// citext, and everything made of parts.
const EXACT: &str =
    "{bool,char,name,bytea,int2,int4,int8,oid,text,varchar,uuid,date,time,timestamp,timestamptz,inet,cidr,macaddr,macaddr8,pg_lsn,bit,varbit}";

/// What is known of a type; `collation` is the column's, or None for the type's own.
pub(super) async fn describe(reader: &Reader<'_>, oid: u32, typmod: i32, collation: Option<u32>) -> Result<Ty> {
    let r = reader
        .row(
            "reading a type",
            "WITH RECURSIVE chain AS (
                 SELECT oid, typbasetype, typtypmod, typtype, 0 AS depth FROM pg_type WHERE oid = $1
                 UNION ALL SELECT t.oid, t.typbasetype, t.typtypmod, t.typtype, depth + 1 FROM pg_type t JOIN chain ON t.oid = chain.typbasetype
             ), base AS (SELECT t.* FROM pg_type t WHERE t.oid = (SELECT oid FROM chain ORDER BY depth DESC LIMIT 1))
             SELECT format_type($1, e.typmod) AS name, e.typmod,
                    CASE WHEN base.oid = ANY ($4::text[]::regtype[]) OR base.typelem = ANY ($4::text[]::regtype[]) AND base.typcategory = 'A' THEN format_type(base.oid, -1) ELSE format_type($1, e.typmod) END AS cast_name,
                    ((base.typnamespace = 'pg_catalog'::regnamespace AND base.typname = ANY ($3::text::text[])) OR base.typtype = 'e')
                      AND coalesce((SELECT collisdeterministic FROM pg_collation WHERE oid = coalesce($5, t.typcollation)), true) AS exact,
                    t.typcollation AS collation, base.oid AS base
             FROM pg_type t, base, LATERAL (SELECT CASE WHEN t.typtype = 'd' THEN -1 ELSE $2 END AS typmod) e WHERE t.oid = $1",
            &[&oid, &typmod, &EXACT, &vec!["varchar", "bpchar", "bit", "varbit"], &collation],
        )
        .await?;
    // A value of a domain is told with the length of what the domain is over: that is no part of its type.
    let typmod = r.get("typmod");
    Ok(Ty { oid, typmod, name: r.get("name"), cast: r.get("cast_name"), exact: r.get("exact"), base: r.get("base"), collation: r.get("collation") })
}

/// A type by the text that a plan has for it. None when there is no such type, or no column can be of it.
pub(super) async fn named(reader: &Reader<'_>, table: &TableName, text: &str) -> Result<Option<Ty>> {
    let path = sql::search_path(table);
    // Before 16 a text that can't be read is an error, later it is NULL.
    let oid = reader.try_under(&path, async || reader.client.query_one("SELECT to_regtype($1)::oid", &[&text]).await).await?;
    let Some(oid) = oid.ok().and_then(|r| r.get::<_, Option<u32>>(0)) else { return Ok(None) };
    let usable: bool = reader.row("reading a type", "SELECT typisdefined AND typtype <> 'p' FROM pg_type WHERE oid = $1", &[&oid]).await?.get(0);
    if !usable {
        return Ok(None);
    }
    // The text is the name of a type and nothing else, so it may stand in a statement. Only that tells its length.
    let Ok(statement) = reader.try_prepare(table, &format!("SELECT NULL::{text}\n")).await? else { return Ok(None) };
    let typmod = statement.columns().first().map_or(-1, |c| c.type_modifier());
    describe(reader, oid, typmod, None).await.map(Some)
}

/// How a value of one type gets into a column of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    /// The server accepts it without a further cast.
    pub assignable: bool,
    /// It can't fail, can't lose, and depends on no setting.
    pub safe: bool,
}

pub(super) async fn conversion(reader: &Reader<'_>, from: &Ty, to: &Ty) -> Result<Conversion> {
    if (from.oid, from.typmod) == (to.oid, to.typmod) {
        return Ok(Conversion { assignable: true, safe: true });
    }
    let r = reader
        .row(
            "reading the casts",
            "WITH RECURSIVE chain AS (
                 SELECT $1::oid AS start, oid, typbasetype, 0 AS depth FROM pg_type WHERE oid = $1
                 UNION ALL SELECT $2::oid, oid, typbasetype, 0 FROM pg_type WHERE oid = $2
                 UNION ALL SELECT chain.start, t.oid, t.typbasetype, depth + 1 FROM pg_type t JOIN chain ON t.oid = chain.typbasetype
             ), base AS (SELECT DISTINCT ON (start) start, oid FROM chain ORDER BY start, depth DESC),
             f AS (SELECT t.* FROM pg_type t JOIN base USING (oid) WHERE start = $1),
             g AS (SELECT t.* FROM pg_type t JOIN base USING (oid) WHERE start = $2)
             SELECT f.oid = g.oid AS same, g.typcategory = 'S' AS to_string, g.oid <> $2 AS to_domain,
                    c.castcontext = 'i' AS implicit, c.castcontext IN ('a', 'i') OR (c.castmethod = 'b' AND c.castcontext <> 'e') AS assigns,
                    coalesce(p.provolatile = 'i', true) AS immutable,
                    EXISTS (SELECT FROM pg_cast e WHERE f.typcategory = 'A' AND g.typcategory = 'A' AND e.castsource = f.typelem AND e.casttarget = g.typelem AND e.castcontext IN ('a', 'i')) AS elements,
                    f.typname::text AS source, g.typname::text AS target, f.typtype = 'e' AS from_enum
             FROM f CROSS JOIN g LEFT JOIN pg_cast c ON c.castsource = f.oid AND c.casttarget = g.oid LEFT JOIN pg_proc p ON p.oid = c.castfunc",
            &[&from.oid, &to.oid],
        )
        .await?;
    let yes = |name: &str| r.get::<_, Option<bool>>(name).unwrap_or(false);
    let (source, target): (&str, &str) = (r.get("source"), r.get("target"));
    let same = yes("same");
    let assignable = same || yes("assigns") || yes("elements") || yes("to_string");
    let kept = to.typmod == -1 || widened(source, target, from.typmod, to.typmod);
    // Their text is the same under every setting.
    let prints = matches!(target, "text" | "varchar") && (yes("from_enum") || matches!(source, "bool" | "int2" | "int4" | "int8" | "uuid"));
    let lossless = same || prints || (yes("implicit") && yes("immutable") && keeps_every_value(source, target));
    // A domain can refuse what its base type accepts.
    Ok(Conversion { assignable, safe: lossless && kept && !yes("to_domain") })
}

/// Among the implicit casts those that round, cut or pad.
fn keeps_every_value(source: &str, target: &str) -> bool {
    match target {
        "float4" => source == "int2",
        "float8" => matches!(source, "int2" | "int4" | "float4"),
        "bpchar" | "name" | "char" => false,
        _ => source != "bpchar",
    }
}

/// Whether a length limit became wider. The modifier of a text holds the length and nothing else.
fn widened(source: &str, target: &str, from: i32, to: i32) -> bool {
    matches!(target, "varchar" | "varbit") && source == target && from != -1 && to >= from
}
