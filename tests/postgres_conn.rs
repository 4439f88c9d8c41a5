//! Connecting to real servers: TLS in all its modes, passwords, several hosts, and what is said when it fails.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::support::postgres::Server;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use sete::engine::postgres::conn::{Address, Connector, Session, classify, database_error};
use sete::error::{Code, Error, Trouble};
use sete::secret::DbUrl;

const APPLICATION: &str = "sete-test";

/// Connects with an environment that holds just `env`.
async fn connect_with(url: &str, env: &[(&str, &str)]) -> Result<Session, Error> {
    let look = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    Connector::new(Address::parse_with(&DbUrl::new(url), &look)?, APPLICATION)?.connect().await
}

async fn connect(url: &str) -> Result<Session, Error> {
    connect_with(url, &[]).await
}

/// Connects, and says who is there and whether the way is encrypted.
async fn over(url: &str) -> String {
    let session = connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"));
    let sql = "SELECT current_user || (SELECT CASE WHEN ssl THEN ' over TLS' ELSE ' in the open' END FROM pg_stat_ssl WHERE pid = pg_backend_pid())";
    session.client().query_one(sql, &[]).await.expect("a row").get(0)
}

/// The code and the whole text of the refusal.
async fn refusal_with(url: &str, env: &[(&str, &str)]) -> (Code, String) {
    let error = connect_with(url, env).await.map(|s| panic!("{url} connected: {s:?}")).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains("s3cret"), "{text}");
    (error.code(), text)
}

async fn refusal(url: &str) -> (Code, String) {
    refusal_with(url, &[]).await
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate")
}

/// Certificate and key in PEM form, signed by `ca`.
fn signed(ca: &CertifiedIssuer<'static, KeyPair>, common_name: &str, names: &[&str], usage: ExtendedKeyUsagePurpose) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).expect("names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![usage];
    (params.signed_by(&key, ca).expect("a certificate").pem(), key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("the file is written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("the file is ours");
    path
}

fn write_for_server(folder: &Path, name: &str, text: &str) -> String {
    let path = write(folder, name, text, 0o600);
    crate::support::postgres::give_to_server(&path, 0o600);
    path.display().to_string()
}

/// One server with TLS for all tests. Its certificate is for db.test only.
fn tls_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Server::start_with(15, |folder| {
            let ca = authority("the authority of the tests");
            let (cert, key) = signed(&ca, "server", &["db.test"], ExtendedKeyUsagePurpose::ServerAuth);
            let (client_cert, client_key) = signed(&ca, "carla", &[], ExtendedKeyUsagePurpose::ClientAuth);
            write(folder, "ca.crt", &ca.pem(), 0o644);
            write(folder, "other-ca.crt", &authority("somebody else").pem(), 0o644);
            write(folder, "client.crt", &client_cert, 0o644);
            write(folder, "client.key", &client_key, 0o600);
            write(folder, "client-open.key", &client_key, 0o644);
            let hba = "local all all trust\nhostssl all carla all cert\nhostnossl all paul all trust\nhostssl all terry all trust\n\
                       host all ann all scram-sha-256\nhost all postgres all trust\n";
            vec![
                "ssl = on".to_owned(),
                format!("ssl_cert_file = '{}'", write_for_server(folder, "server.crt", &cert)),
                format!("ssl_key_file = '{}'", write_for_server(folder, "server.key", &key)),
                format!("ssl_ca_file = '{}'", folder.join("ca.crt").display()),
                format!("hba_file = '{}'", write_for_server(folder, "hba.conf", hba)),
            ]
        });
        server.psql("postgres", "CREATE ROLE ann LOGIN PASSWORD 's3cret'; CREATE ROLE carla LOGIN; CREATE ROLE paul LOGIN; CREATE ROLE terry LOGIN");
        server
    })
}

/// The address of the server with TLS under a host name that need not resolve.
fn tls_url(user: &str, host: &str, parameters: &str) -> String {
    format!("postgres://{user}@{host}:{}/postgres?hostaddr=127.0.0.1&{parameters}", tls_server().port())
}

fn file(name: &str) -> String {
    tls_server().folder().join(name).display().to_string()
}

