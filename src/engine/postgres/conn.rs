//! Sessions: from an address to a connection that is as secure as asked, and from the driver's errors to ours.
//!
//! [`Address`] reads what the user wrote, [`Connector`] tries its hosts in order, [`Session`] is what comes of it.

mod address;
mod error;
mod passfile;
mod tls;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_postgres::config::{SslMode as DriverSslMode, SslNegotiation};
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use address::{Address, SessionAttrs, SslMode};
pub use error::{classify, database_error};

use crate::error::{Code, Error, Result, Trouble};
use address::Host;

/// Opens sessions to one address.
#[derive(Clone)]
pub struct Connector {
    address: Address,
    application_name: String,
    tls: MakeRustlsConnect,
}

/// Why one host did not give a session.
struct Failure {
    code: Code,
    reason: String,
    sqlstate: Option<String>,
    /// The server itself said no: the other hosts would be asked in vain, as libpq sees it.
    answered: bool,
    /// It might have been different with TLS, or without.
    transport: bool,
}

impl Failure {
    fn unreachable(reason: impl Into<String>) -> Failure {
        Failure { code: Code::Connect, reason: reason.into(), sqlstate: None, answered: false, transport: false }
    }
}

impl Connector {
    /// Reads the certificate files, so that a wrong path is known before the first connection.
    /// `application_name` is what the server shows in pg_stat_activity; one in the address is not used.
    pub fn new(address: Address, application_name: &str) -> Result<Connector> {
        let mut options = address.tls.clone();
        if address.hosts.iter().all(Host::is_socket) {
            // A unix socket is never encrypted: its sslmode is nobody's business, as in libpq.
            options.mode = SslMode::Disable;
        }
        Ok(Connector { tls: tls::connector(&options)?, application_name: application_name.to_owned(), address })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A session on the first host that takes us and is what `target_session_attrs` asks for.
    pub async fn connect(&self) -> Result<Session> {
        let mut hosts: Vec<&Host> = self.address.hosts.iter().collect();
        if self.address.shuffle {
            rand::seq::SliceRandom::shuffle(hosts.as_mut_slice(), &mut rand::rng());
        }
        let passes: &[SessionAttrs] = match self.address.attrs {
            SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
            _ => std::slice::from_ref(&self.address.attrs),
        };
        let mut failures = Vec::new();
        for attrs in passes {
            failures.clear();
            for host in &hosts {
                match self.connect_to(host, *attrs).await {
                    Ok(session) => return Ok(session),
                    Err(failure) => {
                        let answered = failure.answered;
                        failures.push((*host, failure));
                        if answered {
                            return Err(self.no_session(failures));
                        }
                    }
                }
            }
        }
        Err(self.no_session(failures))
    }

    fn no_session(&self, mut failures: Vec<(&Host, Failure)>) -> Error {
        let code = if failures.iter().all(|(_, f)| f.code == Code::Tls) { Code::Tls } else { Code::Connect };
        let sqlstate = failures.last().and_then(|(_, f)| f.sqlstate.clone());
        let (context, message) = match (failures.pop(), failures.is_empty()) {
            (Some((host, failure)), true) => (format!("can't connect to {host}"), failure.reason),
            (last, _) => {
                failures.extend(last);
                let attrs = self.address.attrs;
                let wanted = if attrs == SessionAttrs::Any { String::new() } else { format!(" with target_session_attrs={}", attrs.as_str()) };
                let each = failures.iter().map(|(host, failure)| format!("{host}: {}", failure.reason)).collect::<Vec<_>>();
                (format!("can't connect to any host{wanted}"), each.join("; "))
            }
        };
        Error::Database { code, trouble: Trouble::ConnectionLost, context, message, sqlstate }
    }

    /// Tries every IP address of the host.
    async fn connect_to(&self, host: &Host, attrs: SessionAttrs) -> Result<Session, Failure> {
        let places = match host.address {
            _ if host.is_socket() => vec![None],
            Some(address) => vec![Some(address)],
            None => match limited(self.address.timeout, tokio::net::lookup_host((host.name.as_str(), host.port))).await {
                None => return Err(Failure::unreachable("its name was not resolved in time")),
                Some(Err(e)) => return Err(Failure::unreachable(format!("its name can't be resolved: {e}"))),
                Some(Ok(found)) => found.map(|address| Some(address.ip())).collect(),
            },
        };
        let mut failure = Failure::unreachable("its name has no address");
        for place in places {
            match self.connect_at(host, place, attrs).await {
                Ok(session) => return Ok(session),
                Err(e) if e.answered => return Err(e),
                Err(e) => failure = e,
            }
        }
        Err(failure)
    }

    /// With TLS, without, or with the one and then the other.
    async fn connect_at(&self, host: &Host, place: Option<IpAddr>, attrs: SessionAttrs) -> Result<Session, Failure> {
        let (first, second) = match self.address.tls.mode {
            _ if host.is_socket() => (DriverSslMode::Disable, None),
            SslMode::Disable => (DriverSslMode::Disable, None),
            SslMode::Allow => (DriverSslMode::Disable, Some(DriverSslMode::Require)),
            // Plain too when the server has TLS but the handshake or pg_hba.conf refuses it, as in libpq.
            SslMode::Prefer => (DriverSslMode::Prefer, Some(DriverSslMode::Disable)),
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (DriverSslMode::Require, None),
        };
        let failure = match self.open(host, place, first, attrs).await {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        let Some(second) = second.filter(|_| failure.transport) else { return Err(failure) };
        self.open(host, place, second, attrs).await.map_err(|again| {
            let same = again.reason == failure.reason;
            let reason = if same { failure.reason } else { format!("{}; and the other way, TLS or not: {}", failure.reason, again.reason) };
            Failure { reason, ..again }
        })
    }

    async fn open(&self, host: &Host, place: Option<IpAddr>, mode: DriverSslMode, attrs: SessionAttrs) -> Result<Session, Failure> {
        let mut config = self.address.driver.clone();
        config.ssl_mode(mode).application_name(&self.application_name).host(&host.name).port(host.port);
        if mode != DriverSslMode::Require {
            config.ssl_negotiation(SslNegotiation::Postgres);
        }
        if let Some(address) = place {
            config.hostaddr(address);
        }
        if let Some(password) = &host.password {
            config.password(password);
        }
        if let Some(timeout) = self.address.timeout {
            // For the request to cancel, which the driver opens a connection of its own for.
            config.connect_timeout(timeout);
        }
        let attempt = async {
            let (client, connection) = config.connect(self.tls.clone()).await.map_err(|e| self.failure(host, e))?;
            let closed_by = Arc::new(OnceLock::new());
            let ended = Arc::clone(&closed_by);
            let name = host.to_string();
            // Ends by itself once the client is dropped.
            tokio::spawn(async move {
                if let Err(e) = connection.await {
                    let reason = error::message(&e);
                    tracing::debug!(host = name, reason, "the connection ended");
                    // If it is only "closed", the statement that ran has been told why.
                    if !e.is_closed() {
                        ended.get_or_init(|| reason);
                    }
                }
            });
            let session = Session { client, host: host.to_string(), tls: self.tls.clone(), timeout: self.address.timeout, closed_by };
            match unfit(&session.client, attrs).await.map_err(|e| self.failure(host, e))? {
                Some(reason) => Err(Failure::unreachable(reason)),
                None => Ok(session),
            }
        };
        limited(self.address.timeout, attempt).await.unwrap_or_else(|| {
            let seconds = self.address.timeout.unwrap_or_default().as_secs();
            Err(Failure::unreachable(format!("no answer within {seconds} s (connect_timeout)")))
        })
    }

    fn failure(&self, host: &Host, err: tokio_postgres::Error) -> Failure {
        if let Some(db) = err.as_db_error() {
            let mut reason = error::message(&err);
            if let (None, "28P01", Some(remark)) = (&host.password, db.code().code(), &self.address.passfile_remark) {
                reason = format!("{reason}; {remark}");
            }
            return Failure {
                code: Code::Connect,
                reason,
                sqlstate: Some(db.code().code().to_owned()),
                // 57P03: it starts up or shuts down; another host may be ready.
                answered: db.code().code() != "57P03",
                // 28000: no line of pg_hba.conf for this user, host, database and kind of connection.
                transport: db.code().code() == "28000",
            };
        }
        if let Some(tls) = error::tls_error(&err) {
            let reason = tls::explain(tls, &self.address.tls, &host.name);
            return Failure { code: Code::Tls, transport: true, ..Failure::unreachable(reason) };
        }
        let text = error::message(&err);
        // The driver keeps the kind of an error to itself; its texts are what can be told apart.
        if let Some(what) = text.strip_prefix("error performing TLS handshake") {
            let what = what.trim_start_matches(": ");
            let reason = if what == "server does not support TLS" { "the server offers no TLS (ssl = off)" } else { what };
            return Failure { code: Code::Tls, transport: true, ..Failure::unreachable(reason) };
        }
        if text.ends_with("password missing") {
            let remark = self.address.passfile_remark.as_ref().map(|remark| format!("; {remark}")).unwrap_or_default();
            let reason =
                format!("the server asks user {} for a password and none was given: set PGPASSWORD or write a passfile{remark}", self.address.user);
            return Failure { answered: true, ..Failure::unreachable(reason) };
        }
        let text = text.strip_prefix("error connecting to server: ").unwrap_or(&text);
        Failure::unreachable(match error::io_error(&err).map(std::io::Error::kind) {
            Some(std::io::ErrorKind::ConnectionRefused) => "connection refused: no server listens there".to_owned(),
            Some(std::io::ErrorKind::NotFound) if host.is_socket() => "no server has its socket there".to_owned(),
            _ => text.to_owned(),
        })
    }
}

/// The future's result; None if it takes longer than the limit.
async fn limited<T>(limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, future).await.ok(),
        None => Some(future.await),
    }
}

