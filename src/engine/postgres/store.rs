//! Our own tables, in schema `sete` of the target database. What one runner may write is fenced by the token in `sete.lease`:
//! the row is locked by every write of ours, so a runner that was taken over writes nothing more.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_postgres::Row;

use super::regions;
use super::{Postgres, Settings, Tx};
use crate::engine::{Fence, Store, Turn, Turned};
use crate::error::{Code, Error, Result, Trouble};
use crate::report::Event;
use crate::resolve::Resolved;
use crate::stage::Stage;
use crate::state::{Entry, Lease, Pace, Pass, PlanState, Progress, Reject, StageState, StrayWriter, Taken};

/// Raised with every change of these tables; [`MIGRATIONS`] leads from one to the next.
const FORMAT: i32 = 1;

/// Statements that lead from format n to n + 1. Each is safe to run twice.
const MIGRATIONS: [&[&str]; 1] = [&[
    // IF NOT EXISTS alone asks for CREATE on the database even where the schema is there, made by somebody who may.
    "DO $$ BEGIN IF pg_catalog.to_regnamespace('sete') IS NULL THEN CREATE SCHEMA sete; END IF; END $$",
    "CREATE TABLE IF NOT EXISTS sete.format (version int NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sete.plan (id text PRIMARY KEY, table_name text NOT NULL, fingerprint text NOT NULL, change jsonb NOT NULL, \
     origin jsonb NOT NULL, text text NOT NULL, paused boolean NOT NULL DEFAULT false, created_at timestamptz NOT NULL DEFAULT now())",
    "CREATE TABLE IF NOT EXISTS sete.lease (plan_id text PRIMARY KEY REFERENCES sete.plan ON DELETE CASCADE, token bigint NOT NULL DEFAULT 0, \
     holder text, pid int, session_began timestamptz, until timestamptz)",
    "CREATE TABLE IF NOT EXISTS sete.stage (plan_id text NOT NULL REFERENCES sete.plan ON DELETE CASCADE, stage text NOT NULL, data jsonb NOT NULL, \
     PRIMARY KEY (plan_id, stage))",
    "CREATE TABLE IF NOT EXISTS sete.progress (plan_id text PRIMARY KEY REFERENCES sete.plan ON DELETE CASCADE, data jsonb NOT NULL)",
    // A row for each region that a worker has, gone once it is done: few, and rewritten all the time.
    "CREATE TABLE IF NOT EXISTS sete.chunk (id bigserial PRIMARY KEY, plan_id text NOT NULL REFERENCES sete.plan ON DELETE CASCADE, data jsonb NOT NULL, \
     token bigint NOT NULL DEFAULT 1, filled bigint NOT NULL DEFAULT 0, worker text NOT NULL, pid int NOT NULL, session_began timestamptz, \
     ttl interval NOT NULL, until timestamptz NOT NULL, touched timestamptz NOT NULL DEFAULT clock_timestamp()) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS sete.pass (id bigserial PRIMARY KEY, plan_id text NOT NULL REFERENCES sete.plan ON DELETE CASCADE, data jsonb NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sete.reject (plan_id text NOT NULL REFERENCES sete.plan ON DELETE CASCADE, key text NOT NULL, value text, \
     message text NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (plan_id, key))",
    // Without a reference to sete.plan: it is written by the application's statements, which must not take locks there.
    "CREATE TABLE IF NOT EXISTS sete.stray_write (plan_id text NOT NULL, at timestamptz NOT NULL, application text NOT NULL, address text NOT NULL, \
     usr text NOT NULL, wrote_only text NOT NULL, count bigint NOT NULL DEFAULT 1)",
    "CREATE INDEX IF NOT EXISTS stray_write_plan ON sete.stray_write (plan_id, at)",
    "CREATE TABLE IF NOT EXISTS sete.event (id bigserial PRIMARY KEY, plan_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), \
     who text NOT NULL, token bigint NOT NULL, data jsonb NOT NULL)",
    "CREATE INDEX IF NOT EXISTS event_plan ON sete.event (plan_id, id)",
]];

