//! Gates: which deploy of the application may go out, on evidence. Pure.

use jiff::Timestamp;
use serde::Serialize;

use crate::error::count;
use crate::plan::{DualWriteMode, Plan};
use crate::report::figures::time;
use crate::stage::Stage;
use crate::state::{PlanState, StrayWriter};
use crate::status::{self, State};

/// A deploy of the application, by what is new in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deploy {
    /// Writes both columns.
    WriteBoth,
    /// Reads the new column.
    ReadNew,
    /// Writes the new column only.
    WriteNew,
    /// Not a deploy: the old column may go.
    Drop,
}

impl Deploy {
    pub const ALL: [Deploy; 4] = [Deploy::WriteBoth, Deploy::ReadNew, Deploy::WriteNew, Deploy::Drop];

    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Deploy::WriteBoth => "write-both",
            Deploy::ReadNew => "read-new",
            Deploy::WriteNew => "write-new",
            Deploy::Drop => "drop",
        }
    }

    pub fn from_name(name: &str) -> Option<Deploy> {
        Deploy::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The stage that has to be done.
    fn needs(self, plan: &Plan) -> Stage {
        match self {
            Deploy::WriteBoth if plan.dual_write.mode == DualWriteMode::Trigger => Stage::DualWrite,
            Deploy::WriteBoth => Stage::Expand,
            Deploy::ReadNew => Stage::Validate,
            Deploy::WriteNew => Stage::ReadSwitch,
            Deploy::Drop => Stage::StopWrites,
        }
    }
}

/// `sete gate --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateReport {
    pub plan: String,
    #[serde(rename = "for")]
    pub deploy: Deploy,
    pub open: bool,
    pub reason: String,
    pub in_the_way: Vec<StrayWriter>,
    pub not_before: Option<Timestamp>,
}

/// Whether `deploy` may go out now, and if not, why.
pub fn evaluate(plan: &Plan, state: Option<&PlanState>, strays: &[StrayWriter], now: Timestamp, deploy: Deploy) -> GateReport {
    let closed = why_closed(plan, state, now, deploy);
    let open = closed.is_none();
    GateReport {
        plan: plan.id.clone(),
        deploy,
        open,
        reason: closed.unwrap_or_else(|| why_open(plan, state, deploy)),
        in_the_way: state.filter(|_| !open).map_or(Vec::new(), |s| status::in_the_way(plan, s, strays, now)),
        not_before: state.filter(|_| !open).and_then(|s| status::not_before(plan, s, now)),
    }
}

/// All four, as `sete status` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Gates {
    pub write_both: bool,
    pub read_new: bool,
    pub write_new: bool,
    pub drop: bool,
}

impl Gates {
    pub fn is_open(&self, deploy: Deploy) -> bool {
        match deploy {
            Deploy::WriteBoth => self.write_both,
            Deploy::ReadNew => self.read_new,
            Deploy::WriteNew => self.write_new,
            Deploy::Drop => self.drop,
        }
    }
}

pub fn gates(plan: &Plan, state: Option<&PlanState>, now: Timestamp) -> Gates {
    let open = |deploy| why_closed(plan, state, now, deploy).is_none();
    Gates { write_both: open(Deploy::WriteBoth), read_new: open(Deploy::ReadNew), write_new: open(Deploy::WriteNew), drop: open(Deploy::Drop) }
}

fn why_closed(plan: &Plan, state: Option<&PlanState>, now: Timestamp, deploy: Deploy) -> Option<String> {
    let needs = deploy.needs(plan);
    let Some(state) = state else { return Some(with_mode(plan, deploy, format!("{needs} is not done: the plan has not begun"))) };
    if !state.done(needs) {
        let stands = standing(plan, state, now);
        let reason = if state.current() == needs { stands } else { format!("{needs} is not done: {stands}") };
        return Some(with_mode(plan, deploy, reason));
    }
    match deploy {
        Deploy::ReadNew if state.rejected > 0 => {
            let left = usize::try_from(state.rejected).unwrap_or(usize::MAX);
            Some(format!("{} left: `sete rejects` lists them", count(left, "rejected row")))
        }
        Deploy::Drop if !state.done(Stage::Drop) => {
            let from = status::drop_from(plan, state).filter(|at| *at > now)?;
            Some(format!("the soak after {needs} is not over, not before {}", time(from)))
        }
        _ => None,
    }
}

