//! Connections to real MySQL and MariaDB servers: ways to log in, TLS, which server it is, what is pinned, what breaks.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::support::mysql::{Server, available, shared};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sete::engine::Store;
use sete::engine::mysql::MySql;
use sete::engine::mysql::conn::{Address, Connector, SQL_MODE, Session, get};
use sete::error::{Code, Error};
use sete::secret::DbUrl;

async fn connect(url: &str) -> Result<Session, Error> {
    Connector::new(Address::parse(&DbUrl::new(url))?, "sete test")?.connect().await
}

async fn text(session: &mut Session, sql: &str) -> String {
    let row = session.one(sql, (), "testing").await.unwrap();
    get::<Option<String>>(&row, 0).unwrap().unwrap_or_default()
}

#[tokio::test]
async fn all_that_a_value_depends_on_is_pinned() {
    for kind in available() {
        let server = Server::start(&kind, &[]);
        server.sql("mysql", "SET GLOBAL sql_mode = '', time_zone = '-05:00', sql_select_limit = 1, div_precision_increment = 9");
        let mut session = connect(&server.url("mysql")).await.unwrap();
        let mode = text(&mut session, "SELECT @@SESSION.sql_mode").await;
        assert!(SQL_MODE.split(',').all(|word| mode.contains(word)), "{mode}");
        assert_eq!(text(&mut session, "SELECT CONCAT(@@time_zone, ' ', 1 / 3)").await, "+00:00 0.3333");
        assert_eq!(session.query("SELECT 1 UNION SELECT 2", (), "testing").await.unwrap().len(), 2);
        let isolation = if server.is_mariadb() { "tx_isolation" } else { "transaction_isolation" };
        assert_eq!(text(&mut session, &format!("SELECT @@SESSION.{isolation}")).await, "READ-COMMITTED");
    }
}

#[tokio::test]
async fn users_log_in_by_every_way_that_the_server_has() {
    for server in shared() {
        let at = format!("127.0.0.1:{}/mysql", server.port());
        let ways: &[(&str, &str)] = if server.is_mariadb() {
            &[
                ("native", "IDENTIFIED VIA mysql_native_password USING PASSWORD('p@ss:w/rd')"),
                ("ed", "IDENTIFIED VIA ed25519 USING PASSWORD('p@ss:w/rd')"),
            ]
        } else {
            &[("sha2", "IDENTIFIED WITH caching_sha2_password BY 'p@ss:w/rd'")]
        };
        for (user, way) in ways {
            if *user == "ed" && !server.client("mysql", "INSTALL SONAME 'auth_ed25519'").status.success() {
                eprintln!("not tested: this server comes without the ed25519 plugin");
                continue;
            }
            server.sql("mysql", &format!("CREATE USER {user}@'%' {way}; GRANT SELECT ON mysql.* TO {user}@'%'"));
            // The first time in full, with the server's key where nothing is encrypted; then from its cache.
            for mode in ["DISABLED", "DISABLED", "PREFERRED"] {
                let mut session =
                    connect(&format!("mysql://{user}:p%40ss%3Aw%2Frd@{at}?ssl-mode={mode}")).await.unwrap_or_else(|e| panic!("{user}: {e}"));
                assert!(text(&mut session, "SELECT CURRENT_USER()").await.starts_with(user));
            }
            let refused = connect(&format!("mysql://{user}:wr0ng@{at}")).await.unwrap_err();
            assert_eq!(refused.code(), Code::Connect);
            assert!(refused.to_string().contains("1045") && !refused.to_string().contains("wr0ng"), "{refused}");
        }
        let socket = format!("mysql://root@localhost/mysql?socket={}", server.socket().display());
        assert!(text(&mut connect(&socket).await.unwrap(), "SELECT CURRENT_USER()").await.starts_with("root"));
        let refused = connect(&format!("mysql://root@{at}").replace("/mysql", "/nowhere")).await.unwrap_err();
        assert!(refused.to_string().contains("nowhere"), "{refused}");
    }
    let nobody = connect("mysql://root@127.0.0.1:1/x").await.unwrap_err();
    assert_eq!(nobody.code(), Code::Connect);
}

