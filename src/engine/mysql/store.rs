//! Our own tables, `sete_*` in the database of the address. What one runner may write is fenced by the token in `sete_lease`:
//! the row is locked by every write of ours, so a runner that was taken over writes nothing more.
//!
//! A holder is alive as long as its session holds a user-level lock of a name of its own, which anybody may ask for; the
//! process list shows other users' sessions only to those who have the right.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use mysql_async::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::conn::{Session, get};
use super::sql::ident;
use super::{MySql, Settings, Tx, regions, tables};
use crate::engine::{Fence, Store, Turn, Turned};
use crate::error::{Code, Error, Result};
use crate::report::Event;
use crate::resolve::Resolved;
use crate::stage::Stage;
use crate::state::{Entry, Lease, Pace, Pass, PlanState, Progress, Reject, StageState, StrayWriter, Taken};

/// Holds the runner's right to write until the transaction ends; no row when it has none any more. The row of the plan, read
/// inside, is not locked: whoever asks for a pause need not wait.
const FENCE: &str =
    "SELECT (SELECT p.paused FROM sete_plan p WHERE p.id = l.plan_id) FROM sete_lease l WHERE l.plan_id = ? AND l.token = ? FOR UPDATE";

/// True when somebody asked for a pause.
pub async fn fenced(session: &mut Session, fence: &Fence) -> Result<bool> {
    let rows = session.query(FENCE, (&fence.plan, fence.token), "checking the lease").await?;
    let lost = || Error::new(Code::LeaseLost, format!("another runner has taken over plan {} (our token was {})", fence.plan, fence.token));
    get::<Option<bool>>(rows.first().ok_or_else(lost)?, 0).map(|paused| paused.unwrap_or(false))
}

pub fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::new(Code::Internal, format!("state can't be written as JSON: {e}")))
}

pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::new(Code::StateTooNew, format!("state can't be read: {e}")))
}

/// A time as microseconds since 1970, in SQL.
fn micros(column: &str) -> String {
    format!("CAST(UNIX_TIMESTAMP({column}) * 1000000 AS SIGNED)")
}

fn timestamp(micros: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(micros).map_err(|e| Error::new(Code::Internal, format!("the server's time is out of range: {e}")))
}

/// Read by everybody who can connect.
fn lease_sql() -> String {
    format!(
        "SELECT token, holder, {}, until > SYSDATE(6) AND IS_USED_LOCK(COALESCE(mark, 'sete-none')) <=> session FROM sete_lease WHERE plan_id = ?",
        micros("until")
    )
}

fn lease_of(row: &Row) -> Result<Option<Lease>> {
    match (get::<Option<String>>(row, 1)?, get::<Option<i64>>(row, 2)?) {
        (Some(holder), Some(until)) => {
            let alive = get::<Option<bool>>(row, 3)?.unwrap_or(false);
            Ok(Some(Lease { holder, until: timestamp(until)?, token: get(row, 0)?, alive }))
        }
        _ => Ok(None),
    }
}

/// What the plan's row and its regions say together. A region's rows count as soon as they are filled.
async fn progress(tx: &mut Tx<'_>, plan: &str) -> Result<Option<Progress>> {
    let touched = micros("(SELECT MAX(c.touched) FROM sete_chunk c WHERE c.plan_id = p.plan_id)");
    let filled = "CAST(COALESCE((SELECT SUM(c.filled) FROM sete_chunk c WHERE c.plan_id = p.plan_id), 0) AS SIGNED)";
    let sql = format!("SELECT p.data, {filled}, {touched} FROM sete_progress p WHERE p.plan_id = ?");
    let Some(row) = tx.query(&sql, (plan,), "reading progress").await?.pop() else { return Ok(None) };
    let mut progress: Progress = from_json(&get::<String>(&row, 0)?)?;
    progress.filled += get::<u64>(&row, 1)?;
    if let Some(touched) = get::<Option<i64>>(&row, 2)? {
        progress.at = progress.at.max(timestamp(touched)?);
    }
    Ok(Some(progress))
}

