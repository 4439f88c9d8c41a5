//! Lines for logs and pipes: every event, progress now and then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::line::{line, progress};
use super::{Event, Reporter, Sink, figures::number};

pub struct Plain {
    out: Sink,
    /// The shortest time between two lines of progress.
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Plain {
    pub fn new(out: Sink) -> Self {
        Plain { out, every: Duration::from_secs(10), last: Mutex::new(None) }
    }

    fn progress_is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|at| at.elapsed() >= self.every);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

impl Reporter for Plain {
    fn report(&self, event: &Event) {
        let text = match progress(event) {
            None => line(event),
            Some(_) if !self.progress_is_due() => None,
            Some((done, total, how)) => Some(format!("  {} of {} rows, {how}", number(done), number(total))),
        };
        if let Some(text) = text {
            // A message that can't be shown must not end the work that it is about.
            self.out.line(&text).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Blocker, Code};
    use crate::report::sink::Captured;
    use crate::stage::Stage;
    use crate::{fixture, state::Pass};

    fn shown(every: Duration, events: &[Event]) -> String {
        let text = Captured::default();
        let plain = Plain { every, ..Plain::new(Sink::new(text.clone())) };
        events.iter().for_each(|e| plain.report(e));
        text.text()
    }

    #[test]
    fn every_event_is_a_line() {
        let blocker = Blocker {
            pid: 71,
            application: "web-3".into(),
            user: "shop".into(),
            age_s: 3600.0,
            state: "idle in transaction".into(),
            query: "select 1".into(),
            certain: true,
        };
        let pass = Pass { started_at: fixture::now(), finished_at: fixture::now(), rows: 400_000, divergent: 1, repaired: 0, sample: vec![] };
        let text = shown(
            Duration::ZERO,
            &[
                Event::StageStarted { stage: Stage::DualWrite },
                Event::DdlBlocked {
                    action: "install the sync trigger".into(),
                    relation: "public.orders".into(),
                    tried_ms: Some(100.0),
                    retry_in_ms: 250.0,
                    blocker: Some(blocker),
                },
                Event::DdlApplied { action: "install the sync trigger".into(), statements: vec![], wait_ms: 0.42, hold_ms: 1.26, tries: 2 },
                Event::SyncProbed { passed: true, detail: "row 7".into() },
                Event::BackfillProgress { progress: fixture::progress("2026-01-02T06:00:00Z") },
                Event::ValidateProgress { rows: 1000, total: 400_000, divergent: 0 },
                Event::ValidatePass { pass, zero_in_a_row: 0, needed: 2 },
                Event::RowsRejected { count: 1, first_key: "(17)".into(), message: "invalid input value for enum".into() },
                Event::StageWaiting { stage: Stage::Validate, waiting_for: "a second zero pass".into(), until: Some(fixture::now()) },
                Event::StageFailed { stage: Stage::Drop, code: Code::Dependent, message: "view v".into() },
            ],
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn progress_is_rare_and_events_are_not_held_up_by_it() {
        let progress = || Event::BackfillProgress { progress: fixture::progress("2026-01-02T06:00:00Z") };
        let text = shown(Duration::from_secs(10), &[progress(), progress(), Event::Resumed, progress()]);
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
