//! The command line. The only part that knows clap, files, the environment and terminals.

mod back;
mod completions;
mod context;
pub mod error;
mod forget;
mod format;
mod gate;
mod pause;
mod plan;
mod rejects;
mod resume;
mod signals;
mod status;
mod step;
mod validate;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::error::{Code, Error, Result};
use context::Context;
use format::Format;

const AFTER_HELP: &str = "\
The database address is --url, else the plan's `database = \"env:NAME\"`, else DATABASE_URL.
Data goes to stdout, messages and progress to stderr. NO_COLOR is honoured.

Exit status:
    0  done
    1  unexpected failure
    2  usage or plan error
    3  blocked: preflight found something
    4  not yet: the gate is closed, or the stage waits
    5  gave up on a lock or on the pace; safe to run again
    6  divergence found, or rejected rows
    7  another runner holds the lease
    8  outcome unknown: look before you retry
  130  interrupted; progress is saved

Example:
  sete plan orders-status.toml && sete step orders-status.toml";

/// Zero-downtime destructive schema changes, in seven reversible stages.
///
/// expand, dual_write, backfill, validate, read_switch, stop_writes, drop: each is its own run, and each measures
/// before it goes on.
#[derive(Parser)]
#[command(name = "sete", version, after_help = AFTER_HELP, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Global {
    /// Database address, like postgres://user@host/database; better from the environment, which `ps` doesn't show
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    url: Option<String>,
    /// Say more on stderr; twice for all
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    Plan(plan::Args),
    Step(step::Args),
    Status(status::Args),
    Gate(gate::Args),
    Back(back::Args),
    Validate(validate::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Rejects(rejects::Args),
    Forget(forget::Args),
    Completions(completions::Args),
}

impl Cli {
    /// Runs the command and returns its exit status.
    pub fn run(self) -> Result<u8> {
        start_log(self.global.verbose);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::new(Code::Internal, format!("no runtime: {e}")))?;
        let context = Context::new(self.global.url, self.global.verbose);
        let result = runtime.block_on(self.command.run(&context));
        // A second Ctrl-C means now: whatever still runs is left to the server, which takes it back.
        runtime.shutdown_background();
        result
    }

    /// Whether an error is wanted as JSON as well.
    pub fn wants_json(&self) -> bool {
        match &self.command {
            Command::Plan(args) => args.format == Format::Json,
            Command::Step(args) => args.format == Format::Json,
            Command::Status(args) => args.format == Format::Json,
            Command::Gate(args) => args.format == Format::Json,
            Command::Rejects(args) => args.format == Format::Json,
            Command::Back(_) | Command::Validate(_) | Command::Pause(_) | Command::Resume(_) | Command::Forget(_) | Command::Completions(_) => false,
        }
    }
}

impl Command {
    async fn run(self, context: &Context) -> Result<u8> {
        match self {
            Command::Plan(args) => plan::run(args, context).await,
            Command::Step(args) => step::run(args, context).await,
            Command::Status(args) => status::run(args, context).await,
            Command::Gate(args) => gate::run(args, context).await,
            Command::Back(args) => back::run(args, context).await,
            Command::Validate(args) => validate::run(args, context).await,
            Command::Pause(args) => pause::run(args, context).await,
            Command::Resume(args) => resume::run(args, context).await,
            Command::Rejects(args) => rejects::run(args, context).await,
            Command::Forget(args) => forget::run(args, context).await,
            Command::Completions(args) => completions::run(args, context),
        }
    }
}

/// Tracing to stderr, for -v.
fn start_log(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => "sete=debug",
        _ => "sete=trace,tokio_postgres=debug,rustls=debug",
    };
    let colour = error::colour_on_stderr();
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).with_ansi(colour).init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
