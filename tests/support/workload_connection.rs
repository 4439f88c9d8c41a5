//! A client's connection, to either kind of server. Statements are written as PostgreSQL takes them.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;

use mysql_async::prelude::Queryable;
use tokio::task::JoinHandle;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::BoxError;

/// What a statement gave: how many rows it returned or changed; of the first, the key, and the word in its second column.
pub struct Answer {
    pub rows: usize,
    pub key: Option<i64>,
    pub word: Option<String>,
}

/// Why a statement failed.
#[derive(Debug)]
pub struct Refusal {
    pub message: String,
    pub sqlstate: Option<String>,
    /// The connection went with it.
    pub lost: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Refusal {}

pub enum Connection {
    Postgres(Postgres),
    Mysql(Box<mysql_async::Conn>),
}

pub struct Postgres {
    client: Client,
    driver: JoinHandle<()>,
    /// As applications do it: every statement is prepared once a connection, so that a schema change which breaks
    /// cached plans is felt here.
    prepared: BTreeMap<String, Statement>,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub async fn open(url: &str, name: &str) -> Result<Connection, Refusal> {
        if url.starts_with("mysql:") {
            let options = mysql_async::Opts::from_url(url).map_err(|e| Refusal { message: e.to_string(), sqlstate: None, lost: true })?;
            let attributes = [("program_name".to_owned(), name.to_owned())].into();
            // An update that changes nothing has still found its row.
            let options = mysql_async::OptsBuilder::from_opts(options).client_found_rows(true).connect_attributes(attributes);
            return Ok(Connection::Mysql(Box::new(mysql_async::Conn::new(options).await?)));
        }
        let mut config: Config = url.parse()?;
        config.application_name(name);
        let (client, connection) = config.connect(NoTls).await?;
        // Ends with the client, or with an error that the client's next statement reports.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection::Postgres(Postgres { client, driver, prepared: BTreeMap::new() }))
    }

    pub fn is_closed(&self) -> bool {
        match self {
            Connection::Postgres(postgres) => postgres.client.is_closed(),
            // Its next statement tells.
            Connection::Mysql(_) => false,
        }
    }

    /// A statement in this server's words.
    pub fn own_sql(&self, sql: &str) -> String {
        match self {
            Connection::Postgres(_) => sql.to_owned(),
            Connection::Mysql(_) => {
                let sql = sql.split(" returning ").next().unwrap_or(sql);
                sql.replace("::bigint", "").replace("::int", "").replace("random()", "rand()")
            }
        }
    }

    pub async fn query(&mut self, sql: &str, arguments: &[Argument]) -> Result<Answer, Refusal> {
        match self {
            Connection::Postgres(postgres) => postgres.query(sql, arguments).await,
            Connection::Mysql(conn) => in_mysql(conn, sql, arguments).await,
        }
    }
}

impl Postgres {
    async fn query(&mut self, sql: &str, arguments: &[Argument]) -> Result<Answer, Refusal> {
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(sql).await?;
                self.prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let arguments: Vec<&(dyn ToSql + Sync)> = arguments.iter().map(|argument| argument as _).collect();
        let rows = self.client.query(&statement, &arguments).await?;
        let (mut key, mut word) = (None, None);
        if let Some(row) = rows.first() {
            key = row.try_get(0)?;
            word = if row.len() > 1 { row.try_get::<_, Option<Word>>(1)?.map(|word| word.0) } else { None };
        }
        Ok(Answer { rows: rows.len(), key, word })
    }
}

/// `$1`, `$2` stand in any order; MySQL's `?` go by place.
async fn in_mysql(conn: &mut mysql_async::Conn, sql: &str, arguments: &[Argument]) -> Result<Answer, Refusal> {
    let (mut text, mut values) = (String::new(), Vec::new());
    let mut parts = sql.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let place: usize = part[..digits].parse().unwrap_or(0);
        values.extend(place.checked_sub(1).and_then(|n| arguments.get(n)).map(|argument| match argument {
            Argument::Key(key) => mysql_async::Value::from(*key),
            Argument::Word(word) => mysql_async::Value::from(word.as_str()),
        }));
        text.push('?');
        text.push_str(&part[digits..]);
    }
    let rows: Vec<mysql_async::Row> = conn.exec(text, mysql_async::Params::Positional(values)).await?;
    match rows.first() {
        Some(row) => Ok(Answer { rows: rows.len(), key: row.get(0), word: row.get::<Option<String>, _>(1).flatten() }),
        None => {
            let changed = usize::try_from(conn.affected_rows()).unwrap_or(usize::MAX);
            Ok(Answer { rows: changed, key: conn.last_insert_id().and_then(|id| i64::try_from(id).ok()), word: None })
        }
    }
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Self {
        let sqlstate = error.code().map(|code| code.code().to_owned());
        Refusal { message: causes(&error), sqlstate, lost: error.is_closed() }
    }
}

impl From<mysql_async::Error> for Refusal {
    fn from(error: mysql_async::Error) -> Self {
        let sqlstate = if let mysql_async::Error::Server(refused) = &error { Some(format!("{} {}", refused.state, refused.code)) } else { None };
        // The server's own word leaves the connection as it is, but for the last ones.
        let lost = match &error {
            mysql_async::Error::Server(refused) => matches!(refused.code, 1053 | 1927 | 1317 | 3169 | 4031),
            _ => true,
        };
        Refusal { message: causes(&error), sqlstate, lost }
    }
}

fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// A key, or a word for a column whose type we don't know: varchar, text, and an enum are alike on the wire.
#[derive(Clone, Debug)]
pub enum Argument {
    Key(i64),
    Word(String),
}

impl ToSql for Argument {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        match self {
            Self::Key(key) if *ty == Type::INT4 => i32::try_from(*key)?.to_sql(ty, out),
            Self::Key(key) => key.to_sql(ty, out),
            Self::Word(word) => word.as_str().to_sql(&Type::TEXT, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

struct Word(String);

impl<'a> FromSql<'a> for Word {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(Self(std::str::from_utf8(raw)?.to_owned()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
