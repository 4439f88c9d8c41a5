//! docs/privileges.md, taken at its word: its SQL blocks are run as they stand, and the role that comes of them takes a
//! change all the way. And what a password in the address must not be found in.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::postgres::Server;
use crate::support::sete::{Sete, retype};

/// What the page takes for granted: a database of the DBA's, and a table of the shop's.
const SHOP: &str = "
REVOKE ALL ON SCHEMA public FROM PUBLIC;
CREATE SCHEMA shop AUTHORIZATION shop_owner;
SET ROLE shop_owner;
CREATE TYPE shop.order_status AS ENUM ('new', 'paid', 'shipped');
CREATE TABLE shop.orders (id serial PRIMARY KEY, status varchar(20) NOT NULL DEFAULT 'new' CHECK (status <> ''), note text);
CREATE INDEX orders_status ON shop.orders (status);
INSERT INTO shop.orders (status, note) SELECT (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], 'note ' || n FROM generate_series(1, 500) n;
GRANT USAGE ON SCHEMA shop TO shop_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.orders TO shop_app;
GRANT USAGE ON SEQUENCE shop.orders_id_seq TO shop_app;";

/// The SQL blocks of a section of the page.
fn blocks(heading: &str) -> Vec<String> {
    let page = include_str!("../docs/privileges.md");
    let section = page.split("\n## ").find(|s| s.starts_with(heading)).unwrap_or_else(|| panic!("the page has no `{heading}`"));
    let blocks: Vec<String> = section.split("```sql\n").skip(1).map(|b| b.split("```").next().unwrap().to_owned()).collect();
    assert!(!blocks.is_empty(), "`{heading}` has no SQL");
    blocks
}

/// A server of its own, since roles are the server's: with the page's sections run.
fn shop(major: u32, conf: impl FnOnce(&std::path::Path) -> Vec<String>, headings: &[&str]) -> Server {
    let server = Server::start_with(major, conf);
    server.psql("postgres", "CREATE ROLE dba; CREATE ROLE shop_owner; CREATE ROLE shop_app LOGIN");
    server.psql("postgres", "CREATE DATABASE shop OWNER dba");
    server.psql("postgres", "REVOKE ALL ON DATABASE shop FROM PUBLIC; GRANT CONNECT ON DATABASE shop TO shop_app");
    server.psql("shop", SHOP);
    for block in headings.iter().flat_map(|h| blocks(h)) {
        server.psql("shop", &block);
    }
    server
}

fn plan(mode: &str) -> String {
    retype("orders-status", "shop.orders", "status", "status_v2", "order_status", &format!("[read_switch]\nmode = \"{mode}\""))
}

fn as_runner(server: &Server) -> String {
    format!("postgres://sete_runner@127.0.0.1:{}/shop", server.port())
}

/// The application goes on writing with its own rights, whatever stands on its table.
fn the_application_writes(server: &Server, column: &str) {
    server.psql(
        "shop",
        &format!(
            "SET ROLE shop_app; SET search_path = ''; INSERT INTO shop.orders ({column}, note) VALUES ('paid', 'app');
             UPDATE shop.orders SET {column} = 'shipped' WHERE note = 'app'; DELETE FROM shop.orders WHERE note = 'app'"
        ),
    );
}

/// Through all stages, with `back` from each of the first six, and away with it.
fn the_whole_story(server: &Server, mode: &str, back: bool) {
    let sete = Sete::new(&as_runner(server), &plan(mode));
    sete.ok("plan", &[]);
    for stage in ["expand", "dual_write", "backfill", "validate", "read_switch", "stop_writes"] {
        sete.through(stage);
        the_application_writes(server, "status");
        if back {
            sete.ok("back", &[]);
            the_application_writes(server, "status");
            sete.through(stage);
        }
    }
    the_application_writes(server, if mode == "swap" { "status" } else { "status_v2" });
    sete.through("drop");
    sete.ok("status", &[]);
    sete.ok("forget", &[]);
}

#[test]
fn the_smallest_set_is_enough_on_every_version() {
    for major in Server::available() {
        let server = shop(major, |_| Vec::new(), &["The smallest set"]);
        the_whole_story(&server, if major % 2 == 0 { "swap" } else { "app" }, major == 13);
        let owner = server.psql("shop", "SELECT tableowner FROM pg_tables WHERE tablename = 'orders'");
        assert_eq!(owner, "shop_owner");
    }
}

/// With the schema made by an admin, and the statistics that the page recommends: the blocker of another role is named.
#[test]
fn a_schema_made_beforehand_is_enough() {
    let major = *Server::available().last().unwrap();
    let server = shop(major, |_| Vec::new(), &["Without CREATE on the database"]);
    // The page's first block grants it; here PUBLIC still may.
    server.psql("shop", "GRANT CONNECT ON DATABASE shop TO PUBLIC");
    the_whole_story(&server, "swap", true);
    assert_eq!(server.psql("shop", "SELECT count(*) FROM pg_namespace WHERE nspname = 'sete'"), "0");
}

