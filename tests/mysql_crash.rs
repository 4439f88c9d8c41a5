//! Law 4 on MySQL and MariaDB: killed at every named crash point, one after the other, a story ends like one that nobody disturbed.
#![cfg(feature = "crash-points")]

use crate::support::mysql::{Server, each, retype, shared};
use crate::support::sete::{STAGES, Sete, finish};
use crate::support::until;

const ORDERS: &str = "
CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20) NOT NULL DEFAULT 'new', note VARCHAR(40), KEY orders_status_idx (status));
INSERT INTO orders (status) VALUES ('new'), ('paid'), ('shipped'), ('new'), ('paid'), ('shipped');
INSERT INTO orders (status) SELECT a.status FROM orders a, orders b, orders c LIMIT 200;";

/// Everything about a database that must not depend on where a run was killed: table, sync, rows, state.
fn picture(server: &Server, db: &str) -> String {
    let table = server.sql(db, "SHOW CREATE TABLE orders");
    let form: Vec<&str> = table.split(" AUTO_INCREMENT=").collect();
    let more = "SELECT CONCAT('trigger ', trigger_name, ' ', SHA2(REPLACE(action_statement, DATABASE(), ''), 256)) FROM information_schema.triggers WHERE trigger_schema = DATABASE() ORDER BY 1;
        CHECKSUM TABLE orders;
        SELECT stage, JSON_UNQUOTE(JSON_EXTRACT(data, '$.status')) FROM sete_stage ORDER BY 1;
        SELECT JSON_EXTRACT(data, '$.filled'), JSON_EXTRACT(data, '$.finished') FROM sete_progress;
        SELECT COUNT(*), SUM(JSON_EXTRACT(data, '$.divergent')) FROM sete_pass;
        SELECT COUNT(*) FROM sete_reject;
        SELECT COUNT(*) FROM sete_chunk;
        SELECT holder IS NULL FROM sete_lease";
    format!("{}\n{}", form[0], server.sql(db, more).replace(&format!("{db}.orders"), "orders"))
}

/// All commands of a story: through six stages, back to the start, and through all seven.
fn commands() -> Vec<(bool, &'static str)> {
    let there = STAGES[..6].iter().map(|stage| (false, *stage));
    let back = STAGES[..6].iter().rev().map(|stage| (true, *stage));
    there.chain(back).chain(STAGES.iter().map(|stage| (false, *stage))).collect()
}

fn new(server: &Server, mode: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.sql(&db, ORDERS);
    let more = format!("[backfill]\nbatch_rows = 100\n[read_switch]\nmode = \"{mode}\"");
    let plan = retype("orders-status", "orders", "status", "status_v2", "enum('new','paid','shipped')", &more);
    (db, Sete::new(&url, &plan))
}

