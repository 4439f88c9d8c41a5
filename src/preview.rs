//! What `sete plan` says, as data: the seven stages with their exact SQL, or in words when there is no database.

use serde::Serialize;

use crate::ddl;
use crate::engine::{Catalog, CostClass, Ddl, Fill, Schema, Unfit, Walk};
use crate::finding::{Finding, Severity};
use crate::plan::duration::show;
use crate::plan::{DualWriteMode, EngineKind, Kind, Plan, SwitchMode};
use crate::resolve::Resolved;
use crate::stage::Stage;

/// Half of what one connection did in our measurements on rows of 140 bytes with four indexes: real rows are wider.
const PHYSICAL_ROWS_PER_S: u64 = 70_000;
const KEY_ROWS_PER_S: u64 = 40_000;

/// A plan, before anything is done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    pub plan: String,
    pub engine: EngineKind,
    /// For example "the type of `status` changes to order_status, in `status_v2`".
    pub change: String,
    pub table: String,
    pub dual_write: DualWriteMode,
    pub read_switch: SwitchMode,
    /// What only the server knows; absent offline.
    #[serde(flatten)]
    pub live: Option<Live>,
    pub stages: Vec<StagePreview>,
    pub findings: Vec<FindingView>,
    pub blocked: bool,
    /// What --check-data found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Unfit>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Live {
    pub server: String,
    pub database: String,
    pub address: String,
    /// None when the plan could not be resolved.
    pub rows: Option<u64>,
    pub bytes: Option<u64>,
    /// Name and columns of the key.
    pub key: Option<String>,
    pub walk: Option<Walk>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagePreview {
    pub stage: Stage,
    pub does: String,
    pub actions: Vec<ActionPreview>,
    pub backfill: Option<BackfillPreview>,
    pub done_when: String,
    pub undone_by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActionPreview {
    pub action: String,
    pub sql: Vec<String>,
    pub locks: Vec<Lock>,
    pub class: CostClass,
    /// Blocks nobody for as long as it runs.
    pub online: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lock {
    pub relation: String,
    pub mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackfillPreview {
    /// The statement of one batch.
    pub sql: String,
    pub rows: u64,
    pub batches: u64,
    /// Rough: the pacer goes by what it measures.
    pub seconds: u64,
}

/// A finding with what its code says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FindingView {
    #[serde(flatten)]
    pub finding: Finding,
    pub advice: &'static str,
}

impl From<&Finding> for FindingView {
    fn from(finding: &Finding) -> Self {
        FindingView { finding: finding.clone(), advice: finding.code.advice() }
    }
}

/// "blocker", "blocks drop", "warning", "note".
pub fn weight(severity: Severity) -> String {
    match severity {
        Severity::Blocker => "blocker".to_string(),
        Severity::Later(stage) => format!("blocks {stage}"),
        Severity::Warning => "warning".to_string(),
        Severity::Note => "note".to_string(),
    }
}

impl Preview {
    /// The plan file alone.
    pub fn offline(plan: &Plan) -> Preview {
        let stages = Stage::ALL.into_iter().map(|s| stage_in_words(plan, s)).collect();
        Preview {
            plan: plan.id.clone(),
            engine: plan.engine,
            change: change(plan),
            table: plan.change.table.clone(),
            dual_write: plan.dual_write.mode,
            read_switch: plan.read_switch.mode,
            live: None,
            stages,
            findings: Vec::new(),
            blocked: false,
            data: None,
        }
    }

    /// The plan on its server; without a resolved plan, what the findings leave to be said.
    pub fn live(plan: &Plan, catalog: &Catalog, resolved: Option<&Resolved>, findings: &[Finding], schema: &dyn Schema) -> Preview {
        let mut preview = Preview {
            live: Some(Live::new(catalog, resolved)),
            findings: findings.iter().map(FindingView::from).collect(),
            blocked: findings.iter().any(Finding::blocks),
            ..Preview::offline(plan)
        };
        let Some(resolved) = resolved else { return preview };
        preview.table = resolved.table.to_string();
        for stage in &mut preview.stages {
            stage.actions = stage.stage.actions(plan, resolved).iter().map(|ddl| action(resolved, ddl, schema)).collect();
            stage.backfill = (stage.stage == Stage::Backfill).then(|| backfill(plan, resolved, schema));
        }
        preview
    }
}

impl Live {
    fn new(catalog: &Catalog, resolved: Option<&Resolved>) -> Live {
        let server = &catalog.server;
        let key = resolved.and_then(|r| r.key.as_ref()).map(|k| {
            let columns: Vec<String> = k.columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
            format!("{} ({})", k.name, columns.join(", "))
        });
        Live {
            server: server.version.clone(),
            database: server.database.clone(),
            address: server.address.clone(),
            rows: resolved.map(|r| r.rows),
            bytes: resolved.map(|r| r.bytes),
            key,
            walk: resolved.map(|r| r.walk),
        }
    }
}

fn action(resolved: &Resolved, ddl: &Ddl, schema: &dyn Schema) -> ActionPreview {
    let cost = schema.cost(resolved, ddl);
    ActionPreview {
        action: ddl::action(resolved, ddl),
        sql: schema.render(resolved, ddl),
        locks: cost.locks.into_iter().map(|(relation, mode)| Lock { relation, mode }).collect(),
        class: cost.class,
        online: cost.online,
    }
}

fn backfill(plan: &Plan, resolved: &Resolved, schema: &dyn Schema) -> BackfillPreview {
    let rows = resolved.rows;
    let batches = rows.div_ceil(u64::from(plan.backfill.batch_rows).max(1));
    let measured = if resolved.walk == Walk::Physical { PHYSICAL_ROWS_PER_S } else { KEY_ROWS_PER_S };
    let speed = plan.backfill.max_rows_per_s.map_or(measured, |most| measured.min(u64::from(most).max(1)));
    let pauses = plan.backfill.pause.as_secs_f64() * batches as f64;
    BackfillPreview { sql: schema.render_fill(resolved, Fill::Pending), rows, batches, seconds: rows.div_ceil(speed) + pauses.ceil() as u64 }
}

fn change(plan: &Plan) -> String {
    let c = &plan.change;
    match c.kind {
        Kind::Rename => format!("`{}` is renamed to `{}`", c.from, c.to),
        Kind::Type => format!("the type of `{}` changes to {}, in `{}`", c.from, c.new_type.as_deref().unwrap_or("another"), c.to),
    }
}

fn stage_in_words(plan: &Plan, stage: Stage) -> StagePreview {
    let (old, new) = (&plan.change.from, &plan.change.to);
    let trigger = plan.dual_write.mode == DualWriteMode::Trigger;
    let swap = plan.read_switch.mode == SwitchMode::Swap;
    let (does, done_when, undone_by) = match stage {
        Stage::Expand => {
            (format!("adds `{new}`, nullable and without default"), format!("`{new}` exists with the planned type"), "drops the new column")
        }
        Stage::DualWrite if trigger => (
            format!("installs a trigger that keeps `{old}` and `{new}` equal, and proves it by a write that is rolled back"),
            "the probe passed".to_string(),
            "removes the trigger",
        ),
        Stage::DualWrite => (
            "watches that the application writes both columns".to_string(),
            format!("{} writes were seen, and none one-sided for {}", plan.dual_write.min_writes, show(plan.dual_write.quiet_for)),
            "removes the observer",
        ),
        Stage::Backfill => (
            format!("fills `{new}` where it is still NULL, in short batches"),
            "no row is pending and none is rejected".to_string(),
            "keeps what is filled",
        ),
        Stage::Validate => (
            format!("counts rows where the two differ, and gives `{new}` the indexes and constraints of `{old}`"),
            format!("{} passes in a row found no difference, their starts at least {} apart", plan.validate.passes, show(plan.validate.apart)),
            "drops what it built",
        ),
        Stage::ReadSwitch if swap => (
            format!("exchanges the names `{old}` and `{new}` in one short transaction"),
            format!("a soak of {} has passed", show(plan.read_switch.soak)),
            "swaps the names back",
        ),
        Stage::ReadSwitch => (
            format!("records that the deploy that reads `{new}` is out"),
            format!("a soak of {} has passed", show(plan.read_switch.soak)),
            "records the switch back",
        ),
        Stage::StopWrites => (
            "lets the old column be NULL, watches that nobody writes it, then removes what kept the two equal".to_string(),
            format!("nobody wrote the old column for {}", show(plan.stop_writes.quiet_for)),
            "keeps the two equal again, and refills the old column",
        ),
        Stage::Drop => (
            "drops the old column, if nothing depends on it or reads it".to_string(),
            format!("it is confirmed, {} after {} at the earliest", show(plan.drop.soak), Stage::StopWrites),
            "not possible",
        ),
    };
    StagePreview { stage, does, actions: Vec::new(), backfill: None, done_when, undone_by }
}
