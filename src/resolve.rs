//! A plan checked against the live catalog: what is created, under which names, over which columns. Pure.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::engine::catalog::{Catalog, Column, Expression, Key, Leaf, Partition, Rebuild, RelationKind, Sequence, Table, Ways};
use crate::engine::{Ddl, Side, Walk};
use crate::error::{Code, Error, Result};
use crate::plan::{DefaultPart, Part, Plan, SwitchMode, TableName};
use crate::state::Origin;

/// Everything that a stage and an engine need to know about one plan on one table.
#[derive(Clone, Debug, Serialize)]
pub struct Resolved {
    pub id: String,
    pub table: TableName,
    pub table_id: u64,
    pub partitioned: bool,
    /// The two columns under the names they have now: a swap exchanges them.
    pub old: Column,
    pub new: Column,
    /// The names are exchanged.
    pub swapped: bool,
    /// What the plan's expressions call the columns.
    pub plan_old: String,
    pub plan_new: String,
    pub forward: Conversion,
    pub reverse: Conversion,
    pub columns: Vec<Column>,
    pub leaves: Vec<Leaf>,
    pub partitions: Vec<Partition>,
    pub key: Option<Key>,
    pub walk: Walk,
    /// In how many parts the backfill writes a chunk.
    pub stripes: u32,
    pub names: Names,
    /// The statements of stage 4, in order.
    #[serde(skip)]
    pub structure: Vec<Ddl>,
    /// What a swap makes again, since it reads the old column by number and would go on reading it.
    pub rebuilds: Vec<Rebuild>,
    /// The default that the new column gets when the old one is no longer written.
    pub default: Option<String>,
    pub sequence: Option<Sequence>,
    pub origin_not_null: bool,
    pub origin_default: Option<String>,
    pub suppress_triggers: bool,
    pub ways: Ways,
    pub rows: u64,
    pub bytes: u64,
}

/// One direction of the mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conversion {
    /// In the plan's names.
    pub sql: String,
    /// Columns that it reads, in the plan's names.
    pub reads: Vec<String>,
    /// Can't fail and needs no settings pinned.
    pub safe: bool,
}

/// A new column's index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexSpec {
    pub name: String,
    /// See [`crate::engine::catalog::Index::template`].
    pub template: String,
}

impl IndexSpec {
    /// The statement that builds it; `name` and `table` quoted already.
    pub fn statement(&self, concurrently: &str, name: &str, table: &str) -> String {
        // From the last placeholder to the first, the first occurrence each: what stands before it is not the user's, so
        // that a column named `{name}` stays what it is.
        self.template.replacen("{table}", table, 1).replacen("{name}", name, 1).replacen("{concurrently}", concurrently, 1)
    }
}

/// The index of one partition.
pub fn partition_index_name(index: &str, partition: &str) -> String {
    within_limit(&format!("{partition}_{index}"))
}

/// A new column's constraint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstraintSpec {
    pub name: String,
    pub rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Rule {
    NotNull(Side),
    /// The definition over the new column, as the server writes it.
    Check(String),
    ForeignKey(String),
}

/// What we create in the database, named so that two plans never meet and no name is cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Names {
    /// Triggers on INSERT and on UPDATE. They sort after every ordinary name: BEFORE triggers fire in the order of names.
    pub sync_triggers: [String; 2],
    pub sync_function: String,
    pub observer_triggers: [String; 2],
    pub observer_function: String,
    /// Say why a row doesn't convert to the old column's type and to the new one's.
    pub error_functions: [String; 2],
    /// Counts the writes that the observer has seen.
    pub counter: String,
    /// CHECKs that prove NOT NULL of the old and the new column.
    pub not_null: [String; 2],
    /// What tells our own session's writes from the application's.
    pub marker: String,
}