/// Holds the runner's right to write until the transaction ends; no row when it has none any more.
pub const FENCE: &str =
    "SELECT p.paused FROM sete.lease l JOIN sete.plan p ON p.id = l.plan_id WHERE l.plan_id = $1 AND l.token = $2 FOR NO KEY UPDATE OF l";

/// True when somebody asked for a pause.
pub async fn fenced(tx: &Tx<'_>, fence: &Fence) -> Result<bool> {
    held(tx.query(FENCE, &[&fence.plan, &fence.token], "checking the lease").await?, fence)
}

/// What the answer to [`FENCE`] means.
pub fn held(rows: Vec<Row>, fence: &Fence) -> Result<bool> {
    let lost = || Error::new(Code::LeaseLost, format!("another runner has taken over plan {} (our token was {})", fence.plan, fence.token));
    rows.first().map(|row| row.get(0)).ok_or_else(lost)
}

/// The walk begins, begins anew or ends: no region that was given out counts any more. Waits for the batches in them.
async fn write_progress(tx: &Tx<'_>, fence: &Fence, progress: &Progress) -> Result<()> {
    tx.execute("DELETE FROM sete.chunk WHERE plan_id = $1", &[&fence.plan], "taking regions back").await?;
    let sql = "INSERT INTO sete.progress (plan_id, data) VALUES ($1, $2) ON CONFLICT (plan_id) DO UPDATE SET data = excluded.data";
    tx.execute(sql, &[&fence.plan, &json(progress)?], "saving progress").await.map(|_| ())
}

pub fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::new(Code::Internal, format!("state can't be written as JSON: {e}")))
}

pub fn from_json<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::new(Code::StateTooNew, format!("state can't be read: {e}")))
}

fn timestamp(time: SystemTime) -> Result<Timestamp> {
    Timestamp::try_from(time).map_err(|e| Error::new(Code::Internal, format!("the server's time is out of range: {e}")))
}

/// Read by everybody who can connect: whether the holder's session is there, by number and start.
const LEASE: &str = "SELECT l.token, l.holder, l.until, (l.until > clock_timestamp() AND EXISTS (SELECT 1 FROM pg_catalog.pg_stat_activity a \
                     WHERE a.pid = l.pid AND coalesce(a.backend_start, l.session_began) = l.session_began)) AS alive \
                     FROM sete.lease l WHERE l.plan_id = $1";

/// What the plan's row and its regions say together. A region's rows count as soon as they are filled.
const PROGRESS: &str = "SELECT p.data, coalesce((SELECT sum(c.filled) FROM sete.chunk c WHERE c.plan_id = p.plan_id), 0)::int8 AS filled, \
                        (SELECT max(c.touched) FROM sete.chunk c WHERE c.plan_id = p.plan_id) AS touched FROM sete.progress p WHERE p.plan_id = $1";

fn progress_of(row: &Row) -> Result<Progress> {
    let mut progress: Progress = from_json(row.get("data"))?;
    progress.filled += row.get::<_, i64>("filled").unsigned_abs();
    if let Some(touched) = row.get::<_, Option<SystemTime>>("touched") {
        progress.at = progress.at.max(timestamp(touched)?);
    }
    Ok(progress)
}

fn lease_of(row: &Row) -> Result<Option<Lease>> {
    let holder: Option<String> = row.get("holder");
    match (holder, row.get::<_, Option<SystemTime>>("until")) {
        (Some(holder), Some(until)) => Ok(Some(Lease { holder, until: timestamp(until)?, token: row.get("token"), alive: row.get("alive") })),
        _ => Ok(None),
    }
}

/// None when our schema isn't there.
async fn format(tx: &Tx<'_>) -> Result<Option<i32>> {
    if tx.one("SELECT to_regclass('sete.format') IS NOT NULL", &[], "looking for our schema").await?.get::<_, bool>(0) {
        let version: Option<i32> = tx.one("SELECT max(version) FROM sete.format", &[], "reading the format of our tables").await?.get(0);
        return Ok(Some(version.unwrap_or(0)));
    }
    Ok(None)
}

