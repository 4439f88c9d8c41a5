//! The right to run: a lease row with an end and a fencing token, kept alive over a connection of its own.
//!
//! Not session state: session locks don't survive a transaction pooler. A holder whose session is gone is taken over at
//! once; one whose session hangs on is waited for until its lease ends.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::crash;
use crate::engine::Fence;
use crate::error::{Code, Error, Result};
use crate::report::Event;
use crate::run::{Job, Stop};
use crate::state::{Lease, Taken};

/// How long a lease lasts without being renewed.
const TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// A server needs a moment to notice that a session's client was killed.
const NOTICED: Duration = Duration::from_millis(500);

/// A lease that is being kept alive.
pub struct Held {
    pub fence: Fence,
    pub who: String,
    /// Raised when another runner has taken over, or when we can no longer say that none has.
    pub lost: Stop,
    keeper: JoinHandle<()>,
    engine: std::sync::Arc<dyn crate::engine::Engine>,
}

impl Held {
    pub async fn take(job: &Job, plan: &str, wait: Option<Duration>) -> Result<Held> {
        let who = holder();
        let began = Instant::now();
        crash::point("before taking the lease");
        loop {
            match job.lease_engine.take_lease(plan, &who, TTL).await? {
                Taken::Ours { token } => {
                    crash::point("after taking the lease");
                    return Ok(Held::keep(job, Fence { plan: plan.to_string(), token }, who));
                }
                Taken::Held(lease) if wait.is_some_and(|wait| began.elapsed() < wait) => {
                    job.reporter.report(&Event::LeaseWaiting { holder: lease.holder });
                    if job.stop.asked() {
                        return Err(Error::new(Code::Interrupted, "stopped while waiting for the lease"));
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Taken::Held(lease) if is_going(job, plan, &lease).await? => {}
                Taken::Held(lease) => {
                    return Err(Error::new(Code::LeaseHeld, format!("plan {plan} is being run by {} (lease until {})", lease.holder, lease.until)));
                }
            }
        }
    }

    fn keep(job: &Job, fence: Fence, who: String) -> Held {
        let (lost, engine) = (Stop::default(), job.lease_engine.clone());
        let keeper = tokio::spawn(keep_alive(engine.clone(), fence.clone(), lost.clone()));
        Held { fence, who, lost, keeper, engine }
    }

    /// Gives the lease back at once.
    pub async fn release(self) -> Result<()> {
        self.keeper.abort();
        if self.lost.asked() {
            return Ok(());
        }
        crash::point("before releasing the lease");
        self.engine.release_lease(&self.fence).await?;
        crash::point("after releasing the lease");
        Ok(())
    }
}

/// Whether the holder's session ends within a moment. One that gave the lease back was alive, and has done the work.
async fn is_going(job: &Job, plan: &str, held: &Lease) -> Result<bool> {
    let began = Instant::now();
    loop {
        let now = job.lease_engine.load(plan).await?.and_then(|state| state.lease).filter(|lease| lease.token == held.token);
        match now {
            Some(lease) if !lease.alive => return Ok(true),
            Some(_) if began.elapsed() < NOTICED => tokio::time::sleep(Duration::from_millis(50)).await,
            _ => return Ok(false),
        }
    }
}

/// Renews the lease at once, over a new connection if need be. False when another runner has taken over.
pub async fn renew(job: &Job, fence: &Fence) -> Result<bool> {
    job.lease_engine.renew_lease(fence, TTL).await
}

async fn keep_alive(engine: std::sync::Arc<dyn crate::engine::Engine>, fence: Fence, lost: Stop) {
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(if renewed.elapsed() > RENEW_EVERY * 2 { Duration::from_secs(1) } else { RENEW_EVERY }).await;
        match engine.renew_lease(&fence, TTL).await {
            Ok(true) => renewed = Instant::now(),
            Ok(false) => return lost.ask(),
            // While the server is away nobody can take over; the fence decides once it is back.
            Err(e) => tracing::warn!("the lease could not be renewed: {e}"),
        }
    }
}

/// Who we are, for others to read: user, host and process.
pub fn holder() -> String {
    let user = whoami::username().unwrap_or_else(|_| "unknown".into());
    let host = whoami::hostname().unwrap_or_else(|_| "unknown".into());
    format!("{user}@{host} pid {}", std::process::id())
}
