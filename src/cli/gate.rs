//! `sete gate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tokio::time::Instant;

use super::context::Context;
use super::format::Format;
use crate::engine::Engine;
use crate::error::{Code, Error, Result, exit};
use crate::gate::{self, Deploy, GateReport};
use crate::plan::{Plan, duration};
use crate::report::figures::{number, time};
use crate::run;

const POLL: Duration = Duration::from_secs(2);

/// Tell a CI job whether a deploy may go out
///
/// Exits with 0 when the gate is open and with 4, and the reason, when it is closed.
#[derive(clap::Args)]
#[command(after_help = "\
The gates open on evidence:
  write-both  when expand is done (app mode; not needed in trigger mode)
  read-new    when validate is done
  write-new   when read_switch is done
  drop        when stop_writes is done and its soak has passed

Example:
  sete gate orders-status.toml --for read-new --wait 30m")]
pub struct Args {
    /// The plan file
    plan: PathBuf,
    /// The deploy that wants to go out
    #[arg(long = "for", value_name = "DEPLOY", value_parser = deploys())]
    deploy: Deploy,
    /// Wait this long for it to open, like 30m
    #[arg(long, value_name = "FOR", value_parser = duration::parse)]
    wait: Option<Duration>,
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = Format::among(&[Format::Text, Format::Json]), help = "How to print it")]
    pub format: Format,
}

fn deploys() -> impl TypedValueParser<Value = Deploy> {
    PossibleValuesParser::new(Deploy::ALL.map(Deploy::name)).try_map(|name| Deploy::from_name(&name).ok_or("no such deploy"))
}

pub async fn run(args: Args, context: &Context) -> Result<u8> {
    let plan = context.read_plan(&args.plan)?.plan;
    let engine = context.connect(&plan)?;
    let began = Instant::now();
    let report = loop {
        let report = look(&plan, engine.as_ref(), args.deploy).await?;
        let left = args.wait.unwrap_or_default().saturating_sub(began.elapsed());
        if report.open || left.is_zero() {
            break report;
        }
        tokio::time::sleep(POLL.min(left)).await;
    };
    match (args.format, report.open) {
        (Format::Json, open) => {
            context.json(&report)?;
            Ok(if open { exit::DONE } else { Code::GateClosed.exit() })
        }
        (_, true) => {
            context.data(&format!("open: {} for {}: {}", args.deploy.name(), plan.id, report.reason))?;
            Ok(exit::DONE)
        }
        (_, false) => Err(Error::new(Code::GateClosed, closed(&report))),
    }
}

async fn look(plan: &Plan, engine: &dyn Engine, deploy: Deploy) -> Result<GateReport> {
    let state = engine.load(&plan.id).await?;
    let strays = if state.is_some() { engine.stray_writers(&plan.id).await? } else { Vec::new() };
    let report = gate::evaluate(plan, state.as_ref(), &strays, engine.now().await?, deploy);
    // What the state rows say was true when they were written; a gate opens on what is true now.
    match &state {
        Some(state) if report.open => match run::gate_sync(plan, engine, state).await {
            Ok(()) => Ok(report),
            Err(e) if e.code() == Code::SyncBroken => Ok(GateReport { open: false, reason: e.to_string(), ..report }),
            Err(e) => Err(e),
        },
        _ => Ok(report),
    }
}

fn closed(report: &GateReport) -> String {
    let mut out = format!("{} is closed for {}: {}", report.deploy.name(), report.plan, report.reason);
    for s in &report.in_the_way {
        let (who, times, at) = (super::status::writer(s), number(s.count), time(s.last_at));
        out += &format!("\n  in the way: {who} wrote only `{}` {times} times, last at {at}", s.wrote_only);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{now, plan, state, stray};

    #[test]
    fn a_closed_gate_says_why_and_who() {
        let strays = [stray("web-3", "2026-01-02T05:59:00Z")];
        insta::assert_snapshot!(closed(&gate::evaluate(&plan(), Some(&state(5)), &strays, now(), Deploy::Drop)));
    }
}
