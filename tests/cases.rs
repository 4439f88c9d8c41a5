//! Cases that broke other tools, each on a real server and to the point where it is proven. The application is played by
//! sessions of its own.

use crate::support::postgres::Server;
use crate::support::sete::{Sete, finish, retype};
use crate::support::until;
use serde_json::Value;
use tokio_postgres::{NoTls, SimpleQueryMessage};

const WALKS: [&str; 2] = ["physical", "key"];

// --- the stage, and who plays on it ----------------------------------------------------------------------------------

/// A database of its own on the shared server.
struct Play {
    server: &'static Server,
    db: String,
    url: String,
}

impl Play {
    fn with(tables: &str) -> Play {
        let server = Server::shared();
        let (db, url) = server.fresh_db();
        server.psql(&db, tables);
        Play { server, db, url }
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.db, sql)
    }

    /// A role that may log in. Roles belong to the whole server, so its name holds the database's.
    fn role(&self, name: &str, attributes: &str) -> String {
        let role = format!("{name}_{}", self.db);
        self.psql(&format!("CREATE ROLE {role} LOGIN {attributes}; GRANT CREATE ON DATABASE {} TO {role}", self.db));
        role
    }

    fn url_of(&self, role: &str) -> String {
        self.url.replace("postgres@", &format!("{role}@"))
    }

    fn sete(&self, plan: &str) -> Sete {
        Sete::new(&self.url, plan)
    }

    /// A session of the application.
    fn session(&self, role: &str) -> Session {
        Session::open(&self.url_of(role))
    }

    /// The table's columns with their types.
    fn columns(&self, table: &str) -> String {
        self.psql(&format!(
            "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute \
             WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        ))
    }

    /// Whether anything of ours is in the database.
    fn traces(&self) -> String {
        self.psql("SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = 'sete') + (SELECT count(*) FROM pg_trigger WHERE tgname LIKE '~sete%')")
    }

    fn major(&self) -> u32 {
        self.psql("SELECT current_setting('server_version_num')::int / 10000").parse().expect("a number")
    }
}

/// One connection of the application, which keeps its transaction and its cached plans.
struct Session {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl Session {
    fn open(url: &str) -> Session {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the application connects");
            tokio::spawn(connection);
            client
        });
        Session { runtime, client }
    }

    /// The first value of the last statement's first row.
    fn try_run(&self, sql: &str) -> Result<String, String> {
        let answer =
            self.runtime.block_on(self.client.simple_query(sql)).map_err(|e| e.as_db_error().map_or(e.to_string(), |d| d.message().to_owned()))?;
        let rows =
            answer.iter().filter_map(|m| if let SimpleQueryMessage::Row(row) = m { Some(row.get(0).unwrap_or_default().to_owned()) } else { None });
        Ok(rows.last().unwrap_or_default())
    }

    fn run(&self, sql: &str) -> String {
        self.try_run(sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }
}

/// Settings of a backfill that is still under way when `in_the_middle` acts, on rows that fill a page with seven of them.
const SLOWLY: &str = "[backfill]\nbatch_rows = 10\npause = \"50ms\"";
const PAD: &str = "repeat('x', 1000)";

/// Runs the backfill, holds it once it has filled some rows, acts, and lets it go on to its end.
fn in_the_middle(sete: &Sete, act: impl FnOnce()) {
    let running = sete.start("step", &["--through", "backfill"]);
    until("some rows are filled", || sete.status()["backfill"]["filled"].as_u64().is_some_and(|n| n > 0));
    sete.ok("pause", &[]);
    until("the backfill holds", || sete.status()["backfill"]["throttled_by"] == "pause");
    act();
    sete.ok("resume", &[]);
    let out = finish(running);
    assert_eq!(out.code, 0, "{}", out.text());
}

fn backfill(walk: &str, more: &str) -> String {
    format!("{more}\n[backfill]\nwalk = \"{walk}\"")
}

fn stage_detail(sete: &Sete, name: &str) -> Value {
    let status = sete.status();
    let stages = status["stages"].as_array().expect("stages").clone();
    stages.iter().find(|s| s["name"] == name).expect("the stage")["detail"].clone()
}

// --- the cases -------------------------------------------------------------------------------------------------------

#[test]
fn case_01_rows_that_are_mapped_to_null_end_the_backfill() {
    for walk in WALKS {
        let play = Play::with(
            "CREATE TABLE readings (id int PRIMARY KEY, raw text);
             INSERT INTO readings SELECT n, CASE WHEN n % 10 = 0 THEN 'n/a' ELSE n::text END FROM generate_series(1, 100) n",
        );
        let more = backfill(walk, "forward = \"nullif(raw, 'n/a')::int\"\nreverse = \"value::text\"");
        let sete = play.sete(&retype("readings", "public.readings", "raw", "value", "integer", &more));
        let out = sete.through("backfill");
        assert!(out.text().contains("10 rows stay NULL"), "{walk}: {}", out.text());
        assert_eq!(stage_detail(&sete, "backfill")["stay_null"], 10, "{walk}");
        assert_eq!(sete.status()["backfill"]["filled"], 90, "{walk}");
        assert_eq!(
            play.psql("SELECT count(*) FILTER (WHERE value::text = raw), count(*) FILTER (WHERE value IS NULL AND raw = 'n/a') FROM readings"),
            "90|10"
        );
        sete.through("validate");
    }
}

#[test]
fn case_02_a_target_column_with_a_default_is_refused() {
    for (column, said) in
        [("value int DEFAULT 0", "the default 0"), ("value int NOT NULL", "NOT NULL"), ("value int GENERATED ALWAYS AS (id + 1) STORED", "generated")]
    {
        let play = Play::with(&format!("CREATE TABLE readings (id int PRIMARY KEY, raw text, {column})"));
        let sete = play.sete(&retype("readings", "public.readings", "raw", "value", "integer", ""));
        let out = sete.fails("step", &[], 3, "E108");
        assert!(out.text().contains(said), "{}", out.text());
        assert_eq!(play.traces(), "0");
    }
}

const DOCUMENTS: &str = "
    CREATE TABLE documents (id int PRIMARY KEY, kind text, pad text, updated_at timestamptz NOT NULL DEFAULT '2020-01-01');
    CREATE TABLE outbox (id bigserial, document int);
    CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.updated_at := clock_timestamp(); RETURN NEW; END';
    CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.outbox (document) VALUES (NEW.id); RETURN NULL; END';
    CREATE TRIGGER touch BEFORE UPDATE ON documents FOR EACH ROW EXECUTE FUNCTION touch();
    CREATE TRIGGER tell AFTER UPDATE ON documents FOR EACH ROW EXECUTE FUNCTION tell();";

fn documents(play: &Play, url: &str, user_triggers: &str) -> Sete {
    let rows = format!("INSERT INTO documents (id, kind, pad) SELECT n, 'k' || n, {PAD} FROM generate_series(1, 200) n");
    play.psql(&format!("{DOCUMENTS}{rows}"));
    let more = format!("{SLOWLY}\nuser_triggers = \"{user_triggers}\"");
    Sete::new(url, &retype("documents", "public.documents", "kind", "kind_v2", "varchar(20)", &more))
}

fn touched(play: &Play) -> String {
    play.psql("SELECT (SELECT count(*) FROM documents WHERE updated_at > '2020-01-01'), (SELECT count(*) FROM outbox)")
}

#[test]
fn case_03_triggers_of_the_user_are_refused_or_fire() {
    let play = Play::with("");
    let sete = documents(&play, &play.url, "refuse");
    let out = sete.fails("step", &[], 3, "E113");
    assert!(out.text().contains("trigger touch") && out.text().contains("trigger tell"), "{}", out.text());
    assert_eq!(play.traces(), "0");
    sete.rewrite(&retype("documents", "public.documents", "kind", "kind_v2", "varchar(20)", "[backfill]\nuser_triggers = \"fire\""));
    sete.through("validate");
    assert_eq!(touched(&play), "200|200");
}

#[test]
fn case_03_triggers_of_the_user_are_suppressed() {
    for ordinary in [false, true] {
        let play = Play::with("");
        let owner = play.role("owner", "");
        let sete = documents(&play, &if ordinary { play.url_of(&owner) } else { play.url.clone() }, "suppress");
        play.psql(&format!("ALTER TABLE documents OWNER TO {owner}; ALTER TABLE outbox OWNER TO {owner}; ALTER SCHEMA public OWNER TO {owner}"));
        if ordinary {
            sete.fails("step", &[], 3, "E114");
            assert_eq!(play.traces(), "0");
            if play.major() < 15 {
                continue;
            }
            play.psql(&format!("GRANT SET ON PARAMETER session_replication_role TO {owner}"));
        }
        in_the_middle(&sete, || {
            assert_eq!(touched(&play), "0|0");
            play.session(&owner).run("UPDATE documents SET kind = 'changed' WHERE id IN (1, 200)");
        });
        assert_eq!(touched(&play), "2|2", "the application's own writes fire, the backfill's don't");
        assert_eq!(play.psql("SELECT count(*) FROM documents WHERE kind = kind_v2"), "200");
        assert_eq!(play.psql("SELECT count(*) FROM documents WHERE kind_v2 = 'changed'"), "2");
        sete.through("read_switch");
        sete.ok("validate", &[]);
        assert_eq!(touched(&play), "2|2");
        sete.through("stop_writes");
        sete.ok("back", &[]);
        assert_eq!(touched(&play), "2|2");
    }
}

#[test]
fn case_05_the_sync_runs_after_the_users_triggers() {
    let play = Play::with(
        "CREATE TABLE users (id serial PRIMARY KEY, email varchar(50));
         CREATE FUNCTION lower_email() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.email := lower(NEW.email); RETURN NEW; END';
         CREATE TRIGGER zz_lower BEFORE INSERT OR UPDATE OF email ON users FOR EACH ROW EXECUTE FUNCTION lower_email();
         INSERT INTO users (email) VALUES ('ANN@X')",
    );
    let sete = play.sete(&retype("users", "public.users", "email", "email_v2", "text", "[backfill]\nuser_triggers = \"fire\""));
    sete.through("dual_write");
    play.psql("INSERT INTO users (email) VALUES ('Bob@X'); UPDATE users SET email = 'EVE@X' WHERE id = 1");
    assert_eq!(play.psql("SELECT string_agg(email || ' ' || email_v2, ', ' ORDER BY id) FROM users"), "eve@x eve@x, bob@x bob@x");
    // One that sorts after ours, made when the sync is in place already.
    play.psql("CREATE TRIGGER \"~~z\" BEFORE INSERT OR UPDATE ON users FOR EACH ROW EXECUTE FUNCTION lower_email()");
    let out = sete.fails("step", &[], 3, "E123");
    assert!(out.text().contains("~~z"), "{}", out.text());
    assert_eq!(sete.at(), ("backfill".into(), "blocked".into()));
    play.psql("ALTER TRIGGER \"~~z\" ON users RENAME TO a_z");
    sete.through("stop_writes");
    // It names the old column.
    sete.fails("step", &["--yes"], 3, "E124");
    play.psql("DROP TRIGGER zz_lower ON users; DROP TRIGGER a_z ON users");
    sete.through("drop");
}

#[test]
fn case_05_a_trigger_after_ours_is_refused_before_anything_changes() {
    let play = Play::with(
        "CREATE TABLE users (id serial PRIMARY KEY, email varchar(50));
         CREATE FUNCTION lower_email() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.email := lower(NEW.email); RETURN NEW; END';
         CREATE TRIGGER \"~~z\" BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION lower_email()",
    );
    play.sete(&retype("users", "public.users", "email", "email_v2", "text", "")).fails("step", &[], 3, "E123");
    assert_eq!(play.traces(), "0");
}

#[test]
fn case_06_row_level_security_is_an_error_before_anything_changes() {
    let play = Play::with("");
    let (owner, half, bypass) = (play.role("owner", ""), play.role("half", ""), play.role("bypass", "BYPASSRLS"));
    play.psql(&format!(
        "CREATE TABLE notes (id int PRIMARY KEY, tenant int, body varchar(50)); INSERT INTO notes SELECT n, n % 2, 'b' || n FROM generate_series(1, 50) n;
         ALTER TABLE notes OWNER TO {owner}; ALTER TABLE notes ENABLE ROW LEVEL SECURITY; GRANT ALL ON notes TO {half}, {bypass}; GRANT {owner} TO {bypass};
         CREATE POLICY mine ON notes USING (tenant = 1); GRANT ALL ON SCHEMA public TO {owner}, {bypass}"
    ));
    let plan = retype("notes", "public.notes", "body", "body_v2", "text", "");
    let refused = |role: &str| {
        for command in ["plan", "step"] {
            let out = Sete::new(&play.url_of(role), &plan).fails(command, &[], 3, "E110");
            assert!(out.text().contains("policies apply"), "{}", out.text());
        }
        assert_eq!(play.traces(), "0");
        assert_eq!(play.columns("notes"), "id integer, tenant integer, body character varying(50)");
    };
    refused(&half);
    play.psql("ALTER TABLE notes FORCE ROW LEVEL SECURITY");
    refused(&owner);
    let sete = Sete::new(&play.url_of(&bypass), &plan);
    sete.through("validate");
    assert_eq!(play.psql("SELECT count(*) FROM notes WHERE body = body_v2"), "50");
    // It is taken away half-way.
    play.psql(&format!("ALTER ROLE {bypass} NOBYPASSRLS"));
    sete.fails("step", &[], 3, "E110");
}

const TICKETS: &str = "
    CREATE TABLE tickets (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), n serial NOT NULL UNIQUE, note text);
    INSERT INTO tickets (note) SELECT 'note ' || g FROM generate_series(1, 50) g;";