/// How the current stage is, and what it waits for.
fn standing(plan: &Plan, state: &PlanState, now: Timestamp) -> String {
    let at = state.current();
    let is = status::state_of(state, at);
    match (status::waiting_for(plan, Some(state), now), is) {
        (None, _) => format!("{at} is {}", is.name()),
        (Some(why), State::Failed | State::Blocked) => format!("{at} {}, {why}", if is == State::Failed { "failed" } else { "is blocked" }),
        (Some(what), _) => format!("{at} is {} and waits for {what}", is.name()),
    }
}

fn why_open(plan: &Plan, state: Option<&PlanState>, deploy: Deploy) -> String {
    if deploy == Deploy::Drop && state.is_some_and(|s| s.done(Stage::Drop)) {
        return "the old column is gone".to_string();
    }
    with_mode(plan, deploy, format!("{} is done", deploy.needs(plan)))
}

/// In trigger mode nobody has to deploy for both columns to be written.
fn with_mode(plan: &Plan, deploy: Deploy, reason: String) -> String {
    let needless = deploy == Deploy::WriteBoth && plan.dual_write.mode == DualWriteMode::Trigger;
    if needless { format!("this deploy is not needed, the sync trigger writes both columns; {reason}") } else { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, lease, now, plan, state, stray};
    use crate::state::Status;

    fn open_after(plan: &Plan, deploy: Deploy, now: Timestamp) -> usize {
        let opens = |done: &usize| evaluate(plan, Some(&state(*done)), &[], now, deploy).open;
        let first = (0..=7).find(opens).unwrap();
        assert!((first..=7).all(|done| opens(&done)), "{deploy:?} closes again");
        first
    }

    #[test]
    fn each_gate_opens_with_its_stage() {
        let (trigger, mut app) = (plan(), plan());
        app.dual_write.mode = DualWriteMode::App;
        let soaked = at("2026-01-04T06:00:00Z");
        for (plan, write_both) in [(&trigger, 2), (&app, 1)] {
            let expected = [(Deploy::WriteBoth, write_both), (Deploy::ReadNew, 4), (Deploy::WriteNew, 5), (Deploy::Drop, 6)];
            for (deploy, stage) in expected {
                assert_eq!(open_after(plan, deploy, soaked), stage, "{deploy:?}");
                assert!(!evaluate(plan, None, &[], soaked, deploy).open);
            }
        }
    }

    #[test]
    fn the_drop_waits_for_its_soak() {
        let gate = evaluate(&plan(), Some(&state(6)), &[], now(), Deploy::Drop);
        assert_eq!((gate.open, gate.not_before), (false, Some(at("2026-01-04T06:00:00Z"))));
        assert_eq!(gate.reason, "the soak after stop_writes is not over, not before 2026-01-04T06:00:00Z");
        assert_eq!(evaluate(&plan(), Some(&state(7)), &[], now(), Deploy::Drop).reason, "the old column is gone");
    }

    #[test]
    fn a_closed_gate_names_the_writers() {
        let strays = [stray("web-3", "2026-01-02T05:59:00Z")];
        assert_eq!(evaluate(&plan(), Some(&state(5)), &strays, now(), Deploy::Drop).in_the_way.len(), 1);
        assert!(evaluate(&plan(), Some(&state(5)), &strays, now(), Deploy::WriteNew).in_the_way.is_empty());
    }

    #[test]
    fn a_closed_gate_says_how_its_stage_is() {
        let mut s = state(2);
        s.stages[2].status = Status::Running;
        s.lease = lease(true);
        assert_eq!(evaluate(&plan(), Some(&s), &[], now(), Deploy::ReadNew).reason, "validate is not done: backfill is running");
        s.stages[2].status = Status::Failed;
        s.stages[2].waiting_for = Some("row 17 doesn't convert".into());
        assert_eq!(evaluate(&plan(), Some(&s), &[], now(), Deploy::ReadNew).reason, "validate is not done: backfill failed, row 17 doesn't convert");
    }

    #[test]
    fn rejected_rows_keep_readers_out() {
        let mut s = state(4);
        s.rejected = 1;
        let gate = evaluate(&plan(), Some(&s), &[], now(), Deploy::ReadNew);
        assert_eq!((gate.open, gate.reason.as_str()), (false, "1 rejected row left: `sete rejects` lists them"));
    }

    #[test]
    fn trigger_mode_says_that_nobody_has_to_deploy() {
        let gate = evaluate(&plan(), Some(&state(1)), &[], now(), Deploy::WriteBoth);
        insta::assert_snapshot!(serde_json::to_string_pretty(&gate).unwrap());
    }
}
