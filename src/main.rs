//! Parse, run, print the error, choose the exit status. Nothing else.

use std::process::ExitCode;

use clap::Parser;
use sete::cli::{self, Cli};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.wants_json();
    let status = cli.run().unwrap_or_else(|error| {
        cli::error::print(&error, json);
        error.code().exit()
    });
    ExitCode::from(status)
}
