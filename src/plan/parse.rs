//! Text to [`Plan`], or all its problems at once. Each function here is one section of the file, in the file's order.

use std::time::Duration;

use toml::de::DeTable;

use super::fault::{Fault, Notes};
use super::section::Section;
use super::value::{self, count, one_of, rate};
use super::{
    Backfill, Change, Ddl, DefaultPart, Drop, DropRebuild, DualWrite, DualWriteMode, EngineKind, Kind, OnBadRow, Plan, Problem, ReadSwitch,
    StopWrites, Structure, SwitchMode, Throttle, UserTriggers, Validate, WalkChoice,
};
use super::{duration, names, password, unknown};

/// Reads and checks a plan file's text.
pub fn parse(text: &str) -> Result<Plan, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let notes = Notes::default();
    for error in &errors {
        let message = error.message().trim();
        let help = if is_duplicate(message) { "a key or section can be given once; keep one of them" } else { "this is not valid TOML" };
        notes.add(error.span().unwrap_or(0..0), Fault::new(message, help));
    }
    // With a key given twice the rest still is what the author wrote. After any other mistake of TOML it may not be: don't guess.
    if !errors.iter().all(|error| is_duplicate(error.message())) {
        return Err(notes.finish());
    }
    let table = document.get_ref();
    password::report(table, &notes);
    let plan = plan(&mut Section::top(table, &notes));
    unknown::report(table, &notes);
    match (plan, notes.finish()) {
        (Some(plan), problems) if problems.is_empty() => Ok(plan),
        (_, problems) => Err(problems),
    }
}

/// Every section and key that a plan may hold ("" is the top of the file), those that come later included.
pub fn keys() -> Vec<(&'static str, &'static str)> {
    let (empty, notes) = (DeTable::default(), Notes::default());
    plan(&mut Section::top(&empty, &notes));
    notes.keys()
}

fn is_duplicate(message: &str) -> bool {
    message.starts_with("duplicate key")
}

/// Every section is read, whatever is wrong with the others.
fn plan(top: &mut Section) -> Option<Plan> {
    let id = top.required("id", names::id);
    let engine = top.required("engine", |v| one_of(v, &[("postgres", EngineKind::Postgres), ("mysql", EngineKind::Mysql)]));
    let database = top.optional("database", names::env);
    let change = change(&mut top.open_required("change"));
    let ddl = ddl(&mut top.open("ddl"));
    let dual_write = dual_write(&mut top.open("dual_write"));
    let backfill = backfill(&mut top.open("backfill"), engine);
    let throttle = throttle(&mut top.open("throttle"), engine);
    let validate = validate(&mut top.open("validate"));
    let structure = structure(&mut top.open("structure"), engine);
    let read_switch = read_switch(&mut top.open("read_switch"), change.as_ref(), dual_write.mode);
    let stop_writes = stop_writes(&mut top.open("stop_writes"));
    let drop = drop(&mut top.open("drop"), engine);
    top.not_yet("fleet");
    let (id, engine, change) = (id?, engine?, change?);
    Some(Plan { id, engine, database, change, ddl, dual_write, backfill, throttle, validate, structure, read_switch, stop_writes, drop })
}

fn change(s: &mut Section) -> Option<Change> {
    let later = [("split", None), ("merge", None), ("normalize", None), ("drop", None)];
    let kinds = [[("type", Some(Kind::Type)), ("rename", Some(Kind::Rename))].as_slice(), &later].concat();
    let kind = s.required("kind", |v| one_of(v, &kinds));
    s.not_yet("into");
    s.not_yet("lookup");
    if let Some(None) = kind {
        // The other keys follow rules of that kind, which are not known here.
        s.know(&["table", "from", "to", "type", "forward", "reverse"]);
        s.check(&["kind"], false, Fault::not_yet("this kind of change"));
        return None;
    }
    let table = s.required("table", names::table);
    let from = s.required("from", names::column);
    let to = s.required("to", names::column);
    let new_type = s.optional("type", names::column_type);
    let forward = s.optional("forward", names::expression);
    let reverse = s.optional("reverse", names::expression);

    let same =
        Fault::new("`change.to` is the same name as `change.from`", "both columns live side by side for a while; give the new one a name of its own");
    s.check(&["to", "from"], from != to, same);
    match kind.flatten() {
        Some(Kind::Type) if !s.has("type") => s.missing("type"),
        Some(Kind::Rename) => {
            for key in ["type", "forward", "reverse"] {
                let help = "a rename copies values as they are; take the key out, or use kind = \"type\"";
                s.check(&[key], !s.has(key), Fault::new(format!("kind \"rename\" takes no `{key}`"), help));
            }
        }
        _ => {}
    }
    Some(Change { kind: kind.flatten()?, table: table?, from: from?, to: to?, new_type, forward, reverse })
}