async fn known(tx: &Tx<'_>) -> Result<bool> {
    match format(tx).await? {
        None => Ok(false),
        Some(version) if version > FORMAT => {
            Err(Error::new(Code::StateTooNew, format!("schema sete has format {version}, this version of sete knows up to {FORMAT}")))
        }
        Some(version) => Ok(version == FORMAT),
    }
}

async fn prepare(tx: &Tx<'_>) -> Result<()> {
    if known(tx).await? {
        return Ok(());
    }
    // Two runners that begin at the same moment: the second waits here, and then finds all done.
    tx.batch("SELECT pg_catalog.pg_advisory_xact_lock(7365746)", "making schema sete").await?;
    let from = usize::try_from(format(tx).await?.unwrap_or(0)).unwrap_or(0);
    for statements in MIGRATIONS.get(from..).unwrap_or_default() {
        tx.batch(&statements.join("; "), "making schema sete").await?;
    }
    tx.batch(&format!("DELETE FROM sete.format; INSERT INTO sete.format VALUES ({FORMAT})"), "making schema sete").await
}

async fn load(tx: &Tx<'_>, plan: &str) -> Result<Option<PlanState>> {
    if !known(tx).await? {
        return Ok(None);
    }
    let sql = "SELECT table_name, fingerprint, change, origin, text, paused FROM sete.plan WHERE id = $1";
    let Some(row) = tx.query(sql, &[&plan], "reading the plan's state").await?.pop() else { return Ok(None) };
    let mut stages: Vec<StageState> = Stage::ALL.into_iter().map(StageState::pending).collect();
    for row in tx.query("SELECT data FROM sete.stage WHERE plan_id = $1", &[&plan], "reading the stages").await? {
        let state: StageState = from_json(row.get(0))?;
        let place = state.stage as usize;
        stages[place] = state;
    }
    let progress = tx.query(PROGRESS, &[&plan], "reading progress").await?.pop();
    let passes = tx.query("SELECT data FROM sete.pass WHERE plan_id = $1 ORDER BY id", &[&plan], "reading the passes").await?;
    let rejected: i64 = tx.one("SELECT count(*) FROM sete.reject WHERE plan_id = $1", &[&plan], "counting the rejects").await?.get(0);
    let lease = tx.query(LEASE, &[&plan], "reading the lease").await?.pop();
    Ok(Some(PlanState {
        id: plan.to_string(),
        text: row.get("text"),
        fingerprint: row.get("fingerprint"),
        change: from_json(row.get("change"))?,
        table: row.get("table_name"),
        origin: from_json(row.get("origin"))?,
        stages,
        progress: progress.as_ref().map(progress_of).transpose()?,
        passes: passes.iter().map(|row| from_json(row.get(0))).collect::<Result<_>>()?,
        rejected: rejected.unsigned_abs(),
        paused: row.get("paused"),
        lease: lease.as_ref().map(lease_of).transpose()?.flatten(),
    }))
}

/// Takes the lease if it is free, has ended, or its holder's session is gone. The row lock makes two takers go one by one.
async fn take_lease(tx: &Tx<'_>, plan: &str, holder: &str, ttl: Duration) -> Result<Taken> {
    tx.query("SELECT 1 FROM sete.lease WHERE plan_id = $1 FOR UPDATE", &[&plan], "taking the lease").await?;
    let row = tx.query(LEASE, &[&plan], "taking the lease").await?.pop();
    let row = row.ok_or_else(|| Error::new(Code::NoSuchPlan, format!("the database has no plan {plan}")))?;
    if let Some(lease) = lease_of(&row)?.filter(|lease| lease.alive) {
        return Ok(Taken::Held(lease));
    }
    let sql = "UPDATE sete.lease SET token = token + 1, holder = $2, pid = pg_catalog.pg_backend_pid(), \
               session_began = (SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()), \
               until = clock_timestamp() + make_interval(secs => $3) WHERE plan_id = $1 RETURNING token";
    let row = tx.one(sql, &[&plan, &holder, &ttl.as_secs_f64()], "taking the lease").await?;
    Ok(Taken::Ours { token: row.get(0) })
}

