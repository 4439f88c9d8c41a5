//! Plans that can't work, on a real server: each is refused with its code, exit status and a hint, in words and as JSON, by
//! `plan` and by `step`, and nothing at all has changed in the database.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::OnceLock;

use crate::support::postgres::Server;
use crate::support::sete::{Out, Sete, finish, retype};
use crate::support::until;
use sete::error::Code;

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Server::start_with(*Server::available().last().expect("a PostgreSQL"), |folder| {
            let hba = folder.join("hba.conf");
            std::fs::write(&hba, "host all locked 127.0.0.1/32 scram-sha-256\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n").unwrap();
            vec![format!("hba_file = '{}'", hba.display())]
        })
    })
}

/// Everything that a statement could have left behind.
fn catalog(server: &Server, db: &str) -> String {
    server.psql(
        db,
        "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
            SELECT concat_ws(' ', 'class', oid, relname, relnamespace, relkind, relfilenode, relchecks, relhastriggers, relacl) AS line FROM pg_class
            UNION ALL SELECT concat_ws(' ', 'attribute', attrelid, attnum, attname, atttypid, atttypmod, attnotnull, atthasdef, attisdropped) FROM pg_attribute
            UNION ALL SELECT concat_ws(' ', 'namespace', oid, nspname, nspowner, nspacl) FROM pg_namespace
            UNION ALL SELECT concat_ws(' ', 'proc', oid, proname, prosrc) FROM pg_proc
            UNION ALL SELECT concat_ws(' ', 'type', oid, typname) FROM pg_type
            UNION ALL SELECT concat_ws(' ', 'trigger', oid, tgname, tgenabled) FROM pg_trigger) lines",
    )
}

/// `text`: what the message must say besides.
fn refused(out: &Out, status: i32, code: &str, text: &str, case: &str) {
    // As JSON has it, too.
    let said = out.text().replace("\\\"", "\"");
    assert!(out.code == status, "{case}: {status} expected, got {}: {said}", out.code);
    let known = Code::ALL.iter().find(|c| c.as_str() == code).unwrap();
    for wanted in [code, known.advice(), text] {
        assert!(said.contains(wanted), "{case}: no `{wanted}` in: {said}");
    }
}

/// `sete plan` and `sete step`, in words and as JSON.
fn all_refuse(server: &Server, db: &str, sete: &Sete, status: i32, code: &str, text: &str, case: &str) {
    let before = catalog(server, db);
    let runs: Vec<_> =
        [("plan", "text"), ("plan", "json"), ("step", "json")].map(|(c, format)| (c, format, sete.start(c, &["--format", format]))).into();
    for (command, format, run) in runs {
        let out = finish(run);
        // A `step` says it in words too, on stderr.
        refused(&out, status, code, text, &format!("{command} in {format}, {case}"));
        if format == "json" {
            let json: serde_json::Value =
                serde_json::from_str(out.stdout.trim()).unwrap_or_else(|e| panic!("{command}, {case}: not JSON ({e}): {}", out.text()));
            assert!(json.to_string().contains(code), "{command}, {case}: {json}");
        }
    }
    assert_eq!(catalog(server, db), before, "{case} has left something behind");
}

