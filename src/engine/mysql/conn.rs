//! Sessions: from an address to a connection that is as secure as asked, with all that changes a value's meaning pinned.
//!
//! [`Address`] reads what the user wrote, [`Connector`] opens a [`Session`]. Settings are the session's own here, since there is
//! no SET LOCAL: our sessions serve nobody else and end with us.

mod address;
mod error;
mod tls;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, DriverError, Error as DriverFailure, IoError, OptsBuilder, Params, Row};

pub use address::{Address, SslMode};
pub use error::{classify, database_error};

use super::{Flavor, Version};
use crate::error::{Code, Error, Result, Trouble};

/// What our sessions and the triggers take for valid, alike: a value that doesn't fit is an error, never cut.
pub const SQL_MODE: &str = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION";
/// So that an expression over times gives the same everywhere.
pub const TIME_ZONE: &str = "+00:00";
/// A session that is silent between two transactions may stay for so long, whatever the server's default is.
pub const IDLE: Duration = Duration::from_secs(8 * 3600);

/// Everything that an expression's value or a statement's effect may depend on.
fn pinned() -> String {
    format!(
        "SET NAMES utf8mb4; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         SET SESSION sql_mode = '{SQL_MODE}', time_zone = '{TIME_ZONE}', autocommit = 1, sql_safe_updates = 0, foreign_key_checks = 1, unique_checks = 1, \
         sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615, div_precision_increment = 4, default_week_format = 0, \
         lc_time_names = 'en_US', group_concat_max_len = 1048576, sql_auto_is_null = 0, completion_type = 0, wait_timeout = {}, \
         lock_wait_timeout = 1, innodb_lock_wait_timeout = 1",
        IDLE.as_secs()
    )
}

/// Which server answers, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    /// `server_uuid` of MySQL, `server_uid` of MariaDB, where it has one.
    uuid: String,
    host: String,
    port: String,
    id: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} (server_id {}, {})", self.host, self.port, self.id, if self.uuid.is_empty() { "no uuid" } else { &self.uuid })
    }
}

/// Opens sessions to one address. Its clones know of each other's sessions.
#[derive(Clone)]
pub struct Connector {
    address: Address,
    application: String,
    /// The first server that answered: all later sessions must lead there too.
    first: Arc<OnceLock<Identity>>,
    ours: Arc<Mutex<HashSet<u32>>>,
}

