//! One plan on one table, built by hand, for unit tests.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::change::Mapping;
use crate::ddl;
use crate::engine::catalog::{Column, Expression, Key, Server, Ways};
use crate::engine::{Applied, Catalog, Cost, CostClass, Ddl, Fence, Fill, Probe, Schema, StatementRead, Walk};
use crate::error::{Blocker, Result};
use crate::plan::{self, Plan, TableName};
use crate::resolve::{Conversion, IndexSpec, Names, Resolved};
use crate::stage::Stage;
use crate::state::{Lease, Origin, Pace, PlanState, Progress, Retries, StageState, Status, StrayWriter};

const HOUR: Duration = Duration::from_secs(3600);

/// The time at which every test looks.
pub fn now() -> Timestamp {
    at("2026-01-02T06:00:00Z")
}

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The plan of the documentation, in trigger mode.
pub fn plan() -> Plan {
    let auto = || plan::Part::Auto;
    Plan {
        id: "orders-status".into(),
        engine: plan::EngineKind::Postgres,
        database: Some("SHOP_URL".into()),
        change: change(),
        ddl: plan::Ddl {
            lock_timeout: Duration::from_secs(2),
            first_try: Duration::from_millis(100),
            patience: Duration::from_secs(300),
            max_blocker_age: Duration::from_secs(5),
        },
        dual_write: plan::DualWrite { mode: plan::DualWriteMode::Trigger, quiet_for: Duration::from_secs(600), min_writes: 100 },
        backfill: plan::Backfill {
            walk: plan::WalkChoice::Auto,
            batch_rows: 1000,
            batch_target: Duration::from_millis(100),
            workers: 1,
            max_rows_per_s: None,
            pause: Duration::ZERO,
            on_bad_row: plan::OnBadRow::Stop,
            user_triggers: plan::UserTriggers::Refuse,
            wait_for_horizon: Duration::ZERO,
        },
        throttle: plan::Throttle {
            replicas: Vec::new(),
            max_replica_lag: Duration::from_secs(5),
            max_active_sessions: None,
            query: None,
            max_wal_rate: None,
            window: None,
            heartbeat: None,
            max_history_list: None,
            max_redo_fill: None,
        },
        validate: plan::Validate { passes: 2, apart: 4 * HOUR, sample: 20 },
        structure: plan::Structure { index: auto(), not_null: auto(), check: auto(), foreign_key: auto(), default: plan::DefaultPart::Auto },
        read_switch: plan::ReadSwitch { mode: plan::SwitchMode::App, soak: 24 * HOUR },
        stop_writes: plan::StopWrites { quiet_for: 24 * HOUR },
        drop: plan::Drop { soak: 72 * HOUR, hide: None, rebuild: plan::DropRebuild::Refuse, external: None },
    }
}

fn change() -> plan::Change {
    plan::Change {
        kind: plan::Kind::Type,
        table: "public.orders".into(),
        from: "status".into(),
        to: "status_v2".into(),
        new_type: Some("order_status".into()),
        forward: None,
        reverse: None,
    }
}

/// The plan's state when the first `done` stages are done and no runner is there.
pub fn state(done: usize) -> PlanState {
    let stages = Stage::ALL.into_iter().map(|stage| match stage.number() <= done {
        true => StageState {
            status: Status::Done,
            started_at: Some(at("2026-01-01T00:00:00Z")),
            finished_at: Some(at("2026-01-01T06:00:00Z")),
            ..StageState::pending(stage)
        },
        false => StageState::pending(stage),
    });
    PlanState {
        id: "orders-status".into(),
        text: String::new(),
        fingerprint: String::new(),
        change: change(),
        table: "public.orders".into(),
        origin: Origin {
            table_id: 1,
            old_type: "text".into(),
            new_type: "order_status".into(),
            old_not_null: true,
            old_default: None,
            adopted: false,
        },
        stages: stages.collect(),
        progress: None,
        passes: Vec::new(),
        rejected: 0,
        paused: false,
        lease: None,
    }
}

pub fn lease(alive: bool) -> Option<Lease> {
    Some(Lease { holder: "ops-1 pid 71".into(), until: at("2026-01-02T05:59:40Z"), token: 1, alive })
}

/// Progress that was saved at `time`.
pub fn progress(time: &str) -> Progress {
    Progress {
        walk: Walk::Physical,
        watermark: None,
        sweep: 0,
        refresh: false,
        finished: false,
        done: 120_000,
        total: 400_000,
        filled: 119_000,
        deferred: 0,
        empty: 0,
        retries: Retries::default(),
        at: at(time),
        pace: Pace { workers: 1, rows_per_s: 51_000.4, batch_ms_p50: 2.04, batch_ms_p95: 9.0, eta_s: Some(6), ..Pace::default() },
    }
}

