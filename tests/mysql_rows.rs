//! Chunks on real MySQL and MariaDB servers: walking by any key, filling without waiting, comparing exactly.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use crate::support::mysql::{Server, available, shared};
use sete::change::mapping;
use sete::engine::mysql::MySql;
use sete::engine::{Batch, Chunk, Compare, Ddl, Fence, Fill, Guard, Place, Rows, Schema, Store, Stripe, Walk};
use sete::error::{Code, Result, Trouble};
use sete::plan::{Plan, parse};
use sete::resolve::{Resolved, resolve};
use sete::secret::DbUrl;

/// A plan on a table, with its new column and its triggers.
struct World<'a> {
    server: &'a Server,
    db: String,
    engine: MySql,
    plan: Plan,
    r: Resolved,
    fence: Fence,
}

impl<'a> World<'a> {
    /// A table `t` whose column `v` becomes `w`; `more` are further keys of the plan.
    async fn new(server: &'a Server, setup: &str, new_type: &str, more: &str) -> World<'a> {
        let (db, url) = server.fresh_db();
        server.sql(&db, setup);
        let engine = MySql::new(&DbUrl::new(url), "sete test").unwrap();
        let text = format!(
            "id = \"p\"\nengine = \"mysql\"\n[change]\nkind = \"type\"\ntable = \"t\"\nfrom = \"v\"\nto = \"w\"\ntype = '''{new_type}'''\n{more}"
        );
        let plan = parse(&text).unwrap_or_else(|problems| panic!("{problems:?}"));
        engine.prepare().await.unwrap();
        server.sql(&db, "INSERT INTO sete_plan (id, table_name, fingerprint, `change`, origin, text) VALUES ('p', 't', '', '{}', '{}', '')");
        server.sql(&db, "INSERT INTO sete_lease (plan_id, token) VALUES ('p', 1)");
        let fence = Fence { plan: "p".into(), token: 1 };
        let r = resolved(&engine, &plan).await;
        engine.apply(&r, &Ddl::AddColumn, Duration::from_secs(1), &fence).await.unwrap();
        let r = resolved(&engine, &plan).await;
        engine.apply(&r, &Ddl::InstallSync { watch: false }, Duration::from_secs(1), &fence).await.unwrap();
        World { server, db, engine, plan, r, fence }
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.db, sql)
    }

    /// Writes past the triggers, as the backfill does.
    fn behind(&self, sql: &str) {
        self.sql(&format!("SET @sete_by = '{}'; {sql}", self.r.names.marker));
    }

    async fn chunks(&self, rows: u32) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::new();
        loop {
            let after = chunks.last().map(|chunk| chunk.next.clone());
            match self.engine.next_chunk(&self.r, Walk::Key, after.as_ref(), rows, 1).await.unwrap() {
                Some(chunk) => {
                    assert!(chunk.to != chunk.from || chunk.to == Place::Key(None), "no way forward: {chunk:?}");
                    chunks.push(chunk);
                }
                None => return chunks,
            }
        }
    }

    /// The whole table.
    async fn all(&self) -> Chunk {
        self.chunks(100_000).await.remove(0)
    }

    async fn fill(&self, chunk: &Chunk, what: Fill) -> Result<u64> {
        let batch = Batch { chunk, stripe: Stripe::WHOLE, what, lock_wait: Duration::from_millis(50), guard: Guard::Lease(&self.fence) };
        self.engine.fill(&self.r, &batch).await.map(|filled| filled.rows)
    }

    /// How many rows differ, and which.
    async fn divergent(&self) -> (u64, Vec<String>) {
        let chunk = self.all().await;
        let compared = match self.engine.compare(&self.r, &chunk, Compare::Divergent, false, 50).await {
            Err(e) if e.trouble() == Trouble::BadData => self.engine.compare(&self.r, &chunk, Compare::Divergent, true, 50).await.unwrap(),
            compared => compared.unwrap(),
        };
        (compared.divergent, compared.sample)
    }
}

