use crate::{change::Mapping, engine::Catalog, error::Result, plan::Plan, state::Origin};
pub async fn read(_c: &tokio_postgres::Client, _p: &Plan, _m: &Mapping, _o: Option<&Origin>, _a: &str) -> Result<Catalog> { todo!() }
