//! What an address says: `mysql://user:password@host:port/database?ssl-mode=…`, also as `mariadb://`.
//!
//! The names of the parameters and their values are those of the `mysql` client's options. A password that the address
//! leaves out comes from MYSQL_PWD. No message holds a value that could be a part of the password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Code, Error, Result};
use crate::secret::{self, DbUrl};

/// How long one attempt may take, from the first packet to the end of the authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const PARAMETERS: &[&str] = &["connect-timeout", "password", "socket", "ssl-ca", "ssl-cert", "ssl-key", "ssl-mode", "user"];

/// How a connection is secured. The order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    Disabled,
    /// TLS if the server offers it, else plain; nothing is verified.
    Preferred,
    /// TLS; nothing is verified.
    Required,
    /// TLS with a certificate of a known authority.
    VerifyCa,
    /// The same, and the certificate must be for this host name.
    VerifyIdentity,
}

const SSL_MODES: &[(&str, SslMode)] = &[
    ("disabled", SslMode::Disabled),
    ("preferred", SslMode::Preferred),
    ("required", SslMode::Required),
    ("verify_ca", SslMode::VerifyCa),
    ("verify_identity", SslMode::VerifyIdentity),
];

/// A database address, checked and complete. `Display` and `Debug` show no password.
#[derive(Clone)]
pub struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) socket: Option<String>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    pub(super) ssl_mode: SslMode,
    /// Certificates of the authorities that are believed; those that every browser believes without it.
    pub(super) ssl_ca: Option<PathBuf>,
    /// Of the client: certificate and key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    pub(super) timeout: Duration,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{}@{}/{}", self.user, self.place(), self.database)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self}, {:?})", self.ssl_mode)
    }
}

fn bad(message: impl AsRef<str>) -> Error {
    Error::new(Code::BadAddress, secret::mask(message.as_ref()))
}

const ENCODE: &str = "in a URL, these must be percent-encoded inside user and password: % as %25, @ as %40, / as %2F, ? as %3F, # as %23, : as %3A";

fn decoded(text: &str) -> Result<String> {
    percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| bad("the address holds a %xx that is not UTF-8"))
}

impl Address {
    /// Reads an address; the password may come from the environment (`MYSQL_PWD`).
    pub fn parse(url: &DbUrl) -> Result<Address> {
        Address::parse_with(url, &|name| std::env::var(name).ok())
    }

    /// The same with an environment of the caller's.
    pub fn parse_with(url: &DbUrl, env: &dyn Fn(&str) -> Option<String>) -> Result<Address> {
        let rest = match url.expose().trim().split_once("://") {
            Some(("mysql" | "mariadb", rest)) => rest,
            Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') => {
                return Err(bad(format!("{scheme}:// is not an address of MySQL or MariaDB; it begins with mysql:// or mariadb://")));
            }
            _ => return Err(bad("an address of MySQL or MariaDB begins with mysql:// or mariadb://")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        if login.contains('@') || database.contains(['/', '@', '#']) {
            return Err(bad(ENCODE));
        }
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(decoded(password)?)),
            None => (login, None),
        };
        let (host, port) = host_and_port(place)?;
        let mut address = Address {
            host,
            port,
            socket: None,
            user: decoded(user)?,
            password,
            database: decoded(database)?,
            ssl_mode: SslMode::Preferred,
            ssl_ca: None,
            client: None,
            timeout: CONNECT_TIMEOUT,
        };
        address.read_parameters(query)?;
        if address.user.is_empty() {
            address.user = whoami::username().map_err(|_| bad("no user: write mysql://user@host/database"))?;
        }
        if address.database.is_empty() {
            return Err(bad("the address names no database, in which sete keeps its state: write mysql://user@host/database"));
        }
        address.password = address.password.or_else(|| env("MYSQL_PWD")).filter(|password| !password.is_empty());
        Ok(address)
    }

    fn read_parameters(&mut self, query: &str) -> Result<()> {
        let (mut cert, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match name.to_lowercase().replace('_', "-").as_str() {
                "connect-timeout" => {
                    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                    self.timeout = Duration::from_secs(seconds.ok_or_else(|| bad("connect-timeout is not a number of seconds"))?);
                }
                "password" => self.password = Some(value),
                "socket" => self.socket = Some(value),
                "ssl-ca" => self.ssl_ca = Some(value.into()),
                "ssl-cert" => cert = Some(value.into()),
                "ssl-key" => key = Some(value.into()),
                "ssl-mode" | "sslmode" => self.ssl_mode = ssl_mode(&value)?,
                "user" => self.user = value,
                // The rest of a password that was cut at a ? ends in @host.
                _ if pair.contains('@') => return Err(bad(ENCODE)),
                name => return Err(bad(format!("the address has a parameter {name} that is not known; there are {}", PARAMETERS.join(", ")))),
            }
        }
        self.client = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(bad("ssl-cert and ssl-key are given together or not at all")),
        };
        Ok(())
    }

    /// The database that is connected to: our tables are there.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Where the server is, for people to read.
    pub fn place(&self) -> String {
        match &self.socket {
            Some(socket) => socket.clone(),
            None if self.host.contains(':') => format!("[{}]:{}", self.host, self.port),
            None => format!("{}:{}", self.host, self.port),
        }
    }
}