async fn resolved(engine: &MySql, plan: &Plan) -> Resolved {
    resolve(plan, &engine.catalog(plan, &mapping(&plan.change), None).await.unwrap(), None).unwrap()
}

#[tokio::test]
async fn every_kind_of_key_is_walked_once_in_the_order_of_its_index() {
    let keys = [
        ("a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (a, b)", "n DIV 7, n"),
        ("a INT NOT NULL, b VARCHAR(9) NOT NULL, c SMALLINT NOT NULL, PRIMARY KEY (a, b, c)", "1, CONCAT('x', n DIV 5), n"),
        ("a BIGINT UNSIGNED NOT NULL PRIMARY KEY", "18446744073709551615 - n"),
        ("a VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL PRIMARY KEY", "CONCAT(ELT(1 + n % 4, 'a', 'B', 'é ', 'ß'), n)"),
        ("a VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german1_ci NOT NULL PRIMARY KEY", "CONCAT(ELT(1 + n % 4, 'a', 'B', 'é', 'ü'), n)"),
        ("a VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY", "CONCAT(ELT(1 + n % 4, 'a', 'B', 'b', '😀'), n)"),
        ("a BINARY(16) NOT NULL PRIMARY KEY", "UNHEX(SUBSTRING(SHA2(n, 256), 1, 32))"),
        ("a ENUM('z', 'y', 'x') NOT NULL, b DECIMAL(20, 4) NOT NULL, PRIMARY KEY (a, b)", "1 + n % 3, n / 3"),
        ("a DATETIME(3) NOT NULL PRIMARY KEY", "'2024-01-01' + INTERVAL n * 7001 MICROSECOND * 1000"),
        ("a TIMESTAMP NOT NULL, b TIME(6) NOT NULL, PRIMARY KEY (a, b)", "'2024-01-01' + INTERVAL n DIV 9 DAY, SEC_TO_TIME(n * 1.5)"),
        ("a DOUBLE NOT NULL PRIMARY KEY", "n / 3e0"),
        ("a INT NOT NULL, UNIQUE KEY first_unique (a)", "n * 3 - 50"),
    ];
    let numbers = (1..=60).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ALL ");
    for server in shared() {
        for (columns, values) in keys {
            let values = values.replace("MICROSECOND * 1000", "MICROSECOND");
            let setup = format!("CREATE TABLE t ({columns}, v INT); INSERT INTO t SELECT {values}, n FROM ({numbers}) s");
            let w = World::new(server, &setup, "bigint", "").await;
            let chunks = w.chunks(7).await;
            assert_eq!(chunks.len(), 9, "{columns}");
            let mut filled = Vec::new();
            for chunk in &chunks {
                filled.push(w.fill(chunk, Fill::Pending).await.unwrap());
            }
            assert_eq!(filled, [7, 7, 7, 7, 7, 7, 7, 7, 4], "{columns}");
            assert_eq!(w.sql("SELECT COUNT(*) FROM t WHERE w = v"), "60", "{columns}");
            // A part of a chunk ends with it.
            let (mut at, mut parts): (Option<Place>, u64) = (None, 0);
            while let Some(part) = w.engine.next_part(&w.r, &chunks[1], at.as_ref(), 3).await.unwrap() {
                parts += w.engine.compare(&w.r, &part, Compare::Divergent, false, 0).await.unwrap().rows;
                at = Some(part.to);
            }
            assert_eq!(parts, 7, "{columns}");
            w.behind("UPDATE t SET w = NULL WHERE v = 33");
            let (n, sample) = w.divergent().await;
            assert_eq!((n, sample.len()), (1, 1), "{columns}");
        }
    }
}

