//! Who keeps the server from reusing the room of old row versions: without that room no update stays on its page, and the
//! backfill costs what a plain one costs.

use std::time::{Duration, Instant};

use crate::engine::Horizon;
use crate::plan::duration::show;

/// A snapshot that is younger takes nothing from us.
const OLD: Duration = Duration::from_secs(5);

/// The snapshot that is being watched.
#[derive(Default)]
pub struct Watch {
    seen: Option<(String, Instant)>,
    told: Option<String>,
    waited: Duration,
}

impl Watch {
    /// Since when the server has had to keep what `now` holds, once that is worth a word: the holder, and how long.
    fn old(&mut self, now: Option<&Horizon>) -> Option<(String, Duration)> {
        let Some(now) = now else {
            self.seen = None;
            return None;
        };
        let since = match &self.seen {
            Some((snapshot, since)) if *snapshot == now.snapshot => *since,
            _ => Instant::now(),
        };
        self.seen = Some((now.snapshot.clone(), since));
        let age = since.elapsed().max(Duration::from_secs_f64(now.age_s.unwrap_or(0.0).max(0.0)));
        (age >= OLD).then(|| (now.holder.clone(), age))
    }

    /// What to say about it, once for each holder.
    pub fn news(&mut self, now: Option<&Horizon>) -> Option<String> {
        let (holder, age) = self.old(now)?;
        if self.told.as_ref() == Some(&holder) {
            return None;
        }
        self.told = Some(holder.clone());
        Some(format!(
            "{holder} has kept old row versions for {}: until it ends, updates need new room and every index an entry more; \
             end it, or let the backfill wait with backfill.wait_for_horizon",
            show(Duration::from_secs(age.as_secs()))
        ))
    }

    /// By whom the backfill is held, as long as it may wait; `step` is how long each hold is.
    pub fn holds(&mut self, now: Option<&Horizon>, patience: Duration, step: Duration) -> Option<String> {
        if self.waited >= patience {
            return None;
        }
        let (holder, _) = self.old(now)?;
        self.waited += step;
        Some(format!(
            "{holder}, which keeps old row versions (backfill.wait_for_horizon, {} of {})",
            show(Duration::from_secs(self.waited.as_secs())),
            show(patience)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(age_s: f64) -> Horizon {
        Horizon { holder: "session 71 (psql)".into(), snapshot: "742".into(), age_s: Some(age_s) }
    }

    #[test]
    fn an_old_snapshot_is_told_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.news(Some(&held(1.0))), None);
        assert!(watch.news(Some(&held(180.0))).unwrap().starts_with("session 71 (psql) has kept old row versions for 3m: "));
        assert_eq!(watch.news(Some(&held(181.0))), None);
        assert_eq!(watch.news(None), None);
    }

    #[test]
    fn the_wait_for_it_ends() {
        let mut watch = Watch::default();
        let mut waits = 0;
        while watch.holds(Some(&held(60.0)), Duration::from_secs(3), Duration::from_secs(1)).is_some() {
            waits += 1;
        }
        assert_eq!(waits, 3);
        assert_eq!(Watch::default().holds(Some(&held(60.0)), Duration::ZERO, Duration::from_secs(1)), None);
    }
}
