//! The way through the table: which chunk comes next, how large, and what holds it up. Filling and comparing share it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::engine::{Chunk, Walk, Watermark};
use crate::error::{Code, Error, Result};
use crate::pace::{Pacer, held_by};
use crate::report::Event;
use crate::run::Cx;
use crate::state::Progress;

/// How often the server is asked how it feels.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Batches whose times make up the percentiles that are shown.
const KEPT: usize = 200;

/// One walk through the table.
pub struct Walker {
    pub walk: Walk,
    pub mark: Option<Watermark>,
    pub pacer: Pacer,
    /// In how many parts a chunk is written.
    pub stripes: u32,
    sampled: Option<Instant>,
    wal: Option<(u64, Instant)>,
    times: VecDeque<f64>,
    recent: VecDeque<(Instant, u64)>,
    /// What `status` shows of a backfill, kept so that a throttle can be added to it. None when it is no backfill that walks.
    shown: Option<Progress>,
}

impl Walker {
    pub fn new(cx: &Cx<'_>, mark: Option<Watermark>) -> Walker {
        Walker {
            walk: cx.resolved.walk,
            mark,
            pacer: Pacer::new(&cx.plan().backfill),
            stripes: 1,
            sampled: None,
            wal: None,
            times: VecDeque::new(),
            recent: VecDeque::new(),
            shown: None,
        }
    }

    /// What `status` shows until the first batch is through, which a throttle may hold up for long.
    pub fn showing(mut self, progress: &Progress) -> Walker {
        self.shown = Some(progress.clone());
        self
    }

    /// The next chunk, once nothing holds us up. None at the end of the table.
    pub async fn next(&mut self, cx: &Cx<'_>) -> Result<Option<Chunk>> {
        self.hold(cx).await?;
        cx.engine().next_chunk(&cx.resolved, self.walk, self.mark.as_ref(), self.pacer.rows(), self.stripes).await
    }

    /// A batch over so many rows is done. Waits as long as the pace asks for.
    pub async fn finished(&mut self, cx: &Cx<'_>, rows: u64, took: Duration) -> Result<()> {
        let now = Instant::now();
        self.times.push_back(took.as_secs_f64() * 1000.0);
        self.recent.push_back((now, rows));
        while self.times.len() > KEPT {
            self.times.pop_front();
        }
        while self.recent.front().is_some_and(|(at, _)| now - *at > Duration::from_secs(30)) && self.recent.len() > 2 {
            self.recent.pop_front();
        }
        let owed = self.pacer.finished(rows, took);
        if owed.is_zero() { Ok(()) } else { cx.sleep(owed).await }
    }

    /// Puts what has been measured into the progress that is shown.
    pub fn measure(&mut self, progress: &mut Progress) {
        let mut times: Vec<f64> = self.times.iter().copied().collect();
        times.sort_by(f64::total_cmp);
        let at = |q: f64| times.get(((times.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(0.0);
        (progress.batch_ms_p50, progress.batch_ms_p95) = (at(0.5), at(0.95));
        let rows: u64 = self.recent.iter().skip(1).map(|(_, rows)| rows).sum();
        let span = match (self.recent.front(), self.recent.back()) {
            (Some((first, _)), Some((last, _))) => (*last - *first).as_secs_f64(),
            _ => 0.0,
        };
        if span > 0.0 {
            progress.rows_per_s = rows as f64 / span;
        }
        progress.at = jiff::Timestamp::now();
        self.shown = Some(progress.clone());
    }

    /// Waits until no throttle says stop. Each second at most, since the signals cost the server something too.
    async fn hold(&mut self, cx: &Cx<'_>) -> Result<()> {
        let mut held = false;
        loop {
            cx.check()?;
            if !held && self.sampled.is_some_and(|at| at.elapsed() < SAMPLE_EVERY) {
                return Ok(());
            }
            let seen = cx.engine().pressure(cx.plan()).await?;
            let rate = self.wal.map(|(bytes, at)| seen.wal_bytes.saturating_sub(bytes) as f64 / at.elapsed().as_secs_f64().max(0.001));
            self.wal = Some((seen.wal_bytes, Instant::now()));
            self.sampled = Some(Instant::now());
            if seen.waiting > 0 {
                self.pacer.refused();
            }
            match held_by(&cx.plan().throttle, &seen, rate) {
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

    /// Says by what we are held, to the terminal and to `status`.
    async fn throttled(&self, cx: &Cx<'_>, by: String) -> Result<()> {
        if let Some(shown) = &self.shown {
            let progress = Progress { throttled_by: Some(by.clone()), at: jiff::Timestamp::now(), ..shown.clone() };
            cx.engine().save_progress(&cx.fence, Some(&progress)).await?;
        }
        cx.report(Event::Throttled { by }).await
    }

    /// Holds while the plan is paused.
    pub async fn while_paused(&self, cx: &Cx<'_>) -> Result<()> {
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