fn ssl_mode(value: &str) -> Result<SslMode> {
    let wanted = value.to_lowercase().replace('-', "_");
    let found = SSL_MODES.iter().find(|(name, _)| *name == wanted).map(|(_, mode)| *mode);
    found.ok_or_else(|| {
        if value.contains('@') {
            return bad(ENCODE);
        }
        bad(format!(
            "ssl-mode={value} is not known; there are {}",
            SSL_MODES.iter().map(|(name, _)| name.to_uppercase()).collect::<Vec<_>>().join(", ")
        ))
    })
}

fn host_and_port(text: &str) -> Result<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or("")),
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = match port {
        "" => 3306,
        port => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad(format!("the port is not a number from 1 to 65535; {ENCODE}")))?,
    };
    Ok((if host.is_empty() { "localhost".to_owned() } else { decoded(host)? }, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address> {
        Address::parse_with(&DbUrl::new(url), &|name| (name == "MYSQL_PWD").then(|| "from-env".into()))
    }

    #[test]
    fn all_forms_are_read() {
        let a = parse("mysql://shop:p%40ss@db.example:3307/shop?ssl-mode=VERIFY_IDENTITY&ssl-ca=/etc/ca.pem&connect-timeout=3").unwrap();
        assert_eq!((a.user.as_str(), a.password.as_deref(), a.place().as_str()), ("shop", Some("p@ss"), "db.example:3307"));
        assert_eq!((a.ssl_mode, a.database()), (SslMode::VerifyIdentity, "shop"));
        let a = parse("mariadb://shop@[::1]/x?socket=/run/mysqld.sock").unwrap();
        assert_eq!((a.host.as_str(), a.port, a.place().as_str()), ("::1", 3306, "/run/mysqld.sock"));
        assert_eq!(a.password.as_deref(), Some("from-env"));
        assert_eq!(parse("mysql://u@h/ten%20ant").unwrap().database(), "ten ant");
    }

    #[test]
    fn a_mistake_is_told_without_the_password() {
        for url in [
            "postgres://u@h/x",
            "mysql://u:s3cret@h",
            "mysql://u:s3cret@ret@h/x",
            "mysql://u:s3cret?x@h/x",
            "mysql://u:s3cret@h:port/x",
            "mysql://u@h/x?sslroot=1",
            "mysql://u@h/x?ssl-mode=cret@",
            "mysql://u@h/x?ssl-cert=a",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.code(), Code::BadAddress, "{url}");
            assert!(!error.to_string().contains("cret"), "{error}");
        }
        assert!(!format!("{:?}", parse("mysql://u:s3cret@h/x").unwrap()).contains("cret"));
    }
}
