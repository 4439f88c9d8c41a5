//! Throwaway PostgreSQL servers for the tests.
//!
//! A server lives in a temp folder and under a small `sh` of its own, which holds the read end of a pipe. When the test
//! process ends, however it ends (return, panic, kill -9), the pipe closes, and the `sh` stops the server and removes the
//! folder. Statics, which Rust never drops, need no more than that.
//!
//! Binaries: `SETE_PG_17_BIN=/path/to/bin`, else /usr/lib/postgresql/17/bin.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub mod mysql;
pub mod sete;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The versions that the project supports.
const MAJORS: std::ops::RangeInclusive<u32> = 13..=18;

/// Makes the server's data if there is none, and runs the server until it ends. A part of it waits for a word on the pipe:
/// `fast` or `immediate` stop the server and leave its data; the pipe's end takes all away.
const WATCHDOG: &str = r#"
bin=$1 folder=$2 port=$3
shift 3 # what is left is the command that changes to the server's user, if any
exec 3<&0 </dev/null >>"$folder/log" 2>&1
if ! [ -e "$folder/data" ]; then
    "$@" "$bin/initdb" --no-sync --auth=trust --username=postgres --encoding=UTF8 --no-locale --pgdata "$folder/data" 3<&- || exit 1
    cat "$folder/extra.conf" >>"$folder/data/postgresql.conf"
fi
"$@" "$bin/postgres" -D "$folder/data" -p "$port" 3<&- &
server=$!
(
    read -r word <&3
    case "$word" in
    fast) signal=INT ;;
    immediate) signal=QUIT ;;
    *) signal=QUIT && touch "$folder/end" ;;
    esac
    # Again and again: sh starts its jobs deaf to both, until the server has handlers of its own.
    while kill -$signal $server; do sleep 0.1; done
) &
reader=$!
wait $server
kill $reader
if [ -e "$folder/end" ]; then rm -rf "$folder"; fi
"#;

/// A running server, gone with its data when dropped.
pub struct Server {
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
    watchdog: Option<Child>,
}

impl Server {
    /// The major versions whose binaries are here, ascending.
    pub fn available() -> Vec<u32> {
        MAJORS.filter(|major| bin(*major).join("postgres").exists()).collect()
    }

    /// A new server; `extra_conf` are lines of postgresql.conf. Anybody may connect, as anybody, from this machine.
    pub fn start(version: u32, extra_conf: &[&str]) -> Server {
        Server::start_with(version, |_| extra_conf.iter().map(|line| (*line).to_owned()).collect())
    }

    /// The same for a configuration that refers to files, which `prepare` puts into the server's folder (see [`give_to_server`]).
    pub fn start_with(version: u32, prepare: impl FnOnce(&Path) -> Vec<String>) -> Server {
        let bin = bin(version);
        assert!(bin.join("postgres").exists(), "no PostgreSQL {version} in {}; set SETE_PG_{version}_BIN", bin.display());
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("sete-pg-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        give_to_server(&folder, 0o755);
        let mut server = Server { bin, folder, port: 0, watchdog: None };

        let conf = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = off\nwal_level = replica\nshared_buffers = 16MB\n\
             max_connections = 60\nmax_wal_size = 128MB\nautovacuum_naptime = 10s\nlogging_collector = off\nlog_line_prefix = '%m [%p] %q%d: '\n{}\n",
            server.folder.display(),
            prepare(&server.folder).join("\n")
        );
        std::fs::write(server.folder.join("extra.conf"), conf).expect("the configuration is written");
        // Another process may take the port between our look and the server's start.
        for _ in 0..5 {
            server.port = free_port();
            if server.try_run() {
                return server;
            }
        }
        panic!("the server does not start: {}", server.log());
    }

