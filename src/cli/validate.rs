//! `sete validate`.

use std::path::PathBuf;

use super::context::Context;
use super::format::Format;
use super::signals;
use crate::error::{Code, Error, Result, count, exit};
use crate::report::figures::number;
use crate::report::passed;
use crate::run;
use crate::state::Pass;

/// Compare all rows once more, outside of the stages
///
/// Possible while both columns are written, from dual_write to read_switch. Exits with 6 when rows differ and were not
/// repaired.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete validate orders-status.toml --repair")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// Rewrite the rows that differ: the new column from the old one, after read_switch the other way round
    #[arg(long)]
    repair: bool,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let job = context.job(context.read_plan(&args.plan)?, Format::Text)?;
    let pass = signals::until_stopped(&job.stop, job.reporter.as_ref(), run::validate(&job, args.repair)).await?;
    context.data(&format!("{}: {}", job.plan.id, summary(&pass)))?;
    match pass.divergent.saturating_sub(pass.repaired) {
        0 => Ok(exit::DONE),
        left => Err(Error::new(Code::Diverged, divergence(left, &pass.sample))),
    }
}

fn summary(pass: &Pass) -> String {
    let repaired = if pass.repaired > 0 { format!(", {} repaired", number(pass.repaired)) } else { String::new() };
    format!("{}{repaired}", passed(pass))
}

fn divergence(left: u64, sample: &[String]) -> String {
    let keys = if sample.is_empty() { String::new() } else { format!("; keys: {}", sample.join(", ")) };
    format!("{} left where old and new differ{keys}", count(usize::try_from(left).unwrap_or(usize::MAX), "row"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::now;

    #[test]
    fn a_pass_is_said_in_one_line() {
        let pass = Pass { started_at: now(), finished_at: now(), rows: 400_000, divergent: 3, repaired: 2, sample: vec!["(17)".into()] };
        assert_eq!(summary(&pass), "400,000 rows compared, 3 differ, 2 repaired");
        assert_eq!(divergence(1, &pass.sample), "1 row left where old and new differ; keys: (17)");
    }
}
