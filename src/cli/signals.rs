//! Ctrl-C and SIGTERM: the first asks, the second doesn't.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Code, Error, Result};
use crate::report::Event;
use crate::run::Job;

/// The outcome of `work`, which is asked to stop at the first signal and dropped at the second.
pub async fn until_stopped<T>(job: &Job, work: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    job.stop.ask();
    job.reporter.report(&Event::Note { text: "finishing the current batch… (once more to stop at once)".to_string() });
    tokio::select! {
        done = &mut work => done,
        _ = interrupt.recv() => Err(at_once()),
        _ = terminate.recv() => Err(at_once()),
    }
}

fn at_once() -> Error {
    Error::new(Code::Interrupted, "stopped at once; the server takes back the batch that was under way")
}

fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|e| Error::new(Code::Internal, format!("signals can't be listened for: {e}")))
}
