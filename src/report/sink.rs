//! Where text goes out: the only place that writes to stdout or stderr.

use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// A stream that takes whole lines.
pub struct Sink(Mutex<Box<dyn Write + Send>>);

impl Sink {
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Sink(Mutex::new(Box::new(out)))
    }

    pub fn stdout() -> Self {
        Sink::new(io::stdout())
    }

    pub fn stderr() -> Self {
        Sink::new(io::stderr())
    }

    /// Writes the text and a line's end. A reader that has gone (`sete status | head -1`) is no error.
    pub fn line(&self, text: &str) -> io::Result<()> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// What a test reads back of what was written.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Captured(std::sync::Arc<Mutex<Vec<u8>>>);

#[cfg(test)]
impl Captured {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gone(ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(Sink::new(Gone(ErrorKind::BrokenPipe)).line("x").is_ok());
        assert!(Sink::new(Gone(ErrorKind::StorageFull)).line("x").is_err());
    }
}
