//! What is read from the catalogs of real MySQL and MariaDB servers, what preflight says of it, and each schema action.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use crate::support::mysql::{Server, shared};
use mysql_async::prelude::Queryable;
use sete::change::mapping;
use sete::engine::catalog::{Catalog, Table};
use sete::engine::mysql::MySql;
use sete::engine::{Ddl, Fence, Probe, Schema, Side, Store};
use sete::error::{Code, Error};
use sete::finding::{Finding, Severity};
use sete::plan::{Plan, parse};
use sete::preflight::findings;
use sete::resolve::{Resolved, resolve};
use sete::secret::DbUrl;
use sete::stage::Stage;
use sete::state::Origin;

/// One database with one plan on it.
struct World {
    server: &'static Server,
    db: String,
    engine: MySql,
    plan: Plan,
    origin: Option<Origin>,
}

const FENCE: &str = "fence";

impl World {
    async fn new(server: &'static Server, setup: &str, plan: &str) -> World {
        let (db, url) = server.fresh_db();
        server.sql(&db, setup);
        let url = DbUrl::new(url);
        let engine = MySql::new(&url, "sete test").unwrap();
        engine.prepare().await.unwrap();
        server.sql(&db, &format!("INSERT INTO sete_lease (plan_id, token) VALUES ('{FENCE}', 1)"));
        World { server, db, engine, plan: plan_of(plan), origin: None }
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.db, sql)
    }

    async fn look(&self) -> Catalog {
        self.engine.catalog(&self.plan, &mapping(&self.plan.change), self.origin.as_ref()).await.unwrap_or_else(|e| panic!("{e}"))
    }

    async fn findings(&self) -> Vec<Finding> {
        findings(&self.plan, &self.look().await, self.origin.as_ref())
    }

    async fn resolved(&mut self) -> Resolved {
        let catalog = self.look().await;
        let resolved = resolve(&self.plan, &catalog, self.origin.as_ref()).unwrap_or_else(|e| panic!("{e}"));
        self.origin.get_or_insert(Origin {
            table_id: resolved.table_id,
            old_type: resolved.old.type_name.clone(),
            new_type: resolved.new.type_name.clone(),
            old_not_null: resolved.old.not_null,
            old_default: resolved.old.default.clone(),
            adopted: false,
        });
        resolved
    }

    /// Applies an action that is not there yet, and sees that it is there then.
    async fn apply(&mut self, ddl: Ddl) {
        let r = self.resolved().await;
        assert!(!self.engine.present(&r, &ddl).await.unwrap(), "{ddl:?} is there already");
        self.try_apply(&r, &ddl).await.unwrap_or_else(|e| {
            panic!("{ddl:?} on {}: {e}\n{}", self.server.sql("mysql", "SELECT VERSION()"), self.engine.render(&r, &ddl).join(";\n"))
        });
        let r = self.resolved().await;
        assert!(self.engine.present(&r, &ddl).await.unwrap(), "{ddl:?} is not there\n{}", self.engine.render(&r, &ddl).join(";\n"));
    }

    async fn try_apply(&self, r: &Resolved, ddl: &Ddl) -> Result<(), Error> {
        let fence = Fence { plan: FENCE.to_string(), token: 1 };
        self.engine.apply(r, ddl, Duration::from_secs(1), &fence).await.map(|_| ())
    }
}

