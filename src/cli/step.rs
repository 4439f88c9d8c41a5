//! `sete step`.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use serde::Serialize;

use super::context::Context;
use super::format::Format;
use super::signals;
use crate::error::{Code, Error, Result, exit};
use crate::plan::{Plan, SwitchMode, duration};
use crate::report::figures::not_before;
use crate::run::{self, Job, StepOptions};
use crate::stage::Stage;
use crate::state::{StageState, Status};
use crate::status;

/// Run the next stage
///
/// Exits with 0 when the stage is done and with 4 when its condition does not hold yet. Safe to run again at any time, and
/// to be killed at any moment. Ctrl-C finishes the batch first.
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
    let job = context.job(context.read_plan(&args.plan)?, args.format).await?;
    let yes = args.yes || (is_for_the_drop(&job, args.through).await? && is_confirmed(context, &job.plan)?);
    let options = StepOptions { through: args.through, wait: args.wait, yes };
    let last = signals::until_stopped(&job.stop, job.reporter.as_ref(), run::step(&job, &options)).await?;
    let outcome = outcome(&job, &last).await?;
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

/// How a step ended: the last line of `--format json`.
#[derive(Debug, PartialEq, Serialize)]
struct Outcome {
    at: Timestamp,
    event: &'static str,
    plan: String,
    stage: Stage,
    state: status::State,
    waiting_for: Option<String>,
    not_before: Option<Timestamp>,
    /// The stage that the next step runs; none at the end.
    next: Option<Stage>,
    next_waits_for: Option<String>,
}

async fn outcome(job: &Job, last: &StageState) -> Result<Outcome> {
    let at = job.engine.now().await?;
    let state = job.engine.load(&job.plan.id).await?;
    let report = status::report(&job.plan, state.as_ref(), &[], at);
    let done = last.status == Status::Done;
    let ended = report.state == status::State::Done;
    Ok(Outcome {
        at,
        event: "step_ended",
        plan: job.plan.id.clone(),
        stage: last.stage,
        state: if done { status::State::Done } else { status::State::Waiting },
        waiting_for: last.waiting_for.clone().filter(|_| !done),
        not_before: last.until.filter(|_| !done),
        next: Some(report.stage).filter(|_| !ended),
        next_waits_for: report.waiting_for.filter(|what| done && what != status::NEXT_STEP),
    })
}

impl Outcome {
    fn text(&self) -> String {
        let Outcome { plan, stage, next, .. } = self;
        match (self.state, next) {
            (status::State::Done, None) => format!("{plan}: {stage} is done, and with it the change"),
            (status::State::Done, Some(next)) => {
                let needs = self.next_waits_for.as_ref().map_or(String::new(), |w| format!(", which waits for {w}"));
                format!("{plan}: {stage} is done; next is {next}{needs}")
            }
            _ => {
                let what = self.waiting_for.as_deref().unwrap_or("its condition");
                format!("{plan}: {stage} waits for {}", not_before(what, self.not_before))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{now, plan};

    fn ended(state: status::State, next: Option<Stage>) -> Outcome {
        Outcome {
            at: now(),
            event: "step_ended",
            plan: "orders-status".into(),
            stage: Stage::Validate,
            state,
            waiting_for: Some("a second zero pass".into()),
            not_before: Some(now()),
            next,
            next_waits_for: Some("the deploy that reads `status_v2`, then `sete step`".into()),
        }
    }

    #[test]
    fn the_summary_says_what_is_next() {
        let text = |state, next| ended(state, next).text();
        assert_eq!(
            text(status::State::Done, Some(Stage::ReadSwitch)),
            "orders-status: validate is done; next is read_switch, which waits for the deploy that reads `status_v2`, then `sete step`"
        );
        assert_eq!(
            text(status::State::Waiting, Some(Stage::Validate)),
            "orders-status: validate waits for a second zero pass, not before 2026-01-02T06:00:00Z"
        );
        assert_eq!(text(status::State::Done, None), "orders-status: validate is done, and with it the change");
    }

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
