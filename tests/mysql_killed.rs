//! Kills, lost connections, restarts and rivals on MySQL and MariaDB, all from outside and at whatever moment they come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::mysql::{Server, each, each_kind, retype};
use crate::support::sete::{Sete, finish};
use crate::support::trials::{goes_on_at_once, is_done_after_the_server_came_back, kill_at_random_moments, one_of_two_runs};
use crate::support::{self, signal};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use rand::RngExt;

fn plan(more: &str) -> String {
    retype("orders-status", "orders", "status", "status_v2", "enum('new','paid','shipped')", more)
}

/// `filled` records what sete itself wrote to the new column, from the moment on that the column is there.
fn orders(server: &Server, rows: u32, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    let digits = "CREATE TABLE d (n INT PRIMARY KEY); INSERT INTO d VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)";
    server.sql(
        &db,
        &format!(
            "{digits};
            CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20) NOT NULL DEFAULT 'new', note VARCHAR(40), KEY (status));
            INSERT INTO orders (status, note) SELECT ELT(1 + n % 3, 'new', 'paid', 'shipped'), CONCAT('note ', n) FROM (
                SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * e.n + 10000 * f.n AS n FROM d a, d b, d c, d e, d f) numbers WHERE n <= {rows};
            DROP TABLE d;
            CREATE TABLE filled (seq BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT, was VARCHAR(20))"
        ),
    );
    let sete = Sete::new(&url, &plan(&format!("[backfill]\nuser_triggers = \"fire\"\n{more}")));
    sete.through("expand");
    server.sql(
        &db,
        "DELIMITER //
        CREATE TRIGGER note_fill AFTER UPDATE ON orders FOR EACH ROW BEGIN
            IF @sete_by IS NOT NULL AND NOT OLD.status_v2 <=> NEW.status_v2 THEN INSERT INTO filled (id, was) VALUES (NEW.id, OLD.status_v2); END IF;
        END//",
    );
    sete.through("dual_write");
    (db, sete)
}

/// Waits for a condition in the database.
fn until(server: &Server, db: &str, condition: &str) {
    support::until(condition, || server.sql(db, &format!("SELECT COALESCE(({condition}), 0)")) == "1");
}

/// Then no write of the application goes through, so that it must be said before anybody looks for it elsewhere.
#[test]
fn the_account_of_the_triggers_is_dropped() {
    each(|server| {
        let (db, url) = server.fresh_db();
        let account = format!("run_{db}@'%'");
        server.sql(&db, &format!("CREATE TABLE t (id INT PRIMARY KEY, v INT); CREATE USER {account}; GRANT ALL ON *.* TO {account}"));
        let plan = retype("p", "t", "v", "w", "bigint", "");
        Sete::new(&url.replace("root@", &format!("run_{db}@")), &plan).through("dual_write");
        server.sql(&db, &format!("DROP USER {account}"));
        assert!(String::from_utf8_lossy(&server.client(&db, "INSERT INTO t (id, v) VALUES (1, 1)").stderr).contains("1449"));
        let sete = Sete::new(&url, &plan);
        let out = sete.fails("step", &[], 3, "E132");
        assert!(out.text().contains(&format!("run as 'run_{db}'@'%', an account that does not exist")), "{}", out.text());
        server.sql(&db, &format!("CREATE USER {account}; GRANT ALL ON {db}.* TO {account}; INSERT INTO t (id, v) VALUES (1, 1)"));
        sete.through("validate");
        assert_eq!(server.sql(&db, "SELECT w FROM t"), "1");
    });
}

/// The conversion needs UTC; the application's session has a time zone of its own, and keeps it whatever becomes of its statement.
#[test]
fn a_statement_that_is_killed_in_the_trigger_leaves_its_session_as_it_was() {
    each(|server| tokio::runtime::Runtime::new().expect("a runtime").block_on(kill_in_the_trigger(server)));
}

