//! What InnoDB's DDL depends on, and what its triggers can't see.

use super::{Look, blocker, finding};
use crate::engine::catalog::InnoDb;
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::handover;
use crate::plan::{DropRebuild, Part};
use crate::stage::Stage;

fn table(look: &Look<'_>) -> String {
    format!("table {}", look.table.name)
}

pub fn engine(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    if !innodb.engine.eq_ignore_ascii_case("InnoDB") {
        out.push(blocker(Code::NotInnoDb, table(look), format!("it is in {}", innodb.engine)));
    }
}

pub fn trigger_rights(look: &Look<'_>, out: &mut Vec<Finding>) {
    if let Some(reason) = look.table.innodb.as_ref().and_then(|i| i.no_triggers.as_ref()).filter(|_| !look.dropped()) {
        out.push(blocker(Code::TriggerRights, format!("account {}", look.catalog.server.user), reason));
    }
}

pub fn cascades(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    if look.dropped() {
        return;
    }
    let ours = |column: &String| column == look.old_name || column == look.new_name || look.catalog.forward.reads.contains(column);
    for cascade in innodb.cascades.iter().filter(|c| c.columns.iter().any(ours)) {
        let message = format!("{} changes {} without firing a trigger", cascade.rule, cascade.columns.join(", "));
        out.push(blocker(Code::Cascade, format!("foreign key {}", cascade.name), message));
    }
}

/// Why a column can't be added or dropped in the catalog alone.
fn no_instant(innodb: &InnoDb) -> Option<String> {
    if innodb.row_format.eq_ignore_ascii_case("compressed") {
        return Some("its rows are COMPRESSED".to_string());
    }
    if let Some(index) = innodb.fulltext.first() {
        return Some(format!("FULLTEXT index {index} is on it"));
    }
    match innodb.row_versions {
        Some((used, most)) if used >= most => {
            Some(format!("its {most} instant changes are used up: OPTIMIZE TABLE, or another rebuild at a time that suits you, sets the count back"))
        }
        _ => None,
    }
}

/// So few instant changes left are worth a word: a plan takes two.
const FEW: u32 = 4;

pub fn instant_columns(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    if look.dropped() {
        return;
    }
    match (no_instant(innodb), innodb.row_versions) {
        (Some(reason), _) => {
            if look.new.is_none() {
                out.push(blocker(Code::NotOnline, table(look), format!("no column can be added in the catalog alone: {reason}")));
            }
            if look.plan.drop.rebuild == DropRebuild::Refuse {
                let commands = handover::drop_column(&look.catalog.server.address, &look.table.name, look.old_name);
                out.push(finding(Severity::Later(Stage::Drop), Code::NotOnline, table(look), format!("no column can be dropped in the catalog alone: {reason}. {commands}")));
            }
        }
        (None, Some((used, most))) if most - used < FEW => {
            out.push(finding(Severity::Warning, Code::NotOnline, table(look), format!("{used} of its {most} instant changes are used; the plan takes two")));
        }
        _ => {}
    }
}

/// A rebuild in place is no choice where a stored column must be computed anew.
pub fn not_null(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    let strict = look.origin.map_or(look.old.is_some_and(|c| c.not_null), |o| o.old_not_null);
    if strict && innodb.insert_select_refused && !innodb.stored_columns.is_empty() && look.plan.structure.not_null == Part::Auto && !look.dropped() {
        let message = format!("with the stored column {} on the table, NOT NULL is added by a copy only", innodb.stored_columns.join(", "));
        out.push(finding(Severity::Later(Stage::Validate), Code::StructureByHand, format!("NOT NULL of {}", look.new_name), message));
    }
}

pub fn insert_select(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    let strict = look.origin.map_or(look.old.is_some_and(|c| c.not_null && c.default.is_none()), |o| o.old_not_null && o.old_default.is_none());
    if innodb.insert_select_refused && strict && !look.dropped() {
        let message = format!(
            "from stage 4 on an INSERT … SELECT that leaves out {}, and until stage 6 one that leaves out {}, fails with error 1364, trigger or not; INSERT … VALUES does not",
            look.new_name, look.old_name
        );
        out.push(finding(Severity::Warning, Code::InsertSelect, table(look), message));
    }
}

pub fn zero_dates(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(innodb) = &look.table.innodb else { return };
    if !innodb.zero_dates.is_empty() && !look.dropped() {
        out.push(finding(Severity::Note, Code::ZeroDate, table(look), format!("the default of {}", innodb.zero_dates.join(", "))));
    }
}
