//! A live application for a table under migration: see `--help`, and `examples/quickstart.sh`, which uses it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command: its summary goes to stdout, its table to stderr")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

#[path = "../tests/support/workload.rs"]
mod workload;

use workload::{BoxError, Mode, Running, Summary, Workload};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Inserts, updates, deletes and reads a table through its old and its new column, and counts what the application
/// would notice of a migration. Ends with exit status 0 when that is nothing, else with 1.
#[derive(Parser)]
#[command(name = "workload")]
struct Arguments {
    /// Address of the database (without TLS)
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    url: String,
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Statements per second and client; 0: as fast as it goes
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// Ends after so many seconds; without any end: on SIGTERM or Ctrl-C
    #[arg(long)]
    seconds: Option<f64>,
    /// Ends when this file appears
    #[arg(long, value_name = "PATH")]
    until_file: Option<PathBuf>,
    #[arg(long, default_value = "public.orders")]
    table: String,
    /// The column that the migration removes
    #[arg(long, default_value = "status")]
    old: String,
    /// The column that replaces it
    #[arg(long, default_value = "status_v2")]
    new: String,
    /// Values for these columns
    #[arg(long, value_delimiter = ',', value_name = "WORD,…")]
    values: Vec<String>,
    /// What the application writes: old, new, both, neither or mixed; with what it reads: old/new
    #[arg(long, default_value = "old")]
    mode: Mode,
    /// A file with the mode: writing another one into it deploys that, client by client
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Rows that are there already are updated up to this key [default: the highest key]
    #[arg(long, value_name = "KEY")]
    rows: Option<i64>,
    /// application_name: NAME-1, NAME-2, …
    #[arg(long, default_value = "web")]
    name: String,
    /// Writes the summary into this file too
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(summary) if summary.unnoticed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<Summary, BoxError> {
    let mut end = End::new(arguments.seconds, arguments.until_file)?;
    let control = arguments.control.as_deref();
    let mut mode = control.map_or(Ok(arguments.mode), |path| read_mode(path, arguments.mode))?;
    let mut workload = Workload {
        url: arguments.url,
        table: arguments.table,
        old: arguments.old,
        new: arguments.new,
        rows: arguments.rows,
        clients: arguments.clients,
        rate: arguments.rate,
        name: arguments.name,
        mode,
        ..Workload::default()
    };
    if !arguments.values.is_empty() {
        workload.values = arguments.values;
    }
    let running = workload.start().await?;
    eprintln!("workload: {} clients run {mode}", arguments.clients);
    while !end.reached().await {
        if let Some(path) = control {
            mode = follow(&running, path, mode).await?;
        }
    }
    let summary = running.stop().await;
    let json = serde_json::to_string_pretty(&summary)?;
    if let Some(path) = arguments.out {
        std::fs::write(path, format!("{json}\n"))?;
    }
    eprint!("{summary}");
    println!("{json}");
    Ok(summary)
}

/// Deploys the mode in the control file if it is another one.
async fn follow(running: &Running, path: &Path, current: Mode) -> Result<Mode, BoxError> {
    let wanted = read_mode(path, current)?;
    if wanted != current {
        running.deploy(wanted).await;
        eprintln!("workload: deployed {wanted}");
    }
    Ok(wanted)
}

/// A control file that is missing or just being written changes nothing; one that says something else is an error.
fn read_mode(path: &Path, current: Mode) -> Result<Mode, BoxError> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(current),
        Ok(text) => text.parse().map_err(|problem| format!("{}: {problem}", path.display()).into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(current),
        Err(error) => Err(format!("{}: {error}", path.display()).into()),
    }
}

/// Whatever comes first: the time, the file, a signal.
struct End {
    at: Option<tokio::time::Instant>,
    file: Option<PathBuf>,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl End {
    fn new(seconds: Option<f64>, file: Option<PathBuf>) -> Result<Self, BoxError> {
        let length = seconds.map(Duration::try_from_secs_f64).transpose()?;
        Ok(Self {
            at: length.map(|length| tokio::time::Instant::now() + length),
            file,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits a moment and looks.
    async fn reached(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => return true,
            _ = self.interrupt.recv() => return true,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        self.at.is_some_and(|at| at <= tokio::time::Instant::now()) || self.file.as_ref().is_some_and(|file| file.exists())
    }
}
