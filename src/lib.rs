//! `sete`: zero-downtime destructive schema changes in seven reversible stages.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the TOML file, checked without a database |
//! | [`resolve`] | the plan checked against the live catalog |
//! | [`stage`] | the seven stages, one file each, engine-neutral: start reading here |
//! | [`run`] | the drive loop: lease, stage, transition, save, report |
//! | [`ddl`] | the one door through which every schema statement goes |
//! | [`walk`], [`pace`] | the way through the table, and how fast |
//! | [`state`] | what is kept in the database |
//! | [`engine`] | the boundary to the servers; SQL lives below it |
//! | [`preview`] | what `sete plan` says, as data |
//! | [`status`], [`gate`] | where a plan stands, and which deploy may go out |
//! | [`handover`] | commands of other tools, for what a server does by a copy only |
//! | [`report`] | events, and the three ways to show them |
//! | [`cli`] | the only part that knows clap, files and terminals |

pub mod change;
pub mod cli;
mod crash;
pub mod ddl;
pub mod engine;
pub mod error;
mod external;
pub mod finding;
#[cfg(test)]
mod fixture;
pub mod gate;
pub mod handover;
mod lease;
pub mod pace;
pub mod plan;
pub mod preflight;
pub mod preview;
pub mod report;
pub mod resolve;
pub mod run;
pub mod secret;
pub mod stage;
pub mod state;
pub mod status;
pub mod walk;
