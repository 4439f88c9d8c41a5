//! Named points at which a test can kill the process: `SETE_CRASH_AT=NAME`. Compiled in with the feature `crash-points` only.
//! With `SETE_CRASH_LOG=FILE` every point that is passed is appended there, which is how the tests know them all. A point
//! that is passed again is called `NAME #2` then, and so on.

/// Passes the point `name`, or dies there as by kill -9.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    use std::collections::HashMap;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};
    static PASSED: Mutex<Option<HashMap<String, u32>>> = Mutex::new(None);
    let (log, at) = (std::env::var("SETE_CRASH_LOG"), std::env::var("SETE_CRASH_AT"));
    if log.is_err() && at.is_err() {
        return;
    }
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    let times = passed.get_or_insert_default().entry(name.to_string()).or_default();
    *times += 1;
    let name = if *times == 1 { name.to_string() } else { format!("{name} #{times}") };
    if let Ok(path) = log {
        let logged = std::fs::OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| writeln!(file, "{name}"));
        logged.unwrap_or_else(|e| panic!("the crash log can't be written: {e}"));
    }
    if at.is_ok_and(|at| at == name) {
        std::process::abort();
    }
}

#[cfg(not(feature = "crash-points"))]
pub fn point(_name: &str) {}
