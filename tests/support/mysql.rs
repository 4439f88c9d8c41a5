//! Throwaway MySQL and MariaDB servers.
//!
//! Binaries: `SETE_MYSQL_97_BIN`, `SETE_MARIADB_1011_BIN` and so on, as tests/servers.sh exports them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::Process;
use super::sete;

/// Makes `$folder/data`. With a temporary folder of its own: a server that starts clears the tables that others have in theirs.
const INIT: &str = r#"mkdir -p "$folder/tmp" && TMPDIR=$folder/tmp "$bin/init" "$folder/data""#;

/// A running server, gone with its data when dropped. Its user `root` has no password.
pub struct Server {
    bin: PathBuf,
    options: Vec<String>,
    process: Process,
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

/// On each of the shared servers, at the same time.
pub fn each(test: impl Fn(&'static Server) + Sync) {
    std::thread::scope(|scope| {
        for server in shared() {
            scope.spawn(|| test(server));
        }
    });
}

/// For each kind at the same time, with servers of its own.
pub fn each_kind(test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for kind in available() {
            let test = &test;
            scope.spawn(move || test(&kind));
        }
    });
}

/// As [`sete::retype`], for these servers.
pub fn retype(id: &str, table: &str, from: &str, to: &str, new_type: &str, more: &str) -> String {
    sete::retype(id, table, from, to, new_type, more).replacen("\"postgres\"", "\"mysql\"", 1)
}

impl Server {
    /// A new server; `options` are further arguments, like `--read-only=1`.
    pub fn start(kind: &str, options: &[&str]) -> Server {
        let bin = PathBuf::from(std::env::var(format!("SETE_{kind}_BIN")).unwrap_or_else(|_| panic!("SETE_{kind}_BIN is not set")));
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Server { bin, options, process: Process::new("my") };
        for _ in 0..5 {
            if server.try_run() {
                return server;
            }
            server.process.change_port();
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
        format!("mysql://root@127.0.0.1:{}/{database}", self.process.port)
    }

    /// The folder with `client`.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    pub fn port(&self) -> u16 {
        self.process.port
    }

    pub fn socket(&self) -> PathBuf {
        self.process.path("sock")
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Runs SQL as root over the socket and returns what it prints: a line a row, columns apart by tabs.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let out = self.client(database, sql);
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// The same, with whatever comes of it.
    pub fn client(&self, database: &str, sql: &str) -> Output {
        client(&self.bin, &self.socket(), database, sql)
    }

    /// An orderly stop; [`Server::restart`] brings it back.
    pub fn stop(&mut self) {
        self.process.end("TERM");
    }

    /// A crash: nothing is written any more, the next start has to recover.
    pub fn kill(&mut self) {
        self.process.end("KILL");
    }

    /// The same server on the same port; stops it first if it runs.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.try_run(), "the server does not start again: {}", self.log());
    }

    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.process.path(name).display().to_string();
        let mut arguments = vec![
            self.bin.join("server").display().to_string(),
            format!("--datadir={}", path("data")),
            format!("--socket={}", path("sock")),
            format!("--pid-file={}", path("pid")),
            format!("--port={}", self.process.port),
            "--bind-address=127.0.0.1".into(),
            format!("--tmpdir={}", self.process.folder.display()),
            format!("--log-bin={}", path("data/binlog")),
            "--binlog-format=ROW".into(),
            format!("--server-id={}", self.process.port),
            // The trigger needs it, or SUPER, wherever there is a binary log.
            "--log-bin-trust-function-creators=1".into(),
            "--innodb-buffer-pool-size=64M".into(),
            "--innodb-flush-log-at-trx-commit=0".into(),
            "--sync-binlog=0".into(),
            "--innodb-doublewrite=0".into(),
            "--performance-schema=ON".into(),
            "--max-connections=300".into(),
            // All tests of a run are counted here, by schema and statement.
            "--performance-schema-digests-size=20000".into(),
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

    /// Starts the server and waits until it takes connections; false if it ends instead.
    fn try_run(&mut self) -> bool {
        let (bin, socket) = (self.bin.clone(), self.socket());
        // That of a killed server would look as if it were ready.
        std::fs::remove_file(&socket).ok();
        let init = format!("bin='{}'; {INIT}", bin.display());
        let arguments = self.arguments();
        self.process.run(&init, "KILL", &arguments, || socket.exists() && client(&bin, &socket, "mysql", "SELECT 1").status.success())
    }
}

/// Runs the command-line client as root.
fn client(bin: &Path, socket: &Path, database: &str, sql: &str) -> Output {
    let mut client = Command::new(bin.join("client"))
        .env_remove("MYSQL_PWD")
        .args(["--user=root", "--batch", "--skip-column-names", "--default-character-set=utf8mb4", "--socket"])
        .arg(socket)
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