/// Also after a reconnect: the session that now stands for the holder is noted.
async fn renew_lease(tx: &Tx<'_>, fence: &Fence, ttl: Duration) -> Result<bool> {
    let sql = "UPDATE sete.lease SET until = clock_timestamp() + make_interval(secs => $3), pid = pg_catalog.pg_backend_pid(), \
               session_began = (SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()) \
               WHERE plan_id = $1 AND token = $2 AND holder IS NOT NULL";
    Ok(tx.execute(sql, &[&fence.plan, &fence.token, &ttl.as_secs_f64()], "renewing the lease").await? == 1)
}

async fn create(tx: &Tx<'_>, state: &PlanState) -> Result<()> {
    let sql = "INSERT INTO sete.plan (id, table_name, fingerprint, change, origin, text) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING";
    let (change, origin) = (json(&state.change)?, json(&state.origin)?);
    tx.execute(sql, &[&state.id, &state.table, &state.fingerprint, &change, &origin, &state.text], "saving the plan").await?;
    tx.execute("INSERT INTO sete.lease (plan_id) VALUES ($1) ON CONFLICT DO NOTHING", &[&state.id], "saving the plan").await.map(|_| ())
}

async fn save_stage(tx: &Tx<'_>, fence: &Fence, stage: &StageState) -> Result<()> {
    fenced(tx, fence).await?;
    let sql = "INSERT INTO sete.stage (plan_id, stage, data) VALUES ($1, $2, $3) ON CONFLICT (plan_id, stage) DO UPDATE SET data = excluded.data";
    tx.execute(sql, &[&fence.plan, &stage.stage.name(), &json(stage)?], "saving the stage").await.map(|_| ())
}

async fn add_rejects(tx: &Tx<'_>, fence: &Fence, rejects: &[Reject]) -> Result<()> {
    fenced(tx, fence).await?;
    let sql = "INSERT INTO sete.reject (plan_id, key, value, message) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (plan_id, key) DO UPDATE SET value = excluded.value, message = excluded.message, at = now()";
    for reject in rejects {
        tx.execute(sql, &[&fence.plan, &reject.key, &reject.value, &reject.message], "saving a reject").await?;
    }
    Ok(())
}

async fn stray_writers(tx: &Tx<'_>, plan: &str) -> Result<Vec<StrayWriter>> {
    if !known(tx).await? {
        return Ok(Vec::new());
    }
    let sql = "SELECT application, address, usr, wrote_only, sum(count)::int8 AS count, max(at) AS last_at FROM sete.stray_write \
               WHERE plan_id = $1 GROUP BY 1, 2, 3, 4 ORDER BY last_at DESC";
    let rows = tx.query(sql, &[&plan], "reading who wrote one column only").await?;
    rows.iter()
        .map(|row| {
            Ok(StrayWriter {
                application: row.get("application"),
                address: row.get("address"),
                user: row.get("usr"),
                wrote_only: row.get("wrote_only"),
                count: row.get::<_, i64>("count").unsigned_abs(),
                last_at: timestamp(row.get("last_at"))?,
            })
        })
        .collect()
}

async fn writes_seen(tx: &Tx<'_>, counter: &str) -> Result<u64> {
    let name = format!("sete.{}", super::sql::ident(counter));
    let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {name}");
    match tx.query(&sql, &[], "reading how many writes were seen").await {
        Ok(mut rows) => Ok(rows.pop().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs())),
        Err(e) if e.trouble() == Trouble::Undefined => Ok(0),
        Err(e) => Err(e),
    }
}

