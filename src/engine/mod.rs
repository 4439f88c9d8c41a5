//! The boundary to the servers; SQL lives below it.

pub mod postgres;