#[tokio::test]
async fn each_sslmode_verifies_what_it_says() {
    let (ca, other) = (file("ca.crt"), file("other-ca.crt"));
    let tls = "postgres over TLS";
    assert_eq!(over(&tls_url("postgres", "db.test", &format!("sslmode=verify-full&sslrootcert={ca}"))).await, tls);
    assert_eq!(over(&tls_url("postgres", "other.test", &format!("sslmode=verify-ca&sslrootcert={ca}"))).await, tls);
    assert_eq!(over(&tls_url("postgres", "other.test", "sslmode=require")).await, tls);
    assert_eq!(over(&tls_url("postgres", "other.test", "sslmode=prefer")).await, tls);
    assert_eq!(over(&tls_url("postgres", "other.test", "sslmode=allow")).await, "postgres in the open");
    assert_eq!(over(&tls_url("postgres", "other.test", "sslmode=disable")).await, "postgres in the open");

    let (code, text) = refusal(&tls_url("postgres", "other.test", &format!("sslmode=verify-full&sslrootcert={ca}"))).await;
    assert_eq!(code, Code::Tls);
    assert!(text.contains("can't connect to other.test:") && text.contains("is not for other.test"), "{text}");
    for mode in ["verify-full", "verify-ca", "require"] {
        let (code, text) = refusal(&tls_url("postgres", "db.test", &format!("sslmode={mode}&sslrootcert={other}"))).await;
        assert_eq!(code, Code::Tls, "{mode}");
        assert!(text.contains("signed by an authority that sslrootcert") && text.contains("other-ca.crt"), "{text}");
    }
}

#[tokio::test]
async fn root_certificates_are_found_or_asked_for() {
    let url = tls_url("postgres", "db.test", "sslmode=verify-full");
    let (code, text) = refusal(&url).await;
    assert_eq!(code, Code::Tls);
    assert!(text.contains("root.crt is not there; set sslrootcert"), "{text}");
    let (code, text) = refusal(&format!("{url}&sslrootcert=/no/such.crt")).await;
    assert_eq!(code, Code::Tls);
    assert!(text.contains("sslrootcert /no/such.crt can't be read"), "{text}");
    let (_, text) = refusal(&format!("{url}&sslrootcert={}", file("hba.conf"))).await;
    assert!(text.contains("holds no certificate in PEM form"), "{text}");

    let home = tls_server().folder().join("home");
    std::fs::create_dir_all(home.join(".postgresql")).unwrap();
    std::fs::copy(file("ca.crt"), home.join(".postgresql/root.crt")).unwrap();
    connect_with(&url, &[("HOME", home.to_str().unwrap())]).await.unwrap();
    connect_with(&tls_url("postgres", "db.test", ""), &[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", &file("ca.crt"))]).await.unwrap();
}

#[tokio::test]
async fn a_self_signed_certificate_may_be_its_own_root() {
    let server = Server::start_with(15, |folder| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["db.test".to_owned()]).unwrap();
        // As `openssl req -x509` makes it.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).unwrap().pem();
        write(folder, "root.crt", &cert, 0o644);
        vec![
            "ssl = on".to_owned(),
            format!("ssl_cert_file = '{}'", write_for_server(folder, "server.crt", &cert)),
            format!("ssl_key_file = '{}'", write_for_server(folder, "server.key", &key.serialize_pem())),
        ]
    });
    let url = |host: &str, root: &str| {
        format!("postgres://postgres@{host}:{}/postgres?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={root}", server.port())
    };
    let root = server.folder().join("root.crt").display().to_string();
    assert_eq!(over(&url("db.test", &root)).await, "postgres over TLS");
    assert_eq!(refusal(&url("other.test", &root)).await.0, Code::Tls);
    assert_eq!(refusal(&url("db.test", &file("ca.crt"))).await.0, Code::Tls);
}

#[tokio::test]
async fn without_tls_on_the_server() {
    let (_, url) = Server::shared().fresh_db();
    assert_eq!(over(&format!("{url}?sslmode=prefer")).await, "postgres in the open");
    let (code, text) = refusal(&format!("{url}?sslmode=require")).await;
    assert_eq!(code, Code::Tls);
    assert!(text.contains("the server offers no TLS"), "{text}");
    let socket =
        format!("host={} port={} user=postgres dbname=postgres sslmode=verify-full", Server::shared().folder().display(), Server::shared().port());
    assert_eq!(over(&socket).await, "postgres in the open", "sslmode is not for sockets");
}