/// An authority, and a server's certificate for `name` that it has signed, in a folder.
fn certificates(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(folder.join("server.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

#[tokio::test]
async fn tls_is_as_strict_as_asked() {
    let folder = std::env::temp_dir().join(format!("sete-my-tls-{}", std::process::id()));
    certificates(&folder.join("here"), "localhost");
    certificates(&folder.join("else"), "db.example");
    for kind in available() {
        for (of, named) in [("here", true), ("else", false)] {
            let file = |name: &str| folder.join(of).join(name).display().to_string();
            let options =
                [format!("--ssl-ca={}", file("ca.pem")), format!("--ssl-cert={}", file("server.pem")), format!("--ssl-key={}", file("key.pem"))];
            let server = Server::start(&kind, &options.each_ref().map(String::as_str));
            let with = |parameters: &str| format!("mysql://root@localhost:{}/mysql?{parameters}", server.port());
            let ca = file("ca.pem");
            for mode in ["PREFERRED", "REQUIRED", "VERIFY_CA"] {
                let mut session = connect(&with(&format!("ssl-mode={mode}&ssl-ca={ca}"))).await.unwrap_or_else(|e| panic!("{kind} {of} {mode}: {e}"));
                let row = session.one("SHOW SESSION STATUS LIKE 'Ssl_version'", (), "testing").await.unwrap();
                assert!(get::<String>(&row, 1).unwrap().starts_with("TLSv1"), "{kind} {of} {mode}");
            }
            let strict = connect(&with(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"))).await;
            assert_eq!(strict.map(|_| ()).map_err(|e| e.code()), if named { Ok(()) } else { Err(Code::Tls) }, "{kind} {of}");
            // Signed by an authority that the file doesn't hold, and by none of the public ones.
            let foreign = folder.join(if named { "else" } else { "here" }).join("ca.pem").display().to_string();
            for parameters in [format!("ssl-mode=VERIFY_CA&ssl-ca={foreign}"), "ssl-mode=VERIFY_IDENTITY".to_owned()] {
                assert_eq!(connect(&with(&parameters)).await.unwrap_err().code(), Code::Tls, "{kind} {parameters}");
            }
        }
    }
    let missing = connect("mysql://root@localhost/mysql?ssl-mode=VERIFY_CA&ssl-ca=/nowhere/ca.pem").await.unwrap_err();
    assert_eq!(missing.code(), Code::Tls);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A proxy in front of servers, which leads to whatever port is in `to`.
async fn proxy(to: Arc<AtomicU16>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let to = to.load(Ordering::Relaxed);
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                // It ends when either side does; how, is nobody's business here.
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    port
}

#[tokio::test]
async fn a_proxy_that_leads_elsewhere_is_noticed_before_anything_is_written() {
    let (one, other) = (&shared()[0], &shared()[1]);
    for server in [one, other] {
        server.sql("mysql", "CREATE DATABASE IF NOT EXISTS behind_proxy");
    }
    let to = Arc::new(AtomicU16::new(one.port()));
    let url = DbUrl::new(format!("mysql://root@127.0.0.1:{}/behind_proxy", proxy(to.clone()).await));
    let engine = MySql::new(&url, "sete test").unwrap();
    engine.prepare().await.unwrap();
    to.store(other.port(), Ordering::Relaxed);
    one.sql("mysql", "SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE db = 'behind_proxy'")
        .lines()
        .for_each(|kill| drop(one.client("mysql", kill)));
    let error = engine.prepare().await.unwrap_err();
    assert_eq!(error.code(), Code::ServerChanged, "{error}");
    assert_eq!(other.sql("behind_proxy", "SHOW TABLES"), "");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_refused_whatever_the_users_rights_are() {
    for kind in available() {
        let server = Server::start(&kind, &[]);
        let (db, url) = server.fresh_db();
        server.sql("mysql", "SET GLOBAL read_only = 1");
        let engine = MySql::new(&DbUrl::new(url), "sete test").unwrap();
        assert_eq!(engine.prepare().await.unwrap_err().code(), Code::ReadOnly);
        // Looking is allowed.
        assert_eq!(engine.load("p").await.unwrap(), None);
        server.sql("mysql", "SET GLOBAL read_only = 0");
        assert_eq!(server.sql(&db, "SHOW TABLES"), "");
    }
}

#[tokio::test]
async fn a_session_that_broke_is_opened_anew_and_a_restart_is_survived() {
    for kind in available() {
        let mut server = Server::start(&kind, &[]);
        let (_, url) = server.fresh_db();
        let engine = MySql::new(&DbUrl::new(url), "sete test").unwrap();
        engine.prepare().await.unwrap();
        server.kill();
        let lost = engine.now().await.unwrap_err();
        assert!(matches!(lost.code(), Code::ConnectionLost | Code::Connect), "{lost}");
        server.restart();
        engine.now().await.unwrap();
        // One whose waiting was given up in the middle answers nobody else's question.
        for _ in 0..20 {
            drop(tokio::time::timeout(Duration::from_micros(300), engine.list()).await);
            assert_eq!(engine.list().await.unwrap(), Vec::<String>::new());
        }
    }
}
