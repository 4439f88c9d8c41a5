//! Kinds of change. Each only says how it maps to the same thing, a [`Mapping`]; no stage asks for the kind.

mod rename;
mod retype;

use crate::plan::{Change, Kind};

/// An expression over a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// The column as it is.
    Column(String),
    /// The column cast to a type, as the server casts by itself where it can.
    Cast { column: String, to: CastTo },
    /// The user's own SQL.
    Sql(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CastTo {
    NewType,
    OldType,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewType {
    SameAsOld,
    Named(String),
}

/// What a change comes down to: one column's values kept in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub old: String,
    pub new: String,
    pub new_type: NewType,
    /// Old to new.
    pub forward: Expr,
    /// New to old.
    pub reverse: Expr,
}

pub fn mapping(change: &Change) -> Mapping {
    match change.kind {
        Kind::Type => retype::mapping(change),
        Kind::Rename => rename::mapping(change),
    }
}
