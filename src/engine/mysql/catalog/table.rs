//! The table itself: what it is, and its columns.

use sha2::{Digest, Sha256};

use super::is_text;
use crate::engine::catalog::{Column, InnoDb, Leaf, RelationKind, ReplicaIdentity, Table, Ways};
use crate::engine::mysql::conn::{Session, get};
use crate::engine::mysql::definition::Definition;
use crate::engine::mysql::sql::{Class, class, names_in, qualified};
use crate::error::Result;
use crate::plan::TableName;

pub(super) struct Found {
    pub table: Table,
    pub innodb: InnoDb,
    /// As SHOW CREATE TABLE gives it.
    pub text: String,
    /// The collation that its columns have by default.
    pub collation: String,
}

impl Found {
    pub fn is_table(&self) -> bool {
        self.table.kind == RelationKind::Table
    }
}

/// The server's own number changes with each rebuild, so a table is known by its name. What was dropped and made again is
/// told by the columns that it lacks.
fn number(name: &TableName) -> u64 {
    let digest = Sha256::digest(qualified(name).as_bytes());
    digest.iter().take(6).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(super) async fn read(session: &mut Session, name: &TableName) -> Result<Option<Found>> {
    let schema = name.schema.clone().unwrap_or_default();
    let query = "SELECT TABLE_TYPE, ENGINE, ROW_FORMAT, COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH + INDEX_LENGTH, 0), TABLE_COLLATION, TABLE_NAME, TABLE_SCHEMA \
                 FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?";
    let rows = session.query(query, (&schema, &name.name), "looking for the table").await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let kind: String = get(row, 0)?;
    let system = matches!(schema.to_lowercase().as_str(), "mysql" | "sys" | "information_schema" | "performance_schema");
    let kind = match kind.as_str() {
        _ if system => RelationKind::System,
        "BASE TABLE" | "SYSTEM VERSIONED" => RelationKind::Table,
        "VIEW" => RelationKind::View,
        "SEQUENCE" => RelationKind::Sequence,
        _ => RelationKind::Other,
    };
    let name = TableName { schema: Some(get(row, 7)?), name: get(row, 6)? };
    let (engine, row_format, rows, bytes, collation): (Option<String>, Option<String>, u64, u64, Option<String>) =
        (get(row, 1)?, get(row, 2)?, get(row, 3)?, get(row, 4)?, get(row, 5)?);
    let id = number(&name);
    let mut table = empty(name.clone(), id, kind, rows, bytes);
    let collation = collation.unwrap_or_default();
    let mut innodb = InnoDb { engine: engine.unwrap_or_default(), row_format: row_format.unwrap_or_default(), ..InnoDb::default() };
    if kind != RelationKind::Table {
        return Ok(Some(Found { table, innodb, text: String::new(), collation }));
    }
    let row = session.one(&format!("SHOW CREATE TABLE {}", qualified(&name)), (), "reading the table").await?;
    let text: String = get(&row, 1)?;
    table.columns = columns(session, &name, &text).await?;
    table.columns_used = u32::try_from(table.columns.len()).unwrap_or(u32::MAX);
    table.leaves = vec![Leaf { id, file: 0, name: name.clone(), rows, pages: 0, key: None, foreign: false }];
    table.partition_key = partition_key(session, &name, &table.columns).await?;
    innodb.auto_increment = table.columns.iter().find(|c| c.identity).map(|c| c.name.clone());
    innodb.stored_columns = table.columns.iter().filter(|c| c.generated && c.definition.to_uppercase().contains(" STORED")).map(|c| c.name.clone()).collect();
    innodb.zero_dates = table.columns.iter().filter(|c| c.default.as_ref().is_some_and(|d| d.contains("-00"))).map(|c| c.name.clone()).collect();
    innodb.row_versions = row_versions(session, &name).await?;
    Ok(Some(Found { table, innodb, text, collation }))
}

fn empty(name: TableName, id: u64, kind: RelationKind, rows: u64, bytes: u64) -> Table {
    Table {
        name,
        id,
        kind,
        owner: String::new(),
        owned_by_us: true,
        missing_rights: Vec::new(),
        rows,
        bytes,
        columns: Vec::new(),
        columns_used: 0,
        columns_max: 1017,
        key: None,
        leaves: Vec::new(),
        partitions: Vec::new(),
        partition_key: Vec::new(),
        inherits: Vec::new(),
        rows_hidden: false,
        replica_identity: ReplicaIdentity::Full,
        publications: Vec::new(),
        triggers: Vec::new(),
        indexes: Vec::new(),
        new_indexes: Vec::new(),
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        dependents: Vec::new(),
        rebuilds: Vec::new(),
        new_default: None,
        sequence: None,
        ways: Ways::default(),
        innodb: None,
    }
}

async fn columns(session: &mut Session, name: &TableName, text: &str) -> Result<Vec<Column>> {
    let query = "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA FROM information_schema.COLUMNS \
                 WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION";
    let mut out = Vec::new();
    for row in session.query(query, (name.schema.as_deref().unwrap_or_default(), &name.name), "reading the columns").await? {
        let (name, mut type_name, charset, collation, extra): (String, String, Option<String>, Option<String>, String) =
            (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?, get(&row, 3)?, get(&row, 4)?);
        let mut definition = Definition::parse(&line_of(text, &name).unwrap_or_default());
        let json_check = format!("CHECK (json_valid({}))", crate::engine::mysql::sql::ident(&name));
        if definition.rest.contains(&json_check) {
            // MariaDB's JSON: naming it brings the check along.
            definition.rest = definition.rest.replace(&json_check, "").trim().to_string();
            type_name = "json".to_string();
        } else if let (Some(charset), Some(collation), true) = (charset, collation, is_text(&type_name)) {
            type_name = format!("{type_name} CHARACTER SET {charset} COLLATE {collation}");
        }
        definition.type_name.clone_from(&type_name);
        let generated = definition.rest.to_uppercase().contains("GENERATED ALWAYS");
        out.push(Column {
            exact_equality: class(&type_name) == Class::Exact,
            not_null: definition.not_null,
            default: definition.default.clone(),
            generated,
            identity: extra.to_lowercase().contains("auto_increment"),
            collation: None,
            on_update: definition.on_update.is_some(),
            invisible: definition.invisible,
            definition: definition.to_string(),
            type_name,
            name,
        });
    }
    Ok(out)
}

/// What SHOW CREATE TABLE says of a column after its name.
fn line_of(text: &str, column: &str) -> Option<String> {
    let start = format!("  {} ", crate::engine::mysql::sql::ident(column));
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.strip_suffix(',').unwrap_or(line).to_string())
}

