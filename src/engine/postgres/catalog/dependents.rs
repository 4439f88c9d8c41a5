//! What hangs on a column: what the server knows in pg_depend, and functions whose text mentions it.

use super::table::Found;
use super::{Reader, one_line, triggers};
use crate::engine::catalog::{Dependent, DependentKind};
use crate::error::Result;

/// A dependent with its place in the catalog.
pub(super) struct Known {
    pub dependent: Dependent,
    /// The view, the policy, … by its own number.
    pub id: u32,
    /// The relation whose column it hangs on: the table, or one of its partitions.
    pub on: u32,
}

/// Objects that a drop of the column refuses, takes along silently, or leaves broken. Its plain indexes, checks, defaults
/// and own foreign keys are not among them: those belong to the column.
pub(super) async fn read(reader: &Reader<'_>, found: &Found, column: &str, with_functions: bool) -> Result<Vec<Known>> {
    let publications = if reader.version >= 150_000 {
        "UNION ALL SELECT d.rel, 'publication', r.oid, p.pubname::text,
             'table ' || r.prrelid::regclass::text || CASE WHEN r.prattrs IS NULL THEN '' ELSE ' with a column list' END || coalesce(' WHERE ' || pg_get_expr(r.prqual, r.prrelid), '')
         FROM d JOIN pg_publication_rel r ON d.class = 'pg_publication_rel'::regclass AND r.oid = d.id JOIN pg_publication p ON p.oid = r.prpubid"
    } else {
        ""
    };
    let query = format!(
        "WITH d AS (SELECT DISTINCT x.refobjid AS rel, x.classid AS class, x.objid AS id, x.objsubid AS sub, x.deptype = 'n' AS normal
                    FROM pg_depend x JOIN pg_attribute a ON a.attrelid = x.refobjid AND a.attnum = x.refobjsubid
                    WHERE x.refclassid = 'pg_class'::regclass AND x.refobjid = ANY ($1) AND a.attname = $2)
         SELECT d.rel AS on_relation, CASE WHEN r.rulename <> '_RETURN' THEN 'rule' WHEN c.relkind = 'm' THEN 'materialized_view' ELSE 'view' END AS kind,
                CASE WHEN r.rulename <> '_RETURN' THEN r.oid ELSE c.oid END AS id, CASE WHEN r.rulename <> '_RETURN' THEN format('%I on %s', r.rulename, c.oid::regclass) ELSE c.oid::regclass::text END AS name,
                CASE WHEN r.rulename <> '_RETURN' THEN pg_get_ruledef(r.oid) ELSE pg_get_viewdef(c.oid) END AS definition
         FROM d JOIN pg_rewrite r ON d.class = 'pg_rewrite'::regclass AND r.oid = d.id JOIN pg_class c ON c.oid = r.ev_class
         UNION ALL SELECT d.rel, 'generated_column', a.attrelid, format('%s.%I', a.attrelid::regclass, a.attname), pg_get_expr(v.adbin, v.adrelid)
         FROM d JOIN pg_attrdef v ON (d.class = 'pg_attrdef'::regclass AND v.oid = d.id) OR (d.class = 'pg_class'::regclass AND v.adrelid = d.id AND v.adnum = d.sub)
              JOIN pg_attribute a ON a.attrelid = v.adrelid AND a.attnum = v.adnum AND a.attgenerated <> '' AND a.attrelid = d.rel AND a.attname <> $2
         UNION ALL SELECT d.rel, 'policy', p.oid, format('%I on %s', p.polname, p.polrelid::regclass),
                coalesce('USING (' || pg_get_expr(p.polqual, p.polrelid) || ') ', '') || coalesce('WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
         FROM d JOIN pg_policy p ON d.class = 'pg_policy'::regclass AND p.oid = d.id
         UNION ALL SELECT d.rel, 'trigger', t.oid, format('%I on %s', t.tgname, t.tgrelid::regclass), pg_get_triggerdef(t.oid)
         FROM d JOIN pg_trigger t ON d.class = 'pg_trigger'::regclass AND t.oid = d.id WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND NOT starts_with(t.tgname::text, $3)
         UNION ALL SELECT d.rel, 'statistics', s.oid, format('%s.%I', s.stxnamespace::regnamespace, s.stxname), pg_get_statisticsobjdef(s.oid)
         FROM d JOIN pg_statistic_ext s ON d.class = 'pg_statistic_ext'::regclass AND s.oid = d.id
         UNION ALL SELECT d.rel, CASE k.contype WHEN 'x' THEN 'exclusion' ELSE 'foreign_key' END, k.oid, format('%I on %s', k.conname, k.conrelid::regclass), pg_get_constraintdef(k.oid)
         FROM d JOIN pg_constraint k ON d.class = 'pg_constraint'::regclass AND k.oid = d.id WHERE k.conparentid = 0 AND (k.contype = 'x' OR (k.contype = 'f' AND d.normal AND k.confrelid = d.rel))
         UNION ALL SELECT d.rel, 'function', p.oid, p.oid::regprocedure::text, 'a function with a parsed body'
         FROM d JOIN pg_proc p ON d.class = 'pg_proc'::regclass AND p.oid = d.id
         {publications} ORDER BY 2, 4"
    );
    let mut out: Vec<Known> = Vec::new();
    for r in reader.rows("reading what depends on the column", &query, &[&found.tree, &column, &triggers::OURS]).await? {
        let definition = one_line(r.get::<_, Option<&str>>("definition").unwrap_or(""));
        let known = Known {
            dependent: Dependent { kind: kind(r.get("kind")), name: r.get("name"), definition, certain: true },
            id: r.get("id"),
            on: r.get("on_relation"),
        };
        // A policy or view that mentions the column twice is still one.
        if !out.iter().any(|k| (k.dependent.kind, &k.dependent.name) == (known.dependent.kind, &known.dependent.name)) {
            out.push(known);
        }
    }
    if with_functions {
        let mentions = functions(reader, found, column).await?;
        out.extend(
            mentions.into_iter().filter(|f| !out.iter().any(|k| k.dependent.kind == DependentKind::Function && k.id == f.id)).collect::<Vec<_>>(),
        );
    }
    Ok(out)
}

