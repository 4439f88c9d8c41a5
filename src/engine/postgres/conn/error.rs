//! What the driver's errors mean for us.

use std::error::Error as _;
use std::io;

use tokio_postgres::error::{DbError, Severity};

use crate::error::{Code, Error};
use crate::secret;

/// What an error of the server or the driver means for the one who sent the statement.
///
/// Source of the codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 55P03: a lock was not to be had in time, or at once with NOWAIT.
    LockTimeout,
    /// 57014: statement_timeout, or somebody cancelled the statement.
    Cancelled,
    /// 40P01: the server chose this transaction as the victim.
    Deadlock,
    /// 40001: another transaction changed the same rows.
    Serialization,
    /// The session is gone: closed, broken, or ended by the server. Whether an open COMMIT took place can't be told.
    ConnectionLost,
    /// 25006: a replica, or default_transaction_read_only.
    ReadOnly,
    /// 42501: the role lacks a right.
    Rights,
    /// Classes 22 and 23: a value that does not convert, or violates a constraint.
    Data,
    /// 42703, 42P01, 42704, 42883, 3F000: a column, table, object, function or schema that is not there.
    Undefined,
    Other,
}

/// Sorts an error by what can be done about it.
pub fn classify(err: &tokio_postgres::Error) -> Class {
    match err.as_db_error() {
        Some(db) => class_of(db.code().code(), matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic))),
        None if err.is_closed() => Class::ConnectionLost,
        // The driver wraps a malformed message or parameter in an io::Error of these two kinds as well.
        None if io_error(err).is_some_and(|e| !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) => Class::ConnectionLost,
        None => Class::Other,
    }
}

fn class_of(sqlstate: &str, fatal: bool) -> Class {
    match sqlstate {
        "55P03" => Class::LockTimeout,
        "57014" => Class::Cancelled,
        "40P01" => Class::Deadlock,
        "40001" => Class::Serialization,
        "25006" => Class::ReadOnly,
        "42501" => Class::Rights,
        "42703" | "42P01" | "42704" | "42883" | "3F000" => Class::Undefined,
        // Ended by the server: pg_terminate_backend, shutdown, crash of another session, its limits on idle sessions and transactions.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => Class::ConnectionLost,
        // Any other error that the server calls FATAL ends the session too.
        _ if fatal || sqlstate.starts_with("08") => Class::ConnectionLost,
        _ if sqlstate.starts_with("22") || sqlstate.starts_with("23") => Class::Data,
        _ => Class::Other,
    }
}

/// Our error for one of the driver's: the server's message, detail and hint, without passwords. `context` says what was being done.
pub fn database_error(context: &str, err: tokio_postgres::Error) -> Error {
    let code = match classify(&err) {
        Class::ConnectionLost => Code::ConnectionLost,
        Class::Rights => Code::Rights,
        Class::ReadOnly => Code::ReadOnly,
        _ => Code::Database,
    };
    Error::Database { code, context: secret::mask(context), message: message(&err), sqlstate: err.code().map(|c| c.code().to_owned()) }
}

/// What the server, or else the driver, says.
pub(super) fn message(err: &tokio_postgres::Error) -> String {
    secret::mask(&err.as_db_error().map_or_else(|| chain(err), server_message))
}

fn server_message(db: &DbError) -> String {
    let mut text = db.message().to_owned();
    for (label, part) in [("detail", db.detail()), ("hint", db.hint())] {
        if let Some(part) = part {
            text.push_str(&format!("; {label}: {part}"));
        }
    }
    text
}

/// An error and its causes in one line.
pub(super) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        // Some wrappers repeat what they wrap.
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        next = cause.source();
    }
    text
}

pub(super) fn io_error(err: &tokio_postgres::Error) -> Option<&io::Error> {
    err.source().and_then(|e| e.downcast_ref())
}

/// The TLS library's error inside the driver's, if there is one.
pub(super) fn tls_error(err: &tokio_postgres::Error) -> Option<&rustls::Error> {
    io_error(err)?.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_are_sorted() {
        for (sqlstate, class) in [
            ("55P03", Class::LockTimeout),
            ("57014", Class::Cancelled),
            ("40P01", Class::Deadlock),
            ("40001", Class::Serialization),
            ("25006", Class::ReadOnly),
            ("42501", Class::Rights),
            ("22P02", Class::Data),
            ("23505", Class::Data),
            ("42703", Class::Undefined),
            ("08006", Class::ConnectionLost),
            ("57P01", Class::ConnectionLost),
            ("42601", Class::Other),
        ] {
            assert_eq!(class_of(sqlstate, false), class, "{sqlstate}");
        }
        assert_eq!(class_of("XX000", true), Class::ConnectionLost);
    }
}