async fn load(tx: &mut Tx<'_>, plan: &str) -> Result<Option<PlanState>> {
    if !tables::known(tx).await? {
        return Ok(None);
    }
    let sql = "SELECT table_name, fingerprint, `change`, origin, text, paused FROM sete_plan WHERE id = ?";
    let Some(row) = tx.query(sql, (plan,), "reading the plan's state").await?.pop() else { return Ok(None) };
    let mut stages: Vec<StageState> = Stage::ALL.into_iter().map(StageState::pending).collect();
    for row in tx.query("SELECT data FROM sete_stage WHERE plan_id = ?", (plan,), "reading the stages").await? {
        let state: StageState = from_json(&get::<String>(&row, 0)?)?;
        let place = state.stage as usize;
        stages[place] = state;
    }
    let progress = progress(tx, plan).await?;
    let passes = tx.query("SELECT data FROM sete_pass WHERE plan_id = ? ORDER BY id", (plan,), "reading the passes").await?;
    let rejected = tx.one("SELECT COUNT(*) FROM sete_reject WHERE plan_id = ?", (plan,), "counting the rejects").await?;
    let lease = tx.query(&lease_sql(), (plan,), "reading the lease").await?.pop();
    Ok(Some(PlanState {
        id: plan.to_string(),
        table: get(&row, 0)?,
        fingerprint: get(&row, 1)?,
        change: from_json(&get::<String>(&row, 2)?)?,
        origin: from_json(&get::<String>(&row, 3)?)?,
        text: get(&row, 4)?,
        paused: get(&row, 5)?,
        stages,
        progress,
        passes: passes.iter().map(|row| from_json(&get::<String>(row, 0)?)).collect::<Result<_>>()?,
        rejected: get(&rejected, 0)?,
        lease: lease.as_ref().map(lease_of).transpose()?.flatten(),
    }))
}

/// Takes the lease if it is free, has ended, or its holder's session is gone. The row lock makes two takers go one by one.
async fn take_lease(tx: &mut Tx<'_>, plan: &str, holder: &str, ttl: Duration) -> Result<Taken> {
    let mark = tx.mark().await?;
    let row = tx.query(&format!("{} FOR UPDATE", lease_sql()), (plan,), "taking the lease").await?.pop();
    let row = row.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("the database has no plan {plan}")))?;
    if let Some(lease) = lease_of(&row)?.filter(|lease| lease.alive) {
        return Ok(Taken::Held(lease));
    }
    let token = get::<i64>(&row, 0)? + 1;
    let sql = "UPDATE sete_lease SET token = ?, holder = ?, session = CONNECTION_ID(), mark = ?, until = SYSDATE(6) + INTERVAL ? MICROSECOND \
               WHERE plan_id = ?";
    tx.execute(sql, (token, holder, mark, ttl.as_micros() as u64, plan), "taking the lease").await?;
    Ok(Taken::Ours { token })
}

/// Also after a reconnect: the session that now stands for the holder is noted.
async fn renew_lease(tx: &mut Tx<'_>, fence: &Fence, ttl: Duration) -> Result<bool> {
    let mark = tx.mark().await?;
    let sql = "UPDATE sete_lease SET until = SYSDATE(6) + INTERVAL ? MICROSECOND, session = CONNECTION_ID(), mark = ? \
               WHERE plan_id = ? AND token = ? AND holder IS NOT NULL";
    Ok(tx.execute(sql, (ttl.as_micros() as u64, mark, &fence.plan, fence.token), "renewing the lease").await? == 1)
}

async fn create(tx: &mut Tx<'_>, state: &PlanState) -> Result<()> {
    let sql = "INSERT INTO sete_plan (id, table_name, fingerprint, `change`, origin, text) VALUES (?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE id = id";
    let (change, origin) = (json(&state.change)?, json(&state.origin)?);
    tx.execute(sql, (&state.id, &state.table, &state.fingerprint, change, origin, &state.text), "saving the plan").await?;
    let sql = "INSERT INTO sete_lease (plan_id) VALUES (?) ON DUPLICATE KEY UPDATE plan_id = plan_id";
    tx.execute(sql, (&state.id,), "saving the plan").await.map(|_| ())
}

async fn save_stage(tx: &mut Tx<'_>, fence: &Fence, stage: &StageState) -> Result<()> {
    fenced(tx, fence).await?;
    let (name, data) = (stage.stage.name(), json(stage)?);
    let sql = "INSERT INTO sete_stage (plan_id, stage, data) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE data = ?";
    tx.execute(sql, (&fence.plan, name, &data, &data), "saving the stage").await.map(|_| ())
}

/// The walk begins, begins anew or ends: no region that was given out counts any more. Waits for the batches in them.
async fn save_progress(tx: &mut Tx<'_>, fence: &Fence, progress: &Progress) -> Result<()> {
    fenced(tx, fence).await?;
    tx.execute("DELETE FROM sete_chunk WHERE plan_id = ?", (&fence.plan,), "taking regions back").await?;
    let data = json(progress)?;
    let sql = "INSERT INTO sete_progress (plan_id, data) VALUES (?, ?) ON DUPLICATE KEY UPDATE data = ?";
    tx.execute(sql, (&fence.plan, &data, &data), "saving progress").await.map(|_| ())
}

