//! The SQL of each action, and what it costs. Pure: `sete plan` shows it, `sete step` sends it.

use super::FROZEN;
use super::conn::SQL_MODE;
use super::definition::Definition;
use super::sql::{ident, qualified};
use super::sync::{self, Watcher};
use crate::engine::catalog::{Attached, Column};
use crate::engine::{Cost, CostClass, Ddl, Side};
use crate::resolve::{ConstraintSpec, Resolved, Rule};

/// Under it any column can be altered, also in a table with a default that is no date; a NULL never becomes a 0.
pub const DDL_MODE: &str = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION";

/// A definition with another NULL or default; what the column is called does not matter.
struct Change<'a> {
    not_null: Option<bool>,
    default: Option<Option<&'a str>>,
}

fn defined(column: &Column) -> Definition {
    // A column that is not there yet will have nothing but its type.
    match column.definition.as_str() {
        "" => Definition { type_name: column.type_name.clone(), ..Definition::default() },
        text => Definition { type_name: column.type_name.clone(), ..Definition::parse(text) },
    }
}

fn changed(column: &Column, change: &Change<'_>) -> Definition {
    let mut definition = defined(column);
    if let Some(not_null) = change.not_null {
        definition.not_null = not_null;
    }
    if let Some(default) = change.default {
        let parsed = default.map(|text| Definition::parse(&format!("int DEFAULT {text}"))).unwrap_or_default();
        definition.default = parsed.default;
        definition.on_update = parsed.on_update.or(definition.on_update);
    }
    definition
}

/// One ALTER TABLE that names its algorithm. With INSTANT goes no LOCK: MySQL refuses it.
fn alter(r: &Resolved, what: &str, algorithm: &str) -> String {
    let lock = if algorithm == "INSTANT" { "" } else { ", LOCK=NONE" };
    format!("ALTER TABLE {} {what}, ALGORITHM={algorithm}{lock}", qualified(&r.table))
}

fn modify(r: &Resolved, column: &Column, change: &Change<'_>, algorithm: &str) -> String {
    alter(r, &format!("MODIFY COLUMN {} {}", ident(&column.name), changed(column, change)), algorithm)
}

/// `home` is the database of our own tables.
pub fn render(home: &str, r: &Resolved, ddl: &Ddl) -> Vec<String> {
    let table = qualified(&r.table);
    match ddl {
        Ddl::AddColumn => vec![alter(r, &format!("ADD COLUMN {} {} NULL", ident(&r.new.name), r.new.type_name), "INSTANT")],
        Ddl::DropNewColumn => vec![alter(r, &format!("DROP COLUMN {}", ident(&r.new.name)), "INSTANT")],
        Ddl::DropOldColumn => drop_old(r),
        Ddl::HideOldColumn => vec![invisible(r, true)],
        Ddl::ShowOldColumn => vec![invisible(r, false)],
        Ddl::InstallSync { watch } => under_lock(r, Watcher::Sync { watch: *watch }.create(r, home).into()),
        Ddl::InstallObserver { watch } => under_lock(r, Watcher::Observer { watch: *watch }.create(r, home).into()),
        Ddl::DropSync => drop_watcher(r, Watcher::Sync { watch: true }),
        Ddl::DropObserver => drop_watcher(r, Watcher::Observer { watch: true }),
        Ddl::BuildIndex(index) => vec![format!(
            "{} ALGORITHM={} LOCK=NONE",
            index.statement("", &ident(&index.name), &table).replacen("INDEX  ", "INDEX ", 1),
            r.ways.in_place
        )],
        Ddl::DropIndex(index) => vec![alter(r, &format!("DROP INDEX {}", ident(&index.name)), r.ways.in_place)],
        Ddl::AddConstraint(spec) => add_constraint(r, spec),
        Ddl::ValidateConstraint(spec) => orphans(r, spec).into_iter().collect(),
        Ddl::DropConstraint(spec) => vec![drop_constraint(r, spec)],
        Ddl::SetNotNull(side) => vec![set_not_null(r, *side)],
        Ddl::DropNotNull(side) => vec![drop_not_null(r, *side)],
        Ddl::Statement(text) => vec![text.clone()],
        Ddl::Analyze => vec![format!("ANALYZE TABLE {table}")],
        Ddl::SwapNames { .. } => under_lock(r, swap(home, r)),
        Ddl::MoveDefault => move_default(r, &r.new, r.default.as_deref()),
        Ddl::MoveDefaultBack => match &r.default {
            Some(_) => vec![modify(r, &r.new, &Change { not_null: None, default: Some(None) }, "INSTANT")],
            None => Vec::new(),
        },
    }
}