async fn forget(tx: &Tx<'_>, plan: &str) -> Result<()> {
    let names = crate::resolve::Names::of(plan);
    // By force a plan may be forgotten while its triggers are in place: what they call stays, or every write would fail.
    let sql = "SELECT 1 FROM pg_catalog.pg_trigger WHERE tgname = ANY ($1) AND NOT tgisinternal";
    let triggers: Vec<&String> = names.sync_triggers.iter().chain(&names.observer_triggers).collect();
    if tx.query(sql, &[&triggers], "looking for the plan's triggers").await?.is_empty() {
        for function in [&names.sync_function, &names.observer_function].into_iter().chain(&names.error_functions) {
            tx.batch(&format!("DROP FUNCTION IF EXISTS sete.{}", super::sql::ident(function)), "removing the plan's functions").await?;
        }
        tx.batch(&format!("DROP SEQUENCE IF EXISTS sete.{}", super::sql::ident(&names.counter)), "removing the plan's counter").await?;
    }
    for table in ["stray_write", "event"] {
        tx.execute(&format!("DELETE FROM sete.{table} WHERE plan_id = $1"), &[&plan], "forgetting the plan").await?;
    }
    tx.execute("DELETE FROM sete.plan WHERE id = $1", &[&plan], "forgetting the plan").await?;
    let left: i64 = tx.one("SELECT count(*) FROM sete.plan", &[], "counting the plans").await?.get(0);
    if left == 0 {
        // Ours alone, and listed: CASCADE never leaves the schema's own tables.
        for table in ["event", "stray_write", "reject", "pass", "chunk", "progress", "stage", "lease", "plan", "format"] {
            tx.batch(&format!("DROP TABLE IF EXISTS sete.{table}"), "removing schema sete").await?;
        }
        let sql = "SELECT 1 FROM pg_catalog.pg_proc WHERE pronamespace = 'sete'::regnamespace";
        if tx.query(sql, &[], "looking what is left in schema sete").await?.is_empty() {
            tx.batch("DROP SCHEMA sete", "removing schema sete").await?;
        }
    }
    Ok(())
}

