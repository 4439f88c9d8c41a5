//! The server and the role.

use super::{blocker, finding};
use crate::engine::Walk;
use crate::engine::catalog::Catalog;
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::plan::Plan;

pub fn version(_: &Plan, catalog: &Catalog, out: &mut Vec<Finding>) {
    let server = &catalog.server;
    if let Some(reason) = &server.too_old {
        out.push(blocker(Code::ServerTooOld, &server.version, reason));
    } else if server.untested {
        out.push(finding(Severity::Warning, Code::ServerTooOld, &server.version, "it is newer than the versions that sete was tested on"));
    }
}

pub fn walk(plan: &Plan, catalog: &Catalog, out: &mut Vec<Finding>) {
    let server = &catalog.server;
    if Walk::choose(plan.backfill.walk, server.can_walk_physically) == Walk::Physical && !server.can_walk_physically {
        out.push(blocker(Code::ServerTooOld, &server.version, "backfill.walk = \"physical\" needs PostgreSQL 14 or later; take \"auto\" or \"key\""));
    }
}

pub fn read_only(_: &Plan, catalog: &Catalog, out: &mut Vec<Finding>) {
    if let Some(reason) = &catalog.server.read_only {
        out.push(blocker(Code::ReadOnly, format!("server {}", catalog.server.address), reason));
    }
}

pub fn state(_: &Plan, catalog: &Catalog, out: &mut Vec<Finding>) {
    let server = &catalog.server;
    if !server.can_keep_state {
        let message = format!(
            "role {} may neither create the schema sete in database {} nor use and create in one that is there",
            server.user, server.database
        );
        out.push(blocker(Code::Rights, "schema sete", message));
    }
}

pub fn timeouts(_: &Plan, catalog: &Catalog, out: &mut Vec<Finding>) {
    for (name, value) in &catalog.server.timeouts {
        out.push(finding(Severity::Note, Code::RoleTimeout, format!("role {}", catalog.server.user), format!("{name} is {value} by default")));
    }
}
