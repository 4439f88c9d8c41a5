//! What hangs on the old column: it stands in the way of the drop, or of the swap before it.

use super::{Look, finding};
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::plan::SwitchMode;
use crate::stage::Stage;

/// A swap that is still to come makes them again, so that nothing is left for the drop.
fn swap_ahead(look: &Look<'_>) -> bool {
    look.plan.read_switch.mode == SwitchMode::Swap && !look.swapped
}

pub fn of_the_drop(look: &Look<'_>, out: &mut Vec<Finding>) {
    for dependent in &look.table.dependents {
        let subject = format!("{} {}", dependent.kind.words(), dependent.name);
        if !dependent.certain {
            let message = format!("its text mentions both the table and {}: {}", look.old_name, dependent.definition);
            out.push(finding(Severity::Warning, Code::Dependent, subject, message));
        } else if !swap_ahead(look) {
            out.push(finding(Severity::Later(Stage::Drop), Code::Dependent, subject, &dependent.definition));
        }
    }
}

pub fn of_the_swap(look: &Look<'_>, out: &mut Vec<Finding>) {
    for rebuild in look.table.rebuilds.iter().filter(|_| swap_ahead(look) && !look.dropped()) {
        if let Err(reason) = &rebuild.statements {
            out.push(finding(Severity::Later(Stage::ReadSwitch), Code::SwapBlocked, format!("{} {}", rebuild.kind.words(), rebuild.name), reason));
        }
    }
}

pub fn cached_plans(look: &Look<'_>, out: &mut Vec<Finding>) {
    // MySQL's and MariaDB's prepared statements are prepared anew by themselves.
    if look.dropped() || look.table.innodb.is_some() {
        return;
    }
    let swap = if swap_ahead(look) { ", and again when the names are swapped" } else { "" };
    let message =
        format!("statements prepared as SELECT * fail once with \"cached plan must not change result type\" when a column appears or goes{swap}");
    out.push(finding(Severity::Note, Code::CachedPlans, format!("table {}", look.table.name), message));
}
