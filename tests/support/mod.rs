//! Throwaway servers, the program itself, and an application: what the tests are made of.

pub mod mysql;
pub mod postgres;
mod process;
pub mod sete;
pub mod trials;
#[allow(dead_code, reason = "the example uses more of it")]
pub mod workload;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Waits until something comes to hold that others bring about.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited for a minute in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal: `-INT`.
pub fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success(), "kill {name}");
}