fn sequence(play: &Play) -> String {
    play.psql(
        "SELECT format_type(seqtypid, NULL) || ' ' || a.attname || ' ' || last_value FROM pg_sequence s JOIN pg_depend d ON d.objid = s.seqrelid AND d.deptype = 'a'
         JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid JOIN pg_sequences q ON q.sequencename = 'tickets_n_seq' WHERE s.seqrelid = 'tickets_n_seq'::regclass",
    )
}

#[test]
fn case_07_the_sequence_goes_with_the_column() {
    for mode in ["app", "swap"] {
        let play = Play::with(TICKETS);
        let sete = play.sete(&retype("tickets", "public.tickets", "n", "n_big", "bigint", &format!("[read_switch]\nmode = \"{mode}\"")));
        let new = if mode == "app" { "n_big" } else { "n" };
        sete.through("stop_writes");
        assert_eq!(sequence(&play), format!("bigint {new} 50"));
        play.psql("INSERT INTO tickets (note) VALUES ('a')");
        assert_eq!(play.psql(&format!("SELECT {new} FROM tickets WHERE note = 'a'")), "51");
        // Back: it numbers both columns again, and goes on from where it was.
        sete.ok("back", &[]);
        assert!(sequence(&play).ends_with(" 51"), "{}", sequence(&play));
        play.psql("INSERT INTO tickets (note) VALUES ('b')");
        assert_eq!(play.psql("SELECT n, n_big FROM tickets WHERE note = 'b'"), "52|52");
        sete.through("stop_writes");
        play.psql("SELECT setval('tickets_n_seq', 2147483647)");
        play.psql("INSERT INTO tickets (note) VALUES ('big')");
        assert_eq!(play.psql(&format!("SELECT {new} FROM tickets WHERE note = 'big'")), "2147483648");
        // The old column can't hold that number, so there is no way back, and the application goes on.
        let out = sete.fails("back", &[], 6, "E502");
        assert!(out.text().contains("2147483648") && out.text().contains("out of range"), "{}", out.text());
        play.psql("INSERT INTO tickets (note) VALUES ('bigger')");
        assert_eq!(play.psql(&format!("SELECT {new} FROM tickets WHERE note = 'bigger'")), "2147483649");
        sete.through("drop");
        assert_eq!(sequence(&play), format!("bigint {new} 2147483649"));
        play.psql("INSERT INTO tickets (note) VALUES ('last')");
        assert_eq!(play.psql(&format!("SELECT {new} FROM tickets WHERE note = 'last'")), "2147483650");
    }
}

