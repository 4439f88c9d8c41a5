//! What a plan waits for, in words for whoever is woken by it. Pure.

use jiff::Timestamp;

use super::{State, has_runner, is_interrupted, not_before, silence, state_of};
use crate::plan::{DualWriteMode, Plan, SwitchMode};
use crate::report::figures::{self, span, time};
use crate::stage::Stage;
use crate::state::{PlanState, StageState, Status};

/// What a stage waits for that needs nothing but to be begun.
pub const NEXT_STEP: &str = "the next `sete step`";

/// What has to happen for the plan to go on, in words. None while a runner is at work, and at the end.
pub fn waiting_for(plan: &Plan, state: Option<&PlanState>, now: Timestamp) -> Option<String> {
    let Some(state) = state else { return Some("the first `sete step`".to_string()) };
    let stage = state.current();
    let own = state.stage(stage);
    let said = own.waiting_for.clone();
    match state_of(state, stage) {
        State::Done => None,
        State::Paused if has_runner(state) => Some("`sete resume`; the runner stands by".to_string()),
        State::Paused => Some("`sete resume`, then `sete step`".to_string()),
        State::Pending => Some(begin(plan, state, stage, now)),
        State::Running => running(state, now).or(said),
        State::Blocked | State::Failed if is_interrupted(state, stage) => Some(interrupted(state, own)),
        State::Blocked | State::Failed => Some(said.unwrap_or_else(|| format!("{stage} failed; `sete step` tries again"))),
        State::Waiting if own.status == Status::Failed => Some(NEXT_STEP.to_string()),
        State::Waiting => Some(with_time(said.unwrap_or_else(|| format!("the condition of {stage}")), plan, state, now)),
    }
}

/// What a stage that has not begun needs from people.
fn begin(plan: &Plan, state: &PlanState, stage: Stage, now: Timestamp) -> String {
    let change = &plan.change;
    match stage {
        Stage::DualWrite if plan.dual_write.mode == DualWriteMode::App => "the deploy that writes both columns, then `sete step`".to_string(),
        Stage::ReadSwitch if plan.read_switch.mode == SwitchMode::App => format!("the deploy that reads `{}`, then `sete step`", change.to),
        Stage::StopWrites if plan.read_switch.mode == SwitchMode::App => {
            format!("the deploy that no longer writes `{}`, then `sete step`", change.from)
        }
        Stage::Drop => match not_before(plan, state, now) {
            Some(at) => format!("the soak before the drop, not before {}", time(at)),
            None => "the confirmed drop: `sete step --yes`".to_string(),
        },
        _ => NEXT_STEP.to_string(),
    }
}

fn running(state: &PlanState, now: Timestamp) -> Option<String> {
    let by = (state.current() == Stage::Backfill).then(|| state.progress.as_ref()?.pace.throttled_by.clone()).flatten();
    match (silence(state, now), by) {
        (Some(silent), Some(by)) => Some(format!("{by} to pass; no progress for {}", span(silent.as_secs()))),
        (Some(silent), None) => Some(format!("the backfill, which has made no progress for {}; its runner is alive", span(silent.as_secs()))),
        (None, Some(by)) => Some(format!("{by} to pass")),
        (None, None) => None,
    }
}

fn interrupted(state: &PlanState, own: &StageState) -> String {
    let who = state.lease.as_ref().map_or(String::new(), |l| format!(" {}", l.holder));
    let next = if own.status == Status::Undoing { "run `sete back` to finish going back" } else { "run `sete step` to go on" };
    format!("{} was interrupted: its runner{who} is gone. What it did is saved; {next}", own.stage)
}

/// Adds when the wait ends at the earliest, or who has to look again once that has passed.
fn with_time(said: String, plan: &Plan, state: &PlanState, now: Timestamp) -> String {
    match not_before(plan, state, now) {
        Some(at) => figures::not_before(&said, Some(at)),
        None if has_runner(state) => said,
        None => format!("{said}; `sete step` looks again"),
    }
}
