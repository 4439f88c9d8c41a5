//! `sete resume`.

use std::path::PathBuf;

use super::context::Context;
use super::pause;
use crate::error::{Result, exit};

/// Let a paused plan go on
///
/// A runner that stands by goes on by itself; without one, run `sete step` again.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete resume orders-status.toml")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let plan = context.read_plan(&args.plan)?.plan;
    pause::set(context, &plan, false).await?;
    context.data(&format!("{}: no longer paused", plan.id))?;
    Ok(exit::DONE)
}