#[tokio::test]
async fn pg_hba_decides_between_tls_and_plain() {
    assert_eq!(over(&tls_url("paul", "db.test", "sslmode=prefer")).await, "paul in the open");
    assert_eq!(over(&tls_url("terry", "db.test", "sslmode=allow")).await, "terry over TLS");
    let (code, text) = refusal(&tls_url("paul", "db.test", "sslmode=require")).await;
    assert_eq!(code, Code::Connect);
    assert!(text.contains("no pg_hba.conf entry") && text.contains("\"paul\""), "{text}");
}

#[tokio::test]
async fn a_client_certificate_logs_in() {
    let ca = file("ca.crt");
    let with_key =
        |key: &str| tls_url("carla", "db.test", &format!("sslmode=verify-full&sslrootcert={ca}&sslcert={}&sslkey={}", file("client.crt"), file(key)));
    assert_eq!(over(&with_key("client.key")).await, "carla over TLS");
    let (code, text) = refusal(&tls_url("carla", "db.test", "sslmode=require")).await;
    assert_eq!(code, Code::Connect);
    assert!(text.contains("requires a valid client certificate"), "{text}");
    let (code, text) = refusal(&with_key("client-open.key")).await;
    assert_eq!(code, Code::Tls);
    assert!(text.contains("others may read it; run chmod 0600"), "{text}");
}

#[tokio::test]
async fn passwords_come_from_everywhere_and_go_nowhere() {
    let folder = tls_server().folder();
    let url = tls_url("ann", "db.test", "sslmode=require");
    connect(&url.replace("ann@", "ann:s3cret@")).await.unwrap();
    connect_with(&url, &[("PGPASSWORD", "s3cret")]).await.unwrap();
    let port = tls_server().port();
    let lines = format!("elsewhere:*:*:*:wrong\ndb.test:{port}:*:ann:s3cret\n");
    let passfile = write(folder, "passfile", &lines, 0o600);
    connect_with(&url, &[("PGPASSFILE", passfile.to_str().unwrap())]).await.unwrap();
    connect(&format!("{url}&passfile={}", passfile.display())).await.unwrap();
    let home = folder.join("ann");
    std::fs::create_dir_all(&home).unwrap();
    write(&home, ".pgpass", &lines, 0o600);
    connect_with(&url, &[("HOME", home.to_str().unwrap())]).await.unwrap();

    let (code, text) = refusal_with(&url, &[("PGPASSWORD", "s3cret!")]).await;
    assert_eq!(code, Code::Connect);
    assert!(text.contains("password authentication failed for user \"ann\""), "{text}");
    let (_, text) = refusal(&url).await;
    assert!(text.contains("asks user ann for a password and none was given"), "{text}");
    let open = write(folder, "passfile-open", &lines, 0o644);
    let (_, text) = refusal(&format!("{url}&passfile={}", open.display())).await;
    assert!(text.contains("others may read it; run chmod 0600"), "{text}");
}

#[tokio::test]
async fn several_hosts_are_tried_in_order() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = Server::shared().port();
    let session = connect(&format!("postgres://postgres@127.0.0.1:{dead},127.0.0.1:{port}/postgres")).await.unwrap();
    assert_eq!(session.host(), format!("127.0.0.1:{port}"));
    let (code, text) = refusal(&format!("postgres://postgres@127.0.0.1:{dead}/postgres")).await;
    assert_eq!(code, Code::Connect);
    assert_eq!(text, format!("can't connect to 127.0.0.1:{dead}: connection refused: no server listens there"));
    let (_, text) = refusal(&format!("postgres://postgres@127.0.0.1:{port}/nowhere")).await;
    assert!(text.contains("database \"nowhere\" does not exist"), "{text}");

    // A server that takes the connection and never answers.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, text) = refusal(&format!("postgres://postgres@{}/postgres?connect_timeout=1", mute.local_addr().unwrap())).await;
    assert_eq!(code, Code::Connect);
    assert!(text.contains("no answer within 1 s"), "{text}");
}

#[tokio::test]
async fn target_session_attrs_choose_the_host() {
    let read_only = Server::start(15, &["default_transaction_read_only = on"]);
    let (a, b) = (format!("127.0.0.1:{}", read_only.port()), format!("127.0.0.1:{}", Server::shared().port()));
    let url = |hosts: &str, attrs: &str| format!("postgres://postgres@{hosts}/postgres?target_session_attrs={attrs}");
    for (attrs, chosen) in [("any", &a), ("read-write", &b), ("read-only", &a), ("primary", &a), ("prefer-standby", &a)] {
        let session = connect(&url(&format!("{a},{b}"), attrs)).await.unwrap();
        assert_eq!(session.host(), chosen, "{attrs}");
    }
    let (code, text) = refusal(&url(&a, "read-write")).await;
    assert_eq!(code, Code::Connect);
    assert!(text.contains("it is a primary that is read-only, not read-write"), "{text}");
    let (_, text) = refusal(&url(&format!("{a},{b}"), "standby")).await;
    assert!(text.starts_with("can't connect to any host with target_session_attrs=standby") && text.contains(&b), "{text}");

    let session = connect(&url(&a, "any")).await.unwrap();
    let error = session.client().execute("CREATE TABLE t ()", &[]).await.unwrap_err();
    assert_eq!((classify(&error), database_error("x", error).code()), (Trouble::ReadOnly, Code::ReadOnly));
}

