//! The old column and the new one.

use super::{Look, blocker};
use crate::error::Code;
use crate::finding::Finding;

pub fn old_column(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.old.is_none() && !look.dropped() {
        let lower = look.old_name.to_lowercase();
        let similar = look.table.columns.iter().find(|c| c.name.to_lowercase() == lower);
        let hint = similar.map(|c| format!("; there is one called {}", c.name)).unwrap_or_default();
        out.push(blocker(Code::ColumnMissing, format!("column {}", look.old_name), format!("table {} has no such column{hint}", look.table.name)));
    }
}

pub fn key_column(look: &Look<'_>, out: &mut Vec<Finding>) {
    let keys = look.table.key.iter().chain(look.table.leaves.iter().filter_map(|l| l.key.as_ref()));
    if let Some(key) = keys.into_iter().find(|k| k.primary && k.columns.iter().any(|(name, _)| name == look.old_name)) {
        // What another tool does by a copy of the table is no loss to name.
        let (table, address) = (&look.table.name, &look.catalog.server.address);
        let elsewhere = match (&look.table.innodb, &look.plan.change.new_type) {
            (Some(_), Some(new_type)) => format!(". {}", crate::handover::change_type(address, table, look.old_name, new_type)),
            _ => String::new(),
        };
        out.push(blocker(Code::KeyColumn, format!("column {}", look.old_name), format!("it is in primary key {}{elsewhere}", key.name)));
    }
}

pub fn generated_column(look: &Look<'_>, out: &mut Vec<Finding>) {
    let Some(old) = look.old else { return };
    for (is, words) in [(old.generated, "it is generated from other columns"), (old.identity, "it is an identity column")] {
        if is {
            out.push(blocker(Code::GeneratedColumn, format!("column {}", old.name), words));
        }
    }
}

pub fn new_type(look: &Look<'_>, out: &mut Vec<Finding>) {
    if let (Some(name), None) = (&look.plan.change.new_type, &look.catalog.new_type) {
        let hint = type_hint(name).filter(|_| look.table.innodb.is_none()).map(|hint| format!("; {hint}")).unwrap_or_default();
        out.push(blocker(Code::TypeMissing, format!("type {name}"), format!("no column can be of this type{hint}")));
    }
}

/// For names that people bring along.
fn type_hint(name: &str) -> Option<&'static str> {
    let lower = name.trim().to_lowercase();
    let word = lower.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    Some(match word {
        "datetime" => "PostgreSQL calls it timestamp or timestamptz",
        "tinyint" => "the smallest integer of PostgreSQL is smallint",
        "double" => "PostgreSQL calls it double precision",
        "string" | "nvarchar" | "longtext" | "mediumtext" | "clob" => "PostgreSQL calls it text or varchar(n)",
        "blob" | "binary" | "varbinary" => "PostgreSQL calls it bytea",
        "guid" => "PostgreSQL calls it uuid",
        "enum" => "an enum is made first: CREATE TYPE … AS ENUM (…)",
        _ if lower.contains("collate") => "a collation is no part of a type; the old column's is kept",
        _ => return None,
    })
}

/// Only before the first stage: later it is the column we made, with what stage 4 gave it.
pub fn new_column(look: &Look<'_>, out: &mut Vec<Finding>) {
    let (Some(new), None) = (look.new, look.origin) else { return };
    let subject = format!("column {}", new.name);
    if let Some(planned) = &look.catalog.new_type {
        let words = |ty: &str, collation: &Option<String>| collation.as_ref().map_or(ty.to_string(), |c| format!("{ty} COLLATE {c}"));
        let (is, wanted) = (words(&new.type_name, &new.collation), words(&planned.type_name, &planned.collation));
        if is != wanted {
            out.push(blocker(Code::NewColumnType, &subject, format!("it is of type {is}, the plan says {wanted}")));
        }
    }
    let mut filled = Vec::new();
    if let Some(default) = new.default.as_ref().filter(|d| !d.starts_with("NULL::")) {
        filled.push(format!("it has the default {default}"));
    }
    for (is, words) in [(new.not_null, "it is NOT NULL"), (new.generated, "it is generated"), (new.identity, "it is an identity column")] {
        if is {
            filled.push(words.to_string());
        }
    }
    if !filled.is_empty() {
        out.push(blocker(Code::NewColumnFilled, subject, filled.join(", ")));
    }
}
