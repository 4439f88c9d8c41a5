//! `rename`: the same value under another name.

use super::{Expr, Mapping, NewType};
use crate::plan::Change;

pub fn mapping(change: &Change) -> Mapping {
    Mapping {
        old: change.from.clone(),
        new: change.to.clone(),
        new_type: NewType::SameAsOld,
        forward: Expr::Column(change.from.clone()),
        reverse: Expr::Column(change.to.clone()),
    }
}
