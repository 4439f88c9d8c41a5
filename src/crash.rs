//! Named points at which a test can kill the process: `SETE_CRASH_AT=NAME`. Compiled in with the feature `crash-points` only.
//! With `SETE_CRASH_LOG=FILE` every point that is passed is appended there, which is how the tests know them all.

/// Passes the point `name`, or dies there as by kill -9.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    use std::io::Write;
    if let Ok(path) = std::env::var("SETE_CRASH_LOG") {
        let logged = std::fs::OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| writeln!(file, "{name}"));
        logged.unwrap_or_else(|e| panic!("the crash log can't be written: {e}"));
    }
    if std::env::var("SETE_CRASH_AT").is_ok_and(|at| at == name) {
        std::process::abort();
    }
}

#[cfg(not(feature = "crash-points"))]
pub fn point(_name: &str) {}
