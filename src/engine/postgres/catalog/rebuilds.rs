//! What a swap of the names must make again. A view or a policy remembers a column by its number: after the swap it would
//! go on reading the old column under its new name. Its text, read before the swap and run after it, means the new one.

use super::dependents::{self, Known};
use super::frame::Frame;
use super::indexes::parameters;
use super::table::Found;
use super::{Reader, Tried};
use crate::engine::catalog::{DependentKind, Rebuild};
use crate::engine::postgres::sql::{ident, literal};
use crate::error::Result;

/// Statements before and after the renames, or why there are none.
type Statements = std::result::Result<(Vec<String>, Vec<String>), String>;

/// For everything that hangs on the column that is named `change.from` at the moment.
pub(super) async fn read(reader: &Reader<'_>, found: &Found, frame: &Frame) -> Result<Vec<Rebuild>> {
    let mut out = Vec::new();
    for known in dependents::read(reader, found, &frame.from, false).await? {
        let statements = match known.dependent.kind {
            DependentKind::View => view(reader, found, frame, &known).await?,
            DependentKind::Policy => policy(reader, found, frame, &known).await?,
            kind => Err(format!("a {} follows the column, not its name, and sete doesn't make it again", kind.words())),
        };
        out.push(Rebuild { kind: known.dependent.kind, name: known.dependent.name, statements });
    }
    Ok(out)
}

async fn view(reader: &Reader<'_>, found: &Found, frame: &Frame, known: &Known) -> Result<Statements> {
    let view = &known.dependent.name;
    let r = reader
        .row(
            &format!("reading view {view}"),
            "SELECT pg_get_viewdef(c.oid) AS definition, c.reloptions AS options, pg_get_userbyid(c.relowner)::text AS owner, pg_has_role(c.relowner, 'USAGE') AS ours, c.relacl IS NOT NULL AS has_grants,
                    (SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', ') FROM pg_depend d LEFT JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
                     WHERE d.deptype IN ('n', 'a') AND w.ev_class IS DISTINCT FROM c.oid AND d.classid <> 'pg_attrdef'::regclass
                       AND ((d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid) OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (SELECT t.oid FROM pg_type t WHERE t.typrelid = c.oid OR t.typelem = c.reltype)))) AS users,
                    EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN') AS has_rules,
                    EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e') AS of_extension
             FROM pg_class c WHERE c.oid = $1",
            &[&known.id],
        )
        .await?;
    if let Some(users) = r.get::<_, Option<&str>>("users") {
        return Ok(Err(format!("it is used by {users}")));
    }
    for (refused, reason) in [
        (!r.get::<_, bool>("ours"), format!("it belongs to {}, of which our role is no member", r.get::<_, &str>("owner"))),
        (r.get("has_rules"), "it has rules of its own".to_string()),
        (r.get("of_extension"), "it belongs to an extension".to_string()),
        (known.on != found.id, "it reads a partition directly".to_string()),
    ] {
        if refused {
            return Ok(Err(reason));
        }
    }
    if let Err(message) =
        works_exchanged(reader, frame, "SELECT pg_get_viewdef($1::oid)", known.id, |definition| format!("SELECT 1 FROM ({definition}) AS sete_view"))
            .await?
    {
        return Ok(Err(message));
    }
    let definition: &str = r.get("definition");
    let options = r.get::<_, Option<Vec<String>>>("options").map(|list| format!(" WITH ({})", parameters(&list))).unwrap_or_default();
    let mut after = vec![
        format!("CREATE VIEW {view}{options} AS {}", definition.trim().trim_end_matches(';')),
        format!("ALTER VIEW {view} OWNER TO {}", ident(r.get("owner"))),
    ];
    after.extend(view_defaults(reader, view, known.id).await?);
    after.extend(grants(reader, view, known.id).await?);
    after.extend(comments(reader, view, known.id).await?);
    Ok(Ok((vec![format!("DROP VIEW {view}")], after)))
}

/// Whether a text of the server's, read with the table's name unqualified, still works when the two names are exchanged.
async fn works_exchanged(reader: &Reader<'_>, frame: &Frame, query: &str, id: u32, statement: impl Fn(&str) -> String) -> Result<Tried<()>> {
    let path = format!("{}, pg_temp", ident(frame.table.schema.as_deref().unwrap_or("public")));
    let text = reader.try_under(&path, async || reader.client.query_one(query, &[&id]).await).await?;
    let text = match text {
        Ok(row) => row.get::<_, Option<String>>(0).unwrap_or_default(),
        Err(message) => return Ok(Err(message)),
    };
    // The WITH stands in the table's place: names inside are looked up there first.
    let statement = format!("WITH {} AS ({}) {}", ident(&frame.table.name), frame.exchanged(), statement(text.trim().trim_end_matches(';')));
    let tried = reader.try_under(&path, async || reader.client.prepare(&statement).await).await?;
    Ok(tried.map(|_| ()).map_err(|message| format!("its definition doesn't work once the names are exchanged: {message}")))
}

