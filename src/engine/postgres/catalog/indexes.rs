//! Indexes over the old column, and the same over the new one.

use tokio_postgres::Row;

use super::Reader;
use super::types::Ty;
use crate::engine::catalog::Index;
use crate::engine::postgres::sql::{ident, literal, names_in};
use crate::error::Result;

/// What `pg_index.indoption` is made of.
const DESC: i16 = 1;
const NULLS_FIRST: i16 = 2;

/// One column or expression of an index.
struct Element {
    /// None for an expression.
    column: Option<String>,
    /// As the server writes it, an expression in parentheses.
    text: String,
    /// False for INCLUDE.
    is_key: bool,
    options: i16,
    /// Written only where it is not the one that would be taken anyway.
    collation: Option<String>,
    operator_class: String,
    operator_class_is_default: bool,
    /// The class takes the new type; the new type has a default class.
    accepts_new: bool,
    new_has_default: bool,
    /// Parameters of the operator class.
    parameters: Option<Vec<String>>,
}

/// The plain indexes over `old`. Those over `new` are the copies already.
pub(super) async fn read(reader: &Reader<'_>, table: u32, old: &str, new: &str, new_type: Option<&Ty>) -> Result<Vec<Index>> {
    let nulls_not_distinct = if reader.version >= 150_000 { "i.indnullsnotdistinct" } else { "false" };
    let query = format!(
        "SELECT i.indexrelid AS id, c.relname::text AS name, pg_get_indexdef(i.indexrelid) AS definition, i.indisunique AS is_unique, i.indimmediate AS immediate, {nulls_not_distinct} AS nulls_not_distinct,
                am.amname::text AS method, c.reloptions AS options, (SELECT spcname::text FROM pg_tablespace s WHERE s.oid = c.reltablespace) AS tablespace,
                pg_get_expr(i.indpred, i.indrelid) AS predicate, (SELECT conname::text FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype = 'u' AND k.conrelid = i.indrelid) AS constraint_name
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = $2
         WHERE i.indrelid = $1 AND NOT i.indisprimary AND NOT i.indisexclusion AND i.indisvalid AND i.indislive
           AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
                                                     AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
         ORDER BY c.relname"
    );
    let mut out = Vec::new();
    for row in reader.rows("reading the indexes", &query, &[&table, &old]).await? {
        let elements = elements(reader, row.get("id"), new_type).await?;
        if !elements.iter().any(|e| e.column.as_deref() == Some(new)) {
            out.push(index(&row, &elements, old, new));
        }
    }
    Ok(out)
}

/// Names of all indexes of these tables that an update of the column has to touch.
pub(super) async fn over(reader: &Reader<'_>, tables: &[u32], column: &str) -> Result<Vec<String>> {
    let query = "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = $2
                 WHERE i.indrelid = ANY ($1::oid[]) AND c.relkind = 'i' AND i.indislive
                   AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
                                                     AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
                 ORDER BY c.relname";
    Ok(reader.rows("reading the indexes", query, &[&tables, &column]).await?.iter().map(|row| row.get(0)).collect())
}

async fn elements(reader: &Reader<'_>, index: u32, new_type: Option<&Ty>) -> Result<Vec<Element>> {
    let accepts = |class: &str| {
        format!(
            "(n.oid = {class}.opcintype OR EXISTS (SELECT FROM pg_cast x WHERE x.castsource = n.oid AND x.casttarget = {class}.opcintype AND x.castmethod = 'b' AND x.castcontext = 'i')
              OR ({class}.opcintype = 'anyenum'::regtype AND n.typtype = 'e') OR ({class}.opcintype = 'anyarray'::regtype AND n.typcategory = 'A' AND n.typelem <> 0)
              OR ({class}.opcintype = 'anyrange'::regtype AND n.typtype = 'r') OR ({class}.opcintype::regtype::text = 'anymultirange' AND n.typtype = 'm') OR ({class}.opcintype = 'record'::regtype AND n.typtype = 'c'))"
        )
    };
    let query = format!(
        "SELECT a.attname::text AS column_name, pg_get_indexdef(i.indexrelid, p.place::int, false) AS text, p.place <= i.indnkeyatts AS is_key, coalesce((i.indoption::int2[])[p.place - 1], 0::int2) AS options,
                CASE WHEN p.place <= i.indnkeyatts AND (i.indcollation::oid[])[p.place - 1] NOT IN (0, coalesce(a.attcollation, 'pg_catalog.\"default\"'::regcollation)) THEN (i.indcollation::oid[])[p.place - 1]::regcollation::text END AS collation,
                CASE WHEN o.oid IS NULL THEN '' ELSE o.opcnamespace::regnamespace::text || '.' || quote_ident(o.opcname) END AS class, coalesce(o.opcdefault, true) AS class_is_default,
                coalesce({accepts}, false) AS accepts_new,
                EXISTS (SELECT FROM pg_opclass d WHERE d.opcmethod = o.opcmethod AND d.opcdefault AND {default_accepts}) AS new_has_default,
                x.attoptions AS parameters
         FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY p (number, place) JOIN pg_attribute x ON x.attrelid = i.indexrelid AND x.attnum = p.place
              LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.number AND p.number <> 0
              LEFT JOIN pg_opclass o ON p.place <= i.indnkeyatts AND o.oid = (i.indclass::oid[])[p.place - 1] LEFT JOIN pg_type n ON n.oid = $2
         WHERE i.indexrelid = $1 ORDER BY p.place",
        accepts = accepts("o"),
        default_accepts = accepts("d"),
    );
    let rows = reader.rows("reading an index", &query, &[&index, &new_type.map_or(0, |ty| ty.base)]).await?;
    Ok(rows
        .iter()
        .map(|r| Element {
            column: r.get("column_name"),
            text: r.get("text"),
            is_key: r.get("is_key"),
            options: r.get("options"),
            collation: r.get("collation"),
            operator_class: r.get("class"),
            operator_class_is_default: r.get("class_is_default"),
            accepts_new: r.get("accepts_new"),
            new_has_default: r.get("new_has_default"),
            parameters: r.get("parameters"),
        })
        .collect())
}