/// MySQL plans can't be parsed without a hint yet, or can: either way the same file.
fn plan_of(text: &str) -> Plan {
    parse(&format!("id = \"t-plan\"\nengine = \"mysql\"\n{text}")).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn change(table: &str, from: &str, to: &str, new_type: &str, more: &str) -> String {
    format!("[change]\nkind = \"type\"\ntable = '''{table}'''\nfrom = '''{from}'''\nto = '''{to}'''\ntype = '''{new_type}'''\n{more}")
}

fn table(catalog: &Catalog) -> &Table {
    catalog.table.as_ref().unwrap()
}

const ORDERS: &str = "CREATE TABLE orders (id INT PRIMARY KEY AUTO_INCREMENT, status VARCHAR(20) NOT NULL, n INT, note VARCHAR(40),
    updated_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), KEY by_status (status, n), UNIQUE KEY one (status(5), id)) ENGINE=InnoDB";

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_goes_through_all_its_actions_and_the_triggers_keep_both_columns_equal() {
    for server in shared() {
        let mut w = World::new(server, ORDERS, &change("orders", "status", "state", "enum('new','paid','gone')", "")).await;
        w.sql("INSERT INTO orders (status, n) VALUES ('new', 1), ('bad', 2), ('paid', 3)");
        let found = w.findings().await;
        assert!(found.iter().all(|f| !f.blocks()), "{found:?}");
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallSync { watch: false }).await;
        let r = w.resolved().await;
        assert_eq!(w.engine.probe_sync(&r).await.unwrap(), Probe::Passed);
        assert_eq!(w.sql("SELECT COUNT(*) FROM orders WHERE state IS NOT NULL"), "0", "the probe was taken back");
        // Old code, new code, both, neither; and a value that does not convert.
        w.sql("INSERT INTO orders (status) VALUES ('paid'); INSERT INTO orders (status) SELECT 'gone'; INSERT INTO orders (state) VALUES ('gone'); INSERT INTO orders (status, state) VALUES ('new', 'paid')");
        w.sql("INSERT INTO orders (status) VALUES ('HAPPY ')");
        assert_eq!(
            w.sql("SELECT status, state FROM orders WHERE id > 3 ORDER BY id"),
            "paid\tpaid\ngone\tgone\ngone\tgone\npaid\tpaid\nHAPPY \tNULL"
        );
        w.sql("UPDATE orders SET status = 'gone' WHERE id = 4; UPDATE orders SET state = 'new' WHERE id = 5; UPDATE orders SET note = 'x' WHERE id = 1; UPDATE orders SET status = 'oops' WHERE id = 6");
        assert_eq!(
            w.sql("SELECT id, status, state FROM orders WHERE id IN (1, 4, 5, 6) ORDER BY id"),
            "1\tnew\tnew\n4\tgone\tgone\n5\tnew\tnew\n6\toops\tNULL"
        );
        // Our own session is left alone.
        w.sql(&format!("SET @sete_by = '{}'; UPDATE orders SET state = NULL WHERE id = 1", r.names.marker));
        assert_eq!(w.sql("SELECT state IS NULL FROM orders WHERE id = 1"), "1");
        w.sql("DELETE FROM orders WHERE status NOT IN ('new', 'paid', 'gone'); UPDATE orders SET note = 'y'");
        assert_eq!(w.sql("SELECT COUNT(*) FROM orders WHERE NOT (BINARY status <=> BINARY state)"), "0");
        let r = w.resolved().await;
        assert_eq!(r.structure.len(), 4, "{:?}", r.structure);
        for ddl in r.structure.clone() {
            if ddl != Ddl::Analyze {
                w.apply(ddl).await;
            }
        }
        assert!(w.sql("SHOW CREATE TABLE orders").contains("KEY `by_state` (`state`,`n`)"), "{}", w.sql("SHOW CREATE TABLE orders"));
        // Old code goes on.
        w.sql("INSERT INTO orders (status) VALUES ('paid')");
        w.apply(Ddl::DropNotNull(Side::Old)).await;
        let r = w.resolved().await;
        assert_eq!(w.engine.probe_insert(&r).await.unwrap(), Probe::Passed);
        w.apply(Ddl::InstallSync { watch: true }).await;
        w.sql("INSERT INTO orders (state) VALUES ('gone'); UPDATE orders SET state = 'new' WHERE id = 1");
        assert_eq!(w.sql("SELECT COUNT(*) FROM sete_stray_write"), "0");
        w.sql("INSERT INTO orders (status) VALUES ('gone'); UPDATE orders SET status = 'paid' WHERE id = 1");
        assert_eq!(
            w.sql("SELECT plan_id, usr, wrote_only, application <> '' FROM sete_stray_write"),
            "t-plan\troot\tstatus\t1\nt-plan\troot\tstatus\t1"
        );
        assert_eq!(w.sql("SELECT status, state FROM orders WHERE id = 1"), "paid\tpaid");
        w.apply(Ddl::DropSync).await;
        w.sql("INSERT INTO orders (state) VALUES ('gone')");
        // The way back: what was left out is filled in first.
        w.sql("UPDATE orders SET status = state WHERE status IS NULL");
        w.apply(Ddl::SetNotNull(Side::Old)).await;
        w.apply(Ddl::DropNotNull(Side::Old)).await;
        w.apply(Ddl::HideOldColumn).await;
        assert!(!w.sql("SELECT * FROM orders LIMIT 1").contains("paid\tpaid"));
        w.apply(Ddl::ShowOldColumn).await;
        w.apply(Ddl::DropOldColumn).await;
        assert!(!w.sql("SHOW CREATE TABLE orders").contains("`status`"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_exchanges_the_names_and_the_triggers_and_back() {
    for server in shared() {
        let setup = "CREATE TABLE orders (id INT PRIMARY KEY, cents INT NOT NULL DEFAULT 100)";
        let plan = change(
            "orders",
            "cents",
            "euros",
            "decimal(10,2)",
            "forward = \"cents / 100\"\nreverse = \"round(euros * 100)\"\n[read_switch]\nmode = \"swap\"\n",
        );
        let mut w = World::new(server, setup, &plan).await;
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallSync { watch: false }).await;
        w.sql("INSERT INTO orders (id, cents) VALUES (1, 250)");
        let r = w.resolved().await;
        assert_eq!(r.default.as_deref(), Some("'1.00'"));
        w.apply(Ddl::SwapNames { swapped: true }).await;
        let r = w.resolved().await;
        assert!(r.swapped && r.new.name == "cents" && r.old.name == "euros");
        assert_eq!(w.sql("SELECT cents, euros FROM orders"), "2.50\t250");
        w.sql("INSERT INTO orders (id, cents) VALUES (2, 7.25); INSERT INTO orders (id) VALUES (3); UPDATE orders SET euros = 300 WHERE id = 1");
        assert_eq!(w.sql("SELECT id, cents, euros FROM orders"), "1\t3.00\t300\n2\t7.25\t725\n3\t1.00\t100");
        assert!(w.engine.present(&r, &Ddl::InstallSync { watch: false }).await.unwrap());
        w.apply(Ddl::SwapNames { swapped: false }).await;
        w.sql("INSERT INTO orders (id, cents) VALUES (4, 50)");
        assert_eq!(w.sql("SELECT cents, euros FROM orders WHERE id = 4"), "50\t0.50");
        // One who changes a trigger is noticed.
        let r = w.resolved().await;
        assert!(w.engine.present(&r, &Ddl::InstallSync { watch: false }).await.unwrap());
        w.sql(&format!("DROP TRIGGER `{}`", r.names.sync_triggers[0]));
        assert!(!w.engine.present(&r, &Ddl::InstallSync { watch: false }).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_unique_key_a_default_lets_inserts_leave_the_old_column_out() {
    for server in shared() {
        for (ty, new_type, value) in [
            ("INT NOT NULL", "bigint", "7"),
            ("TEXT NOT NULL", "varchar(50)", "'x'"),
            ("ENUM('a','b') NOT NULL COMMENT 'it''s'", "varchar(5)", "'b'"),
            ("DATETIME(3) NOT NULL", "date", "'2026-01-02'"),
        ] {
            let mut w = World::new(
                server,
                &format!("CREATE TABLE t (id INT PRIMARY KEY, v {ty}, KEY k (id, v{}))", if ty.starts_with("TEXT") { "(9)" } else { "" }),
                &change("t", "v", "v2", new_type, ""),
            )
            .await;
            w.sql(&format!("INSERT INTO t VALUES (1, {value})"));
            w.apply(Ddl::AddColumn).await;
            w.sql("UPDATE t SET v2 = v");
            let before = w.sql("SHOW CREATE TABLE t");
            let r = w.resolved().await;
            assert!(r.ways.relaxed.is_some());
            // An ENUM's first member is its default where it has none.
            if !ty.starts_with("ENUM") {
                assert!(matches!(w.engine.probe_insert(&r).await.unwrap(), Probe::Failed(_)), "{ty}");
            }
            w.apply(Ddl::DropNotNull(Side::Old)).await;
            let r = w.resolved().await;
            assert_eq!(w.engine.probe_insert(&r).await.unwrap(), Probe::Passed, "{ty}");
            w.sql("INSERT INTO t (id, v2) VALUES (2, v2)");
            w.apply(Ddl::HideOldColumn).await;
            w.apply(Ddl::ShowOldColumn).await;
            w.apply(Ddl::SetNotNull(Side::Old)).await;
            // The server writes a collation out once it was named.
            let plain = |text: &str| text.split(" CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci").collect::<String>();
            assert_eq!(plain(&w.sql("SHOW CREATE TABLE t")), plain(&before));
            w.apply(Ddl::DropNotNull(Side::Old)).await;
            w.apply(Ddl::DropOldColumn).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observer_tells_one_sided_writes_from_good_ones() {
    for server in shared() {
        let plan = change("orders", "status", "state", "enum('new','paid','gone')", "[dual_write]\nmode = \"app\"\n");
        let mut w = World::new(server, ORDERS, &plan).await;
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallObserver { watch: false }).await;
        w.sql("INSERT INTO orders (status, state) VALUES ('new', 'new'), ('paid', 'paid'); UPDATE orders SET status = 'gone', state = 'gone' WHERE id = 1");
        assert_eq!(w.sql("SELECT COUNT(*) FROM sete_write"), "3");
        w.sql("UPDATE orders SET note = 'neither side' WHERE id = 1");
        assert_eq!(w.sql("SELECT COUNT(*) FROM sete_write"), "3");
        w.sql("INSERT INTO orders (status) VALUES ('new'); UPDATE orders SET state = 'paid' WHERE id = 1; INSERT INTO orders (status, state) VALUES ('new', 'paid')");
        assert_eq!(w.sql("SELECT wrote_only FROM sete_stray_write ORDER BY id"), "status\nstate\nstatus and state, unequal");
        w.apply(Ddl::InstallObserver { watch: true }).await;
        w.sql("UPDATE orders SET status = 'paid' WHERE id = 1");
        assert_eq!(w.sql("SELECT COUNT(*) FROM sete_stray_write"), "4");
        w.apply(Ddl::DropObserver).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_survive_every_action() {
    for server in shared() {
        let setup = "CREATE TABLE `Order``s größe` (`i``d` INT PRIMARY KEY, `user name'` VARCHAR(20) NOT NULL, `{name}` INT DEFAULT 3, KEY `by``x` (`user name'`, `{name}`),
            CONSTRAINT `f'k` FOREIGN KEY (`{name}`) REFERENCES `Order``s größe` (`i``d`))";
        let mut w = World::new(server, setup, &change("\"Order`s größe\"", "user name'", "new`name", "varchar(30)", "")).await;
        w.sql("INSERT INTO `Order``s größe` VALUES (1, 'a\\\\b''c', NULL)");
        assert!(w.findings().await.iter().all(|f| !f.blocks()), "{:?}", w.findings().await);
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallSync { watch: false }).await;
        let r = w.resolved().await;
        assert_eq!(w.engine.probe_sync(&r).await.unwrap(), Probe::Passed);
        w.sql("UPDATE `Order``s größe` SET `{name}` = 1");
        assert_eq!(w.sql("SELECT `user name'` = `new``name` FROM `Order``s größe`"), "1");
        for ddl in r.structure.iter().filter(|ddl| **ddl != Ddl::Analyze) {
            w.apply(ddl.clone()).await;
        }
        w.apply(Ddl::InstallSync { watch: true }).await;
        w.apply(Ddl::DropNotNull(Side::Old)).await;
        w.apply(Ddl::DropSync).await;
        w.apply(Ddl::DropOldColumn).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_is_added_without_a_copy_and_its_rows_are_looked_through() {
    for server in shared() {
        let setup = "CREATE TABLE p (a INT PRIMARY KEY); CREATE TABLE t (id INT PRIMARY KEY, pa INT, CONSTRAINT pa_fk FOREIGN KEY (pa) REFERENCES p (a) ON DELETE CASCADE); INSERT INTO p VALUES (1), (2); INSERT INTO t VALUES (1, 1)";
        let mut w = World::new(server, setup, &change("t", "pa", "pb", "int", "")).await;
        w.apply(Ddl::AddColumn).await;
        w.sql("UPDATE t SET pb = 7");
        let r = w.resolved().await;
        let add = r.structure.iter().find(|d| matches!(d, Ddl::AddConstraint(_))).unwrap().clone();
        let check = r.structure.iter().find(|d| matches!(d, Ddl::ValidateConstraint(_))).unwrap().clone();
        for ddl in r.structure.iter().filter(|d| matches!(d, Ddl::BuildIndex(_))) {
            w.apply(ddl.clone()).await;
        }
        w.apply(add).await;
        assert!(!w.server.client(&w.db, "UPDATE t SET pb = 8").status.success(), "new writes are held to it");
        let r = w.resolved().await;
        let refused = w.try_apply(&r, &check).await.unwrap_err();
        assert!(refused.to_string().contains("1 rows lead nowhere"), "{refused}");
        w.sql("UPDATE t SET pb = pa");
        w.try_apply(&r, &check).await.unwrap();
        w.apply(Ddl::DropOldColumn).await;
    }
}

/// What preflight says of a table, without what it says of every one.
async fn said(server: &'static Server, setup: &str, plan: &str) -> Vec<(Code, Severity, String)> {
    let w = World::new(server, setup, plan).await;
    let always = [Code::InsertSelect];
    w.findings()
        .await
        .into_iter()
        .filter(|f| !always.contains(&f.code))
        .map(|f| (f.code, f.severity, format!("{}: {}", f.subject, f.message)))
        .collect()
}

/// The tables, the plan, and what is to be said of them.
type Case<'a> = (&'a str, &'a str, &'a [(Code, Severity, &'a str)]);

#[tokio::test(flavor = "multi_thread")]
async fn what_would_break_or_block_is_said_before_anything_is_done() {
    let plain = change("t", "v", "w", "bigint", "");
    let cases: &[Case<'_>] = &[
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", &plain, &[]),
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT) ENGINE=MyISAM", &plain, &[(Code::NotInnoDb, Severity::Blocker, "it is in MyISAM")]),
        ("CREATE TABLE t (v INT)", &plain, &[(Code::NoKey, Severity::Blocker, "neither a primary key")]),
        ("CREATE VIEW t AS SELECT 1 AS v", &plain, &[(Code::NotATable, Severity::Blocker, "it is a view")]),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT) ROW_FORMAT=COMPRESSED",
            &plain,
            &[(Code::NotOnline, Severity::Blocker, "COMPRESSED"), (Code::NotOnline, Severity::Later(Stage::Drop), "gh-ost --host='127.0.0.1'")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, x TEXT, FULLTEXT ft (x))",
            &plain,
            &[
                (Code::NotOnline, Severity::Blocker, "FULLTEXT index ft"),
                (Code::NotOnline, Severity::Later(Stage::Drop), "pt-online-schema-change --alter 'DROP COLUMN `v`'"),
            ],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
            &change("t", "id", "id2", "bigint", ""),
            &[
                (Code::KeyColumn, Severity::Blocker, "spirit --host='127.0.0.1'"),
                (Code::GeneratedColumn, Severity::Blocker, "identity"),
                (Code::StructureByHand, Severity::Later(Stage::Validate), "index PRIMARY"),
            ],
        ),
        // Case 2.
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, w BIGINT NOT NULL DEFAULT 0)",
            &plain,
            &[(Code::NewColumnFilled, Severity::Blocker, "it has the default")],
        ),
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", &plain, &[(Code::NewColumnType, Severity::Blocker, "the plan says bigint")]),
        // Case 22.
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, g INT GENERATED ALWAYS AS (v + 1) VIRTUAL, tv INT);
          CREATE VIEW vw AS SELECT id, v FROM t;
          CREATE TABLE other (id INT);
          CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.tv = NEW.v;
          CREATE TRIGGER elsewhere BEFORE INSERT ON other FOR EACH ROW UPDATE t SET v = 1;
          CREATE TRIGGER innocent BEFORE DELETE ON other FOR EACH ROW SET @t = 'v';
          CREATE PROCEDURE p() UPDATE t SET v = v + 1;
          CREATE EVENT ev ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM t WHERE v = 0",
            &plain,
            &[
                (Code::Dependent, Severity::Later(Stage::Drop), "generated column g"),
                (Code::Dependent, Severity::Later(Stage::Drop), "trigger tr: "),
                (Code::Dependent, Severity::Later(Stage::Drop), ".vw: "),
                (Code::Dependent, Severity::Later(Stage::Drop), ".elsewhere: "),
                (Code::Dependent, Severity::Later(Stage::Drop), "stored routine"),
                (Code::Dependent, Severity::Later(Stage::Drop), "event"),
            ],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, CHECK (v > 0))",
            &plain,
            &[(Code::StructureByHand, Severity::Later(Stage::Validate), "a CHECK by a copy")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), x INT)",
            &change("t", "v", "w", "varchar(30)", "forward = \"upper(v\""),
            &[(Code::ExpressionInvalid, Severity::Blocker, "syntax")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), x INT)",
            &change("t", "v", "w", "varchar(30)", "forward = \"max(v)\""),
            &[(Code::ExpressionInvalid, Severity::Blocker, "group function")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), x INT)",
            &change("t", "v", "w", "varchar(30)", "forward = \"concat(v, nosuch)\""),
            &[(Code::ExpressionInvalid, Severity::Blocker, "nosuch")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            &change("t", "v", "w", "integr", ""),
            &[(Code::TypeMissing, Severity::Blocker, "no column can be of this type")],
        ),
        // Case 23.
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT)",
            &change("t", "v", "w", "bigint unsigned", ""),
            &[(Code::LossyReverse, Severity::Warning, "may fail for")],
        ),
        (
            "CREATE TABLE p (id INT PRIMARY KEY); CREATE TABLE t (id INT PRIMARY KEY, v INT, FOREIGN KEY f (v) REFERENCES p (id) ON UPDATE CASCADE)",
            &change("t", "v", "w", "int", ""),
            &[(Code::Cascade, Severity::Blocker, "ON UPDATE CASCADE changes v")],
        ),
        (
            "CREATE TABLE p (id INT PRIMARY KEY); CREATE TABLE t (id INT PRIMARY KEY, v INT, FOREIGN KEY f (v) REFERENCES p (id))",
            &plain,
            &[(Code::StructureByHand, Severity::Later(Stage::Validate), "another type than bigint")],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, u INT); CREATE TRIGGER touch BEFORE UPDATE ON t FOR EACH ROW SET NEW.u = 1",
            &plain,
            &[(Code::UserTrigger, Severity::Blocker, "BEFORE UPDATE")],
        ),
        (
            "CREATE TABLE t (id INT, v INT NOT NULL, PRIMARY KEY (id, v)) PARTITION BY HASH (v) PARTITIONS 2",
            &plain,
            &[
                (Code::KeyColumn, Severity::Blocker, "primary key"),
                (Code::PartitionKey, Severity::Blocker, "(v)"),
                (Code::StructureByHand, Severity::Later(Stage::Validate), "index PRIMARY"),
            ],
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT); CREATE INDEX i ON t (v); CREATE TABLE c (r INT, FOREIGN KEY cf (r) REFERENCES t (v))",
            &plain,
            &[(Code::Dependent, Severity::Later(Stage::Drop), "foreign key")],
        ),
    ];
    for server in shared() {
        // MySQL refuses a foreign key to a column without a unique key by default; that is a setting.
        for (setup, plan, wanted) in cases {
            let setup = if server.is_mariadb() { setup.to_string() } else { format!("SET restrict_fk_on_non_standard_key = 0; {setup}") };
            let said = said(server, &setup, plan).await;
            let lossy = |code: Code| code == Code::LossyReverse && !wanted.iter().any(|w| w.0 == code);
            let said: Vec<_> = said.into_iter().filter(|(code, _, _)| !lossy(*code)).collect();
            let fits = said.len() == wanted.len()
                && wanted.iter().all(|(code, severity, text)| said.iter().any(|s| s.0 == *code && s.1 == *severity && s.2.contains(text)));
            assert!(fits, "{setup}\n{plan}\nwanted {wanted:?}\nsaid {said:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_row_versions_is_read_and_a_refusal_is_an_answer() {
    for server in shared().iter().filter(|s| !s.is_mariadb()) {
        let mut w = World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", &change("t", "v", "w", "bigint", "")).await;
        let r = w.resolved().await;
        w.origin = None;
        let budget = table(&w.look().await).innodb.as_ref().unwrap().row_versions.unwrap();
        assert_eq!(budget.0, 0);
        let alters: String = (0..budget.1).map(|n| format!("ALTER TABLE t ADD COLUMN c{n} INT, ALGORITHM=INSTANT;")).collect();
        w.sql(&alters);
        assert_eq!(table(&w.look().await).innodb.as_ref().unwrap().row_versions, Some((budget.1, budget.1)));
        let found = w.findings().await;
        assert!(found.iter().any(|f| f.code == Code::NotOnline && f.blocks() && f.message.contains("used up")), "{found:?}");
        let refused = w.try_apply(&r, &Ddl::AddColumn).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotOnline, "{refused}");
        assert!(!w.sql("SHOW CREATE TABLE t").contains("`w`"), "nothing was rebuilt in silence");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_reader_is_named_and_not_queued_behind() {
    for server in shared() {
        let mut w = World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", &change("t", "v", "w", "bigint", "")).await;
        w.sql("INSERT INTO t VALUES (1, 1)");
        let r = w.resolved().await;
        let mut reader = mysql_async::Conn::from_url(server.url(&w.db)).await.unwrap();
        reader.query_drop("BEGIN; SELECT * FROM t").await.unwrap();
        let refused = w.try_apply(&r, &Ddl::AddColumn).await.unwrap_err();
        assert_eq!(refused.code(), Code::LockNotGot, "{refused}");
        // Where metadata locks are not recorded, all open transactions are named, those of other tests too.
        let found = w.engine.blockers(&r, &Ddl::AddColumn).await.unwrap();
        let id = i64::from(reader.id());
        let named = found.iter().find(|b| b.pid == id).unwrap_or_else(|| panic!("{id} is not among {found:?}"));
        assert_eq!((named.user.starts_with("root"), named.certain), (true, !server.is_mariadb()), "{named:?}");
        reader.disconnect().await.unwrap();
        w.apply(Ddl::AddColumn).await;
        let left = w.engine.blockers(&r, &Ddl::AddColumn).await.unwrap();
        assert!(left.iter().all(|b| !b.certain && b.pid != id), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn time_zones_and_lenient_modes_of_the_application_change_nothing() {
    for server in shared() {
        // Case 13.
        let mut w =
            World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v TIMESTAMP NULL, s VARCHAR(20))", &change("t", "v", "w", "datetime", "")).await;
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallSync { watch: false }).await;
        w.sql("SET time_zone = '-05:00', sql_mode = ''; INSERT INTO t (id, v) VALUES (1, '2026-01-02 03:04:05'); INSERT INTO t (id, s) VALUES (2, @@time_zone); INSERT INTO t (id, w) VALUES (3, '2026-01-02 08:04:05')");
        assert_eq!(w.sql("SELECT w FROM t WHERE id = 1"), "2026-01-02 08:04:05");
        assert_eq!(w.sql("SELECT s FROM t WHERE id = 2"), "-05:00");
        assert_eq!(w.sql("SET time_zone = '-05:00'; SELECT v FROM t WHERE id = 3"), "2026-01-02 03:04:05");
        let mut w = World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", &change("t", "v", "w", "tinyint", "")).await;
        w.apply(Ddl::AddColumn).await;
        w.apply(Ddl::InstallSync { watch: false }).await;
        w.sql("SET sql_mode = ''; INSERT INTO t (id, v) VALUES (1, '300'), (2, '12abc'), (3, '7'), (4, '1,234'), (5, '')");
        assert_eq!(w.sql("SELECT v, w FROM t ORDER BY id"), "300\tNULL\n12abc\tNULL\n7\t7\n1,234\tNULL\n\tNULL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_too_few_rights_is_told_which() {
    for server in shared() {
        let w = World::new(server, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", &change("t", "v", "w", "bigint", "")).await;
        let user = format!("u{}", w.db);
        w.sql(&format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x'; GRANT SELECT, UPDATE, ALTER, CREATE, DROP, INDEX, CREATE TEMPORARY TABLES ON {}.* TO {user}@'127.0.0.1'", w.db));
        let engine = MySql::new(&DbUrl::new(format!("mysql://{user}:x@127.0.0.1:{}/{}", server.port(), w.db)), "sete test").unwrap();
        let catalog = engine.catalog(&w.plan, &mapping(&w.plan.change), None).await.unwrap();
        let missing: Vec<_> = table(&catalog).missing_rights.iter().map(|m| m.right.as_str()).collect();
        assert_eq!(missing, ["INSERT", "TRIGGER", "LOCK TABLES"]);
    }
}