pub fn stray(application: &str, last_at: &str) -> StrayWriter {
    StrayWriter {
        application: application.into(),
        address: "10.0.3.17".into(),
        user: "shop".into(),
        wrote_only: "status".into(),
        count: 412,
        last_at: at(last_at),
    }
}

pub fn resolved() -> Resolved {
    let column = |name: &str, type_name: &str| Column {
        name: name.into(),
        type_name: type_name.into(),
        exact_equality: true,
        not_null: name == "status",
        default: None,
        generated: false,
        identity: false,
        collation: None,
        definition: String::new(),
        on_update: false,
        invisible: false,
    };
    let conversion = |sql: &str, reads: &str| Conversion { sql: sql.into(), reads: vec![reads.into()], safe: false };
    Resolved {
        id: "orders-status".into(),
        table: TableName { schema: Some("public".into()), name: "orders".into() },
        table_id: 1,
        partitioned: false,
        old: column("status", "text"),
        new: column("status_v2", "order_status"),
        swapped: false,
        plan_old: "status".into(),
        plan_new: "status_v2".into(),
        forward: conversion("status::order_status", "status"),
        reverse: conversion("status_v2::text", "status_v2"),
        columns: Vec::new(),
        leaves: Vec::new(),
        partitions: Vec::new(),
        key: Some(Key { name: "orders_pkey".into(), primary: true, columns: vec![("id".into(), "bigint".into())] }),
        walk: Walk::Physical,
        stripes: 16,
        names: Names::of("orders-status"),
        structure: vec![Ddl::BuildIndex(IndexSpec { name: "orders_status_v2_idx".into(), template: String::new() }), Ddl::Analyze],
        rebuilds: Vec::new(),
        default: None,
        sequence: None,
        origin_not_null: true,
        origin_default: None,
        suppress_triggers: false,
        ways: Ways { not_null_by_check: true, ..Ways::default() },
        rows: 400_000,
        bytes: 64 << 20,
    }
}

pub fn catalog() -> Catalog {
    let expression = || Expression { sql: "status".into(), reads: vec!["status".into()], result: Ok("text".into()), assignable: true, safe: false };
    Catalog {
        server: Server {
            version: "postgres 15.18".into(),
            version_number: 150_018,
            database: "shop".into(),
            user: "sete".into(),
            address: "db:5432".into(),
            read_only: None,
            superuser: false,
            can_suppress_triggers: false,
            can_keep_state: true,
            can_walk_physically: true,
            too_old: None,
            untested: false,
            timeouts: Vec::new(),
        },
        table: None,
        new_type: None,
        forward: expression(),
        reverse: expression(),
    }
}

/// A schema that renders every action as its words, and has no server.
pub struct Words;

#[async_trait]
impl Schema for Words {
    async fn catalog(&self, _: &Plan, _: &Mapping, _: Option<&Origin>) -> Result<Catalog> {
        unimplemented!()
    }
    fn render(&self, r: &Resolved, ddl: &Ddl) -> Vec<String> {
        match ddl {
            Ddl::InstallSync { .. } => vec!["CREATE FUNCTION sete.sync()".into(), "CREATE TRIGGER sync;".into()],
            _ => vec![format!("DO '{}'", ddl::action(r, ddl))],
        }
    }
    fn cost(&self, r: &Resolved, ddl: &Ddl) -> Cost {
        let online = matches!(ddl, Ddl::BuildIndex(_));
        let (mode, class) = if online { ("SHARE UPDATE EXCLUSIVE", CostClass::Index) } else { ("ACCESS EXCLUSIVE", CostClass::Catalog) };
        Cost { locks: vec![(r.table.to_string(), mode)], class, online, queues: !online }
    }
    fn render_fill(&self, _: &Resolved, _: Fill) -> String {
        "UPDATE public.orders\nSET status_v2 = status::order_status".into()
    }
    async fn present(&self, _: &Resolved, _: &Ddl) -> Result<bool> {
        unimplemented!()
    }
    async fn blockers(&self, _: &Resolved, _: &Ddl) -> Result<Vec<Blocker>> {
        unimplemented!()
    }
    async fn apply(&self, _: &Resolved, _: &Ddl, _: Duration, _: &Fence) -> Result<Applied> {
        unimplemented!()
    }
    async fn probe_sync(&self, _: &Resolved) -> Result<Probe> {
        unimplemented!()
    }
    async fn probe_insert(&self, _: &Resolved) -> Result<Probe> {
        unimplemented!()
    }
    async fn reads_of_old(&self, _: &Resolved) -> Result<Option<Vec<StatementRead>>> {
        unimplemented!()
    }
}
