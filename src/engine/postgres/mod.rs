//! PostgreSQL 13 to 18.

pub mod catalog;
pub mod conn;
pub mod sql;
