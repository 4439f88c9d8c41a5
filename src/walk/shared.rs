//! What the workers of one walk share: the pace, the signals that hold all of them up, what has been measured.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::horizon::Watch;
use super::meter::{Meter, Work};
use crate::engine::{Pressure, Region};
use crate::error::{Code, Error, Result};
use crate::pace::{Pacer, held_by};
use crate::report::Event;
use crate::run::Cx;
use crate::state::{Pace, Progress};

/// How often the server is asked how it feels.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// How often it is told how far the walk is, at most: batches are short.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Fewer updates than this in a sample say nothing about their share of HOT.
const ENOUGH_UPDATES: u64 = 500;

/// What a walk is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// From where the database says that it stands.
    Backfill(&'a Progress),
    Write,
    Read,
}

pub struct Shared {
    pacer: Mutex<Pacer>,
    seen: Mutex<Seen>,
    brake: tokio::sync::Mutex<Brake>,
    ended: AtomicBool,
}

/// What has been measured.
struct Seen {
    meter: Meter,
    /// Without what the meter knows: see [`Seen::pace`].
    pace: Pace,
    /// Workers of this run.
    ours: u32,
    told: Option<Instant>,
    /// Rows that our batches were over.
    walked: u64,
    /// Of a backfill: as the database last said, without the regions that are not done.
    progress: Option<Progress>,
    /// Rows visited and filled in regions that our workers are at.
    under_way: HashMap<i64, (u64, u64)>,
    last_updates: Option<(u64, u64)>,
}

/// Who holds it lets all others wait.
#[derive(Default)]
struct Brake {
    sampled: Option<Instant>,
    wal: Option<(u64, Instant)>,
    horizon: Watch,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub async fn new(cx: &Cx<'_>, purpose: Purpose<'_>) -> Result<Shared> {
        let workers = cx.plan().backfill.workers;
        let progress = if let Purpose::Backfill(progress) = purpose { Some(progress) } else { None };
        // What the estimate rests on is worth a look at a hundred pages, not a failure.
        let pacer = match purpose {
            Purpose::Write | Purpose::Backfill(Progress { sweep: 0, .. }) => Pacer::new,
            // Later sweeps of a backfill look before they write.
            Purpose::Read | Purpose::Backfill(_) => Pacer::reading,
        };
        let sample = if progress.is_some() { cx.engine().densities(&cx.resolved).await? } else { Vec::new() };
        Ok(Shared {
            pacer: Mutex::new(pacer(&cx.plan().backfill, workers)),
            seen: Mutex::new(Seen {
                meter: Meter::new(Work::new(&sample)),
                pace: Pace { workers, ..Pace::default() },
                ours: workers,
                walked: 0,
                told: None,
                progress: progress.cloned(),
                under_way: HashMap::new(),
                last_updates: None,
            }),
            brake: tokio::sync::Mutex::new(Brake::default()),
            ended: AtomicBool::new(false),
        })
    }

    /// Lets the other workers end too.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Rows of the next batch.
    pub fn rows(&self) -> u32 {
        lock(&self.pacer).rows()
    }

    /// Shrinks the next batch. False when it can't get any smaller.
    pub fn refused(&self) -> bool {
        lock(&self.pacer).refused()
    }

    pub fn pace(&self) -> Pace {
        lock(&self.seen).pace()
    }

    /// What of the updates stayed on their pages, as last measured.
    pub fn hot_share(&self) -> Option<f64> {
        lock(&self.seen).pace.hot_share
    }

    /// The database has said how far the walk is, and how many workers are at it; a region that is done no longer counts by
    /// itself.
    pub fn turned(&self, progress: Progress, workers: u32, done: Option<i64>) {
        let mut seen = lock(&self.seen);
        seen.pace.workers = seen.ours.max(workers);
        lock(&self.pacer).share(seen.pace.workers);
        if let Some(region) = done {
            seen.under_way.remove(&region);
        }
        seen.progress = Some(progress);
    }

    /// Where the walk stands, with what our workers have done in regions that are not finished.
    pub fn progress(&self) -> Option<Progress> {
        lock(&self.seen).progress()
    }