#[tokio::test]
async fn errors_of_statements_are_sorted() {
    let (_, url) = Server::shared().fresh_db();
    let session = connect(&url).await.unwrap();
    let name: String = session.client().query_one("SHOW application_name", &[]).await.unwrap().get(0);
    assert_eq!(name, APPLICATION);
    session.client().batch_execute("CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE nobody_much").await.unwrap();
    for (sql, class) in [
        ("SELECT 'x'::text::int", Trouble::BadData),
        ("INSERT INTO t VALUES (1), (1)", Trouble::BadData),
        ("SELECT missing FROM t", Trouble::Undefined),
        ("SELECT 'x'::missing", Trouble::Undefined),
        ("BEGIN; SET LOCAL ROLE nobody_much; SELECT * FROM t", Trouble::Rights),
        ("ROLLBACK; SET statement_timeout = '50ms'; SELECT pg_sleep(5)", Trouble::Cancelled),
        ("SELEC 1", Trouble::Other),
    ] {
        let error = session.client().batch_execute(sql).await.unwrap_err();
        assert_eq!(classify(&error), class, "{sql}: {error:?}");
    }
    let other = connect(&url).await.unwrap();
    other.client().batch_execute("BEGIN; LOCK TABLE t").await.unwrap();
    let error = session.client().batch_execute("SET lock_timeout = '10ms'; SELECT * FROM t").await.unwrap_err();
    assert_eq!(classify(&error), Trouble::LockTimeout);

    let error = session.client().batch_execute("INSERT INTO nothing VALUES ('postgres://u:s3cret@h/x')").await.unwrap_err();
    let error = database_error("filling postgres://u:s3cret@h/x", error);
    assert_eq!(error.to_string(), "filling postgres://u:***@h/x: relation \"nothing\" does not exist");
    assert!(matches!(error, Error::Database { sqlstate: Some(state), code: Code::Database, .. } if state == "42P01"));
}

#[tokio::test]
async fn a_statement_is_cancelled_with_the_same_tls() {
    let session = connect(&tls_url("postgres", "db.test", &format!("sslmode=verify-full&sslrootcert={}", file("ca.crt")))).await.unwrap();
    let canceller = session.canceller();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        canceller.cancel().await
    };
    let (result, cancelled) = tokio::join!(session.client().batch_execute("SELECT pg_sleep(30)"), cancel);
    cancelled.unwrap();
    assert_eq!(classify(&result.unwrap_err()), Trouble::Cancelled);
    session.cancel().await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_told_apart() {
    let mut server = Server::start(15, &[]);
    let session = connect(&server.url()).await.unwrap();
    session.client().batch_execute("CREATE TABLE kept ()").await.unwrap();
    let (result, ()) = tokio::join!(session.client().batch_execute("SELECT pg_sleep(30)"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill();
    });
    let error = result.unwrap_err();
    assert_eq!(classify(&error), Trouble::ConnectionLost, "{error:?}");
    assert_eq!(database_error("x", error).code(), Code::ConnectionLost);
    let error = session.client().batch_execute("SELECT 1").await.unwrap_err();
    assert_eq!(classify(&error), Trouble::ConnectionLost, "{error:?}");
    assert!(session.is_closed());
    assert_eq!(refusal(&server.url()).await.0, Code::Connect);

    server.restart();
    assert_eq!(server.psql("postgres", "SELECT count(*) FROM kept"), "0");
    let session = connect(&server.url()).await.unwrap();
    server.psql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sete-test'");
    while !session.is_closed() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = session.client().batch_execute("SELECT 1").await.unwrap_err();
    assert_eq!(classify(&error), Trouble::ConnectionLost, "{error:?}");
    assert_eq!(session.closed_by(), Some("terminating connection due to administrator command"));
}
