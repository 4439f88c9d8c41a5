//! The backfill's workers, what they say of the server, and what they do when the ground moves under them.

use std::time::{Duration, Instant};

use crate::support::postgres::Server;
use crate::support::sete::{Sete, finish, retype};
use crate::support::{signal, until};

const COPIED: &str = "SELECT count(*) FROM orders WHERE status::text IS DISTINCT FROM status_v2::text";

fn plan(more: &str) -> String {
    retype("orders-status", "public.orders", "status", "status_v2", "order_status", more)
}

/// About 40 rows a page; the new column is there and the sync at work. `filled` records what the backfill wrote.
fn orders(server: &Server, rows: u32, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.psql(
        &db,
        &format!(
            "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
            CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status varchar(20) NOT NULL DEFAULT 'new', note text);
            INSERT INTO orders (status, note) SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], repeat('x', 150) FROM generate_series(1, {rows}) n;
            ANALYZE orders"
        ),
    );
    let sete = Sete::new(&url, &plan(more));
    sete.through("dual_write");
    (db, sete)
}

fn sql<'a>(server: &'a Server, db: &'a str) -> impl Fn(&str) -> String + 'a {
    move |text| server.psql(db, text)
}

#[test]
fn workers_and_runs_that_join_share_the_table() {
    let server = Server::shared();
    let (db, sete) = orders(server, 30_000, "[backfill]\nworkers = 3\nbatch_rows = 50\nmax_rows_per_s = 9000");
    let sql = sql(server, &db);
    sete.fails("step", &["--join"], 3, "E209");
    let run = sete.start("step", &[]);
    until("three workers are at it", || sql("SELECT count(DISTINCT worker) >= 3 FROM sete.chunk") == "t");
    assert_eq!(sete.status()["backfill"]["workers"], 3);
    // One that doesn't join is refused as ever.
    sete.fails("step", &[], 7, "E601");
    let joined = sete.start("step", &["--join"]);
    until("six workers are at it", || sql("SELECT count(DISTINCT worker) >= 6 FROM sete.chunk") == "t");
    until("the first run knows of six", || sete.status()["backfill"]["workers"] == 6);
    let filled = "SELECT (data ->> 'filled')::int + (SELECT coalesce(sum(filled), 0) FROM sete.chunk) FROM sete.progress";
    let (began, left) = (Instant::now(), 30_000.0 - sql(filled).parse::<f64>().expect("a number"));
    let (run, joined) = (finish(run), finish(joined));
    assert_eq!((run.code, joined.code), (0, 0), "{}\n{}", run.text(), joined.text());
    let rate = left / began.elapsed().as_secs_f64();
    assert!(rate < 1.5 * 9000.0, "the limit is for both runs together, and they did {rate} rows/s");
    assert_eq!(sql(COPIED), "0");
    assert_eq!(sql("SELECT data ->> 'filled' FROM sete.progress"), "30000");
    sete.through("validate");
}

/// A warning a batch fills the disk of a production server.
#[test]
fn a_run_leaves_no_warning_in_the_servers_log() {
    let server = Server::shared();
    let (db, sete) = orders(server, 5_000, "");
    sete.through("validate");
    sete.run("status", &[]);
    server.psql(&db, "DO $$ BEGIN RAISE WARNING 'the log is read'; END $$");
    let log = server.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(&format!("{db}: WARNING"))).collect();
    assert!(warnings.len() == 1 && warnings[0].ends_with("the log is read"), "{warnings:#?}");
}

#[test]
fn a_joined_run_that_is_killed_leaves_nothing_undone() {
    let server = Server::shared();
    let (db, sete) = orders(server, 20_000, "[backfill]\nbatch_rows = 20\nmax_rows_per_s = 4000");
    let sql = sql(server, &db);
    let run = sete.start("step", &[]);
    until("it has begun", || sql("SELECT count(*) FROM sete.chunk") == "1");
    let mut joined = sete.start("step", &["--join"]);
    until("both are at it", || sql("SELECT count(*) FROM sete.chunk") == "2");
    joined.kill().expect("SIGKILL is sent");
    joined.wait().expect("ours to wait for");
    let began = Instant::now();
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert!(began.elapsed() < Duration::from_secs(29), "the dead worker's lease was waited for");
    assert_eq!((sql(COPIED), sql("SELECT data ->> 'filled' FROM sete.progress")), ("0".into(), "20000".into()));
}

