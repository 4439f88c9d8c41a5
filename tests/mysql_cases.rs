//! The cases that broke other tools (numbers as in tests/cases.rs), on each MySQL and MariaDB that is here, through the program.

use std::time::{Duration, Instant};

use crate::support::mysql::{Server, retype, shared};
use crate::support::sete::{Sete, finish};
use crate::support::until;
use mysql_async::prelude::Queryable;
use serde_json::Value;

/// A database with a table, and what is done to it.
struct Play {
    server: &'static Server,
    db: String,
    url: String,
}

impl Play {
    /// One on each server.
    fn each(setup: &str) -> Vec<Play> {
        shared()
            .iter()
            .map(|server| {
                let (db, url) = server.fresh_db();
                server.sql(&db, setup);
                Play { server, db, url }
            })
            .collect()
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.db, sql)
    }

    fn sete(&self, plan: &str) -> Sete {
        Sete::new(&self.url, plan)
    }

    /// Whether anything of ours is in the database.
    fn traces(&self) -> String {
        self.sql(
            "SELECT (SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'sete%')
                  + (SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE '~sete%')",
        )
    }

    /// Writes behind the sync's back.
    fn unseen(&self, sql: &str) {
        let name = self
            .sql("SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE '~sete_sync%update'");
        let tag = name.trim_start_matches("~sete_sync_").trim_end_matches("_update").to_owned();
        self.sql(&format!("SET @sete_by = '{tag}'; {sql}"));
    }
}

/// One connection of the application, which keeps its transaction.
struct Session {
    runtime: tokio::runtime::Runtime,
    conn: mysql_async::Conn,
}

impl Session {
    fn open(url: &str) -> Session {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let conn = runtime.block_on(mysql_async::Conn::from_url(url)).expect("the application connects");
        Session { runtime, conn }
    }

    fn run(&mut self, sql: &str) {
        self.runtime.block_on(self.conn.query_drop(sql)).unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    fn count(&mut self, sql: &str) -> u64 {
        self.runtime.block_on(self.conn.query_first(sql)).unwrap_or_else(|e| panic!("{sql}: {e}")).expect("a row")
    }
}

/// A hundred numbered rows in `raw`, each what `value` gives.
fn readings(kind: &str, value: &str) -> String {
    format!(
        "CREATE TABLE readings (id INT PRIMARY KEY, raw {kind});
         INSERT INTO readings WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 100) SELECT n, {value} FROM c"
    )
}

#[test]
fn case_01_rows_that_are_mapped_to_null_end_the_backfill() {
    for play in Play::each(&readings("VARCHAR(20)", "IF(n % 10 = 0, 'n/a', n)")) {
        let more = "forward = \"nullif(raw, 'n/a')\"\nreverse = \"coalesce(value, 'n/a')\"";
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "int", more));
        let out = sete.through("backfill");
        assert!(out.text().contains("10 rows stay NULL"), "{}", out.text());
        assert_eq!(play.sql("SELECT COUNT(value), SUM(value IS NULL AND raw = 'n/a') FROM readings"), "90\t10");
        sete.through("validate");
    }
}

#[test]
fn case_02_a_target_column_with_a_default_is_refused() {
    for (column, said) in
        [("value INT DEFAULT 0", "the default"), ("value INT NOT NULL", "NOT NULL"), ("value INT GENERATED ALWAYS AS (id + 1) STORED", "generated")]
    {
        for play in Play::each(&format!("CREATE TABLE readings (id INT PRIMARY KEY, raw VARCHAR(20), {column})")) {
            let out = play.sete(&retype("readings", "readings", "raw", "value", "int", "")).fails("step", &[], 3, "E108");
            assert!(out.text().contains(said), "{}", out.text());
            assert_eq!(play.traces(), "0");
        }
    }
}

