//! Throwaway MySQL and MariaDB servers, under a watchdog like PostgreSQL's.
//!
//! Binaries: `SETE_MYSQL_97_BIN`, `SETE_MARIADB_1011_BIN` and so on, as tests/servers.sh exports them.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::free_port;

/// Makes the server's data if there is none, and runs the server until it ends. A part of it waits for a word on the pipe:
/// `stop` ends the server in order, `kill` at once, both leave its data; the pipe's end takes all away.
const WATCHDOG: &str = r#"
bin=$1 folder=$2
shift 2 # what is left are the server's arguments
exec 3<&0 </dev/null >>"$folder/log" 2>&1
if ! [ -e "$folder/data" ]; then
    # A temporary folder of its own: a server that starts clears the tables that others have in theirs.
    mkdir -p "$folder/tmp"
    TMPDIR=$folder/tmp "$bin/init" "$folder/data" 3<&- || { rm -rf "$folder/data"; exit 1; }
fi
"$bin/server" "$@" 3<&- &
server=$!
(
    read -r word <&3
    case "$word" in
    stop) signal=TERM ;;
    kill) signal=KILL ;;
    *) signal=KILL && touch "$folder/end" ;;
    esac
    # Again and again: sh starts its jobs deaf to some, until the server has handlers of its own.
    while kill -$signal $server; do sleep 0.1; done
) &
reader=$!
wait $server
kill $reader
if [ -e "$folder/end" ]; then rm -rf "$folder"; fi
"#;

/// A running server, gone with its data when dropped. Its user `root` has no password.
pub struct Server {
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
    options: Vec<String>,
    watchdog: Option<Child>,
}

/// What is installed, by the variable that says where: `MYSQL_97`, `MARIADB_1011`.
pub fn available() -> Vec<String> {
    let mut found: Vec<String> = std::env::vars()
        .filter(|(_, bin)| Path::new(bin).join("init").exists())
        .filter_map(|(name, _)| Some(name.strip_prefix("SETE_")?.strip_suffix("_BIN")?.to_owned()))
        .filter(|name| name.starts_with("MYSQL_") || name.starts_with("MARIADB_"))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no MySQL or MariaDB is installed; run tests/servers.sh and take over what it prints");
    found
}

/// A server of each kind for all tests of this process.
pub fn shared() -> &'static [Server] {
    static SHARED: OnceLock<Vec<Server>> = OnceLock::new();
    SHARED.get_or_init(|| {
        let started: Vec<_> = available().into_iter().map(|kind| std::thread::spawn(move || Server::start(&kind, &[]))).collect();
        started.into_iter().map(|server| server.join().expect("the server starts")).collect()
    })
}

impl Server {
    /// A new server; `options` are further arguments, like `--read-only=1`.
    pub fn start(kind: &str, options: &[&str]) -> Server {
        let bin = PathBuf::from(std::env::var(format!("SETE_{kind}_BIN")).unwrap_or_else(|_| panic!("SETE_{kind}_BIN is not set")));
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("sete-my-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Server { bin, folder, port: 0, options, watchdog: None };
        // Another process may take the port between our look and the server's start.
        for _ in 0..5 {
            server.port = free_port();
            if server.try_run() {
                return server;
            }
        }
        panic!("the server does not start: {}", server.log());
    }

    pub fn is_mariadb(&self) -> bool {
        self.sql("mysql", "SELECT VERSION()").contains("MariaDB")
    }

    /// A new empty database: its name and its address.
    pub fn fresh_db(&self) -> (String, String) {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", MADE.fetch_add(1, Ordering::Relaxed));
        self.sql("mysql", &format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"));
        let url = self.url(&name);
        (name, url)
    }

    /// Of the user root.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Runs SQL as root over the socket and returns what it prints: a line a row, columns apart by tabs.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let out = self.client(database, sql);
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// The same, with whatever comes of it.
    pub fn client(&self, database: &str, sql: &str) -> std::process::Output {
        let mut client = Command::new(self.bin.join("client"))
            .env_remove("MYSQL_PWD")
            .args(["--user=root", "--batch", "--skip-column-names", "--default-character-set=utf8mb4", "--socket"])
            .arg(self.socket())
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the client runs");
        // Over stdin: a long script is no argument, and DELIMITER works there.
        client.stdin.take().expect("a pipe").write_all(sql.as_bytes()).expect("the client reads");
        client.wait_with_output().expect("the client ends")
    }

    /// An orderly stop; [`Server::restart`] brings it back.
    pub fn stop(&mut self) {
        self.end("stop\n");
    }

    /// A crash: nothing is written any more, the next start has to recover.
    pub fn kill(&mut self) {
        self.end("kill\n");
    }

    /// The same server on the same port; stops it first if it runs.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.try_run(), "the server does not start again: {}", self.log());
    }

    fn end(&mut self, word: &str) {
        let Some(mut watchdog) = self.watchdog.take() else { return };
        if let Some(mut pipe) = watchdog.stdin.take() {
            // A watchdog that has ended already can't be told anything, and needn't.
            pipe.write_all(word.as_bytes()).ok();
        }
        watchdog.wait().expect("the watchdog is ours to wait for");
    }

    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let mut arguments = vec![
            format!("--datadir={}", path("data")),
            format!("--socket={}", path("sock")),
            format!("--pid-file={}", path("pid")),
            format!("--port={}", self.port),
            "--bind-address=127.0.0.1".into(),
            format!("--tmpdir={}", self.folder.display()),
            format!("--log-bin={}", path("data/binlog")),
            "--binlog-format=ROW".into(),
            format!("--server-id={}", self.port),
            // The trigger needs it, or SUPER, wherever there is a binary log.
            "--log-bin-trust-function-creators=1".into(),
            "--innodb-buffer-pool-size=64M".into(),
            "--innodb-flush-log-at-trx-commit=0".into(),
            "--sync-binlog=0".into(),
            "--innodb-doublewrite=0".into(),
            "--performance-schema=ON".into(),
            "--max-connections=80".into(),
            "--secure-file-priv=".into(),
        ];
        if self.bin.join("../usr/sbin/mariadbd").exists() {
            arguments.push("--innodb-log-file-size=64M".into());
        } else {
            arguments.extend(["--mysqlx=OFF".into(), "--innodb-redo-log-capacity=128M".into()]);
        }
        arguments.extend(self.options.iter().cloned());
        arguments
    }

    /// Starts the server under its watchdog and waits until it takes connections; false if it ends instead.
    fn try_run(&mut self) -> bool {
        // That of a killed server would look as if it were ready.
        std::fs::remove_file(self.socket()).ok();
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .args([&self.bin, &self.folder])
            .args(self.arguments())
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
            if self.socket().exists() && self.client("mysql", "SELECT 1").status.success() {
                self.watchdog = Some(watchdog);
                return true;
            }
            if watchdog.try_wait().expect("the watchdog is ours to wait for").is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.watchdog = Some(watchdog);
        self.kill();
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.stdin.take());
            watchdog.wait().ok();
        }
        // A stopped server has no watchdog that would do it.
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
