//! What the application feels: nobody queues behind a lock of ours, a backfill never wins against it, and a live workload
//! goes through all seven stages, and back from each, without one failed statement or one lost write.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::postgres::Server;
use crate::support::sete::{Sete, finish, retype};
use crate::support::workload::{Mode, Running, Workload};
use crate::support::{signal, until};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

const ORDERS: &str = "
CREATE TYPE order_status AS ENUM ('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded');
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status varchar(20) NOT NULL DEFAULT 'new', note text,
    customer_id int, total_cents int, updated_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX orders_status_idx ON orders (status);
CREATE TABLE other (id int);
INSERT INTO orders (status, note) SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], 'note ' || n FROM generate_series(1, 2000) n;";

/// A single try waits 300 ms at most, all of them together three seconds.
const SHORT: &str = "[ddl]\npatience = \"3s\"\nlock_timeout = \"300ms\"\nfirst_try = \"50ms\"\nmax_blocker_age = \"1m\"\n";
/// The same with a blocker that is never queued behind, and time for it to end.
const LONG: &str = "[ddl]\npatience = \"60s\"\nlock_timeout = \"300ms\"\nfirst_try = \"50ms\"\nmax_blocker_age = \"1ms\"\n";

/// One server whose log tells of every wait longer than a second (deadlock_timeout).
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(*Server::available().last().expect("a PostgreSQL"), &["log_lock_waits = on"]))
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

/// Another application's session.
struct Session(Client);

impl Session {
    fn open(url: &str, name: &str) -> Session {
        let mut config: tokio_postgres::Config = url.parse().unwrap();
        config.application_name(name);
        let (client, connection) = runtime().block_on(config.connect(NoTls)).unwrap();
        runtime().spawn(connection);
        Session(client)
    }

    fn run(&self, sql: &str) {
        self.try_run(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    fn try_run(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        runtime().block_on(self.0.batch_execute(sql))
    }

    fn pid(&self) -> i32 {
        runtime().block_on(self.0.query_one("SELECT pg_backend_pid()", &[])).unwrap().get(0)
    }
}

/// An application that reads and writes the table in a loop, and remembers its longest wait.
struct Shop {
    pid: i32,
    stop: Arc<AtomicBool>,
    looping: JoinHandle<(u64, Duration)>,
}

impl Shop {
    fn start(url: &str) -> Shop {
        let session = Session::open(url, "shop");
        let pid = session.pid();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let looping = std::thread::spawn(move || {
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                session.run("SELECT note FROM orders WHERE id = 7; UPDATE orders SET note = note WHERE id = 7");
                longest = longest.max(began.elapsed());
                count += 1;
            }
            (count, longest)
        });
        Shop { pid, stop, looping }
    }

    /// Never waited for longer than one short try takes. The server's own word counts: its log tells of longer waits.
    fn waited_for_no_more_than_one_try(self, server: &Server) {
        self.stop.store(true, Ordering::Relaxed);
        let (count, longest) = self.looping.join().unwrap();
        assert!(count > 3, "the application came to run {count} times");
        assert!(longest < Duration::from_millis(2500), "the application waited for {longest:?}");
        assert!(!server.log().contains(&format!("process {} still waiting", self.pid)), "the application waited for more than a second");
    }
}

fn orders(plan: &str, new_type: &str) -> (String, Sete) {
    let (db, url) = server().fresh_db();
    server().psql(&db, ORDERS);
    (db, Sete::new(&url, &plan_text(plan, new_type)))
}

/// With two workers, so that whatever holds for one holds for several.
fn plan_text(more: &str, new_type: &str) -> String {
    let more =
        if more.contains("[backfill]") { more.replace("[backfill]", "[backfill]\nworkers = 2") } else { format!("[backfill]\nworkers = 2\n{more}") };
    let more = more.as_str();
    retype("orders-status", "public.orders", "status", "status_v2", new_type, more)
}

/// Columns, constraints, indexes, triggers of the table, and all functions of ours.
fn catalog(db: &str) -> String {
    server().psql(
        db,
        "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
            SELECT attnum || ' ' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' ' || attisdropped || ' ' || atthasdef AS line
            FROM pg_attribute WHERE attrelid = 'orders'::regclass
            UNION ALL SELECT pg_get_indexdef(indexrelid) || ' ' || indisvalid FROM pg_index WHERE indrelid = 'orders'::regclass
            UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass
            UNION ALL SELECT tgname || ' ' || tgenabled::text FROM pg_trigger WHERE tgrelid = 'orders'::regclass
            UNION ALL SELECT proname || ' ' || prosrc FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'sete')) lines",
    )
}

