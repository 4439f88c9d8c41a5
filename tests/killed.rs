//! Kills, lost connections, restarts, frozen and interrupted runners, all from outside and at whatever moment they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::postgres::Server;
use crate::support::sete::{Sete, finish, retype};
use crate::support::trials::{goes_on_at_once, is_done_after_the_server_came_back, kill_at_random_moments, one_of_two_runs};
use crate::support::{self, signal};
use rand::RngExt;

const PLAN: &str = "orders-status";

fn plan(more: &str) -> String {
    retype(PLAN, "public.orders", "status", "status_v2", "order_status", more)
}

/// `filled` records what sete itself wrote to the new column.
fn orders(server: &Server, rows: u32, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.psql(
        &db,
        &format!(
            "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
            CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status varchar(20) NOT NULL DEFAULT 'new', note text);
            INSERT INTO orders (status, note) SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], 'note ' || n FROM generate_series(1, {rows}) n;
            CREATE INDEX orders_status_idx ON orders (status);
            CREATE TABLE filled (id bigint, before text);
            CREATE FUNCTION note_fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF coalesce(current_setting('sete.by', true), '') <> '' AND to_jsonb(OLD) ->> 'status_v2' IS DISTINCT FROM to_jsonb(NEW) ->> 'status_v2' THEN
                    INSERT INTO public.filled VALUES (NEW.id, to_jsonb(OLD) ->> 'status_v2');
                END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER note_fill AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note_fill();
            ANALYZE orders"
        ),
    );
    (db, Sete::new(&url, &plan(&format!("[backfill]\nuser_triggers = \"fire\"\n{more}"))))
}

/// Waits for a condition in the database.
fn until(server: &Server, db: &str, condition: &str) {
    support::until(condition, || server.psql(db, &format!("SELECT {condition}")) == "t");
}

const BEGUN: &str =
    "coalesce((SELECT sum(filled) > 0 FROM sete.chunk), false) OR coalesce((SELECT (data ->> 'filled')::int > 0 FROM sete.progress), false)";

/// Every row once, none left out, and the count that is shown is the true one.
fn filled_once(server: &Server, db: &str) {
    assert_eq!(server.psql(db, "SELECT count(*) FROM orders WHERE status::text IS DISTINCT FROM status_v2::text"), "0", "rows differ");
    assert_eq!(server.psql(db, "SELECT count(*) - count(DISTINCT id) || ' ' || count(before) FROM filled"), "0 0", "rows were filled twice");
    let counts = server.psql(db, "SELECT (SELECT data ->> 'filled' FROM sete.progress) || ' ' || (SELECT count(*) FROM filled)");
    let (shown, real) = counts.split_once(' ').expect("two numbers");
    assert_eq!(shown, real, "`filled` is not what was filled");
}

/// The application, as it was before the change: it knows the old column alone.
struct Application<'a> {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::ScopedJoinHandle<'a, u32>>,
}

impl<'a> Application<'a> {
    fn start(scope: &'a std::thread::Scope<'a, '_>, server: &'a Server, db: &'a str, rows: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = scope.spawn(move || {
            let mut writes = 0;
            while !asked.load(Ordering::Relaxed) {
                let id = rand::rng().random_range(1..=rows);
                server.psql(db, &format!("UPDATE orders SET status = (ARRAY['new', 'paid', 'shipped'])[1 + {writes} % 3] WHERE id = {id}; INSERT INTO orders (status) VALUES ('paid')"));
                writes += 1;
            }
            writes
        });
        Application { stop, thread: Some(thread) }
    }

    fn stop(mut self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("the application's writes went through")
    }
}

