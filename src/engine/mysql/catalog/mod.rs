//! Reads the catalog: everything that preflight and resolve need, in one look.
//!
//! The plan's expressions are tried on a temporary table that has the columns which they read: the new column need not be
//! there for that, no lock is taken, and the server says itself which types come out.

mod constraints;
mod default;
mod dependents;
mod expressions;
mod frame;
mod indexes;
mod rights;
mod server;
mod table;
mod triggers;

use crate::change::{Mapping, NewType};
use crate::engine::catalog::{Attached, Catalog, DependentKind, Expression, InnoDb, Rebuild, TypeFacts, Ways};
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, TableName};
use crate::resolve::is_swapped;
use crate::state::Origin;

use super::conn::Session;
use super::sql::{Class, class, type_word};
use frame::Frame;

/// Reads everything about the plan's table. `home` is the database of our own tables.
pub async fn read(session: &mut Session, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>, home: &str, place: &str) -> Result<Catalog> {
    let mut name = TableName::parse(&plan.change.table).map_err(|message| Error::new(Code::PlanInvalid, message))?;
    name.schema.get_or_insert_with(|| home.to_string());
    if !session.version().is_mariadb() {
        // Else the sizes are those of up to a day ago.
        session.batch("SET SESSION information_schema_stats_expiry = 0", "asking for fresh statistics").await?;
    }
    let server = server::read(session, home, place).await?;
    let nothing =
        || Expression { sql: String::new(), reads: Vec::new(), result: Err("there is no such table".into()), assignable: false, safe: false };
    let Some(mut found) = table::read(session, &name).await? else {
        return Ok(Catalog { server, table: None, new_type: None, forward: nothing(), reverse: nothing() });
    };
    if !found.is_table() {
        return Ok(Catalog { server, table: Some(found.table), new_type: None, forward: nothing(), reverse: nothing() });
    }
    let (from, to) = (found.table.column(&mapping.old), found.table.column(&mapping.new));
    let swapped = origin.is_some_and(|o| is_swapped(o, from, to));
    let (old, new) = if swapped { (to, from) } else { (from, to) };
    let (old, new) = (old.cloned(), new.cloned());
    let (old_name, new_name) = if swapped { (&mapping.new, &mapping.old) } else { (&mapping.old, &mapping.new) };

    let old_type = old.as_ref().map(|c| c.type_name.clone()).or_else(|| origin.map(|o| o.old_type.clone()));
    let planned = match &mapping.new_type {
        NewType::SameAsOld => old_type.clone(),
        NewType::Named(text) => frame::named(session, text, old_type.as_deref(), &found.collation).await?,
    };
    let frame = Frame {
        others: found.table.columns.iter().filter(|c| c.name != mapping.old && c.name != mapping.new).cloned().collect(),
        table: name.name.clone(),
        from: mapping.old.clone(),
        to: mapping.new.clone(),
        old_type: old_type.clone(),
        new_type: new.as_ref().map(|c| c.type_name.clone()).or_else(|| planned.clone()),
    };
    let forward = expressions::read(session, &frame, &mapping.forward, true).await?;
    let reverse = expressions::read(session, &frame, &mapping.reverse, false).await?;
    let new_type = planned.map(|type_name| TypeFacts { exact_equality: class(&type_name) == Class::Exact, type_name, collation: None });

    let mariadb = session.version().is_mariadb();
    let table = &mut found.table;
    table.missing_rights = rights::missing(session, &name, home).await?;
    let mut innodb = InnoDb { no_triggers: rights::no_triggers(session).await?, insert_select_refused: mariadb, ..found.innodb };
    table.triggers = triggers::read(session, &name).await?;
    let indexes = indexes::read(session, &name).await?;
    innodb.fulltext = indexes.iter().filter(|i| i.kind == "FULLTEXT").map(|i| i.name.clone()).collect();
    innodb.fulltext_copies = !mariadb;
    table.key = indexes::clustered(&indexes, &table.columns, [&mapping.old, &mapping.new]);
    for leaf in &mut table.leaves {
        leaf.key.clone_from(&table.key);
    }
    table.new_indexes = indexes.iter().filter(|i| i.covers(new_name)).map(|i| i.name.clone()).collect();
    let new_type_name = frame.new_type.clone().unwrap_or_default();
    table.indexes = indexes.iter().filter(|i| i.covers(old_name)).map(|i| i.describe(old_name, new_name, &new_type_name)).collect();
    let constraints = constraints::read(session, &name, &found.text).await?;
    table.checks = constraints.checks_over(old_name);
    table.foreign_keys = constraints.foreign_keys_over(old_name, new_name, old_type.as_deref(), &new_type_name);
    innodb.cascades = constraints.cascades();
    if let Some(old) = &old {
        table.dependents = dependents::read(session, &name, table, &constraints, old_name).await?;
        let unique = indexes.iter().any(|i| i.unique && i.covers(old_name));
        let free = !unique && table.checks.is_empty() && table.foreign_keys.is_empty();
        let null_instantly = mariadb && innodb.row_format.eq_ignore_ascii_case("redundant");
        table.ways = Ways {
            not_null_by_check: false,
            null_instantly,
            relaxed: if free && !null_instantly { default::harmless(&old.type_name, mariadb) } else { None },
            goes_before: goes_before(table, &indexes, old_name),
            in_place: if mariadb { "NOCOPY" } else { "INPLACE" },
            set_statement: mariadb,
        };
    }
    // By the name that it has now, since what reads a column here reads it by name.
    table.rebuilds = follows_the_column(table, &constraints, mapping);
    let old_default = origin.map_or_else(|| old.as_ref().and_then(|c| c.default.clone()), |o| o.old_default.clone());
    if let (Some(default), Some(old)) = (old_default, &old) {
        let on_update = super::definition::Definition::parse(&old.definition).on_update;
        let mapped_by_user = matches!(mapping.forward, crate::change::Expr::Sql(_));
        table.new_default = Some(default::translate(session, &frame, &default, on_update, &forward, mapped_by_user).await?);
    }
    table.innodb = Some(innodb);
    frame::forget(session).await?;
    Ok(Catalog { server, table: Some(found.table), new_type, forward, reverse })
}

