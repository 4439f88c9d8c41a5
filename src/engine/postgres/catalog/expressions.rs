//! The two directions of the mapping: their SQL, tried on the table.

use super::frame::Frame;
use super::types::{self, Conversion, Ty};
use super::{Reader, Tried};
use crate::change::Expr;
use crate::engine::catalog::Expression;
use crate::engine::postgres::sql::{self, ident};
use crate::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Reverse,
}

pub(super) async fn read(reader: &Reader<'_>, frame: &Frame, expr: &Expr, direction: Direction) -> Result<Expression> {
    let (source, target) = match direction {
        Direction::Forward => (&frame.old_type, &frame.new_type),
        Direction::Reverse => (&frame.new_type, &frame.old_type),
    };
    let source_name = if direction == Direction::Forward { &frame.from } else { &frame.to };
    let text = match expr {
        Expr::Column(column) => ident(column),
        // To the type it goes to: which of the two that is, the direction says already.
        Expr::Cast { column, .. } => match target {
            Some(ty) => format!("{}::{}", ident(column), ty.cast),
            None => ident(column),
        },
        Expr::Sql(text) => text.clone(),
    };
    let names = sql::names_in(&text);
    let reads = frame.others.iter().chain([&frame.from, &frame.to]).filter(|c| names.contains(c)).cloned().collect();
    let result = match result_type(reader, frame, &text).await? {
        Ok(result) => result,
        Err(message) => return Ok(Expression { sql: text, reads, result: Err(message), assignable: false, safe: false }),
    };
    let mut conversion = Conversion { assignable: false, safe: false };
    if let Some(target) = target {
        conversion = types::conversion(reader, &result, target).await?;
        // Judged by the whole way: a cast in the expression names no length, so each half of it alone says too little.
        let plain = sql::column_or_cast(&text).is_some_and(|column| column == *source_name);
        conversion.safe = match source {
            Some(source) if plain && conversion.assignable => {
                types::conversion(reader, source, &result).await?.safe && types::conversion(reader, source, target).await?.safe
            }
            _ => false,
        };
    }
    Ok(Expression { sql: text, reads, result: Ok(result.name), assignable: conversion.assignable, safe: conversion.safe })
}

/// The type that an expression of the plan returns, or what is wrong with it.
async fn result_type(reader: &Reader<'_>, frame: &Frame, text: &str) -> Result<Tried<Ty>> {
    if sql::rename_columns(text, &[]).is_none() {
        return Ok(Err("it can't be taken apart: a quote or a comment is not closed".to_string()));
    }
    let from = frame.named(&frame.planned());
    let statement = match reader.try_prepare(&frame.table, &format!("SELECT (\n{text}\n) FROM {from}")).await? {
        Ok(statement) => statement,
        Err(message) => return Ok(Err(message)),
    };
    if !statement.params().is_empty() {
        return Ok(Err("it has a parameter ($1); nobody would fill it".to_string()));
    }
    // WHERE takes no aggregates, window functions or sets, and neither does a trigger or an UPDATE.
    if let Err(message) = reader.try_prepare(&frame.table, &format!("SELECT 1 FROM {from} WHERE (\n{text}\n) IS NOT NULL")).await? {
        return Ok(Err(message));
    }
    match statement.columns() {
        [column] => types::describe(reader, column.type_().oid(), column.type_modifier(), None).await.map(Ok),
        columns => Ok(Err(format!("it returns {} values instead of one", columns.len()))),
    }
}
