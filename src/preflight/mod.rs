//! What stands in the way of a plan, said before anything is written. Pure, and the same for every engine.
//!
//! Each check is one small function in one of the lists below: adding a check adds a function and a line.

mod columns;
mod dependents;
mod expressions;
mod innodb;
mod server;
mod structure;
mod table;

use crate::engine::catalog::{Catalog, Column, Table};
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::plan::Plan;
use crate::resolve::is_swapped;
use crate::state::Origin;

/// What a check looks at.
struct Look<'a> {
    plan: &'a Plan,
    catalog: &'a Catalog,
    table: &'a Table,
    /// What the table was when the plan began; None before its first stage.
    origin: Option<&'a Origin>,
    /// The two columns by what they hold, under the names they have now.
    old: Option<&'a Column>,
    new: Option<&'a Column>,
    old_name: &'a str,
    new_name: &'a str,
    swapped: bool,
}

impl Look<'_> {
    /// The old column is gone because the plan is through.
    fn dropped(&self) -> bool {
        self.origin.is_some() && self.old.is_none()
    }
}

/// The checks of a table that is there and can be changed, in the order in which a reader wants them.
const CHECKS: &[fn(&Look<'_>, &mut Vec<Finding>)] = &[
    table::rights,
    table::row_security,
    table::inheritance,
    table::partition_key,
    table::foreign_leaves,
    table::walk_key,
    table::column_numbers,
    table::user_triggers,
    table::later_triggers,
    table::replica_identity,
    table::publication_columns,
    innodb::engine,
    innodb::trigger_rights,
    innodb::cascades,
    innodb::instant_columns,
    innodb::not_null,
    innodb::insert_select,
    innodb::zero_dates,
    columns::old_column,
    columns::key_column,
    columns::generated_column,
    columns::new_type,
    columns::new_column,
    expressions::work,
    expressions::fit,
    expressions::read,
    expressions::lossy_reverse,
    structure::indexes,
    structure::checks,
    structure::foreign_keys,
    structure::default,
    dependents::of_the_drop,
    dependents::of_the_swap,
    dependents::cached_plans,
];

/// All that is to be said about the plan on this server, the weightiest first.
pub fn findings(plan: &Plan, catalog: &Catalog, origin: Option<&Origin>) -> Vec<Finding> {
    let mut out = Vec::new();
    for check in [server::version, server::walk, server::read_only, server::state, server::timeouts] {
        check(plan, catalog, &mut out);
    }
    match &catalog.table {
        None => {
            out.push(blocker(Code::TableMissing, format!("table {}", plan.change.table), "there is no relation of this name that the role can see"))
        }
        Some(table) => match table::not_a_table(table) {
            Some(finding) => out.push(finding),
            None => {
                let look = look(plan, catalog, table, origin);
                CHECKS.iter().for_each(|check| check(&look, &mut out));
            }
        },
    }
    // Stable: within a weight the order of the lists stays.
    out.sort_by_key(weight);
    out
}

fn look<'a>(plan: &'a Plan, catalog: &'a Catalog, table: &'a Table, origin: Option<&'a Origin>) -> Look<'a> {
    let (from, to) = (table.column(&plan.change.from), table.column(&plan.change.to));
    let swapped = origin.is_some_and(|o| is_swapped(o, from, to));
    let (old, new) = if swapped { (to, from) } else { (from, to) };
    let (old_name, new_name) = if swapped { (&plan.change.to, &plan.change.from) } else { (&plan.change.from, &plan.change.to) };
    Look { plan, catalog, table, origin, old, new, old_name, new_name, swapped }
}

fn weight(finding: &Finding) -> (u8, usize) {
    match finding.severity {
        Severity::Blocker => (0, 0),
        Severity::Later(stage) => (1, stage.number()),
        Severity::Warning => (2, 0),
        Severity::Note => (3, 0),
    }
}

fn finding(severity: Severity, code: Code, subject: impl Into<String>, message: impl Into<String>) -> Finding {
    Finding { code, severity, subject: subject.into(), message: message.into() }
}

fn blocker(code: Code, subject: impl Into<String>, message: impl Into<String>) -> Finding {
    finding(Severity::Blocker, code, subject, message)
}
