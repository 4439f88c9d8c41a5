//! `sete plan`.

mod markdown;
mod script;
mod text;

use std::path::PathBuf;

use super::context::{Context, PlanFile};
use super::format::Format;
use super::signals;
use crate::engine::Unfit;
use crate::error::{Result, exit};
use crate::preview::Preview;
use crate::run::{self, Job, Stop};

/// Show what a plan would do: exact SQL, locks, cost, time, and what stands in its way
///
/// Changes nothing. Exits with 3 when a finding blocks the plan, and with 6 when --check-data finds rows that don't convert.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  sete plan orders-status.toml
  sete plan orders-status.toml --format markdown >> pull-request.md")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// Check the file alone, without a database
    #[arg(long)]
    offline: bool,
    /// Try the conversion of every row too, in chunks, and count those that fail
    #[arg(long, conflicts_with_all = ["offline", "sql"])]
    check_data: bool,
    /// Print the statements as a script
    #[arg(long, conflicts_with_all = ["offline", "format"])]
    sql: bool,
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = Format::among(&[Format::Text, Format::Json, Format::Markdown]), help = "How to print it")]
    pub format: Format,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let file = context.read_plan(&args.plan)?;
    let limits = file.plan.ddl.clone();
    let preview = if args.offline { Preview::offline(&file.plan) } else { live(file, context, args.check_data).await? };
    match args.format {
        Format::Json => context.json(&preview)?,
        Format::Markdown => context.data(markdown::page(&preview).trim_end())?,
        _ if args.sql => context.data(script::page(&preview, &limits).trim_end())?,
        _ => context.data(text::page(&preview).trim_end())?,
    }
    Ok(match preview.data {
        _ if preview.blocked => exit::BLOCKED,
        Some(data) if data.unfit > 0 => exit::DIVERGED,
        _ => exit::DONE,
    })
}

async fn live(file: PlanFile, context: &Context, check_data: bool) -> Result<Preview> {
    let engine = context.connect(&file.plan)?;
    // Nothing is run, so nothing needs a lease.
    let job = Job {
        lease_engine: engine.clone(),
        engine,
        reporter: context.reporter(Format::Text),
        stop: Stop::default(),
        plan: file.plan,
        text: file.text,
    };
    let (catalog, resolved, findings) = run::preview(&job).await?;
    let preview = Preview::live(&job.plan, &catalog, resolved.as_ref(), &findings, job.engine.as_ref());
    let data = match resolved {
        Some(resolved) if check_data && !preview.blocked => {
            Some(signals::until_stopped(&job.stop, job.reporter.as_ref(), run::check_data(&job, catalog, resolved)).await?)
        }
        _ => None,
    };
    Ok(Preview { data, ..preview })
}

/// Header lines that text and markdown share: a word and what it says.
fn header(p: &Preview) -> Vec<(&'static str, String)> {
    use crate::report::figures::{bytes, number};
    let mut out = vec![("change", p.change.clone()), ("table", p.table.clone())];
    if let Some(live) = &p.live {
        out.push(("server", format!("{}, database {} at {}", live.server, live.database, live.address)));
        if let (Some(rows), Some(size)) = (live.rows, live.bytes) {
            out.push(("size", format!("about {} rows, {}", number(rows), bytes(size))));
            out.push(("key", live.key.clone().unwrap_or_else(|| "none".to_string())));
        }
        out.extend(live.walk.map(|walk| ("walk", word(&walk))));
    }
    out.push(("mode", format!("dual writes by {}, read switch by {}", word(&p.dual_write), word(&p.read_switch))));
    out
}

/// What --check-data found, a line each.
fn data(found: &Unfit) -> Vec<String> {
    use crate::report::figures::number;
    let mut out = vec![match found.unfit {
        0 => format!("{} rows looked at, all of them convert", number(found.rows)),
        unfit => format!("{} of {} rows don't convert; correct them, or set backfill.on_bad_row = \"set_aside\"", number(unfit), number(found.rows)),
    }];
    out.extend(
        found
            .sample
            .iter()
            .map(|bad| format!("row {} with {}: {}", bad.key, bad.value.as_ref().map_or("NULL".into(), |v| format!("{v:?}")), bad.message)),
    );
    out
}

/// A value's name in plans and JSON.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_string)).unwrap_or_default()
}

/// "catalog; ACCESS EXCLUSIVE on public.orders".
fn cost(action: &crate::preview::ActionPreview) -> String {
    let mut parts = vec![word(&action.class)];
    parts.extend(action.locks.iter().map(|l| format!("{} on {}", l.mode, l.relation)));
    if action.online {
        parts.push("online".to_string());
    }
    parts.join("; ")
}

/// "about 400,000 rows in 400 batches, 6 s or more".
fn estimate(b: &crate::preview::BackfillPreview) -> String {
    use crate::report::figures::{number, span};
    format!("about {} rows in {} batches, {} or more", number(b.rows), number(b.batches), span(b.seconds))
}

#[cfg(test)]
mod tests;