impl Connector {
    pub fn new(address: Address, application: &str) -> Result<Connector> {
        tls::check(&address)?;
        Ok(Connector { address, application: application.to_owned(), first: Arc::default(), ours: Arc::default() })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The server's numbers of the sessions that are open now.
    pub fn ours(&self) -> Vec<u32> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    pub async fn connect(&self) -> Result<Session> {
        let attempt = async {
            let conn = self.open().await?;
            self.session(conn).await
        };
        tokio::time::timeout(self.address.timeout, attempt).await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s (connect-timeout)", self.address.timeout.as_secs());
            Err(self.failed(Code::Connect, message, None))
        })
    }

    fn failed(&self, code: Code, message: String, number: Option<u16>) -> Error {
        let context = format!("can't connect to {}", self.address.place());
        Error::Database { code, trouble: Trouble::ConnectionLost, context, message, sqlstate: number.map(|n| n.to_string()) }
    }

    /// With TLS, or without it where that is allowed and the server has none.
    async fn open(&self) -> Result<Conn> {
        let mut ssl = tls::options(&self.address);
        loop {
            match Conn::new(self.options().ssl_opts(ssl.clone())).await {
                Ok(conn) => return Ok(conn),
                Err(DriverFailure::Driver(DriverError::NoClientSslFlagFromServer)) if self.address.ssl_mode == SslMode::Preferred => ssl = None,
                Err(e) => match tls::by_name_in(&e, &self.address, ssl.as_ref()) {
                    Some(named) => ssl = Some(named),
                    None => return Err(self.explain(e)),
                },
            }
        }
    }

    fn options(&self) -> OptsBuilder {
        let address = &self.address;
        OptsBuilder::default()
            .ip_or_hostname(address.host.clone())
            .tcp_port(address.port)
            .socket(address.socket.clone())
            .user(Some(address.user.clone()))
            .pass(address.password.clone())
            .db_name(Some(address.database.clone()))
            // Not behind a proxy's back.
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(60)))
            .stmt_cache_size(64)
            // Rows that were found, also where they have the value already.
            .client_found_rows(true)
            .connect_attribute("program_name", self.application.clone())
    }

    fn explain(&self, err: DriverFailure) -> Error {
        let message = error::message(&err);
        if let Some(e) = tls::error_in(&err) {
            return self.failed(Code::Tls, tls::explain(e, &self.address), None);
        }
        match &err {
            DriverFailure::Server(e) => self.failed(Code::Connect, message, Some(e.code)),
            DriverFailure::Io(IoError::Tls(_)) => self.failed(Code::Tls, message, None),
            DriverFailure::Driver(DriverError::NoClientSslFlagFromServer) => self.failed(Code::Tls, "the server offers no TLS".into(), None),
            DriverFailure::Driver(DriverError::UnknownAuthPlugin { name }) => {
                self.failed(Code::Connect, format!("the server asks for authentication by {name}, which is not supported"), None)
            }
            _ => self.failed(Code::Connect, message, None),
        }
    }

    /// Pins the settings, and looks which server this is.
    async fn session(&self, conn: Conn) -> Result<Session> {
        let id = conn.id();
        let mut session = Session {
            conn,
            id,
            ours: self.ours.clone(),
            version: Version { flavor: Flavor::MySql, number: (0, 0, 0), text: String::new() },
            read_only: None,
            identity: String::new(),
            busy: false,
            in_transaction: false,
            mark: None,
        };
        session.ours.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        let names = "'version', 'server_uuid', 'server_uid', 'hostname', 'port', 'server_id', 'read_only', 'super_read_only', 'innodb_read_only'";
        let rows = session.query(&format!("SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})"), (), "asking which server this is").await?;
        let variables = rows.iter().map(|row| Ok((get::<String>(row, 0)?, get::<String>(row, 1)?))).collect::<Result<Vec<_>>>()?;
        let variable = |name: &str| variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()).unwrap_or_default();
        session.version = Version::parse(&variable("version"));
        let on = |name: &&&str| !matches!(variable(name).to_uppercase().as_str(), "" | "OFF" | "0" | "NO");
        session.read_only = ["super_read_only", "innodb_read_only", "read_only"].iter().find(on).map(|name| format!("{name} is on"));
        let uuid = variable("server_uuid") + &variable("server_uid");
        let identity = Identity { uuid, host: variable("hostname"), port: variable("port"), id: variable("server_id") };
        let first = self.first.get_or_init(|| identity.clone());
        if *first != identity {
            let place = self.address.place();
            return Err(Error::new(Code::ServerChanged, format!("{place} led to {first} at first, and leads to {identity} now")));
        }
        session.identity = identity.to_string();
        session.batch(&pinned(), "setting up the session").await?;
        Ok(session)
    }
}

