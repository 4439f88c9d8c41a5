//! Names and pieces of SQL in a plan: what can be refused without asking a server.

use toml::de::DeValue;

use super::TableName;
use super::fault::{Fault, shown};
use super::value::text;
use crate::error::Code;

/// PostgreSQL silently cuts longer names (NAMEDATALEN - 1), and two of them may then be the same.
const LONGEST_NAME: usize = 63;

const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"];

pub(super) fn id(value: &DeValue) -> Result<String, Fault> {
    let id = text(value)?;
    let starts = id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let rest = id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-');
    if starts && rest && id.len() <= 48 {
        return Ok(id.to_owned());
    }
    let help = "use up to 48 lower-case letters, digits, `-` and `_`, beginning with a letter or digit, like \"orders-status\"";
    Err(Fault::new(format!("is not a valid id: \"{}\"", shown(id)), help))
}

/// `env:NAME`, of which the name is kept.
pub(super) fn env(value: &DeValue) -> Result<String, Fault> {
    let text = text(value)?;
    let help = "put the address into an environment variable, for example DATABASE_URL, and write \"env:DATABASE_URL\"";
    let is_name = |name: &str| !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match text.strip_prefix("env:") {
        Some(name) if !name.is_empty() && is_name(name) => Ok(name.to_owned()),
        _ => Err(Fault::new(format!("must name an environment variable, not \"{}\"", shown(text)), help)),
    }
}

pub(super) fn table(value: &DeValue) -> Result<String, Fault> {
    let text = text(value)?;
    let name = TableName::parse(text)
        .map_err(|why| Fault::new(why, "write it as \"schema.table\" or \"table\"; a part with a dot or a blank goes in double quotes"))?;
    name.schema.iter().chain([&name.name]).try_for_each(|part| length(part))?;
    Ok(text.to_owned())
}

pub(super) fn column(value: &DeValue) -> Result<String, Fault> {
    if value.is_array() {
        return Err(Fault::not_yet("as a list of columns (kind `merge`)"));
    }
    let name = text(value)?;
    if name.len() > 1 && name.starts_with('"') && name.ends_with('"') {
        return Err(Fault::new(format!("is quoted: {}", shown(name)), "write the column's bare name; sete quotes it where that is needed"));
    }
    if SYSTEM_COLUMNS.contains(&name) {
        return Err(Fault::new(format!("names the system column `{name}`"), "choose a column of your own"));
    }
    length(name)?;
    Ok(name.to_owned())
}

fn length(name: &str) -> Result<(), Fault> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    let message = format!("is {} bytes long: \"{}\"", name.len(), shown(name));
    Err(Fault { code: Code::NameTooLong, ..Fault::new(message, format!("PostgreSQL cuts names at {LONGEST_NAME} bytes; choose a shorter one")) })
}

/// An SQL expression: what stands between SELECT and FROM.
pub(super) fn expression(value: &DeValue) -> Result<String, Fault> {
    if value.is_table() {
        return Err(Fault::not_yet("as a section (kind `merge`)"));
    }
    let sql = text(value)?;
    if sql.trim_end().ends_with(';') {
        return Err(Fault::new("ends with `;`", "write an expression, not a statement"));
    }
    Ok(sql.to_owned())
}

/// The bare type of a column, without what else a column definition may hold.
pub(super) fn column_type(value: &DeValue) -> Result<String, Fault> {
    let name = expression(value)?;
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    if let Some(serial) = words.first().filter(|word| matches!(**word, "serial" | "bigserial" | "smallserial")) {
        let help = format!("write \"{}\"; the old column's default is taken over", serial.replace("serial", "int"));
        return Err(Fault::new(format!("is `{serial}`, which is a default and NOT NULL besides a type"), help));
    }
    for clause in ["not null", "default", "generated", "primary key", "references", "unique", "check"] {
        if format!(" {} ", words.join(" ").replace('(', " ( ")).contains(&format!(" {clause} ")) {
            let help = "write the type alone: sete adds NOT NULL, default and constraints at the end, see [structure]";
            return Err(Fault::new(format!("holds `{clause}`"), help));
        }
    }
    Ok(name)
}

/// The user's own throttle: something that returns one value and changes nothing.
pub(super) fn query(value: &DeValue) -> Result<String, Fault> {
    let sql = text(value)?;
    let first = sql.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()).unwrap_or_default();
    if !["select", "with"].contains(&first.to_lowercase().as_str()) {
        return Err(Fault::new("is not a SELECT", "write one SELECT with one value: true lets the backfill go on, false holds it"));
    }
    Ok(sql.to_owned())
}

pub(super) fn statement(value: &DeValue) -> Result<String, Fault> {
    text(value).map(str::to_owned)
}

pub(super) fn index_statement(value: &DeValue) -> Result<String, Fault> {
    let sql = statement(value)?;
    let words: Vec<String> = sql.split_whitespace().take(4).map(str::to_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.strip_prefix(&["create"]).map(|rest| rest.strip_prefix(&["unique"]).unwrap_or(rest)) {
        Some(["index", "concurrently", ..]) => Ok(sql),
        Some(["index", ..]) => Err(Fault::new("builds an index that blocks every write meanwhile", "write CREATE INDEX CONCURRENTLY …")),
        _ => Err(Fault::new("holds a statement that is not CREATE INDEX", "write CREATE [UNIQUE] INDEX CONCURRENTLY …")),
    }
}
