//! Commands of other tools, for what a server can do only by a copy of the table. Pure text, to be read before it is run.

use crate::plan::TableName;

/// What drops a column by a copy.
pub fn drop_column(address: &str, table: &TableName, column: &str) -> String {
    commands(address, table, &format!("DROP COLUMN {}", quoted(column)))
}

/// What changes the type of a primary key by a copy.
pub fn change_type(address: &str, table: &TableName, column: &str, new_type: &str) -> String {
    commands(address, table, &format!("MODIFY COLUMN {} {new_type} NOT NULL AUTO_INCREMENT", quoted(column)))
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// One word for a shell.
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn commands(address: &str, table: &TableName, alter: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "3306"));
    let (host, database, name, alter) = (shell(host), shell(table.schema.as_deref().unwrap_or_default()), shell(&table.name), shell(alter));
    format!(
        "A tool that copies the table can: \
         gh-ost --host={host} --port={port} --database={database} --table={name} --alter={alter} --allow-on-master --execute; or \
         pt-online-schema-change --alter {alter} h={host},P={port},D={database},t={name} --execute; or \
         spirit --host={host}:{port} --database={database} --table={name} --alter={alter}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_the_shell_and_the_server() {
        let table = TableName { schema: Some("shop".into()), name: "it's".into() };
        let text = drop_column("db:3306", &table, "a`b");
        assert!(text.contains(r"gh-ost --host='db' --port=3306 --database='shop' --table='it'\''s' --alter='DROP COLUMN `a``b`'"), "{text}");
    }
}
