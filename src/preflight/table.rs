//! The table: what it is, who may change it, how it is walked, and what else fires or listens on it.

use super::{Look, blocker, finding};
use crate::engine::Walk;
use crate::engine::catalog::{RelationKind, ReplicaIdentity, Table};
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::plan::{DualWriteMode, UserTriggers};
use crate::stage::Stage;

pub fn not_a_table(table: &Table) -> Option<Finding> {
    let what = match table.kind {
        RelationKind::Table | RelationKind::Partitioned => return None,
        RelationKind::Partition => {
            let parent = table.inherits.first().map(String::as_str).unwrap_or("another table");
            let message = format!("it is a partition of {}: its columns come from there, so name that one", parent.trim_start_matches("parent "));
            return Some(blocker(Code::NotATable, format!("table {}", table.name), message));
        }
        RelationKind::View => "a view",
        RelationKind::MaterializedView => "a materialized view",
        RelationKind::Foreign => "a foreign table",
        RelationKind::Sequence => "a sequence",
        RelationKind::Temporary => "a temporary table",
        RelationKind::System => "a system table",
        RelationKind::Other => "not a table",
    };
    Some(blocker(Code::NotATable, format!("relation {}", table.name), format!("it is {what}")))
}

pub fn rights(look: &Look<'_>, out: &mut Vec<Finding>) {
    let (user, table) = (&look.catalog.server.user, look.table);
    if !table.owned_by_us {
        let message = format!(
            "every change of its columns needs its owner {}, or a member of that role; {user} is neither, for it or for one of its partitions",
            table.owner
        );
        out.push(blocker(Code::Rights, format!("table {}", table.name), message));
    }
    for missing in &table.missing_rights {
        // An insert is only made at the end, to prove that the old column can be left out.
        let severity = if missing.right == "INSERT" { Severity::Later(Stage::StopWrites) } else { Severity::Blocker };
        out.push(finding(severity, Code::Rights, &missing.on, format!("{user} lacks {}; rights on single columns don't suffice", missing.right)));
    }
}

pub fn row_security(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.table.rows_hidden {
        out.push(blocker(Code::RowSecurity, format!("table {}", look.table.name), format!("its policies apply to {}", look.catalog.server.user)));
    }
}

pub fn inheritance(look: &Look<'_>, out: &mut Vec<Finding>) {
    if !look.table.inherits.is_empty() {
        out.push(blocker(Code::Inheritance, format!("table {}", look.table.name), look.table.inherits.join(", ")));
    }
}

pub fn partition_key(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.table.partition_key.iter().any(|c| c == look.old_name) {
        let message = format!("the table or one of its partitions is partitioned by ({})", look.table.partition_key.join(", "));
        out.push(blocker(Code::PartitionKey, format!("column {}", look.old_name), message));
    }
}

pub fn foreign_leaves(look: &Look<'_>, out: &mut Vec<Finding>) {
    for leaf in look.table.leaves.iter().filter(|l| l.foreign) {
        out.push(blocker(
            Code::NotATable,
            format!("partition {}", leaf.name),
            "it is a foreign table: its rows are on another server, where nothing keeps both columns equal",
        ));
    }
}

pub fn walk_key(look: &Look<'_>, out: &mut Vec<Finding>) {
    if Walk::choose(look.plan.backfill.walk, look.catalog.server.can_walk_physically) != Walk::Key {
        return;
    }
    for leaf in look.table.leaves.iter().filter(|l| l.key.is_none() && !l.foreign) {
        let message = "it has neither a primary key nor a valid unique index over plain NOT NULL columns that the change leaves alone";
        out.push(blocker(Code::NoKey, format!("table {}", leaf.name), message));
    }
}

/// Fewer column numbers left than this are worth a warning.
const FEW_COLUMNS: u32 = 50;

pub fn column_numbers(look: &Look<'_>, out: &mut Vec<Finding>) {
    let (used, max) = (look.table.columns_used, look.table.columns_max);
    if look.new.is_some() || look.dropped() {
        return;
    }
    let message = format!("{used} of {max} column numbers are used, dropped columns included");
    let severity = match max.saturating_sub(used) {
        0 => Severity::Blocker,
        left if left <= FEW_COLUMNS => Severity::Warning,
        _ => return,
    };
    out.push(finding(severity, Code::NoColumnsLeft, format!("table {}", look.table.name), message));
}

pub fn user_triggers(look: &Look<'_>, out: &mut Vec<Finding>) {
    for trigger in look.table.triggers.iter().filter(|t| t.fires_on_backfill) {
        match look.plan.backfill.user_triggers {
            UserTriggers::Refuse => out.push(blocker(Code::UserTrigger, format!("trigger {}", trigger.name), &trigger.definition)),
            UserTriggers::Suppress if !look.catalog.server.can_suppress_triggers => {
                let message =
                    format!("backfill.user_triggers = \"suppress\", but role {} may not set session_replication_role", look.catalog.server.user);
                out.push(blocker(Code::SuppressRights, format!("trigger {}", trigger.name), message));
            }
            UserTriggers::Suppress | UserTriggers::Fire => {}
        }
    }
}

pub fn later_triggers(look: &Look<'_>, out: &mut Vec<Finding>) {
    if look.plan.dual_write.mode != DualWriteMode::Trigger {
        return;
    }
    for trigger in look.table.triggers.iter().filter(|t| t.after_sync) {
        out.push(blocker(
            Code::LaterTrigger,
            format!("trigger {}", trigger.name),
            format!("it would run after the sync trigger: {}", trigger.definition),
        ));
    }
}

pub fn replica_identity(look: &Look<'_>, out: &mut Vec<Finding>) {
    let table = look.table;
    let subject = format!("table {}", table.name);
    let no_identity = match &table.replica_identity {
        ReplicaIdentity::Nothing => Some("its replica identity is nothing"),
        ReplicaIdentity::Default if !table.key.as_ref().is_some_and(|k| k.primary) => {
            Some("its replica identity is the primary key, and it has none")
        }
        _ => None,
    };
    if let (Some(reason), Some(publication)) = (no_identity, table.publications.iter().find(|p| p.updates)) {
        let message = format!("{reason}, but publication {} carries its updates: the server refuses every UPDATE", publication.name);
        out.push(blocker(Code::ReplicaIdentity, &subject, message));
    }
    if let ReplicaIdentity::Index(columns) = &table.replica_identity
        && columns.iter().any(|c| c == look.old_name)
    {
        let message = format!("its replica identity is the index over ({}), which goes with the old column", columns.join(", "));
        out.push(finding(Severity::Later(Stage::Drop), Code::ReplicaIdentity, subject, message));
    }
}

pub fn publication_columns(look: &Look<'_>, out: &mut Vec<Finding>) {
    for publication in &look.table.publications {
        if publication.columns.as_ref().is_some_and(|list| !list.iter().any(|c| c == look.new_name)) {
            let message = format!("its column list lacks {}: subscribers won't get the new column until it is added there", look.new_name);
            out.push(finding(Severity::Warning, Code::ReplicaIdentity, format!("publication {}", publication.name), message));
        }
    }
}
