//! The main path on every MySQL and MariaDB that is here: through all seven stages and back again, under a live application,
//! and beside a reader that holds the metadata lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::mysql::{Server, each};
use crate::support::sete::{STAGES, Sete, settings};
use crate::support::until;
use crate::support::workload::{Mode, Running, Workload};

fn orders_sql(rows: u32) -> String {
    format!(
        "CREATE TABLE orders (
            id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, status varchar(20) NOT NULL DEFAULT 'new', note text, total int NOT NULL DEFAULT 1,
            updated_at timestamp(6) NOT NULL DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6),
            KEY orders_status (status), KEY orders_total (total, status));
         INSERT INTO orders (status, note, total, updated_at) SELECT ELT(1 + n % 3, 'new', 'paid', 'shipped'), concat('note ', n), n, '2020-01-01'
            FROM (SELECT a.n * 100 + b.n + 1 AS n FROM {HUNDRED} a JOIN {HUNDRED} b) numbers WHERE n <= {rows};
         ANALYZE TABLE orders"
    )
}

const HUNDRED: &str = "(WITH RECURSIVE t AS (SELECT 0 n UNION ALL SELECT n + 1 FROM t WHERE n < 99) SELECT n FROM t)";

fn plan(db: &str, more: &str) -> String {
    format!(
        "id = \"orders-status\"\nengine = \"mysql\"\n[change]\nkind = \"type\"\ntable = \"{db}.orders\"\nfrom = \"status\"\nto = \"status_v2\"\n\
         type = \"enum('new', 'paid', 'shipped')\"\n{}",
        settings(more)
    )
}

fn orders(server: &Server, rows: u32, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.sql(&db, &orders_sql(rows));
    let sete = Sete::new(&url, &plan(&db, more));
    (db, sete)
}

/// Rows where the two columns differ, under whatever names they have.
fn differ(server: &Server, db: &str) -> String {
    server.sql(db, "SELECT count(*) FROM orders WHERE NOT (CAST(status AS CHAR(20)) <=> CAST(status_v2 AS CHAR(20)))")
}

/// The table's definition, without the counter, of which MariaDB forgets what it kept in reserve.
fn form(server: &Server, db: &str) -> String {
    let all = server.sql(db, "SHOW CREATE TABLE orders");
    all.split(' ').filter(|word| !word.starts_with("AUTO_INCREMENT=")).collect::<Vec<_>>().join(" ")
}

fn columns(server: &Server, db: &str) -> String {
    server.sql(db, "SELECT group_concat(column_name, ' ', column_type, ' ', is_nullable ORDER BY column_name SEPARATOR ', ') FROM information_schema.columns WHERE table_schema = database() AND table_name = 'orders' AND column_name LIKE 'status%'")
}

fn triggers(server: &Server, db: &str) -> String {
    server.sql(db, "SELECT count(*) FROM information_schema.triggers WHERE event_object_schema = database()")
}

#[test]
fn a_change_goes_through_all_stages_on_every_server() {
    each(|server| {
        let (db, sete) = orders(server, 3000, "");
        sete.ok("plan", &[]);
        for stage in STAGES {
            assert_eq!(sete.at().0, stage);
            sete.through(stage);
            if matches!(stage, "backfill" | "validate" | "read_switch") {
                assert_eq!(differ(server, &db), "0", "after {stage}");
            }
        }
        assert_eq!(sete.at(), ("drop".into(), "done".into()));
        assert_eq!(columns(server, &db), "status_v2 enum('new','paid','shipped') NO");
        assert_eq!(triggers(server, &db), "0");
        // The default and both indexes came along; the column that moves by itself did not move.
        server.sql(&db, "INSERT INTO orders (note) VALUES ('last')");
        assert_eq!(server.sql(&db, "SELECT status_v2 FROM orders WHERE note = 'last'"), "new");
        assert_eq!(server.sql(&db, "SELECT count(DISTINCT index_name) FROM information_schema.statistics WHERE table_schema = database() AND table_name = 'orders' AND column_name = 'status_v2'"), "2");
        assert_eq!(server.sql(&db, "SELECT count(*) FROM orders WHERE updated_at = '2020-01-01'"), "3000");
    });
}

#[test]
fn every_stage_has_a_way_back() {
    each(|server| {
        let (db, sete) = orders(server, 500, "");
        let before = form(server, &db);
        for stage in &STAGES[..6] {
            sete.through(stage);
            // A write at every stage, which the way back must not lose.
            server.sql(&db, "UPDATE orders SET status = 'shipped' WHERE id = 1; UPDATE orders SET status = 'paid' WHERE id = 1");
        }
        server.sql(&db, "UPDATE orders SET status_v2 = 'new' WHERE id = 2");
        for stage in STAGES[..6].iter().rev() {
            sete.ok("back", &[]);
            assert_eq!(sete.at().0, *stage);
            if matches!(*stage, "stop_writes" | "read_switch" | "validate") {
                assert_eq!(differ(server, &db), "0", "after the way back from {stage}");
            }
        }
        sete.fails("back", &[], 3, "E203");
        assert_eq!(form(server, &db), before);
        assert_eq!(server.sql(&db, "SELECT status FROM orders WHERE id = 2"), "new");
        assert_eq!(triggers(server, &db), "0");
    });
}