#[tokio::test]
async fn a_batch_leaves_out_what_others_hold_and_never_waits() {
    for server in shared() {
        let setup = "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, u TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (v));
            INSERT INTO t VALUES (1, 1, '2020-01-01'), (2, 2, '2020-01-01'), (3, 3, '2020-01-01'), (4, 4, '2020-01-01'), (5, 5, '2020-01-01')";
        let w = World::new(server, setup, "bigint", "").await;
        let chunk = w.all().await;
        let mut app = mysql_async::Conn::from_url(server.url(&w.db)).await.unwrap();
        use mysql_async::prelude::Queryable;
        app.query_drop("BEGIN; SELECT * FROM t WHERE id IN (2, 4) FOR UPDATE; INSERT INTO t (id, v) VALUES (6, 6)").await.unwrap();
        let began = Instant::now();
        let refused = w.fill(&chunk, Fill::Pending).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        assert_eq!((refused.trouble(), refused.to_string().contains("2 of the batch's rows")), (Trouble::LockTimeout, true), "{refused}");
        assert_eq!(w.sql("SELECT GROUP_CONCAT(id ORDER BY id) FROM t WHERE w IS NULL"), "2,4");
        // All that is left is held: nothing to write.
        assert_eq!(w.fill(&chunk, Fill::Pending).await.unwrap_err().trouble(), Trouble::LockTimeout);
        // The application can go on, and is nobody's victim.
        app.query_drop("UPDATE t SET v = v + 10 WHERE id IN (1, 2, 3, 4, 5)").await.unwrap();
        app.query_drop("COMMIT").await.unwrap();
        w.behind("UPDATE t SET w = NULL, u = '2020-01-01' WHERE id IN (2, 4)");
        assert_eq!(w.fill(&chunk, Fill::Pending).await.unwrap(), 2);
        assert_eq!(w.sql("SELECT COUNT(*) FROM t WHERE w = v"), "6");
        assert_eq!(w.sql("SELECT COUNT(*) FROM t WHERE u = '2020-01-01'"), "2", "its own updates leave the time alone");
        app.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_of_one_who_was_replaced_writes_nothing() {
    for server in shared() {
        let w = World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)", "bigint", "").await;
        let chunk = w.all().await;
        w.sql("UPDATE sete_lease SET token = 2");
        assert_eq!(w.fill(&chunk, Fill::Pending).await.unwrap_err().code(), Code::LeaseLost);
        assert_eq!(w.sql("SELECT w FROM t"), "NULL");
    }
}

const DIRTY: &str = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20));
    INSERT INTO t VALUES (1, '10'), (2, 'n/a'), (3, ''), (4, '1,234'), (5, '99999999999'), (6, NULL), (7, ' 7'), (8, '0x1')";

#[tokio::test]
async fn rows_that_dont_convert_are_found_and_left_out() {
    for server in shared() {
        let w = World::new(server, DIRTY, "int", "forward = \"CAST(v AS SIGNED)\"\nreverse = \"CAST(w AS CHAR)\"").await;
        let chunk = w.all().await;
        let refused = w.fill(&chunk, Fill::Pending).await.unwrap_err();
        assert_eq!(refused.trouble(), Trouble::BadData, "{refused}");
        assert_eq!(w.sql("SELECT COUNT(w) FROM t"), "0");
        let bad = w.engine.bad_rows(&w.r, &chunk, Fill::Pending).await.unwrap();
        let keys: Vec<&str> = bad.iter().map(|reject| reject.key.as_str()).collect();
        assert_eq!(keys, ["2", "3", "4", "5", "8"], "{bad:?}");
        assert_eq!(bad[0].value.as_deref(), Some("n/a"));
        assert!(bad.iter().all(|reject| !reject.message.contains("sete")), "{bad:?}");
        assert_eq!(w.fill(&chunk, Fill::PendingGood).await.unwrap(), 2);
        assert_eq!(w.sql("SELECT GROUP_CONCAT(CONCAT(id, ':', w) ORDER BY id) FROM t WHERE w IS NOT NULL"), "1:10,7:7");
        let pending = w.engine.compare(&w.r, &chunk, Compare::Pending, false, 0).await;
        assert_eq!(pending.map_err(|e| e.trouble()).unwrap_err(), Trouble::BadData);
        let pending = w.engine.compare(&w.r, &chunk, Compare::Pending, true, 0).await.unwrap();
        assert_eq!((pending.rows, pending.divergent), (8, 0));
        // Explained by neither direction: what doesn't convert, and ' 7', which 7 doesn't give back but which gives 7.
        assert_eq!(w.divergent().await.0, 5);
    }
}