/// A worker that is frozen while others take its region over must write nothing to it when it wakes.
#[test]
fn a_worker_that_slept_too_long_is_fenced_off() {
    let server = Server::shared();
    let (db, sete) = orders(server, 4_000, "[backfill]\nbatch_rows = 20\nmax_rows_per_s = 1500");
    let sql = sql(server, &db);
    let run = sete.start("step", &[]);
    until("it has begun", || sql("SELECT count(*) FROM sete.chunk") == "1");
    let joined = sete.start("step", &["--join"]);
    until("both are at it", || sql("SELECT count(*) FROM sete.chunk") == "2");
    signal("-STOP", &joined);
    let frozen = format!("worker LIKE '%pid {} worker 1'", joined.id());
    // As after 30 s of silence. A batch that it was in the midst of holds the row for a moment.
    until("it has a region still, which ends", || {
        !sql(&format!("UPDATE sete.chunk SET until = now() - interval '1 s' WHERE {frozen} RETURNING 1")).is_empty()
    });
    until("another has taken the region over", || sql(&format!("SELECT count(*) FROM sete.chunk WHERE {frozen}")) == "0");
    signal("-CONT", &joined);
    let (run, joined) = (finish(run), finish(joined));
    assert_eq!((run.code, joined.code), (0, 0), "{}\n{}", run.text(), joined.text());
    assert_eq!((sql(COPIED), sql("SELECT data ->> 'filled' FROM sete.progress")), ("0".into(), "4000".into()));
}

#[test]
fn a_table_that_is_rewritten_meanwhile_is_walked_anew() {
    let server = Server::shared();
    let (db, sete) = orders(server, 20_000, "[backfill]\nworkers = 2\nbatch_rows = 50\nmax_rows_per_s = 10000");
    let sql = sql(server, &db);
    // Rows in the front move to the back, and the other way round.
    sql("DELETE FROM orders WHERE id % 5 = 0; CREATE INDEX by_note ON orders (status, id)");
    let run = sete.start("step", &[]);
    until("it has begun", || sql("SELECT count(*) > 500 FROM orders WHERE status_v2 IS NOT NULL") == "t");
    sql("CLUSTER orders USING by_note");
    until("it has gone on", || sql("SELECT count(*) > 5000 FROM orders WHERE status_v2 IS NOT NULL") == "t");
    sql("VACUUM FULL orders");
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(sql(COPIED), "0");
    sete.through("validate");
}

#[test]
fn what_takes_the_gain_away_is_named() {
    let server = Server::shared();
    let (db, sete) = orders(server, 30_000, "[backfill]\nuser_triggers = \"fire\"\nmax_rows_per_s = 8000");
    let sql = sql(server, &db);
    sql("CREATE INDEX early ON orders (status_v2); CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch()");
    // A snapshot that the server must keep old row versions for.
    let held = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; DO $$ BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN END $$; COMMIT";
    let out = std::thread::scope(|scope| {
        let holder = scope.spawn(|| server.psql(&db, &format!("SET application_name = 'report'; {held}")));
        until("the snapshot is held for some seconds", || {
            sql(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'report' AND backend_xmin IS NOT NULL AND xact_start < now() - interval '6 s'",
            ) == "1"
        });
        let run = sete.start("step", &[]);
        until("it has begun", || sql("SELECT count(*) > 0 FROM orders WHERE status_v2 IS NOT NULL") == "t");
        let out = finish(run);
        sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'report'");
        holder.join().expect("the holder ends");
        out
    });
    assert_eq!(out.code, 0, "{}", out.text());
    let text = out.text();
    assert!(text.contains("early on the new column"), "{text}");
    assert!(text.contains("trigger touch runs for each row"), "{text}");
    assert!(text.contains("(report, user postgres) has kept old row versions for"), "{text}");
    assert_eq!(sql(COPIED), "0");
}

#[test]
fn the_backfill_waits_for_the_horizon_if_it_is_told_to() {
    let server = Server::start(*Server::available().last().expect("a server"), &["max_prepared_transactions = 2"]);
    let (db, sete) = orders(&server, 3_000, "[backfill]\nwait_for_horizon = \"1m\"");
    let sql = sql(&server, &db);
    sql("BEGIN; CREATE TABLE other (a int); PREPARE TRANSACTION 'forgotten'");
    until("it is old", || sql("SELECT prepared < now() - interval '6 s' FROM pg_prepared_xacts") == "t");
    let run = sete.start("step", &[]);
    let by = || sete.status()["backfill"]["throttled_by"].as_str().unwrap_or_default().to_owned();
    until("it waits", || by().starts_with("prepared transaction forgotten, which keeps old row versions"));
    assert_eq!(sql("SELECT count(*) FROM orders WHERE status_v2 IS NOT NULL"), "0");
    sql("COMMIT PREPARED 'forgotten'");
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(sql(COPIED), "0");
}

