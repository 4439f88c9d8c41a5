//! Stage 1: the new column is added: nullable, without a default, in the catalog only.
//!
//! Promises: no row is touched and the lock is held for a moment. A column that is there already, with the planned type and
//! empty of defaults, is adopted. The application may assume nothing yet, but `SELECT *` returns one column more.
//! Undone by dropping the column; an adopted one is left where it was.

use super::Outcome;
use crate::ddl::act;
use crate::engine::Ddl;
use crate::error::Result;
use crate::report::Event;
use crate::run::Cx;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    act(cx, &Ddl::AddColumn).await?;
    Ok(Outcome::Done)
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    if cx.state.origin.adopted {
        let text = format!("column {} was there before the plan began, so it is left", cx.resolved.new.name);
        return cx.report(Event::Note { text }).await;
    }
    act(cx, &Ddl::DropNewColumn).await
}
