//! `sete pause`.

use std::path::PathBuf;

use super::context::{Context, known};
use crate::error::{Result, exit};

/// Hold a running backfill, from anywhere
///
/// The runner finishes its batch and stands by until `sete resume`. Without a runner, the next `sete step` of the backfill
/// is refused until then. The other stages are not held.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete pause orders-status.toml")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let plan = context.read_plan(&args.plan)?.plan;
    set(context, &plan, true).await?;
    context.data(&format!("{}: paused; `sete resume` lets it go on", plan.id))?;
    Ok(exit::DONE)
}

/// Pauses or resumes a plan that the database knows.
pub async fn set(context: &Context, plan: &crate::plan::Plan, paused: bool) -> Result<()> {
    let engine = context.connect(plan)?;
    known(engine.as_ref(), &plan.id).await?;
    engine.set_paused(&plan.id, paused).await
}