#[test]
fn case_04_a_column_that_updates_itself_keeps_its_value() {
    let setup = format!(
        "{}; ALTER TABLE readings ADD COLUMN updated_at TIMESTAMP(3) NOT NULL DEFAULT '2020-01-01' ON UPDATE CURRENT_TIMESTAMP(3)",
        readings("VARCHAR(20)", "n")
    );
    for play in Play::each(&setup) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "int", ""));
        sete.through("read_switch");
        let touched = || play.sql("SELECT COUNT(*) FROM readings WHERE updated_at > '2020-01-02'");
        assert_eq!(touched(), "0");
        play.unseen("UPDATE readings SET value = 0, updated_at = updated_at WHERE id = 7");
        sete.ok("validate", &["--repair"]);
        sete.through("stop_writes");
        sete.ok("back", &[]);
        assert_eq!(touched(), "0");
        play.sql("UPDATE readings SET raw = '8' WHERE id = 7");
        assert_eq!(touched(), "1", "the application's own writes do");
    }
}

#[test]
fn case_05_the_sync_runs_after_the_users_triggers_and_one_that_comes_later_is_reported() {
    let setup = "CREATE TABLE people (id INT PRIMARY KEY, email VARCHAR(40));
        CREATE TRIGGER zz_lower BEFORE INSERT ON people FOR EACH ROW SET NEW.email = LOWER(NEW.email);
        INSERT INTO people VALUES (1, 'ANN')";
    for play in Play::each(setup) {
        let sete = play.sete(&retype("people", "people", "email", "email_v2", "varchar(80)", ""));
        sete.through("dual_write");
        play.sql("INSERT INTO people (id, email) VALUES (2, 'BOB')");
        assert_eq!(play.sql("SELECT email, email_v2 FROM people WHERE BINARY id = 2"), "bob\tbob");
        play.sql("CREATE TRIGGER later BEFORE INSERT ON people FOR EACH ROW SET NEW.email = UPPER(NEW.email)");
        let out = sete.fails("step", &[], 3, "E123");
        assert!(out.text().contains("trigger later"), "{}", out.text());
        play.sql("DROP TRIGGER later");
        sete.through("stop_writes");
        // It names the old column, so that it would break with the drop.
        sete.fails("step", &["--yes"], 3, "E124");
        play.sql("DROP TRIGGER zz_lower");
        sete.through("drop");
    }
}

#[test]
fn case_09_the_old_column_may_be_left_out_from_stage_5_on() {
    let setup = "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) NOT NULL, KEY by_status (status)); INSERT INTO orders VALUES (1, 'new')";
    for mode in ["app", "swap"] {
        for play in Play::each(setup) {
            let new = if mode == "app" { "status_v2" } else { "status" };
            let plan = |quiet: &str| {
                let more = format!("[read_switch]\nmode = \"{mode}\"\n[stop_writes]\nquiet_for = \"{quiet}\"");
                retype("orders", "orders", "status", "status_v2", "enum('new','paid')", &more)
            };
            let sete = play.sete(&plan("1h"));
            sete.through("read_switch");
            let insert = |id: u32| play.sql(&format!("INSERT INTO orders (id, {new}) VALUES ({id}, 'paid')"));
            let row = |id: u32| play.sql(&format!("SELECT CONCAT(COALESCE(status, '-'), COALESCE(status_v2, '-')) FROM orders WHERE id = {id}"));
            insert(101);
            assert_eq!(row(101), "paidpaid");
            sete.fails("step", &[], 4, "");
            insert(102);
            assert_eq!(row(102), "paidpaid");
            sete.rewrite(&plan("1ms"));
            sete.through("stop_writes");
            insert(103);
            assert_eq!(row(103).replace('-', ""), "paid");
            // The way back fills it again, and it is as it was.
            sete.ok("back", &[]);
            assert_eq!(row(103), "paidpaid");
            let nullable =
                "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'orders' AND IS_NULLABLE = 'YES'";
            assert_eq!(play.sql(nullable), "0");
            sete.through("drop");
            insert(104);
            assert_eq!(play.sql("SHOW COLUMNS FROM orders").lines().count(), 2);
        }
    }
}

