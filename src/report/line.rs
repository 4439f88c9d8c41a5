//! An event as one short line, the same on a terminal and in a log.

use super::Event;
use super::figures::{bytes, ms, not_before, number, span};
use crate::error::count;
use crate::stage::Stage;
use crate::state::{Pace, Pass, Progress};

/// None for events that are progress only.
pub fn line(event: &Event) -> Option<String> {
    // Server messages and other people's queries may hold line ends and worse.
    words(event).map(|text| text.replace(char::is_control, " "))
}

fn words(event: &Event) -> Option<String> {
    Some(match event {
        Event::BackfillProgress { .. } | Event::ValidateProgress { .. } => return None,
        Event::StageStarted { stage } => format!("[{}/{}] {stage}", stage.number(), Stage::ALL.len()),
        Event::DdlApplied { action, wait_ms, hold_ms, tries, .. } => {
            let tries = if *tries > 1 { format!(", at try {tries}") } else { String::new() };
            format!("  {action}: waited {}, held {}{tries}", ms(*wait_ms), ms(*hold_ms))
        }
        Event::DdlPresent { action } => format!("  {action}: done already"),
        Event::DdlBlocked { action, relation, tried_ms, retry_in_ms, blocker } => {
            let tried = tried_ms.map_or("not tried".to_string(), |t| format!("gave up after {}", ms(t)));
            let by = blocker.as_ref().map_or("a session that has gone since".to_string(), |b| b.to_string());
            format!("  {action}: {tried}, {relation} is locked by {by}; next try in {}", ms(*retry_in_ms))
        }
        Event::SyncProbed { passed: true, detail } => format!("  sync trigger proven: {detail}"),
        Event::SyncProbed { passed: false, detail } => format!("  sync trigger does not work: {detail}"),
        Event::Throttled { by } => format!("  held back by {by}"),
        Event::Resumed => "  going on".to_string(),
        Event::ConnectionLost { reason } => format!("  connection lost ({reason}); connecting again"),
        Event::BatchRetried { reason, attempt } => format!("  batch taken back ({reason}), try {attempt}"),
        Event::RowsRejected { count: n, first_key, message } => format!("  {} set aside, the first is {first_key}: {message}", rows(*n)),
        Event::ValidatePass { pass, zero_in_a_row, needed } => {
            format!("  {}; zero passes in a row: {zero_in_a_row}, needed: {needed}", passed(pass))
        }
        Event::Repaired { rows: n } => format!("  {} repaired", rows(*n)),
        Event::StageWaiting { stage, waiting_for, until } => format!("  {stage} waits for {}", not_before(waiting_for, *until)),
        Event::StageFinished { stage } => format!("  {stage} done"),
        Event::StageFailed { stage, code, message } => format!("  {stage} failed with {code}: {message}"),
        Event::StageUndone { stage } => format!("  {stage} undone"),
        Event::ExternalOutput { line } => format!("  | {line}"),
        Event::Note { text } => format!("  {text}"),
        Event::LeaseWaiting { holder } => format!("  waiting for the runner {holder} to end"),
    })
}

/// How far an event of progress is: rows done and in all, and how it goes.
pub fn progress(event: &Event) -> Option<(u64, u64, String)> {
    match event {
        Event::BackfillProgress { progress } => Some((progress.done, progress.total, pace(progress))),
        Event::ValidateProgress { rows: done, total, divergent } => Some((*done, *total, format!("{} differ", number(*divergent)))),
        _ => None,
    }
}

fn pace(p: &Progress) -> String {
    // Until two batches are through there is no speed.
    let mut text = if p.pace.rows_per_s >= 1.0 { format!("{} rows/s", number(p.pace.rows_per_s.round() as u64)) } else { "starting".to_string() };
    text += &format!(", batch p50 {} p95 {}", ms(p.pace.batch_ms_p50), ms(p.pace.batch_ms_p95));
    text += &signals(&p.pace);
    match (&p.pace.throttled_by, p.pace.eta_s) {
        (Some(by), _) => text += &format!(", held back by {by}"),
        (None, Some(s)) if !p.finished => text += &format!(", {} left", span(s)),
        _ => {}
    }
    if p.retries.total() > 0 {
        text += &format!(", {} retried", number(p.retries.total()));
    }
    if p.sweep > 0 {
        text += &format!(", sweep {}", p.sweep);
    }
    text
}

/// What is known of the server: ", 94 % HOT, WAL 61.2 MiB/s, lag 0.2 s".
pub fn signals(pace: &Pace) -> String {
    let mut text = pace.hot_share.map_or(String::new(), |share| format!(", {:.0} % HOT", share * 100.0));
    text += &pace.wal_rate.map_or(String::new(), |rate| format!(", WAL {}/s", bytes(rate as u64)));
    text += &pace.lag_s.map_or(String::new(), |lag| format!(", lag {lag:.1} s"));
    text
}

/// "400,000 rows compared, 2 differ".
pub fn passed(pass: &Pass) -> String {
    let differ = if pass.divergent == 1 { "differs" } else { "differ" };
    format!("{} compared, {} {differ}", rows(pass.rows), number(pass.divergent))
}

fn rows(n: u64) -> String {
    // `count` writes the figure without separators; only its plural is wanted.
    let noun = count(usize::try_from(n).unwrap_or(usize::MAX), "row");
    format!("{} {}", number(n), noun.rsplit(' ').next().unwrap_or("rows"))
}
