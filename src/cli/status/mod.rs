//! `sete status`.

mod prometheus;
mod text;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::format::Format;
use crate::engine::Engine;
use crate::error::{Code, Error, Result, exit};
use crate::plan::{self, Plan};
use crate::status::{self, StatusReport};

pub use text::writer;

const REDRAW: Duration = Duration::from_secs(2);
/// Clears the screen and goes to its top.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Show where each plan stands and what it waits for
///
/// Without a plan file, all plans that have begun in the database. A plan that has not begun is known by its file only.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  sete status orders-status.toml
  sete status --url \"$DATABASE_URL\" --format json")]
pub struct Args {
    /// Plan files
    #[arg(value_name = "PLAN")]
    plans: Vec<PathBuf>,
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = Format::among(&[Format::Text, Format::Json, Format::Prometheus]), help = "How to print it")]
    pub format: Format,
    /// Show it again every 2 s, on a terminal
    #[arg(long)]
    watch: bool,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    if args.watch && (args.format != Format::Text || !std::io::stdout().is_terminal()) {
        return Err(Error::new(Code::Usage, "--watch is for text on a terminal; elsewhere, run `sete status` as often as you like"));
    }
    let sources = sources(&args, context)?;
    loop {
        let reports = look(&sources).await?;
        let text = match args.format {
            Format::Json => return context.json(&reports).map(|()| exit::DONE),
            Format::Prometheus => prometheus::page(&reports),
            _ => text::page(&reports),
        };
        if !args.watch {
            context.data(text.trim_end())?;
            return Ok(exit::DONE);
        }
        context.data(&format!("{CLEAR}{text}"))?;
        tokio::time::sleep(REDRAW).await;
    }
}

/// A database to look at, for one plan or for all that it knows.
struct Source {
    engine: Arc<dyn Engine>,
    plan: Option<Plan>,
}

fn sources(args: &Args, context: &Context) -> Result<Vec<Source>> {
    if args.plans.is_empty() {
        return Ok(vec![Source { engine: context.connect_without_plan()?, plan: None }]);
    }
    let mut out = Vec::new();
    for path in &args.plans {
        let plan = context.read_plan(path)?.plan;
        out.push(Source { engine: context.connect(&plan)?, plan: Some(plan) });
    }
    Ok(out)
}

async fn look(sources: &[Source]) -> Result<Vec<StatusReport>> {
    let mut out = Vec::new();
    for Source { engine, plan } in sources {
        match plan {
            Some(plan) => out.push(look_at(engine.as_ref(), plan).await?),
            None => {
                for id in engine.list().await? {
                    if let Some(plan) = kept(engine.as_ref(), &id).await? {
                        out.push(look_at(engine.as_ref(), &plan).await?);
                    }
                }
            }
        }
    }
    Ok(out)
}

/// The plan as the database keeps it. None when it was forgotten a moment ago.
async fn kept(engine: &dyn Engine, id: &str) -> Result<Option<Plan>> {
    let Some(state) = engine.load(id).await? else { return Ok(None) };
    let invalid = |problems| Error::PlanInvalid { path: format!("{id} (kept in the database)"), text: state.text.clone(), problems };
    plan::parse(&state.text).map(Some).map_err(invalid)
}

async fn look_at(engine: &dyn Engine, plan: &Plan) -> Result<StatusReport> {
    let state = engine.load(&plan.id).await?;
    let strays = if state.is_some() { engine.stray_writers(&plan.id).await? } else { Vec::new() };
    Ok(status::report(plan, state.as_ref(), &strays, engine.now().await?))
}
