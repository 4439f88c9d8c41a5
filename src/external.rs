//! A command of the user's own: run through the shell, its output told line by line.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::error::{Code, Error, Result};
use crate::report::Event;
use crate::run::Cx;
use crate::secret;

/// Waits until it ends; one that must be stopped before is killed.
pub async fn run(cx: &Cx<'_>, command: &str) -> Result<()> {
    let failed = |what: String| Error::new(Code::External, what);
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| failed(format!("it can't be started: {e}")))?;
    let (told, mut lines) = mpsc::channel::<String>(100);
    for stream in [child.stdout.take().map(Stream::Out), child.stderr.take().map(Stream::Err)].into_iter().flatten() {
        tokio::spawn(tell(stream, told.clone()));
    }
    drop(told);
    let mut last = String::new();
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => {
                    last = secret::mask(&line);
                    cx.report(Event::ExternalOutput { line: last.clone() }).await?;
                }
                None => break,
            },
            () = tokio::time::sleep(std::time::Duration::from_millis(200)) => cx.check()?,
        }
    }
    let status = child.wait().await.map_err(|e| failed(format!("nobody knows how it ended: {e}")))?;
    if status.success() { Ok(()) } else { Err(failed(format!("it ended with {status}; its last line was: {last}"))) }
}

enum Stream {
    Out(tokio::process::ChildStdout),
    Err(tokio::process::ChildStderr),
}

/// Ends with the stream, or when nobody listens any more.
async fn tell(stream: Stream, told: mpsc::Sender<String>) {
    let reader: Box<dyn tokio::io::AsyncRead + Unpin + Send> = match stream {
        Stream::Out(stream) => Box::new(stream),
        Stream::Err(stream) => Box::new(stream),
    };
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if told.send(line).await.is_err() {
            return;
        }
    }
}