fn index(row: &Row, elements: &[Element], old: &str, new: &str) -> Index {
    let template = template(row, elements, old, new);
    Index {
        name: row.get("name"),
        definition: row.get("definition"),
        unique: row.get("is_unique"),
        constraint: row.get("constraint_name"),
        primary: false,
        not_copyable: template.as_ref().err().cloned(),
        template: template.unwrap_or_default(),
    }
}

/// The statement, or why there is none.
fn template(row: &Row, elements: &[Element], old: &str, new: &str) -> std::result::Result<String, String> {
    let mentions_old = |text: &str| names_in(text).iter().any(|name| name == old);
    if !row.get::<_, bool>("immediate") {
        return Err("its constraint is DEFERRABLE, which an index can't be".to_string());
    }
    let predicate: Option<&str> = row.get("predicate");
    if let Some(text) = predicate.filter(|p| mentions_old(p)) {
        return Err(format!("its predicate is over the column: WHERE {text}"));
    }
    let (mut keys, mut included) = (Vec::new(), Vec::new());
    for element in elements {
        if element.column.is_none() && mentions_old(&element.text) {
            return Err(format!("it is over an expression of the column: {}", element.text));
        }
        match element.is_key {
            true => keys.push(key(element, old, new)?),
            false => included.push(element.column.as_deref().map(|c| ident(if c == old { new } else { c })).unwrap_or_default()),
        }
    }
    let unique = if row.get("is_unique") { "UNIQUE " } else { "" };
    let mut sql = format!("CREATE {unique}INDEX {{concurrently}} {{name}} ON {{table}} USING {} ({})", ident(row.get("method")), keys.join(", "));
    if !included.is_empty() {
        sql.push_str(&format!(" INCLUDE ({})", included.join(", ")));
    }
    if row.get("nulls_not_distinct") {
        sql.push_str(" NULLS NOT DISTINCT");
    }
    if let Some(options) = row.get::<_, Option<Vec<String>>>("options") {
        sql.push_str(&format!(" WITH ({})", parameters(&options)));
    }
    if let Some(tablespace) = row.get::<_, Option<&str>>("tablespace") {
        sql.push_str(&format!(" TABLESPACE {}", ident(tablespace)));
    }
    if let Some(predicate) = predicate {
        sql.push_str(&format!(" WHERE {predicate}"));
    }
    Ok(sql)
}

fn key(element: &Element, old: &str, new: &str) -> std::result::Result<String, String> {
    let is_old = element.column.as_deref() == Some(old);
    let mut sql = match &element.column {
        Some(column) => ident(if is_old { new } else { column }),
        None => element.text.clone(),
    };
    if is_old && element.operator_class_is_default && !element.new_has_default {
        return Err("the new type has no default operator class for this kind of index".to_string());
    }
    if is_old && !element.operator_class_is_default && !element.accepts_new {
        return Err(format!("its operator class {} doesn't take the new type", element.operator_class));
    }
    // An enum or a number has no collation; for a text that stays one, it is kept.
    if let Some(collation) = element.collation.as_ref().filter(|_| !is_old || element.accepts_new) {
        sql.push_str(&format!(" COLLATE {collation}"));
    }
    match &element.parameters {
        Some(list) => sql.push_str(&format!(" {} ({})", element.operator_class, parameters(list))),
        None if !element.operator_class_is_default => sql.push_str(&format!(" {}", element.operator_class)),
        None => {}
    }
    sql.push_str(match (element.options & DESC != 0, element.options & NULLS_FIRST != 0) {
        (true, true) => " DESC",
        (true, false) => " DESC NULLS LAST",
        (false, true) => " NULLS FIRST",
        (false, false) => "",
    });
    Ok(sql)
}

/// `{fillfactor=70}` as it is written in a statement.
pub(super) fn parameters(list: &[String]) -> String {
    let one = |item: &String| match item.split_once('=') {
        Some((name, value)) => format!("{} = {}", ident(name), literal(value).trim_start()),
        None => ident(item),
    };
    list.iter().map(one).collect::<Vec<_>>().join(", ")
}
