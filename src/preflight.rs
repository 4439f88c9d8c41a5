use crate::{engine::Catalog, finding::Finding, plan::Plan, state::Origin};
pub fn findings(_plan: &Plan, _catalog: &Catalog, _origin: Option<&Origin>) -> Vec<Finding> { Vec::new() }