#[test]
fn case_07_a_primary_key_is_refused_clearly() {
    let play = Play::with("CREATE TABLE tickets (id serial PRIMARY KEY, note text)");
    let out = play.sete(&retype("tickets", "public.tickets", "id", "id_big", "bigint", "")).fails("step", &[], 3, "E119");
    assert!(out.text().contains("primary key tickets_pkey"), "{}", out.text());
    assert_eq!(play.traces(), "0");
}

const ORDERS: &str = "
    CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
    CREATE TABLE orders (id int PRIMARY KEY, status varchar(20) NOT NULL, total int);
    INSERT INTO orders SELECT n, (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], n FROM generate_series(1, 60) n;
    CREATE INDEX orders_status_idx ON orders (status);";

fn orders_plan(more: &str) -> String {
    retype("orders", "public.orders", "status", "status_v2", "order_status", more)
}

#[test]
fn case_08_dependents_are_listed_and_block_the_drop() {
    let play = Play::with(&format!(
        "{ORDERS}
         CREATE VIEW paid_orders AS SELECT id, status FROM orders WHERE status = 'paid'; CREATE POLICY shown ON orders USING (status <> 'hidden');
         ALTER TABLE orders ADD shout text GENERATED ALWAYS AS (upper(status)) STORED"
    ));
    let sete = play.sete(&orders_plan(""));
    let (text, json) = (sete.ok("plan", &[]).stdout, sete.ok("plan", &["--format", "json"]).json());
    for subject in ["view public.paid_orders", "policy shown on public.orders", "generated column public.orders.shout"] {
        assert!(text.contains(subject), "{subject}: {text}");
        let finding =
            json["findings"].as_array().expect("findings").iter().find(|f| f["subject"] == subject).unwrap_or_else(|| panic!("{subject}: {json}"));
        assert_eq!(finding["code"], "E124", "{finding}");
    }
    assert!(text.contains("orders_status_v2_idx"), "{text}");
    sete.through("stop_writes");
    let out = sete.fails("step", &["--yes"], 3, "E124");
    assert!(out.text().contains("paid_orders") && out.text().contains("shown") && out.text().contains("shout"), "{}", out.text());
    assert_eq!(play.psql("SELECT count(*) FROM paid_orders"), "20");
    play.psql(
        "ALTER TABLE orders DROP shout; DROP VIEW paid_orders; CREATE VIEW paid_orders AS SELECT id, status_v2 FROM orders WHERE status_v2 = 'paid';
         ALTER POLICY shown ON orders USING (status_v2 <> 'shipped')",
    );
    sete.through("drop");
    assert_eq!(play.psql("SELECT (SELECT count(*) FROM paid_orders), (SELECT count(*) FROM pg_policy)"), "20|1");
}

#[test]
fn case_08_a_swap_makes_views_and_policies_again() {
    let play = Play::with(&format!(
        "{ORDERS}
         CREATE VIEW \"Paid\" WITH (security_barrier) AS SELECT id, status FROM orders WHERE status::text = 'paid';
         CREATE POLICY shown ON orders USING (status::text <> 'hidden')"
    ));
    let (owner, reader) = (play.role("owner", ""), play.role("reader", ""));
    play.psql(&format!(
        "GRANT SELECT ON orders TO {owner}; GRANT USAGE, CREATE ON SCHEMA public TO {owner}; ALTER VIEW \"Paid\" OWNER TO {owner}; GRANT SELECT (id) ON \"Paid\" TO {reader};
         GRANT SELECT ON \"Paid\" TO PUBLIC; COMMENT ON VIEW \"Paid\" IS 'it''s paid'"
    ));
    let facts = || {
        play.psql(
            "SELECT pg_get_userbyid(relowner), relacl, reloptions, obj_description(oid), (SELECT attacl FROM pg_attribute WHERE attrelid = c.oid AND attname = 'id')
             FROM pg_class c WHERE relname = 'Paid'",
        )
    };
    let kind = || play.psql("SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = '\"Paid\"'::regclass AND attname = 'status'");
    let before = facts();
    let sete = play.sete(&orders_plan("[read_switch]\nmode = \"swap\""));
    let text = sete.ok("plan", &[]).stdout;
    assert!(text.contains("DROP VIEW public.\"Paid\"") && text.contains("ALTER POLICY \"shown\""), "{text}");
    sete.through("read_switch");
    assert_eq!((kind().as_str(), facts()), ("order_status", before.clone()));
    sete.ok("back", &[]);
    assert_eq!((kind().as_str(), facts()), ("character varying", before.clone()));
    sete.through("drop");
    assert_eq!((kind().as_str(), facts()), ("order_status", before));
    assert_eq!(play.session(&reader).run("SELECT count(id) FROM public.\"Paid\""), "20");
    assert_eq!(play.psql("SELECT pg_get_expr(polqual, polrelid) FROM pg_policy"), "((status)::text <> 'hidden'::text)");
}

