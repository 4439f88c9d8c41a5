//! `sete`: zero-downtime destructive schema changes in seven reversible stages.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the TOML file, checked without a database |
//! | [`preflight`] | what stands in the way of a plan, said before anything is written |
//! | [`resolve`] | the plan checked against the live catalog |
//! | [`stage`] | the seven stages, one file each, engine-neutral: start reading here |
//! | [`run`] | the drive loop: lease, stage, transition, save, report |
//! | [`ddl`] | the one door through which every schema statement goes |
//! | [`walk`], [`pace`] | the way through the table, and how fast |
//! | [`state`] | what is kept in the database |
//! | [`engine`] | the boundary to the servers; SQL lives below it |
//! | [`report`] | events, and the three ways to show them |
//! | [`cli`] | the only part that knows clap, files and terminals |

pub mod change;
pub mod engine;
pub mod error;
pub mod finding;
pub mod plan;
pub mod preflight;
pub mod report;
pub mod resolve;
pub mod run;
pub mod secret;
pub mod stage;
pub mod state;
