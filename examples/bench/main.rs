//! How fast a backfill is, and what an application feels of it: see `--help`, `examples/bench.sh` and docs/performance.md.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command: its table goes to stdout, its progress to stderr")]

mod application;
mod measure;
mod mysql;
mod shape;
mod way;

use std::process::ExitCode;

use clap::Parser;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use measure::{Run, median};
use shape::Shape;
use way::Way;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Fills a new column of the same table in several ways, one after the other, several rounds, and compares them: one single
/// UPDATE, keyset batches of 1,000 rows, and sete. Every way runs under the same sync trigger, in a copy of the same database.
///
/// Makes and drops databases and runs CHECKPOINT: for throwaway servers only.
#[derive(Parser)]
#[command(name = "bench")]
struct Arguments {
    /// Address of a throwaway server, as a superuser, without TLS: postgres://…/postgres, or mysql://…:port without a database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    url: String,
    /// What the table is like
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Shape::Plain])]
    shape: Vec<Shape>,
    /// How it is filled
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Way::ALL)]
    way: Vec<Way>,
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// With an application that reads and writes meanwhile, so many statements a second
    #[arg(long, default_value_t = 0.0)]
    live: f64,
    /// Lines for the plan of sete, like "[backfill]\nbatch_target = '20ms'"
    #[arg(long, default_value = "")]
    plan: String,
    /// Compares a pass of validate with one SELECT count(*) too
    #[arg(long)]
    validate: bool,
    /// The table as Markdown
    #[arg(long)]
    markdown: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), BoxError> {
    if way::is_mysql(&arguments.url) {
        return run_mysql(&arguments).await;
    }
    for shape in &arguments.shape {
        let base = measure::Base::make(&arguments.url, *shape, arguments.rows).await?;
        println!("\n{shape}: {} rows, heap {}, indexes {}, {}", base.rows, mib(base.heap), mib(base.indexes), base.version);
        let mut runs: Vec<Run> = Vec::new();
        for round in 1..=arguments.rounds {
            // Alternating, so that what the machine does besides falls on all of them.
            for way in &arguments.way {
                eprint!("round {round}, {way} … ");
                let run = measure::once(&base, *way, arguments.live, &arguments.plan).await?;
                eprintln!("{:.1} s", run.seconds);
                runs.push(run);
            }
        }
        println!("{}", table(&arguments, &runs));
        if arguments.validate {
            for workers in [1, 2] {
                let (scan, pass) = measure::validation(&base, workers, arguments.rounds).await?;
                println!("validate, {workers} worker(s): one SELECT count(*) {scan:.2} s, a pass {pass:.2} s, ratio {:.2}", pass / scan);
            }
        }
        base.remove().await?;
    }
    println!("memory of this process, all of the above in it: at most {}", measure::peak_memory()?);
    Ok(())
}

async fn run_mysql(arguments: &Arguments) -> Result<(), BoxError> {
    let base = mysql::Base::make(&arguments.url, arguments.rows).await?;
    println!("\nbigint key, three more indexes: {} rows, {}, {}", base.rows, mib(base.size), base.version);
    let mut runs: Vec<Run> = Vec::new();
    for round in 1..=arguments.rounds {
        for way in &arguments.way {
            eprint!("round {round}, {way} … ");
            let run = mysql::once(&base, *way, arguments.live, &arguments.plan).await?;
            eprintln!("{:.1} s", run.seconds);
            runs.push(run);
        }
    }
    println!("{}", table(arguments, &runs));
    base.remove().await?;
    println!("memory of this process, all of the above in it: at most {}", measure::peak_memory()?);
    Ok(())
}

fn table(arguments: &Arguments, runs: &[Run]) -> Table {
    let mut table = Table::new();
    table.load_style(if arguments.markdown { presets::ASCII_MARKDOWN } else { presets::UTF8_FULL_CONDENSED });
    table.set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["way", "time", "ratio", "WAL", "ratio", "heap", "indexes", "HOT", "batch p50", "p99", "max"];
    if arguments.live > 0.0 {
        header.extend(["app p50", "p99", "max", "idle p99", "ratio"]);
    }
    table.set_header(header);
    let of = |way: Way| runs.iter().filter(move |run| run.way == way);
    let first = arguments.way.first().copied().unwrap_or(Way::Single);
    let (base_time, base_wal) = (median(of(first).map(|r| r.seconds)), median(of(first).map(|r| r.wal as f64)));
    for way in &arguments.way {
        let middle = |pick: fn(&Run) -> f64| median(of(*way).map(pick));
        let mut row = vec![
            way.to_string(),
            format!("{:.1} s", middle(|r| r.seconds)),
            format!("{:.2}", middle(|r| r.seconds) / base_time),
            mib(middle(|r| r.wal as f64) as u64),
            format!("{:.2}", middle(|r| r.wal as f64) / base_wal),
            format!("×{:.2}", middle(|r| r.heap_growth)),
            format!("×{:.2}", middle(|r| r.index_growth)),
            format!("{:.0} %", middle(|r| r.hot) * 100.0),
            format!("{:.1} ms", middle(|r| r.batch_ms[0])),
            format!("{:.1} ms", middle(|r| r.batch_ms[1])),
            format!("{:.1} ms", middle(|r| r.batch_ms[2])),
        ];
        if arguments.live > 0.0 {
            row.extend([
                format!("{:.1} ms", middle(|r| r.application[0])),
                format!("{:.1} ms", middle(|r| r.application[1])),
                format!("{:.1} ms", middle(|r| r.application[2])),
                format!("{:.1} ms", middle(|r| r.idle_p99)),
                format!("{:.2}", middle(|r| r.application[1] / r.idle_p99.max(0.001))),
            ]);
        }
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
