//! How large the next batch is, and when none may be sent. Pure: observations in, decisions out; no clock, no I/O.

use std::time::Duration;

use jiff::Timestamp;

use crate::engine::Pressure;
use crate::plan::duration::show;
use crate::plan::{Backfill, Throttle};

/// Smallest and largest batch, in rows.
const ROWS: (f64, f64) = (10.0, 50_000.0);

/// The largest chunk that is only read.
const READ_ROWS: f64 = 1_000_000.0;

/// Sizes batches so that each takes about the target: up slowly, down at once.
#[derive(Clone, Debug)]
pub struct Pacer {
    rows: f64,
    most: f64,
    target: Duration,
    /// For all workers.
    limit: Option<u32>,
    max_rows_per_s: Option<u32>,
    pause: Duration,
}

impl Pacer {
    /// For one walk that so many workers share: the limit on rows per second is for all of them.
    pub fn new(settings: &Backfill, workers: u32) -> Pacer {
        let mut pacer = Pacer {
            rows: f64::from(settings.batch_rows).clamp(ROWS.0, ROWS.1),
            most: ROWS.1,
            target: settings.batch_target,
            limit: settings.max_rows_per_s,
            max_rows_per_s: None,
            pause: settings.pause,
        };
        pacer.share(workers);
        pacer
    }

    /// So many workers share the limit on rows per second, those of other runs too.
    pub fn share(&mut self, workers: u32) {
        self.max_rows_per_s = self.limit.map(|max| (max / workers.max(1)).max(1));
    }

    /// For a walk that writes nothing: a chunk may be larger by far before it takes as long.
    pub fn reading(settings: &Backfill, workers: u32) -> Pacer {
        let pacer = Pacer::new(settings, workers);
        Pacer { rows: pacer.rows * 20.0, most: READ_ROWS, ..pacer }
    }

    /// Rows of the next batch.
    pub fn rows(&self) -> u32 {
        let limit = self.max_rows_per_s.map_or(self.most, |max| f64::from(max).max(1.0));
        self.rows.min(limit) as u32
    }

    /// A batch went through. How long to wait before the next one.
    pub fn finished(&mut self, rows: u64, took: Duration) -> Duration {
        let ratio = self.target.as_secs_f64() / took.as_secs_f64().max(0.000_1);
        // From what was done, not from what was allowed: a chunk may have held less.
        self.rows = (self.rows.min(rows.max(1) as f64 * 1.3) * ratio.clamp(0.2, 1.3)).clamp(ROWS.0, self.most);
        let owed =
            self.max_rows_per_s.map_or(Duration::ZERO, |max| Duration::from_secs_f64(rows as f64 / f64::from(max.max(1))).saturating_sub(took));
        owed.max(self.pause)
    }

    /// A batch was refused a lock, cancelled, or somebody waits for us. False when it can't get any smaller.
    pub fn refused(&mut self) -> bool {
        let smallest = self.rows <= ROWS.0;
        self.rows = (self.rows / 4.0).max(ROWS.0);
        !smallest
    }
}

