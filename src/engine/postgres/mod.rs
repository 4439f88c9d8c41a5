//! PostgreSQL 13 to 18.

<<<<<<< HEAD
pub mod catalog;
pub mod sql;
=======
pub mod conn;
>>>>>>> conn
