//! The table as a derived table, so that expressions can be tried before a column exists and after the names were swapped.

use super::types::Ty;
use crate::engine::postgres::sql::{ident, qualified};
use crate::plan::TableName;

/// The table's columns, with the two of the plan by their part in it.
pub(super) struct Frame {
    pub table: TableName,
    /// All columns but the two.
    pub others: Vec<String>,
    /// The plan's names.
    pub from: String,
    pub to: String,
    /// The names are exchanged.
    pub swapped: bool,
    /// The columns by what they hold, under the names they have now; None where there is none.
    pub old: Option<String>,
    pub new: Option<String>,
    pub old_type: Option<Ty>,
    pub new_type: Option<Ty>,
}

impl Frame {
    /// With the names as the plan means them: `from` holds the old values.
    pub fn planned(&self) -> String {
        self.select(false)
    }

    /// With the names as they are now.
    pub fn current(&self) -> String {
        self.select(self.swapped)
    }

    /// With the names as they would be after one more swap.
    pub fn exchanged(&self) -> String {
        self.select(!self.swapped)
    }

    /// As it stands in FROM, under the table's own name.
    pub fn named(&self, select: &str) -> String {
        format!("({select}) AS {}", ident(&self.table.name))
    }

    fn select(&self, swapped: bool) -> String {
        let value = |column: &Option<String>, ty: &Option<Ty>| match (column, ty) {
            (Some(name), _) => format!("t.{}", ident(name)),
            (None, Some(ty)) => format!("NULL::{}", ty.name),
            (None, None) => "NULL".to_string(),
        };
        let (old, new) = (value(&self.old, &self.old_type), value(&self.new, &self.new_type));
        let (from, to) = if swapped { (new, old) } else { (old, new) };
        let mut columns: Vec<String> = self.others.iter().map(|name| format!("t.{}", ident(name))).collect();
        columns.push(format!("{from} AS {}", ident(&self.from)));
        columns.push(format!("{to} AS {}", ident(&self.to)));
        format!("SELECT {} FROM {} AS t", columns.join(", "), qualified(&self.table))
    }
}
