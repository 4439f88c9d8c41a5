//! What an address says: URLs and keyword strings as libpq knows them, completed from the environment.
//!
//! Source of the grammar and the defaults: <https://www.postgresql.org/docs/current/libpq-connect.html>.
//! tokio-postgres checks the parameters that it knows; the rest (verify-ca and verify-full, root certificates,
//! passfiles, primary and standby, several hosts with a password each) is done here.
//! No message holds a value that could be a part of the password.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::passfile::{self, Lookup};
use crate::error::{Code, Error, Result};
use crate::secret::{self, DbUrl};

/// How long one host may take, from the first packet to the end of the authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Every parameter, and the environment variable that stands in for it (libpq-envars).
const PARAMETERS: &[(&str, Option<&str>)] = &[
    ("application_name", None),
    ("channel_binding", Some("PGCHANNELBINDING")),
    ("client_encoding", None),
    ("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    ("dbname", Some("PGDATABASE")),
    ("fallback_application_name", None),
    ("gssencmode", Some("PGGSSENCMODE")),
    ("host", Some("PGHOST")),
    ("hostaddr", Some("PGHOSTADDR")),
    ("keepalives", None),
    ("keepalives_count", None),
    ("keepalives_idle", None),
    ("keepalives_interval", None),
    ("load_balance_hosts", Some("PGLOADBALANCEHOSTS")),
    ("options", Some("PGOPTIONS")),
    ("passfile", Some("PGPASSFILE")),
    ("password", Some("PGPASSWORD")),
    ("port", Some("PGPORT")),
    ("sslcert", Some("PGSSLCERT")),
    ("sslkey", Some("PGSSLKEY")),
    ("sslmode", Some("PGSSLMODE")),
    ("sslnegotiation", Some("PGSSLNEGOTIATION")),
    ("sslrootcert", Some("PGSSLROOTCERT")),
    ("sslsni", Some("PGSSLSNI")),
    ("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    ("tcp_user_timeout", None),
    ("user", Some("PGUSER")),
];

/// Parameters of libpq that would change what a connection may be, so that they can't just be skipped.
const NOT_SUPPORTED: &[&str] = &[
    "gssdelegation",
    "gsslib",
    "krbsrvname",
    "replication",
    "require_auth",
    "requirepeer",
    "requiressl",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslpassword",
];

/// How a connection is secured. The order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    Disable,
    /// Plain if the server takes it, else TLS.
    Allow,
    /// TLS if the server offers it, else plain; nothing is verified.
    Prefer,
    /// TLS; verified like `VerifyCa` if there is a root certificate.
    Require,
    /// TLS with a certificate of a known authority.
    VerifyCa,
    /// The same, and the certificate must be for this host name.
    VerifyFull,
}

const SSL_MODES: &[(&str, SslMode)] = &[
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

/// What the session must allow, so that a list of hosts leads to the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    /// A standby if one is to be had, else any.
    PreferStandby,
}

const SESSION_ATTRS: &[(&str, SessionAttrs)] = &[
    ("any", SessionAttrs::Any),
    ("read-write", SessionAttrs::ReadWrite),
    ("read-only", SessionAttrs::ReadOnly),
    ("primary", SessionAttrs::Primary),
    ("standby", SessionAttrs::Standby),
    ("prefer-standby", SessionAttrs::PreferStandby),
];

impl SessionAttrs {
    /// As it is written in an address.
    pub(super) fn as_str(self) -> &'static str {
        SESSION_ATTRS.iter().find(|(_, attrs)| *attrs == self).map_or("any", |(name, _)| name)
    }
}

/// Where the certificates of the authorities are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RootCert {
    /// Those that the operating system trusts (`sslrootcert=system`).
    System,
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub(super) struct TlsOptions {
    pub mode: SslMode,
    pub root: Option<RootCert>,
    /// Of the client: certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
    pub server_name_indication: bool,
    /// TLS from the first byte (PostgreSQL 17), which needs the protocol's name in the handshake.
    pub direct: bool,
}

