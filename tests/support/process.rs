//! A server's process and folder, gone when dropped.
//!
//! The server runs under a small `sh` of its own, which holds the read end of a pipe. When the test process ends, however it
//! ends (return, panic, kill -9), the pipe closes, and the `sh` stops the server and removes the folder. Statics, which Rust
//! never drops, need no more than that.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Makes the server's data if there is none, and runs the server until it ends. A word on the pipe is a signal, which stops the
/// server and leaves its data; the pipe's end takes all away.
const WATCHDOG: &str = r#"
folder=$1 init=$2 last=$3
shift 3 # what is left is the server
exec 3<&0 </dev/null >>"$folder/log" 2>&1
if ! [ -e "$folder/data" ]; then
    (eval "$init") 3<&- || { rm -rf "$folder/data"; exit 1; }
fi
"$@" 3<&- &
server=$!
(
    read -r signal <&3 || { signal=$last; touch "$folder/end"; }
    # Again and again: sh starts its jobs deaf to some, until the server has handlers of its own.
    while kill -$signal $server; do sleep 0.1; done
) &
reader=$!
wait $server
kill $reader
if [ -e "$folder/end" ]; then rm -rf "$folder"; fi
"#;

pub struct Process {
    pub folder: PathBuf,
    pub port: u16,
    watchdog: Option<Child>,
}

impl Process {
    /// With a folder, not yet started.
    pub fn new(kind: &str) -> Process {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("sete-{kind}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        Process { folder, port: free_port(), watchdog: None }
    }

    /// On another port: somebody may have taken the one between our look and the server's start.
    pub fn change_port(&mut self) {
        self.port = free_port();
    }

    /// Starts the server and waits until it is ready; false if it ends instead. `init` is a script that makes `$folder/data`;
    /// `last` the signal that ends the server at once.
    pub fn run(&mut self, init: &str, last: &str, server: &[String], ready: impl Fn() -> bool) -> bool {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&self.folder)
            .args([init, last])
            .args(server)
            .current_dir(&self.folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the tests is not for the server: it learns of their end from the pipe.
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(90) {
            if ready() {
                self.watchdog = Some(watchdog);
                return true;
            }
            if watchdog.try_wait().expect("the watchdog is ours to wait for").is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.watchdog = Some(watchdog);
        self.end(last);
        false
    }

    /// Stops the server by a signal; its data stay.
    pub fn end(&mut self, signal: &str) {
        let Some(mut watchdog) = self.watchdog.take() else { return };
        if let Some(mut pipe) = watchdog.stdin.take() {
            // A watchdog that has ended already can't be told anything, and needn't.
            pipe.write_all(format!("{signal}\n").as_bytes()).ok();
        }
        watchdog.wait().expect("the watchdog is ours to wait for");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.stdin.take());
            watchdog.wait().ok();
        }
        // A stopped server has no watchdog that would do it.
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
