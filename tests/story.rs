//! The main path, on every version of PostgreSQL that is here: through all seven stages and back again.

use crate::support::postgres::Server;
use crate::support::sete::{STAGES, Sete, retype};

/// varchar to enum, with everything that hangs on a column.
const ORDERS: &str = "
CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status varchar(20) NOT NULL DEFAULT 'new' CHECK (status <> ''),
    note text, total int);
CREATE INDEX orders_status_idx ON orders (status);
CREATE INDEX ON orders (note, status DESC) WHERE total > 10;
INSERT INTO orders (status, note, total)
    SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], 'note ' || n, n FROM generate_series(1, 3000) n;";

fn orders(server: &Server, more: &str) -> (String, Sete) {
    let (db, url) = server.fresh_db();
    server.psql(&db, ORDERS);
    (db, Sete::new(&url, &retype("orders-status", "public.orders", "status", "status_v2", "order_status", more)))
}

/// Rows where the two columns differ, under whatever names they have.
fn differ(server: &Server, db: &str) -> String {
    server.psql(db, "SELECT count(*) FROM orders WHERE status::text IS DISTINCT FROM status_v2::text")
}

fn walks(major: u32) -> &'static [&'static str] {
    if major >= 14 { &["physical", "key"] } else { &["key"] }
}

#[test]
fn a_change_goes_through_all_stages_on_every_version() {
    for major in Server::available() {
        let server = Server::start(major, &[]);
        for walk in walks(major) {
            let (db, sete) = orders(&server, &format!("[backfill]\nwalk = \"{walk}\""));
            sete.ok("plan", &[]);
            for stage in STAGES {
                assert_eq!(sete.at().0, stage, "PostgreSQL {major}, {walk}");
                sete.through(stage);
                match stage {
                    "backfill" | "validate" | "read_switch" => assert_eq!(differ(&server, &db), "0", "after {stage} on {major}"),
                    _ => {}
                }
            }
            assert_eq!(sete.at(), ("drop".into(), "done".into()));
            let columns = server.psql(&db, "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped");
            assert_eq!(columns, "id note total status_v2");
            // The structure came along: NOT NULL, default, CHECK, both indexes.
            server.psql(&db, "INSERT INTO orders (note) VALUES ('last')");
            assert_eq!(server.psql(&db, "SELECT status_v2 FROM orders WHERE note = 'last'"), "new");
            assert_eq!(server.psql(&db, "SELECT attnotnull FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'status_v2'"), "t");
            assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_indexes WHERE tablename = 'orders' AND indexdef LIKE '%status_v2%'"), "2");
            assert_eq!(
                server.psql(&db, "SELECT count(*) FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype = 'c' AND convalidated"),
                "1"
            );
            assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass"), "0");
            sete.ok("forget", &[]);
            assert_eq!(server.psql(&db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'sete'"), "0");
        }
    }
}

#[test]
fn swap_exchanges_the_names_and_back() {
    let server = Server::shared();
    let (db, sete) = orders(server, "[read_switch]\nmode = \"swap\"");
    sete.through("read_switch");
    let kind = || server.psql(&db, "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'status'");
    assert_eq!(kind(), "order_status");
    server.psql(&db, "UPDATE orders SET status = 'paid' WHERE id = 1; UPDATE orders SET status_v2 = 'shipped' WHERE id = 2; INSERT INTO orders (note) VALUES ('d')");
    assert_eq!(differ(server, &db), "0");
    sete.ok("back", &[]);
    assert_eq!(kind(), "character varying");
    server.psql(&db, "UPDATE orders SET status = 'new' WHERE id = 1; INSERT INTO orders (note) VALUES ('e')");
    assert_eq!(differ(server, &db), "0");
    sete.through("drop");
    assert_eq!(kind(), "order_status");
    assert_eq!(server.psql(&db, "SELECT status FROM orders WHERE note IN ('d', 'e') GROUP BY 1"), "new");
}

/// Back from each stage to the start, then all the way.
#[test]
fn every_stage_has_a_way_back() {
    let server = Server::shared();
    for mode in ["app", "swap"] {
        let (db, sete) = orders(server, &format!("[read_switch]\nmode = \"{mode}\""));
        let before = catalog(server, &db);
        for (n, stage) in STAGES.iter().enumerate().take(6) {
            sete.through(stage);
            for back in STAGES[..=n].iter().rev() {
                sete.ok("back", &[]);
                assert_eq!(sete.at().0, *back, "{mode}");
                server.psql(&db, "UPDATE orders SET status = 'paid' WHERE id = 5; UPDATE orders SET status = 'new' WHERE id = 5");
            }
            assert_eq!(catalog(server, &db), before, "{mode}: back from {stage}");
            sete.fails("back", &[], 3, "E203");
        }
        sete.through("drop");
        sete.fails("back", &[], 3, "E204");
    }
}

/// What the triggers call must outlive the plan, or every write of the application would fail.
#[test]
fn a_plan_forgotten_by_force_leaves_a_table_that_can_be_written() {
    let server = Server::shared();
    let (db, sete) = orders(server, "");
    sete.through("backfill");
    sete.fails("forget", &[], 3, "E208");
    sete.ok("forget", &["--force"]);
    server.psql(&db, "UPDATE orders SET status = 'paid' WHERE id = 3; INSERT INTO orders (status_v2) VALUES ('shipped')");
    assert_eq!(differ(server, &db), "0");
    assert_eq!(server.psql(&db, "SELECT to_regclass('sete.plan') IS NULL"), "t");
}

/// The table as its owner sees it. Not the names that PostgreSQL 18 gives to NOT NULL.
fn catalog(server: &Server, db: &str) -> String {
    server.psql(
        db,
        "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
            SELECT attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' ' || coalesce(pg_get_expr(adbin, adrelid), '') AS line
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped
            UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'orders'::regclass
            UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype <> 'n'
            UNION ALL SELECT tgname FROM pg_trigger WHERE tgrelid = 'orders'::regclass) lines",
    )
}

/// A gate opens on what is true now, not on what a state row says.
#[test]
fn a_gate_closes_when_the_sync_is_disabled() {
    let server = Server::shared();
    let (db, sete) = orders(server, "");
    sete.through("validate");
    sete.ok("gate", &["--for", "read-new"]);
    let triggers = |what: &str| {
        let names = server.psql(&db, "SELECT quote_ident(tgname) FROM pg_trigger WHERE tgname LIKE '~sete_sync%'");
        names.lines().for_each(|name| {
            server.psql(&db, &format!("ALTER TABLE orders {what} TRIGGER {name}"));
        });
    };
    triggers("DISABLE");
    sete.fails("gate", &["--for", "read-new"], 4, "E302");
    sete.fails("step", &[], 3, "E132");
    triggers("ENABLE ALWAYS");
    sete.ok("gate", &["--for", "read-new"]);
    sete.through("stop_writes");
    // Unconfirmed is no failure: the stage waits for a person.
    sete.fails("step", &[], 3, "E207");
    assert_eq!(sete.at(), ("drop".into(), "waiting".into()));
}