/// One place to try.
#[derive(Clone)]
pub(super) struct Host {
    /// A name, an IP address, or the folder of a unix socket.
    pub name: String,
    /// Where `name` is to be found, without asking for it.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub password: Option<String>,
}

impl Host {
    pub(super) fn is_socket(&self) -> bool {
        self.name.starts_with('/') && self.address.is_none()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_socket() {
            write!(f, "{}/.s.PGSQL.{}", self.name, self.port)
        } else if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// A database address, checked and complete. `Display` and `Debug` show no password.
#[derive(Clone)]
pub struct Address {
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) tls: TlsOptions,
    pub(super) attrs: SessionAttrs,
    /// None: no limit (`connect_timeout=0`).
    pub(super) timeout: Option<Duration>,
    pub(super) shuffle: bool,
    /// Why the passfile gave no password, if it should have.
    pub(super) passfile_remark: Option<String>,
    /// Everything for the driver, except host and password.
    pub(super) driver: tokio_postgres::Config,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        write!(f, "postgres://{}@{hosts}/{}", self.user, self.database)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self}, {:?}, {:?})", self.tls.mode, self.attrs)
    }
}

impl Address {
    /// Reads an address; what it leaves open comes from the environment (`PGUSER`, `PGPASSWORD`, …), then from libpq's defaults.
    pub fn parse(url: &DbUrl) -> Result<Address> {
        Address::parse_with(url, &|name| std::env::var(name).ok())
    }

    /// The same with an environment of the caller's.
    pub fn parse_with(url: &DbUrl, env: &dyn Fn(&str) -> Option<String>) -> Result<Address> {
        let given = given(url.expose())?;
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let get = |name: &str| -> Option<String> {
            let variable = PARAMETERS.iter().find(|(n, _)| *n == name).and_then(|(_, variable)| *variable);
            given.get(name).filter(|value| !value.is_empty()).cloned().or_else(|| variable.and_then(&env))
        };
        let home_file = |name: &str| env("HOME").map(|home| PathBuf::from(home).join(name));

        let user = match get("user") {
            Some(user) => user,
            None => whoami::username().map_err(|_| bad("no user: write postgres://user@host/database or set PGUSER"))?,
        };
        let database = get("dbname").unwrap_or_else(|| user.clone());
        let tls = tls(&get, &home_file)?;
        if let Some(mode) = get("gssencmode").filter(|mode| mode != "disable" && mode != "prefer") {
            return Err(bad(format!("gssencmode={mode} can't be had: there is no GSSAPI here; use TLS")));
        }
        if let Some(encoding) = get("client_encoding").filter(|e| !["utf8", "utf-8", "unicode", "auto"].contains(&e.to_lowercase().as_str())) {
            return Err(bad(format!("client_encoding={encoding} can't be had: the connection always speaks UTF8")));
        }

        let mut hosts = hosts(get("host"), get("hostaddr"), get("port"))?;
        let mut passfile_remark = None;
        let password = get("password");
        let passfile = get("passfile").map(PathBuf::from).or_else(|| home_file(".pgpass"));
        for host in &mut hosts {
            host.password = password.clone();
            let Some(path) = passfile.as_ref().filter(|_| password.is_none()) else { continue };
            // A socket in the default folder is written as localhost.
            let name = if SOCKET_FOLDERS.contains(&host.name.as_str()) { "localhost" } else { &host.name };
            match passfile::look_up(path, name, host.port, &database, &user) {
                Lookup::Found(found) => host.password = Some(found),
                Lookup::Nothing => {}
                Lookup::Unusable(why) => passfile_remark = Some(why),
            }
        }

        let timeout = match get("connect_timeout") {
            None => Some(CONNECT_TIMEOUT),
            Some(text) => {
                let seconds: i64 = text.trim().parse().map_err(|_| bad("connect_timeout is not a number of seconds"))?;
                (seconds > 0).then(|| Duration::from_secs(seconds.unsigned_abs()))
            }
        };
        let shuffle = one_of("load_balance_hosts", get("load_balance_hosts"), &[("disable", false), ("random", true)])?.unwrap_or(false);
        let attrs = one_of("target_session_attrs", get("target_session_attrs"), SESSION_ATTRS)?.unwrap_or(SessionAttrs::Any);
        let mut driver = driver(&get)?;
        driver.user(&user).dbname(&database);
        Ok(Address { hosts, user, database, tls, attrs, timeout, shuffle, passfile_remark, driver })
    }

