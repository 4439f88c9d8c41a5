//! Stage 7: the old column goes. The only stage without a way back.
//!
//! Refuses while anything depends on the column, while statements still read it (where the server counts statements), and
//! before its soak has passed. Never CASCADE. Where the plan says `hide`, the column is invisible for a while first, which can be
//! undone. Where the server could only drop it by a copy of the table, it refuses with the commands that can, or runs the plan's.

use serde_json::json;

use super::{Outcome, Stage, since};
use crate::ddl::act;
use crate::engine::{Ddl, StatementRead};
use crate::error::{Code, Error, Result};
use crate::report::Event;
use crate::run::Cx;
use crate::{external, handover};

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.engine().present(&cx.resolved, &Ddl::DropOldColumn).await? {
        return Ok(Outcome::Done);
    }
    let now = cx.engine().now().await?;
    let stopped = cx.state.stage(Stage::StopWrites).finished_at.unwrap_or(now);
    if let waiting @ Outcome::Waiting { .. } = Outcome::at(stopped, cx.plan().drop.soak, now, "the soak before the drop to pass") {
        return Ok(waiting);
    }
    if let Some(hide) = cx.plan().drop.hide {
        act(cx, &Ddl::HideOldColumn).await?;
        let hidden = since(cx, Stage::Drop, "hidden_at", now).await?;
        if let waiting @ Outcome::Waiting { .. } = Outcome::at(hidden, hide, now, "the hidden column to be missed by nobody") {
            return Ok(waiting);
        }
    }
    refuse_readers(cx).await?;
    if !cx.yes {
        return Err(Error::new(Code::NeedsConfirmation, format!("dropping {}.{} can't be undone", cx.resolved.table, cx.resolved.old.name)));
    }
    match (act(cx, &Ddl::DropOldColumn).await, cx.plan().drop.external.clone()) {
        (Err(e), Some(command)) if e.code() == Code::NotOnline => {
            cx.report(Event::Note { text: format!("{e}; running drop.external") }).await?;
            external::run(cx, &command).await?;
            // Whatever it says: what counts is whether the column is gone.
            if !cx.engine().present(&cx.resolved, &Ddl::DropOldColumn).await? {
                return Err(Error::new(Code::External, format!("it ended well, but column {} is still there", cx.resolved.old.name)));
            }
        }
        (Err(e), None) if e.code() == Code::NotOnline => {
            let address = &cx.catalog.server.address;
            return Err(Error::new(Code::NotOnline, format!("{e}. {}", handover::drop_column(address, &cx.resolved.table, &cx.resolved.old.name))));
        }
        (done, _) => done?,
    }
    Ok(Outcome::Done)
}

/// A drop that was begun and not done has at most hidden the column; a done one is refused by `state::next`.
pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    if cx.plan().drop.hide.is_some() { act(cx, &Ddl::ShowOldColumn).await } else { Ok(()) }
}

/// Notes which statements name the old column, so that a later look can tell which have run since.
pub async fn remember_reads(cx: &mut Cx<'_>) -> Result<()> {
    match cx.engine().reads_of_old(&cx.resolved).await? {
        Some(reads) => cx.remember(Stage::Drop, "reads", json!(reads)).await,
        None => {
            let text = "the server keeps no statement statistics (pg_stat_statements, performance_schema), so nothing can tell whether the old column is still read";
            cx.report(Event::Note { text: text.to_string() }).await
        }
    }
}

/// Statements that name the old column and have run since the last look.
async fn refuse_readers(cx: &mut Cx<'_>) -> Result<()> {
    let before: Vec<StatementRead> = serde_json::from_value(cx.remembered(Stage::Drop, "reads")).unwrap_or_default();
    let Some(now) = cx.engine().reads_of_old(&cx.resolved).await? else { return Ok(()) };
    cx.remember(Stage::Drop, "reads", json!(now)).await?;
    let calls = |text: &str| before.iter().find(|b| b.text == text).map_or(0, |b| b.calls);
    let running: Vec<String> =
        now.iter().filter(|s| s.calls > calls(&s.text)).map(|s| format!("{} ({} times)", s.text, s.calls - calls(&s.text))).collect();
    if running.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::StillRead, format!("these statements name {} and ran since the last look: {}", cx.resolved.old.name, running.join("; "))))
}