/// Why no batch may be sent now. A signal that is missing stops it like a bad one. `wal_rate`: bytes per second.
pub fn held_by(limits: &Throttle, seen: &Pressure, wal_rate: Option<f64>, now: Timestamp) -> Option<String> {
    if let Some(window) = limits.window.as_ref().filter(|window| !window.is_open(now)) {
        return Some(format!("the hour: throttle.window is {window}"));
    }
    let mut lags: Vec<_> = seen.lag.iter().collect();
    lags.sort_by_key(|(name, lag)| (lag.is_some(), std::cmp::Reverse(**lag), (*name).clone()));
    match lags.first() {
        Some((name, None)) => return Some(format!("the lag of replica {name} is unknown")),
        Some((name, Some(lag))) if *lag > limits.max_replica_lag => {
            return Some(format!("replica {name} is {:.1} s behind, more than {}", lag.as_secs_f64(), show(limits.max_replica_lag)));
        }
        _ => {}
    }
    if let Some(max) = limits.max_active_sessions.filter(|max| seen.active > *max) {
        return Some(format!("{} active sessions, more than {max}", seen.active));
    }
    if let (Some(max), Some(rate)) = (limits.max_wal_rate, wal_rate)
        && rate > max as f64
    {
        return Some(format!("{:.0} MB/s of WAL, more than {:.0}", rate / 1e6, max as f64 / 1e6));
    }
    if let Some(max) = limits.max_history_list {
        match seen.history_list {
            None => {
                return Some(
                    "the history list, whose length is unknown: it takes the privilege PROCESS, and on MySQL the metric trx_rseg_history_len"
                        .to_string(),
                );
            }
            Some(length) if length > u64::from(max) => return Some(format!("{length} transactions in the history list, more than {max}")),
            Some(_) => {}
        }
    }
    if let Some(max) = limits.max_redo_fill {
        match seen.redo_fill {
            None => return Some("the redo log, whose checkpoint this server doesn't tell".to_string()),
            Some(fill) if fill * 100.0 > f64::from(max) => {
                return Some(format!("{:.0} % of the redo log waiting for a checkpoint, more than {max} %", fill * 100.0));
            }
            Some(_) => {}
        }
    }
    if seen.query == Some(false) {
        return Some("throttle.query says no".to_string());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn settings() -> Backfill {
        let text = "id = \"x\"\nengine = \"postgres\"\n[change]\nkind = \"rename\"\ntable = \"t\"\nfrom = \"a\"\nto = \"b\"\n";
        crate::plan::parse(text).unwrap().backfill
    }

    fn throttle() -> Throttle {
        let text = "id = \"x\"\nengine = \"postgres\"\n[change]\nkind = \"rename\"\ntable = \"t\"\nfrom = \"a\"\nto = \"b\"\n[throttle]\nmax_active_sessions = 10\nmax_wal_rate = \"1MB/s\"";
        crate::plan::parse(text).unwrap().throttle
    }

    /// A server that takes `us_per_row` for each row: the batch settles near its target.
    #[test]
    fn batches_settle_at_the_target() {
        for us_per_row in [5.0, 50.0, 800.0] {
            let mut pacer = Pacer::new(&settings(), 1);
            for _ in 0..200 {
                let rows = pacer.rows();
                pacer.finished(u64::from(rows), Duration::from_secs_f64(f64::from(rows) * us_per_row / 1e6));
            }
            let took = f64::from(pacer.rows()) * us_per_row / 1e3;
            assert!((70.0..=130.0).contains(&took), "{us_per_row}: {took} ms");
        }
    }

    #[test]
    fn a_late_batch_shrinks_the_next_at_once() {
        let mut pacer = Pacer::new(&settings(), 1);
        pacer.finished(1000, Duration::from_secs(2));
        assert_eq!(pacer.rows(), 200);
        assert!(pacer.refused());
        assert_eq!(pacer.rows(), 50);
        while pacer.refused() {}
        assert_eq!(pacer.rows(), 10);
    }

    #[test]
    fn a_rate_limit_is_kept() {
        let mut pacer = Pacer::new(&Backfill { max_rows_per_s: Some(200), ..settings() }, 2);
        assert_eq!(pacer.rows(), 100);
        assert_eq!(pacer.finished(100, Duration::from_millis(100)), Duration::from_millis(900));
        pacer.share(4);
        assert_eq!(pacer.rows(), 50);
        assert_eq!(pacer.finished(50, Duration::from_millis(100)), Duration::from_millis(900));
    }

    #[test]
    fn a_missing_signal_holds_like_a_bad_one() {
        let limits = throttle();
        let lag = |values: &[(&str, Option<u64>)]| Pressure {
            lag: values.iter().map(|(n, v)| (n.to_string(), v.map(Duration::from_secs))).collect::<HashMap<_, _>>(),
            ..Pressure::default()
        };
        assert_eq!(held(&limits, &lag(&[("a", Some(1)), ("b", Some(5))]), None), None);
        assert!(held(&limits, &lag(&[("a", Some(9)), ("b", None)]), None).unwrap().contains("lag of replica b"));
        assert!(held(&limits, &lag(&[("a", Some(1)), ("b", Some(6))]), None).unwrap().contains("replica b is 6.0 s behind"));
        assert!(held(&limits, &Pressure { active: 11, ..Pressure::default() }, None).unwrap().contains("11 active"));
        assert!(held(&limits, &Pressure { query: Some(false), ..Pressure::default() }, None).is_some());
        assert!(held(&limits, &Pressure::default(), Some(2e6)).unwrap().contains("WAL"));
        assert_eq!(held(&limits, &Pressure { query: Some(true), active: 10, ..Pressure::default() }, Some(1e6)), None);
    }

    #[test]
    fn innodb_may_say_no() {
        let limits = Throttle { max_history_list: Some(1000), max_redo_fill: Some(75), max_wal_rate: None, ..throttle() };
        let seen = |history_list, redo_fill| held(&limits, &Pressure { history_list, redo_fill, ..Pressure::default() }, None);
        assert_eq!(seen(Some(1000), Some(0.75)), None);
        assert_eq!(seen(Some(1001), Some(0.1)).unwrap(), "1001 transactions in the history list, more than 1000");
        assert_eq!(seen(Some(0), Some(0.8)).unwrap(), "80 % of the redo log waiting for a checkpoint, more than 75 %");
        assert!(seen(None, Some(0.1)).unwrap().contains("PROCESS"));
        assert!(seen(Some(0), None).unwrap().contains("redo log"));
    }

    #[test]
    fn outside_of_the_window_nothing_goes() {
        let limits = Throttle { window: crate::plan::Window::parse("22:00-06:00", "UTC"), ..throttle() };
        let at = |time: &str| held_by(&limits, &Pressure::default(), None, time.parse().unwrap());
        assert_eq!(at("2026-03-01T23:00:00Z"), None);
        assert_eq!(at("2026-03-01T12:00:00Z").unwrap(), "the hour: throttle.window is 22:00-06:00 UTC");
    }

    fn held(limits: &Throttle, seen: &Pressure, rate: Option<f64>) -> Option<String> {
        held_by(limits, seen, rate, "2026-03-01T12:00:00Z".parse().unwrap())
    }
}