    /// The role that connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database that is connected to.
    pub fn database(&self) -> &str {
        &self.database
    }
}

/// Folders in which packages of PostgreSQL put their socket: Debian's and Red Hat's, then upstream's.
const SOCKET_FOLDERS: &[&str] = &["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// What to do about a password that falls apart.
const ENCODE: &str = "in a URL, these must be percent-encoded inside user and password: % as %25, @ as %40, / as %2F, ? as %3F, # as %23, : as %3A";

fn bad(message: impl AsRef<str>) -> Error {
    Error::new(Code::BadAddress, secret::mask(message.as_ref()))
}

/// The name most like `name`, as a sentence.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let likeness = |known: &str| strsim::jaro_winkler(known, &name.to_lowercase());
    let nearest = known.map(|k| (likeness(k), k)).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map_or(String::new(), |(_, known)| format!("; did you mean {known}?"))
}

fn one_of<T: Copy>(parameter: &str, value: Option<String>, known: &[(&str, T)]) -> Result<Option<T>> {
    let Some(value) = value else { return Ok(None) };
    match known.iter().find(|(name, _)| *name == value) {
        Some((_, meaning)) => Ok(Some(*meaning)),
        // The rest of a password that was cut at a ? ends in @host.
        None if value.contains('@') => Err(bad(ENCODE)),
        None => Err(bad(format!("{parameter}={value} is not known{}", did_you_mean(&value, known.iter().map(|(name, _)| *name))))),
    }
}

fn tls(get: &dyn Fn(&str) -> Option<String>, home_file: &dyn Fn(&str) -> Option<PathBuf>) -> Result<TlsOptions> {
    let root = get("sslrootcert").map(|value| if value == "system" { RootCert::System } else { RootCert::File(value.into()) });
    let system = root == Some(RootCert::System);
    let default = if system { SslMode::VerifyFull } else { SslMode::Prefer };
    let mode = one_of("sslmode", get("sslmode"), SSL_MODES)?.unwrap_or(default);
    if system && mode < SslMode::VerifyFull {
        // libpq refuses it too: with authorities that sign for anybody, only the host name tells servers apart.
        return Err(bad("sslrootcert=system needs sslmode=verify-full"));
    }
    let root = root.or_else(|| home_file(".postgresql/root.crt").filter(|path| path.exists()).map(RootCert::File));
    let client = match get("sslcert") {
        None => home_file(".postgresql/postgresql.crt").filter(|path| path.exists()),
        given => given.map(PathBuf::from),
    };
    let client = match (client, get("sslkey").map(PathBuf::from).or_else(|| home_file(".postgresql/postgresql.key"))) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (Some(_), None) => return Err(bad("sslcert is given without sslkey")),
        (None, _) => None,
    };
    let server_name_indication = one_of("sslsni", get("sslsni"), &[("0", false), ("1", true)])?.unwrap_or(true);
    let direct = one_of("sslnegotiation", get("sslnegotiation"), &[("postgres", false), ("direct", true)])?.unwrap_or(false);
    if direct && mode < SslMode::Require {
        return Err(bad("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full"));
    }
    Ok(TlsOptions { mode, root, client, server_name_indication, direct })
}