#[test]
fn case_08_a_swap_is_refused_where_something_cannot_be_made_again() {
    let play = Play::with(&format!(
        "{ORDERS} CREATE VIEW a AS SELECT id, status FROM orders; CREATE VIEW b AS SELECT * FROM a;
         ALTER TABLE orders ADD shout text GENERATED ALWAYS AS (upper(status)) STORED"
    ));
    let sete = play.sete(&orders_plan("[read_switch]\nmode = \"swap\""));
    let text = sete.ok("plan", &[]).text();
    assert!(text.contains("E133") && text.contains("view public.a") && text.contains("generated column"), "{text}");
    sete.through("validate");
    sete.fails("step", &[], 3, "E133");
    assert_eq!(play.psql("SELECT count(*) FROM b"), "60");
    assert_eq!(play.columns("b"), "id integer, status character varying(20)");
    play.psql("DROP VIEW b; ALTER TABLE orders DROP shout");
    sete.through("drop");
    assert_eq!(play.columns("a"), "id integer, status order_status");
}

#[test]
fn case_09_the_old_column_may_be_left_out_from_stage_6_on() {
    for mode in ["app", "swap"] {
        let play = Play::with(ORDERS);
        let new = if mode == "app" { "status_v2" } else { "status" };
        let plan = |quiet: &str| orders_plan(&format!("[read_switch]\nmode = \"{mode}\"\n[stop_writes]\nquiet_for = \"{quiet}\""));
        let sete = play.sete(&plan("1h"));
        sete.through("read_switch");
        let insert = |id: u32| play.psql(&format!("INSERT INTO orders (id, {new}) VALUES ({id}, 'paid')"));
        let row = |id: u32| play.psql(&format!("SELECT coalesce(status::text, '-') || coalesce(status_v2::text, '-') FROM orders WHERE id = {id}"));
        insert(101);
        assert_eq!(row(101), "paidpaid");
        sete.fails("step", &[], 4, "");
        assert_eq!(sete.at(), ("stop_writes".into(), "waiting".into()));
        insert(102);
        assert_eq!(row(102), "paidpaid");
        sete.rewrite(&plan("1ms"));
        sete.through("stop_writes");
        insert(103);
        assert_eq!(row(103).replace('-', ""), "paid");
        // The way back fills it again, and it is NOT NULL as it was.
        sete.ok("back", &[]);
        assert_eq!(row(103), "paidpaid");
        assert_eq!(play.psql("SELECT bool_and(attnotnull) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname LIKE 'status%'"), "t");
        sete.through("drop");
        insert(104);
    }
}

#[test]
fn case_09_a_check_that_needs_the_old_column_is_named() {
    let play = Play::with(&format!("{ORDERS} ALTER TABLE orders ADD CONSTRAINT must_be CHECK (status IS NOT NULL)"));
    let sete = play.sete(&orders_plan(""));
    sete.through("read_switch");
    let out = sete.fails("step", &[], 3, "E130");
    assert!(out.text().contains("must_be"), "{}", out.text());
    play.psql("INSERT INTO orders (id, status_v2) VALUES (201, 'new')");
    play.psql("ALTER TABLE orders DROP CONSTRAINT must_be");
    sete.through("drop");
}

/// 999 good values and a bad one: type, good value of row n, bad value, the server's words.
const BAD: [(&str, &str, &str, &str); 5] = [
    ("mood", "'HAPPY'", "HAPPY ", "invalid input value for enum"),
    ("integer", "n::text", "1,234", "invalid input syntax for type integer"),
    ("integer", "n::text", "", "invalid input syntax for type integer"),
    ("date", "'2024-02-29'", "2024-02-30", "out of range"),
    ("integer", "n::text", "NaN", "invalid input syntax for type integer"),
];

fn bad(play: &Play, key: &str, at: usize) {
    let (_, good, bad, _) = BAD[at];
    play.psql(&format!(
        "CREATE TYPE mood AS ENUM ('HAPPY', 'SAD'); CREATE TABLE people (id int {key}, raw text);
         INSERT INTO people SELECT n, CASE WHEN n = 500 THEN '{bad}' ELSE {good} END FROM generate_series(1, 1000) n"
    ));
}

#[test]
fn case_10_a_bad_row_stops_the_backfill_and_is_named() {
    for (walk, bads) in [("physical", 0..5), ("key", 0..1)] {
        for (at, (kind, good, value, message)) in BAD.into_iter().enumerate().filter(|(at, _)| bads.contains(at)) {
            let play = Play::with("");
            bad(&play, "PRIMARY KEY", at);
            let sete = play.sete(&retype("people", "public.people", "raw", "clean", kind, &backfill(walk, "")));
            sete.through("dual_write");
            let out = sete.fails("step", &[], 6, "E502");
            assert!(
                out.text().contains("row 500") && out.text().contains(&format!("{value:?}")) && out.text().contains(message),
                "{walk}: {}",
                out.text()
            );
            assert_eq!(sete.at(), ("backfill".into(), "failed".into()));
            // Other writes of the bad row don't fail either.
            play.psql("UPDATE people SET id = id WHERE id = 500");
            play.psql(&format!("UPDATE people SET raw = (SELECT {good} FROM (SELECT 500 AS n) x) WHERE id = 500"));
            sete.through("validate");
            assert_eq!(play.psql("SELECT count(clean) FROM people"), "1000");
        }
    }
}

