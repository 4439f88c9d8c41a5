//! The main path on MySQL and MariaDB: through all seven stages and back again, also under a live workload.

mod support;
#[path = "support/workload.rs"]
mod workload;

use support::mysql::{Server, shared};
use support::sete::{Sete, retype};
use workload::Workload;

const STAGES: [&str; 7] = ["expand", "dual_write", "backfill", "validate", "read_switch", "stop_writes", "drop"];

/// varchar to enum, with what hangs on a column.
const ORDERS: &str = "
CREATE TABLE orders (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    status VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'new',
    note VARCHAR(100), total INT,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    KEY orders_status_idx (status), KEY by_note (note, status DESC));
INSERT INTO orders (status, note, total, updated_at)
    SELECT ELT(1 + n % 3, 'new', 'paid', 'shipped'), CONCAT('note ', n), n, '2020-01-01' FROM (
        SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM digits a, digits b, digits c, digits d) numbers WHERE n <= 3000;
DROP TABLE digits;";
const DIGITS: &str = "CREATE TABLE digits (n INT PRIMARY KEY); INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);";
const NEW_TYPE: &str = "enum('new','paid','shipped')";

fn orders(server: &Server, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.sql(&db, DIGITS);
    server.sql(&db, ORDERS);
    let plan = retype("orders-status", "orders", "status", "status_v2", NEW_TYPE, more).replace("engine = \"postgres\"", "engine = \"mysql\"");
    (db, Sete::new(&url, &plan))
}

/// Rows where the two columns differ, under whatever names they have.
fn differ(server: &Server, db: &str) -> String {
    server.sql(db, "SELECT COUNT(*) FROM orders WHERE NOT (CAST(status AS BINARY) <=> CAST(status_v2 AS BINARY))")
}

/// The table as its owner sees it.
fn picture(server: &Server, db: &str) -> String {
    let table = server.sql(db, "SHOW CREATE TABLE orders");
    // What the application has written meanwhile is not the table's form.
    let form: Vec<&str> = table.split(" AUTO_INCREMENT=").collect();
    format!(
        "{} {}",
        form[0],
        server.sql(db, "SELECT GROUP_CONCAT(trigger_name ORDER BY 1) FROM information_schema.triggers WHERE trigger_schema = DATABASE()")
    )
}

fn kind(server: &Server, db: &str, column: &str) -> String {
    server.sql(
        db,
        &format!(
            "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'orders' AND column_name = '{column}'"
        ),
    )
}

#[test]
fn a_change_goes_through_all_stages_on_every_server() {
    for server in shared() {
        let (db, sete) = orders(server, "[backfill]\nbatch_rows = 100\nworkers = 2");
        sete.ok("plan", &[]);
        for stage in STAGES {
            assert_eq!(sete.at().0, stage);
            sete.through(stage);
            if matches!(stage, "backfill" | "validate" | "read_switch") {
                assert_eq!(differ(server, &db), "0", "after {stage}");
            }
        }
        assert_eq!(sete.at(), ("drop".into(), "done".into()));
        assert_eq!((kind(server, &db, "status"), kind(server, &db, "status_v2")), (String::new(), "enum".into()));
        // The structure came along: NOT NULL, default, both indexes. No row looks as if it had been written.
        server.sql(&db, "INSERT INTO orders (note, updated_at) VALUES ('last', '2020-01-01')");
        assert_eq!(server.sql(&db, "SELECT status_v2 FROM orders WHERE note = 'last'"), "new");
        assert_eq!(server.sql(&db, "SELECT COUNT(*) FROM orders WHERE updated_at = '2020-01-01'"), "3001");
        let indexed = "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND column_name = 'status_v2'";
        assert_eq!(server.sql(&db, indexed), "2");
        assert_eq!(server.sql(&db, "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"), "0");
        sete.ok("forget", &[]);
        assert_eq!(server.sql(&db, "SHOW TABLES"), "orders");
    }
}

#[test]
fn swap_exchanges_the_names_and_back() {
    for server in shared() {
        let (db, sete) = orders(server, "[read_switch]\nmode = \"swap\"");
        sete.through("read_switch");
        assert_eq!(kind(server, &db, "status"), "enum");
        server.sql(&db, "UPDATE orders SET status = 'paid' WHERE id = 1; UPDATE orders SET status_v2 = 'shipped' WHERE id = 2; INSERT INTO orders (note) VALUES ('d')");
        assert_eq!(differ(server, &db), "0");
        sete.ok("back", &[]);
        assert_eq!(kind(server, &db, "status"), "varchar");
        server.sql(&db, "UPDATE orders SET status = 'new' WHERE id = 1; INSERT INTO orders (note) VALUES ('e')");
        assert_eq!(differ(server, &db), "0");
        sete.through("drop");
        assert_eq!(kind(server, &db, "status"), "enum");
        assert_eq!(server.sql(&db, "SELECT DISTINCT status FROM orders WHERE note IN ('d', 'e')"), "new");
    }
}

/// Back from each stage to the start, then all the way.
#[test]
fn every_stage_has_a_way_back() {
    for server in shared() {
        for mode in ["app", "swap"] {
            let (db, sete) = orders(server, &format!("[read_switch]\nmode = \"{mode}\""));
            let before = picture(server, &db);
            for (n, stage) in STAGES.iter().enumerate().take(6) {
                sete.through(stage);
                for back in STAGES[..=n].iter().rev() {
                    sete.ok("back", &[]);
                    assert_eq!(sete.at().0, *back, "{mode}");
                    server.sql(&db, "UPDATE orders SET status = 'paid' WHERE id = 5; UPDATE orders SET status = 'new' WHERE id = 5");
                }
                assert_eq!(picture(server, &db), before, "{mode}: back from {stage}");
                sete.fails("back", &[], 3, "E203");
            }
            sete.through("drop");
            sete.fails("back", &[], 3, "E204");
        }
    }
}

/// What the triggers call must outlive the plan, or every write of the application would fail.
#[test]
fn a_plan_forgotten_by_force_leaves_a_table_that_can_be_written() {
    for server in shared() {
        let (db, sete) = orders(server, "");
        sete.through("backfill");
        sete.fails("forget", &[], 3, "E208");
        sete.ok("forget", &["--force"]);
        server.sql(&db, "UPDATE orders SET status = 'paid' WHERE id = 3; INSERT INTO orders (status_v2) VALUES ('shipped')");
        assert_eq!(differ(server, &db), "0");
    }
}

/// The application goes through its deploys while the change is under way, and notices nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_application_notices_nothing() {
    for server in shared() {
        let (db, sete) = orders(server, "[backfill]\nbatch_rows = 200\nworkers = 2");
        let workload = Workload {
            url: server.url(&db),
            table: "orders".into(),
            values: ["new", "paid", "shipped"].map(str::to_owned).to_vec(),
            updated_at: None,
            touch: "note".into(),
            fixed: vec![("total".into(), "7".into())],
            rate: 50.0,
            ..Workload::default()
        };
        let running = workload.start().await.expect("the workload starts");
        // Each release of the application comes after the stage that it needs.
        for (stage, releases) in
            [("backfill", vec!["old/old"]), ("validate", vec!["old/new"]), ("read_switch", vec!["mixed/new", "new/new"]), ("drop", vec!["new/new"])]
        {
            tokio::task::block_in_place(|| sete.through(stage));
            for mode in releases {
                running.deploy(mode.parse().expect("a mode")).await;
            }
        }
        let summary = running.stop().await;
        assert!(summary.unnoticed(), "{summary}");
        assert_eq!(kind(server, &db, "status"), "", "dropped");
    }
}