/// The session gets the table for itself. It loses it again when it falls silent, as one does whose process is frozen.
pub fn lock(r: &Resolved) -> [String; 2] {
    let settings = format!("SET SESSION sql_mode = '{SQL_MODE}', wait_timeout = {}", FROZEN.as_secs());
    [settings, format!("LOCK TABLES {} WRITE", qualified(&r.table))]
}

pub const UNLOCK: &str = "UNLOCK TABLES";

/// Nobody writes between these statements.
fn under_lock(r: &Resolved, statements: Vec<String>) -> Vec<String> {
    lock(r).into_iter().chain(statements).chain([UNLOCK.to_string()]).collect()
}

fn drop_watcher(r: &Resolved, watcher: Watcher) -> Vec<String> {
    under_lock(r, watcher.names(r).iter().map(|name| sync::drop_trigger(r, name)).collect())
}

/// What is over the column goes first: a drop would rebuild the table for an index, narrow a unique one to its other columns,
/// or be refused for a CHECK.
fn drop_old(r: &Resolved) -> Vec<String> {
    let mut out: Vec<String> = r
        .ways
        .goes_before
        .iter()
        .map(|attached| match attached {
            Attached::ForeignKey(name) => alter(r, &format!("DROP FOREIGN KEY {}", ident(name)), r.ways.in_place),
            Attached::Check(name) => alter(r, &format!("DROP CONSTRAINT {}", ident(name)), "INSTANT"),
            Attached::Index(name) => alter(r, &format!("DROP INDEX {}", ident(name)), r.ways.in_place),
        })
        .collect();
    out.push(alter(r, &format!("DROP COLUMN {}", ident(&r.old.name)), "INSTANT"));
    out
}

fn invisible(r: &Resolved, hidden: bool) -> String {
    let definition = Definition { invisible: hidden, ..defined(&r.old) };
    alter(r, &format!("MODIFY COLUMN {} {definition}", ident(&r.old.name)), "INSTANT")
}

/// With checks off the server takes it without a copy, and holds new writes to it at once; the rows that were there are
/// looked through afterwards.
fn add_constraint(r: &Resolved, spec: &ConstraintSpec) -> Vec<String> {
    let add = |definition: &str| alter(r, &format!("ADD CONSTRAINT {} {definition}", ident(&spec.name)), r.ways.in_place);
    match &spec.rule {
        Rule::ForeignKey(definition) => {
            vec!["SET SESSION foreign_key_checks = 0".to_string(), add(definition), "SET SESSION foreign_key_checks = 1".to_string()]
        }
        Rule::Check(definition) => vec![add(definition)],
        Rule::NotNull(side) => vec![add(&format!("CHECK ({} IS NOT NULL)", ident(&r.column(*side).name)))],
    }
}

/// Rows whose foreign key leads nowhere: there must be none.
pub fn orphans(r: &Resolved, spec: &ConstraintSpec) -> Option<String> {
    let Rule::ForeignKey(definition) = &spec.rule else { return None };
    let (columns, rest) = definition.strip_prefix("FOREIGN KEY (")?.split_once(") REFERENCES ")?;
    let (parent, rest) = rest.split_once(" (")?;
    let referenced = rest.split_once(')')?.0;
    let schema = r.table.schema.as_deref().map(|s| format!("{}.", ident(s))).unwrap_or_default();
    let parent = if parent.contains("`.`") { parent.to_string() } else { format!("{schema}{parent}") };
    let pairs: Vec<(&str, &str)> = columns.split(", ").zip(referenced.split(", ")).collect();
    let set = pairs.iter().map(|(own, _)| format!("c.{own} IS NOT NULL")).collect::<Vec<_>>().join(" AND ");
    let equal = pairs.iter().map(|(own, other)| format!("p.{other} = c.{own}")).collect::<Vec<_>>().join(" AND ");
    Some(format!("SELECT COUNT(*) FROM {} c WHERE {set} AND NOT EXISTS (SELECT 1 FROM {parent} p WHERE {equal})", qualified(&r.table)))
}

fn drop_constraint(r: &Resolved, spec: &ConstraintSpec) -> String {
    match spec.rule {
        Rule::ForeignKey(_) => alter(r, &format!("DROP FOREIGN KEY {}", ident(&spec.name)), r.ways.in_place),
        Rule::Check(_) | Rule::NotNull(_) => alter(r, &format!("DROP CONSTRAINT {}", ident(&spec.name)), "INSTANT"),
    }
}

/// NOCOPY would not do: it is a rebuild in place on both servers.
const REBUILD: &str = "INPLACE";