#[tokio::test]
async fn unfit_rows_are_counted_before_the_column_is_there() {
    for server in shared() {
        let (db, url) = server.fresh_db();
        server.sql(
            &db,
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20)); INSERT INTO t VALUES (1, '2024-02-29'), (2, '2024-02-30'), (3, NULL), (4, 'x')",
        );
        let engine = MySql::new(&DbUrl::new(url), "sete test").unwrap();
        let plan =
            parse("id = \"p\"\nengine = \"mysql\"\n[change]\nkind = \"type\"\ntable = \"t\"\nfrom = \"v\"\nto = \"w\"\ntype = \"date\"\n").unwrap();
        let r = resolved(&engine, &plan).await;
        let chunk = engine.next_chunk(&r, Walk::Key, None, 100, 1).await.unwrap().unwrap();
        let unfit = engine.unfit_rows(&r, &chunk, 1).await.unwrap();
        assert_eq!((unfit.rows, unfit.unfit, unfit.sample.len()), (4, 2, 1));
        assert_eq!((unfit.sample[0].key.as_str(), unfit.sample[0].value.as_deref()), ("2", Some("2024-02-30")));
        assert_eq!(server.sql(&db, "SHOW COLUMNS FROM t LIKE 'w'"), "");
    }
}

#[tokio::test]
async fn differences_that_a_collation_or_a_type_hides_are_found() {
    // Type of both columns, two values that `=` may take for one.
    let cases = [
        ("VARCHAR(9)", "'A'", "'a'"),
        ("VARCHAR(9)", "'é'", "'e'"),
        ("VARCHAR(9)", "'x'", "'x '"),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "'x'", "'x '"),
        ("TEXT", "'ß'", "'ss'"),
        ("VARBINARY(9)", "'x'", "CONCAT('x', CHAR(0))"),
        ("BIGINT", "9007199254740993", "9007199254740992"),
        ("DECIMAL(30,10)", "12345678901234567890.0000000001", "12345678901234567890.0000000002"),
        ("DATETIME(6)", "'2024-01-01 00:00:00.000001'", "'2024-01-01 00:00:00.000002'"),
        ("DOUBLE", "0.1e0", "0.1e0 + 1e-17 * 2"),
        ("FLOAT", "1.234567e0", "1.234568e0"),
        ("JSON", "'{\"a\": [1, \"x\"]}'", "'{\"a\": [1, \"X\"]}'"),
        ("ENUM('a', 'b')", "'a'", "'b'"),
        ("BIT(8)", "b'1'", "b'11'"),
    ];
    for server in shared() {
        for (ty, one, other) in cases {
            let setup = format!(
                "CREATE TABLE t (id INT PRIMARY KEY, v {ty}) DEFAULT CHARSET utf8mb4; INSERT INTO t VALUES (1, {one}), (2, {one}), (3, NULL), (4, {other})"
            );
            let w = World::new(server, &setup, ty, "forward = \"v\"\nreverse = \"w\"").await;
            let chunk = w.all().await;
            assert_eq!(w.fill(&chunk, Fill::Pending).await.unwrap(), 3, "{ty}");
            assert_eq!(w.divergent().await, (0, Vec::new()), "{ty} {one}");
            w.behind(&format!("UPDATE t SET w = {other} WHERE id = 2"));
            assert_eq!(w.divergent().await, (1, vec!["2".into()]), "{ty} {one} {other}");
            // The one who owns the value gives it back.
            assert_eq!(w.fill(&chunk, Fill::Forward).await.unwrap(), 1, "{ty}");
            assert_eq!(w.divergent().await.0, 0, "{ty}");
            w.behind(&format!("UPDATE t SET w = {other} WHERE id = 1"));
            assert_eq!(w.fill(&chunk, Fill::Reverse).await.unwrap(), 1, "{ty}");
            assert_eq!(w.divergent().await.0, 0, "{ty}");
            assert_eq!(
                w.sql("SELECT COUNT(*) FROM t a JOIN t b ON b.id = 4 AND CAST(a.v AS BINARY) = CAST(b.v AS BINARY) WHERE a.id = 1"),
                "1",
                "{ty}"
            );
        }
    }
}

