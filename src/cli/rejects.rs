//! `sete rejects`.

use std::path::PathBuf;

use serde_json::json;

use super::context::{Context, known};
use super::format::Format;
use super::signals;
use crate::error::{Result, exit};
use crate::report::figures::number;
use crate::run;
use crate::state::Reject;

/// More are counted, not listed: what is wrong with them shows long before.
const SHOWN: u32 = 1000;

/// List the rows whose conversion failed, with the server's message
///
/// Exits with 6 when there are any.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sete rejects orders-status.toml --retry")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// Try them again first, after you have corrected them
    #[arg(long)]
    retry: bool,
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = Format::among(&[Format::Text, Format::Json]), help = "How to print them")]
    pub format: Format,
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let file = context.read_plan(&args.plan)?;
    let id = file.plan.id.clone();
    let (count, rejects) = if args.retry {
        let job = context.job(file, Format::Text)?;
        signals::until_stopped(&job.stop, job.reporter.as_ref(), run::retry_rejects(&job)).await?;
        job.engine.rejects(&id, SHOWN).await?
    } else {
        let engine = context.connect(&file.plan)?;
        known(engine.as_ref(), &id).await?;
        engine.rejects(&id, SHOWN).await?
    };
    match args.format {
        Format::Json => context.json(&json!({"plan": id, "count": count, "rejects": rejects}))?,
        _ => context.data(&text(count, &rejects))?,
    }
    Ok(if count == 0 { exit::DONE } else { exit::DIVERGED })
}

fn text(count: u64, rejects: &[Reject]) -> String {
    if count == 0 {
        return "no rejected rows".to_string();
    }
    let value = |r: &Reject| r.value.as_ref().map_or("NULL".to_string(), |v| format!("{v:?}"));
    let mut out = format!("rejected rows: {}", number(count));
    for r in rejects {
        out += &format!("\n  {}  {}  {}", r.key, value(r), r.message);
    }
    match count.saturating_sub(rejects.len() as u64) {
        0 => out,
        more => out + &format!("\n  and {} more", number(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_counted() {
        let reject = Reject { key: "(17)".into(), value: Some("HAPPY ".into()), message: "invalid input value".into() };
        assert_eq!(text(1200, &[reject]), "rejected rows: 1,200\n  (17)  \"HAPPY \"  invalid input value\n  and 1,199 more");
        assert_eq!(text(0, &[]), "no rejected rows");
    }
}