#[test]
fn mistakes_in_the_file() {
    let (db, url) = server().fresh_db();
    server().psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text)");
    let good = |more: &str| retype("x", "public.t", "a", "b", "int", more);
    let long = "x".repeat(49);
    let name = "n".repeat(64);
    let cases = [
        ("unknown key", good("[backfill]\nbatch_row = 10"), "E002", "batch_row"),
        ("unknown section", good("[backfil]\nbatch_rows = 10"), "E002", "backfil"),
        ("duplicate key", format!("id = \"y\"\n{}", good("")), "E002", "duplicate"),
        ("wrong unit", good("[ddl]\nlock_timeout = \"2 parsecs\""), "E002", "lock_timeout"),
        ("no unit", good("[ddl]\nlock_timeout = 2"), "E002", "lock_timeout"),
        ("not TOML", good("").replace("[change]", "[change"), "E002", "TOML"),
        ("password", format!("database = \"postgres://shop:s3cr3t@db/shop\"\n{}", good("")), "E003", "password"),
        ("id too long", retype(&long, "public.t", "a", "b", "int", ""), "E002", "id"),
        ("id in upper case", retype("Orders", "public.t", "a", "b", "int", ""), "E002", "Orders"),
        ("name too long", retype("x", "public.t", "a", &name, "int", ""), "E117", "63"),
        ("from is to", retype("x", "public.t", "a", "a", "int", ""), "E002", "same name"),
        ("no type", good("").replace("type = \"int\"\n", ""), "E002", "type"),
        ("no column", good("").replace("from = \"a\"\n", ""), "E002", "from"),
        ("unknown kind", good("").replace("kind = \"type\"", "kind = \"typo\""), "E002", "typo"),
        ("patience too short", good("[ddl]\npatience = \"1s\"\nlock_timeout = \"2s\""), "E002", "patience"),
    ];
    for (case, plan, code, text) in cases {
        let sete = Sete::new(&url, &plan);
        let status = if code == "E117" { 3 } else { 2 };
        all_refuse(server(), &db, &sete, status, code, text, case);
        assert!(!sete.run("step", &["-vv"]).text().contains("s3cr3t"), "{case}");
    }
    let sete = Sete::new(&url, &good(""));
    std::fs::remove_file(&sete.plan).unwrap();
    all_refuse(server(), &db, &sete, 2, "E001", "plan.toml", "no file");
    sete.rewrite(&good(""));
    let sete = Sete::new("mongodb://db/x", &good(""));
    all_refuse(server(), &db, &sete, 2, "E008", "postgres://", "no address of ours");
}

