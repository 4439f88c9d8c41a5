//! Stage 2: from here on, every write keeps both columns equal.
//!
//! Trigger mode: a sync trigger does it, and is proven by a real write that is rolled back. App mode: the application does
//! it, and an observer records every write that left the two apart; the stage is done once enough writes were seen and
//! none was one-sided for a while. Undone by removing the trigger or the observer; since rows may then be written behind
//! the new column's back, the next backfill also rewrites what differs.

use jiff::Timestamp;

use super::{Outcome, Stage, quiet};
use crate::crash;
use crate::ddl::act;
use crate::engine::{Ddl, Probe};
use crate::error::{Code, Error, Result};
use crate::plan::DualWriteMode;
use crate::report::Event;
use crate::run::Cx;
use crate::state::Progress;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    match cx.plan().dual_write.mode {
        DualWriteMode::Trigger => install(cx).await,
        DualWriteMode::App => observe(cx).await,
    }
}

async fn install(cx: &mut Cx<'_>) -> Result<Outcome> {
    act(cx, &Ddl::InstallSync { watch: false }).await?;
    let probe = cx.engine().probe_sync(&cx.resolved).await?;
    crash::point("after probing the sync");
    let detail = match &probe {
        Probe::Passed => "a row was written and rolled back".to_string(),
        Probe::NoRow => "there is no row to try it on; the catalog shows the trigger enabled".to_string(),
        Probe::Failed(reason) => reason.clone(),
    };
    cx.report(Event::SyncProbed { passed: !matches!(probe, Probe::Failed(_)), detail: detail.clone() }).await?;
    if let Probe::Failed(_) = probe {
        act(cx, &Ddl::DropSync).await?;
        return Err(Error::new(Code::SyncProbe, detail));
    }
    cx.remember(Stage::DualWrite, "probe", detail).await?;
    Ok(Outcome::Done)
}

async fn observe(cx: &mut Cx<'_>) -> Result<Outcome> {
    act(cx, &Ddl::InstallObserver { watch: false }).await?;
    let now = cx.engine().now().await?;
    let since = super::since(cx, Stage::DualWrite, "watching_since", now).await?;
    let strays = cx.engine().stray_writers(&cx.state.id).await?;
    let seen = cx.engine().writes_seen(&cx.state.id).await?;
    cx.remember(Stage::DualWrite, "writes_seen", seen).await?;
    let settings = &cx.plan().dual_write;
    if let Some(waiting) = quiet(&strays, since, settings.quiet_for, now, "one-sided write") {
        return Ok(waiting);
    }
    if seen < settings.min_writes {
        let waiting_for = format!("writes of both columns: {seen} seen, {} needed", settings.min_writes);
        return Ok(Outcome::Waiting { waiting_for, until: None });
    }
    Ok(Outcome::Done)
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    // Also before any backfill: the sync itself, or the application, has filled some rows.
    let progress = Progress { refresh: true, ..Progress::begin(cx.resolved.walk, cx.resolved.rows, Timestamp::now()) };
    crash::point("before asking for a refresh");
    cx.engine().save_progress(&cx.fence, &progress).await?;
    crash::point("after asking for a refresh");
    cx.state.progress = Some(progress);
    match cx.plan().dual_write.mode {
        DualWriteMode::Trigger => act(cx, &Ddl::DropSync).await,
        DualWriteMode::App => {
            act(cx, &Ddl::DropObserver).await?;
            crash::point("before clearing stray writes");
            cx.engine().clear_strays(&cx.fence).await?;
            crash::point("after clearing stray writes");
            Ok(())
        }
    }
}
