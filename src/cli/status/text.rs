//! The status as a page for people.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::gate::Deploy;
use crate::report::figures::{ms, number, span, time};
use crate::state::StrayWriter;
use crate::status::{BackfillReport, StageReport, State, StatusReport, ValidateReport};

pub fn page(reports: &[StatusReport]) -> String {
    match reports {
        [] => "no plan has run in this database".to_string(),
        _ => reports.iter().map(plan).collect::<Vec<_>>().join("\n\n"),
    }
}

fn plan(r: &StatusReport) -> String {
    let mut lines = vec![format!("{}  {}  {} {}", r.plan, r.table, r.stage, r.state.name()), table(&r.stages)];
    lines.extend(r.backfill.as_ref().map(backfill));
    lines.extend(r.validate.as_ref().map(validate));
    let open: Vec<&str> = Deploy::ALL.into_iter().filter(|d| r.gates.is_open(*d)).map(Deploy::name).collect();
    lines.push(format!("open gates: {}", if open.is_empty() { "none".to_string() } else { open.join(", ") }));
    for s in &r.in_the_way {
        lines.push(format!("in the way: {} wrote only `{}` {} times, last at {}", writer(s), s.wrote_only, number(s.count), time(s.last_at)));
    }
    lines.extend(r.waiting_for.as_ref().map(|why| match r.state {
        State::Failed | State::Blocked => format!("{}: {why}", r.state.name()),
        _ => format!("waiting for: {why}"),
    }));
    lines.join("\n")
}

/// Who wrote, as far as the server knows.
pub fn writer(s: &StrayWriter) -> String {
    let application = if s.application.is_empty() { "(unnamed)" } else { &s.application };
    format!("{application} at {} as {}", s.address, s.user)
}

fn table(stages: &[StageReport]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["", "stage", "state", "since", "detail"]);
    for stage in stages {
        let since = stage.finished_at.or(stage.started_at).map_or(String::new(), time);
        table.add_row([stage.name.number().to_string(), stage.name.to_string(), stage.state.name().to_string(), since, detail(&stage.detail)]);
    }
    table.trim_fmt()
}

fn detail(detail: &Value) -> String {
    let word = |v: &Value| match v {
        Value::String(text) => text.clone(),
        // A table has no room for a list; JSON has it whole.
        Value::Array(list) => list.len().to_string(),
        other => other.to_string(),
    };
    let pairs = detail.as_object().into_iter().flatten().map(|(k, v)| format!("{k}: {}", word(v)));
    pairs.collect::<Vec<_>>().join(", ")
}

fn backfill(b: &BackfillReport) -> String {
    let mut line = format!(
        "backfill: {} of {} rows, {} filled, {} rows/s, batch p50 {} p95 {}",
        number(b.done),
        number(b.total),
        number(b.filled),
        number(b.rows_per_s),
        ms(b.batch_ms_p50),
        ms(b.batch_ms_p95)
    );
    line += &b.eta_s.map_or(String::new(), |s| format!(", {} left", span(s)));
    line += &b.throttled_by.as_ref().map_or(String::new(), |by| format!(", held back by {by}"));
    if b.rejected > 0 {
        line += &format!(", {} rejected", number(b.rejected));
    }
    if b.stalled {
        line += &format!(", STALLED since {}", time(b.last_progress_at));
    }
    line
}

fn validate(v: &ValidateReport) -> String {
    let mut line = format!("validate: zero passes in a row: {}, needed: {}", v.passes, v.needed);
    line += &v.last_divergent.map_or(String::new(), |n| format!(", the last found {}", number(n)));
    line += &v.next_pass_at.map_or(String::new(), |at| format!(", the next not before {}", time(at)));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at, lease, now, stray};
    use crate::stage::Stage;
    use crate::state::{Pass, Status};
    use crate::status::report;

    #[test]
    fn a_running_backfill() {
        let mut s = fixture::state(2);
        let own = &mut s.stages[Stage::Backfill as usize];
        (own.status, own.started_at) = (Status::Running, Some(at("2026-01-02T05:00:00Z")));
        (s.lease, s.rejected) = (lease(true), 3);
        s.progress = Some(fixture::progress("2026-01-02T05:58:00Z"));
        insta::assert_snapshot!(page(&[report(&fixture::plan(), Some(&s), &[], now())]));
    }

    #[test]
    fn a_wait_for_the_last_writers_and_a_plan_that_never_ran() {
        let mut s = fixture::state(5);
        let own = &mut s.stages[Stage::StopWrites as usize];
        (own.status, own.waiting_for) = (Status::Waiting, Some("a day without a direct write to `status`".into()));
        own.detail = serde_json::json!({"quiet_since": "2026-01-02T05:59:00Z", "writes": 412, "built": ["an index", "a check"]});
        s.passes = vec![Pass { started_at: now(), finished_at: now(), rows: 400_000, divergent: 0, repaired: 0, sample: vec![] }];
        let strays = [stray("web-3", "2026-01-02T05:59:00Z")];
        let plan = fixture::plan();
        insta::assert_snapshot!(page(&[report(&plan, Some(&s), &strays, now()), report(&plan, None, &[], now())]));
    }
}