/// The parameters that tokio-postgres itself understands and checks.
fn driver(get: &dyn Fn(&str) -> Option<String>) -> Result<tokio_postgres::Config> {
    let mut text = String::new();
    for (ours, theirs) in [
        ("channel_binding", "channel_binding"),
        ("keepalives", "keepalives"),
        ("keepalives_count", "keepalives_retries"),
        ("keepalives_idle", "keepalives_idle"),
        ("keepalives_interval", "keepalives_interval"),
        ("options", "options"),
        ("sslnegotiation", "sslnegotiation"),
    ] {
        if let Some(value) = get(ours) {
            text.push_str(&format!("{theirs}='{}' ", value.replace('\\', r"\\").replace('\'', r"\'")));
        }
    }
    let mut config: tokio_postgres::Config = text.parse().map_err(|e| bad(super::error::chain(&e)))?;
    // The driver would wait two hours before it asks whether the server is still there; a holder of a lease can't.
    if get("keepalives_idle").is_none() {
        config.keepalives_idle(Duration::from_secs(60));
    }
    if get("keepalives_interval").is_none() {
        config.keepalives_interval(Duration::from_secs(10));
    }
    if get("keepalives_count").is_none() {
        config.keepalives_retries(3);
    }
    // In milliseconds for libpq; the driver's own parser takes seconds.
    if let Some(value) = get("tcp_user_timeout") {
        let millis = value.parse().map_err(|_| bad("tcp_user_timeout is not a number of milliseconds"))?;
        config.tcp_user_timeout(Duration::from_millis(millis));
    }
    Ok(config)
}

fn hosts(host: Option<String>, hostaddr: Option<String>, port: Option<String>) -> Result<Vec<Host>> {
    let split = |list: Option<String>| list.map(|list| list.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>()).unwrap_or_default();
    let (names, addresses, ports) = (split(host), split(hostaddr), split(port));
    let n = names.len().max(addresses.len()).max(1);
    for (what, len) in [("hosts", names.len()), ("hostaddr", addresses.len())] {
        if len != 0 && len != n {
            return Err(bad(format!("{n} places to connect to, but {len} {what}")));
        }
    }
    if ports.len() > 1 && ports.len() != n {
        return Err(bad(format!("{n} hosts, but {} ports; give one for all or one for each", ports.len())));
    }
    (0..n)
        .map(|i| {
            let port = ports.get(i).or(ports.first()).map_or("", String::as_str);
            let port = match port {
                "" => 5432,
                port => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad("a port is not a number from 1 to 65535"))?,
            };
            let address: Option<IpAddr> = match addresses.get(i).map_or("", String::as_str) {
                "" => None,
                text => Some(text.parse().map_err(|_| bad("hostaddr is not an IP address"))?),
            };
            let name = match (names.get(i).map_or("", String::as_str), address) {
                ("", Some(address)) => address.to_string(),
                ("", None) => default_host(port),
                (name, _) if name.contains('@') => return Err(bad(ENCODE)),
                (name, _) => name.to_owned(),
            };
            Ok(Host { name, address, port, password: None })
        })
        .collect()
}

/// Without a host: the local socket if there is one, else localhost.
fn default_host(port: u16) -> String {
    let there = |folder: &&&str| std::path::Path::new(folder).join(format!(".s.PGSQL.{port}")).exists();
    SOCKET_FOLDERS.iter().find(there).map_or_else(|| "localhost".to_owned(), |folder| (*folder).to_owned())
}

/// The parameters that the address itself gives.
fn given(text: &str) -> Result<BTreeMap<&'static str, String>> {
    let text = text.trim();
    let mut given = BTreeMap::new();
    match text.split_once("://") {
        Some(("postgres" | "postgresql", rest)) => url(rest, &mut given)?,
        Some((scheme, _)) if !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') => {
            return Err(bad(format!("{scheme}:// is not an address of PostgreSQL; it begins with postgres://")));
        }
        _ => keywords(text, &mut given)?,
    }
    Ok(given)
}

/// Takes one parameter; `secret` says that its name may be a piece of a password that was not quoted.
fn take(given: &mut BTreeMap<&'static str, String>, name: &str, value: String, secret: Option<&str>) -> Result<()> {
    // JDBC's form, and the driver's own name for libpq's keepalives_count.
    let (name, value) = match (name, value.as_str()) {
        ("ssl", "true") => ("sslmode", "require".to_owned()),
        ("keepalives_retries", _) => ("keepalives_count", value),
        _ => (name, value),
    };
    if value.contains('\0') {
        return Err(bad("it holds a zero byte"));
    }
    match PARAMETERS.iter().find(|(known, _)| *known == name) {
        Some((known, _)) => {
            given.insert(known, value);
            Ok(())
        }
        None => Err(bad(match secret {
            Some(why) => why.to_owned(),
            None if NOT_SUPPORTED.contains(&name) => format!("the parameter {name} is not supported"),
            None => format!("unknown parameter {name:?}{}", did_you_mean(name, PARAMETERS.iter().map(|(known, _)| *known))),
        })),
    }
}