#[test]
fn case_10_bad_rows_are_set_aside_and_tried_again() {
    for (walk, key, bads) in [("physical", "PRIMARY KEY", 0..4), ("key", "PRIMARY KEY", 1..2), ("physical", "", 4..5)] {
        for (at, (kind, good, value, message)) in BAD.into_iter().enumerate().filter(|(at, _)| bads.contains(at)) {
            let play = Play::with("");
            bad(&play, key, at);
            let more = format!("{}\non_bad_row = \"set_aside\"", backfill(walk, ""));
            let sete = play.sete(&retype("people", "public.people", "raw", "clean", kind, &more));
            let out = sete.run("step", &["--through", "backfill"]);
            assert!(out.code == 6 && out.text().contains("E503"), "{walk}: {}", out.text());
            assert_eq!(play.psql("SELECT count(clean) FROM people"), "999", "{walk}");
            let out = sete.run("rejects", &["--format", "json"]);
            let rejects = out.json();
            assert_eq!((out.code, &rejects["count"], &rejects["rejects"][0]["value"]), (6, &Value::from(1), &Value::from(value)));
            let named = rejects["rejects"][0]["key"].as_str().expect("a key").to_owned();
            assert!(if key.is_empty() { named.starts_with("ctid (") } else { named == "500" }, "{named}");
            assert!(rejects["rejects"][0]["message"].as_str().expect("a message").contains(message), "{rejects}");
            sete.fails("gate", &["--for", "read-new"], 4, "");
            assert_eq!(sete.run("rejects", &["--retry"]).code, 6);
            play.psql(&format!("UPDATE people SET raw = (SELECT {good} FROM (SELECT 500 AS n) x) WHERE id = 500"));
            if at % 2 == 0 {
                sete.ok("rejects", &["--retry"]);
            }
            sete.through("validate");
            sete.ok("gate", &["--for", "read-new"]);
            assert_eq!(play.psql("SELECT count(clean) FROM people"), "1000");
            assert_eq!(sete.status()["backfill"]["rejected"], 0);
        }
    }
}

#[test]
fn case_11_partitions_are_walked_leaf_by_leaf() {
    for walk in WALKS {
        let play = Play::with(&format!(
            "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped');
             CREATE TABLE events (id int, region text NOT NULL, status varchar(20) NOT NULL, pad text, PRIMARY KEY (id, region)) PARTITION BY RANGE (id);
             CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (1) TO (100);
             CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (100) TO (200) PARTITION BY LIST (region);
             CREATE TABLE events_2_eu PARTITION OF events_2 FOR VALUES IN ('eu');
             CREATE TABLE events_2_us PARTITION OF events_2 DEFAULT;
             CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (200) TO (300);
             CREATE TABLE events_rest PARTITION OF events DEFAULT;
             CREATE INDEX events_status ON events (status);
             CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.pad := NEW.pad; RETURN NEW; END';
             CREATE TRIGGER seen BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION seen();
             INSERT INTO events SELECT n, CASE WHEN n % 2 = 0 THEN 'eu' ELSE 'us' END, 'paid', {PAD} FROM generate_series(1, 350) n"
        ));
        let sete = play.sete(&retype("events", "public.events", "status", "status_v2", "order_status", &format!("{SLOWLY}\nwalk = \"{walk}\"")));
        sete.through("dual_write");
        in_the_middle(&sete, || {
            play.psql(&format!(
                "CREATE TABLE events_4 (LIKE events INCLUDING ALL); INSERT INTO events_4 SELECT n, 'eu', 'new', {PAD} FROM generate_series(1000, 1020) n;
                 ALTER TABLE events ATTACH PARTITION events_4 FOR VALUES FROM (1000) TO (2000);
                 INSERT INTO events VALUES (1500, 'us', 'new'); UPDATE events SET id = 250 WHERE id = 1500; UPDATE events SET status = 'shipped' WHERE id = 101"
            ));
        });
        assert_eq!(play.psql("SELECT count(*), count(*) FILTER (WHERE status_v2::text = status), count(DISTINCT tableoid) FROM events"), "372|372|6");
        sete.through("stop_writes");
        let indexes = "SELECT count(*), bool_and(indisvalid) FROM pg_index WHERE pg_get_indexdef(indexrelid) LIKE '%(status_v2)'";
        // One for each leaf, the parent, and the partition that is partitioned itself.
        assert_eq!(play.psql(indexes), "8|t", "{walk}");
        assert_eq!(play.psql("SELECT bool_and(attnotnull), count(*) FROM pg_attribute WHERE attname = 'status_v2' AND attrelid IN (SELECT relid FROM pg_partition_tree('events'))"), "t|8");
        play.psql("INSERT INTO events (id, region, status_v2) VALUES (5000, 'eu', 'new')");
        sete.through("drop");
        assert_eq!(play.psql("SELECT count(*) FROM events WHERE status_v2 = 'new'"), "23");
    }
}

#[test]
fn case_11_the_partition_key_is_refused() {
    let play = Play::with("CREATE TABLE events (id int, day date) PARTITION BY RANGE (day); CREATE TABLE events_1 PARTITION OF events DEFAULT");
    play.sete(&retype("events", "public.events", "day", "at", "timestamptz", "")).fails("step", &[], 3, "E115");
    assert_eq!(play.traces(), "0");
}

#[test]
fn case_12_time_zones_are_pinned() {
    let moment = "'2024-03-04 10:00:00'";
    for (old, forward) in [
        ("timestamp", ""),
        ("timestamp", "forward = \"seen AT TIME ZONE 'Europe/Berlin'\"\nreverse = \"seen_v2 AT TIME ZONE 'Europe/Berlin'\""),
        ("text", ""),
        ("text", "forward = \"(seen || ' ')::timestamptz\"\nreverse = \"seen_v2::text\""),
    ] {
        // For text the two readings of 03/04 are a month apart.
        let value = if old == "text" { "'03/04/2024 10:00:00'" } else { moment };
        let play = Play::with(&format!(
            "CREATE TABLE visits (id int PRIMARY KEY, seen {old}); INSERT INTO visits SELECT n, {value} FROM generate_series(1, 20) n"
        ));
        play.psql(&format!("ALTER DATABASE {} SET TimeZone = 'America/New_York'; ALTER DATABASE {} SET DateStyle = 'SQL, DMY'", play.db, play.db));
        let sete = play.sete(&retype("visits", "public.visits", "seen", "seen_v2", "timestamptz", forward));
        sete.through("dual_write");
        let app = play.session("postgres");
        let stored = if old == "text" { value.to_owned() } else { format!("timestamp {moment}") };
        app.run(&format!("INSERT INTO visits (id, seen) VALUES (21, {stored}); UPDATE visits SET seen = {stored} WHERE id = 1; UPDATE visits SET id = 22 WHERE id = 2"));
        assert_eq!(play.psql("SELECT count(*) FROM visits WHERE seen_v2 IS NOT NULL"), "3");
        sete.through("backfill");
        assert_eq!(play.psql("SELECT count(*), count(DISTINCT seen_v2) FROM visits"), "21|1", "{old} {forward}");
        // The other direction too: what comes through the new column.
        app.run("UPDATE visits SET seen_v2 = '2024-07-08 09:00:00+00' WHERE id < 10");
        sete.through("validate");
        assert_eq!(sete.status()["validate"]["last_divergent"], 0);
        sete.through("stop_writes");
        sete.ok("back", &[]);
        assert_eq!(sete.ok("validate", &[]).code, 0);
    }
}

