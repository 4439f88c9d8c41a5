//! Law 4: every action is safe to run twice, and to be killed at any instruction. Here at every named crash point, one after
//! the other; tests/killed.rs does it at random moments, from outside.
#![cfg(feature = "crash-points")]

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::postgres::Server;
use crate::support::sete::{STAGES, Sete, retype};

/// A dozen rows a page, so that a few hundred make several batches. `filled` is a record of what sete wrote to the new column.
const ORDERS: &str = "
CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status varchar(20) NOT NULL DEFAULT 'new' CHECK (status <> ''),
    note text);
CREATE INDEX orders_status_idx ON orders (status);
INSERT INTO orders (status, note) SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], repeat('x', 600) FROM generate_series(1, 300) n;
CREATE TABLE filled (id bigint, before text, after text);
CREATE FUNCTION note_fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    -- The first rows are the application's.
    IF NEW.id > 10 AND to_jsonb(OLD) ->> 'status_v2' IS DISTINCT FROM to_jsonb(NEW) ->> 'status_v2' THEN
        INSERT INTO public.filled VALUES (NEW.id, to_jsonb(OLD) ->> 'status_v2', to_jsonb(NEW) ->> 'status_v2');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_fill AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note_fill();
ANALYZE orders;";

/// Everything about a database that must not depend on where a run was killed: table, structure, sync, rows, state.
const PICTURE: &str = "
SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
    SELECT 'column ' || attnum || ' ' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' '
        || coalesce(pg_get_expr(adbin, adrelid), '') AS line
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT 'index ' || indisvalid || ' ' || pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'orders'::regclass
    UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype <> 'n'
    UNION ALL SELECT 'trigger ' || tgname || ' ' || tgenabled::text FROM pg_trigger WHERE tgrelid = 'orders'::regclass
    UNION ALL SELECT 'function ' || proname || ' ' || md5(prosrc) FROM pg_proc WHERE pronamespace = to_regnamespace('sete')
    UNION ALL SELECT 'rows ' || count(*) || ' ' || md5(string_agg(to_jsonb(orders)::text, ',' ORDER BY id)) FROM orders
    UNION ALL SELECT 'filled ' || count(*) || ' of ' || count(DISTINCT id) || ', again ' || count(before) FROM filled
    UNION ALL SELECT 'stage ' || stage || ' ' || (data ->> 'status') || ' ' || (SELECT coalesce(string_agg(key || '=' || value::text, ' ' ORDER BY key), '')
        FROM jsonb_each(data -> 'detail') WHERE key !~ '_(at|since)$') FROM sete.stage
    UNION ALL SELECT 'progress ' || (data ->> 'filled') || ' ' || (data ->> 'finished') || ' ' || (data ->> 'refresh') FROM sete.progress
    UNION ALL SELECT 'passes ' || count(*) || ', divergent ' || coalesce(sum((data ->> 'divergent')::int), 0) FROM sete.pass
    UNION ALL SELECT 'rejects ' || count(*) FROM sete.reject
    UNION ALL SELECT 'lease ' || CASE WHEN holder IS NULL THEN 'free' ELSE 'held' END FROM sete.lease) lines";

/// What the next run finds besides.
const WALK: &str = "SELECT string_agg(concat_ws(' ', data -> 'sweep', data -> 'watermark', data -> 'deferred'), '') FROM sete.progress";

/// One command of a story, as the run that was not killed saw it.
#[derive(Clone)]
struct Scene {
    back: bool,
    stage: &'static str,
    /// The database before it.
    template: String,
    /// The names of all crash points that it passes, in order.
    points: Vec<String>,
    /// The database after it.
    picture: String,
}

struct Story {
    name: &'static str,
    plan: String,
    scenes: Vec<Scene>,
}

fn url(server: &Server, db: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{}/{db}", server.port())
}