impl Drop for Application<'_> {
    /// A test that fails ends, too.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn killed_at_random_moments_the_backfill_goes_on_at_once() {
    let server = Server::shared();
    let rows = 60_000;
    let pace = |rows_per_s: u32| format!("batch_rows = 500\npause = \"2ms\"\nmax_rows_per_s = {rows_per_s}");
    // So slow that the kills come before the end, however slow the machine is.
    let (db, sete) = orders(server, rows, &pace(1500));
    sete.through("dual_write");
    let token = || server.psql(&db, "SELECT token FROM sete.lease").parse::<u64>().expect("a number");
    std::thread::scope(|scope| {
        let application = Application::start(scope, server, &db, rows);
        kill_at_random_moments(&sete, 25, token);
        sete.rewrite(&plan(&format!("[backfill]\nuser_triggers = \"fire\"\n{}", pace(50_000))));
        goes_on_at_once(&sete, token);
        assert!(application.stop() > 0);
    });
    filled_once(server, &db);
    sete.through("validate");
}

#[test]
fn a_backend_that_is_ended_is_replaced_within_the_run() {
    let server = Server::shared();
    let (db, sete) = orders(server, 6000, "batch_rows = 100\nmax_rows_per_s = 5000");
    sete.through("dual_write");
    // Between a batch and its progress, from within.
    server.psql(
        &db,
        "CREATE SEQUENCE cuts;
        CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.cuts') IN (3, 7, 8) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER cut BEFORE INSERT OR UPDATE ON sete.progress FOR EACH ROW EXECUTE FUNCTION cut()",
    );
    let run = sete.start("step", &["--through", "backfill"]);
    until(server, &db, BEGUN);
    // And at whatever moment it is, of the worker, the lease, or both.
    for which in ["= 'sete orders-status'", "= 'sete orders-status lease'", "LIKE 'sete orders-status%'"].into_iter().cycle().take(12) {
        server.psql(
            &db,
            &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name {which}"),
        );
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(0..60)));
    }
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert!(out.stderr.contains("connection lost"), "{}", out.stderr);
    assert!(server.psql(&db, "SELECT last_value >= 8 FROM cuts") == "t");
    filled_once(server, &db);
}

#[test]
fn a_connection_that_breaks_each_time_is_given_up() {
    let server = Server::shared();
    let (db, sete) = orders(server, 100, "");
    sete.through("dual_write");
    server.psql(
        &db,
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
        CREATE TRIGGER cut BEFORE INSERT OR UPDATE ON sete.progress FOR EACH ROW EXECUTE FUNCTION cut()",
    );
    sete.fails("step", &["--through", "backfill"], 1, "E803");
    server.psql(&db, "DROP TRIGGER cut ON sete.progress");
    sete.through("backfill");
    filled_once(server, &db);
}

