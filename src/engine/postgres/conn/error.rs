//! What the driver's errors mean for us.

use std::error::Error as _;
use std::io;

use tokio_postgres::error::{DbError, Severity};

use crate::error::{Code, Error, Trouble};
use crate::secret;

/// Sorts an error by what can be done about it.
///
/// Source of the codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub fn classify(err: &tokio_postgres::Error) -> Trouble {
    match err.as_db_error() {
        Some(db) => trouble_of(db.code().code(), matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic))),
        None if err.is_closed() => Trouble::ConnectionLost,
        // The driver wraps a malformed message or parameter in an io::Error of these two kinds as well.
        None if io_error(err).is_some_and(|e| !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) => {
            Trouble::ConnectionLost
        }
        None => Trouble::Other,
    }
}

fn trouble_of(sqlstate: &str, fatal: bool) -> Trouble {
    match sqlstate {
        "55P03" => Trouble::LockTimeout,
        "57014" => Trouble::Cancelled,
        "40P01" => Trouble::Deadlock,
        "40001" => Trouble::Serialization,
        "25006" => Trouble::ReadOnly,
        "42501" => Trouble::Rights,
        "42703" | "42P01" | "42704" | "42883" | "3F000" => Trouble::Undefined,
        "42P07" | "42710" | "42701" | "42P06" | "42723" => Trouble::Duplicate,
        // Ended by the server: pg_terminate_backend, shutdown, crash of another session, its limits on idle sessions and transactions.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => Trouble::ConnectionLost,
        // Any other error that the server calls FATAL ends the session too.
        _ if fatal || sqlstate.starts_with("08") => Trouble::ConnectionLost,
        _ if sqlstate.starts_with("22") || sqlstate.starts_with("23") => Trouble::BadData,
        _ => Trouble::Other,
    }
}

/// Our error for one of the driver's: the server's message, detail and hint, without passwords. `context` says what was being done.
pub fn database_error(context: &str, err: tokio_postgres::Error) -> Error {
    let trouble = classify(&err);
    let code = match trouble {
        Trouble::ConnectionLost => Code::ConnectionLost,
        Trouble::Rights => Code::Rights,
        Trouble::ReadOnly => Code::ReadOnly,
        _ => Code::Database,
    };
    Error::Database { code, trouble, context: secret::mask(context), message: message(&err), sqlstate: err.code().map(|c| c.code().to_owned()) }
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
        for (sqlstate, trouble) in [
            ("55P03", Trouble::LockTimeout),
            ("57014", Trouble::Cancelled),
            ("40P01", Trouble::Deadlock),
            ("40001", Trouble::Serialization),
            ("25006", Trouble::ReadOnly),
            ("42501", Trouble::Rights),
            ("22P02", Trouble::BadData),
            ("23505", Trouble::BadData),
            ("42703", Trouble::Undefined),
            ("08006", Trouble::ConnectionLost),
            ("57P01", Trouble::ConnectionLost),
            ("42601", Trouble::Other),
        ] {
            assert_eq!(trouble_of(sqlstate, false), trouble, "{sqlstate}");
        }
        assert_eq!(trouble_of("XX000", true), Trouble::ConnectionLost);
    }
}