#[test]
fn without_statistics_a_blocker_is_named_all_the_same() {
    let major = *Server::available().last().unwrap();
    let server = shop(major, |_| Vec::new(), &["The smallest set"]);
    let quick = "[ddl]\npatience = \"1s\"\nlock_timeout = \"100ms\"\nfirst_try = \"50ms\"";
    let text = retype("orders-status", "shop.orders", "status", "status_v2", "order_status", quick);
    let sete = Sete::new(&as_runner(&server), &text);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _blocker = runtime.block_on(async {
        let url = format!("postgres://shop_app@127.0.0.1:{}/shop?application_name=reporting-7", server.port());
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN; SELECT count(*) FROM shop.orders").await.unwrap();
        client
    });
    let text = sete.fails("step", &[], 5, "E401").text();
    assert!(text.contains("reporting-7") && text.contains("shop_app") && !text.contains("SELECT count"), "{text}");
    blocks("What else helps").iter().for_each(|block| drop(server.psql("shop", block)));
    let text = sete.fails("step", &[], 5, "E401").text();
    assert!(text.contains("idle in transaction") && text.contains("SELECT count(*) FROM shop.orders"), "{text}");
}

/// The owner itself, and a member who has to say which role it acts as.
#[test]
fn the_owner_and_a_member_that_does_not_inherit() {
    let major = *Server::available().last().unwrap();
    let server = shop(major, |_| Vec::new(), &["The smallest set"]);
    server.psql(
        "shop",
        "GRANT CREATE ON DATABASE shop TO shop_owner; ALTER ROLE shop_owner LOGIN; CREATE ROLE apart LOGIN NOINHERIT; GRANT shop_owner TO apart",
    );
    server.psql("shop", "GRANT CONNECT ON DATABASE shop TO apart, shop_owner");
    let plain = as_runner(&server);
    let owner = Sete::new(&plain.replace("sete_runner", "shop_owner"), &plan("app"));
    owner.through("drop");
    owner.ok("forget", &[]);
    server.psql("shop", "ALTER TABLE shop.orders RENAME status_v2 TO status; ALTER TABLE shop.orders ALTER status DROP DEFAULT, ALTER status TYPE varchar(20), ALTER status SET DEFAULT 'new'");
    let apart = plain.replace("sete_runner", "apart");
    Sete::new(&apart, &plan("app")).fails("step", &[], 3, "E112");
    let acting = Sete::new(&format!("{apart}?options=-c%20role%3Dshop_owner"), &plan("app"));
    acting.through("drop");
    assert_eq!(server.psql("shop", "SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'sete'"), "shop_owner");
}

#[test]
fn a_password_is_found_nowhere() {
    let major = *Server::available().last().unwrap();
    let hba = |folder: &std::path::Path| {
        let file = folder.join("hba.conf");
        std::fs::write(&file, "host all sete_runner 127.0.0.1/32 scram-sha-256\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n").unwrap();
        vec![format!("hba_file = '{}'", file.display())]
    };
    let server = shop(major, hba, &["The smallest set"]);
    server.psql("shop", "ALTER ROLE sete_runner PASSWORD 'hunter2-s3cr3t'");
    let url = as_runner(&server).replace("sete_runner@", "sete_runner:hunter2-s3cr3t@");
    let sete = Sete::new(&url, &plan("app"));
    let mut said = String::new();
    said += &sete.ok("plan", &["-vv"]).text();
    said += &sete.ok("step", &["-vv", "--through", "validate", "--wait", "60s"]).text();
    said += &sete.ok("step", &["-vv", "--format", "json", "--through", "stop_writes", "--wait", "60s"]).text();
    // A refusal of the server, and a server that is not there.
    said += &Sete::new(&url, &plan("app").replace("order_status\"", "no_such_type\"")).run("plan", &["-vv"]).text();
    said += &Sete::new(&url.replace("/shop", "/nowhere"), &plan("app")).run("step", &["-vv"]).text();
    said += &Sete::new(&url.replace(&format!(":{}/", server.port()), ":1/"), &plan("app")).run("step", &["-vv", "--format", "json"]).text();
    said += &sete.ok("status", &["-vv", "--format", "json"]).text();
    said += &sete.run("rejects", &["-vv"]).text();
    assert!(said.len() > 2000 && !said.contains("s3cr3t"), "{said}");
    for table in server.psql("shop", "SELECT relname FROM pg_class WHERE relnamespace = 'sete'::regnamespace AND relkind = 'r'").lines() {
        let rows = server.psql("shop", &format!("SELECT coalesce(string_agg(t::text, '; '), '') FROM sete.{table} t"));
        assert!(!rows.contains("s3cr3t"), "{table}: {rows}");
    }
    assert!(server.psql("shop", "SELECT count(*) FROM sete.event").parse::<u32>().unwrap() > 5);
    // Not in the list of processes of the server either.
    assert_eq!(server.psql("shop", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%s3cr3t%' AND pid <> pg_backend_pid()"), "0");
}
