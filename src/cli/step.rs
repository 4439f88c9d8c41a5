//! `sete step`.

mod outcome;

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::context::Context;
use super::format::Format;
use super::signals;
use crate::error::{Code, Error, Result, exit};
use crate::plan::{Plan, SwitchMode, duration};
use crate::run::{self, Job, StepOptions};
use crate::stage::Stage;
use crate::state::Status;

/// Run the next stage
///
/// One stage at a time: the first that is not done. Exits with 0 when it is done and with 4 when its condition does not
/// hold yet: then run it again later. Safe to run again at any time, and to be killed at any moment. Ctrl-C finishes the
/// batch first.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  sete step orders-status.toml --through validate --wait 12h")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// Go on until this stage is done
    #[arg(long, value_name = "STAGE", value_parser = stages())]
    through: Option<Stage>,
    /// Wait until the stage's condition holds, at most FOR, like 12h; without FOR as long as it takes
    #[arg(long, value_name = "FOR", num_args = 0..=1, default_missing_value = ENDLESS, value_parser = wait)]
    wait: Option<Duration>,
    /// Help a backfill that another `sete step` is running, from this machine too
    #[arg(long, conflicts_with_all = ["through", "wait", "yes"])]
    join: bool,
    /// Confirm the drop, which can't be undone
    #[arg(long)]
    yes: bool,
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = Format::among(&[Format::Text, Format::Json]), help = "Text, or one JSON object a line")]
    pub format: Format,
}

const ENDLESS: &str = "forever";

fn wait(text: &str) -> std::result::Result<Duration, String> {
    if text == ENDLESS { Ok(Duration::MAX) } else { duration::parse(text) }
}

fn stages() -> impl TypedValueParser<Value = Stage> {
    PossibleValuesParser::new(Stage::ALL.map(Stage::name)).try_map(|name| Stage::from_name(&name).ok_or("no such stage"))
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let job = context.job(context.read_plan(&args.plan)?, args.format)?;
    if args.join {
        signals::until_stopped(&job.stop, job.reporter.as_ref(), run::join(&job)).await?;
        context.data("backfill done")?;
        return Ok(exit::DONE);
    }
    let yes = args.yes || (is_for_the_drop(&job, args.through).await? && is_confirmed(context, &job.plan)?);
    let options = StepOptions { through: args.through, wait: args.wait, yes };
    let last = signals::until_stopped(&job.stop, job.reporter.as_ref(), run::step(&job, &options)).await?;
    let outcome = outcome::of(&job, &last).await?;
    match args.format {
        Format::Json => context.json(&outcome)?,
        _ => context.data(&outcome.text())?,
    }
    Ok(if last.status == Status::Done { exit::DONE } else { Code::Waiting.exit() })
}

/// Whether this run may come to the drop.
async fn is_for_the_drop(job: &Job, through: Option<Stage>) -> Result<bool> {
    let state = job.engine.load(&job.plan.id).await?;
    let next = state.as_ref().is_some_and(|s| s.current() == Stage::Drop && !s.done(Stage::Drop));
    Ok(next || through == Some(Stage::Drop))
}

/// Asks for the column's name. Where nobody can be asked the answer is no, and the run says what is missing.
fn is_confirmed(context: &Context, plan: &Plan) -> Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(false);
    }
    let column = dropped(plan);
    context.note(&format!("The drop removes the column `{column}` of {} with all its values. It can't be undone.", plan.change.table));
    context.note("Type the column's name to go on:");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|e| Error::new(Code::NeedsConfirmation, format!("no answer could be read: {e}")))?;
    if answer.trim() == column { Ok(true) } else { Err(Error::new(Code::NeedsConfirmation, format!("what was typed is not `{column}`"))) }
}

/// The old column's name at that time: a swap has given it the other's.
fn dropped(plan: &Plan) -> &str {
    if plan.read_switch.mode == SwitchMode::Swap { &plan.change.to } else { &plan.change.from }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::plan;

    #[test]
    fn after_a_swap_the_old_column_has_the_other_name() {
        let mut plan = plan();
        assert_eq!(dropped(&plan), "status");
        plan.read_switch.mode = SwitchMode::Swap;
        assert_eq!(dropped(&plan), "status_v2");
    }

    #[test]
    fn a_wait_without_length_has_no_end() {
        assert_eq!((wait(ENDLESS), wait("5m")), (Ok(Duration::MAX), Ok(Duration::from_secs(300))));
    }
}