#[test]
fn tables_and_columns_that_do_not_fit() {
    let (db, url) = server().fresh_db();
    server().psql(
        &db,
        "CREATE TABLE t (id int PRIMARY KEY, a text, n int, typed bigint, filled int DEFAULT 1, strict int NOT NULL, made int GENERATED ALWAYS AS (n * 2) STORED,
                         number int GENERATED ALWAYS AS IDENTITY);
         CREATE VIEW v AS SELECT * FROM t;
         CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
         CREATE SEQUENCE s;
         CREATE TABLE parts (id int, at date, a text) PARTITION BY RANGE (at);
         CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2020-01-01') TO ('2030-01-01');
         CREATE TABLE parent (id int PRIMARY KEY, a text);
         CREATE TABLE child () INHERITS (parent);
         CREATE TABLE keyless (a text);
         CREATE TABLE keyed (a text PRIMARY KEY, n int)",
    );
    let temp = session(&url, "CREATE TEMP TABLE of_a_session (id int PRIMARY KEY, a text)");
    let temp_table = server().psql(&db, "SELECT relnamespace::regnamespace || '.of_a_session' FROM pg_class WHERE relname = 'of_a_session'");
    let key = "[backfill]\nwalk = \"key\"";
    let cases = [
        ("no table", "public.nowhere", "a", "b", "int", "", "E101", "nowhere"),
        ("no schema", "nowhere.t", "a", "b", "int", "", "E101", "nowhere"),
        ("view", "public.v", "a", "b", "int", "", "E102", "a view"),
        ("materialized view", "public.m", "a", "b", "int", "", "E102", "materialized"),
        ("sequence", "public.s", "last_value", "b", "int", "", "E102", "sequence"),
        ("temporary table", &temp_table, "a", "b", "int", "", "E102", "temporary"),
        ("system table", "pg_catalog.pg_class", "relname", "b", "text", "", "E102", "system"),
        ("partition", "public.parts_1", "a", "b", "int", "", "E102", "partition"),
        ("partition key", "public.parts", "at", "b", "timestamptz", "", "E115", "partitioned by"),
        ("inheritance parent", "public.parent", "a", "b", "int", "", "E116", "child"),
        ("inheritance child", "public.child", "a", "b", "int", "", "E116", "parent"),
        ("no key", "public.keyless", "a", "b", "int", key, "E109", "keyless"),
        ("no column", "public.t", "z", "b", "int", "", "E103", "z"),
        ("column in other letters", "public.t", "A", "b", "int", "", "E103", "called a"),
        ("key column", "public.keyed", "a", "b", "int", "", "E119", "primary key"),
        ("generated column", "public.t", "made", "b", "bigint", "", "E120", "generated"),
        ("identity column", "public.t", "number", "b", "bigint", "", "E120", "identity"),
        ("no type", "public.t", "a", "b", "no_such_type", "", "E104", "no_such_type"),
        ("new column of another type", "public.t", "n", "typed", "int", "", "E107", "bigint"),
        ("new column with a default", "public.t", "n", "filled", "int", "", "E108", "default"),
        ("new column NOT NULL", "public.t", "n", "strict", "int", "", "E108", "NOT NULL"),
        ("new column generated", "public.t", "n", "made", "int", "", "E108", "generated"),
        ("expression that doesn't parse", "public.t", "a", "b", "int", "forward = \"a +\"", "E105", "forward"),
        ("two statements", "public.t", "a", "b", "int", "forward = \"1; drop table t\"", "E105", "forward"),
        ("aggregate", "public.t", "a", "b", "int", "forward = \"max(a)::int\"", "E105", "aggregate"),
        ("window function", "public.t", "a", "b", "int", "forward = \"(row_number() over ())::int\"", "E105", "window"),
        ("set-returning function", "public.t", "a", "b", "int", "forward = \"generate_series(1, 3)\"", "E105", "forward"),
        ("no such function", "public.t", "a", "b", "int", "forward = \"nowhere(a)\"", "E105", "nowhere"),
        ("subquery on no table", "public.t", "a", "b", "int", "forward = \"(select 1 from nowhere)\"", "E105", "nowhere"),
        ("no such column", "public.t", "a", "b", "int", "forward = \"zzz::int\"", "E105", "zzz"),
        ("forward of another type", "public.t", "a", "b", "int", "forward = \"a || 'x'\"", "E106", "text"),
        ("reverse of another type", "public.t", "n", "b", "text", "forward = \"n::text\"\nreverse = \"b || 'x'\"", "E106", "reverse"),
        ("reverse that doesn't parse", "public.t", "a", "b", "int", "reverse = \"b::\"", "E105", "reverse"),
    ];
    for (case, table, from, to, new_type, more, code, text) in cases {
        all_refuse(server(), &db, &Sete::new(&url, &retype("x", table, from, to, new_type, more)), 3, code, text, case);
    }
    drop(temp);
}

#[test]
fn a_foreign_table() {
    let major = Server::major_with_standby();
    let server = Server::start(major, &[]);
    let (db, url) = server.fresh_db();
    server.psql(&db, "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE f (a text) SERVER files OPTIONS (filename '/dev/null')");
    all_refuse(&server, &db, &Sete::new(&url, &retype("x", "public.f", "a", "b", "int", "")), 3, "E102", "foreign", "foreign table");

    // The same server has a standby, and a database that says no.
    server.psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text)");
    let plan = retype("x", "public.t", "a", "b", "int", "");
    let standby = server.standby(major, &[]);
    let of_standby = Sete::new(&url.replace(&format!(":{}/", server.port()), &format!(":{}/", standby.port())), &plan);
    let replayed = "SELECT count(*) FROM pg_class WHERE relname = 't'";
    let exists = format!("SELECT count(*) FROM pg_database WHERE datname = '{db}'");
    until("the standby has the table", || standby.psql("postgres", &exists) == "1" && standby.psql(&db, replayed) == "1");
    all_refuse(&server, &db, &of_standby, 3, "E111", "standby", "hot standby");
    server.psql(&db, &format!("ALTER DATABASE {db} SET default_transaction_read_only = on"));
    all_refuse(&server, &db, &Sete::new(&url, &plan), 3, "E111", "default_transaction_read_only", "read-only database");
}