async fn save_pace(tx: &mut Tx<'_>, fence: &Fence, pace: &Pace) -> Result<()> {
    fenced(tx, fence).await?;
    let Some(front) = regions::front(tx, &fence.plan).await? else { return Ok(()) };
    regions::save_front(tx, &fence.plan, &Progress { pace: pace.clone(), ..front }).await
}

async fn add_rejects(tx: &mut Tx<'_>, fence: &Fence, rejects: &[Reject]) -> Result<()> {
    fenced(tx, fence).await?;
    let sql = "INSERT INTO sete_reject (plan_id, key_hash, `key`, value, message, at) VALUES (?, UNHEX(SHA2(?, 256)), ?, ?, ?, SYSDATE(6)) \
               ON DUPLICATE KEY UPDATE value = ?, message = ?, at = SYSDATE(6)";
    for Reject { key, value, message } in rejects {
        tx.execute(sql, (&fence.plan, key, key, value, message, value, message), "saving a reject").await?;
    }
    Ok(())
}

async fn rejects(tx: &mut Tx<'_>, plan: &str, limit: u32) -> Result<(u64, Vec<Reject>)> {
    if !tables::known(tx).await? {
        return Ok((0, Vec::new()));
    }
    let total = tx.one("SELECT COUNT(*) FROM sete_reject WHERE plan_id = ?", (plan,), "counting the rejects").await?;
    let sql = "SELECT `key`, value, message FROM sete_reject WHERE plan_id = ? ORDER BY at, `key` LIMIT ?";
    let rows = tx.query(sql, (plan, limit), "reading the rejects").await?;
    let some = rows.iter().map(|row| Ok(Reject { key: get(row, 0)?, value: get(row, 1)?, message: get(row, 2)? })).collect::<Result<_>>()?;
    Ok((get(&total, 0)?, some))
}

async fn stray_writers(tx: &mut Tx<'_>, plan: &str) -> Result<Vec<StrayWriter>> {
    if !tables::known(tx).await? {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT application, address, usr, wrote_only, COUNT(*), {} FROM sete_stray_write WHERE plan_id = ? GROUP BY 1, 2, 3, 4 ORDER BY 6 DESC",
        micros("MAX(at)")
    );
    let rows = tx.query(&sql, (plan,), "reading who wrote one column only").await?;
    rows.iter()
        .map(|row| {
            Ok(StrayWriter {
                application: get(row, 0)?,
                address: get(row, 1)?,
                user: get(row, 2)?,
                wrote_only: get(row, 3)?,
                count: get(row, 4)?,
                last_at: timestamp(get(row, 5)?)?,
            })
        })
        .collect()
}

async fn writes_seen(tx: &mut Tx<'_>, plan: &str) -> Result<u64> {
    if !tables::known(tx).await? {
        return Ok(0);
    }
    let sql = "SELECT COUNT(*) FROM sete_write WHERE plan_id = ?";
    get(&tx.one(sql, (plan,), "reading how many writes were seen").await?, 0)
}

async fn events(tx: &mut Tx<'_>, plan: &str, limit: u32) -> Result<Vec<Entry>> {
    let sql = format!("SELECT {}, who, data FROM sete_event WHERE plan_id = ? ORDER BY id DESC LIMIT ?", micros("at"));
    let rows = tx.query(&sql, (plan, limit), "reading the journal").await?;
    rows.iter().map(|row| Ok(Entry { at: timestamp(get(row, 0)?)?, who: get(row, 1)?, event: from_json(&get::<String>(row, 2)?)? })).collect()
}

async fn clear_strays(tx: &mut Tx<'_>, fence: &Fence) -> Result<()> {
    fenced(tx, fence).await?;
    for table in ["sete_stray_write", "sete_write"] {
        tx.execute(&format!("DELETE FROM {} WHERE plan_id = ?", ident(table)), (&fence.plan,), "clearing the stray writes").await?;
    }
    Ok(())
}

/// `await`s an operation in a transaction of its own, and ends it.
macro_rules! in_tx {
    ($engine:expr, $settings:expr, |$tx:ident| $work:expr) => {{
        let mut $tx = $engine.begin($settings).await?;
        let done = $work.await;
        $tx.end(done).await
    }};
}

#[async_trait]
impl Store for MySql {
    async fn prepare(&self) -> Result<()> {
        tables::prepare(self).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let sql = format!("SELECT {}", micros("SYSDATE(6)"));
        let row = in_tx!(self, Settings::LOOK, |tx| tx.one(&sql, (), "asking for the time"))?;
        timestamp(get(&row, 0)?)
    }

    async fn load(&self, plan: &str) -> Result<Option<PlanState>> {
        in_tx!(self, Settings::LOOK, |tx| load(&mut tx, plan))
    }