#[test]
fn a_backfill_that_was_gone_back_from_looks_again() {
    let server = Server::shared();
    let (db, sete) = orders(server, 500, "");
    sete.through("backfill");
    sete.ok("back", &[]);
    // By one whom the sync takes for the backfill: only a walk can find it.
    let marker =
        "(SELECT (regexp_match(pg_get_triggerdef(oid), 'DISTINCT FROM ''([^'']+)'''))[1] FROM pg_trigger WHERE tgname LIKE '~sete%' LIMIT 1)";
    server.psql(&db, &format!("BEGIN; SELECT set_config('sete.by', {marker}, true); UPDATE orders SET status_v2 = NULL WHERE id = 77; COMMIT"));
    assert_eq!(server.psql(&db, COPIED), "1");
    sete.through("backfill");
    assert_eq!(server.psql(&db, COPIED), "0");
}

#[test]
fn outside_of_its_window_the_backfill_stands_still() {
    let server = Server::shared();
    let (db, sete) = orders(server, 100, "");
    // From an hour to two hours from now.
    let window = server.psql(&db, "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 h', 'HH24:MI') || '-' || to_char(now() AT TIME ZONE 'UTC' + interval '2 h', 'HH24:MI')");
    sete.rewrite(&plan(&format!("[throttle]\nwindow = \"{window}\"\ntime_zone = \"Africa/Abidjan\"")));
    let run = sete.start("step", &[]);
    let by = || sete.status()["backfill"]["throttled_by"].as_str().unwrap_or_default().to_owned();
    until("it is held", || by() == format!("the hour: throttle.window is {window} Africa/Abidjan"));
    assert_eq!(server.psql(&db, "SELECT count(*) FROM orders WHERE status_v2 IS NOT NULL"), "0");
    signal("-TERM", &run);
    assert_eq!(finish(run).code, 130);
}

#[test]
fn a_row_that_the_application_holds_is_left_and_counted() {
    let server = Server::shared();
    let (db, sete) = orders(server, 5_000, "");
    let sql = sql(server, &db);
    let out = std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            server.psql(&db, "SET application_name = 'holder'; BEGIN; UPDATE orders SET note = 'mine' WHERE id = 2500; SELECT pg_sleep(4); COMMIT")
        });
        until("the row is held", || {
            sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holder' AND query LIKE '%pg_sleep%' AND wait_event = 'PgSleep'")
                == "1"
        });
        let run = sete.start("step", &[]);
        let retried = || sete.status()["backfill"]["retries"]["lock"].as_u64().unwrap_or_default();
        until("the batch gave way", || retried() > 0);
        holder.join().expect("the application's transaction went through");
        finish(run)
    });
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(sql(COPIED), "0");
    assert!(sete.status()["backfill"]["retries"]["deadlock"] == 0);
}

#[test]
fn rows_that_will_not_convert_are_counted_before_anything_is_done() {
    let server = Server::shared();
    let (db, url) = server.fresh_db();
    server.psql(
        &db,
        "CREATE TABLE t (id int PRIMARY KEY, amount text);
         INSERT INTO t SELECT n, CASE n WHEN 17 THEN '1,234' WHEN 900 THEN '' ELSE n::text END FROM generate_series(1, 1000) n; ANALYZE t",
    );
    let sete = Sete::new(
        &url,
        &retype("t-amount", "public.t", "amount", "amount_v2", "integer", "forward = \"amount::integer\"\nreverse = \"amount_v2::text\""),
    );
    let out = sete.run("plan", &["--check-data", "--format", "json"]);
    assert_eq!(out.code, 6, "{}", out.text());
    let data = out.json()["data"].clone();
    assert_eq!((&data["rows"], &data["unfit"]), (&1000.into(), &2.into()));
    assert_eq!((&data["sample"][0]["key"], &data["sample"][0]["value"]), (&"17".into(), &"1,234".into()));
    let text = sete.run("plan", &["--check-data"]).stdout;
    assert!(text.contains("2 of 1,000 rows don't convert") && text.contains("row 900 with \"\": 22P02"), "{text}");
    assert_eq!(server.psql(&db, "SELECT to_regnamespace('sete') IS NULL AND NOT EXISTS (SELECT FROM pg_proc WHERE proname LIKE 'error%' AND pronamespace::regnamespace::text LIKE 'pg_temp%')"), "t");
    server.psql(&db, "UPDATE t SET amount = '0' WHERE id IN (17, 900)");
    assert!(sete.ok("plan", &["--check-data"]).stdout.contains("1,000 rows looked at, all of them convert"));
}
