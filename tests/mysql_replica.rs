//! A replica's lag holds the backfill, on real replicas of MySQL and MariaDB; one that can't be asked holds it too.

use crate::support::mysql::{Server, available, retype};
use crate::support::sete::{Sete, finish};
use crate::support::until;

/// A replica that lags behind on purpose.
fn replica(kind: &str, of: &Server, delay_s: u32) -> Server {
    let replica = Server::start(kind, &[]);
    of.sql("mysql", "CREATE USER repl@'%' IDENTIFIED BY 'repl'; GRANT REPLICATION SLAVE ON *.* TO repl@'%'");
    let status = if of.is_mariadb() { "SHOW MASTER STATUS" } else { "SHOW BINARY LOG STATUS" };
    let place = of.sql("mysql", status);
    let mut place = place.split('\t');
    let (file, position) = (place.next().expect("a file"), place.next().expect("a position"));
    replica.sql(
        "mysql",
        &if of.is_mariadb() {
            format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'repl', MASTER_PASSWORD = 'repl', MASTER_LOG_FILE = '{file}', \
                 MASTER_LOG_POS = {position}, MASTER_DELAY = {delay_s}; START SLAVE",
                of.port()
            )
        } else {
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {}, SOURCE_USER = 'repl', SOURCE_PASSWORD = 'repl', \
                 SOURCE_LOG_FILE = '{file}', SOURCE_LOG_POS = {position}, SOURCE_DELAY = {delay_s}, GET_SOURCE_PUBLIC_KEY = 1; START REPLICA",
                of.port()
            )
        },
    );
    replica
}

#[test]
fn the_backfill_waits_for_a_replica() {
    for kind in available() {
        let server = Server::start(&kind, &[]);
        // From its place in the log on: what comes later is there, too.
        let replica = replica(&kind, &server, 4);
        let (db, url) = server.fresh_db();
        server.sql(&db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT); INSERT INTO t (v) VALUES (1), (2), (3), (4), (5), (6), (7), (8)");
        server.sql(&db, "INSERT INTO t (v) SELECT a.v FROM t a, t b, t c");
        let more = "[backfill]\nbatch_rows = 10\nmax_rows_per_s = 60\n[throttle]\nreplicas = [\"env:SETE_TEST_REPLICA\"]\nmax_replica_lag = \"1s\"";
        let plan = retype("p", "t", "v", "w", "bigint", more);
        let sete = Sete::new(&url, &plan).env("SETE_TEST_REPLICA", &replica.url("mysql"));
        sete.through("dual_write");
        let run = sete.start("step", &["--through", "backfill"]);
        let throttled = || sete.status()["backfill"]["throttled_by"].as_str().map(str::to_owned);
        let wait_for = |what: &str| until(&format!("{kind}: {what}"), || throttled().is_some_and(|by| by.contains(what)));
        wait_for("SETE_TEST_REPLICA");
        // Its threads stand still: nobody knows how far behind it is.
        replica.sql("mysql", if server.is_mariadb() { "STOP SLAVE" } else { "STOP REPLICA" });
        wait_for("unknown");
        let delay = if server.is_mariadb() {
            "CHANGE MASTER TO MASTER_DELAY = 0; START SLAVE"
        } else {
            "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0; START REPLICA"
        };
        replica.sql("mysql", delay);
        let out = finish(run);
        assert_eq!(out.code, 0, "{kind}: {}", out.text());
        assert_eq!(server.sql(&db, "SELECT COUNT(*) FROM t WHERE w = v"), "520");
    }
}