#[test]
fn swap_exchanges_the_names_and_back() {
    each(|server| {
        let (db, sete) = orders(server, 500, "[read_switch]\nmode = \"swap\"");
        sete.through("read_switch");
        assert!(columns(server, &db).starts_with("status enum("), "{}", columns(server, &db));
        server.sql(&db, "UPDATE orders SET status = 'shipped' WHERE id = 1; INSERT INTO orders (status) VALUES ('paid')");
        assert_eq!(differ(server, &db), "0");
        sete.ok("back", &[]);
        assert!(columns(server, &db).starts_with("status varchar(20)"), "{}", columns(server, &db));
        server.sql(&db, "UPDATE orders SET status = 'new' WHERE id = 1");
        assert_eq!(differ(server, &db), "0");
        sete.through("drop");
        assert_eq!(columns(server, &db), "status enum('new','paid','shipped') NO");
    });
}

// --- a live application ----------------------------------------------------------------------------------------------

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().expect("a runtime"))
}

fn application(sete: &Sete, db: &str, mode: &str) -> Running {
    let workload = Workload {
        url: sete.url.clone(),
        table: format!("{db}.orders"),
        values: ["new", "paid", "shipped"].map(str::to_owned).to_vec(),
        fixed: Vec::new(),
        mode: mode.parse().expect("a mode"),
        clients: 3,
        rate: 30.0,
        ..Workload::default()
    };
    runtime().block_on(workload.start()).expect("the application starts")
}

#[test]
fn a_live_application_notices_nothing() {
    each(|server| {
        let (db, sete) = orders(server, 3000, "[ddl]\npatience = \"60s\"\n[backfill]\nworkers = 2\nbatch_rows = 100");
        let app = application(&sete, &db, "old/old");
        let deploy = |mode: &str| {
            let mode: Mode = mode.parse().expect("a mode");
            runtime().block_on(app.deploy(mode));
        };
        sete.through("dual_write");
        deploy("mixed/old");
        sete.through("backfill");
        sete.ok("validate", &[]);
        // A time without the sync: until the backfill has been through again, only the old column is true.
        deploy("old/old");
        sete.ok("back", &[]);
        sete.ok("back", &[]);
        sete.through("backfill");
        sete.ok("validate", &[]);
        deploy("new/old");
        sete.through("validate");
        sete.ok("back", &[]);
        sete.through("validate");
        deploy("mixed/new");
        sete.through("read_switch");
        sete.ok("validate", &[]);
        deploy("new/new");
        sete.through("stop_writes");
        sete.ok("back", &[]);
        sete.ok("validate", &[]);
        sete.through("drop");
        let summary = runtime().block_on(app.stop());
        assert!(summary.unnoticed(), "{summary}");
    });
}

/// A reader that has only looked at the table holds its metadata lock: nothing of ours may make others queue for long.
#[test]
fn nobody_queues_for_long_behind_a_reader_that_holds_the_metadata_lock() {
    each(|server| {
        let (db, sete) = orders(server, 500, "[ddl]\npatience = \"60s\"");
        let over = AtomicBool::new(false);
        let longest = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                server.sql(&db, "BEGIN; SELECT count(*) FROM orders; SELECT sleep(12); COMMIT");
            });
            until("the reader holds its lock", || server.sql(&db, "SHOW PROCESSLIST").contains("SELECT sleep(12)"));
            let probe = scope.spawn(|| {
                let mut conn =
                    runtime().block_on(mysql_async::Conn::new(mysql_async::Opts::from_url(&sete.url).expect("an address"))).expect("a session");
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    runtime()
                        .block_on(mysql_async::prelude::Queryable::query_drop(&mut conn, "UPDATE orders SET note = 'probe' WHERE id = 7"))
                        .expect("the application writes");
                    longest = longest.max(began.elapsed());
                    std::thread::sleep(Duration::from_millis(20));
                }
                longest
            });
            let out = sete.run("step", &["--through", "dual_write"]);
            over.store(true, Ordering::Relaxed);
            holder.join().expect("the reader ends");
            let longest = probe.join().expect("the probe ends");
            assert_eq!(out.code, 0, "{}", out.text());
            longest
        });
        // One second is the least that the server can wait for a lock; what is beyond it is the machine's.
        assert!(longest > Duration::ZERO && longest < Duration::from_millis(2500), "an update waited for {longest:?}");
    });
}
