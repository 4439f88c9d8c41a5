//! What our account may do, as SHOW GRANTS has it.

use crate::engine::catalog::MissingRight;
use crate::engine::mysql::conn::{Session, get};
use crate::error::Result;
use crate::plan::TableName;

/// One GRANT: its privileges in upper case, and the database and table that it is on (`*` for all).
struct Grant {
    privileges: Vec<String>,
    database: String,
    table: String,
}

struct Grants {
    grants: Vec<Grant>,
    /// Roles give more than the grants say.
    roles: bool,
}

async fn read(session: &mut Session) -> Result<Grants> {
    let mut out = Grants { grants: Vec::new(), roles: false };
    for row in session.query("SHOW GRANTS", (), "reading our rights").await? {
        let line: String = get(&row, 0)?;
        match parse(&line) {
            Some(grant) => out.grants.push(grant),
            // `GRANT role TO user`.
            None => out.roles |= line.starts_with("GRANT ") && !line.contains(" PROXY "),
        }
    }
    Ok(out)
}

fn parse(line: &str) -> Option<Grant> {
    let (privileges, rest) = line.strip_prefix("GRANT ")?.split_once(" ON ")?;
    let (on, _) = rest.rsplit_once(" TO ")?;
    let (database, table) = match on.strip_prefix('`') {
        Some(_) => on.split_once("`.").map(|(database, table)| (database.to_string(), table))?,
        None => on.split_once('.').map(|(database, table)| (database.to_string(), table))?,
    };
    let bare = |name: &str| name.trim_matches('`').replace("``", "`");
    // Rights on single columns, `SELECT (a, b)`, are none here.
    let mut list = Vec::new();
    let mut depth = 0;
    for part in privileges.split(',') {
        let opens = part.matches('(').count();
        if depth == 0 && opens == 0 {
            list.push(part.trim().to_uppercase());
        }
        depth = (depth + opens).saturating_sub(part.matches(')').count());
    }
    Some(Grant { privileges: list, database: bare(&database), table: bare(table) })
}

impl Grant {
    fn is_on(&self, database: &str, table: &str) -> bool {
        (self.database == "*" || like(&self.database, database)) && (self.table == "*" || self.table.eq_ignore_ascii_case(table))
    }
}

/// Whether a database's name fits a grant's pattern: `_` and `%` stand for others unless escaped.
fn like(pattern: &str, name: &str) -> bool {
    let mut chars = pattern.chars();
    match chars.next() {
        None => name.is_empty(),
        Some('%') => name.char_indices().map(|(i, _)| i).chain([name.len()]).any(|i| like(chars.as_str(), &name[i..])),
        Some('\\') => chars.next().is_some_and(|c| name.strip_prefix(c).is_some_and(|rest| like(chars.as_str(), rest))),
        Some('_') => name.chars().next().is_some_and(|c| like(chars.as_str(), &name[c.len_utf8()..])),
        Some(c) => name.strip_prefix(c).is_some_and(|rest| like(chars.as_str(), rest)),
    }
}

impl Grants {
    fn has(&self, privilege: &str, database: &str, table: &str) -> bool {
        let all = |g: &Grant| g.privileges.iter().any(|p| p == privilege || p == "ALL PRIVILEGES" || p == "ALL");
        self.roles || self.grants.iter().any(|g| all(g) && g.is_on(database, table))
    }
}

/// What a run needs and our account lacks.
pub(super) async fn missing(session: &mut Session, name: &TableName, home: &str) -> Result<Vec<MissingRight>> {
    let grants = read(session).await?;
    let schema = name.schema.as_deref().unwrap_or_default();
    let mut out = Vec::new();
    for right in ["SELECT", "INSERT", "UPDATE", "ALTER", "CREATE", "DROP", "INDEX", "TRIGGER"] {
        if !grants.has(right, schema, &name.name) {
            out.push(MissingRight { right: right.to_string(), on: format!("table {name}") });
        }
    }
    for (right, database) in [("LOCK TABLES", schema), ("CREATE TEMPORARY TABLES", home)] {
        if !grants.has(right, database, "*") {
            out.push(MissingRight { right: right.to_string(), on: format!("database {database}") });
        }
    }
    Ok(out)
}

/// Whether we may make our own tables.
pub(super) async fn can_create(session: &mut Session, home: &str) -> Result<bool> {
    Ok(read(session).await?.has("CREATE", home, "sete_plan"))
}

/// Why CREATE TRIGGER would be refused although we have the right to it (error 1419).
pub(super) async fn no_triggers(session: &mut Session) -> Result<Option<String>> {
    let row = session.one("SELECT @@GLOBAL.log_bin, @@GLOBAL.log_bin_trust_function_creators", (), "reading the settings of the binary log").await?;
    let (logged, trusted): (bool, bool) = (get(&row, 0)?, get(&row, 1)?);
    let may = !logged || trusted || read(session).await?.has("SUPER", "*", "*");
    Ok((!may).then(|| "the binary log is on, log_bin_trust_function_creators is off, and the account lacks SUPER".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read() {
        let grant = parse("GRANT SELECT, INSERT (a, b), LOCK TABLES ON `my\\_shop`.* TO `sete`@`%`").unwrap();
        assert_eq!(grant.privileges, ["SELECT", "LOCK TABLES"]);
        assert!(grant.is_on("my_shop", "orders") && !grant.is_on("myxshop", "orders"));
        let grant = parse("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION").unwrap();
        assert!(grant.is_on("x", "y"));
        assert!(parse("GRANT `r`@`%` TO `sete`@`%`").is_none());
    }
}
