//! The server, and what our role may do on it.

use tokio_postgres::Client;

use super::{Reader, refused};
use crate::engine::catalog::Server;
use crate::error::{Code, Error, Result};

/// Versions from the first that is supported up to, but not including, the first that was never tried.
const SUPPORTED: std::ops::Range<u32> = 130_000..190_000;

pub(super) async fn version_number(client: &Client) -> Result<u32> {
    let text: String = client
        .query_one("SELECT pg_catalog.current_setting('server_version_num')", &[])
        .await
        .map_err(|e| refused("asking for the server's version", e))?
        .get(0);
    text.parse().map_err(|_| Error::new(Code::Internal, format!("the server's version number is `{text}`")))
}

/// Timeouts that the session has without our doing: those of the role, the database or the server.
pub(super) async fn timeouts(reader: &Reader<'_>) -> Result<Vec<(String, String)>> {
    let query = "SELECT name, setting FROM (VALUES ('idle_in_transaction_session_timeout'), ('lock_timeout'), ('statement_timeout'), ('transaction_timeout')) of (name),
                 pg_catalog.current_setting(name, true) AS setting WHERE setting <> '0' ORDER BY name";
    Ok(reader.rows("reading the timeouts", query, &[]).await?.iter().map(|r| (r.get(0), r.get(1))).collect())
}

pub(super) async fn read(reader: &Reader<'_>, address: &str, timeouts: Vec<(String, String)>) -> Result<Server> {
    let r = reader
        .row(
            "reading the server's facts",
            "SELECT current_setting('server_version') AS version, current_database()::text AS database, current_user::text AS role,
                    pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') = 'on' AS read_only,
                    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
                    coalesce((SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'sete'),
                             has_database_privilege(current_database(), 'CREATE')) AS keeps_state",
            &[],
        )
        .await?;
    let superuser: bool = r.get("superuser");
    let may_suppress = !superuser
        && reader.version >= 150_000
        && reader
            .row("reading the right to suppress triggers", "SELECT has_parameter_privilege('session_replication_role', 'SET')", &[])
            .await?
            .get(0);
    let read_only = match (r.get("standby"), r.get("read_only")) {
        (true, _) => Some("it is a standby in recovery".to_string()),
        (_, true) => Some("default_transaction_read_only is on for this role, database or server".to_string()),
        _ => None,
    };
    let version: String = r.get("version");
    Ok(Server {
        // Without the packager's addition, as in `15.18 (Debian 15.18-0+deb12u1)`.
        version: format!("postgres {}", version.split_whitespace().next().unwrap_or(&version)),
        version_number: reader.version,
        database: r.get("database"),
        user: r.get("role"),
        address: address.to_string(),
        read_only,
        superuser,
        can_suppress_triggers: superuser || may_suppress,
        can_keep_state: r.get("keeps_state"),
        // TID range scans came with 14.
        can_walk_physically: reader.version >= 140_000,
        too_old: (reader.version < SUPPORTED.start).then(|| "it is older than PostgreSQL 13".to_string()),
        untested: reader.version >= SUPPORTED.end,
        timeouts,
    })
}