impl Resolved {
    pub fn column(&self, side: Side) -> &Column {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// How a side becomes NOT NULL on this server.
    pub fn not_null(&self, side: Side) -> Vec<Ddl> {
        not_null(&self.ways, &self.names, side)
    }

    /// What gives a side its value.
    pub fn conversion_to(&self, side: Side) -> &Conversion {
        match side {
            Side::Old => &self.reverse,
            Side::New => &self.forward,
        }
    }
}

impl Names {
    pub fn of(plan: &str) -> Names {
        let tag = tag(plan);
        Names {
            sync_triggers: [format!("~sete_sync_{tag}_insert"), format!("~sete_sync_{tag}_update")],
            sync_function: format!("sync_{tag}"),
            observer_triggers: [format!("~sete_observer_{tag}_insert"), format!("~sete_observer_{tag}_update")],
            observer_function: format!("observe_{tag}"),
            error_functions: [format!("error_back_{tag}"), format!("error_{tag}")],
            counter: format!("writes_{tag}"),
            not_null: [format!("sete_old_not_null_{tag}"), format!("sete_not_null_{tag}")],
            marker: tag,
        }
    }
}

/// Ten hex digits that stand for a text of any length.
fn tag(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(5).map(|b| format!("{b:02x}")).collect()
}

/// A page gives up this part of its rows at first; the rest then fits in the room that they leave. Measured: docs/performance.md.
const STRIPES: u32 = 24;

/// The shortest limit among the servers (PostgreSQL counts bytes).
const NAME_MAX: usize = 63;

/// `name` for the new column: the old column's name in it exchanged for the new one's, and never cut by the server.
fn derived_name(name: &str, old: &str, new: &str) -> String {
    let plain = if name.contains(old) { name.replacen(old, new, 1) } else { format!("{name}_{new}") };
    within_limit(&plain)
}

/// A name that is too long is cut by us, with a tag that keeps it apart, and not by the server.
fn within_limit(name: &str) -> String {
    if name.len() <= NAME_MAX {
        return name.to_string();
    }
    let tag = tag(name);
    let mut cut = NAME_MAX - tag.len() - 1;
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}_{tag}", &name[..cut])
}

/// The plan on this table. Errors when the table can't carry it at all; `preflight::findings` says all that is wrong.
pub fn resolve(plan: &Plan, catalog: &Catalog, origin: Option<&Origin>) -> Result<Resolved> {
    let missing = |what: &str| Error::new(Code::ColumnMissing, format!("{} has no column `{what}`", plan.change.table));
    let table = catalog.table.as_ref().ok_or_else(|| Error::new(Code::TableMissing, format!("there is no table {}", plan.change.table)))?;
    let (from, to) = (table.column(&plan.change.from), table.column(&plan.change.to));
    let swapped = origin.is_some_and(|o| is_swapped(o, from, to));
    let (old, new) = if swapped { (to, from) } else { (from, to) };
    let old = old.cloned();
    let new = match (new, &catalog.new_type, &old) {
        (Some(column), _, _) => column.clone(),
        (None, Some(facts), _) => {
            Column { collation: facts.collation.clone(), ..planned_column(&plan.change.to, &facts.type_name, facts.exact_equality) }
        }
        (None, None, Some(old)) if plan.change.new_type.is_none() => {
            Column { collation: old.collation.clone(), ..planned_column(&plan.change.to, &old.type_name, old.exact_equality) }
        }
        (None, _, _) => return Err(missing(&plan.change.to)),
    };
    // After the drop there is no old column; what is known of it comes from the origin.
    let old = match (old, origin) {
        (Some(column), _) => column,
        (None, Some(origin)) => planned_column(if swapped { &plan.change.to } else { &plan.change.from }, &origin.old_type, false),
        (None, None) => return Err(missing(&plan.change.from)),
    };
    let walk = Walk::choose(plan.backfill.walk, catalog.server.can_walk_physically);
    let conversion = |e: &Expression| Conversion { sql: e.sql.clone(), reads: e.reads.clone(), safe: e.safe };
    Ok(Resolved {
        id: plan.id.clone(),
        table: table.name.clone(),
        table_id: table.id,
        partitioned: table.kind == RelationKind::Partitioned,
        swapped,
        plan_old: plan.change.from.clone(),
        plan_new: plan.change.to.clone(),
        forward: conversion(&catalog.forward),
        reverse: conversion(&catalog.reverse),
        columns: table.columns.clone(),
        leaves: table.leaves.clone(),
        partitions: table.partitions.clone(),
        key: table.key.clone(),
        walk,
        stripes: if walk == Walk::Physical { STRIPES } else { 1 },
        names: Names::of(&plan.id),
        structure: structure(plan, table, origin),
        rebuilds: if plan.read_switch.mode == SwitchMode::Swap { table.rebuilds.clone() } else { Vec::new() },
        default: match &plan.structure.default {
            DefaultPart::Expression(sql) => Some(sql.clone()),
            DefaultPart::Auto => table.new_default.clone().and_then(Result::ok),
        },
        sequence: table.sequence.clone(),
        origin_not_null: origin.map_or(old.not_null, |o| o.old_not_null),
        origin_default: origin.map_or_else(|| old.default.clone(), |o| o.old_default.clone()),
        suppress_triggers: plan.backfill.user_triggers == crate::plan::UserTriggers::Suppress,
        ways: table.ways.clone(),
        rows: table.rows,
        bytes: table.bytes,
        old,
        new,
    })
}

