//! For a person at a terminal: a bar while rows are walked, one line for everything else.

use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::line::{line, progress};
use super::{Event, Reporter, Sink};

/// No colours: they would say nothing that the words don't.
const BAR: &str = "  {bar:24} {percent:>3}%  {human_pos}/{human_len} rows  {msg}";

pub struct Terminal {
    out: Sink,
    target: fn() -> ProgressDrawTarget,
    bar: Mutex<Option<ProgressBar>>,
}

impl Terminal {
    pub fn new(out: Sink) -> Self {
        Terminal { out, target: ProgressDrawTarget::stderr, bar: Mutex::new(None) }
    }

    fn show(&self, bar: &mut Option<ProgressBar>, done: u64, total: u64, how: String) {
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), (self.target)());
            // The template is ours and fixed; the default style is the fallback that needs no panic.
            bar.with_style(ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_length(total.max(done));
        bar.set_position(done);
        bar.set_message(how);
    }
}

impl Reporter for Terminal {
    fn report(&self, event: &Event) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((done, total, how)) = progress(event) {
            return self.show(&mut bar, done, total, how);
        }
        if !matches!(event, Event::Throttled { .. } | Event::Resumed | Event::BatchRetried { .. })
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
        let Some(text) = line(event) else { return };
        // A message that can't be shown must not end the work that it is about.
        match bar.as_ref() {
            Some(bar) => bar.suspend(|| self.out.line(&text)).ok(),
            None => self.out.line(&text).ok(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::report::sink::Captured;
    use crate::stage::Stage;

    #[test]
    fn a_bar_stands_while_rows_are_walked_and_goes_with_the_next_event() {
        let text = Captured::default();
        let terminal = Terminal { target: ProgressDrawTarget::hidden, ..Terminal::new(Sink::new(text.clone())) };
        terminal.report(&Event::BackfillProgress { progress: fixture::progress("2026-01-02T06:00:00Z") });
        let message = terminal.bar.lock().unwrap().as_ref().unwrap().message();
        assert_eq!(message, "51,000 rows/s, batch p50 2.0 ms p95 9.0 ms, 6 s left");
        terminal.report(&Event::Throttled { by: "replica lag".into() });
        assert!(terminal.bar.lock().unwrap().is_some());
        terminal.report(&Event::StageFinished { stage: Stage::Backfill });
        assert!(terminal.bar.lock().unwrap().is_none());
        assert_eq!(text.text(), "  held back by replica lag\n  backfill done\n");
    }
}