/// Writes behind the sync's back.
fn unseen(play: &Play, table: &str, sql: &str) {
    let name = play.psql(&format!("SELECT tgname FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname LIKE '~sete_sync%update'"));
    play.psql(&format!("ALTER TABLE {table} DISABLE TRIGGER \"{name}\"; {sql}; ALTER TABLE {table} ENABLE ALWAYS TRIGGER \"{name}\""));
}

#[test]
fn case_14_values_that_only_look_equal_are_divergences() {
    let lax = "(provider = icu, locale = 'und-u-ks-level1', deterministic = false)";
    for (old, new, before, after) in [
        ("text", "citext", "A", "a"),
        ("citext", "text", "A", "a"),
        ("varchar(9) COLLATE lax", "text", "é", "e"),
        ("text COLLATE lax", "varchar(9)", "x", "x "),
        ("char(3)", "text", "x", "X"),
        ("text", "json", "{\"a\":1}", "{\"a\": 1}"),
        ("json", "text", "{\"a\":1}", "{\"a\": 1}"),
        ("json", "jsonb", "{\"a\":1}", "{\"a\":2}"),
        ("text", "numeric", "1.0", "1.00"),
        ("text", "float8", "0", "-0"),
    ] {
        let play = Play::with(&format!("CREATE EXTENSION citext; CREATE COLLATION lax {lax}; CREATE TABLE words (id int PRIMARY KEY, v {old});"));
        play.psql(&format!("INSERT INTO words SELECT n, '{before}' FROM generate_series(1, 30) n"));
        let sete = play.sete(&retype("words", "public.words", "v", "v_v2", new, ""));
        sete.through("read_switch");
        // The application's own write reaches both.
        play.psql(&format!("UPDATE words SET v = '{after}' WHERE id = 3; UPDATE words SET v = '{before}' WHERE id = 3"));
        sete.ok("validate", &[]);
        unseen(&play, "words", &format!("UPDATE words SET v_v2 = '{after}' WHERE id = 7"));
        let out = sete.run("validate", &[]);
        assert_eq!(out.code, 6, "{old} to {new}: {}", out.text());
        assert_eq!(play.psql("SELECT data -> 'sample' FROM sete.pass ORDER BY id DESC LIMIT 1"), "[\"7\"]", "{old} to {new}");
        sete.ok("validate", &["--repair"]);
        sete.ok("validate", &[]);
    }
}

#[test]
fn case_15_prepared_statements_fail_at_most_as_the_plan_warned() {
    let play = Play::with(ORDERS);
    let sete = play.sete(&orders_plan("[read_switch]\nmode = \"swap\""));
    assert!(sete.ok("plan", &[]).text().contains("cached plan must not change result type"));
    let app = play.session("postgres");
    app.run("PREPARE everything AS SELECT * FROM orders; PREPARE one AS SELECT status FROM orders WHERE id = 1; PREPARE write AS UPDATE orders SET status = 'paid' WHERE id = $1");
    let once = |statement: &str, may_fail: bool| {
        // Each fails once at most: prepared again, it works.
        let prepared = if statement == "everything" { "SELECT * FROM orders" } else { "SELECT status FROM orders WHERE id = 1" };
        if let Err(message) = app.try_run(&format!("EXECUTE {statement}")) {
            assert!(may_fail && message.contains("cached plan must not change result type"), "{statement}: {message}");
            app.run(&format!("DEALLOCATE {statement}; PREPARE {statement} AS {prepared}; EXECUTE {statement}"));
            return true;
        }
        false
    };
    once("everything", false);
    once("one", false);
    app.run("EXECUTE write(1)");
    for (stage, star, column) in [
        ("expand", true, false),
        ("dual_write", false, false),
        ("backfill", false, false),
        ("validate", false, false),
        ("read_switch", true, true),
        ("stop_writes", false, false),
        ("drop", true, false),
    ] {
        sete.through(stage);
        assert_eq!(once("everything", star), star, "{stage}");
        assert_eq!(once("one", column), column, "{stage}");
        for id in 1..8 {
            app.run(&format!("EXECUTE write({id})"));
        }
        if ["backfill", "validate", "read_switch"].contains(&stage) {
            assert_eq!(play.psql("SELECT count(*) FROM orders WHERE status::text <> status_v2::text"), "0", "{stage}");
        }
    }
    assert_eq!(play.psql("SELECT count(*) FROM orders WHERE status = 'paid' AND id < 8"), "7");
}

#[test]
fn case_16_timeouts_of_the_role_end_nothing() {
    let play = Play::with("");
    let owner = play.role("owner", "");
    // Every use of the index's predicate and of the check takes longer than the role's statements may.
    play.psql(&format!(
        "CREATE FUNCTION slow(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN IF $1 = 1 THEN PERFORM pg_sleep(0.1); END IF; RETURN true; END';
         {ORDERS} CREATE INDEX orders_slow ON orders (status) WHERE slow(total); ALTER TABLE orders ADD CONSTRAINT slowly CHECK (status <> '' AND slow(total));
         ALTER TABLE orders OWNER TO {owner}; ALTER TYPE order_status OWNER TO {owner}; ALTER SCHEMA public OWNER TO {owner}"
    ));
    let version = play.major();
    for (setting, since) in
        [("statement_timeout", 13), ("lock_timeout", 13), ("idle_in_transaction_session_timeout", 13), ("transaction_timeout", 17)]
    {
        if version >= since {
            play.psql(&format!("ALTER ROLE {owner} SET {setting} = '50ms'"));
        }
    }
    let plan = orders_plan("[read_switch]\nmode = \"swap\"\n[structure]\ncheck = \"auto\"");
    let sete = Sete::new(&play.url_of(&owner), &plan);
    let text = sete.ok("plan", &[]).text();
    assert!(text.contains("E126") && text.contains("statement_timeout"), "{text}");
    sete.through("validate");
    assert_eq!(play.psql("SELECT count(*), bool_and(indisvalid) FROM pg_index WHERE indrelid = 'orders'::regclass"), "5|t");
    sete.through("stop_writes");
    sete.ok("back", &[]);
    sete.through("drop");
    assert_eq!(play.psql("SELECT count(*), bool_and(indisvalid) FROM pg_index WHERE indrelid = 'orders'::regclass"), "3|t");
}

