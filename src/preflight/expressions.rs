//! The two directions of the mapping.

use super::{Look, blocker, finding};
use crate::engine::catalog::Expression;
use crate::error::Code;
use crate::finding::{Finding, Severity};

/// Both, unless there is a simpler reason for which they can't work.
fn both<'a>(look: &Look<'a>) -> Vec<(&'static str, &'a Expression)> {
    if look.old.is_none() || look.catalog.new_type.is_none() {
        return Vec::new();
    }
    vec![("forward", &look.catalog.forward), ("reverse", &look.catalog.reverse)]
}

pub fn work(look: &Look<'_>, out: &mut Vec<Finding>) {
    for (name, expression) in both(look) {
        if let Err(message) = &expression.result {
            out.push(blocker(Code::ExpressionInvalid, format!("change.{name}"), format!("`{}`: {message}", expression.sql)));
        }
    }
}

pub fn fit(look: &Look<'_>, out: &mut Vec<Finding>) {
    let new_type = look.catalog.new_type.as_ref().map(|t| t.type_name.as_str());
    let old_type = look.old.map(|c| c.type_name.as_str());
    for ((name, expression), wanted) in both(look).into_iter().zip([new_type, old_type]) {
        if let (Ok(returned), false, Some(wanted)) = (&expression.result, expression.assignable, wanted) {
            let message = format!("`{}` returns {returned}, the column is {wanted}: add `::{wanted}`", expression.sql);
            out.push(blocker(Code::ExpressionType, format!("change.{name}"), message));
        }
    }
}

/// Columns that hold nothing yet when the expression is evaluated.
pub fn read(look: &Look<'_>, out: &mut Vec<Finding>) {
    for (name, expression) in both(look).into_iter().filter(|(_, e)| e.result.is_ok()) {
        let generated = |column: &&String| look.table.column(column).is_some_and(|c| c.generated);
        for column in expression.reads.iter().filter(generated) {
            let message = format!("`{}` reads {column}, which is generated after the sync trigger has run", expression.sql);
            out.push(blocker(Code::ExpressionInvalid, format!("change.{name}"), message));
        }
    }
    // In the plan's own names, whatever the columns are called at the moment.
    let forward = &look.catalog.forward;
    if forward.result.is_ok() && forward.reads.contains(&look.plan.change.to) {
        let message = format!("`{}` reads the new column {}, which is empty then", forward.sql, look.plan.change.to);
        out.push(blocker(Code::ExpressionInvalid, "change.forward", message));
    }
}

pub fn lossy_reverse(look: &Look<'_>, out: &mut Vec<Finding>) {
    for (name, expression) in both(look).into_iter().filter(|(name, e)| *name == "reverse" && e.result.is_ok() && e.assignable && !e.safe) {
        let message = format!("`{}` may fail for, or not give back, a value that is written through the new column", expression.sql);
        out.push(finding(Severity::Warning, Code::LossyReverse, format!("change.{name}"), message));
    }
}
