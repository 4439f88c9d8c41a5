//! Schema actions on MySQL and MariaDB: [`super::render`] has their text, [`super::look`] the looking; here they are done.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::conn::{Session, get};
use super::sync::{self, Watcher};
use super::{MySql, Settings, catalog, look, probe, render, rows, sql, store};
use crate::change::Mapping;
use crate::crash;
use crate::engine::{Applied, Catalog, Cost, CostClass, Ddl, Fence, Fill, Probe, Schema, StatementRead};
use crate::error::{Blocker, Code, Error, Result, Trouble};
use crate::plan::Plan;
use crate::resolve::{Resolved, Rule};
use crate::state::Origin;

/// While a statement waits for a metadata lock, everyone else queues behind it. The server counts in whole seconds.
const METADATA_WAIT: u32 = 1;

#[async_trait]
impl Schema for MySql {
    async fn catalog(&self, plan: &Plan, mapping: &Mapping, origin: Option<&Origin>) -> Result<Catalog> {
        let place = self.place();
        let mut session = self.plain().await?;
        catalog::read(&mut session, plan, mapping, origin, self.database(), &place).await
    }

    fn render(&self, r: &Resolved, ddl: &Ddl) -> Vec<String> {
        render::render(self.database(), r, ddl)
    }

    fn render_fill(&self, r: &Resolved, what: Fill) -> String {
        rows::example_fill(r, what)
    }

    fn cost(&self, r: &Resolved, ddl: &Ddl) -> Cost {
        render::cost(r, ddl)
    }

    async fn present(&self, r: &Resolved, ddl: &Ddl) -> Result<bool> {
        let mut session = self.plain().await?;
        look::present(&mut session, self.database(), r, ddl).await
    }

    async fn blockers(&self, r: &Resolved, ddl: &Ddl) -> Result<Vec<Blocker>> {
        if render::cost(r, ddl).locks.is_empty() {
            return Ok(Vec::new());
        }
        let ours = self.our_sessions();
        let mut session = self.plain().await?;
        look::blockers(&mut session, r, &ours).await
    }

    async fn apply(&self, r: &Resolved, ddl: &Ddl, timeout: Duration, fence: &Fence) -> Result<Applied> {
        // A statement of ours commits by itself: it can't be part of the transaction that checks the fence, so it comes right after.
        self.check_fence(fence).await?;
        let mut session = self.dedicated().await?;
        // A build may take as long as it takes, whatever the server allows to others.
        let unlimited = if session.version().is_mariadb() { "max_statement_time" } else { "max_execution_time" };
        let settings = format!("SET SESSION sql_mode = '{}', lock_wait_timeout = {METADATA_WAIT}, {unlimited} = 0", render::DDL_MODE);
        session.batch(&settings, "setting the limits of an action").await?;
        let set: u32 = get(&session.one("SELECT @@SESSION.lock_wait_timeout", (), "reading lock_wait_timeout back").await?, 0)?;
        if set != METADATA_WAIT {
            return Err(Error::new(Code::Internal, format!("lock_wait_timeout reads back as {set} s after it was set to {METADATA_WAIT} s")));
        }
        crash::point("before sending an action");
        let began = Instant::now();
        let done = self.act(&mut session, r, ddl).await;
        crash::point("after sending an action");
        let took = began.elapsed();
        if let Err(e) = done {
            return Err(self.not_got(e, r, ddl, timeout, took).await);
        }
        // Of a change in the catalog nearly all is the wait for its lock.
        let waited = render::cost(r, ddl).class == CostClass::Catalog;
        Ok(if waited { Applied { wait: took, hold: Duration::ZERO } } else { Applied { wait: Duration::ZERO, hold: took } })
    }

    async fn probe_sync(&self, r: &Resolved) -> Result<Probe> {
        let mut tx = self.begin(Settings { read_only: false, ..Settings::LOOK }).await?;
        let probe = probe::sync(&mut tx, r).await;
        tx.take_back().await?;
        refused_is_an_answer(probe)
    }

    async fn probe_insert(&self, r: &Resolved) -> Result<Probe> {
        let mut tx = self.begin(Settings { read_only: false, ..Settings::LOOK }).await?;
        let probe = probe::insert(&mut tx, r).await;
        tx.take_back().await?;
        refused_is_an_answer(probe)
    }

