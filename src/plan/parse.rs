//! Text to [`Plan`], or all its problems at once.

use super::{Plan, Problem};

/// Reads and checks a plan file's text.
pub fn parse(_text: &str) -> Result<Plan, Vec<Problem>> {
    todo!("in work")
}
