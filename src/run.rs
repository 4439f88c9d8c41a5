//! The drive loop: take the lease, run the stage, move the state, save it, report it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::{Catalog, Engine};
use crate::error::Result;
use crate::finding::Finding;
use crate::plan::Plan;
use crate::report::Reporter;
use crate::resolve::Resolved;
use crate::stage::Stage;
use crate::state::{Pass, StageState};

/// A plan and the database it is for.
pub struct Job {
    pub plan: Plan,
    /// The plan file's text, kept in the database.
    pub text: String,
    pub engine: Arc<dyn Engine>,
    /// A second connection for the lease: it says "alive" while the first one works.
    pub lease_engine: Arc<dyn Engine>,
    pub reporter: Arc<dyn Reporter>,
    pub stop: Stop,
}

/// Asked for by Ctrl-C or SIGTERM; looked at between batches.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far a step goes.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// Go on until this stage is done.
    pub through: Option<Stage>,
    /// Wait for conditions this long; `Duration::MAX` without an end. None: don't wait.
    pub wait: Option<Duration>,
    /// The drop is confirmed.
    pub yes: bool,
}

/// The plan resolved against the live catalog, with all remarks. Changes nothing. None when there is too little to resolve.
pub async fn preview(_job: &Job) -> Result<(Catalog, Option<Resolved>, Vec<Finding>)> {
    todo!()
}

/// Runs the current stage, or all through `options.through`. The last stage run, as it stands now: `Done` or `Waiting`.
pub async fn step(_job: &Job, _options: &StepOptions) -> Result<StageState> {
    todo!()
}

/// Undoes the last stage that has begun.
pub async fn back(_job: &Job) -> Result<Stage> {
    todo!()
}

/// One extra divergence pass, repairing what it finds if asked to.
pub async fn validate(_job: &Job, _repair: bool) -> Result<Pass> {
    todo!()
}

/// Tries the rejected rows again. How many are left.
pub async fn retry_rejects(_job: &Job) -> Result<u64> {
    todo!()
}
