//! `type`: the value converted to another type, by a cast where no expression is given.

use super::{CastTo, Expr, Mapping, NewType};
use crate::plan::Change;

pub fn mapping(change: &Change) -> Mapping {
    let expression = |given: &Option<String>, column: &str, to| match given {
        Some(sql) => Expr::Sql(sql.clone()),
        None => Expr::Cast { column: column.to_string(), to },
    };
    Mapping {
        old: change.from.clone(),
        new: change.to.clone(),
        new_type: change.new_type.clone().map_or(NewType::SameAsOld, NewType::Named),
        forward: expression(&change.forward, &change.from, CastTo::NewType),
        reverse: expression(&change.reverse, &change.to, CastTo::OldType),
    }
}