    async fn reads_of_old(&self, r: &Resolved) -> Result<Option<Vec<StatementRead>>> {
        let mut session = self.plain().await?;
        look::reads_of_old(&mut session, r).await
    }
}

fn refused_is_an_answer(probe: Result<Probe>) -> Result<Probe> {
    match probe {
        Err(e) if e.trouble() == Trouble::BadData => Ok(Probe::Failed(e.to_string())),
        other => other,
    }
}

impl MySql {
    /// A refused lock, in the door's words; a build that lost its work to it says how much, and to whom.
    async fn not_got(&self, error: Error, r: &Resolved, ddl: &Ddl, timeout: Duration, took: Duration) -> Error {
        let long = render::cost(r, ddl).class != CostClass::Catalog && took > Duration::from_secs(u64::from(METADATA_WAIT) + 1);
        match error.trouble() {
            Trouble::LockTimeout if long => {
                let holder = match self.blockers(r, ddl).await {
                    Ok(found) => found.first().map_or("it had gone when we looked".into(), Blocker::to_string),
                    Err(e) => format!("when we looked for it: {e}"),
                };
                let work = format!("{:.0} s of work on {} were lost", took.as_secs_f64(), r.table);
                Error::new(
                    Code::BuildLost,
                    format!("{work}: a transaction that began meanwhile held the table when the lock was needed again at the end ({holder})"),
                )
            }
            Trouble::LockTimeout | Trouble::Deadlock => Error::LockNotGot { relation: r.table.to_string(), patience: timeout, blocker: None },
            _ => error,
        }
    }

    async fn check_fence(&self, fence: &Fence) -> Result<()> {
        let mut tx = self.begin(Settings::STATE).await?;
        let fenced = store::fenced(&mut tx, fence).await;
        tx.end(fenced).await.map(|_| ())
    }

    async fn act(&self, session: &mut Session, r: &Resolved, ddl: &Ddl) -> Result<()> {
        let alone = matches!(ddl, Ddl::InstallSync { .. } | Ddl::InstallObserver { .. } | Ddl::DropSync | Ddl::DropObserver | Ddl::SwapNames { .. });
        if !alone {
            return self.act_unless_present(session, r, ddl).await;
        }
        // First the table and then the look: what a runner that was killed has sent is through by then. A second swap would undo
        // the first.
        session.batch(&render::lock(r).join(";\n"), &format!("locking {}", r.table)).await?;
        let done = self.act_alone(session, r, ddl).await;
        if done.as_ref().is_err_and(|e| e.trouble() == Trouble::ConnectionLost) {
            return done;
        }
        session.batch(render::UNLOCK, "unlocking the table").await.and(done)
    }

    /// Nobody writes, and nobody changes the table.
    async fn act_alone(&self, session: &mut Session, r: &Resolved, ddl: &Ddl) -> Result<()> {
        let exchanged = look::names_are(session, r, !r.swapped).await? && !look::names_are(session, r, r.swapped).await?;
        if exchanged && !matches!(ddl, Ddl::SwapNames { .. }) {
            let message = format!("the names on {} were exchanged while we looked at it; run again", r.table);
            return Err(Error::new(Code::TargetChanged, message));
        }
        self.act_unless_present(session, r, ddl).await
    }

    async fn act_unless_present(&self, session: &mut Session, r: &Resolved, ddl: &Ddl) -> Result<()> {
        if look::present(session, self.database(), r, ddl).await? {
            return Ok(());
        }
        match ddl {
            Ddl::InstallSync { watch } => self.install(session, r, Watcher::Sync { watch: *watch }).await,
            Ddl::InstallObserver { watch } => self.install(session, r, Watcher::Observer { watch: *watch }).await,
            Ddl::DropSync => self.remove(session, r, Watcher::Sync { watch: false }).await,
            Ddl::DropObserver => self.remove(session, r, Watcher::Observer { watch: false }).await,
            Ddl::SwapNames { swapped } => self.swap(session, r, *swapped).await,
            Ddl::ValidateConstraint(spec) => validate(session, r, spec).await,
            Ddl::DropOldColumn => self.drop_old(session, r).await,
            _ => {
                for statement in render::render(self.database(), r, ddl) {
                    session.batch(&statement, &statement).await?;
                }
                Ok(())
            }
        }
    }