fn ddl(s: &mut Section) -> Ddl {
    let lock_timeout = s.duration("lock_timeout", secs(2));
    let ddl = Ddl {
        lock_timeout,
        // A default gives way to what is written.
        first_try: s.duration("first_try", ms(100).min(lock_timeout)),
        patience: s.duration("patience", mins(5)),
        max_blocker_age: s.duration("max_blocker_age", secs(5)),
    };
    s.not_zero("lock_timeout", lock_timeout, "zero switches the timeout off; write at least \"1ms\"");
    s.not_zero("first_try", ddl.first_try, "zero switches the timeout off; write at least \"1ms\"");
    let fault = Fault::new(
        format!("`ddl.lock_timeout` is longer than 1m: {}", duration::show(lock_timeout)),
        "every query that comes while a statement waits for its lock queues behind it, so that the application would stand still; \
         write \"2s\", and raise `patience` to try for longer",
    );
    s.check(&["lock_timeout"], lock_timeout <= mins(1), fault);
    let than_lock_timeout = |what, value, help| {
        let (value, limit) = (duration::show(value), duration::show(lock_timeout));
        Fault::new(format!("`ddl.{what} than `ddl.lock_timeout`: {value} against {limit}"), help)
    };
    let fault = than_lock_timeout("first_try` is longer", ddl.first_try, "the tries begin short and grow up to `lock_timeout`");
    s.check(&["first_try", "lock_timeout"], ddl.first_try <= lock_timeout, fault);
    let fault = than_lock_timeout("patience` is shorter", ddl.patience, "`patience` is the time for all tries together");
    s.check(&["patience", "lock_timeout"], ddl.patience >= lock_timeout, fault);
    ddl
}

fn dual_write(s: &mut Section) -> DualWrite {
    let dual_write = DualWrite {
        mode: s.one_of("mode", [("trigger", DualWriteMode::Trigger), ("app", DualWriteMode::App)]),
        quiet_for: s.duration("quiet_for", mins(10)),
        min_writes: s.count("min_writes", 100, 0..=u32::MAX).into(),
    };
    s.not_zero("quiet_for", dual_write.quiet_for, "without a wait, the stage would be done right after a write that left the columns apart");
    dual_write
}

fn backfill(s: &mut Section, engine: Option<EngineKind>) -> Backfill {
    // By key every row of a batch is written at once and stays locked; the striped walk is held to smaller steps by its pages.
    let target = if engine == Some(EngineKind::Mysql) { ms(25) } else { ms(100) };
    let backfill = Backfill {
        walk: s.one_of("walk", [("auto", WalkChoice::Auto), ("key", WalkChoice::Key), ("physical", WalkChoice::Physical)]),
        batch_rows: s.count("batch_rows", 1000, 1..=100_000),
        batch_target: s.duration("batch_target", target),
        workers: s.count("workers", 1, 1..=64),
        max_rows_per_s: s.optional("max_rows_per_s", |v| count(v, 1..=u32::MAX)),
        pause: s.duration("pause", Duration::ZERO),
        on_bad_row: s.one_of("on_bad_row", [("stop", OnBadRow::Stop), ("set_aside", OnBadRow::SetAside)]),
        user_triggers: s
            .one_of("user_triggers", [("refuse", UserTriggers::Refuse), ("fire", UserTriggers::Fire), ("suppress", UserTriggers::Suppress)]),
        wait_for_horizon: s.duration("wait_for_horizon", Duration::ZERO),
    };
    s.not_zero("batch_target", backfill.batch_target, "no batch can be that fast; write \"100ms\" or so");
    let fault = Fault::new(
        format!("`backfill.batch_target` is longer than 10s: {}", duration::show(backfill.batch_target)),
        "a batch holds the locks of its rows for that long, and the application waits for them; write \"100ms\" or so",
    );
    s.check(&["batch_target"], backfill.batch_target <= secs(10), fault);
    let fault = Fault::new(
        format!("`backfill.pause` is longer than 1h: {}", duration::show(backfill.pause)),
        "it is waited after every batch; to hold a backfill, use `sete pause`",
    );
    s.check(&["pause"], backfill.pause <= mins(60), fault);
    backfill
}