    /// A streaming standby of this server, made with pg_basebackup; `extra_conf` are lines for its configuration alone.
    pub fn standby(&self, version: u32, extra_conf: &[&str]) -> Server {
        Server::start_with(version, |folder| {
            let data = folder.join("data");
            let out = Command::new(self.bin.join("pg_basebackup"))
                .args(["-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-U", "postgres", "-p", &self.port.to_string(), "-D"])
                .arg(&data)
                .output()
                .expect("pg_basebackup runs");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let conf = data.join("postgresql.conf");
            let mut text = std::fs::read_to_string(&conf).expect("the primary's configuration came along");
            text += &format!("\nunix_socket_directories = '{}'\n{}\n", folder.display(), extra_conf.join("\n"));
            std::fs::write(&conf, text).expect("the configuration is written");
            if let Some((user, group)) = server_user() {
                let done = Command::new("chown").args(["-R", &format!("{user}:{group}")]).arg(&data).status();
                assert!(done.expect("chown runs").success(), "root may give files away");
            }
            Vec::new()
        })
    }

    /// One server for all tests of this process, of the newest version that is here.
    pub fn shared() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            let version = Server::available().last().copied().expect("no PostgreSQL is installed; set SETE_PG_15_BIN or the like");
            Server::start(version, &[])
        })
    }

    /// A new empty database: its name and its address.
    pub fn fresh_db(&self) -> (String, String) {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", MADE.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", self.port);
        (name, url)
    }

    /// Of the superuser, in the database postgres.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    pub fn url_for(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds the socket, the log and `data`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Runs SQL as the superuser over the socket, and returns what it prints, unaligned.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        // The binaries from npm come without psql; any version's does.
        let own = self.bin.join("psql");
        let out = Command::new(if own.exists() { own } else { "psql".into() })
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", sql])
            .args(["-p", &self.port.to_string(), "-h"])
            .arg(&self.folder)
            .output()
            .expect("psql runs");
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// An orderly stop that ends all sessions; [`Server::restart`] brings it back.
    pub fn stop(&mut self) {
        self.end("fast\n");
    }

    /// A crash: all sessions end at once, nothing is written any more, the next start has to recover.
    pub fn kill(&mut self) {
        self.end("immediate\n");
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

    /// Starts the server under its watchdog and waits until it takes connections; false if it ends instead.
    fn try_run(&mut self) -> bool {
        let lock_file = self.folder.join("data/postmaster.pid");
        // Nobody runs here; the file of a killed server would look as if it were ready.
        std::fs::remove_file(&lock_file).ok();
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .args([&self.bin, &self.folder])
            .arg(self.port.to_string())
            .args(change_user())
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
        while begun.elapsed() < Duration::from_secs(60) {
            // The eighth line is how pg_ctl knows, too.
            if std::fs::read_to_string(&lock_file)
                .is_ok_and(|text| text.lines().nth(7).is_some_and(|line| matches!(line.trim(), "ready" | "standby")))
            {
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

fn bin(major: u32) -> PathBuf {
    match std::env::var(format!("SETE_PG_{major}_BIN")) {
        Ok(bin) if !bin.is_empty() => bin.into(),
        _ => format!("/usr/lib/postgresql/{major}/bin").into(),
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// PostgreSQL does not run as root: tests that do let the user postgres run it.
fn server_user() -> Option<(u32, u32)> {
    let id = |args: &[&str]| {
        let out = Command::new("id").args(args).output().expect("id runs");
        String::from_utf8_lossy(&out.stdout).trim().parse::<u32>().unwrap_or_else(|_| panic!("id {args:?} gives no number"))
    };
    (id(&["-u"]) == 0).then(|| (id(&["-u", "postgres"]), id(&["-g", "postgres"])))
}

/// The command in front of another one that lets it run as the user who may run a server.
fn change_user() -> Vec<String> {
    let Some((user, group)) = server_user() else { return Vec::new() };
    vec!["setpriv".to_owned(), format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
}

/// Makes a file or folder one that the server may read and owns: for certificates and configuration.
pub fn give_to_server(path: &Path, mode: u32) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).expect("root may give files away");
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the file is ours");
}