/// The new type, the old one, a good value, a bad one, the numbers that MariaDB and MySQL give it.
const BAD: [(&str, &str, &str, &str, &str); 6] = [
    ("enum('HAPPY','SAD')", "VARCHAR(20)", "'HAPPY'", "'MAD '", "(1265)"),
    ("int", "VARCHAR(20)", "n", "'1,234'", "(1265)"),
    ("int", "VARCHAR(20)", "n", "''", "(1366)"),
    ("date", "VARCHAR(20)", "'2024-02-29'", "'2024-02-30'", "(1292)"),
    ("tinyint", "INT", "1", "300", "(1264)"),
    ("varchar(3)", "VARCHAR(20)", "'abc'", "'abcd'", "(1265) (1406)"),
];

#[test]
fn case_10_a_bad_row_stops_the_backfill_or_is_set_aside() {
    for (kind, old, good, bad, numbers) in BAD {
        for play in Play::each(&readings(old, &format!("IF(n = 50, {bad}, {good})"))) {
            let plan = |more: &str| retype("readings", "readings", "raw", "value", kind, more);
            let sete = play.sete(&plan(""));
            sete.through("dual_write");
            let out = sete.fails("step", &[], 6, "E502");
            assert!(
                out.text().contains("row 50") && numbers.split(' ').any(|number| out.text().contains(number)),
                "{kind} {numbers}: {}",
                out.text()
            );
            // Other writes of the bad row don't fail either.
            play.sql("UPDATE readings SET id = id WHERE id = 50");
            sete.rewrite(&plan("[backfill]\non_bad_row = \"set_aside\""));
            sete.fails("step", &[], 6, "E503");
            assert_eq!(play.sql("SELECT COUNT(value) FROM readings"), "99");
            let rejects = sete.run("rejects", &["--format", "json"]).json();
            assert_eq!((&rejects["count"], &rejects["rejects"][0]["key"]), (&Value::from(1), &Value::from("50")), "{rejects}");
            play.sql(&format!("UPDATE readings r JOIN (SELECT 50 AS n) x ON r.id = x.n SET r.raw = {good}"));
            sete.ok("rejects", &["--retry"]);
            sete.through("validate");
            assert_eq!(play.sql("SELECT COUNT(value) FROM readings"), "100");
        }
    }
}

#[test]
fn case_13_time_zones_of_sessions_change_nothing() {
    let setup = readings("TIMESTAMP(3) NULL", "TIMESTAMPADD(HOUR, n, '2026-01-01 00:00:00')");
    for play in Play::each(&format!("SET time_zone = '+00:00'; {setup}")) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "datetime(3)", "[backfill]\nworkers = 2"));
        sete.through("dual_write");
        play.sql("SET time_zone = '-05:00', sql_mode = ''; UPDATE readings SET raw = '2026-03-01 03:00:00' WHERE id = 5; INSERT INTO readings (id, value) VALUES (200, '2026-03-01 08:00:00')");
        sete.through("read_switch");
        assert_eq!(play.sql("SET time_zone = '+00:00'; SELECT COUNT(*) FROM readings WHERE NOT (CAST(raw AS DATETIME(3)) <=> value)"), "0");
        assert_eq!(play.sql("SELECT value FROM readings WHERE id IN (5, 200)"), "2026-03-01 08:00:00.000\n2026-03-01 08:00:00.000");
        sete.through("drop");
    }
}

#[test]
fn case_14_values_that_only_look_equal_are_divergences() {
    for (old, new, before, after) in [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "varchar(20)", "'A'", "'a'"),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "varchar(20)", "'é'", "'e'"),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "varchar(20)", "'x'", "'x '"),
        ("VARCHAR(9)", "varbinary(20)", "'x'", "'X'"),
        ("JSON", "json", "'{\"a\": 1}'", "'{\"a\": 2}'"),
        ("DATETIME(6)", "datetime(6)", "'2026-01-01 00:00:00.000001'", "'2026-01-01 00:00:00.000002'"),
        ("BIGINT UNSIGNED", "decimal(20)", "18446744073709551615", "18446744073709551614"),
    ] {
        for play in Play::each(&readings(old, before)) {
            let sete = play.sete(&retype("words", "readings", "raw", "value", new, ""));
            sete.through("read_switch");
            // The application's own write reaches both.
            play.sql(&format!("UPDATE readings SET raw = {after} WHERE id = 3; UPDATE readings SET raw = {before} WHERE id = 3"));
            sete.ok("validate", &[]);
            play.unseen(&format!("UPDATE readings SET value = {after} WHERE id = 7"));
            let out = sete.run("validate", &[]);
            assert_eq!(out.code, 6, "{old} to {new}, {before} to {after}: {}", out.text());
            sete.ok("validate", &["--repair"]);
            sete.ok("validate", &[]);
        }
    }
}

