//! `sete forget`.

use std::path::PathBuf;

use super::context::{Context, known};
use crate::error::{Code, Error, Result, exit};
use crate::stage::Stage;
use crate::state::{PlanState, Status};

/// Remove what the database keeps about a plan
///
/// Only a plan that is through, or back at its start, is forgotten. The table is left as it is.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete forget orders-status.toml")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// Forget a plan in the middle of its change too; its triggers go on working, and both columns stay
    #[arg(long)]
    force: bool,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let plan = context.read_plan(&args.plan)?.plan;
    let engine = context.connect(&plan)?;
    let state = known(engine.as_ref(), &plan.id).await?;
    refuse(&state, args.force)?;
    engine.forget(&plan.id).await?;
    context.data(&format!("{}: forgotten", plan.id))?;
    Ok(exit::DONE)
}

fn refuse(state: &PlanState, force: bool) -> Result<()> {
    // Not even by force: the runner would go on with nothing to say where it is.
    if let Some(lease) = state.lease.as_ref().filter(|l| l.alive) {
        return Err(Error::new(Code::LeaseHeld, format!("the runner {} is at work on `{}`", lease.holder, state.id)));
    }
    let all = |status| Stage::ALL.iter().all(|s| state.stage(*s).status == status);
    if force || all(Status::Pending) || all(Status::Done) {
        return Ok(());
    }
    Err(Error::new(Code::InUse, format!("`{}` is in the middle of its change, at {}", state.id, state.current())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{lease, state};

    #[test]
    fn only_an_end_of_the_change_is_forgotten() {
        for (done, force, code) in [(0, false, None), (7, false, None), (3, false, Some(Code::InUse)), (3, true, None)] {
            assert_eq!(refuse(&state(done), force).err().map(|e| e.code()), code, "{done}");
        }
        let running = PlanState { lease: lease(true), ..state(7) };
        assert_eq!(refuse(&running, true).unwrap_err().code(), Code::LeaseHeld);
    }
}