fn set_not_null(r: &Resolved, side: Side) -> String {
    match side {
        // It has been NOT NULL all the time: only the default goes that was to spare a rebuild.
        Side::Old if r.old.not_null => modify(r, &r.old, &Change { not_null: None, default: Some(r.origin_default.as_deref()) }, "INSTANT"),
        side => modify(r, r.column(side), &Change { not_null: Some(true), default: None }, REBUILD),
    }
}

fn drop_not_null(r: &Resolved, side: Side) -> String {
    match (side, &r.ways.relaxed) {
        (Side::Old, Some(default)) => modify(r, &r.old, &Change { not_null: None, default: Some(Some(default)) }, "INSTANT"),
        (side, _) => {
            modify(r, r.column(side), &Change { not_null: Some(false), default: None }, if r.ways.null_instantly { "INSTANT" } else { REBUILD })
        }
    }
}

/// The old column keeps its own: an insert that leaves it out must go on to work.
fn move_default(r: &Resolved, column: &Column, default: Option<&str>) -> Vec<String> {
    default.map(|default| modify(r, column, &Change { not_null: None, default: Some(Some(default)) }, "INSTANT")).into_iter().collect()
}

/// The plan as it is after the names were exchanged.
pub fn exchanged(r: &Resolved) -> Resolved {
    let mut out = r.clone();
    std::mem::swap(&mut out.old.name, &mut out.new.name);
    out.swapped = !r.swapped;
    for column in &mut out.columns {
        if column.name == r.old.name {
            column.name.clone_from(&r.new.name);
        } else if column.name == r.new.name {
            column.name.clone_from(&r.old.name);
        }
    }
    out
}

/// Old becomes new and new becomes old: nobody writes between the triggers that go and those that come.
pub fn swap(home: &str, r: &Resolved) -> Vec<String> {
    let then = exchanged(r);
    let watcher = Watcher::Sync { watch: false };
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let mut statements: Vec<String> = watcher.names(r).iter().map(|name| sync::drop_trigger(r, name)).collect();
    statements.push(alter(r, &format!("RENAME COLUMN {old} TO {new}, RENAME COLUMN {new} TO {old}"), "INSTANT"));
    statements.extend(if then.swapped { move_default(&then, &then.new, r.default.as_deref()) } else { render(home, &then, &Ddl::MoveDefaultBack) });
    statements.extend(watcher.create(&then, home));
    statements
}

/// Modes and classes as measured on MySQL 9.7 and MariaDB 10.11.
pub fn cost(r: &Resolved, ddl: &Ddl) -> Cost {
    let table = qualified(&r.table);
    let on = |mode: &'static str, class, online| Cost { locks: vec![(table.clone(), mode)], class, online, queues: true };
    let in_catalog = on(EXCLUSIVE, CostClass::Catalog, false);
    match ddl {
        Ddl::InstallSync { .. } | Ddl::InstallObserver { .. } | Ddl::DropSync | Ddl::DropObserver | Ddl::SwapNames { .. } => {
            on("LOCK TABLES WRITE", CostClass::Catalog, false)
        }
        Ddl::BuildIndex(_) => on(EXCLUSIVE_AT_ENDS, CostClass::Index, true),
        Ddl::SetNotNull(Side::Old) if r.old.not_null => in_catalog,
        Ddl::SetNotNull(_) => on(EXCLUSIVE_AT_ENDS, CostClass::Rebuild, true),
        Ddl::DropNotNull(Side::Old) if r.ways.relaxed.is_some() || r.ways.null_instantly => in_catalog,
        Ddl::DropNotNull(_) if r.ways.null_instantly => in_catalog,
        Ddl::DropNotNull(_) => on(EXCLUSIVE_AT_ENDS, CostClass::Rebuild, true),
        Ddl::ValidateConstraint(_) => Cost { locks: Vec::new(), class: CostClass::Scan, online: true, queues: false },
        Ddl::Analyze => on("METADATA SHARED", CostClass::Scan, true),
        Ddl::AddColumn
        | Ddl::DropNewColumn
        | Ddl::DropOldColumn
        | Ddl::HideOldColumn
        | Ddl::ShowOldColumn
        | Ddl::DropIndex(_)
        | Ddl::AddConstraint(_)
        | Ddl::DropConstraint(_)
        | Ddl::Statement(_)
        | Ddl::MoveDefault
        | Ddl::MoveDefaultBack => in_catalog,
    }
}

const EXCLUSIVE: &str = "METADATA EXCLUSIVE";
/// Taken for a moment before the work and again after it.
const EXCLUSIVE_AT_ENDS: &str = "METADATA EXCLUSIVE at begin and end";