    /// The whole of it in one packet, the unlocking too: the server carries on with it when we are killed in the middle.
    async fn in_one_go(&self, session: &mut Session, r: &Resolved, mut statements: Vec<String>) -> Result<()> {
        statements.push(render::UNLOCK.to_string());
        session.batch(&statements.join(";\n"), &format!("changing the triggers of {}", r.table)).await
    }

    /// What is there of other variants goes after the new pair has come, so that no write falls between.
    async fn install(&self, session: &mut Session, r: &Resolved, watcher: Watcher) -> Result<()> {
        let (names, all) = (watcher.names(r), watcher.all_names(r));
        let found: Vec<String> = look::triggers(session, r).await?.into_iter().map(|t| t.name).filter(|name| all.contains(name)).collect();
        let create = watcher.create(r, self.database());
        let mut statements = Vec::new();
        for (name, create) in names.iter().zip(create) {
            if found.contains(name) {
                statements.push(sync::drop_trigger(r, name));
            }
            statements.push(create);
        }
        statements.extend(found.iter().filter(|name| !names.contains(name)).map(|name| sync::drop_trigger(r, name)));
        self.in_one_go(session, r, statements).await
    }

    async fn remove(&self, session: &mut Session, r: &Resolved, watcher: Watcher) -> Result<()> {
        let all = watcher.all_names(r);
        let found = look::triggers(session, r).await?.into_iter().filter(|t| all.contains(&t.name));
        let statements = found.map(|t| sync::drop_trigger(r, &t.name)).collect();
        self.in_one_go(session, r, statements).await
    }

    /// Either all of it or nothing: what was refused half-way is taken back before anybody can write.
    async fn swap(&self, session: &mut Session, r: &Resolved, swapped: bool) -> Result<()> {
        if look::names_are(session, r, swapped).await? {
            // A server that went down between the names and the triggers: rows written since then have reached one column only.
            return Err(Error::new(
                Code::SyncBroken,
                format!("the names on {} are exchanged, but the sync triggers are not as they should be", r.table),
            ));
        }
        let Err(refused) = self.in_one_go(session, r, render::swap(self.database(), r)).await else { return Ok(()) };
        if refused.trouble() == Trouble::ConnectionLost {
            return Err(refused);
        }
        let mut back = Vec::new();
        if look::names_are(session, r, swapped).await? {
            let then = render::exchanged(r);
            let rename = format!("RENAME COLUMN {0} TO {1}, RENAME COLUMN {1} TO {0}", sql::ident(&then.old.name), sql::ident(&then.new.name));
            back.push(format!("ALTER TABLE {} {rename}, ALGORITHM=INSTANT", sql::qualified(&r.table)));
        }
        let watcher = Watcher::Sync { watch: false };
        let names = look::triggers(session, r).await?.into_iter().map(|t| t.name).filter(|name| watcher.all_names(r).contains(name));
        back.extend(names.map(|name| sync::drop_trigger(r, &name)));
        back.extend(watcher.create(r, self.database()));
        match self.in_one_go(session, r, back).await {
            Ok(()) => Err(refused),
            Err(e) => Err(Error::new(Code::SyncBroken, format!("{refused}; and when it was taken back: {e}"))),
        }
    }

    /// Each part is looked for, since one who was killed may have done the first of them.
    async fn drop_old(&self, session: &mut Session, r: &Resolved) -> Result<()> {
        for statement in render::render(self.database(), r, &Ddl::DropOldColumn) {
            match session.batch(&statement, &statement).await {
                Err(e) if e.trouble() == Trouble::Undefined => {}
                done => done?,
            }
        }
        Ok(())
    }
}

async fn validate(session: &mut Session, r: &Resolved, spec: &crate::resolve::ConstraintSpec) -> Result<()> {
    let (Some(query), Rule::ForeignKey(definition)) = (render::orphans(r, spec), &spec.rule) else { return Ok(()) };
    let row = session.one(&query, (), "looking for rows that a foreign key leads nowhere").await?;
    match get::<u64>(&row, 0)? {
        0 => Ok(()),
        n => Err(Error::Database {
            code: Code::Database,
            trouble: Trouble::BadData,
            context: format!("validating {}", spec.name),
            message: format!("{n} rows lead nowhere by {definition}"),
            sqlstate: None,
        }),
    }
}
