//! Plans that are right, plans that are wrong, and texts that are no plans.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const GOOD: &str = r#"id = "orders-status"
engine = "postgres"

[change]
kind = "type"
table = "public.orders"
from = "status"
to = "status_v2"
type = "order_status"
"#;

const RENAME: &str = r#"id = "rename"
engine = "postgres"

[change]
kind = "rename"
table = "users"
from = "email"
to = "email_address"
"#;

/// A bad plan: its text, then for each of its mistakes the code, line, column, and words of the message and of the help.
type Case<'a> = (String, &'a [(Code, usize, usize, &'a str, &'a str)]);

fn good_and(more: &str) -> String {
    format!("{GOOD}{more}")
}

fn good_but(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[test]
fn every_mistake_is_named_at_its_place() {
    use Code::{NameTooLong as Long, NotSupported as Later, PlanHasPassword as Secret, PlanInvalid as Bad};
    let long = "x".repeat(64);
    let plans: &[Case] = &[
        // The file as a whole.
        (
            "".into(),
            &[(Bad, 1, 1, "`id` is missing", "id ="), (Bad, 1, 1, "`engine` is missing", "engine ="), (Bad, 1, 1, "[change] is missing", "[change]")],
        ),
        ("id = ".into(), &[(Bad, 1, 6, "", "TOML")]),
        ("id = \"a\nengine = 1".into(), &[(Bad, 1, 8, "basic string", "TOML")]),
        (good_and("[ddl]\nlock_timeout = \"1s\"\nlock_timeout = \"2s\"\n"), &[(Bad, 12, 1, "duplicate key", "once")]),
        (good_and("[ddl]\n[ddl]\n"), &[(Bad, 11, 2, "duplicate key", "once")]),
        (good_but("id =", "ddl = 5\nid ="), &[(Bad, 1, 7, "`ddl` must be a section", "[ddl]")]),
        // Keys.
        (good_and("[ddl]\nlock_timout = \"1s\"\n"), &[(Bad, 11, 1, "unknown key `lock_timout` in [ddl]", "did you mean `lock_timeout`?")]),
        (good_and("[ddl]\nlock-timeout = \"1s\"\n"), &[(Bad, 11, 1, "`lock-timeout` in [ddl]", "did you mean `lock_timeout`?")]),
        (good_and("[drop]\nwhatever = 1\n"), &[(Bad, 11, 1, "`whatever` in [drop]", "`soak`, `hide`, `rebuild`, `external`")]),
        (good_and("[ddl]\nbatch_rows = 1\n"), &[(Bad, 11, 1, "`batch_rows` in [ddl]", "belongs under [backfill]")]),
        (good_and("[backfil]\n"), &[(Bad, 10, 2, "unknown section `backfil`", "did you mean [backfill]?")]),
        (good_but("engine", "engin"), &[(Bad, 1, 1, "`engine` is missing", "engine ="), (Bad, 2, 1, "unknown key `engin`", "`engine`")]),
        (good_but("engine", "zzzz = 1\nengine"), &[(Bad, 2, 1, "unknown key `zzzz`", "the sections are [change], [ddl]")]),
        (good_but("from = \"status\"\n", ""), &[(Bad, 4, 1, "`change.from` is missing", "under [change]")]),
        // Types and units.
        (good_and("[ddl]\nlock_timeout = 2\n"), &[(Bad, 11, 16, "`ddl.lock_timeout` must be a duration, not the number 2", "\"2s\"")]),
        (good_and("[ddl]\nlock_timeout = \"2sec\"\n"), &[(Bad, 11, 16, "not \"2sec\"", "\"250ms\"")]),
        (good_and("[validate]\napart = \"9999d\"\n"), &[(Bad, 11, 9, "not \"9999d\"", "365d")]),
        (
            good_and("[throttle]\nwindow = \"22-06\"\n"),
            &[(Bad, 11, 10, "`throttle.window` must be hours of the day, not \"22-06\"", "\"22:00-06:00\"")],
        ),
        (good_and("[throttle]\ntime_zone = \"Mars\"\n"), &[(Bad, 11, 13, "is no time zone: \"Mars\"", "\"Europe/Berlin\"")]),
        (good_and("[throttle]\ntime_zone = \"UTC\"\n"), &[(Bad, 11, 13, "says nothing without `throttle.window`", "22:00-06:00")]),
        (
            good_and("[validate]\npasses = \"2\"\n"),
            &[(Bad, 11, 10, "`validate.passes` must be a whole number from 1 to 100, not the text", "without quotes")],
        ),
        (good_and("[validate]\npasses = 0\n"), &[(Bad, 11, 10, "not the number 0", "")]),
        (
            good_and("[backfill]\nbatch_rows = 100_001\nmax_rows_per_s = -1\n"),
            &[(Bad, 11, 14, "from 1 to 100000", ""), (Bad, 12, 18, "at least 1", "")],
        ),
        (good_and("[backfill]\nwalk = \"phsical\"\n"), &[(Bad, 11, 8, "one of \"auto\", \"key\", \"physical\"", "did you mean \"physical\"?")]),
        (good_and("[throttle]\nmax_wal_rate = \"50MB\"\n"), &[(Bad, 11, 16, "must be a rate", "MB/s")]),
        (
            good_and("[throttle]\nmax_history_list = 1000\n"),
            &[(Bad, 11, 20, "`throttle.max_history_list` is for MySQL and MariaDB", "take the key out")],
        ),
        (good_and("[throttle]\nmax_redo_fill = \"75%\"\n"), &[(Bad, 11, 17, "is for MySQL and MariaDB", "")]),
        (good_and("[throttle]\nmax_redo_fill = \"100%\"\n"), &[(Bad, 11, 17, "`throttle.max_redo_fill` must be a share, not \"100%\"", "\"75%\"")]),
        (good_and("[throttle]\nmax_redo_fill = 75\n"), &[(Bad, 11, 17, "must be a share, not the number 75", "\"75%\"")]),
        (
            good_but("engine = \"postgres\"", "engine = \"mysql\"") + "[throttle]\nheartbeat = \"percona.heartbeat\"\n",
            &[(Bad, 11, 13, "says nothing without `throttle.replicas`", "name them")],
        ),
        (good_and("[throttle]\nquery = \"UPDATE x SET y = 1\"\n"), &[(Bad, 11, 9, "is not a SELECT", "true")]),
        (good_and("[throttle]\nquery = \" \"\n"), &[(Bad, 11, 9, "`throttle.query` is empty", "")]),
        // Names.
        (good_but("orders-status", "Orders"), &[(Bad, 1, 6, "not a valid id: \"Orders\"", "lower-case")]),
        (good_but("orders-status", &"a".repeat(49)), &[(Bad, 1, 6, "`id` is not a valid id", "48")]),
        (good_but("status_v2", "status"), &[(Bad, 8, 6, "the same name", "of its own")]),
        (good_but("status_v2", &long), &[(Long, 8, 6, "`change.to` is 64 bytes long", "63 bytes")]),
        (good_but("status_v2", "\\u0000"), &[(Bad, 8, 6, "NUL", "")]),
        (good_but("status_v2", "ctid"), &[(Bad, 8, 6, "system column", "")]),
        (good_but("\"status\"", "'\"status\"'"), &[(Bad, 7, 8, "is quoted", "bare name")]),
        (good_but("public.orders", "shop.public.orders"), &[(Bad, 6, 9, "more than two parts", "schema.table")]),
        (good_but("public.orders", &format!("public.{long}")), &[(Long, 6, 9, "64 bytes", "63")]),
        (good_but("order_status", "int NOT NULL"), &[(Bad, 9, 8, "holds `not null`", "[structure]")]),
        (good_but("order_status", "bigserial"), &[(Bad, 9, 8, "is `bigserial`", "\"bigint\"")]),
        // Kinds.
        (good_but("type = \"order_status\"\n", ""), &[(Bad, 4, 1, "`change.type` is missing", "type =")]),
        (good_but("kind = \"type\"", "kind = \"typ\""), &[(Bad, 5, 8, "must be one of \"type\", \"rename\"", "\"type\"")]),
        (
            format!("{RENAME}type = \"text\"\nforward = \"x\"\n"),
            &[(Bad, 9, 8, "takes no `type`", ""), (Bad, 10, 11, "takes no `forward`", "kind = \"type\"")],
        ),
        (format!("{RENAME}[read_switch]\nmode = \"swap\"\n"), &[(Bad, 10, 8, "\"swap\" does not go with kind \"rename\"", "old name")]),
        (
            good_and("forward = \"\"\nreverse = \"a;\"\n"),
            &[(Bad, 10, 11, "`change.forward` is empty", ""), (Bad, 11, 11, "ends with `;`", "expression")],
        ),
        // What later versions do.
        (good_but("kind = \"type\"", "kind = \"split\""), &[(Later, 5, 8, "not supported yet", "this version")]),
        (
            good_and("[[change.into]]\nname = \"a\"\n[change.lookup]\n"),
            &[(Later, 10, 10, "`change.into`", ""), (Later, 12, 9, "`change.lookup`", "")],
        ),
        (good_and("[change.reverse]\nfirst = \"a\"\n"), &[(Later, 10, 1, "kind `merge`", "")]),
        (good_but("\"status\"", "[\"a\", \"b\"]"), &[(Later, 7, 8, "kind `merge`", "")]),
        (good_and("[fleet]\nparallel = 4\n"), &[(Later, 10, 2, "`fleet` is not supported yet", "")]),
        (
            good_and("[drop]\nrebuild = \"external\"\nhide = \"1d\"\n"),
            &[(Bad, 11, 11, "`drop.rebuild` is for MySQL", "in its catalog"), (Bad, 12, 8, "`drop.hide` is for MySQL", "no invisible columns")],
        ),
        // Mixes that can't be.
        (good_and("[ddl]\nlock_timeout = \"2m\"\n"), &[(Bad, 11, 16, "longer than 1m: 2m", "queues behind it")]),
        (good_and("[ddl]\nlock_timeout = \"0s\"\n"), &[(Bad, 11, 16, "`ddl.lock_timeout` is zero", "off")]),
        (good_and("[ddl]\nfirst_try = \"3s\"\n"), &[(Bad, 11, 13, "longer than `ddl.lock_timeout`: 3s against 2s", "begin short")]),
        (good_and("[ddl]\npatience = \"1s\"\n"), &[(Bad, 11, 12, "shorter than `ddl.lock_timeout`: 1s against 2s", "all tries")]),
        (
            good_and("[backfill]\nbatch_target = \"0s\"\npause = \"2h\"\n"),
            &[(Bad, 11, 16, "is zero", ""), (Bad, 12, 9, "longer than 1h", "sete pause")],
        ),
        (good_and("[stop_writes]\nquiet_for = \"0s\"\n"), &[(Bad, 11, 13, "`stop_writes.quiet_for` is zero", "still write")]),
        (
            good_and("[dual_write]\nmode = \"app\"\n[read_switch]\nmode = \"swap\"\n"),
            &[(Bad, 13, 8, "does not go with `dual_write.mode` \"app\"", "both columns")],
        ),
        (good_and("[structure]\nindex = \"none\"\n"), &[(Bad, 11, 9, "must be \"auto\", or a list", "")]),
        (
            good_and("[structure]\nindex = [\"CREATE INDEX ON orders (status_v2)\", \"\"]\n"),
            &[(Bad, 11, 10, "blocks every write", "CONCURRENTLY"), (Bad, 11, 48, "is empty", "")],
        ),
        // Addresses.
        (good_but("[change]", "database = \"DATABASE_URL\"\n[change]"), &[(Bad, 4, 12, "must name an environment variable", "env:DATABASE_URL")]),
        (good_and("[throttle]\nreplicas = [\"env:A\", \"env:1\", \"env:A\"]\n"), &[(Bad, 11, 22, "`throttle.replicas` must name", "env:")]),
        (good_and("[throttle]\nreplicas = [\"env:A\", \"env:A\"]\n"), &[(Bad, 11, 12, "names A twice", "once")]),
        (good_but("[change]", "database = \"postgres://shop:s3cret@db/shop\"\n[change]"), &[(Secret, 4, 12, "`database` holds a password", "env:")]),
        (good_and("[throttle]\nreplicas = [\"host=db password=s3cret\"]\n"), &[(Secret, 11, 13, "`replicas` holds a password", "env:")]),
        (good_and("forward = \"dblink('host=db password=s3cret', status)\"\n"), &[(Secret, 10, 11, "`forward` holds a password", "")]),
        (good_but("[change]", "database = \"postgres://shop:s\\u0033cret@db/shop\"\n[change]"), &[(Secret, 4, 12, "holds a password", "")]),
        (
            good_but("[change]", "password = \"s3cret\"\n[change]"),
            &[(Bad, 4, 1, "unknown key `password`", ""), (Secret, 4, 12, "`password` holds a password", "")],
        ),
    ];
    for (text, expected) in plans {
        let problems = parse(text).expect_err(text);
        assert_eq!(problems.len(), expected.len(), "{text}\n{problems:#?}");
        for (problem, (code, line, column, message, help)) in problems.iter().zip(*expected) {
            assert_eq!((problem.code, problem.position(text)), (*code, (*line, *column)), "{text}\n{problem:?}");
            assert!(problem.message.contains(message), "{message:?} is not in {problem:?}");
            assert!(problem.help.as_deref().is_some_and(|h| h.contains(help)), "{help:?} is not in {problem:?}");
        }
        let shown = render("plan.toml", text, &problems);
        assert!(!shown.contains("3cret"), "{shown}");
        assert!(shown.contains(&format!("plan.toml:{}:{}", expected[0].1, expected[0].2)), "{shown}");
    }
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "id = \"A\"\nengine = \"oracle\"\n[change]\nkind = \"type\"\nfrom = 1\n[ddl]\nlock_timeout = \"0s\"\nfirst_try = 5\n";
    let at: Vec<_> = parse(text).unwrap_err().iter().map(|p| p.position(text)).collect();
    assert_eq!(at, [(1, 6), (2, 10), (3, 1), (3, 1), (3, 1), (5, 8), (7, 16), (8, 13)]);
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let plan = parse(GOOD).unwrap();
    let secs = Duration::from_secs;
    assert_eq!(plan.ddl, Ddl { lock_timeout: secs(2), first_try: Duration::from_millis(100), patience: secs(300), max_blocker_age: secs(5) });
    assert_eq!(plan.dual_write, DualWrite { mode: DualWriteMode::Trigger, quiet_for: secs(600), min_writes: 100 });
    assert_eq!((plan.backfill.batch_rows, plan.backfill.workers, plan.backfill.max_rows_per_s), (1000, 1, None));
    assert_eq!((plan.backfill.batch_target, plan.backfill.pause), (Duration::from_millis(100), Duration::ZERO));
    let throttle = Throttle {
        replicas: vec![],
        max_replica_lag: secs(5),
        max_active_sessions: None,
        query: None,
        max_wal_rate: None,
        window: None,
        heartbeat: None,
        max_history_list: None,
        max_redo_fill: None,
    };
    assert_eq!(plan.throttle, throttle);
    assert_eq!(plan.validate, Validate { passes: 2, apart: secs(4 * 3600), sample: 20 });
    assert_eq!((plan.structure.index, plan.structure.default), (Part::Auto, DefaultPart::Auto));
    assert_eq!(plan.read_switch, ReadSwitch { mode: SwitchMode::App, soak: secs(86_400) });
    assert_eq!((plan.stop_writes.quiet_for, plan.drop.soak), (secs(86_400), secs(3 * 86_400)));
}

#[test]
fn what_is_written_is_read() {
    let more = r#"
[ddl]
lock_timeout = "50ms"
[throttle]
replicas = ["env:REPLICA_URL"]
max_wal_rate = "50MB/s"
query = "SELECT count(*) < 10 FROM pg_stat_activity"
[structure]
index = ["CREATE UNIQUE INDEX CONCURRENTLY ON public.orders (status_v2)"]
check = []
default = "'new'"
"#;
    let plan = parse(&good_and(more)).unwrap();
    // A first try of 100ms, the default, would be longer than what the plan says is the longest.
    assert_eq!(plan.ddl.first_try, Duration::from_millis(50));
    assert_eq!((plan.throttle.replicas, plan.throttle.max_wal_rate), (vec!["REPLICA_URL".to_owned()], Some(50 << 20)));
    assert_eq!((plan.structure.check, plan.structure.default), (Part::Statements(vec![]), DefaultPart::Expression("'new'".into())));
}

#[test]
fn a_stored_plan_reads_back() {
    let plan = parse(GOOD).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    assert!(json.contains(r#""lock_timeout":"2s""#), "{json}");
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
}

#[test]
fn the_plans_that_come_with_sete_are_right() {
    let mut seen = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/plans")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if let Err(problems) = parse(&text) {
            panic!("{}", render(&path.display().to_string(), &text, &problems));
        }
        seen += 1;
    }
    assert!(seen >= 5, "only {seen} plans");
}

fn rendered(text: &str) -> String {
    render("orders.toml", text, &parse(text).unwrap_err())
}

#[test]
fn a_slip_is_shown_with_its_line() {
    insta::assert_snapshot!(rendered(&good_and("\n[ddl]\nlock_timout = \"2s\"   # seconds\n")), @r##"
    error[E002]: unknown key `lock_timout` in [ddl]
      --> orders.toml:12:1
       |
    12 | lock_timout = "2s"   # seconds
       | ^^^^^^^^^^^
       |
       = help: did you mean `lock_timeout`?
    "##);
}

#[test]
fn two_mistakes_are_two_reports() {
    insta::assert_snapshot!(rendered(&good_but("to = \"status_v2\"", "to = \"status\"\nreverse = { a = \"b\" }")), @r##"
    error[E002]: `change.to` is the same name as `change.from`
     --> orders.toml:8:6
      |
    8 | to = "status"
      |      ^^^^^^^^
      |
      = help: both columns live side by side for a while; give the new one a name of its own

    error[E006]: `change.reverse` as a section (kind `merge`) is not supported yet
     --> orders.toml:9:11
      |
    9 | reverse = { a = "b" }
      |           ^^^^^^^^^^^
      |
      = help: this version runs the kinds `type` and `rename` on one PostgreSQL database, with one worker
    "##);
}

#[test]
fn a_password_is_not_shown() {
    insta::assert_snapshot!(rendered(&good_but("[change]", "database = \"postgres://shop:s3cret@db/shop\"\n\n[change]")), @r##"
    error[E003]: `database` holds a password
     --> orders.toml:4:12
      |
    4 | database = "postgres://shop:******@db/shop"
      |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      |
      = help: put the address into an environment variable and name that: `database = "env:DATABASE_URL"`; then change the password
    "##);
}

/// Whatever the text: no panic, and a refusal always says why, at a place that is in the file.
fn survives(text: &str) {
    if let Err(problems) = parse(text) {
        assert!(!problems.is_empty());
        for problem in &problems {
            assert!(text.get(problem.span.clone()).is_some(), "{problem:?}");
        }
        assert!(!render("plan.toml", text, &problems).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_is_too_strange(text in any::<String>()) {
        survives(&text);
    }

    #[test]
    fn no_toml_is_too_strange(text in "([a-z_]{1,9}(\\.[a-z]{1,3})? = (\"[^\"\\\\]{0,9}\"|-?[0-9]{1,25}|\\[\\]|\\{\\}|true|1.5)\n|\\[{1,2}(ddl|change|[a-z.]{1,8})\\]{1,2}\r?\n){0,8}") {
        survives(&text);
    }

    #[test]
    fn no_edit_is_too_strange(at in any::<prop::sample::Index>(), cut in 0..20usize, put in "\\PC{0,6}|[\"'\\[\\]{}=.\n\r\t\0\u{feff}]{0,3}|postgres://a:[^ ]{0,3}@b") {
        let full = include_str!("../../plans/orders_status.toml");
        let mut chars: Vec<char> = full.chars().collect();
        let start = at.index(chars.len());
        let end = (start + cut).min(chars.len());
        chars.splice(start..end, put.chars());
        survives(&chars.into_iter().collect::<String>());
    }
}