async fn view_defaults(reader: &Reader<'_>, view: &str, id: u32) -> Result<Vec<String>> {
    let query = "SELECT a.attname::text, pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = $1 ORDER BY a.attnum";
    let rows = reader.rows("reading a view's defaults", query, &[&id]).await?;
    Ok(rows.iter().map(|r| format!("ALTER VIEW {view} ALTER COLUMN {} SET DEFAULT {}", ident(r.get(0)), r.get::<_, &str>(1))).collect())
}

/// The grants on a relation and on its columns. What the creating role hands out by default is taken back first.
async fn grants(reader: &Reader<'_>, view: &str, id: u32) -> Result<Vec<String>> {
    let grantee = "CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END";
    let defaults = format!(
        "SELECT DISTINCT {grantee} FROM pg_default_acl d, aclexplode(d.defaclacl) g, pg_class c
         WHERE c.oid = $1 AND d.defaclobjtype = 'r' AND d.defaclnamespace IN (0, c.relnamespace) AND g.grantee <> c.relowner AND d.defaclrole = (SELECT oid FROM pg_roles WHERE rolname = current_user) ORDER BY 1"
    );
    let granted = format!(
        "SELECT g.privilege_type AS right_name, NULL::text AS column_name, {grantee} AS grantee, g.is_grantable AS grantable FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = $1 AND g.grantee <> c.relowner
         UNION ALL SELECT g.privilege_type, a.attname::text, {grantee}, g.is_grantable FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) g
         WHERE c.oid = $1 AND NOT a.attisdropped AND a.attnum > 0 AND g.grantee <> c.relowner ORDER BY 3, 2 NULLS FIRST, 1"
    );
    let mut out = Vec::new();
    for r in reader.rows("reading the default grants", &defaults, &[&id]).await? {
        out.push(format!("REVOKE ALL ON {view} FROM {}", r.get::<_, &str>(0)));
    }
    for r in reader.rows("reading the grants", &granted, &[&id]).await? {
        let columns = r.get::<_, Option<&str>>("column_name").map(|c| format!(" ({})", ident(c))).unwrap_or_default();
        let option = if r.get("grantable") { " WITH GRANT OPTION" } else { "" };
        out.push(format!("GRANT {}{columns} ON {view} TO {}{option}", r.get::<_, &str>("right_name"), r.get::<_, &str>("grantee")));
    }
    Ok(out)
}

async fn comments(reader: &Reader<'_>, view: &str, id: u32) -> Result<Vec<String>> {
    let query = "SELECT a.attname::text, d.description FROM pg_description d LEFT JOIN pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid AND d.objsubid > 0
                 WHERE d.classoid = 'pg_class'::regclass AND d.objoid = $1 ORDER BY d.objsubid";
    let rows = reader.rows("reading the comments", query, &[&id]).await?;
    Ok(rows
        .iter()
        .map(|r| {
            let on = r.get::<_, Option<&str>>(0).map_or(format!("VIEW {view}"), |column| format!("COLUMN {view}.{}", ident(column)));
            format!("COMMENT ON {on} IS {}", literal(r.get(1)).trim_start())
        })
        .collect())
}

async fn policy(reader: &Reader<'_>, found: &Found, frame: &Frame, known: &Known) -> Result<Statements> {
    let r = reader
        .row(
            &format!("reading policy {}", known.dependent.name),
            "SELECT p.polname::text AS name, p.polrelid::regclass::text AS relation, p.polrelid = $2 AS on_table, pg_get_expr(p.polqual, p.polrelid) AS using_text, pg_get_expr(p.polwithcheck, p.polrelid) AS check_text,
                    (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = p.polrelid) AS ours
             FROM pg_policy p WHERE p.oid = $1",
            &[&known.id, &found.id],
        )
        .await?;
    if !r.get::<_, bool>("ours") {
        return Ok(Err("its table belongs to another role".to_string()));
    }
    if known.on != found.id {
        return Ok(Err("it is on a partition".to_string()));
    }
    let relation = if r.get("on_table") { ident(&frame.table.name) } else { r.get("relation") };
    let mut sql = format!("ALTER POLICY {} ON {}", ident(r.get("name")), r.get::<_, &str>("relation"));
    for (part, column, words) in [("using_text", "polqual", "USING"), ("check_text", "polwithcheck", "WITH CHECK")] {
        let Some(text) = r.get::<_, Option<&str>>(part) else { continue };
        let query = format!("SELECT pg_get_expr({column}, polrelid) FROM pg_policy WHERE oid = $1");
        if let Err(message) = works_exchanged(reader, frame, &query, known.id, |text| format!("SELECT 1 FROM {relation} WHERE ({text})")).await? {
            return Ok(Err(message));
        }
        sql.push_str(&format!(" {words} ({text})"));
    }
    Ok(Ok((Vec::new(), vec![sql])))
}