#[test]
fn case_18_names_of_all_kinds_go_through_all_stages() {
    let setup = "CREATE TABLE `Order` (`id` INT PRIMARY KEY, `user` VARCHAR(20) NOT NULL, `größe` INT, UNIQUE KEY `u``k` (`größe`, `user`)); INSERT INTO `Order` VALUES (1, 'a''b\\\\c', 1), (2, '`', 2)";
    for play in Play::each(setup) {
        for (id, from, to) in [("a", "user", "select from"), ("b", "größe", "a.b`c"), ("c", "select from", &"ü".repeat(31))] {
            let kind = if id == "b" { "bigint" } else { "varchar(30)" };
            let sete = play.sete(&retype(id, "Order", from, to, kind, ""));
            sete.through("drop");
        }
        assert_eq!(play.sql("SELECT * FROM `Order` ORDER BY id").lines().count(), 2);
    }
}

#[test]
fn case_19_an_idle_reader_is_named_nobody_queues_for_long_and_nothing_changes() {
    for play in Play::each(&readings("INT", "n")) {
        let plan = retype("readings", "readings", "raw", "value", "bigint", "[ddl]\npatience = \"4s\"\nmax_blocker_age = \"1h\"");
        let sete = play.sete(&plan);
        let mut reader = Session::open(&play.url);
        reader.run("BEGIN; SELECT COUNT(*) FROM readings");
        let running = sete.start("step", &[]);
        // The application reads all the while.
        let mut longest = Duration::ZERO;
        let mut application = Session::open(&play.url);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            let asked = Instant::now();
            application.run("SELECT COUNT(*) FROM readings");
            longest = longest.max(asked.elapsed());
        }
        let out = finish(running);
        assert!(out.code == 5 && out.text().contains("E401") && out.text().contains("user root"), "{}", out.text());
        assert!(longest < Duration::from_millis(1500), "the application waited {longest:?}");
        assert_eq!(play.sql("SHOW COLUMNS FROM readings LIKE 'value'"), "");
        reader.run("COMMIT");
        sete.through("dual_write");
    }
}

#[test]
fn case_20_a_build_that_loses_its_work_says_so_and_names_the_reader() {
    // Wide rows: what takes time to build need not take time to fill.
    let grow = "INSERT INTO readings SELECT id + (SELECT MAX(id) FROM readings r), raw FROM readings;".repeat(8);
    for play in Play::each(&format!("{}; {grow}", readings("VARCHAR(4000) NOT NULL", "REPEAT('x', 3000)"))) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "varchar(4050)", ""));
        sete.through("backfill");
        // One that is connected already is in time for the build's end.
        let mut reader = Session::open(&play.url);
        let running = sete.start("step", &[]);
        let process = if play.server.is_mariadb() { "information_schema.PROCESSLIST" } else { "performance_schema.processlist" };
        let building = format!("SELECT COUNT(*) FROM {process} WHERE DB = DATABASE() AND INFO LIKE 'ALTER TABLE%NOT NULL%INPLACE%'");
        until("the rebuild runs", || reader.count(&building) == 1);
        reader.run("BEGIN; SELECT id FROM readings LIMIT 1");
        let out = finish(running);
        let lost = out.code == 5 && (out.text().contains("E403") || out.text().contains("E401"));
        assert!(lost && out.text().contains("user root"), "{}: {}", out.code, out.text());
        reader.run("COMMIT");
        sete.through("validate");
    }
}