/// Walks a plan through its stages while an application that owns nothing writes through both columns.
fn names(schema: &str, table: &str, old: &str, new: &str, others: &[&str], modes: (&str, &str)) {
    let q = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let (qualified, o, n) = (format!("{}.{}", q(schema), q(table)), q(old), q(new));
    let play =
        Play::with(&format!("CREATE SCHEMA hidden; CREATE TYPE hidden.\"Kind\" AS ENUM ('a', 'b', 'c'); CREATE SCHEMA IF NOT EXISTS {}", q(schema)));
    let app = play.role("app", "");
    let columns: String = others.iter().map(|name| format!(", {} text DEFAULT 'x'", q(name))).collect();
    play.psql(&format!(
        "CREATE TABLE {qualified} (id int PRIMARY KEY, {o} varchar(20) NOT NULL CHECK ({o} <> '') {columns});
         INSERT INTO {qualified} (id, {o}) SELECT n, 'a' FROM generate_series(1, 40) n; CREATE INDEX ON {qualified} ({o}); CREATE INDEX ON {qualified} ({o} DESC, id);
         GRANT USAGE ON SCHEMA {} TO {app}; GRANT SELECT, INSERT, UPDATE, DELETE ON {qualified} TO {app}; REVOKE ALL ON SCHEMA hidden FROM PUBLIC",
        q(schema)
    ));
    let (dual, switch) = modes;
    let more = format!("[dual_write]\nmode = \"{dual}\"\n[read_switch]\nmode = \"{switch}\"");
    let sete = play.sete(&retype("names", &format!("{schema}.{table}"), old, new, "hidden.\"Kind\"", &more));
    let session = play.session(&app);
    session.run("SET search_path = ''");
    let mut id = 100;
    let mut write = |columns: &[&str], value: &str| {
        id += 1;
        let both = dual == "app" && columns.len() == 1;
        let (names, values) = if both {
            (format!("{o}, {n}"), format!("'{value}', '{value}'"))
        } else {
            (columns.join(", "), vec![format!("'{value}'"); columns.len()].join(", "))
        };
        session.run(&format!("INSERT INTO {qualified} (id, {names}) VALUES ({id}, {values})"));
        let sets = names.split(", ").map(|c| format!("{c} = 'b'")).collect::<Vec<_>>().join(", ");
        session.run(&format!("UPDATE {qualified} SET {sets} WHERE id = {id}; DELETE FROM {qualified} WHERE id = {id} - 5"));
        session.run(&format!("SELECT count(*) FROM {qualified}"));
    };
    let what = format!("{schema}.{table} {old} to {new}, {modes:?}");
    sete.ok("plan", &[]);
    session.run(&format!("INSERT INTO {qualified} (id, {o}) VALUES (99, 'b')"));
    for stage in ["expand", "dual_write", "backfill", "validate", "read_switch"] {
        sete.through(stage);
        if stage == "expand" {
            session.run(&format!("UPDATE {qualified} SET {o} = 'c' WHERE id = 99"));
            continue;
        }
        write(&[&o], "a");
        write(&[&n], "c");
        write(&[&o, &n], "a");
        if stage != "dual_write" {
            assert_eq!(play.psql(&format!("SELECT count(*) FROM {qualified} WHERE {o}::text IS DISTINCT FROM {n}::text")), "0", "{what}: {stage}");
        }
    }
    let indexes = format!(
        "SELECT count(*) FROM pg_index i, pg_attribute a WHERE i.indrelid = '{qualified}'::regclass AND a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND a.atttypid = 'hidden.\"Kind\"'::regtype AND indisvalid"
    );
    assert_eq!(play.psql(&indexes), "2", "{what}");
    // From now on the new column alone, under the name it has.
    let fresh = if switch == "swap" { &o } else { &n };
    sete.through("stop_writes");
    session.run(&format!("INSERT INTO {qualified} (id, {fresh}) VALUES (500, 'a')"));
    sete.ok("back", &[]);
    session.run(&format!("UPDATE {qualified} SET {o} = 'c', {n} = 'c' WHERE id = 500"));
    sete.through("drop");
    session.run(&format!("INSERT INTO {qualified} (id, {fresh}) VALUES (501, 'a'); UPDATE {qualified} SET {fresh} = 'b' WHERE id IN (500, 501)"));
    assert_eq!(play.psql(&format!("SELECT count(*) FROM {qualified} WHERE {fresh} = 'b' AND id >= 500")), "2");
    sete.ok("forget", &[]);
    assert_eq!(play.traces(), "0");
}

#[test]
fn case_18_names_of_all_kinds() {
    let long = "n".repeat(63);
    let longer = format!("{}2", "n".repeat(62));
    for modes in [("trigger", "swap"), ("app", "app")] {
        names("tenant-1", "Order", "user", "Üser \"neu\" 'x' \\ $sete0$", &["new", "old", "forward", "reverse", "tg_op", "ok"], modes);
    }
    names("public", "new", "old", "forward", &["~sete", "{name}", "{table}", "new_changed", "NEW"], ("trigger", "app"));
    names("public", "~sete", "tg_op", "result", &["new", "old", "{concurrently}"], ("trigger", "swap"));
    names("select", &long, &longer, &format!("{}3", "n".repeat(62)), &["user"], ("trigger", "app"));
    names("sete_", "sync", &"ü".repeat(31), &format!("{}x", "ü".repeat(31)), &["old"], ("trigger", "swap"));
}

#[test]
fn case_18_derived_names_of_indexes_do_not_collide() {
    let stem = "i".repeat(62);
    let play = Play::with(&format!(
        "{ORDERS} CREATE INDEX {stem}a ON orders (status); CREATE INDEX {stem}b ON orders (status, id); CREATE INDEX {stem}c ON orders (id, status);
         CREATE INDEX {}_status ON orders (status, total)",
        "s".repeat(56)
    ));
    let sete = play.sete(&orders_plan(""));
    sete.through("validate");
    assert_eq!(play.psql("SELECT count(DISTINCT indexrelid::regclass::text), bool_and(indisvalid) FROM pg_index WHERE pg_get_indexdef(indexrelid) LIKE '%status_v2%'"), "5|t");
    sete.ok("back", &[]);
    assert_eq!(play.psql("SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass"), "6");
}

/// How many times the walk has been through the table.
fn sweeps(play: &Play) -> u32 {
    let sweep = play.psql("SELECT coalesce(max((data ->> 'sweep')::int), 0) FROM sete.progress");
    sweep.parse().expect("a number")
}

#[test]
fn case_26_a_locked_row_is_filled_once_it_is_free() {
    for walk in WALKS {
        let play = Play::with(ORDERS);
        let sete = play.sete(&orders_plan(&format!("[ddl]\npatience = \"2s\"\n[backfill]\nwalk = \"{walk}\"")));
        sete.through("dual_write");
        let app = play.session("postgres");
        app.run("BEGIN; SELECT * FROM orders WHERE id = 30 FOR UPDATE");
        let out = sete.fails("step", &[], 5, "E402");
        assert!(out.text().contains("locked"), "{}", out.text());
        assert_eq!(sete.at(), ("backfill".into(), "failed".into()));
        let before = sweeps(&play);
        let running = sete.start("step", &[]);
        until("a sweep has passed the locked row", || sweeps(&play) > before);
        app.run("UPDATE orders SET total = 0 WHERE id = 30; COMMIT");
        let out = finish(running);
        assert_eq!(out.code, 0, "{walk}: {}", out.text());
        assert_eq!(play.psql("SELECT count(*) FROM orders WHERE status::text = status_v2::text"), "60");
    }
}