fn kind(name: &str) -> DependentKind {
    match name {
        "view" => DependentKind::View,
        "materialized_view" => DependentKind::MaterializedView,
        "rule" => DependentKind::Rule,
        "generated_column" => DependentKind::GeneratedColumn,
        "policy" => DependentKind::Policy,
        "trigger" => DependentKind::Trigger,
        "publication" => DependentKind::Publication,
        "statistics" => DependentKind::Statistics,
        "exclusion" => DependentKind::Exclusion,
        "foreign_key" => DependentKind::ForeignKey,
        _ => DependentKind::Function,
    }
}

/// Functions with both names in their text as whole words: the server keeps no record of what they read.
async fn functions(reader: &Reader<'_>, found: &Found, column: &str) -> Result<Vec<Known>> {
    let query = "SELECT p.oid AS id, p.oid::regprocedure::text AS name, p.prosrc AS source
                 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
                 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'sete') AND l.lanname NOT IN ('c', 'internal')
                   AND strpos(lower(p.prosrc), lower($1)) > 0 AND strpos(lower(p.prosrc), lower($2)) > 0 ORDER BY 2 LIMIT 1000";
    let rows = reader.rows("looking through the functions", query, &[&found.name.name, &column]).await?;
    Ok(rows
        .iter()
        .filter(|r| has_word(r.get("source"), &found.name.name) && has_word(r.get("source"), column))
        .map(|r| {
            let line = r.get::<_, &str>("source").lines().find(|line| has_word(line, column)).unwrap_or_default();
            Known {
                dependent: Dependent { kind: DependentKind::Function, name: r.get("name"), definition: one_line(line), certain: false },
                id: r.get("id"),
                on: found.id,
            }
        })
        .collect())
}

/// Whether `word` is in the text, in any case, not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_lowercase(), word.to_lowercase());
    let in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    text.match_indices(&word)
        .any(|(at, _)| !text[..at].chars().next_back().is_some_and(in_name) && !text[at + word.len()..].chars().next().is_some_and(in_name))
}

#[cfg(test)]
mod tests {
    use super::has_word;

    #[test]
    fn words_are_whole() {
        for text in ["select status from x", "STATUS", "new.\"Status\"", "é status"] {
            assert!(has_word(text, "status"), "{text}");
        }
        for text in ["statuses", "old_status", "status2", "xstatus$"] {
            assert!(!has_word(text, "status"), "{text}");
        }
    }
}
