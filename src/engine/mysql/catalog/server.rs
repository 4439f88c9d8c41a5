//! The server, and what our account may do on it.

use crate::engine::catalog::Server;
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::{Flavor, Version};
use crate::error::Result;

pub(super) async fn read(session: &mut Session, home: &str, place: &str) -> Result<Server> {
    let version = session.version().clone();
    let row = session.one("SELECT CURRENT_USER()", (), "asking who we are").await?;
    let user: String = get(&row, 0)?;
    let (major, minor, patch) = version.number;
    Ok(Server {
        version: version.to_string(),
        version_number: major * 10_000 + minor * 100 + patch,
        database: home.to_string(),
        user,
        address: place.to_string(),
        read_only: session.read_only().map(str::to_string),
        superuser: false,
        // There is no session_replication_role.
        can_suppress_triggers: false,
        can_keep_state: super::rights::can_create(session, home).await?,
        can_walk_physically: false,
        too_old: too_old(&version),
        untested: untested(&version),
        timeouts: Vec::new(),
    })
}

fn too_old(version: &Version) -> Option<String> {
    match (version.flavor, version.number) {
        (Flavor::MySql, number) if number < (8, 0, 29) => Some("it is older than MySQL 8.0.29, the first that drops a column instantly".into()),
        (Flavor::MariaDb, number) if number < (10, 6, 0) => Some("it is older than MariaDB 10.6, the first with SKIP LOCKED".into()),
        _ => None,
    }
}

fn untested(version: &Version) -> bool {
    match version.flavor {
        Flavor::MySql => version.number >= (10, 0, 0),
        Flavor::MariaDb => version.number >= (12, 0, 0),
    }
}
