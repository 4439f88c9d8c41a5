use super::*;
use crate::fixture::{at, lease, now, plan, progress, state, stray};
use crate::plan::{DualWriteMode, ReadSwitch, SwitchMode};
use crate::state::Pass;

/// The state in which `stage` is current and has `status`.
fn in_stage(stage: Stage, status: Status) -> PlanState {
    let mut s = state(stage as usize);
    s.stages[stage as usize].status = status;
    s.stages[stage as usize].started_at = Some(at("2026-01-02T05:00:00Z"));
    s
}

fn report_on(s: &PlanState) -> StatusReport {
    report(&plan(), Some(s), &[], now())
}

fn words(s: &PlanState) -> String {
    report_on(s).waiting_for.unwrap()
}

fn pass(started_at: &str, divergent: u64) -> Pass {
    Pass { started_at: at(started_at), finished_at: now(), rows: 400_000, divergent, repaired: 0, sample: vec![] }
}

#[test]
fn the_json_is_the_contract() {
    let mut s = in_stage(Stage::Backfill, Status::Running);
    s.lease = lease(true);
    s.progress = Some(progress("2026-01-02T05:59:59Z"));
    let json = serde_json::to_string_pretty(&report(&plan(), Some(&s), &[stray("web-3", "2026-01-02T05:59:00Z")], now())).unwrap();
    insta::assert_snapshot!(json);
}

#[test]
fn a_plan_that_never_ran_is_all_pending() {
    let r = report(&plan(), None, &[], now());
    assert!(r.stages.iter().all(|s| s.state == State::Pending) && r.stages.len() == 7);
    assert_eq!((r.stage, r.state, r.table.as_str()), (Stage::Expand, State::Pending, "public.orders"));
    assert_eq!((r.backfill, r.validate), (None, None));
}

#[test]
fn running_needs_a_runner() {
    let mut s = in_stage(Stage::Backfill, Status::Running);
    s.lease = lease(true);
    assert_eq!(report_on(&s).state, State::Running);
    s.lease = lease(false);
    let r = report_on(&s);
    assert_eq!((r.state, &r.stages[2].detail["interrupted"]), (State::Failed, &Value::Bool(true)));
    assert_eq!(r.waiting_for.unwrap(), "backfill was interrupted: its runner ops-1 pid 71 is gone. What it did is saved; run `sete step` to go on");
    s.stages[2].status = Status::Undoing;
    assert!(words(&s).ends_with("run `sete back` to finish going back"));
}

#[test]
fn a_minute_without_progress_is_a_stall_only_while_it_runs() {
    let mut s = in_stage(Stage::Backfill, Status::Running);
    s.lease = lease(true);
    s.progress = Some(progress("2026-01-02T05:58:25Z"));
    let backfill = report_on(&s).backfill.unwrap();
    assert_eq!((backfill.stalled, backfill.eta_s), (true, None));
    assert_eq!(words(&s), "the backfill, which has made no progress for 1 min 35 s; its runner is alive");
    s.progress.as_mut().unwrap().pace.throttled_by = Some("replica lag".into());
    assert_eq!(words(&s), "replica lag to pass; no progress for 1 min 35 s");
    s.stages[2].started_at = Some(at("2026-01-02T05:59:30Z"));
    let backfill = report_on(&s).backfill.unwrap();
    assert_eq!((backfill.stalled, backfill.eta_s), (false, Some(6)), "the run has only begun");
    s.stages[2].started_at = None;
    s.lease = lease(false);
    let backfill = report_on(&s).backfill.unwrap();
    assert_eq!((backfill.stalled, backfill.eta_s), (false, None));
}

#[test]
fn a_pause_says_how_it_ends() {
    let mut s = in_stage(Stage::Backfill, Status::Running);
    (s.paused, s.lease) = (true, lease(true));
    assert_eq!((report_on(&s).state, words(&s).as_str()), (State::Paused, "`sete resume`; the runner stands by"));
    s.lease = None;
    assert_eq!((report_on(&s).state, words(&s).as_str()), (State::Paused, "`sete resume`, then `sete step`"));
    s.stages[2].status = Status::Failed;
    assert_eq!(report_on(&s).state, State::Failed, "a failure matters more");
}

