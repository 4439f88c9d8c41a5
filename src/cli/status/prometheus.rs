//! The status in Prometheus' text format.

use std::fmt::Write as _;

use crate::gate::Deploy;
use crate::status::{BackfillReport, State, StatusReport, ValidateReport};

type Label<'a> = (&'a str, &'a str);

pub fn page(reports: &[StatusReport]) -> String {
    let mut page = Page(String::new());
    page.family("sete_stage_state", "Whether the stage is in this state.", reports, |r, sample| {
        for stage in &r.stages {
            for state in State::ALL {
                sample(&[("stage", stage.name.name()), ("state", state.name())], f64::from(u8::from(stage.state == state)));
            }
        }
    });
    page.family("sete_stage_current", "Number of the current stage, 1 to 7.", reports, |r, sample| sample(&[], r.stage.number() as f64));
    page.family("sete_gate_open", "Whether the deploy may go out.", reports, |r, sample| {
        for deploy in Deploy::ALL {
            sample(&[("gate", deploy.name())], f64::from(u8::from(r.gates.is_open(deploy))));
        }
    });
    for (name, help, value) in BACKFILL {
        page.family(name, help, reports, |r, sample| {
            if let Some(value) = r.backfill.as_ref().and_then(value) {
                sample(&[], value);
            }
        });
    }
    page.family("sete_backfill_batch_seconds", "How long a batch takes, by quantile.", reports, |r, sample| {
        if let Some(b) = &r.backfill {
            sample(&[("quantile", "0.5")], b.batch_ms_p50 / 1000.0);
            sample(&[("quantile", "0.95")], b.batch_ms_p95 / 1000.0);
        }
    });
    for (name, help, value) in VALIDATE {
        page.family(name, help, reports, |r, sample| {
            if let Some(value) = r.validate.as_ref().and_then(value) {
                sample(&[], value);
            }
        });
    }
    page.family("sete_stray_writes", "Writes to one column only by a writer that is in the way.", reports, |r, sample| {
        for s in &r.in_the_way {
            let labels = [("application", s.application.as_str()), ("address", &s.address), ("user", &s.user), ("column", &s.wrote_only)];
            sample(&labels, s.count as f64);
        }
    });
    page.0
}

type Metric<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

const BACKFILL: [Metric<BackfillReport>; 8] = [
    ("sete_backfill_rows_done", "Rows that the backfill has visited.", |b| Some(b.done as f64)),
    ("sete_backfill_rows_total", "Rows of the table, estimated.", |b| Some(b.total as f64)),
    ("sete_backfill_rows_filled", "Rows that the backfill has written.", |b| Some(b.filled as f64)),
    ("sete_backfill_rows_rejected", "Rows whose conversion failed.", |b| Some(b.rejected as f64)),
    ("sete_backfill_rows_per_second", "Present speed.", |b| Some(b.rows_per_s as f64)),
    ("sete_backfill_eta_seconds", "Time to go at the present speed; absent when it isn't running.", |b| b.eta_s.map(|s| s as f64)),
    ("sete_backfill_stalled", "Running, but without progress for 60 s.", |b| Some(f64::from(u8::from(b.stalled)))),
    ("sete_backfill_last_progress_timestamp_seconds", "When progress was last saved.", |b| Some(b.last_progress_at.as_second() as f64)),
];

const VALIDATE: [Metric<ValidateReport>; 3] = [
    ("sete_validate_zero_passes", "Passes in a row without a difference.", |v| Some(f64::from(v.passes))),
    ("sete_validate_passes_needed", "Passes in a row that the plan asks for.", |v| Some(f64::from(v.needed))),
    ("sete_validate_last_divergent_rows", "Rows that differed in the last pass.", |v| v.last_divergent.map(|n| n as f64)),
];

struct Page(String);

impl Page {
    /// One metric over all plans; left out when none has it.
    fn family(&mut self, name: &str, help: &str, reports: &[StatusReport], each: impl Fn(&StatusReport, &mut dyn FnMut(&[Label], f64))) {
        let mut samples = String::new();
        for r in reports {
            each(r, &mut |labels, value| {
                let own = [("plan", r.plan.as_str()), ("target", r.target.as_str())];
                let labels: Vec<String> = own.iter().chain(labels).map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
                samples += &format!("{name}{{{}}} {value}\n", labels.join(","));
            });
        }
        if !samples.is_empty() {
            // Writing to a String does not fail.
            write!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n{samples}").ok();
        }
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, lease, now, stray};
    use crate::status::report;

    #[test]
    fn the_page_of_a_plan() {
        let mut s = fixture::state(5);
        s.lease = lease(true);
        s.progress = Some(fixture::progress("2026-01-02T05:58:00Z"));
        let page = page(&[report(&fixture::plan(), Some(&s), &[stray("web\"3", "2026-01-02T05:59:00Z")], now())]);
        // The states are a long square of 0 and 1; one line of each value says enough.
        let seen: Vec<&str> = page.lines().filter(|l| !l.starts_with("sete_stage_state") || l.contains("stage=\"expand\"")).collect();
        insta::assert_snapshot!(seen.join("\n"));
    }

    #[test]
    fn what_no_plan_has_is_left_out() {
        let page = page(&[report(&fixture::plan(), None, &[], now())]);
        assert!(page.contains("sete_stage_current") && !page.contains("sete_backfill"), "{page}");
    }
}