/// What the application does before a command: it writes what its release of that time writes.
fn application(story: &str, stage: &str) -> &'static str {
    match (story, stage) {
        (_, "expand") => "UPDATE orders SET status = 'paid' WHERE id = 2",
        // Without a sync, nobody but the application keeps both columns equal.
        ("app", "dual_write" | "backfill" | "validate" | "read_switch" | "stop_writes") => {
            "UPDATE orders SET status = 'shipped', status_v2 = 'shipped' WHERE id = 3; UPDATE orders SET status = 'new', status_v2 = 'new' WHERE id = 3"
        }
        ("swap", "drop") => "UPDATE orders SET status = 'shipped' WHERE id = 4",
        (_, "drop") => "UPDATE orders SET status_v2 = 'shipped' WHERE id = 4",
        _ => "UPDATE orders SET status = 'new' WHERE id = 2",
    }
}

/// Runs a story through without a kill, keeping the database before each command.
fn tell(server: &Server, name: &'static str, plan: String) -> Story {
    let (db, url) = server.fresh_db();
    server.psql(&db, ORDERS);
    let sete = Sete::new(&url, &plan);
    let log = sete.folder.join("points");
    let mut scenes = Vec::new();
    let mut scene = |back: bool, stage: &'static str, from: &str, sete: &Sete| {
        let template = format!("{name}_{}_{stage}", if back { "back" } else { "step" });
        server.psql("postgres", &format!("CREATE DATABASE {template} TEMPLATE {from}"));
        let mut scene = Scene { back, stage, template, points: Vec::new(), picture: String::new() };
        std::fs::remove_file(&log).ok();
        let out = sete.play(back, stage, &[("SETE_CRASH_LOG", log.to_str().expect("a path"))]);
        assert_eq!(out.code, 0, "{name}: {stage}: {}", out.text());
        scene.points = std::fs::read_to_string(&log).expect("points were passed").lines().map(str::to_owned).collect();
        scene.picture = server.psql(from, PICTURE);
        assert!(scene.picture.contains("again 0"), "{}", scene.picture);
        scenes.push(scene);
    };
    for stage in STAGES {
        server.psql(&db, application(name, stage));
        scene(false, stage, &db, &sete);
    }
    // The way back begins where stage 6 was done and the new column was written alone.
    let (back, back_url) = (format!("{name}_back"), self::url(server, &format!("{name}_back")));
    server.psql("postgres", &format!("CREATE DATABASE {back} TEMPLATE {name}_step_drop"));
    let returning = Sete::new(&back_url, &plan);
    for stage in STAGES[..6].iter().rev() {
        scene(true, stage, &back, &returning);
    }
    Story { name, plan, scenes }
}