/// Why the session is not what was asked for, if it isn't.
async fn unfit(client: &Client, attrs: SessionAttrs) -> Result<Option<String>, tokio_postgres::Error> {
    if attrs == SessionAttrs::Any {
        return Ok(None);
    }
    let messages = client.simple_query("SELECT pg_catalog.current_setting('transaction_read_only'), pg_catalog.pg_is_in_recovery()").await?;
    let row = messages.iter().find_map(|m| if let SimpleQueryMessage::Row(row) = m { Some(row) } else { None });
    let read_only = row.and_then(|row| row.get(0)) == Some("on");
    let standby = row.and_then(|row| row.get(1)) == Some("t");
    let fits = match attrs {
        SessionAttrs::Any | SessionAttrs::PreferStandby => true,
        SessionAttrs::ReadWrite => !read_only,
        SessionAttrs::ReadOnly => read_only,
        SessionAttrs::Primary => !standby,
        SessionAttrs::Standby => standby,
    };
    let is = match (standby, read_only) {
        (true, _) => "a standby",
        (false, true) => "a primary that is read-only",
        (false, false) => "a primary that takes writes",
    };
    Ok((!fits).then(|| format!("it is {is}, not {}", attrs.as_str())))
}

/// An open connection.
pub struct Session {
    client: Client,
    host: String,
    tls: MakeRustlsConnect,
    timeout: Option<Duration>,
    closed_by: Arc<OnceLock<String>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.host)
    }
}

