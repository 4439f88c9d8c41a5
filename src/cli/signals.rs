//! Ctrl-C and SIGTERM: the first asks, the second doesn't.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Code, Error, Result};
use crate::report::{Event, Reporter};
use crate::run::Stop;

/// The outcome of `work`, which is asked to stop at the first signal and dropped at the second.
pub async fn until_stopped<T>(stop: &Stop, reporter: &dyn Reporter, work: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    stop.ask();
    reporter.report(&Event::Note { text: "finishing the current batch… (once more to stop at once)".to_string() });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Plain, Sink};
    use std::time::Duration;

    fn kill(signal: &str) {
        let me = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &me]).status().unwrap().success());
    }

    async fn asked(stop: &Stop) {
        while !stop.asked() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One test, since a signal reaches all that listen.
    #[tokio::test]
    async fn the_first_signal_asks_and_the_second_does_not() {
        let (stop, quiet) = (Stop::default(), Plain::new(Sink::new(std::io::sink())));
        let obedient = async {
            kill("-TERM");
            asked(&stop).await;
            Ok(7)
        };
        assert_eq!(until_stopped(&stop, &quiet, obedient).await.unwrap(), 7);

        let stop = Stop::default();
        let stubborn = async {
            kill("-INT");
            asked(&stop).await;
            kill("-INT");
            std::future::pending::<Result<()>>().await
        };
        assert_eq!(until_stopped(&stop, &quiet, stubborn).await.unwrap_err().code(), Code::Interrupted);
    }
}