/// `blocker` is a transaction left open in the way of the stage's schema change.
fn a_held_lock_ends_with_exit_5_and_nobody_waits(stage: &str, before: Option<&str>, more: &str, blocker: &str) {
    let (db, sete) = orders(&format!("{more}\n{SHORT}"), "order_status");
    match before {
        Some(before) => drop(sete.through(before)),
        // So that the events can be looked at; it changes nothing.
        None => drop(sete.ok("plan", &[])),
    }
    let reporting = Session::open(&sete.url, "reporting-7");
    reporting.run(&format!("BEGIN; {blocker}"));
    let unchanged = catalog(&db);
    let shop = Shop::start(&sete.url);

    let began = Instant::now();
    let out = sete.fails("step", &["--yes"], 5, "E401");
    assert!(began.elapsed() < Duration::from_secs(15), "patience is 3 s, it took {:?}", began.elapsed());
    let text = out.text();
    for named in [
        format!("pid {}", reporting.pid_hint(&db)),
        "reporting-7".into(),
        "idle in transaction".into(),
        "transaction open for".into(),
        blocker.into(),
    ] {
        assert!(text.contains(&named), "`{named}` is not in: {text}");
    }
    assert_eq!(catalog(&db), unchanged, "{stage}");
    let tries = events(&db, "ddl_blocked");
    assert!(!tries.is_empty() && tries.iter().all(|e| e["tried_ms"].as_f64().is_some_and(|ms| ms <= 300.0)), "{tries:?}");
    assert_eq!(sete.at(), (stage.into(), "failed".into()));

    // Within its patience, once the blocker is gone; one that is old is not even queued behind.
    sete.rewrite(&plan_text(&format!("{more}\n{LONG}"), "order_status"));
    let seen = tries.len();
    let step = sete.start("step", &["--yes", "--wait", "30s"]);
    until("the step is blocked", || events(&db, "ddl_blocked").len() > seen + 1);
    assert!(events(&db, "ddl_blocked")[seen..].iter().all(|e| e["tried_ms"].is_null() && e["blocker"]["application"] == "reporting-7"));
    reporting.run("COMMIT");
    let out = finish(step);
    assert_eq!(out.code, 0, "{}", out.text());
    shop.waited_for_no_more_than_one_try(server());
}