/// What is over the old column, in the order in which it must go.
fn goes_before(table: &crate::engine::catalog::Table, indexes: &[indexes::Found], old: &str) -> Vec<Attached> {
    let keys = table.foreign_keys.iter().map(|c| Attached::ForeignKey(c.name.clone()));
    let checks = table.checks.iter().map(|c| Attached::Check(c.name.clone()));
    let over = indexes.iter().filter(|i| i.covers(old)).map(|i| Attached::Index(i.name.clone()));
    keys.chain(checks).chain(over).collect()
}

/// What a rename refuses, or takes along with the column: none of it can be exchanged with the names.
fn follows_the_column(table: &crate::engine::catalog::Table, constraints: &constraints::Constraints, mapping: &Mapping) -> Vec<Rebuild> {
    let reason = |words: &str| Err(format!("a {words} follows the column, or refuses its renaming, and sete doesn't make it again"));
    let mut out = Vec::new();
    for name in [&mapping.old, &mapping.new] {
        let checks = constraints.checks_over(name).into_iter().map(|c| (DependentKind::Check, c.name));
        let generated = table
            .columns
            .iter()
            .filter(|c| c.generated && dependents::mentions(&c.definition, name))
            .map(|c| (DependentKind::GeneratedColumn, c.name.clone()));
        out.extend(checks.chain(generated).map(|(kind, name)| Rebuild { kind, name, statements: reason(kind.words()) }));
    }
    out
}

/// Whether a type takes a character set.
fn is_text(type_name: &str) -> bool {
    class(type_name) == Class::Text && type_word(type_name) != "json"
}