async fn kill_in_the_trigger(server: &Server) {
    let (db, url) = server.fresh_db();
    server.sql(&db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(6) NULL)");
    let forward = "forward = \"CAST(DATE_FORMAT(at, '%Y-%m-%d %H:%i:%s.%f') AS DATETIME(6))\"\n";
    let plan = plan("").replace("orders\"", "t\"").replace("\"status\"", "\"at\"").replace("\"status_v2\"", "\"at_utc\"");
    let plan = plan.replace("type = \"enum('new','paid','shipped')\"\n", &format!("type = \"datetime(6)\"\n{forward}"));
    Sete::new(&url, &plan).through("dual_write");
    let connect = || async { Conn::new(Opts::from_url(&url).expect("an address")).await.expect("a connection") };
    let (mut application, mut killer) = (connect().await, connect().await);
    application.query_drop("SET time_zone = '+05:00', lc_time_names = 'de_DE'").await.expect("settings");
    let id = application.id();
    let mut killed = 0;
    let began = Instant::now();
    while killed < 30 {
        assert!(began.elapsed() < Duration::from_secs(120), "killed {killed} times only");
        let rows = "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT '2026-01-01 12:00:00' FROM n";
        let insert = application.query_drop(format!("INSERT INTO t (at) {rows}"));
        let kill = async {
            tokio::time::sleep(Duration::from_micros(rand::rng().random_range(0..60_000))).await;
            killer.query_drop(format!("KILL QUERY {id}")).await.expect("the right to kill");
        };
        killed += u32::from(tokio::join!(insert, kill).0.is_err());
        // A kill that came too late is for the next statement.
        let settings = loop {
            if let Ok(Some(row)) = application.query_first::<(String, String), _>("SELECT @@SESSION.time_zone, @@SESSION.lc_time_names").await {
                break row;
            }
        };
        assert_eq!(settings.0, "+05:00", "after {killed} kills");
        // MySQL has no way to set this one for a statement alone: docs/engines.md says so.
        assert!(settings.1 == "de_DE" || !server.is_mariadb(), "after {killed} kills: {}", settings.1);
    }
    application.query_drop("INSERT INTO t (at) VALUES ('2026-01-01 12:00:00')").await.expect("an insert");
    assert_eq!(server.sql(&db, "SELECT COUNT(*) > 0, SUM(NOT at_utc <=> '2026-01-01 07:00:00') FROM t"), "1\t0");
}

const BEGUN: &str = "SELECT COUNT(*) > 0 FROM filled";

/// Every row once, none left out, and the count that is shown is the true one.
fn filled_once(server: &Server, db: &str) {
    let differ = "SELECT COUNT(*) FROM orders WHERE NOT (CAST(status AS BINARY) <=> CAST(status_v2 AS BINARY))";
    assert_eq!(server.sql(db, differ), "0", "rows differ");
    assert_eq!(server.sql(db, "SELECT COUNT(*) - COUNT(DISTINCT id), COUNT(was) FROM filled"), "0\t0", "rows were filled twice");
    let shown = server.sql(db, "SELECT JSON_EXTRACT(data, '$.filled') FROM sete_progress");
    assert_eq!(shown, server.sql(db, "SELECT COUNT(*) FROM filled"), "`filled` is not what was filled");
}

/// The application, as it was before the change: it knows the old column alone. What fails in it fails the test.
fn application(server: &Server, db: &str, rows: u32, stop: &AtomicBool) -> u32 {
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let id = rand::rng().random_range(1..=rows);
        server.sql(db, &format!("UPDATE orders SET status = ELT(1 + {writes} % 3, 'new', 'paid', 'shipped') WHERE id = {id}; INSERT INTO orders (status) VALUES ('paid')"));
        writes += 1;
    }
    writes
}