/// `user:password@host:port,host:port/database?parameter=value&…`
fn url(rest: &str, given: &mut BTreeMap<&'static str, String>) -> Result<()> {
    const ENCODE: &str =
        "in a URL, these must be percent-encoded inside user and password: % as %25, @ as %40, / as %2F, ? as %3F, # as %23, : as %3A";
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // A bare / or ? in a password moves its end, and the @, into path or query: what is there must not be shown then.
    let cut_password = authority.contains(':') && !authority.contains('@');
    if authority.matches('@').count() > 1 || (cut_password && path.contains('@')) {
        return Err(bad(ENCODE));
    }
    let hosts = match authority.split_once('@') {
        Some((login, hosts)) => {
            let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
            given.insert("user", decode("user", user)?);
            if let Some(password) = password {
                given.insert("password", decode("password", password)?);
            }
            hosts
        }
        None => authority,
    };
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((name, port))) => (name, port.strip_prefix(':').unwrap_or(port)),
            Some(None) => return Err(bad("a [ has no ] after it")),
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        names.push(decode("host", name)?);
        ports.push(port.to_owned());
    }
    given.insert("host", if names.iter().all(String::is_empty) { String::new() } else { names.join(",") });
    given.insert("port", if ports.iter().all(String::is_empty) { String::new() } else { ports.join(",") });
    given.insert("dbname", decode("database", path)?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let secret = (cut_password && query.contains('@')).then_some(ENCODE);
        let Some((name, value)) = pair.split_once('=') else {
            return Err(bad(secret.unwrap_or("a parameter after the ? has no value; write name=value&name=value")));
        };
        take(given, &decode("name", name)?, decode(name, value)?, secret)?;
    }
    Ok(())
}

fn decode(what: &str, text: &str) -> Result<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| bad(format!("the {what} is not UTF-8 once its percent signs are decoded")))
}