#[test]
fn case_21_a_table_that_takes_no_instant_change_is_refused_or_handed_over() {
    let setup = "CREATE TABLE readings (id INT PRIMARY KEY, raw INT, value BIGINT) ROW_FORMAT=COMPRESSED; INSERT INTO readings VALUES (1, 1, NULL)";
    for play in Play::each(setup) {
        let plan = |more: &str| retype("readings", "readings", "raw", "value", "bigint", more);
        let sete = play.sete(&plan(""));
        sete.through("stop_writes");
        let out = sete.fails("step", &["--yes"], 3, "E134");
        assert!(out.text().contains("COMPRESSED") && out.text().contains("gh-ost --host='127.0.0.1'"), "{}", out.text());
        sete.rewrite(&plan("[drop]\nrebuild = \"external\"\nexternal = \"echo nothing done\""));
        let out = sete.fails("step", &["--yes"], 3, "E141");
        assert!(out.text().contains("| nothing done"), "{}", out.text());
        sete.rewrite(&plan("[drop]\nrebuild = \"external\"\nexternal = \"echo gone wrong >&2; exit 3\""));
        let out = sete.fails("step", &["--yes"], 3, "E141");
        assert!(out.text().contains("| gone wrong") && out.text().contains("exit status: 3"), "{}", out.text());
        let copies = format!(
            "{}/client --protocol=tcp --host=127.0.0.1 --port={} --user=root {} -e 'ALTER TABLE readings DROP COLUMN raw'",
            play.server.bin().display(),
            play.server.port(),
            play.db
        );
        sete.rewrite(&plan(&format!("[drop]\nrebuild = \"external\"\nexternal = \"{copies}\"")));
        sete.ok("step", &["--yes"]);
        assert_eq!(play.sql("SHOW COLUMNS FROM readings").lines().count(), 2);
    }
}

#[test]
fn case_22_what_names_the_old_column_blocks_the_drop() {
    let setup = format!("{}; CREATE VIEW seen AS SELECT id, raw FROM readings; CREATE PROCEDURE p() SELECT raw FROM readings", readings("INT", "n"));
    for play in Play::each(&setup) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "bigint", ""));
        sete.through("stop_writes");
        let out = sete.fails("step", &["--yes"], 3, "E124");
        assert!(out.text().contains(".seen") && out.text().contains("stored routine"), "{}", out.text());
        play.sql("DROP VIEW seen; DROP PROCEDURE p");
        sete.through("drop");
    }
}

#[test]
fn case_23_a_value_that_the_old_column_cannot_hold_never_fails_the_application() {
    for play in Play::each(&readings("INT", "n")) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "bigint", ""));
        let out = sete.ok("plan", &[]);
        assert!(out.text().contains("E128"), "{}", out.text());
        sete.through("read_switch");
        play.sql("UPDATE readings SET value = 3000000000 WHERE id = 1; INSERT INTO readings (id, value) VALUES (200, 3000000000)");
        assert_eq!(play.sql("SELECT raw, value FROM readings WHERE id IN (1, 200)"), "1\t3000000000\nNULL\t3000000000");
    }
}

#[test]
fn case_28_of_two_runners_one_runs() {
    for play in Play::each(&readings("INT", "n")) {
        let sete = play.sete(&retype("readings", "readings", "raw", "value", "bigint", "[backfill]\nbatch_rows = 10\npause = \"300ms\""));
        sete.through("dual_write");
        let first = sete.start("step", &[]);
        until("the backfill runs", || sete.status()["backfill"]["filled"].as_u64().is_some_and(|n| n > 0));
        sete.fails("step", &[], 7, "E601");
        assert_eq!(finish(first).code, 0);
    }
}

#[test]
fn case_29_an_edited_expression_is_refused_half_way() {
    for play in Play::each(&readings("INT", "n")) {
        let plan = |factor: u32| {
            retype("readings", "readings", "raw", "value", "bigint", &format!("forward = \"raw * {factor}\"\nreverse = \"value div {factor}\""))
        };
        let sete = play.sete(&plan(10));
        sete.through("backfill");
        sete.rewrite(&plan(100));
        for command in ["step", "back", "plan", "validate"] {
            sete.fails(command, &[], 3, "E201");
        }
        sete.rewrite(&plan(10));
        sete.through("validate");
        assert_eq!(play.sql("SELECT COUNT(*) FROM readings WHERE value = raw * 10"), "100");
    }
}