#[test]
fn killed_at_every_point_the_story_ends_all_the_same() {
    let stories: Vec<(&'static Server, &str)> = shared().iter().flat_map(|server| ["app", "swap"].map(|mode| (server, mode))).collect();
    std::thread::scope(|scope| {
        let told: Vec<_> = stories.iter().map(|(server, mode)| scope.spawn(move || tell(server, mode))).collect();
        for story in told {
            story.join().expect("the story ends well");
        }
    });
}

fn tell(server: &Server, mode: &str) {
    let (quiet_db, quiet) = new(server, mode);
    let (db, sete) = new(server, mode);
    let log = quiet.folder.join("points");
    let mut died = 0;
    for (n, (back, stage)) in commands().into_iter().enumerate() {
        let place = format!("{mode}, command {n}, {} {stage}", if back { "back from" } else { "step" });
        std::fs::remove_file(&log).ok();
        let out = quiet.play(back, stage, &[("SETE_CRASH_LOG", log.to_str().expect("a path"))]);
        assert_eq!(out.code, 0, "{place}: {}", out.text());
        let points = std::fs::read_to_string(&log).expect("points were passed");
        // Up to its switch, a swap is what the other mode is.
        let told = mode == "swap" && ["expand", "dual_write", "backfill", "validate"].contains(&stage);
        // The way there a second time is like the first.
        let points: Vec<&str> =
            if n < 12 && !told { points.lines().filter(|p| !p.contains(" #") || p.ends_with(" #2")).collect() } else { Vec::new() };
        let mut done = false;
        for point in points {
            // Killed after its end was saved, `back` would go back one further.
            let status = server.client(&db, &format!("SELECT JSON_UNQUOTE(JSON_EXTRACT(data, '$.status')) FROM sete_stage WHERE stage = '{stage}'"));
            if back && String::from_utf8_lossy(&status.stdout).trim() == "pending" {
                server.sql(&db, "UPDATE sete_lease SET holder = NULL, until = NULL");
                done = true;
                break;
            }
            let out = sete.play(back, stage, &[("SETE_CRASH_AT", point)]);
            died += u32::from(out.code == -1);
            // What it was to die at was done already.
            let over = out.code == 0 || out.code == 4 && out.text().contains("E304");
            assert!(out.code == -1 || over, "{place}, killed {point}: {}", out.text());
            if back && over {
                done = true;
                break;
            }
        }
        if !done {
            let out = sete.play(back, stage, &[]);
            assert!(out.code == 0 || out.code == 4 && out.text().contains("E304"), "{place}: {}", out.text());
        }
        assert_eq!(picture(server, &db), picture(server, &quiet_db), "{place}");
        for db in [&db, &quiet_db] {
            server.sql(db, "UPDATE orders SET note = CONCAT('after ', id) WHERE id = 3");
        }
    }
    assert!(died > if mode == "swap" { 20 } else { 60 }, "only {died} kills");
}

/// What a server that crashed between two statements of the swap comes back with: no sync, and the names one way or the other.
/// The application goes on meanwhile.
#[test]
fn a_swap_that_the_servers_crash_cut_short_is_put_right() {
    each(|server| {
        for exchanged in [false, true] {
            let (db, sete) = new(server, "swap");
            sete.through("validate");
            let out = sete.play(false, "read_switch", &[("SETE_CRASH_AT", "after remembering swapping of read_switch")]);
            assert_eq!(out.code, -1, "{}", out.text());
            let triggers = server.sql(&db, "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()");
            triggers.lines().for_each(|name| drop(server.sql(&db, &format!("DROP TRIGGER `{name}`"))));
            if exchanged {
                server.sql(&db, "ALTER TABLE orders RENAME COLUMN status TO status_v2, RENAME COLUMN status_v2 TO status, ALGORITHM=INSTANT");
            }
            server.sql(&db, "UPDATE orders SET status = 'shipped' WHERE id <= 50; INSERT INTO orders (status, note) VALUES ('paid', 'meanwhile')");
            assert_eq!(sete.run("gate", &["--for", "write-new"]).code, 4);
            // Killed before the rows are put right, it begins with them.
            let out = sete.play(false, "read_switch", &[("SETE_CRASH_AT", "before putting right what was written without the sync")]);
            assert_eq!(out.code, -1, "{}", out.text());
            let out = sete.through("read_switch");
            assert!(out.text().contains("repaired"), "{}", out.text());
            let seen = "SELECT COUNT(*), SUM(status = status_v2), SUM(status = 'shipped' AND id <= 50), SUM(note <=> 'meanwhile' AND status = 'paid') FROM orders";
            assert_eq!(server.sql(&db, seen), "207\t207\t50\t1", "exchanged: {exchanged}");
            let now = "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'status'";
            assert_eq!(server.sql(&db, now), "enum");
            sete.ok("validate", &[]);
            sete.ok("back", &[]);
            assert_eq!(server.sql(&db, now), "varchar");
        }
    });
}

/// The server may carry on with what a killed runner has sent: a second swap must not undo the first.
#[test]
fn a_swap_that_waits_for_the_table_and_is_killed_is_done_once() {
    each(|server| {
        let (db, sete) = new(server, "swap");
        sete.through("validate");
        std::thread::scope(|scope| {
            scope.spawn(|| server.client(&db, "LOCK TABLES orders READ; SELECT SLEEP(4)"));
            let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata lock%'";
            let mut first = sete.start("step", &["--through", "read_switch"]);
            until("the swap waits for the table", || server.sql(&db, waits) == "1");
            first.kill().expect("SIGKILL is sent");
            drop(finish(first));
            let out = sete.through("read_switch");
            assert_eq!(out.code, 0, "{}", out.text());
        });
        server.sql(&db, "UPDATE orders SET status = 'shipped' WHERE id <= 50");
        assert_eq!(server.sql(&db, "SELECT COUNT(*), SUM(status = status_v2), SUM(status = 'shipped' AND id <= 50) FROM orders"), "206\t206\t50");
        let column = "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'status'";
        assert_eq!(server.sql(&db, column), "enum");
    });
}
