//! Structure of the old column that can't be copied for the new one.

use super::{Look, finding};
use crate::engine::catalog::Constraint;
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::plan::{DefaultPart, Part, SwitchMode};
use crate::stage::Stage;

fn by_hand(stage: Stage, subject: String, message: String) -> Finding {
    finding(Severity::Later(stage), Code::StructureByHand, subject, message)
}

pub fn indexes(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.plan.structure.index != Part::Auto {
        return;
    }
    for index in &look.table.indexes {
        if let Some(reason) = &index.not_copyable {
            out.push(by_hand(Stage::Validate, format!("index {}", index.name), format!("{reason}. It is: {}", index.definition)));
        }
    }
}

pub fn checks(look: &Look<'_>, out: &mut Vec<Finding>) {
    constraints(&look.plan.structure.check, "check", &look.table.checks, out);
}

pub fn foreign_keys(look: &Look<'_>, out: &mut Vec<Finding>) {
    constraints(&look.plan.structure.foreign_key, "foreign key", &look.table.foreign_keys, out);
}

fn constraints(part: &Part, words: &str, constraints: &[Constraint], out: &mut Vec<Finding>) {
    if *part != Part::Auto {
        return;
    }
    for constraint in constraints {
        if let Err(reason) = &constraint.rewritten {
            out.push(by_hand(Stage::Validate, format!("{words} {}", constraint.name), format!("{reason}. It is: {}", constraint.definition)));
        }
    }
}

/// The default moves with the name, or else when the old column is no longer written.
pub fn default(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.plan.structure.default != DefaultPart::Auto {
        return;
    }
    if let Some(Err(reason)) = &look.table.new_default {
        let stage = if look.plan.read_switch.mode == SwitchMode::Swap { Stage::ReadSwitch } else { Stage::StopWrites };
        out.push(by_hand(stage, format!("default of {}", look.old_name), reason.clone()));
    }
}
