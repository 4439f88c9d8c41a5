//! What is done to a run from outside, alike on every engine: kills, rivals, a server that goes away.

use std::process::Child;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::sete::{Sete, finish};
use super::{signal, until};

const BACKFILL: [&str; 2] = ["--through", "backfill"];

/// Kills one backfill after the other. `token` is the lease's, which each holder raises.
pub fn kill_at_random_moments(sete: &Sete, kills: u32, token: impl Fn() -> u64) {
    for kill in 1..=kills {
        // Before the run: it may take the lease sooner than we look.
        let before = token();
        let mut run = sete.start("step", &BACKFILL);
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(0..200)));
        if kill % 2 == 0 {
            // In the midst of the work, however slow the machine is.
            until("it has the lease", || token() > before);
        }
        if let Some(status) = run.try_wait().expect("ours to wait for") {
            panic!("it ended with {status} before kill {kill}: {}", finish(run).text());
        }
        run.kill().expect("SIGKILL is sent");
        run.wait().expect("ours to wait for");
    }
}

/// The next run has the lease of one that was killed, not after the 30 s that it was taken for, and goes on to the end.
pub fn goes_on_at_once(sete: &Sete, token: impl Fn() -> u64) {
    let (began, before) = (Instant::now(), token());
    let run = sete.start("step", &BACKFILL);
    until("it has the lease", || token() > before);
    assert!(began.elapsed() < Duration::from_secs(25), "the dead holder was waited for");
    let out = finish(run);
    assert_eq!(out.code, 0, "{}", out.text());
}

/// Of two backfills that are started together, both too slow to get to the end, one is refused and names the other.
pub fn one_of_two_runs(sete: &Sete, rounds: u32) {
    for round in 0..rounds {
        let mut pair = [sete.start("step", &BACKFILL), sete.start("step", &BACKFILL)];
        let mut ended = None;
        until("one of the two ends", || {
            ended = [0, 1].into_iter().find(|n| pair[*n].try_wait().expect("ours to wait for").is_some());
            ended.is_some()
        });
        let [first, second] = pair;
        let (loser, winner) = if ended == Some(0) { (first, second) } else { (second, first) };
        let holder = format!("pid {} ", winner.id());
        let out = finish(loser);
        assert!(
            out.code == 7 && out.stderr.contains("E601") && out.stderr.contains(&holder),
            "round {round}: {} ({holder}): {}",
            out.code,
            out.text()
        );
        signal("-INT", &winner);
        assert_eq!(finish(winner).code, 130, "round {round}");
    }
}

/// A run whose server went away and came back has gone on by itself, or, where that took too long, said so; then the next one does.
pub fn is_done_after_the_server_came_back(sete: &Sete, run: Child) {
    let out = finish(run);
    assert!(out.code == 0 || out.code == 1 && ["E801", "E803"].iter().any(|code| out.stderr.contains(code)), "{}: {}", out.code, out.text());
    if out.code != 0 {
        sete.through("backfill");
    }
}