/// An open connection, with one statement at a time.
pub struct Session {
    conn: Conn,
    id: u32,
    ours: Arc<Mutex<HashSet<u32>>>,
    version: Version,
    read_only: Option<String>,
    identity: String,
    /// A statement was sent, and its answer was not read to the end: whoever waited for it was cancelled.
    busy: bool,
    in_transaction: bool,
    /// A user-level lock that lives as long as the session: how others see that it does.
    mark: Option<String>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} on {})", self.id, self.identity)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl Session {
    /// The server's number for it, as in the process list.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Why the server takes no writes, as it was when we connected.
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Host, port, server_id and uuid.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn is_usable(&self) -> bool {
        !self.busy && !self.conn.is_disconnected()
    }

    /// Statements without parameters, separated by semicolons. The first that fails is the last that runs.
    pub async fn batch(&mut self, sql: &str, context: &str) -> Result<()> {
        self.busy = true;
        let done = self.conn.query_drop(sql).await;
        self.answered(done, context)
    }

    pub async fn query<P: Into<Params> + Send>(&mut self, sql: &str, params: P, context: &str) -> Result<Vec<Row>> {
        self.busy = true;
        let params = params.into();
        // Without parameters nothing needs to be prepared, and SHOW can't be everywhere.
        let rows = match params {
            Params::Empty => self.conn.query(sql).await,
            params => self.conn.exec(sql, params).await,
        };
        self.answered(rows, context)
    }

    /// The only row.
    pub async fn one<P: Into<Params> + Send>(&mut self, sql: &str, params: P, context: &str) -> Result<Row> {
        let row = self.query(sql, params, context).await?.into_iter().next();
        row.ok_or_else(|| Error::new(Code::Internal, format!("{context}: no row")))
    }

    /// How many rows it concerned.
    pub async fn execute<P: Into<Params> + Send>(&mut self, sql: &str, params: P, context: &str) -> Result<u64> {
        self.busy = true;
        let done = match params.into() {
            Params::Empty => self.conn.query_drop(sql).await,
            params => self.conn.exec_drop(sql, params).await,
        };
        self.answered(done, context)?;
        Ok(self.conn.affected_rows())
    }

    /// How many warnings the last statement left; SHOW WARNINGS has them.
    pub fn warnings(&self) -> u16 {
        self.conn.get_warnings()
    }

    /// What the last statement had to say against a value, short of refusing it: cut, out of range, not a number. Notes, like one
    /// on a table that was not there to be dropped, don't count.
    pub async fn first_warning(&mut self) -> Result<Option<String>> {
        if self.warnings() == 0 {
            return Ok(None);
        }
        for row in self.query("SHOW WARNINGS", (), "reading the warnings").await? {
            if get::<String>(&row, 0)? != "Note" {
                return Ok(Some(format!("{} ({})", get::<String>(&row, 2)?, get::<u32>(&row, 1)?)));
            }
        }
        Ok(None)
    }

    /// Refuses to go on to a write where the server takes none.
    pub fn check_writable(&self) -> Result<()> {
        match &self.read_only {
            Some(why) => Err(Error::new(Code::ReadOnly, format!("{} takes no writes: {why}", self.identity))),
            None => Ok(()),
        }
    }

    /// The number that AUTO_INCREMENT gave to the last row inserted.
    pub fn inserted_id(&self) -> Option<u64> {
        self.conn.last_insert_id()
    }

    fn answered<T>(&mut self, result: Result<T, DriverFailure>, context: &str) -> Result<T> {
        // After a server's refusal the session goes on; after anything else nobody knows what comes next.
        self.busy = result.as_ref().is_err_and(|e| classify(e) == Trouble::ConnectionLost || e.is_fatal());
        result.map_err(|e| database_error(context, e))
    }

    /// Whether a transaction was begun and not ended, by [`super::Tx`] alone.
    pub(super) fn set_in_transaction(&mut self, open: bool) {
        self.in_transaction = open;
    }

    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// The name of a user-level lock that this session holds until it ends. Asked for once.
    pub(super) async fn mark(&mut self) -> Result<String> {
        if let Some(mark) = &self.mark {
            return Ok(mark.clone());
        }
        let mark = format!("sete-{:032x}", rand::random::<u128>());
        let got = self.one("SELECT GET_LOCK(?, 0)", (&mark,), "marking the session").await?;
        if get::<Option<i64>>(&got, 0)? != Some(1) {
            return Err(Error::new(Code::Internal, "the server gives no user-level lock of a name that nobody else has"));
        }
        self.mark = Some(mark.clone());
        Ok(mark)
    }
}

/// A column of a row, by place.
pub fn get<T: FromValue>(row: &Row, place: usize) -> Result<T> {
    let wrong = |what: &str| Error::new(Code::Internal, format!("column {place} of an answer {what}"));
    row.get_opt(place).ok_or_else(|| wrong("is missing"))?.map_err(|_| wrong("has another type than expected"))
}
