//! Reads the catalog: everything that preflight and resolve need, in one look.
//!
//! One read-only transaction, so that it works on a standby too and leaves nothing behind. Definitions are read under an
//! empty search path, so that they are qualified and mean the same wherever they are run; the plan's own expressions are
//! tried under [`super::sql::search_path`]. Nothing here waits for a lock longer than two seconds.

mod default;
mod dependents;
mod expressions;
mod frame;
mod indexes;
mod leaves;
mod publications;
mod reader;
mod rebuilds;
mod server;
mod structure;
mod table;
mod triggers;
mod types;

use tokio_postgres::Client;

use crate::change::{Mapping, NewType};
use crate::engine::catalog::{Catalog, Expression, TypeFacts};
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, TableName};
use crate::resolve::is_swapped;
use crate::state::Origin;

use frame::Frame;
use reader::{Reader, Tried, one_line, refused};
use types::Ty;

/// Where everything is qualified that isn't built in.
const QUALIFIED: &str = "pg_catalog, pg_temp";

/// Reads everything about the plan's table. `address` is shown, and holds no credentials.
pub async fn read(client: &Client, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>, address: &str) -> Result<Catalog> {
    let name = TableName::parse(&plan.change.table).map_err(|message| Error::new(Code::PlanInvalid, message))?;
    let version = server::version_number(client).await?;
    let reader = Reader { client, version };
    // What the role is given by default must be seen before our own settings hide it.
    let timeouts = server::timeouts(&reader).await?;
    reader.begin().await?;
    let read = read_all(&reader, &name, mapping, origin, address, timeouts).await;
    // After an error that broke the connection there is nothing left to roll back; the first error says more.
    let ended = client.batch_execute("ROLLBACK").await.map_err(|e| refused("ending the look at the catalog", e));
    let catalog = match read {
        Err(Error::LockNotGot { relation, patience, .. }) => {
            let blocker = reader.lock_holder(&name).await?;
            return Err(Error::LockNotGot { relation, patience, blocker: blocker.map(Box::new) });
        }
        read => read?,
    };
    ended?;
    Ok(catalog)
}

async fn read_all(
    reader: &Reader<'_>,
    name: &TableName,
    mapping: &Mapping,
    origin: Option<&Origin>,
    address: &str,
    timeouts: Vec<(String, String)>,
) -> Result<Catalog> {
    let found = table::find(reader, name).await?;
    reader.search_path(QUALIFIED).await?;
    let server = server::read(reader, address, timeouts).await?;
    let Some(found) = found else {
        let nothing = |sql: &str| Expression {
            sql: sql.to_string(),
            reads: Vec::new(),
            result: Err("there is no such table".into()),
            assignable: false,
            safe: false,
        };
        return Ok(Catalog { server, table: None, new_type: None, forward: nothing(""), reverse: nothing("") });
    };
    let mut table = table::read(reader, &found).await?;
    let columns = table::column_types(reader, found.id).await?;
    let column = |name: &str| columns.iter().find(|c| c.name == name);

    let (from, to) = (table.column(&mapping.old), table.column(&mapping.new));
    let swapped = origin.is_some_and(|o| is_swapped(o, from, to));
    let (old_name, new_name) = if swapped { (&mapping.new, &mapping.old) } else { (&mapping.old, &mapping.new) };
    // After the drop, what is known of the old column comes from the origin.
    let old_type = match (column(old_name), origin) {
        (Some(column), _) => Some(column.ty.clone()),
        (None, Some(origin)) => types::named(reader, &table.name, &origin.old_type).await?,
        (None, None) => None,
    };
    let planned_type = match &mapping.new_type {
        NewType::SameAsOld => old_type.clone(),
        NewType::Named(text) => types::named(reader, &table.name, text).await?,
    };
    let new_type = column(new_name).map(|c| c.ty.clone()).or_else(|| planned_type.clone());
    let old_column = table.column(old_name).cloned();
    let frame = Frame {
        table: table.name.clone(),
        others: columns.iter().map(|c| c.name.clone()).filter(|c| *c != mapping.old && *c != mapping.new).collect(),
        from: mapping.old.clone(),
        to: mapping.new.clone(),
        swapped,
        old: column(old_name).map(|c| c.name.clone()),
        new: column(new_name).map(|c| c.name.clone()),
        old_type,
        new_type: planned_type.clone(),
    };
    let forward = expressions::read(reader, &frame, &mapping.forward, expressions::Direction::Forward).await?;
    let reverse = expressions::read(reader, &frame, &mapping.reverse, expressions::Direction::Reverse).await?;

    let new_type_facts = planned_type.as_ref().map(|ty| TypeFacts {
        type_name: ty.name.clone(),
        exact_equality: ty.exact,
        collation: old_column.as_ref().and_then(|c| c.collation.clone()).filter(|_| ty.collatable()),
    });
    table.leaves = leaves::read(reader, &found).await?;
    table.partitions = leaves::partitions(reader, &found).await?;
    table.rows = table.leaves.iter().map(|l| l.rows).sum();
    table.key = leaves::walk_key(reader, found.id, &[&mapping.old, &mapping.new]).await?;
    for leaf in &mut table.leaves {
        leaf.key = leaves::walk_key(reader, u32::try_from(leaf.id).unwrap_or_default(), &[&mapping.old, &mapping.new]).await?;
    }
    table.publications = publications::read(reader, found.id).await?;
    table.triggers = triggers::read(reader, &found, new_name).await?;
    table.new_indexes = indexes::over(reader, &found.tree, new_name).await?;
    if let Some(old) = &frame.old {
        table.indexes = indexes::read(reader, found.id, old, new_name, new_type.as_ref()).await?;
        table.checks = structure::checks(reader, &found, &frame, old, new_name).await?;
        table.foreign_keys = structure::foreign_keys(reader, &found, &frame, old, new_name).await?;
        table.dependents = dependents::read(reader, &found, old, true).await?.into_iter().map(|d| d.dependent).collect();
    }
    let mapped_by_user = matches!(mapping.forward, crate::change::Expr::Sql(_));
    let old_default = match origin {
        Some(origin) => origin.old_default.clone(),
        None => old_column.and_then(|c| c.default.clone()),
    };
    if let (Some(default), Some(new_type)) = (old_default, &new_type) {
        table.new_default = Some(default::translate(reader, &frame, &default, new_type, &forward, mapped_by_user).await?);
    }
    // Once the default has moved, the sequence hangs on the new column.
    let owners: Vec<&str> = frame.old.iter().chain(frame.new.iter().filter(|_| origin.is_some())).map(String::as_str).collect();
    table.sequence = table::sequence(reader, found.id, &owners).await?;
    table.rebuilds = rebuilds::read(reader, &found, &frame).await?;
    Ok(Catalog { server, table: Some(table), new_type: new_type_facts, forward, reverse })
}

/// A column with what else must be known of its type.
struct TypedColumn {
    name: String,
    ty: Ty,
}
