//! What can be known of a plan before anything is done: it changes nothing.

use std::cell::RefCell;

use super::{Cx, Job, new_state, refuse_another_table, refuse_edits};
use crate::engine::{Catalog, Fence, Unfit};
use crate::error::Result;
use crate::finding::Finding;
use crate::resolve::{Resolved, resolve};
use crate::walk::{self, Purpose};
use crate::{change, preflight};

/// The plan resolved against the live catalog, with all remarks. Changes nothing. None when there is too little to resolve.
pub async fn preview(job: &Job) -> Result<(Catalog, Option<Resolved>, Vec<Finding>)> {
    let state = job.engine.load(&job.plan.id).await?;
    if let Some(state) = &state {
        refuse_edits(job, state)?;
    }
    let origin = state.as_ref().map(|s| &s.origin);
    let catalog = job.engine.catalog(&job.plan, &change::mapping(&job.plan.change), origin).await?;
    let findings = preflight::findings(&job.plan, &catalog, origin);
    match resolve(&job.plan, &catalog, origin) {
        Ok(resolved) => {
            refuse_another_table(&resolved, origin)?;
            Ok((catalog, Some(resolved), findings))
        }
        Err(_) if findings.iter().any(Finding::blocks) => Ok((catalog, None, findings)),
        Err(e) => Err(e),
    }
}

/// Every row's conversion tried, in chunks, with the plan's workers and throttles. Changes nothing.
pub async fn check_data(job: &Job, catalog: Catalog, resolved: Resolved) -> Result<Unfit> {
    let state = match job.engine.load(&job.plan.id).await? {
        Some(state) => state,
        None => new_state(job, &catalog, &resolved),
    };
    let sample = job.plan.validate.sample;
    // Nothing is written, so that no lease is needed.
    let fence = Fence { plan: state.id.clone(), token: 0 };
    let cx = Cx::new(job, catalog, resolved, state, fence);
    let found = RefCell::new(Unfit::default());
    walk::over_table(&cx, Purpose::Read, async |engine, chunk| {
        let seen = engine.unfit_rows(&cx.resolved, chunk, sample).await?;
        let mut found = found.borrow_mut();
        found.rows += seen.rows;
        found.unfit += seen.unfit;
        let room = (sample as usize).saturating_sub(found.sample.len());
        found.sample.extend(seen.sample.into_iter().take(room));
        Ok(seen.rows)
    })
    .await?;
    Ok(found.into_inner())
}
