//! `sete back`.

use std::path::PathBuf;

use super::context::Context;
use super::format::Format;
use super::signals;
use crate::error::{Result, exit};
use crate::run;

/// Undo the last stage that has begun
///
/// One stage at a time: run it again to go further back. Every stage but the drop can be undone. Rows that were filled
/// stay filled until the new column goes.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete back orders-status.toml")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let job = context.job(context.read_plan(&args.plan)?, Format::Text)?;
    let stage = signals::until_stopped(&job.stop, job.reporter.as_ref(), run::back(&job)).await?;
    let next = stage.prev().map_or("nothing of it is left to undo".to_string(), |s| format!("`sete back` would undo {s} next"));
    context.data(&format!("{}: {stage} is undone; {next}", job.plan.id))?;
    Ok(exit::DONE)
}