#[test]
fn case_29_an_edited_expression_is_refused_half_way() {
    let play = Play::with("CREATE TABLE readings (id int PRIMARY KEY, raw text); INSERT INTO readings SELECT n, n FROM generate_series(1, 20) n");
    let plan = |factor: u32, more: &str| {
        let more = format!("forward = \"raw::int * {factor}\"\nreverse = \"(value / {factor})::text\"\n{more}");
        retype("readings", "public.readings", "raw", "value", "integer", &more)
    };
    let sete = play.sete(&plan(10, ""));
    sete.through("backfill");
    sete.rewrite(&plan(100, ""));
    for command in [&["step"][..], &["back"], &["plan"], &["validate"]] {
        let out = sete.fails(command[0], &[], 3, "E201");
        assert!(out.text().contains("raw::int * 10\"") && out.text().contains("raw::int * 100\""), "{}", out.text());
    }
    sete.rewrite(&plan(10, "[backfill]\nbatch_rows = 7\nworkers = 1\n[validate]\npasses = 3"));
    sete.through("validate");
    assert_eq!(sete.status()["validate"]["needed"], 3);
    assert_eq!(play.psql("SELECT count(*) FROM readings WHERE value = raw::int * 10"), "20");
}

#[test]
fn case_30_an_old_instance_that_inserts_behind_the_walk_is_named_and_its_rows_filled() {
    for walk in WALKS {
        let play = Play::with(&format!(
            "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped'); CREATE TABLE orders (id int PRIMARY KEY, status varchar(20), pad text);
             INSERT INTO orders SELECT n, 'paid', {PAD} FROM generate_series(100, 300) n"
        ));
        let more = format!("[dual_write]\nmode = \"app\"\nquiet_for = \"10s\"\n{SLOWLY}\nwalk = \"{walk}\"");
        let sete = play.sete(&orders_plan(&more));
        sete.through("expand");
        sete.fails("step", &[], 4, "");
        // Nobody has written one column only: it needs no more than time.
        sete.rewrite(&orders_plan(&more.replace("10s", "1ms")));
        sete.through("dual_write");
        sete.rewrite(&orders_plan(&more));
        let old = play.session("postgres");
        old.run("SET application_name = 'web-old'");
        in_the_middle(&sete, || {
            old.run("INSERT INTO orders (id, status) VALUES (1, 'new')");
            let status = sete.status();
            assert_eq!(status["in_the_way"][0]["application"], "web-old", "{status}");
            assert_eq!(status["in_the_way"][0]["wrote_only"], "status");
            let out = sete.run("gate", &["--for", "read-new"]);
            assert!(out.code == 4 && out.text().contains("web-old"), "{}", out.text());
        });
        assert_eq!(play.psql("SELECT status_v2 FROM orders WHERE id = 1"), "new");
        sete.through("validate");
    }
}

// --- tables and types of all kinds -----------------------------------------------------------------------------------

#[test]
fn small_tables_go_through() {
    for rows in ["SELECT", "VALUES (1, 'new')", "SELECT n, NULL FROM generate_series(1, 30) n"] {
        for (walk, mode) in [("physical", "app"), ("key", "swap")].into_iter().take(if rows == "SELECT" { 2 } else { 1 }) {
            let play = Play::with("CREATE TYPE order_status AS ENUM ('new', 'paid'); CREATE TABLE orders (id int PRIMARY KEY, status varchar(20))");
            if rows != "SELECT" {
                play.psql(&format!("INSERT INTO orders {rows}"));
            }
            let sete = play.sete(&orders_plan(&format!("[read_switch]\nmode = \"{mode}\"\n[backfill]\nwalk = \"{walk}\"")));
            sete.through("stop_writes");
            sete.ok("back", &[]);
            play.psql("INSERT INTO orders (id, status) VALUES (100, 'paid')");
            assert_eq!(play.psql("SELECT status_v2 FROM orders WHERE id = 100"), "paid");
            sete.through("drop");
        }
    }
}

#[test]
fn a_column_that_is_there_already_is_adopted_and_left() {
    let play = Play::with(&format!("{ORDERS} ALTER TABLE orders ADD status_v2 order_status; UPDATE orders SET status_v2 = 'new' WHERE id <= 10"));
    let sete = play.sete(&orders_plan(""));
    sete.through("expand");
    sete.ok("back", &[]);
    assert!(play.columns("orders").contains("status_v2 order_status"));
    assert_eq!(play.psql("SELECT count(status_v2) FROM orders"), "10");
    // What was in it before is the user's: rows that differ are named, and rewritten only when that is asked for.
    let out = sete.fails("step", &["--through", "validate"], 6, "E501");
    assert!(out.text().contains("7 rows"), "{}", out.text());
    sete.ok("validate", &["--repair"]);
    sete.through("validate");
    assert_eq!(play.psql("SELECT count(*) FROM orders WHERE status::text = status_v2::text"), "60");
    for _ in 0..4 {
        sete.ok("back", &[]);
    }
    assert!(play.columns("orders").contains("status_v2 order_status"));
}

#[test]
fn types_that_a_cast_takes_over_need_no_expression() {
    for (at, (old, new, value)) in [
        ("json", "jsonb", "'{\"b\": 1, \"a\": [1.0, null]}'"),
        ("text", "uuid", "gen_random_uuid()::text"),
        ("int", "bigint", "(random() * 1000)::int"),
        ("varchar(5)", "varchar(50)", "'abc'"),
        ("text[]", "varchar(9)[]", "ARRAY['a', NULL]"),
        ("text", "inet", "'10.0.0.1'"),
        ("boolean", "text", "true"),
        ("date", "timestamptz", "date '2024-02-29'"),
    ]
    .into_iter()
    .enumerate()
    {
        let mode = ["app", "swap"][at % 2];
        let play = Play::with(&format!(
            "CREATE TABLE things (id int PRIMARY KEY, v {old}); INSERT INTO things SELECT n, {value} FROM generate_series(1, 30) n"
        ));
        let sete = play.sete(&retype("things", "public.things", "v", "v_v2", new, &format!("[read_switch]\nmode = \"{mode}\"")));
        sete.through("read_switch");
        assert_eq!(play.psql("SELECT count(v_v2) FROM things"), "30", "{old} to {new}");
        play.psql("UPDATE things SET v = v; UPDATE things SET v_v2 = v_v2; INSERT INTO things (id, v) SELECT 100, v FROM things LIMIT 1");
        sete.ok("validate", &[]);
        sete.through("stop_writes");
        sete.ok("back", &[]);
        sete.through("drop");
    }
}