#[async_trait]
impl Store for Postgres {
    async fn prepare(&self) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = prepare(&tx).await;
        tx.end(done).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let tx = self.begin(Settings::LOOK).await?;
        let row = tx.one("SELECT clock_timestamp()", &[], "asking for the time").await;
        timestamp(tx.end(row).await?.get(0))
    }

    async fn load(&self, plan: &str) -> Result<Option<PlanState>> {
        let tx = self.begin(Settings::LOOK).await?;
        let state = load(&tx, plan).await;
        tx.end(state).await
    }

    async fn list(&self) -> Result<Vec<String>> {
        let tx = self.begin(Settings::LOOK).await?;
        let ids = match known(&tx).await {
            Ok(true) => tx.query("SELECT id FROM sete.plan ORDER BY id", &[], "listing the plans").await,
            Ok(false) => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        Ok(tx.end(ids).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn create(&self, state: &PlanState) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = create(&tx, state).await;
        tx.end(done).await
    }

    async fn take_lease(&self, plan: &str, holder: &str, ttl: Duration) -> Result<Taken> {
        let tx = self.begin(Settings::STATE).await?;
        let taken = take_lease(&tx, plan, holder, ttl).await;
        tx.end(taken).await
    }

    async fn renew_lease(&self, fence: &Fence, ttl: Duration) -> Result<bool> {
        let tx = self.begin(Settings::STATE).await?;
        let renewed = renew_lease(&tx, fence, ttl).await;
        tx.end(renewed).await
    }

    async fn release_lease(&self, fence: &Fence) -> Result<()> {
        self.write(
            "releasing the lease",
            "UPDATE sete.lease SET holder = NULL, until = NULL, pid = NULL WHERE plan_id = $1 AND token = $2",
            &[&fence.plan, &fence.token],
        )
        .await
    }

    async fn save_plan_text(&self, fence: &Fence, text: &str) -> Result<()> {
        self.write_fenced(fence, "saving the plan", "UPDATE sete.plan SET text = $2 WHERE id = $1", &[&fence.plan, &text]).await
    }

    async fn save_stage(&self, fence: &Fence, stage: &StageState) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = save_stage(&tx, fence, stage).await;
        tx.end(done).await
    }

    async fn save_progress(&self, fence: &Fence, progress: &Progress) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = match fenced(&tx, fence).await {
            Ok(_) => write_progress(&tx, fence, progress).await,
            Err(e) => Err(e),
        };
        tx.end(done).await
    }

    async fn save_pace(&self, fence: &Fence, pace: &Pace) -> Result<()> {
        self.write_fenced(fence, "saving the pace", "UPDATE sete.progress SET data = data || $2 WHERE plan_id = $1", &[&fence.plan, &json(pace)?])
            .await
    }

    async fn turn(&self, r: &Resolved, turn: &Turn<'_>) -> Result<Turned> {
        regions::turn(self, r, turn).await
    }

    async fn add_event(&self, fence: &Fence, who: &str, event: &Event) -> Result<()> {
        let sql = "INSERT INTO sete.event (plan_id, who, token, data) VALUES ($1, $2, $3, $4)";
        self.write_fenced(fence, "writing the journal", sql, &[&fence.plan, &who, &fence.token, &json(event)?]).await
    }

    async fn events(&self, plan: &str, limit: u32) -> Result<Vec<Entry>> {
        let tx = self.begin(Settings::LOOK).await?;
        let sql = "SELECT at, who, data FROM sete.event WHERE plan_id = $1 ORDER BY id DESC LIMIT $2";
        let rows = tx.query(sql, &[&plan, &i64::from(limit)], "reading the journal").await;
        let rows = tx.end(rows).await?;
        rows.iter().map(|row| Ok(Entry { at: timestamp(row.get("at"))?, who: row.get("who"), event: row.get("data") })).collect()
    }

    async fn add_pass(&self, fence: &Fence, pass: &Pass) -> Result<()> {
        self.write_fenced(fence, "saving a pass", "INSERT INTO sete.pass (plan_id, data) VALUES ($1, $2)", &[&fence.plan, &json(pass)?]).await
    }

    async fn add_rejects(&self, fence: &Fence, rejects: &[Reject]) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = add_rejects(&tx, fence, rejects).await;
        tx.end(done).await
    }

    async fn rejects(&self, plan: &str, limit: u32) -> Result<(u64, Vec<Reject>)> {
        let tx = self.begin(Settings::LOOK).await?;
        let sql = "SELECT key, value, message, count(*) OVER () AS total FROM sete.reject WHERE plan_id = $1 ORDER BY at, key LIMIT $2";
        let rows = match known(&tx).await {
            Ok(true) => tx.query(sql, &[&plan, &i64::from(limit)], "reading the rejects").await,
            Ok(false) => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        let rows = tx.end(rows).await?;
        let total = rows.first().map_or(0, |row| row.get::<_, i64>("total").unsigned_abs());
        Ok((total, rows.iter().map(|row| Reject { key: row.get("key"), value: row.get("value"), message: row.get("message") }).collect()))
    }

    async fn clear_rejects(&self, fence: &Fence) -> Result<()> {
        self.write_fenced(fence, "clearing the rejects", "DELETE FROM sete.reject WHERE plan_id = $1", &[&fence.plan]).await
    }

    async fn stray_writers(&self, plan: &str) -> Result<Vec<StrayWriter>> {
        let tx = self.begin(Settings::LOOK).await?;
        let writers = stray_writers(&tx, plan).await;
        tx.end(writers).await
    }

    async fn writes_seen(&self, plan: &str) -> Result<u64> {
        let tx = self.begin(Settings::LOOK).await?;
        let seen = writes_seen(&tx, &crate::resolve::Names::of(plan).counter).await;
        tx.end(seen).await
    }

    async fn clear_strays(&self, fence: &Fence) -> Result<()> {
        self.write_fenced(fence, "clearing the stray writes", "DELETE FROM sete.stray_write WHERE plan_id = $1", &[&fence.plan]).await
    }

    async fn set_paused(&self, plan: &str, paused: bool) -> Result<()> {
        self.write("setting the pause", "UPDATE sete.plan SET paused = $2 WHERE id = $1", &[&plan, &paused]).await
    }

    async fn forget(&self, plan: &str) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = forget(&tx, plan).await;
        tx.end(done).await
    }
}

impl Postgres {
    async fn write(&self, context: &str, sql: &str, params: super::Params<'_>) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = tx.execute(sql, params, context).await.map(|_| ());
        tx.end(done).await
    }

    async fn write_fenced(&self, fence: &Fence, context: &str, sql: &str, params: super::Params<'_>) -> Result<()> {
        let tx = self.begin(Settings::STATE).await?;
        let done = match fenced(&tx, fence).await {
            Ok(_) => tx.execute(sql, params, context).await.map(|_| ()),
            Err(e) => Err(e),
        };
        tx.end(done).await
    }
}