/// A column that is not there, or no longer.
fn planned_column(name: &str, type_name: &str, exact_equality: bool) -> Column {
    Column {
        name: name.to_string(),
        type_name: type_name.to_string(),
        exact_equality,
        not_null: false,
        default: None,
        generated: false,
        identity: false,
        collation: None,
        definition: String::new(),
        on_update: false,
        invisible: false,
    }
}

/// Told by the types: each name now carries the other's.
pub(crate) fn is_swapped(origin: &Origin, from: Option<&Column>, to: Option<&Column>) -> bool {
    origin.old_type != origin.new_type && from.is_some_and(|c| c.type_name == origin.new_type) && to.is_none_or(|c| c.type_name == origin.old_type)
}

/// How a side becomes NOT NULL.
fn not_null(ways: &Ways, names: &Names, side: Side) -> Vec<Ddl> {
    let proof = ConstraintSpec { name: names.not_null[side as usize].clone(), rule: Rule::NotNull(side) };
    match ways.not_null_by_check {
        true => vec![Ddl::AddConstraint(proof.clone()), Ddl::ValidateConstraint(proof.clone()), Ddl::SetNotNull(side), Ddl::DropConstraint(proof)],
        false => vec![Ddl::SetNotNull(side)],
    }
}

/// The statements of stage 4, in order.
fn structure(plan: &Plan, table: &Table, origin: Option<&Origin>) -> Vec<Ddl> {
    let mut out = Vec::new();
    let own = |statements: &[String], out: &mut Vec<Ddl>| out.extend(statements.iter().cloned().map(Ddl::Statement));
    let name_for = |name: &str| derived_name(name, &plan.change.from, &plan.change.to);
    let constraint = |spec: ConstraintSpec, out: &mut Vec<Ddl>| out.extend([Ddl::AddConstraint(spec.clone()), Ddl::ValidateConstraint(spec)]);
    match &plan.structure.index {
        Part::Statements(list) => own(list, &mut out),
        Part::Auto => {
            for index in table.indexes.iter().filter(|i| i.not_copyable.is_none()) {
                out.push(Ddl::BuildIndex(IndexSpec { name: name_for(&index.name), template: index.template.clone() }));
            }
        }
    }
    match &plan.structure.not_null {
        Part::Statements(list) => own(list, &mut out),
        Part::Auto => {
            if origin.map_or(table.column(&plan.change.from).is_some_and(|c| c.not_null), |o| o.old_not_null) {
                out.extend(not_null(&table.ways, &Names::of(&plan.id), Side::New));
            }
        }
    }
    for (part, constraints, rule) in [
        (&plan.structure.check, &table.checks, Rule::Check as fn(String) -> Rule),
        (&plan.structure.foreign_key, &table.foreign_keys, Rule::ForeignKey),
    ] {
        match part {
            Part::Statements(list) => own(list, &mut out),
            Part::Auto => {
                for (name, definition) in constraints.iter().filter_map(|c| Some((&c.name, c.rewritten.as_ref().ok()?))) {
                    constraint(ConstraintSpec { name: name_for(name), rule: rule(definition.clone()) }, &mut out);
                }
            }
        }
    }
    out.push(Ddl::Analyze);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_templates_are_filled_once() {
        let template = "CREATE INDEX {concurrently} {name} ON {table} USING btree (\"{name}\", \"{table}\") WHERE x = '{concurrently}'".to_string();
        assert_eq!(
            IndexSpec { name: String::new(), template }.statement("CONCURRENTLY", "\"{table}\"", "\"{name}\""),
            "CREATE INDEX CONCURRENTLY \"{table}\" ON \"{name}\" USING btree (\"{name}\", \"{table}\") WHERE x = '{concurrently}'"
        );
    }

    #[test]
    fn names_stay_within_the_limit_and_apart() {
        let long = "x".repeat(63);
        let (a, b) = (derived_name(&long, "status", "status_v2"), derived_name(&format!("{}y", &long[..62]), "status", "status_v2"));
        assert!(a.len() <= NAME_MAX && b.len() <= NAME_MAX && a != b, "{a} {b}");
        assert_eq!(derived_name("orders_status_idx", "status", "status_v2"), "orders_status_v2_idx");
        assert_eq!(derived_name("idx1", "status", "status_v2"), "idx1_status_v2");
        assert!(derived_name(&"é".repeat(31), "a", "b").len() <= NAME_MAX);
    }
}