    /// The same, unless it was asked for a moment ago.
    pub fn news(&self) -> Option<Progress> {
        let mut seen = lock(&self.seen);
        if seen.told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return None;
        }
        seen.told = Some(Instant::now());
        seen.progress()
    }

    /// A batch of a region is through.
    pub fn filled(&self, region: &Region, rows: u64, filled: u64) {
        let mut seen = lock(&self.seen);
        let part = seen.under_way.entry(region.id).or_default();
        (part.0, part.1) = (part.0 + rows, part.1 + filled);
    }

    /// The region is walked through once more.
    pub fn again(&self, region: &Region) {
        if let Some(part) = lock(&self.seen).under_way.get_mut(&region.id) {
            part.0 = 0;
        }
    }

    /// A batch over so many rows is done. Waits as long as the pace asks for.
    pub async fn finished(&self, cx: &Cx<'_>, rows: u64, took: Duration) -> Result<()> {
        {
            let mut seen = lock(&self.seen);
            seen.walked += rows;
            // Of a backfill, what other runs have done counts too.
            let (done, total) = seen.progress.as_ref().map_or((seen.walked, u64::MAX), |p| (seen.done(p), p.total.max(1)));
            seen.meter.note(Instant::now(), done, took, done as f64 / total as f64);
            seen.pace.throttled_by = None;
        }
        let owed = lock(&self.pacer).finished(rows, took);
        if owed.is_zero() { Ok(()) } else { cx.sleep(owed).await }
    }

    fn check(&self, cx: &Cx<'_>) -> Result<()> {
        cx.check()?;
        if self.ended.load(Ordering::Relaxed) { Err(Error::new(Code::Interrupted, "another worker has failed")) } else { Ok(()) }
    }

    /// Returns once nothing holds us up. Asks each second at most, since the signals cost the server something too.
    pub async fn ready(&self, cx: &Cx<'_>) -> Result<()> {
        self.check(cx)?;
        let mut brake = self.brake.lock().await;
        let mut held = false;
        loop {
            self.check(cx)?;
            if !held && brake.sampled.is_some_and(|at| at.elapsed() < SAMPLE_EVERY) {
                return Ok(());
            }
            match self.look(cx, &mut brake).await? {
                None if held => return cx.report(Event::Resumed).await,
                None => return Ok(()),
                Some(by) => {
                    self.throttled(cx, by).await?;
                    held = true;
                    cx.sleep(SAMPLE_EVERY).await?;
                }
            }
        }
    }

    /// One look at the server: by what we are held.
    async fn look(&self, cx: &Cx<'_>, brake: &mut Brake) -> Result<Option<String>> {
        let now = cx.engine().pressure(cx.plan(), &cx.resolved).await?;
        let rate = brake.wal.map(|(bytes, at)| now.wal_bytes.saturating_sub(bytes) as f64 / at.elapsed().as_secs_f64().max(0.001));
        brake.wal = Some((now.wal_bytes, Instant::now()));
        brake.sampled = Some(Instant::now());
        if now.waiting > 0 {
            self.refused();
        }
        let writes = {
            let mut seen = lock(&self.seen);
            seen.note(&now, rate);
            seen.progress.is_some()
        };
        if !writes {
            return Ok(held_by(&cx.plan().throttle, &now, rate, Timestamp::now()));
        }
        if let Some(text) = brake.horizon.news(now.horizon.as_ref()) {
            cx.report(Event::Note { text }).await?;
        }
        let horizon = brake.horizon.holds(now.horizon.as_ref(), cx.plan().backfill.wait_for_horizon, SAMPLE_EVERY);
        Ok(held_by(&cx.plan().throttle, &now, rate, Timestamp::now()).or(horizon))
    }

    /// Says by what we are held, to the terminal and to `status`.
    async fn throttled(&self, cx: &Cx<'_>, by: String) -> Result<()> {
        let pace = {
            let mut seen = lock(&self.seen);
            seen.pace.throttled_by = Some(by.clone());
            seen.progress.is_some().then(|| seen.pace())
        };
        if let Some(pace) = pace {
            cx.engine().save_pace(&cx.fence, &pace).await?;
        }
        cx.report(Event::Throttled { by }).await
    }

    /// Holds while the plan is paused.
    pub async fn while_paused(&self, cx: &Cx<'_>) -> Result<()> {
        let _others_wait = self.brake.lock().await;
        let mut told = false;
        loop {
            let state = cx.engine().load(&cx.state.id).await?;
            match state {
                None => return Err(Error::new(Code::NoSuchPlan, format!("plan {} was forgotten meanwhile", cx.state.id))),
                Some(state) if !state.paused => return if told { cx.report(Event::Resumed).await } else { Ok(()) },
                Some(_) => {
                    if !told {
                        self.throttled(cx, "pause".into()).await?;
                        told = true;
                    }
                    cx.sleep(SAMPLE_EVERY).await?;
                }
            }
        }
    }
}

impl Seen {
    fn pace(&self) -> Pace {
        let ((batch_ms_p50, batch_ms_p95), (batch_ms_p99, batch_ms_max)) = (self.meter.batch_ms(), self.meter.longest_ms());
        let rows_per_s = self.meter.rows_per_s().unwrap_or(0.0);
        Pace { batch_ms_p50, batch_ms_p95, batch_ms_p99, batch_ms_max, rows_per_s, eta_s: self.meter.eta_s(), ..self.pace.clone() }
    }

    /// Rows that were visited, also in regions that are not finished.
    fn done(&self, saved: &Progress) -> u64 {
        let under_way: u64 = self.under_way.values().map(|(rows, _)| rows).sum();
        (saved.done + under_way).min(saved.total.max(saved.done))
    }

    fn progress(&self) -> Option<Progress> {
        let saved = self.progress.as_ref()?;
        let filled = saved.filled + self.under_way.values().map(|(_, filled)| filled).sum::<u64>();
        Some(Progress { done: self.done(saved), filled, pace: self.pace(), ..saved.clone() })
    }

    fn note(&mut self, now: &Pressure, wal_rate: Option<f64>) {
        self.pace.wal_rate = wal_rate;
        self.pace.lag_s = now
            .lag
            .values()
            .map(|lag| lag.map(|lag| lag.as_secs_f64()))
            .collect::<Option<Vec<f64>>>()
            .and_then(|lags| lags.into_iter().reduce(f64::max));
        if let (Some((all, hot)), Some((all_before, hot_before))) = (now.updates, self.last_updates)
            && all.saturating_sub(all_before) >= ENOUGH_UPDATES
        {
            self.pace.hot_share = Some(hot.saturating_sub(hot_before) as f64 / (all - all_before) as f64);
        } else if self.last_updates.is_some() {
            return;
        }
        self.last_updates = now.updates;
    }
}