/// Dies at `point` of a scene, runs the same command again, and compares. With `to_the_end`, the rest of the story too.
/// Where nothing was written since the point before, the next run finds what it has found there, and is spared.
fn die_at(server: &Server, story: &Story, at: usize, point: &str, to_the_end: bool, found: &Mutex<HashSet<String>>) {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let db = format!("crash_{}", MADE.fetch_add(1, Ordering::Relaxed));
    let scene = &story.scenes[at];
    let place = format!("{}, {} {}, killed {point}", story.name, if scene.back { "back from" } else { "step" }, scene.stage);
    server.psql("postgres", &format!("CREATE DATABASE {db} TEMPLATE {}", scene.template));
    let sete = Sete::new(&url(server, &db), &story.plan);
    let died = sete.play(scene.back, scene.stage, &[("SETE_CRASH_AT", point)]);
    assert_eq!(died.code, -1, "{place}: it did not die: {}", died.text());
    // Before our tables are made there is nothing to compare.
    let left = if scene.stage == "expand" && !scene.back {
        place.clone()
    } else {
        server.psql(&db, &format!("SELECT '{}', {at}, ({WALK}), ({PICTURE})", story.name))
    };
    let news = found.lock().expect("no panic while locked").insert(left);
    if !(news || to_the_end) {
        drop(sete);
        server.psql("postgres", &format!("DROP DATABASE {db} WITH (FORCE)"));
        return;
    }
    // Killed after the end was saved, `back` would go back one further.
    let undone = || server.psql(&db, &format!("SELECT data ->> 'status' FROM sete.stage WHERE stage = '{}'", scene.stage)) == "pending";
    if !(scene.back && undone()) {
        let again = sete.play(scene.back, scene.stage, &[]);
        let done_already = again.code == 4 && again.text().contains("E304");
        assert!(again.code == 0 || done_already, "{place}: {}", again.text());
    } else {
        // The runner is gone and nothing is left to do: only its lease is still written there.
        server.psql(&db, "UPDATE sete.lease SET holder = NULL");
    }
    let picture = server.psql(&db, PICTURE);
    assert_eq!(picture, scene.picture, "{place}");
    if to_the_end {
        for next in story.scenes[at + 1..].iter().filter(|next| next.back == scene.back) {
            if !next.back {
                server.psql(&db, application(story.name, next.stage));
            }
            let out = sete.play(next.back, next.stage, &[]);
            assert_eq!(out.code, 0, "{place}, then {}: {}", next.stage, out.text());
            let picture = server.psql(&db, PICTURE);
            assert_eq!(picture, next.picture, "{place}, then {}", next.stage);
        }
    }
    drop(sete);
    server.psql("postgres", &format!("DROP DATABASE {db} WITH (FORCE)"));
}

/// What comes after a kill depends on the database alone, so it is enough that it looks as if there had been none; one
/// point of every third command goes on to the end all the same.
#[test]
fn killed_at_any_point_the_next_run_goes_on() {
    let server = Server::shared();
    let more = "[backfill]\nbatch_rows = 100\nuser_triggers = \"fire\"";
    let plan = |more_still: &str| retype("orders-status", "public.orders", "status", "status_v2", "order_status", &format!("{more}\n{more_still}"));
    let stories: Vec<Story> = std::thread::scope(|scope| {
        let told = [("trigger", ""), ("swap", "[read_switch]\nmode = \"swap\""), ("app", "[dual_write]\nmode = \"app\"")]
            .map(|(name, more)| scope.spawn(move || tell(server, name, plan(more))));
        told.map(|story| story.join().expect("the story is told")).into()
    });

    let mut work = VecDeque::new();
    let mut seen = HashSet::new();
    for (story, told) in stories.iter().enumerate() {
        for (at, scene) in told.scenes.iter().enumerate() {
            // A point that is passed again is passed in another state, but the third time is like the second.
            let news: Vec<&String> =
                scene.points.iter().filter(|p| !p.contains(" #") || p.ends_with(" #2")).filter(|p| seen.insert((*p).clone())).collect();
            for (n, point) in news.iter().enumerate() {
                work.push_back((story, at, (*point).clone(), n == news.len() / 2 && at % 3 == story));
            }
        }
    }
    let (count, work) = (work.len(), Mutex::new(work));
    for needed in ["before add column status_v2", "after swap names back", "before remove observer", "before sending a batch", "before saving a pass"]
    {
        assert!(seen.contains(needed), "no point {needed:?} among {seen:?}");
    }
    assert!(count > 100, "{count} points");
    let (failures, found) = (Mutex::new(Vec::new()), Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((story, at, point, to_the_end)) = work.lock().expect("no panic while locked").pop_front() else { return };
                    let tried = std::panic::catch_unwind(|| die_at(server, &stories[story], at, &point, to_the_end, &found));
                    if tried.is_err() {
                        failures
                            .lock()
                            .expect("no panic while locked")
                            .push(format!("{} {}: {point}", stories[story].name, stories[story].scenes[at].stage));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic while locked");
    assert!(failures.is_empty(), "{} of {count} points: {failures:#?}", failures.len());
}