#[test]
fn a_wait_names_its_end() {
    let mut s = in_stage(Stage::Validate, Status::Waiting);
    s.stages[3].waiting_for = Some("a second zero pass".into());
    s.passes = vec![pass("2026-01-02T05:00:00Z", 3), pass("2026-01-02T05:30:00Z", 0)];
    let v = report_on(&s).validate.unwrap();
    assert_eq!((v.passes, v.needed, v.last_divergent, v.next_pass_at), (1, 2, Some(0), Some(at("2026-01-02T09:30:00Z"))));
    assert_eq!(words(&s), "a second zero pass, not before 2026-01-02T09:30:00Z");
    s.passes = vec![pass("2026-01-01T05:30:00Z", 0)];
    assert_eq!(words(&s), "a second zero pass; `sete step` looks again");
    s.lease = lease(true);
    assert_eq!(words(&s), "a second zero pass");
    s.passes = vec![pass("2026-01-02T05:30:00Z", 2)];
    assert_eq!(report_on(&s).validate.unwrap().next_pass_at, None);
}

#[test]
fn a_failure_of_preflight_is_blocked_and_any_other_failed() {
    let mut s = in_stage(Stage::Drop, Status::Failed);
    for (why, is) in [("E124: view public.v reads it", State::Blocked), ("E401: no lock", State::Failed), ("no code", State::Failed)] {
        s.stages[6].waiting_for = Some(why.into());
        assert_eq!((report_on(&s).state, words(&s).as_str()), (is, why));
    }
}

#[test]
fn a_step_that_met_a_pause_is_no_failure() {
    let mut s = in_stage(Stage::Backfill, Status::Failed);
    s.stages[2].waiting_for = Some("E303: plan orders-status is paused".into());
    s.paused = true;
    assert_eq!((report_on(&s).state, words(&s).as_str()), (State::Paused, "`sete resume`, then `sete step`"));
    s.paused = false;
    assert_eq!((report_on(&s).state, words(&s).as_str()), (State::Waiting, "the next `sete step`"));
}

#[test]
fn each_pending_stage_says_what_people_have_to_do() {
    let (mut app, swap) = (plan(), Plan { read_switch: ReadSwitch { mode: SwitchMode::Swap, ..plan().read_switch }, ..plan() });
    app.dual_write.mode = DualWriteMode::App;
    for (plan, done, says) in [
        (&app, 1, "the deploy that writes both columns, then `sete step`"),
        (&swap, 1, "the next `sete step`"),
        (&app, 4, "the deploy that reads `status_v2`, then `sete step`"),
        (&swap, 4, "the next `sete step`"),
        (&app, 5, "the deploy that no longer writes `status`, then `sete step`"),
        (&app, 6, "the soak before the drop, not before 2026-01-04T06:00:00Z"),
    ] {
        assert_eq!(waiting_for(plan, Some(&state(done)), now()).unwrap(), says);
    }
    assert_eq!(waiting_for(&app, Some(&state(6)), at("2026-02-01T00:00:00Z")).unwrap(), "the confirmed drop: `sete step --yes`");
    assert_eq!(waiting_for(&app, Some(&state(7)), now()), None);
}

#[test]
fn writers_are_in_the_way_where_silence_is_asked_for() {
    let strays = [stray("web-1", "2026-01-02T01:00:00Z"), stray("web-3", "2026-01-02T05:59:00Z")];
    let names = |done| -> Vec<String> { in_the_way(&plan(), &state(done), &strays, now()).into_iter().map(|s| s.application).collect() };
    assert_eq!(names(1), ["web-3", "web-1"]);
    assert_eq!(names(3), ["web-3"], "the other one wrote hours ago");
    assert_eq!(names(5), ["web-3", "web-1"]);
    assert!(names(0).is_empty() && names(6).is_empty());
}