/// Columns that the expressions of PARTITION BY name.
async fn partition_key(session: &mut Session, name: &TableName, columns: &[Column]) -> Result<Vec<String>> {
    let query = "SELECT DISTINCT CONCAT_WS(',', PARTITION_EXPRESSION, SUBPARTITION_EXPRESSION) FROM information_schema.PARTITIONS \
                 WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND PARTITION_NAME IS NOT NULL";
    let rows = session.query(query, (name.schema.as_deref().unwrap_or_default(), &name.name), "reading the partitions").await?;
    let texts = rows.iter().map(|row| get::<String>(row, 0)).collect::<Result<Vec<_>>>()?;
    let named: Vec<String> = texts.iter().flat_map(|text| names_in(text)).collect();
    Ok(columns.iter().filter(|c| named.contains(&c.name.to_lowercase())).map(|c| c.name.clone()).collect())
}

/// How many changes of the columns were made in the catalog alone, and how many there can be: MySQL's limit was 64 before 9.1.
async fn row_versions(session: &mut Session, name: &TableName) -> Result<Option<(u32, u32)>> {
    if session.version().is_mariadb() {
        return Ok(None);
    }
    let most = if session.version().number >= (9, 1, 0) { 255 } else { 64 };
    let encoded = format!("{}/{}", encoded(name.schema.as_deref().unwrap_or_default()), encoded(&name.name));
    // A partition's name goes on after `#p#`.
    let query = "SELECT MAX(TOTAL_ROW_VERSIONS) FROM information_schema.INNODB_TABLES WHERE LOWER(SUBSTRING_INDEX(NAME, '#', 1)) = LOWER(?)";
    // Needs PROCESS; without it the server itself will say.
    match session.query(query, (&encoded,), "reading the row versions").await {
        Ok(rows) => Ok(rows.first().map(|row| get::<Option<u32>>(row, 0)).transpose()?.flatten().map(|used| (used, most))),
        Err(e) if e.trouble() == crate::error::Trouble::Rights => Ok(None),
        Err(e) => Err(e),
    }
}

/// A name as file names have it: all but plain letters, digits and `_` as `@` and four hex digits.
fn encoded(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c.to_string() } else { format!("@{:04x}", c as u32) }).collect()
}
