//! What every command needs: its streams, the plan file, the database.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::format::Format;
use crate::engine::{self, Engine};
use crate::error::{Code, Error, Result};
use crate::plan::{self, EngineKind, Plan};
use crate::report::{Json, Plain, Reporter, Sink, Terminal};
use crate::run::{Job, Stop};
use crate::secret::DbUrl;
use crate::state::PlanState;

pub struct Context {
    url: Option<DbUrl>,
    verbose: u8,
    out: Sink,
    err: Sink,
}

/// A plan and the text that it was read from.
pub struct PlanFile {
    pub plan: Plan,
    pub text: String,
}

impl Context {
    pub fn new(url: Option<String>, verbose: u8) -> Self {
        Context { url: url.map(DbUrl::new), verbose, out: Sink::stdout(), err: Sink::stderr() }
    }

    /// Writes a command's result to stdout.
    pub fn data(&self, text: &str) -> Result<()> {
        self.out.line(text).map_err(|e| Error::new(Code::Internal, format!("stdout can't be written: {e}")))
    }

    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|e| Error::new(Code::Internal, format!("no JSON: {e}")))?;
        self.data(&text)
    }

    /// Writes a message to stderr.
    pub fn note(&self, text: &str) {
        // Nobody is left to be told that nobody listens.
        self.err.line(text).ok();
    }

    pub fn read_plan(&self, path: &Path) -> Result<PlanFile> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| Error::PlanUnreadable { path: shown.clone(), source })?;
        match plan::parse(&text) {
            Ok(plan) => Ok(PlanFile { plan, text }),
            Err(problems) => Err(Error::PlanInvalid { path: shown, text, problems }),
        }
    }

    /// A connection to the plan's database.
    pub fn connect(&self, plan: &Plan) -> Result<Arc<dyn Engine>> {
        engine::connect(plan.engine, &self.address(plan.database.as_deref())?, &format!("sete {}", plan.id))
    }

    /// A connection to the database that no plan names.
    pub fn connect_without_plan(&self) -> Result<Arc<dyn Engine>> {
        let address = self.address(None)?;
        let scheme = address.expose().split("://").next().unwrap_or_default();
        let kind = if matches!(scheme, "mysql" | "mariadb") { EngineKind::Mysql } else { EngineKind::Postgres };
        engine::connect(kind, &address, "sete")
    }

    /// A plan ready to run, with a connection of its own for the lease.
    pub fn job(&self, file: PlanFile, format: Format) -> Result<Job> {
        let PlanFile { plan, text } = file;
        let address = self.address(plan.database.as_deref())?;
        let engine = engine::connect(plan.engine, &address, &format!("sete {}", plan.id))?;
        let lease_engine = engine::connect(plan.engine, &address, &format!("sete {} lease", plan.id))?;
        Ok(Job { plan, text, engine, lease_engine, reporter: self.reporter(format), stop: Stop::default() })
    }

    pub fn reporter(&self, format: Format) -> Arc<dyn Reporter> {
        match format {
            Format::Json => Arc::new(Json::new(Sink::stdout())),
            // A bar and a log on the same lines would overwrite each other.
            _ if self.verbose == 0 && std::io::stderr().is_terminal() => Arc::new(Terminal::new(Sink::stderr())),
            _ => Arc::new(Plain::new(Sink::stderr())),
        }
    }

    /// --url, else the variable that the plan names, else DATABASE_URL. A plan's variable that is not set is an error: the
    /// next best database may be the wrong one.
    fn address(&self, plan_variable: Option<&str>) -> Result<DbUrl> {
        let missing = |message: String| Error::new(Code::NoDatabase, message);
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty()).map(DbUrl::new);
        match (&self.url, plan_variable) {
            (Some(url), _) => Ok(url.clone()),
            (None, Some(name)) => set(name).ok_or_else(|| missing(format!("the plan's database is in ${name}, which is not set"))),
            (None, None) => set("DATABASE_URL").ok_or_else(|| missing("no database address was given".to_string())),
        }
    }
}

/// What the database knows of a plan that must have run.
pub async fn known(engine: &dyn Engine, plan: &str) -> Result<PlanState> {
    let state = engine.load(plan).await?;
    state.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("the database knows no plan `{plan}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_and_a_named_variable_is_not_passed_over() {
        let given = Context::new(Some("postgres://db/x".into()), 0);
        assert_eq!(given.address(Some("SETE_TEST_NOT_SET")).unwrap().expose(), "postgres://db/x");
        let error = Context::new(None, 0).address(Some("SETE_TEST_NOT_SET")).unwrap_err();
        assert_eq!(error.code(), Code::NoDatabase);
        assert!(error.to_string().contains("$SETE_TEST_NOT_SET"));
    }
}
