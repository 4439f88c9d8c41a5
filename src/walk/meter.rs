//! How fast a walk is, and when it will end. Pure: times come from outside.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Batches whose times make up the percentiles that are shown.
const KEPT: usize = 200;
/// Speed is that of the last half minute.
const SPAN: Duration = Duration::from_secs(30);
/// What a page costs beyond its rows, in rows: wide rows are fewer a page, but each is dearer. Fitted to measured backfills of
/// rows of 60 to 1600 bytes (docs/performance.md).
const PAGE: f64 = 12.0;

pub struct Meter {
    times: VecDeque<f64>,
    all: Histogram,
    /// Where the walk stood at moments of the last half minute: rows done, and the share of the table.
    recent: VecDeque<(Instant, u64, f64)>,
    work: Work,
}

impl Meter {
    pub fn new(work: Work) -> Meter {
        Meter { times: VecDeque::new(), all: Histogram::default(), recent: VecDeque::new(), work }
    }

    /// A batch is through. `done` rows are done in all, which is the share `place` of the table.
    pub fn note(&mut self, now: Instant, done: u64, took: Duration, place: f64) {
        self.times.push_back(took.as_secs_f64() * 1000.0);
        self.all.note(took.as_secs_f64() * 1000.0);
        if self.times.len() > KEPT {
            self.times.pop_front();
        }
        while self.recent.len() > 2 && self.recent.front().is_some_and(|(at, ..)| now - *at > SPAN) {
            self.recent.pop_front();
        }
        self.recent.push_back((now, done, place));
    }

    /// Milliseconds: half of the batches took at most the first, 95 of 100 at most the second.
    pub fn batch_ms(&self) -> (f64, f64) {
        let mut times: Vec<f64> = self.times.iter().copied().collect();
        times.sort_by(f64::total_cmp);
        let at = |q: f64| times.get(((times.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(0.0);
        (at(0.5), at(0.95))
    }

    /// Milliseconds, of all batches of the walk: 99 of 100 took at most the first, none more than the second.
    pub fn longest_ms(&self) -> (f64, f64) {
        (self.all.at(0.99), self.all.max)
    }

    /// None until two batches are through.
    pub fn rows_per_s(&self) -> Option<f64> {
        let ((t0, from, _), (t1, to, _)) = (self.recent.front()?, self.recent.back()?);
        let seconds = (*t1 - *t0).as_secs_f64();
        (seconds > 0.0).then(|| to.saturating_sub(*from) as f64 / seconds)
    }

    /// Seconds to the end of the sweep at the speed of the last half minute, by work and not by rows.
    pub fn eta_s(&self) -> Option<u64> {
        let ((t0, _, from), (t1, _, to)) = (self.recent.front()?, self.recent.back()?);
        let done = self.work.up_to(*to) - self.work.up_to(*from);
        let seconds = (*t1 - *t0).as_secs_f64();
        (done > 0.0 && seconds > 0.2).then(|| ((self.work.up_to(1.0) - self.work.up_to(*to)).max(0.0) * seconds / done).ceil() as u64)
    }
}

/// Times in steps of 5 %, so that any number of them takes the same room.
struct Histogram {
    counts: [u64; 256],
    max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; 256], max: 0.0 }
    }
}

impl Histogram {
    const LEAST_MS: f64 = 0.05;
    const STEP: f64 = 1.05;

    fn note(&mut self, ms: f64) {
        let place = ((ms / Self::LEAST_MS).ln() / Self::STEP.ln()).max(0.0) as usize;
        self.counts[place.min(self.counts.len() - 1)] += 1;
        self.max = self.max.max(ms);
    }

    /// The upper end of the step that holds the share `q` of all times.
    fn at(&self, q: f64) -> f64 {
        let wanted = self.counts.iter().sum::<u64>() as f64 * q;
        let mut sum = 0;
        let place = self.counts.iter().position(|count| {
            sum += count;
            sum as f64 >= wanted
        });
        place.map_or(self.max, |place| (Self::LEAST_MS * Self::STEP.powi(place as i32 + 1)).min(self.max))
    }
}

/// How much there is to do up to a place in the table, from a sample of its pages.
pub struct Work {
    /// Place as a share of the table, work up to there; both ascending.
    points: Vec<(f64, f64)>,
}

impl Work {
    /// `sample` has page numbers and rows, ascending. Without one each part of the table counts alike.
    pub fn new(sample: &[(u32, u32)]) -> Work {
        let mut points = vec![(0.0, 0.0)];
        let end = sample.last().map_or(0.0, |(page, _)| f64::from(*page) + 1.0);
        for (n, (page, rows)) in sample.iter().enumerate() {
            // A page speaks for all up to the middle between it and the next one: by chance they lie here closer, there wider.
            let until = sample.get(n + 1).map_or(end, |(next, _)| (f64::from(*page) + f64::from(*next)) / 2.0);
            let (from, sum) = points[n];
            points.push((until / end, sum + (until / end - from) * (f64::from(*rows) + PAGE)));
        }
        if sample.is_empty() {
            points.push((1.0, 1.0));
        }
        Work { points }
    }

    fn up_to(&self, place: f64) -> f64 {
        let place = place.clamp(0.0, 1.0);
        let after = self.points.iter().position(|(at, _)| *at >= place).unwrap_or(self.points.len() - 1).max(1);
        let ((x0, y0), (x1, y1)) = (self.points[after - 1], self.points[after]);
        if x1 > x0 { y0 + (y1 - y0) * (place - x0) / (x1 - x0) } else { y1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first half has 100 rows a page, the second 10; a row takes a millisecond, a page twelve more.
    #[test]
    fn the_end_is_foreseen_where_rows_become_wider() {
        let density = |page: u32| if page < 500 { 100 } else { 10 };
        let sample: Vec<(u32, u32)> = (0..1000).step_by(10).map(|page| (page, density(page))).collect();
        let mut meter = Meter::new(Work::new(&sample));
        let total: f64 = (0..1000).map(|page| f64::from(density(page)) + 12.0).sum::<f64>() / 1000.0;
        let (start, mut spent, mut done) = (Instant::now(), 0.0, 0);
        for page in 0..1000_u32 {
            let took = Duration::from_millis(u64::from(density(page)) + 12);
            spent += took.as_secs_f64();
            done += u64::from(density(page));
            meter.note(start + Duration::from_secs_f64(spent), done, took, f64::from(page + 1) / 1000.0);
            if page >= 100 {
                let (foreseen, real) = (meter.eta_s().unwrap() as f64, total - spent);
                assert!((foreseen - real).abs() <= 0.2 * real + 1.0, "page {page}: {foreseen} s foreseen, {real} s left");
            }
        }
    }

    #[test]
    fn the_histogram_is_right_to_its_step() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|n| histogram.note(f64::from(n) / 10.0));
        let p99 = histogram.at(0.99);
        assert!((99.0..=99.0 * 1.05).contains(&p99), "{p99}");
        assert_eq!((histogram.at(1.0), histogram.max), (100.0, 100.0));
    }

    #[test]
    fn without_a_sample_all_parts_count_alike() {
        let mut meter = Meter::new(Work::new(&[]));
        let start = Instant::now();
        for n in 0..=4 {
            meter.note(start + Duration::from_secs(n), 100 * n, Duration::from_secs(1), n as f64 / 10.0);
        }
        assert_eq!((meter.rows_per_s(), meter.eta_s()), (Some(100.0), Some(6)));
        assert_eq!(meter.batch_ms(), (1000.0, 1000.0));
    }
}