#[test]
fn a_server_that_crashes_and_comes_back_costs_nothing() {
    let mut server = Server::start(*Server::available().last().expect("a PostgreSQL"), &[]);
    for graceful in [false, true] {
        let (db, sete) = orders(&server, 6000, "batch_rows = 100\nmax_rows_per_s = 4000");
        sete.through("dual_write");
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
}

#[test]
fn of_two_runners_one_runs() {
    let server = Server::shared();
    // So slow that neither gets to the end.
    let (_db, sete) = orders(server, 3000, "batch_rows = 10\nmax_rows_per_s = 20");
    // The first round begins with an empty database: they also race for making the tables and the column.
    one_of_two_runs(&sete, 10);
}

#[test]
fn a_runner_may_wait_for_the_other() {
    let server = Server::shared();
    let (db, sete) = orders(server, 3000, "batch_rows = 100\nmax_rows_per_s = 2000");
    sete.through("dual_write");
    let first = sete.start("step", &["--through", "backfill"]);
    until(server, &db, BEGUN);
    let mut second = Talking::start(&sete, &["--through", "backfill", "--wait", "60s"]);
    second.says("waiting for the runner");
    signal("-INT", &first);
    assert_eq!(finish(first).code, 130);
    assert_eq!(second.end(), 0, "{}", second.said());
    filled_once(server, &db);
}

#[test]
fn a_frozen_runner_that_was_taken_over_writes_nothing_more() {
    let server = Server::shared();
    let (db, sete) = orders(server, 2000, "batch_rows = 10\nmax_rows_per_s = 100");
    sete.through("dual_write");
    let frozen = sete.start("step", &["--through", "backfill"]);
    until(server, &db, BEGUN);
    signal("-STOP", &frozen);
    // Its sessions are there, so its lease and its region's have to end first. Made to end now instead of in 30 s; it may hold the rows' locks.
    until(
        server,
        &db,
        "NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sete orders-status' AND state = 'idle in transaction')",
    );
    server.psql(&db, "UPDATE sete.lease SET until = now(); UPDATE sete.chunk SET until = now()");
    let token = server.psql(&db, "SELECT token FROM sete.lease");
    let other = Sete::new(&sete.url, &plan("[backfill]\nuser_triggers = \"fire\""));
    other.through("backfill");
    let all = || {
        server.psql(&db, "SELECT md5((SELECT string_agg(o.ctid::text || o::text, ',' ORDER BY id) FROM orders o)
        || (SELECT string_agg(s::text, ',' ORDER BY stage) FROM sete.stage s) || (SELECT string_agg(p::text, ',') FROM sete.progress p)
        || (SELECT string_agg(l::text, ',') FROM sete.lease l) || (SELECT string_agg(e::text, ',' ORDER BY id) FROM sete.event e) || (SELECT string_agg(text, ',') FROM sete.plan))")
    };
    let before = all();
    signal("-CONT", &frozen);
    let out = finish(frozen);
    assert!(out.code == 7 && out.stderr.contains("E602"), "{} (its token was {token}): {}", out.code, out.text());
    assert_eq!(all(), before, "the late runner wrote");
    filled_once(server, &db);
}

/// A command whose messages are read while it runs.
struct Talking {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Talking {
    fn start(sete: &Sete, args: &[&str]) -> Talking {
        let mut child = sete.start("step", args);
        let (stderr, said) = (child.stderr.take().expect("piped"), Arc::new(Mutex::new(String::new())));
        let heard = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut heard = heard.lock().expect("no panic while locked");
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        Talking { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("no panic while locked").clone()
    }

    fn says(&mut self, what: &str) {
        let began = Instant::now();
        while !self.said().contains(what) {
            let ended = self.child.try_wait().expect("ours to wait for");
            assert!(ended.is_none() && began.elapsed() < Duration::from_secs(60), "{what:?} was not said: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) -> i32 {
        self.child.wait().expect("ours to wait for").code().unwrap_or(-1)
    }
}

/// Holds a lock until it is dropped.
struct Lock<'a> {
    server: &'a Server,
    db: String,
    name: String,
    psql: Option<std::thread::JoinHandle<()>>,
}

impl<'a> Lock<'a> {
    fn hold(server: &'static Server, db: &str, mode: &str) -> Lock<'a> {
        let name = format!("holder_{}", rand::rng().random_range(0..u32::MAX));
        let (to, sql) = (db.to_owned(), format!("SET application_name = '{name}'; BEGIN; LOCK TABLE orders IN {mode} MODE; SELECT pg_sleep(60)"));
        let psql = std::thread::spawn(move || {
            // Ends with an error when it is terminated.
            std::panic::catch_unwind(|| server.psql(&to, &sql)).ok();
        });
        until(
            server,
            db,
            &format!(
                "EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = '{name}' AND l.granted AND l.relation = 'orders'::regclass)"
            ),
        );
        Lock { server, db: db.to_owned(), name, psql: Some(psql) }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.server.psql(&self.db, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'", self.name));
        if let Some(psql) = self.psql.take() {
            psql.join().ok();
        }
    }
}

const WAITS: &str =
    "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sete%' AND wait_event_type = 'Lock')";

#[test]
fn a_backend_that_is_ended_while_it_waits_for_a_lock_is_replaced() {
    let server = Server::shared();
    let (db, _) = orders(server, 100, "");
    let sete = Sete::new(
        &url(server, &db),
        &plan(
            "[backfill]\nuser_triggers = \"fire\"\n[ddl]\nfirst_try = \"2s\"\nlock_timeout = \"2s\"\npatience = \"30s\"\nmax_blocker_age = \"30s\"",
        ),
    );
    let lock = Lock::hold(server, &db, "ACCESS SHARE");
    let run = sete.start("step", &["--through", "expand"]);
    until(server, &db, WAITS);
    server.psql(&db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sete%' AND wait_event_type = 'Lock'");
    drop(lock);
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
    assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'status_v2'"), "1");
}

fn url(server: &Server, db: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{}/{db}", server.port())
}

/// Stands between sete and the server. After a statement with `armed_by` in it, the next COMMIT is passed on and the connection
/// cut before its answer; from then on nobody gets through, until `open`.
struct Proxy {
    port: u16,
    cut: Arc<AtomicBool>,
    open: Arc<AtomicBool>,
}

impl Proxy {
    fn start(server: &Server, armed_by: &'static str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let proxy = Proxy { port, cut: Arc::default(), open: Arc::new(AtomicBool::new(true)) };
        let (to, cut, open, armed) = (server.port(), proxy.cut.clone(), proxy.open.clone(), Arc::new(AtomicBool::new(false)));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (mut back, mut forth) = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                std::thread::spawn(move || std::io::copy(&mut back, &mut forth).and_then(|_| forth.shutdown(Shutdown::Both)).ok());
                let (cut, open, armed) = (cut.clone(), open.clone(), armed.clone());
                std::thread::spawn(move || pass_on(client, server, armed_by, &armed, &cut, &open));
            }
        });
        proxy
    }

    fn url(&self, db: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{db}?sslmode=disable", self.port)
    }
}

fn pass_on(mut client: TcpStream, mut server: TcpStream, armed_by: &str, armed: &AtomicBool, cut: &AtomicBool, open: &AtomicBool) {
    let mut buffer = [0; 65_536];
    let mut mine = false;
    let holds = |sent: &[u8], what: &[u8]| sent.windows(what.len()).any(|window| window == what);
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        let sent = &buffer[..n];
        mine |= holds(sent, armed_by.as_bytes()) && !armed.swap(true, Ordering::SeqCst);
        let last = mine && holds(sent, b"COMMIT\0") && !cut.load(Ordering::SeqCst);
        if last {
            // Nothing of the answer may get through.
            open.store(false, Ordering::SeqCst);
            client.shutdown(Shutdown::Both).ok();
        }
        if server.write_all(sent).is_err() {
            break;
        }
        if last {
            cut.store(true, Ordering::SeqCst);
            // The server has read it when it answers and finds nobody; an end of file behind it changes nothing.
            server.shutdown(Shutdown::Write).ok();
            return;
        }
    }
    server.shutdown(Shutdown::Both).ok();
}

#[test]
fn a_commit_without_an_answer_is_looked_at_again() {
    let server = Server::shared();
    // An action, one that must not be done twice, and a batch.
    for (stage, before, armed_by) in
        [("expand", None, "ADD COLUMN"), ("backfill", Some("dual_write"), "SET LOCAL sete.by"), ("read_switch", Some("validate"), "RENAME COLUMN")]
    {
        let (db, direct) = orders(server, 500, "batch_rows = 100\n[read_switch]\nmode = \"swap\"");
        if let Some(before) = before {
            direct.through(before);
        }
        let proxy = Proxy::start(server, armed_by);
        let text = std::fs::read_to_string(&direct.plan).expect("the plan is there");
        let sete = Sete::new(&proxy.url(&db), &text);
        let mut run = Talking::start(&sete, &["--through", stage]);
        let began = Instant::now();
        while !proxy.cut.load(Ordering::SeqCst) {
            assert!(
                began.elapsed() < Duration::from_secs(60) && run.child.try_wait().expect("ours").is_none(),
                "{stage}: no COMMIT was cut: {}",
                run.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        proxy.open.store(true, Ordering::SeqCst);
        assert_eq!(run.end(), 0, "{stage}: {}", run.said());
        if stage == "backfill" {
            filled_once(server, &db);
        }
        if stage == "read_switch" {
            assert_eq!(
                server.psql(&db, "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'status'"),
                "order_status"
            );
        }
        direct.through("drop");
    }
}

#[test]
fn an_outcome_that_cannot_be_looked_at_is_called_unknown() {
    let server = Server::shared();
    let (db, direct) = orders(server, 100, "[ddl]\nlock_timeout = \"1s\"\npatience = \"2s\"");
    let proxy = Proxy::start(server, "ADD COLUMN");
    let sete = Sete::new(&proxy.url(&db), &std::fs::read_to_string(&direct.plan).expect("the plan is there"));
    let out = sete.fails("step", &["--through", "expand"], 8, "E701");
    assert!(proxy.cut.load(Ordering::SeqCst), "{}", out.text());
    // Here it was done after all; the next run sees it.
    direct.through("expand");
    direct.through("drop");
}

#[test]
fn ctrl_c_ends_a_backfill_with_its_progress() {
    let server = Server::shared();
    let (db, sete) = orders(server, 3000, "batch_rows = 100\nmax_rows_per_s = 2000");
    sete.through("dual_write");
    let run = sete.start("step", &["--through", "backfill"]);
    until(server, &db, BEGUN);
    signal("-INT", &run);
    let out = finish(run);
    assert!(out.code == 130 && out.stderr.contains("E901"), "{}: {}", out.code, out.text());
    assert!(server.psql(&db, "SELECT count(*) > 0 AND count(*) < 3000 FROM filled") == "t", "not in the middle");
    let status = sete.status();
    assert_eq!(status["stage"], "backfill");
    assert!(status["waiting_for"].as_str().is_some_and(|what| what.contains("run `sete step` to go on")), "{status}");
    assert_eq!(status["backfill"]["filled"].to_string(), server.psql(&db, "SELECT count(*) FROM filled"));
    sete.through("backfill");
    filled_once(server, &db);
}

#[test]
fn ctrl_c_ends_a_wait_for_a_lock() {
    let server = Server::shared();
    let (db, _) = orders(server, 100, "");
    let sete = Sete::new(&url(server, &db), &plan("[backfill]\nuser_triggers = \"fire\"\n[ddl]\npatience = \"50s\"\nmax_blocker_age = \"50s\""));
    let lock = Lock::hold(server, &db, "ACCESS SHARE");
    let run = sete.start("step", &["--through", "expand"]);
    until(server, &db, WAITS);
    signal("-INT", &run);
    let out = finish(run);
    assert!(out.code == 130 && out.stderr.contains("E901"), "{}: {}", out.code, out.text());
    assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'status_v2'"), "0");
    let status = sete.status();
    assert!(status["waiting_for"].as_str().is_some_and(|what| what.contains("run `sete step` to go on")), "{status}");
    drop(lock);
    sete.through("expand");
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let server = Server::shared();
    let (db, sete) = orders(server, 100, "user_triggers = \"fire\"\n[ddl]\npatience = \"50s\"");
    sete.through("backfill");
    // An index build waits for this as long as it takes.
    let lock = Lock::hold(server, &db, "ROW EXCLUSIVE");
    let mut run = Talking::start(&sete, &["--through", "validate"]);
    until(server, &db, WAITS);
    signal("-INT", &run.child);
    run.says("once more to stop at once");
    assert!(
        server.psql(&db, &format!("SELECT {WAITS}")) == "t" && run.child.try_wait().expect("ours to wait for").is_none(),
        "the first was enough: {}",
        run.said()
    );
    signal("-INT", &run.child);
    assert_eq!(run.end(), 130, "{}", run.said());
    assert_eq!(
        server.psql(&db, "SELECT count(*) FROM pg_locks WHERE relation = 'orders'::regclass AND mode = 'RowExclusiveLock' AND granted"),
        "1",
        "the lock was not waited for"
    );
    drop(lock);
    sete.through("validate");
    assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND NOT indisvalid"), "0");
    sete.through("drop");
}
