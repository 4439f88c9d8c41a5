//! The way through the table: workers, what they share, and what holds them up. Filling and comparing walk alike.
//!
//! [`over_table`] goes through the table once and keeps nothing. The backfill's walk is kept in the database, region by
//! region, by [`crate::engine::Store::turn`]; `stage::backfill` drives it.

mod horizon;
mod meter;
mod shared;

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::sync::Mutex;

use crate::engine::{Chunk, Engine, Watermark};
use crate::error::{Code, Error, Result};
use crate::run::Cx;

pub use shared::{Purpose, Shared};

/// The sessions of a walk's workers. The first is the run's own.
pub fn sessions(cx: &Cx<'_>) -> Vec<Arc<dyn Engine>> {
    let more = (1..cx.plan().backfill.workers).map(|_| cx.job.engine.another());
    std::iter::once(cx.job.engine.clone()).chain(more).collect()
}

/// Lets several workers work until all have ended. The first one that fails ends the others at their next batch.
pub async fn together<F: Future<Output = Result<()>>>(shared: &Shared, workers: impl Iterator<Item = F>) -> Result<()> {
    let ended = join_all(workers.map(|work| async {
        let result = work.await;
        if result.is_err() {
            shared.end();
        }
        result
    }));
    let mut failures: Vec<Error> = ended.await.into_iter().filter_map(Result::err).collect();
    // Why it began says more than what followed from it.
    let first = failures.iter().position(|e| e.code() != Code::Interrupted).unwrap_or(0);
    if failures.is_empty() { Ok(()) } else { Err(failures.swap_remove(first)) }
}

/// Once through the whole table, `work` on each chunk. It says how many rows it saw.
pub async fn over_table(cx: &Cx<'_>, purpose: Purpose<'_>, work: impl AsyncFn(&dyn Engine, &Chunk) -> Result<u64>) -> Result<()> {
    let shared = Shared::new(cx, purpose).await?;
    let front: Mutex<Option<Watermark>> = Mutex::new(None);
    let sessions = sessions(cx);
    let worker = async |engine: &dyn Engine| {
        loop {
            shared.ready(cx).await?;
            let mut mark = front.lock().await;
            let chunk = engine.next_chunk(&cx.resolved, cx.resolved.walk, mark.as_ref(), shared.rows(), 1).await?;
            let Some(chunk) = chunk else { return Ok(()) };
            *mark = Some(chunk.next.clone());
            drop(mark);
            let began = Instant::now();
            let rows = work(engine, &chunk).await?;
            shared.finished(cx, rows, began.elapsed()).await?;
        }
    };
    loop {
        together(&shared, sessions.iter().map(|engine| worker(engine.as_ref()))).await?;
        // Rewritten while the last chunks were looked at: its rows lie elsewhere now, and the walk begins anew.
        let mark = front.lock().await;
        if cx.engine().next_chunk(&cx.resolved, cx.resolved.walk, mark.as_ref(), 1, 1).await?.is_none() {
            return Ok(());
        }
    }
}