/// `name=value name='quoted value' …`, with backslash escapes in both.
fn keywords(text: &str, given: &mut BTreeMap<&'static str, String>) -> Result<()> {
    const QUOTE: &str = "what follows the password is no parameter; a value with spaces needs single quotes: password='…'";
    let mut chars = text.chars().peekable();
    let mut after_password = None;
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(());
        }
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| *c != '=' && !c.is_whitespace()) {
            name.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next_if_eq(&'=').is_none() {
            return Err(bad(after_password.unwrap_or("it is neither postgres://user@host/database nor host=… dbname=… user=…")));
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if quoted => return Err(bad("a quoted value has no end")),
                None => break,
            }
        }
        take(given, &name, value, after_password)?;
        // Until a known parameter shows that the password has ended.
        after_password = (name == "password").then_some(QUOTE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address> {
        Address::parse_with(&DbUrl::new(text), &|_| None)
    }

    fn refused(text: &str) -> String {
        let error = parse(text).unwrap_err();
        assert_eq!(error.code(), Code::BadAddress);
        error.to_string()
    }

    #[test]
    fn urls_and_keyword_strings_say_the_same() {
        for text in [
            "postgres://ann:p%40ss@h1:5433,h2,[::1]:7/shop?sslmode=verify-full&target_session_attrs=read-write&connect_timeout=3",
            "host=h1,h2,::1 port=5433,,7 user = ann password='p@ss' dbname=shop sslmode=verify-full target_session_attrs=read-write connect_timeout=3",
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), "postgres://ann@h1:5433,h2:5432,[::1]:7/shop");
            assert_eq!(address.hosts[0].password.as_deref(), Some("p@ss"));
            assert_eq!(address.tls.mode, SslMode::VerifyFull);
            assert_eq!(address.attrs, SessionAttrs::ReadWrite);
            assert_eq!(address.timeout, Some(Duration::from_secs(3)));
        }
        let socket = parse("postgres://ann@%2Frun%2Fx:6000/shop?options=-c%20a%3Db&keepalives_idle=5").unwrap();
        assert_eq!(socket.hosts[0].to_string(), "/run/x/.s.PGSQL.6000");
        assert_eq!(socket.driver.get_options(), Some("-c a=b"));
        assert_eq!(socket.driver.get_keepalives_idle(), Duration::from_secs(5));
        assert_eq!(socket.timeout, Some(CONNECT_TIMEOUT));
    }

    #[test]
    fn the_environment_fills_what_is_left_open() {
        let env = |name: &str| {
            let value = match name {
                "PGUSER" => "ann",
                "PGPASSWORD" => "s3cret",
                "PGHOST" => "h1,h2",
                "PGPORT" => "6000",
                "PGDATABASE" => "shop",
                "PGSSLMODE" => "verify-ca",
                "PGSSLROOTCERT" => "/ca.crt",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let address = Address::parse_with(&DbUrl::new("postgres://"), &env).unwrap();
        assert_eq!(address.to_string(), "postgres://ann@h1:6000,h2:6000/shop");
        assert_eq!(address.hosts[1].password.as_deref(), Some("s3cret"));
        assert_eq!((address.tls.mode, address.tls.root), (SslMode::VerifyCa, Some(RootCert::File("/ca.crt".into()))));
        let address = Address::parse_with(&DbUrl::new("postgres://bob@h3:1/x?sslmode=disable"), &env).unwrap();
        assert_eq!((address.to_string().as_str(), address.tls.mode), ("postgres://bob@h3:1/x", SslMode::Disable));
    }

    #[test]
    fn a_mistake_is_named_with_the_way_out() {
        assert_eq!(refused("postgres://h/x?sslmod=require"), "unknown parameter \"sslmod\"; did you mean sslmode?");
        assert_eq!(refused("host=h sslmode=verify_full"), "sslmode=verify_full is not known; did you mean verify-full?");
        assert_eq!(refused("postgres://h/x?target_session_attrs=readwrite"), "target_session_attrs=readwrite is not known; did you mean read-write?");
        assert_eq!(refused("postgres://h/x?sslcrl=/a"), "the parameter sslcrl is not supported");
        assert_eq!(refused("postgres://h/x?keepalives_idle=soon"), "invalid connection string: invalid value for option `keepalives_idle`");
        assert_eq!(refused("postgres://h:port/x"), "a port is not a number from 1 to 65535");
        assert_eq!(refused("postgres://a,b/x?port=1,2,3"), "2 hosts, but 3 ports; give one for all or one for each");
        assert_eq!(refused("postgres://h/x?sslmode=require&sslrootcert=system"), "sslrootcert=system needs sslmode=verify-full");
        assert!(refused("mysql://h/x").starts_with("mysql:// is not an address of PostgreSQL"));
        assert!(refused("shop").starts_with("it is neither"));
    }

    #[test]
    fn no_part_of_a_password_is_shown() {
        for text in [
            "postgres://ann:s3c@ret@h/x",
            "postgres://ann:s3c/ret@h/x",
            "postgres://ann:12/ret@h/x",
            "postgres://ann:s3c?ret=1@h/x",
            "postgres://ann:s3c?ret@h/x",
            "postgres://ann:12?sslmode=ret@h/x",
            "postgres://ann:12?host=ret@h/x",
            "postgres://ann:s3c%ff@h/x",
            "host=h password=s3c ret=1 user=ann",
            "host=h password=s3c ret",
            "host=h password='s3c ret",
            "postgres://ann@h/x?sslmode=off password=s3cret",
        ] {
            let message = refused(text);
            assert!(!message.contains("s3c") && !message.contains("ret"), "{text}: {message}");
        }
        let address = parse("postgres://ann:s3cret@h/x").unwrap();
        assert!(!format!("{address} {address:?}").contains("s3cret"));
    }
}
