//! Throwaway PostgreSQL servers. Binaries: `SETE_PG_17_BIN=/path/to/bin`, else /usr/lib/postgresql/17/bin.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Runtime;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::process::Process;

/// The versions that the project supports.
const MAJORS: std::ops::RangeInclusive<u32> = 13..=18;

/// Makes `$folder/data`, as the user who may run a server.
const INIT: &str = r#"
$as "$bin/initdb" --no-sync --auth=trust --username=postgres --encoding=UTF8 --no-locale --pgdata "$folder/data" &&
cat "$folder/extra.conf" >>"$folder/data/postgresql.conf""#;

/// A running server, gone with its data when dropped.
pub struct Server {
    bin: PathBuf,
    process: Process,
}

impl Server {
    /// The major versions whose binaries are here, ascending.
    pub fn available() -> Vec<u32> {
        MAJORS.filter(|major| bin(*major).join("postgres").exists()).collect()
    }

    /// The newest version whose binaries can make a [`Server::standby`].
    pub fn major_with_standby() -> u32 {
        let majors = Server::available().into_iter().rev();
        majors.into_iter().find(|major| bin(*major).join("pg_basebackup").exists()).expect("a PostgreSQL with pg_basebackup")
    }

    /// A new server; `extra_conf` are lines of postgresql.conf. Anybody may connect, as anybody, from this machine.
    pub fn start(version: u32, extra_conf: &[&str]) -> Server {
        Server::start_with(version, |_| extra_conf.iter().map(|line| (*line).to_owned()).collect())
    }

    /// The same for a configuration that refers to files, which `prepare` puts into the server's folder (see [`give_to_server`]).
    pub fn start_with(version: u32, prepare: impl FnOnce(&Path) -> Vec<String>) -> Server {
        let bin = bin(version);
        assert!(bin.join("postgres").exists(), "no PostgreSQL {version} in {}; set SETE_PG_{version}_BIN", bin.display());
        let mut server = Server { bin, process: Process::new("pg") };
        give_to_server(server.folder(), 0o755);
        let conf = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = off\nwal_level = replica\nshared_buffers = 16MB\n\
             max_connections = 200\nmax_wal_size = 128MB\nautovacuum_naptime = 10s\nlogging_collector = off\nlog_line_prefix = '%m [%p] %q%d: '\n{}\n",
            server.folder().display(),
            prepare(server.folder()).join("\n")
        );
        std::fs::write(server.process.path("extra.conf"), conf).expect("the configuration is written");
        for _ in 0..5 {
            if server.try_run() {
                return server;
            }
            server.process.change_port();
        }
        panic!("the server does not start: {}", server.log());
    }

    /// A streaming standby of this server, made with pg_basebackup; `extra_conf` are lines for its configuration alone.
    pub fn standby(&self, version: u32, extra_conf: &[&str]) -> Server {
        Server::start_with(version, |folder| {
            let data = folder.join("data");
            let out = Command::new(self.bin.join("pg_basebackup"))
                .args(["-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-U", "postgres", "-p", &self.process.port.to_string(), "-D"])
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
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", self.process.port);
        (name, url)
    }

    /// Of the superuser, in the database postgres.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    pub fn url_for(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.process.port)
    }

    pub fn port(&self) -> u16 {
        self.process.port
    }

    /// Holds the socket, the log and `data`.
    pub fn folder(&self) -> &Path {
        &self.process.folder
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Runs SQL as the superuser over the socket, as `psql -c` does. Returns the rows of all statements: a line a row, columns apart
    /// by `|`, NULL as nothing.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"));
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.folder()).port(self.port()).user("postgres").dbname(database).application_name("psql");
        let ask = async {
            let (client, connection) = config.connect(NoTls).await?;
            let connection = tokio::spawn(connection);
            let answer = client.simple_query(sql).await?;
            drop(client);
            connection.await.expect("no panic in the connection")?;
            Ok::<_, tokio_postgres::Error>(answer)
        };
        // On a thread of its own: a test that is async itself can't wait for another runtime.
        let asked = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(ask)).join()).expect("no panic in the session");
        let answer = asked.unwrap_or_else(|e| panic!("{sql}: {}", e.as_db_error().map_or(e.to_string(), |db| db.to_string())));
        let rows = answer.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|n| row.get(n).unwrap_or_default()).collect::<Vec<_>>().join("|")),
            _ => None,
        });
        rows.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    /// An orderly stop that ends all sessions; [`Server::restart`] brings it back.
    pub fn stop(&mut self) {
        self.process.end("INT");
    }

    /// A crash: all sessions end at once, nothing is written any more, the next start has to recover.
    pub fn kill(&mut self) {
        self.process.end("QUIT");
    }

    /// The same server on the same port; stops it first if it runs.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.try_run(), "the server does not start again: {}", self.log());
    }

    /// Starts the server and waits until it takes connections; false if it ends instead.
    fn try_run(&mut self) -> bool {
        let lock_file = self.process.path("data/postmaster.pid");
        // Nobody runs here; the file of a killed server would look as if it were ready.
        std::fs::remove_file(&lock_file).ok();
        let (change_user, bin) = (change_user(), self.bin.display());
        let init = format!("as='{}' bin='{bin}'{INIT}", change_user.join(" "));
        let data = self.process.path("data").display().to_string();
        let mut server = change_user;
        server.extend([format!("{bin}/postgres"), "-D".to_owned(), data, "-p".to_owned(), self.process.port.to_string()]);
        self.process.run(&init, "QUIT", &server, || {
            // The eighth line is how pg_ctl knows, too.
            std::fs::read_to_string(&lock_file).is_ok_and(|text| text.lines().nth(7).is_some_and(|line| matches!(line.trim(), "ready" | "standby")))
        })
    }
}

fn bin(major: u32) -> PathBuf {
    match std::env::var(format!("SETE_PG_{major}_BIN")) {
        Ok(bin) if !bin.is_empty() => bin.into(),
        _ => format!("/usr/lib/postgresql/{major}/bin").into(),
    }
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