fn throttle(s: &mut Section, engine: Option<EngineKind>) -> Throttle {
    let time_zone = s.optional("time_zone", value::time_zone);
    let zone = time_zone.clone().unwrap_or_else(|| "UTC".into());
    let throttle = Throttle {
        replicas: s.list("replicas", names::env).unwrap_or_default(),
        max_replica_lag: s.duration("max_replica_lag", secs(5)),
        max_active_sessions: s.optional("max_active_sessions", |v| count(v, 1..=u32::MAX)),
        query: s.optional("query", names::query),
        max_wal_rate: s.optional("max_wal_rate", rate),
        window: s.optional("window", |v| value::window(v, &zone)),
        heartbeat: s.optional("heartbeat", names::table),
        max_history_list: s.optional("max_history_list", |v| count(v, 1..=u32::MAX)),
        max_redo_fill: s.optional("max_redo_fill", value::percent),
    };
    for key in ["heartbeat", "max_history_list", "max_redo_fill"] {
        let fault = Fault::new(format!("`throttle.{key}` is for MySQL and MariaDB"), "PostgreSQL has no such signal; take the key out");
        s.check(&[key], !(engine == Some(EngineKind::Postgres) && s.has(key)), fault);
    }
    let fault = Fault::new("`throttle.heartbeat` says nothing without `throttle.replicas`", "it is read on each replica; name them");
    s.check(&["heartbeat"], throttle.heartbeat.is_none() || s.has("replicas"), fault);
    let fault =
        Fault::new("`throttle.time_zone` says nothing without `throttle.window`", "add the window, like \"22:00-06:00\", or take the zone out");
    s.check(&["time_zone"], time_zone.is_none() || s.has("window"), fault);
    s.not_zero("max_replica_lag", throttle.max_replica_lag, "no replica is ever without any lag; write \"5s\" or so");
    let mut names = throttle.replicas.clone();
    names.sort();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].as_str());
    let fault = Fault::new(format!("`throttle.replicas` names {} twice", twice.unwrap_or_default()), "name each replica once");
    s.check(&["replicas"], twice.is_none(), fault);
    throttle
}

fn validate(s: &mut Section) -> Validate {
    Validate { passes: s.count("passes", 2, 1..=100), apart: s.duration("apart", hours(4)), sample: s.count("sample", 20, 0..=10_000) }
}

fn structure(s: &mut Section, engine: Option<EngineKind>) -> Structure {
    let index = if engine == Some(EngineKind::Mysql) { names::statement } else { names::index_statement };
    Structure {
        index: s.part("index", index),
        not_null: s.part("not_null", names::statement),
        check: s.part("check", names::statement),
        foreign_key: s.part("foreign_key", names::statement),
        default: match s.optional("default", names::expression) {
            Some(expression) if expression != "auto" => DefaultPart::Expression(expression),
            _ => DefaultPart::Auto,
        },
    }
}

fn read_switch(s: &mut Section, change: Option<&Change>, writes: DualWriteMode) -> ReadSwitch {
    let mode = s.one_of("mode", [("app", SwitchMode::App), ("swap", SwitchMode::Swap)]);
    let swap = mode == SwitchMode::Swap;
    let fault = Fault::new(
        "`read_switch.mode` \"swap\" does not go with `dual_write.mode` \"app\"",
        "the application writes both columns by name: after a swap each value would go to the wrong one; use mode = \"app\" here, or the trigger there",
    );
    s.check(&["mode"], !(swap && writes == DualWriteMode::App), fault);
    let rename = change.is_some_and(|change| change.kind == Kind::Rename);
    let fault = Fault::new(
        "`read_switch.mode` \"swap\" does not go with kind \"rename\"",
        "a swap exchanges the names, so that the column would end with its old name; use mode = \"app\"",
    );
    s.check(&["mode"], !(swap && rename), fault);
    ReadSwitch { mode, soak: s.duration("soak", days(1)) }
}

fn stop_writes(s: &mut Section) -> StopWrites {
    let quiet_for = s.duration("quiet_for", days(1));
    s.not_zero("quiet_for", quiet_for, "without a wait, the sync would go while the application may still write the old column");
    StopWrites { quiet_for }
}

fn drop(s: &mut Section, engine: Option<EngineKind>) -> Drop {
    let drop = Drop {
        soak: s.duration("soak", days(3)),
        hide: s.optional("hide", value::duration),
        rebuild: s.one_of("rebuild", [("refuse", DropRebuild::Refuse), ("external", DropRebuild::External)]),
        external: s.optional("external", names::statement),
    };
    let postgres = engine == Some(EngineKind::Postgres);
    let fault = Fault::new("`drop.hide` is for MySQL and MariaDB", "PostgreSQL has no invisible columns; take the key out, or make `soak` longer");
    s.check(&["hide"], !(postgres && drop.hide.is_some()), fault);
    let fault = Fault::new("`drop.rebuild` is for MySQL and MariaDB", "PostgreSQL drops any column in its catalog alone; take the key out");
    s.check(&["rebuild", "external"], !(postgres && (drop.rebuild == DropRebuild::External || drop.external.is_some())), fault);
    let fault = Fault::new(
        "`drop.rebuild` \"external\" and `drop.external` go together",
        "write rebuild = \"external\" and external = \"gh-ost …\", or neither",
    );
    s.check(&["rebuild", "external"], (drop.rebuild == DropRebuild::External) == drop.external.is_some(), fault);
    drop
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn mins(n: u64) -> Duration {
    secs(60 * n)
}

fn hours(n: u64) -> Duration {
    mins(60 * n)
}

fn days(n: u64) -> Duration {
    hours(24 * n)
}