#[test]
fn case_30_an_old_instance_that_writes_one_column_only_is_named() {
    for play in Play::each("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20)); INSERT INTO orders VALUES (100, 'paid')") {
        let plan = |quiet: &str| {
            retype("orders", "orders", "status", "status_v2", "enum('new','paid')", &format!("[dual_write]\nmode = \"app\"\nquiet_for = \"{quiet}\""))
        };
        let sete = play.sete(&plan("1h"));
        sete.through("expand");
        sete.fails("step", &[], 4, "");
        play.sql("INSERT INTO orders (id, status) VALUES (1, 'new')");
        let status = sete.status();
        assert_eq!(
            (&status["in_the_way"][0]["wrote_only"], &status["in_the_way"][0]["user"]),
            (&Value::from("status"), &Value::from("root")),
            "{status}"
        );
        sete.fails("gate", &["--for", "read-new"], 4, "");
        sete.rewrite(&plan("1ms"));
        sete.through("backfill");
        assert_eq!(play.sql("SELECT status_v2 FROM orders WHERE id = 1"), "new");
        play.sql("INSERT INTO orders (id, status) VALUES (2, 'new')");
        sete.fails("step", &[], 6, "E501");
    }
}

#[test]
fn a_hidden_column_comes_back() {
    for play in Play::each(&readings("INT", "n")) {
        let plan = |hide: &str| retype("readings", "readings", "raw", "value", "bigint", &format!("[drop]\nhide = \"{hide}\""));
        let sete = play.sete(&plan("1h"));
        sete.through("stop_writes");
        let out = sete.fails("step", &["--yes"], 4, "");
        assert!(out.text().contains("hidden"), "{}", out.text());
        assert_eq!(play.sql("SELECT * FROM readings WHERE id = 1"), "1\t1");
        sete.ok("back", &[]);
        assert_eq!(play.sql("SELECT * FROM readings WHERE id = 1"), "1\t1\t1");
        sete.rewrite(&plan("1ms"));
        sete.through("drop");
    }
}

#[test]
fn the_sample_plans_are_good_on_a_real_server() {
    let setup = "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) NOT NULL DEFAULT 'new', total INT NOT NULL); CREATE TABLE events (id INT PRIMARY KEY, at TIMESTAMP(6) NULL)";
    let plans = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    for play in Play::each(setup) {
        let mut seen = 0;
        for file in std::fs::read_dir(&plans).expect("plans/").map(|file| file.expect("a file").path()) {
            let text = std::fs::read_to_string(&file).expect("a plan");
            if !text.contains("engine = \"mysql\"") {
                continue;
            }
            let text = text.replace("table = \"shop.", &format!("table = \"{}.", play.db));
            let sete = play.sete(&text).env("REPLICA_URL", &play.url);
            let out = sete.ok("plan", &[]);
            assert!(out.text().contains("ALGORITHM=INSTANT") && !out.text().contains("blocker"), "{}: {}", file.display(), out.text());
            seen += 1;
        }
        assert_eq!(seen, 3);
        assert_eq!(play.traces(), "0", "`plan` changes nothing");
    }
}

#[test]
fn the_rights_of_the_page_suffice() {
    let page = include_str!("../docs/privileges.md");
    let (_, section) = page.split_once("## MySQL and MariaDB").expect("the section");
    let grants = section.split("```sql ignore\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the grants");
    for play in
        Play::each("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) NOT NULL, KEY s (status)); INSERT INTO orders VALUES (1, 'new')")
    {
        let user = format!("runner_{}", play.db);
        play.sql(&grants.replace("sete_runner", &user).replace("shop.*", &format!("{}.*", play.db)).replace('…', "x"));
        let url = format!("mysql://{user}:x@127.0.0.1:{}/{}", play.server.port(), play.db);
        let sete = Sete::new(&url, &retype("orders", "orders", "status", "state", "enum('new','paid')", "[drop]\nhide = \"1ms\""));
        sete.through("stop_writes");
        sete.ok("back", &[]);
        sete.through("drop");
        sete.ok("forget", &[]);
        assert_eq!(play.traces(), "0");
    }
}