#[tokio::test]
async fn a_value_that_is_written_in_another_way_is_the_same() {
    let cases = [
        ("VARCHAR(20)", "'007'", "INT", "CAST(v AS SIGNED)", "CAST(w AS CHAR)"),
        ("DATETIME(6)", "'2024-01-01 00:00:00.4'", "DATETIME", "v", "w"),
        ("DECIMAL(10,4)", "1.5", "DECIMAL(10,1)", "v", "w"),
        ("VARCHAR(9) CHARACTER SET latin1", "'é'", "VARCHAR(9) CHARACTER SET utf8mb4", "v", "w"),
        ("TEXT", "'{ \"b\": 1,\"a\":2}'", "JSON", "v", "w"),
        ("TIMESTAMP", "'2024-07-01 12:00:00'", "DATETIME", "v", "w"),
        ("INT", "5", "FLOAT", "v / 3", "ROUND(w * 3)"),
    ];
    for server in shared() {
        for (old, value, new, forward, reverse) in cases {
            let setup =
                format!("CREATE TABLE t (id INT PRIMARY KEY, v {old} NULL) DEFAULT CHARSET utf8mb4; INSERT INTO t VALUES (1, {value}), (2, NULL)");
            let w = World::new(server, &setup, new, &format!("forward = \"{forward}\"\nreverse = \"{reverse}\"")).await;
            assert_eq!(w.fill(&w.all().await, Fill::Pending).await.unwrap(), 1, "{old} {new}");
            assert_eq!(w.divergent().await, (0, Vec::new()), "{old} {new}");
        }
    }
}

#[tokio::test]
async fn the_server_says_how_it_feels() {
    use mysql_async::prelude::Queryable;
    // Of the whole server: others have to be quiet.
    for kind in available() {
        let server = Server::start(&kind, &[]);
        let mut w = World::new(
            &server,
            "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1), (2, 2)",
            "bigint",
            "[throttle]\nquery = \"SELECT 1 > 0\"\nreplicas = [\"env:SETE_TEST_NO_REPLICA\"]",
        )
        .await;
        let before = w.engine.pressure(&w.plan, &w.r).await.unwrap();
        assert_eq!((before.waiting, before.query), (0, Some(true)));
        // A replica that can't be asked has an unknown lag, which is not none.
        assert_eq!(before.lag.get("env:SETE_TEST_NO_REPLICA"), Some(&None));
        w.sql("INSERT INTO t (id, v) SELECT a.id * 10 + b.id + 10, 1 FROM t a, t b");
        // MySQL counts what was logged every ten milliseconds only.
        while w.engine.pressure(&w.plan, &w.r).await.unwrap().wal_bytes == before.wal_bytes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        w.plan.throttle.query = Some("SELECT NULL".into());
        assert_eq!(w.engine.pressure(&w.plan, &w.r).await.unwrap().query, Some(false));
        // Who runs a statement now counts as active. So many that other tests don't make them up.
        let url = server.url(&w.db);
        let sleep = || async { mysql_async::Conn::from_url(&url).await?.query_drop("SELECT SLEEP(60)").await };
        let sleeping = futures_util::future::try_join_all((0..20).map(|_| sleep()));
        let seen = async {
            while w.engine.pressure(&w.plan, &w.r).await.unwrap().active < 20 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            slept = sleeping => panic!("twenty sessions slept, and were not seen: {slept:?}"),
            () = seen => {}
        }
    }
}