impl Session {
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// For transactions, which need the client for themselves.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The host that was reached, as `name:port`.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Why the connection was lost between two statements: the next one only sees "connection closed".
    pub fn closed_by(&self) -> Option<&str> {
        self.closed_by.get().map(String::as_str)
    }

    /// Asks the server to cancel the statement that runs. It may have ended by then; what it does say then is its own result.
    pub async fn cancel(&self) -> Result<()> {
        self.canceller().cancel().await
    }

    /// The same for somebody else to hold while this session is busy.
    pub fn canceller(&self) -> Canceller {
        Canceller { token: self.client.cancel_token(), tls: self.tls.clone(), timeout: self.timeout, host: self.host.clone() }
    }
}

/// Cancels what its session is doing.
#[derive(Clone)]
pub struct Canceller {
    token: CancelToken,
    tls: MakeRustlsConnect,
    timeout: Option<Duration>,
    host: String,
}

impl Canceller {
    /// Returns once the request is sent, over a connection of its own with the same TLS.
    pub async fn cancel(&self) -> Result<()> {
        let context = format!("can't cancel at {}", self.host);
        match limited(self.timeout, self.token.cancel_query(self.tls.clone())).await {
            Some(done) => done.map_err(|e| database_error(&context, e)),
            None => Err(Error::Database {
                code: Code::Connect,
                trouble: Trouble::ConnectionLost,
                context,
                message: "no answer in time".to_owned(),
                sqlstate: None,
            }),
        }
    }
}
