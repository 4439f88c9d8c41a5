//! Connections to real MySQL and MariaDB servers: ways to log in, TLS, errors, what is pinned.

mod support;

use support::mysql::{Server, shared};

#[test]
fn servers_run() {
    for server in shared() {
        let (db, _) = server.fresh_db();
        assert_eq!(server.sql(&db, "SELECT 1 + 1"), "2");
    }
    let _: Option<Server> = None;
}
