//! A replica's lag holds the backfill, on real replicas of MySQL and MariaDB; one that can't be asked holds it too.

use std::time::Duration;

use crate::support::mysql::{Server, each_kind, retype};
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

/// A plan whose backfill of 520 rows takes nine seconds, after stage 2.
fn slow_backfill(server: &Server, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.sql(&db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT); INSERT INTO t (v) VALUES (1), (2), (3), (4), (5), (6), (7), (8)");
    server.sql(&db, "INSERT INTO t (v) SELECT a.v FROM t a, t b, t c");
    let plan = retype("p", "t", "v", "w", "bigint", &format!("[backfill]\nbatch_rows = 10\nmax_rows_per_s = 60\n[throttle]\n{more}"));
    let sete = Sete::new(&url, &plan);
    (db, sete)
}

fn until_held_by(sete: &Sete, what: &str, mut meanwhile: impl FnMut()) {
    until(&format!("the backfill is held by {what}"), || {
        meanwhile();
        sete.status()["backfill"]["throttled_by"].as_str().is_some_and(|by| by.contains(what))
    });
}

fn all_filled(server: &Server, db: &str, run: std::process::Child) {
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(server.sql(db, "SELECT COUNT(*) FROM t WHERE w = v"), "520");
}

#[test]
fn the_backfill_waits_for_a_heartbeat() {
    each_kind(|kind| {
        let server = Server::start(kind, &[]);
        let replica = Server::start(kind, &[]);
        // Nobody has ever written into it; then it is old, by another clock, and at last fresh.
        replica.sql("mysql", "CREATE DATABASE beats; CREATE TABLE beats.heartbeat (ts VARCHAR(26) NOT NULL, server_id INT UNSIGNED PRIMARY KEY)");
        let more = "replicas = [\"env:SETE_TEST_REPLICA\"]\nmax_replica_lag = \"1s\"\nheartbeat = \"beats.heartbeat\"";
        let (db, sete) = slow_backfill(&server, more);
        let sete = sete.env("SETE_TEST_REPLICA", &replica.url("mysql"));
        sete.through("dual_write");
        let mut run = sete.start("step", &["--through", "backfill"]);
        let beat = |offset: &str| {
            let ts = format!("DATE_FORMAT(UTC_TIMESTAMP(6) {offset}, '%Y-%m-%dT%H:%i:%s.%f')");
            replica.sql("beats", &format!("REPLACE INTO heartbeat VALUES ({ts}, 1)"));
        };
        until_held_by(&sete, "is unknown", || {});
        until_held_by(&sete, " s behind, more than 1s", || beat("- INTERVAL 1 MINUTE"));
        until_held_by(&sete, "is unknown", || beat("+ INTERVAL 1 HOUR"));
        while run.try_wait().expect("a child").is_none() {
            beat("");
            std::thread::sleep(Duration::from_millis(50));
        }
        all_filled(&server, &db, run);
    });
}

#[test]
fn the_backfill_waits_for_innodb() {
    each_kind(|kind| {
        let server = Server::start(kind, &[]);
        let (db, sete) = slow_backfill(&server, "max_history_list = 1000\nmax_redo_fill = \"1%\"");
        server.sql(&db, "CREATE TABLE busy (id INT PRIMARY KEY, v LONGTEXT); INSERT INTO busy VALUES (1, '')");
        sete.through("dual_write");
        let run = sete.start("step", &["--through", "backfill"]);
        until_held_by(&sete, "% of the redo log waiting for a checkpoint, more than 1 %", || {
            server.sql(&db, "UPDATE busy SET v = REPEAT(RAND(), 100000)");
        });
        // MariaDB leaves it at that while it is idle.
        server.sql("mysql", "SET GLOBAL innodb_max_dirty_pages_pct = 0");
        std::thread::scope(|scope| {
            // What a reader may still want to see is not purged.
            let reader = scope.spawn(|| server.client(&db, "START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT SLEEP(600)"));
            let update = "UPDATE busy SET v = RAND();";
            until_held_by(&sete, "transactions in the history list, more than 1000", || drop(server.sql(&db, &update.repeat(500))));
            let id = server.sql("mysql", "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(600)'");
            server.sql("mysql", &format!("KILL {id}"));
            drop(reader.join());
        });
        all_filled(&server, &db, run);
    });
}

#[test]
fn the_backfill_waits_for_a_replica() {
    each_kind(|kind| {
        let server = Server::start(kind, &[]);
        // From its place in the log on: what comes later is there, too.
        let replica = replica(kind, &server, 4);
        let (db, sete) = slow_backfill(&server, "replicas = [\"env:SETE_TEST_REPLICA\"]\nmax_replica_lag = \"1s\"");
        let sete = sete.env("SETE_TEST_REPLICA", &replica.url("mysql"));
        sete.through("dual_write");
        let run = sete.start("step", &["--through", "backfill"]);
        until_held_by(&sete, "SETE_TEST_REPLICA", || {});
        // Its threads stand still: nobody knows how far behind it is.
        replica.sql("mysql", if server.is_mariadb() { "STOP SLAVE" } else { "STOP REPLICA" });
        until_held_by(&sete, "unknown", || {});
        let delay = if server.is_mariadb() {
            "CHANGE MASTER TO MASTER_DELAY = 0; START SLAVE"
        } else {
            "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0; START REPLICA"
        };
        replica.sql("mysql", delay);
        all_filled(&server, &db, run);
    });
}