impl Session {
    /// As the server lists it, since the session itself is in the middle of a transaction.
    fn pid_hint(&self, db: &str) -> String {
        server().psql(db, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name IN ('reporting-7', 'snapshot-9')")
    }
}

fn events(db: &str, kind: &str) -> Vec<Value> {
    if server().psql(db, "SELECT to_regclass('sete.event') IS NULL") == "t" {
        return Vec::new();
    }
    let rows = server().psql(db, &format!("SELECT coalesce(json_agg(data ORDER BY id), '[]') FROM sete.event WHERE data->>'event' = '{kind}'"));
    serde_json::from_str(&rows).unwrap()
}

const READ: &str = "SELECT count(*) FROM orders";
/// SHARE ROW EXCLUSIVE, which the triggers need, lets readers be.
const WRITE: &str = "UPDATE orders SET note = 'held' WHERE id = 1";

#[test]
fn expand_waits_for_nobody_for_long() {
    a_held_lock_ends_with_exit_5_and_nobody_waits("expand", None, "", READ);
}

#[test]
fn the_sync_trigger_waits_for_nobody_for_long() {
    a_held_lock_ends_with_exit_5_and_nobody_waits("dual_write", Some("expand"), "", WRITE);
}

#[test]
fn a_swap_waits_for_nobody_for_long() {
    a_held_lock_ends_with_exit_5_and_nobody_waits("read_switch", Some("validate"), "[read_switch]\nmode = \"swap\"", READ);
}

#[test]
fn letting_the_old_column_be_null_waits_for_nobody_for_long() {
    a_held_lock_ends_with_exit_5_and_nobody_waits("stop_writes", Some("read_switch"), "", READ);
}

#[test]
fn the_drop_waits_for_nobody_for_long() {
    a_held_lock_ends_with_exit_5_and_nobody_waits("drop", Some("stop_writes"), "", READ);
}

#[test]
fn the_journal_has_wait_and_hold_of_every_schema_change() {
    let (db, sete) = orders("", "order_status");
    sete.through("drop");
    let applied = events(&db, "ddl_applied");
    let actions: Vec<&str> = applied.iter().filter_map(|e| e["action"].as_str()).collect();
    for wanted in ["add column status_v2", "install sync trigger", "let status be null", "remove sync trigger", "drop column status"] {
        assert!(actions.contains(&wanted), "{wanted} is not among {actions:?}");
    }
    for event in &applied {
        assert!(event["wait_ms"].as_f64().is_some_and(|ms| ms >= 0.0) && event["hold_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{event}");
        assert!(event["tries"].as_u64() >= Some(1) && event["statements"].as_array().is_some_and(|s| !s.is_empty()), "{event}");
    }
}

fn invalid_indexes(db: &str) -> String {
    server().psql(db, "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND NOT indisvalid")
}

#[test]
fn an_index_build_behind_an_old_snapshot_gives_up_and_leaves_nothing() {
    let (db, sete) = orders(SHORT, "order_status");
    sete.through("backfill");
    let snapshot = Session::open(&sete.url, "snapshot-9");
    snapshot.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other");
    let out = sete.fails("step", &[], 5, "E401");
    for named in [format!("pid {}", snapshot.pid_hint(&db)), "snapshot-9".into(), "SELECT count(*) FROM other".into()] {
        assert!(out.text().contains(&named), "`{named}` is not in: {}", out.text());
    }
    assert_eq!(invalid_indexes(&db), "0");
    snapshot.run("COMMIT");
    sete.through("validate");
    assert_eq!(server().psql(&db, "SELECT count(*) FROM pg_indexes WHERE tablename = 'orders' AND indexdef LIKE '%status_v2%'"), "1");
}

#[test]
fn an_index_that_a_killed_build_left_invalid_is_built_again() {
    let (db, sete) = orders(LONG, "order_status");
    sete.through("backfill");
    let snapshot = Session::open(&sete.url, "snapshot-9");
    snapshot.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other");
    let mut step = sete.start("step", &[]);
    until("the build waits", || invalid_indexes(&db) == "1");
    step.kill().unwrap();
    step.wait().unwrap();
    server().psql(
        &db,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND datname = current_database()",
    );
    until("the build's session is gone", || {
        server().psql(&db, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND datname = current_database() AND pid <> pg_backend_pid()") == "0"
    });
    assert_eq!(invalid_indexes(&db), "1");
    let left = server().psql(&db, "SELECT indexrelid FROM pg_index WHERE indrelid = 'orders'::regclass AND NOT indisvalid");
    snapshot.run("COMMIT");
    sete.through("validate");
    assert_eq!(invalid_indexes(&db), "0");
    let built = server().psql(&db, "SELECT indexrelid::regclass || ' ' || indexrelid FROM pg_index WHERE indrelid = 'orders'::regclass AND indisvalid AND pg_get_indexdef(indexrelid) LIKE '%status_v2%'");
    assert!(!built.is_empty() && !built.ends_with(&format!(" {left}")), "{built}, left was {left}");
}

/// Case 17: each transaction of the application goes through a few rows from the last to the first, the backfill the other way.
#[test]
fn the_application_never_loses_a_deadlock() {
    for walk in ["physical", "key"] {
        let (db, sete) = orders(&format!("[backfill]\nwalk = \"{walk}\"\n[ddl]\npatience = \"60s\""), "order_status");
        sete.through("dual_write");
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<JoinHandle<u32>> = (0..3)
            .map(|n| {
                let (session, stop) = (Session::open(&sete.url, "shop"), stop.clone());
                std::thread::spawn(move || {
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) {
                        session.run("BEGIN");
                        for step in (0..4).rev() {
                            // Rows that were not written yet: those that were are filled, and the backfill passes over them.
                            let id = 1 + 500 * step + (3 * rounds + n) % 500;
                            session.run(&format!("UPDATE orders SET note = 'by {n}' WHERE id = {id}; SELECT pg_sleep(0.05)"));
                        }
                        session.run("COMMIT");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let out = sete.run("step", &["--format", "json"]);
        stop.store(true, Ordering::Relaxed);
        let rounds: u32 = clients.into_iter().map(|c| c.join().expect("the application saw no error")).sum();
        assert_eq!(out.code, 0, "{walk}: {}", out.text());
        assert!(rounds > 0);
        assert!(out.stdout.contains("batch_retried"), "{walk}: they never met: {}", out.text());
        assert_eq!(server().psql(&db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"), "0", "{walk}");
        assert_eq!(server().psql(&db, "SELECT count(*) FROM orders WHERE status_v2 IS NULL"), "0");
    }
}

// --- a live workload -------------------------------------------------------------------------------------------------

struct Live {
    sete: Sete,
    apps: Vec<Running>,
}

impl Live {
    fn start(&mut self, name: &str, mode: &str) {
        let app = Workload {
            url: self.sete.url.clone(),
            name: name.into(),
            mode: mode.parse().unwrap(),
            clients: 2,
            rate: 40.0,
            rows: Some(2000),
            ..Workload::default()
        };
        self.apps.push(runtime().block_on(app.start()).unwrap());
    }

    fn deploy(&self, mode: &str) {
        let mode: Mode = mode.parse().unwrap();
        self.apps.iter().for_each(|app| runtime().block_on(app.deploy(mode)));
    }

    fn through(&self, stage: &str) {
        self.sete.through(stage);
    }

    fn back(&self, from: &str) {
        self.sete.ok("back", &[]);
        assert_eq!(self.sete.at().0, from);
    }

    /// A full comparison while everybody writes: nothing differs.
    fn validate(&self) {
        self.sete.ok("validate", &[]);
    }

    fn end(&mut self) {
        for app in self.apps.drain(..) {
            let summary = runtime().block_on(app.stop());
            assert!(summary.unnoticed(), "{summary}");
        }
    }
}

#[test]
fn a_live_application_notices_nothing() {
    let (_, sete) = orders("[ddl]\npatience = \"60s\"\n[drop]\nsoak = \"0ms\"", "order_status");
    let mut live = Live { sete, apps: Vec::new() };
    live.start("web", "old/old");
    live.through("expand");
    live.back("expand");
    live.through("expand");
    live.deploy("both/old");
    live.through("dual_write");
    live.deploy("old/old");
    live.back("dual_write");
    // After a time without the sync only the old column is true, until the backfill has been through.
    live.through("backfill");
    live.back("backfill");
    live.deploy("mixed/old");
    live.through("backfill");
    live.validate();
    live.back("backfill");
    live.validate();
    live.deploy("new/old");
    live.through("validate");
    live.back("validate");
    live.validate();
    live.deploy("neither");
    live.through("validate");
    live.through("read_switch");
    live.deploy("mixed/new");
    live.validate();
    live.deploy("both/old");
    live.back("read_switch");
    live.validate();
    live.through("read_switch");
    live.deploy("new/new");
    live.through("stop_writes");
    live.back("stop_writes");
    live.validate();
    live.deploy("mixed/new");
    live.validate();
    live.deploy("new/new");
    live.through("drop");
    live.end();
}

/// The names are exchanged under statements that were prepared before. What a statement returns can't change its type
/// under it (E127 says so), so those that read the column are of a second application, which a deploy starts again.
#[test]
fn a_live_application_notices_nothing_of_a_swap() {
    let (_, sete) = orders("[ddl]\npatience = \"60s\"\n[read_switch]\nmode = \"swap\"", "text");
    let mut live = Live { sete, apps: Vec::new() };
    live.start("web", "old/neither");
    live.through("dual_write");
    live.start("reader", "old/old");
    live.deploy("mixed/neither");
    live.through("backfill");
    live.deploy("both/neither");
    live.through("validate");
    let reader = runtime().block_on(live.apps.pop().unwrap().stop());
    assert!(reader.unnoticed(), "{reader}");
    live.deploy("mixed/neither");
    live.through("read_switch");
    live.validate();
    // Written through the other name, an insert would meet the default, which went with the name.
    live.start("reader", "old/old");
    live.validate();
    let reader = runtime().block_on(live.apps.pop().unwrap().stop());
    assert!(reader.unnoticed(), "{reader}");
    live.back("read_switch");
    live.validate();
    live.deploy("new/neither");
    live.through("read_switch");
    live.validate();
    live.deploy("old/neither");
    live.through("stop_writes");
    live.back("stop_writes");
    live.validate();
    live.through("drop");
    live.end();
}

// --- throttles -------------------------------------------------------------------------------------------------------

const SLOW: &str = "[backfill]\nbatch_rows = 20\nmax_rows_per_s = 400";

fn throttled_by(sete: &Sete) -> String {
    sete.status()["backfill"]["throttled_by"].as_str().unwrap_or_default().to_owned()
}

/// Ends a run as Ctrl-C would.
fn interrupt(step: Child) {
    signal("-TERM", &step);
    assert_eq!(finish(step).code, 130);
}

#[test]
fn a_pause_from_elsewhere_holds_a_running_backfill() {
    let (db, sete) = orders(SLOW, "order_status");
    sete.through("dual_write");
    let filled = || server().psql(&db, "SELECT count(*) FROM orders WHERE status_v2 IS NOT NULL").parse::<u64>().unwrap();
    let step = sete.start("step", &[]);
    until("it has begun", || filled() > 0);
    sete.ok("pause", &[]);
    until("it is held", || throttled_by(&sete) == "pause");
    let held = filled();
    assert!(held < 2000, "it was over before it was held");
    assert_eq!(sete.at(), ("backfill".into(), "paused".into()));
    sete.fails("step", &[], 7, "E601");
    assert_eq!(filled(), held);
    sete.ok("resume", &[]);
    let out = finish(step);
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(filled(), 2000);
    assert_eq!(throttled_by(&sete), "");
}

#[test]
fn a_replica_that_does_not_answer_holds_the_backfill() {
    let (db, sete) = orders("[throttle]\nreplicas = [\"env:REPLICA_URL\"]", "order_status");
    let sete = sete.env("REPLICA_URL", "postgres://postgres@127.0.0.1:1/postgres");
    sete.through("dual_write");
    let step = sete.start("step", &[]);
    until("it is held", || throttled_by(&sete) == "the lag of replica env:REPLICA_URL is unknown");
    assert_eq!(server().psql(&db, "SELECT count(*) FROM orders WHERE status_v2 IS NOT NULL"), "0");
    interrupt(step);
}

#[test]
fn a_replica_that_is_behind_holds_the_backfill() {
    let major = Server::major_with_standby();
    let primary = Server::start(major, &[]);
    let standby = primary.standby(major, &["recovery_min_apply_delay = '3s'"]);
    let (db, url) = primary.fresh_db();
    primary.psql(&db, ORDERS);
    for (replicas, name) in [("", "replica walreceiver"), ("replicas = [\"env:REPLICA_URL\"]\n", "replica env:REPLICA_URL")] {
        let id = format!("slow-{}", replicas.len());
        let text = retype(
            &id,
            "public.orders",
            "status",
            &format!("v{}", replicas.len()),
            "order_status",
            &format!("{SLOW}\n[throttle]\n{replicas}max_replica_lag = \"1s\""),
        );
        let sete = Sete::new(&url, &text).env("REPLICA_URL", &standby.url());
        sete.through("dual_write");
        let step = sete.start("step", &[]);
        // The primary's view of it and its own are both heeded; which of the two is larger changes.
        let names = [name, "replica walreceiver"];
        until("it is held", || names.iter().any(|name| throttled_by(&sete).starts_with(name)));
        assert_eq!(sete.at(), ("backfill".into(), "running".into()));
        interrupt(step);
    }
}

/// It has no session, so pg_stat_activity doesn't know it: it is named all the same.
#[test]
fn a_prepared_transaction_in_the_way_is_named() {
    let server = Server::start(*Server::available().last().expect("a PostgreSQL"), &["max_prepared_transactions = 2"]);
    let (db, url) = server.fresh_db();
    server.psql(&db, ORDERS);
    server.psql(&db, "BEGIN; UPDATE orders SET note = 'x' WHERE id = 1; PREPARE TRANSACTION 'payment-17'");
    let sete = Sete::new(&url, &retype("orders-status", "public.orders", "status", "status_v2", "order_status", SHORT));
    let out = sete.fails("step", &[], 5, "E401");
    assert!(out.text().contains("prepared transaction payment-17"), "{}", out.text());
    server.psql(&db, "ROLLBACK PREPARED 'payment-17'");
    sete.ok("step", &[]);
}