/// Ends when the test does, however it does.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn killed_at_random_moments_the_backfill_goes_on_at_once() {
    each(|server| {
        let rows = 20_000;
        let pace = |rows_per_s: u32| format!("batch_rows = 500\nworkers = 2\nmax_rows_per_s = {rows_per_s}");
        // So slow that the kills come before the end, however slow the machine is.
        let (db, sete) = orders(server, rows, &pace(600));
        let token = || server.sql(&db, "SELECT token FROM sete_lease").parse::<u64>().expect("a number");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| application(server, &db, rows, &stop));
            let ends = Stop(&stop);
            kill_at_random_moments(&sete, 15, token);
            sete.rewrite(&plan(&format!("[backfill]\nuser_triggers = \"fire\"\n{}", pace(50_000))));
            goes_on_at_once(&sete, token);
            drop(ends);
            assert!(running.join().expect("the application's writes went through") > 0);
        });
        filled_once(server, &db);
        sete.through("validate");
    });
}

#[test]
fn a_session_that_is_ended_is_replaced_within_the_run() {
    each(|server| {
        let (db, sete) = orders(server, 6000, "batch_rows = 100\nworkers = 2\nmax_rows_per_s = 4000");
        let run = sete.start("step", &["--through", "backfill"]);
        until(server, &db, BEGUN);
        for _ in 0..8 {
            let sessions = server.sql(&db, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()");
            let ids: Vec<&str> = sessions.lines().collect();
            if !ids.is_empty() {
                // It may have ended by itself.
                server.client(&db, &format!("KILL {}", ids[rand::rng().random_range(0..ids.len())]));
            }
            std::thread::sleep(Duration::from_millis(rand::rng().random_range(0..100)));
        }
        let out = finish(run);
        assert_eq!(out.code, 0, "{}", out.text());
        assert!(out.stderr.contains("connection lost"), "{}", out.stderr);
        filled_once(server, &db);
    });
}

#[test]
fn a_server_that_crashes_and_comes_back_costs_nothing() {
    each_kind(|kind| {
        let mut server = Server::start(kind, &["--innodb-flush-log-at-trx-commit=1"]);
        for graceful in [false, true] {
            let (db, sete) = orders(&server, 6000, "batch_rows = 100\nmax_rows_per_s = 3000");
            let run = sete.start("step", &["--through", "backfill"]);
            until(&server, &db, BEGUN);
            if graceful {
                server.stop();
            } else {
                server.kill();
            }
            server.restart();
            is_done_after_the_server_came_back(&sete, run);
            filled_once(&server, &db);
        }
    });
}

#[test]
fn a_frozen_runner_that_was_taken_over_writes_nothing_more() {
    each(|server| {
        let (db, sete) = orders(server, 2000, "batch_rows = 10\nmax_rows_per_s = 200");
        let frozen = sete.start("step", &["--through", "backfill"]);
        until(server, &db, BEGUN);
        signal("-STOP", &frozen);
        // It may be frozen in the middle of a transaction, whose locks the server takes from it after some seconds.
        until(
            server,
            &db,
            "SELECT COUNT(*) = 0 FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_mysql_thread_id <> CONNECTION_ID()",
        );
        // Its sessions are there, so its lease and its region's have to end first. Made to end now instead of in 30 s.
        server.sql(&db, "UPDATE sete_lease SET until = '2000-01-01'; UPDATE sete_chunk SET until = '2000-01-01'");
        let other = Sete::new(&sete.url, &plan("[backfill]\nuser_triggers = \"fire\""));
        other.through("backfill");
        let all = || {
            ["orders", "filled", "sete_stage", "sete_progress", "sete_chunk", "sete_lease", "sete_event", "sete_plan"]
                .map(|table| server.sql(&db, &format!("SELECT * FROM {table}")))
        };
        let before = all();
        signal("-CONT", &frozen);
        let out = finish(frozen);
        assert!(out.code == 7 && out.stderr.contains("E602"), "{}: {}", out.code, out.text());
        assert_eq!(all(), before, "the late runner wrote");
        filled_once(server, &db);
    });
}

#[test]
fn of_two_runners_one_runs() {
    each(|server| {
        // So slow that neither gets to the end.
        let (_db, sete) = orders(server, 3000, "batch_rows = 10\nmax_rows_per_s = 20");
        one_of_two_runs(&sete, 4);
    });
}
