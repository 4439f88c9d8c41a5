//! Stage 5: the application reads the new column.
//!
//! App mode: the step records that the deploy is out. Swap: the two names are exchanged in one short transaction, with the
//! sync and the default, and the application notices nothing. Both columns are still written, so going back is instant
//! and loses nothing. Done when `soak` has passed.

use super::{Outcome, Stage, since};
use crate::crash;
use crate::ddl::act;
use crate::engine::Ddl;
use crate::error::Result;
use crate::plan::SwitchMode;
use crate::run::Cx;

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.plan().read_switch.mode == SwitchMode::Swap {
        act(cx, &Ddl::SwapNames { swapped: true }).await?;
        cx.refresh().await?;
        crash::point("after looking at the swapped names");
    }
    let now = cx.engine().now().await?;
    let switched = since(cx, Stage::ReadSwitch, "switched_at", now).await?;
    Ok(Outcome::at(switched, cx.plan().read_switch.soak, now, "the soak of the new reads to pass"))
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    if cx.plan().read_switch.mode == SwitchMode::Swap {
        act(cx, &Ddl::SwapNames { swapped: false }).await?;
        cx.refresh().await?;
        crash::point("after looking at the swapped names");
    }
    Ok(())
}