/// An open session, for as long as it is kept.
fn session(url: &str, sql: &str) -> (tokio::runtime::Runtime, tokio_postgres::Client) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        client
    });
    (runtime, client)
}

#[test]
fn roles_without_the_rights() {
    let (db, url) = server().fresh_db();
    server().psql(
        &db,
        "CREATE ROLE owner_of_t; CREATE ROLE reader LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE member LOGIN; GRANT owner_of_t TO member;
         CREATE TABLE t (id int PRIMARY KEY, a text); ALTER TABLE t OWNER TO owner_of_t;
         GRANT USAGE ON SCHEMA public TO PUBLIC;
         GRANT SELECT, INSERT, UPDATE ON t TO writer",
    );
    let plan = retype("x", "public.t", "a", "b", "int", "");
    let as_role = |role: &str| Sete::new(&url.replace("postgres@", &format!("{role}@")), &plan);
    all_refuse(server(), &db, &as_role("reader"), 3, "E112", "SELECT", "no rights on the table");
    all_refuse(server(), &db, &as_role("writer"), 3, "E112", "owner", "not the owner");
    all_refuse(server(), &db, &as_role("member"), 3, "E112", "schema sete", "no schema of its own");
}

#[test]
fn a_table_that_was_made_again() {
    let (db, url) = server().fresh_db();
    server().psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text)");
    let sete = Sete::new(&url, &retype("x", "public.t", "a", "b", "int", ""));
    sete.through("expand");
    server().psql(&db, "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a text)");
    all_refuse(server(), &db, &sete, 3, "E206", "public.t", "made again");
    server().psql(&db, "DROP TABLE t");
    all_refuse(server(), &db, &sete, 3, "E101", "public.t", "gone");
    // The plan was edited meanwhile.
    server().psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text)");
    sete.rewrite(&retype("x", "public.t", "a", "b", "bigint", ""));
    all_refuse(server(), &db, &sete, 3, "E201", "bigint", "edited");
}

#[test]
fn servers_that_do_not_answer_or_do_not_let_us_in() {
    let (db, url) = server().fresh_db();
    server().psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE ROLE locked LOGIN PASSWORD 'right'");
    let plan = retype("x", "public.t", "a", "b", "int", "");
    all_refuse(server(), &db, &Sete::new("postgres://postgres@127.0.0.1:1/x", &plan), 1, "E801", "127.0.0.1:1", "nobody listens");
    all_refuse(server(), &db, &Sete::new(&url.replace("postgres@", "locked:wr0ng@"), &plan), 1, "E801", "password", "wrong password");
    all_refuse(server(), &db, &Sete::new(&format!("{url}_nowhere"), &plan), 1, "E801", "nowhere", "no such database");
}

#[test]
fn a_plan_that_never_ran() {
    let (db, url) = server().fresh_db();
    server().psql(&db, "CREATE TABLE t (id int PRIMARY KEY, a text)");
    let sete = Sete::new(&url, &retype("x", "public.t", "a", "b", "int", ""));
    let before = catalog(server(), &db);
    sete.fails("gate", &["--for", "read-new"], 4, "E302");
    assert_eq!(sete.at(), ("expand".into(), "pending".into()));
    for command in ["pause", "resume", "validate", "rejects", "forget"] {
        refused(&sete.run(command, &[]), 2, "E007", "x", command);
    }
    refused(&sete.run("back", &[]), 3, "E203", "x", "back");
    let out = sete.run("gate", &["--for", "nowhere"]);
    assert!(out.code == 2 && out.text().contains("possible values"), "{out:?}");
    assert_eq!(catalog(server(), &db), before);
}
