//! Stage 6: the old column freezes.
//!
//! First it may be NULL, proven by an insert without it that is rolled back. Then direct writes to it are watched for; once
//! there was none for `quiet_for`, default and sequence move to the new column and the sync goes. Undone by putting the
//! sync back and refilling the old column from the new one wherever they differ: nothing written meanwhile is lost.

use super::{Outcome, Stage, quiet, since, write_all};
use crate::crash;
use crate::ddl::act;
use crate::engine::{Ddl, Fill, Probe, Side};
use crate::error::{Code, Error, Result};
use crate::plan::DualWriteMode;
use crate::report::Event;
use crate::run::Cx;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.state.origin.old_not_null {
        act(cx, &Ddl::DropNotNull(Side::Old)).await?;
    }
    if let Probe::Failed(reason) = cx.engine().probe_insert(&cx.resolved).await? {
        return Err(Error::new(Code::InsertNeedsOld, reason));
    }
    let (watch, remove) = match cx.plan().dual_write.mode {
        DualWriteMode::Trigger => (Ddl::InstallSync { watch: true }, Ddl::DropSync),
        DualWriteMode::App => (Ddl::InstallObserver { watch: true }, Ddl::DropObserver),
    };
    crash::point("after probing an insert");
    act(cx, &watch).await?;
    let now = cx.engine().now().await?;
    let watching = since(cx, Stage::StopWrites, "watching_since", now).await?;
    let mut strays = cx.engine().stray_writers(&cx.state.id).await?;
    strays.retain(|s| s.wrote_only == cx.resolved.old.name && s.last_at >= watching);
    let what = format!("direct write to {}", cx.resolved.old.name);
    if let Some(waiting) = quiet(&strays, watching, cx.plan().stop_writes.quiet_for, now, &what) {
        return Ok(waiting);
    }
    act(cx, &Ddl::MoveDefault).await?;
    act(cx, &remove).await?;
    super::drop::remember_reads(cx).await?;
    Ok(Outcome::Done)
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    match cx.plan().dual_write.mode {
        DualWriteMode::Trigger => act(cx, &Ddl::InstallSync { watch: false }).await?,
        DualWriteMode::App => act(cx, &Ddl::InstallObserver { watch: false }).await?,
    }
    // First, since a value that the old column can't hold ends the way back: then inserts must go on as they did.
    crash::point("before refilling the old column");
    let rows = write_all(cx, Fill::Reverse).await?;
    crash::point("after refilling the old column");
    cx.report(Event::Repaired { rows }).await?;
    act(cx, &Ddl::MoveDefaultBack).await?;
    if cx.state.origin.old_not_null {
        for ddl in cx.resolved.not_null(Side::Old) {
            act(cx, &ddl).await?;
        }
    }
    Ok(())
}