    async fn list(&self) -> Result<Vec<String>> {
        let rows = in_tx!(self, Settings::LOOK, |tx| async {
            if !tables::known(&mut tx).await? {
                return Ok(Vec::new());
            }
            tx.query("SELECT id FROM sete_plan ORDER BY id", (), "listing the plans").await
        })?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    async fn create(&self, state: &PlanState) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| create(&mut tx, state))
    }

    async fn take_lease(&self, plan: &str, holder: &str, ttl: Duration) -> Result<Taken> {
        in_tx!(self, Settings::STATE, |tx| take_lease(&mut tx, plan, holder, ttl))
    }

    async fn renew_lease(&self, fence: &Fence, ttl: Duration) -> Result<bool> {
        in_tx!(self, Settings::STATE, |tx| renew_lease(&mut tx, fence, ttl))
    }

    async fn release_lease(&self, fence: &Fence) -> Result<()> {
        let sql = "UPDATE sete_lease SET holder = NULL, until = NULL, session = NULL, mark = NULL WHERE plan_id = ? AND token = ?";
        in_tx!(self, Settings::STATE, |tx| tx.execute(sql, (&fence.plan, fence.token), "releasing the lease")).map(|_| ())
    }

    async fn save_plan_text(&self, fence: &Fence, text: &str) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| async {
            fenced(&mut tx, fence).await?;
            tx.execute("UPDATE sete_plan SET text = ? WHERE id = ?", (text, &fence.plan), "saving the plan").await.map(|_| ())
        })
    }

    async fn save_stage(&self, fence: &Fence, stage: &StageState) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| save_stage(&mut tx, fence, stage))
    }

    async fn save_progress(&self, fence: &Fence, progress: &Progress) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| save_progress(&mut tx, fence, progress))
    }

    async fn save_pace(&self, fence: &Fence, pace: &Pace) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| save_pace(&mut tx, fence, pace))
    }

    async fn turn(&self, r: &Resolved, turn: &Turn<'_>) -> Result<Turned> {
        in_tx!(self, Settings::STATE, |tx| regions::turn(&mut tx, r, turn))
    }

    async fn add_event(&self, fence: &Fence, who: &str, event: &Event) -> Result<()> {
        let data = json(event)?;
        in_tx!(self, Settings::STATE, |tx| async {
            fenced(&mut tx, fence).await?;
            let sql = "INSERT INTO sete_event (plan_id, at, who, token, data) VALUES (?, SYSDATE(6), ?, ?, ?)";
            tx.execute(sql, (&fence.plan, who, fence.token, &data), "writing the journal").await.map(|_| ())
        })
    }

    async fn events(&self, plan: &str, limit: u32) -> Result<Vec<Entry>> {
        in_tx!(self, Settings::LOOK, |tx| events(&mut tx, plan, limit))
    }

    async fn add_pass(&self, fence: &Fence, pass: &Pass) -> Result<()> {
        let data = json(pass)?;
        in_tx!(self, Settings::STATE, |tx| async {
            fenced(&mut tx, fence).await?;
            tx.execute("INSERT INTO sete_pass (plan_id, data) VALUES (?, ?)", (&fence.plan, &data), "saving a pass").await.map(|_| ())
        })
    }

    async fn add_rejects(&self, fence: &Fence, rejects: &[Reject]) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| add_rejects(&mut tx, fence, rejects))
    }

    async fn rejects(&self, plan: &str, limit: u32) -> Result<(u64, Vec<Reject>)> {
        in_tx!(self, Settings::LOOK, |tx| rejects(&mut tx, plan, limit))
    }

    async fn clear_rejects(&self, fence: &Fence) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| async {
            fenced(&mut tx, fence).await?;
            tx.execute("DELETE FROM sete_reject WHERE plan_id = ?", (&fence.plan,), "clearing the rejects").await.map(|_| ())
        })
    }

    async fn stray_writers(&self, plan: &str) -> Result<Vec<StrayWriter>> {
        in_tx!(self, Settings::LOOK, |tx| stray_writers(&mut tx, plan))
    }

    async fn writes_seen(&self, plan: &str) -> Result<u64> {
        in_tx!(self, Settings::LOOK, |tx| writes_seen(&mut tx, plan))
    }

    async fn clear_strays(&self, fence: &Fence) -> Result<()> {
        in_tx!(self, Settings::STATE, |tx| clear_strays(&mut tx, fence))
    }

    async fn set_paused(&self, plan: &str, paused: bool) -> Result<()> {
        let sql = "UPDATE sete_plan SET paused = ? WHERE id = ?";
        in_tx!(self, Settings::STATE, |tx| tx.execute(sql, (paused, plan), "setting the pause")).map(|_| ())
    }

    async fn forget(&self, plan: &str) -> Result<()> {
        tables::forget(self, plan).await
    }
}
