//! What the driver's errors mean for us.

use mysql_async::{DriverError, Error as DriverFailure, IoError};

use crate::error::{Code, Error, Trouble};
use crate::secret;

/// Sorts an error by what can be done about it.
pub fn classify(err: &DriverFailure) -> Trouble {
    match err {
        DriverFailure::Server(e) => trouble_of(e.code, &e.state, &e.message),
        DriverFailure::Io(_) => Trouble::ConnectionLost,
        // A stream that ends or makes no sense: nothing more can be learned over it.
        DriverFailure::Driver(DriverError::ConnectionClosed | DriverError::PacketOutOfOrder | DriverError::UnexpectedPacket { .. }) => {
            Trouble::ConnectionLost
        }
        _ => Trouble::Other,
    }
}

/// Source of the numbers: the error references of MySQL 9.7 and MariaDB 10.11.
pub fn trouble_of(code: u16, sqlstate: &str, message: &str) -> Trouble {
    match code {
        // A lock wait that took too long, of rows and of metadata; NOWAIT; the lock on a counter (AUTO_INCREMENT), as a trigger may need.
        1205 | 1467 | 3572 => Trouble::LockTimeout,
        1213 => Trouble::Deadlock,
        // 1020: changed since last read (MariaDB's snapshot isolation); 3101: a cluster took the transaction back.
        1020 | 3101 => Trouble::Serialization,
        // KILL QUERY, max_execution_time, max_statement_time.
        1317 | 3024 | 1969 => Trouble::Cancelled,
        // The server goes away, ended the session, or waited too long for us.
        1053 | 1080 | 1152 | 1158..=1161 | 1927 | 2006 | 2013 | 3032 | 3168 | 3169 | 4031 => Trouble::ConnectionLost,
        // 1290 also stands for other options that forbid a statement.
        1290 if message.contains("read-only") || message.contains("read_only") => Trouble::ReadOnly,
        1792 | 1836 => Trouble::ReadOnly,
        1044 | 1045 | 1095 | 1142 | 1143 | 1227 | 1345 | 1370 | 1410 | 1419 | 1698 => Trouble::Rights,
        // Database, table, column, key, routine, trigger, constraint.
        1049 | 1051 | 1054 | 1072 | 1091 | 1146 | 1176 | 1305 | 1360 | 3821 | 3940 => Trouble::Undefined,
        1007 | 1050 | 1060 | 1061 | 1304 | 1359 | 1826 | 3822 => Trouble::Duplicate,
        // Values that don't convert or break a constraint, including those that the sqlstate does not tell.
        1048
        | 1062
        | 1138
        | 1264..=1266
        | 1292
        | 1364..=1367
        | 1406
        | 1411
        | 1441
        | 1451
        | 1452
        | 1690
        | 1916
        | 1918
        | 1977
        | 3140..=3144
        | 3156..=3158
        | 3819
        | 4025
        | 4038 => Trouble::BadData,
        _ if sqlstate.starts_with("08") => Trouble::ConnectionLost,
        _ if sqlstate.starts_with("22") || sqlstate.starts_with("23") => Trouble::BadData,
        _ => Trouble::Other,
    }
}

/// The server can't do it the cheap way that was asked for; anything else would copy the table.
fn is_refused_online(code: u16) -> bool {
    matches!(code, 1221 | 1845 | 1846 | 1847 | 4092 | 4158)
}

/// Our error for one of the driver's. `context` says what was being done.
pub fn database_error(context: &str, err: DriverFailure) -> Error {
    let trouble = classify(&err);
    let number = if let DriverFailure::Server(e) = &err { Some(e.code) } else { None };
    let code = match trouble {
        Trouble::ConnectionLost => Code::ConnectionLost,
        Trouble::Rights => Code::Rights,
        Trouble::ReadOnly => Code::ReadOnly,
        _ if number.is_some_and(is_refused_online) => Code::NotOnline,
        _ => Code::Database,
    };
    // The number says more than the sqlstate, which is HY000 for most.
    Error::Database { code, trouble, context: secret::mask(context), message: message(&err), sqlstate: number.map(|n| n.to_string()) }
}

/// What the server, or else the driver, says.
pub(super) fn message(err: &DriverFailure) -> String {
    secret::mask(&match err {
        DriverFailure::Server(e) => format!("{} ({})", e.message, e.code),
        DriverFailure::Io(IoError::Io(e)) => e.to_string(),
        err => chain(err),
    })
}

/// An error and its causes in one line.
fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted() {
        for (code, state, trouble) in [
            (1205, "HY000", Trouble::LockTimeout),
            (3572, "HY000", Trouble::LockTimeout),
            (1213, "40001", Trouble::Deadlock),
            (1317, "70100", Trouble::Cancelled),
            (1053, "08S01", Trouble::ConnectionLost),
            (1142, "42000", Trouble::Rights),
            (1062, "23000", Trouble::BadData),
            (1366, "HY000", Trouble::BadData),
            (1146, "42S02", Trouble::Undefined),
            (1060, "42S21", Trouble::Duplicate),
            (1064, "42000", Trouble::Other),
            (9999, "22007", Trouble::BadData),
        ] {
            assert_eq!(trouble_of(code, state, ""), trouble, "{code}");
        }
        let other = "The MariaDB server is running with the --secure-file-priv option so it cannot execute this statement";
        assert_eq!(trouble_of(1290, "HY000", other), Trouble::Other);
        assert_eq!(trouble_of(1290, "HY000", "… running with the --read-only option …"), Trouble::ReadOnly);
    }
}
