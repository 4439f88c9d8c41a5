//! Stage 5: the application reads the new column.
//!
//! App mode: the step records that the deploy is out. Swap: the two names are exchanged in one short transaction, with the
//! sync and the default, and the application notices nothing. Both columns are still written, so going back is instant
//! and loses nothing. Done when `soak` has passed.

use serde_json::Value;

use super::{Outcome, Stage, since};
use crate::crash;
use crate::ddl::act;
use crate::engine::{Ddl, Fill};
use crate::error::Result;
use crate::plan::SwitchMode;
use crate::report::Event;
use crate::run::Cx;

/// Remembered while the names are being exchanged: [`BEGUN`], or [`MENDING`] while what a crash left is put right.
const SWAPPING: &str = "swapping";
const BEGUN: &str = "begun";
const MENDING: &str = "mending";

pub async fn run(cx: &mut Cx<'_>) -> Result<Outcome> {
    if cx.plan().read_switch.mode == SwitchMode::Swap {
        swap(cx, true).await?;
        if is_swapping(cx) {
            cx.remember(Stage::ReadSwitch, SWAPPING, Value::Null).await?;
        }
    }
    let now = cx.engine().now().await?;
    let switched = since(cx, Stage::ReadSwitch, "switched_at", now).await?;
    Ok(Outcome::at(switched, cx.plan().read_switch.soak, now, "the soak of the new reads to pass"))
}

pub async fn undo(cx: &mut Cx<'_>) -> Result<()> {
    if cx.plan().read_switch.mode == SwitchMode::Swap {
        swap(cx, false).await?;
    }
    Ok(())
}

/// A swap was begun, and nobody has seen its end.
pub fn is_swapping(cx: &Cx<'_>) -> bool {
    !cx.remembered(Stage::ReadSwitch, SWAPPING).is_null()
}

async fn swap(cx: &mut Cx<'_>, swapped: bool) -> Result<()> {
    if is_swapping(cx) {
        mend(cx).await?;
    } else if cx.resolved.swapped != swapped {
        cx.remember(Stage::ReadSwitch, SWAPPING, BEGUN).await?;
    }
    act(cx, &Ddl::SwapNames { swapped }).await?;
    cx.refresh().await?;
    crash::point("after looking at the swapped names");
    Ok(())
}

/// A server that crashes in the middle of a swap which is no transaction (MySQL, MariaDB) comes back with the names exchanged
/// or not, and without the sync. What was written since then reached the column of the plan's old name, whichever that is.
async fn mend(cx: &mut Cx<'_>) -> Result<()> {
    let sync = Ddl::InstallSync { watch: false };
    if cx.remembered(Stage::ReadSwitch, SWAPPING) != MENDING {
        if cx.engine().present(&cx.resolved, &sync).await? {
            return Ok(());
        }
        cx.remember(Stage::ReadSwitch, SWAPPING, MENDING).await?;
    }
    act(cx, &sync).await?;
    cx.refresh().await?;
    crash::point("before putting right what was written without the sync");
    let rows = super::write_all(cx, if cx.resolved.swapped { Fill::Reverse } else { Fill::Forward }).await?;
    crash::point("after putting right what was written without the sync");
    cx.report(Event::Repaired { rows }).await?;
    cx.remember(Stage::ReadSwitch, SWAPPING, BEGUN).await
}
