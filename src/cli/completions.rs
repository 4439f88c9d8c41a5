//! `sete completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use super::context::Context;
use crate::error::{Result, exit};

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete completions bash > /etc/bash_completion.d/sete")]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: Args, context: &Context) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "sete", &mut script);
    context.data(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit::DONE)
}
