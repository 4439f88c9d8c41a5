//! The one door for schema statements. Everything that takes a lock on the user's table goes through [`act`]:
//!
//! 1. look whether its effect is there already;
//! 2. look who holds a lock in the way, and don't queue behind a transaction that is old already;
//! 3. try with a short timeout that grows up to `ddl.lock_timeout`;
//! 4. between tries back off with jitter, so that everyone who waited behind us can run; name the blocker;
//! 5. give up after `ddl.patience` with nothing changed.
//!
//! A connection that breaks in the middle leaves the question whether the server has done it: we look again, and if that
//! can't be done the outcome is unknown. It is never repeated blindly.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::crash;
use crate::engine::Ddl;
use crate::error::{Blocker, Code, Error, Result, Trouble};
use crate::report::Event;
use crate::resolve::Resolved;
use crate::run::Cx;

/// What an action is called in events, crash points and messages.
pub fn action(r: &Resolved, ddl: &Ddl) -> String {
    match ddl {
        Ddl::AddColumn => format!("add column {}", r.new.name),
        Ddl::DropNewColumn => format!("drop column {}", r.new.name),
        Ddl::DropOldColumn => format!("drop column {}", r.old.name),
        Ddl::InstallSync { watch: false } => "install sync trigger".into(),
        Ddl::InstallSync { watch: true } => "let the sync watch the old column".into(),
        Ddl::DropSync => "remove sync trigger".into(),
        Ddl::InstallObserver { watch: false } => "install observer".into(),
        Ddl::InstallObserver { watch: true } => "let the observer watch the old column".into(),
        Ddl::DropObserver => "remove observer".into(),
        Ddl::BuildIndex(index) => format!("build index {}", index.name),
        Ddl::DropIndex(index) => format!("drop index {}", index.name),
        Ddl::AddConstraint(spec) => format!("add constraint {}", spec.name),
        Ddl::ValidateConstraint(spec) => format!("validate constraint {}", spec.name),
        Ddl::DropConstraint(spec) => format!("drop constraint {}", spec.name),
        Ddl::SetNotNull(side) => format!("set {} not null", r.column(*side).name),
        Ddl::DropNotNull(side) => format!("let {} be null", r.column(*side).name),
        Ddl::Statement(text) => format!("run {}", text.split_whitespace().take(8).collect::<Vec<_>>().join(" ")),
        Ddl::Analyze => "analyze".into(),
        Ddl::SwapNames { swapped: true } => "swap names".into(),
        Ddl::SwapNames { swapped: false } => "swap names back".into(),
        Ddl::MoveDefault => format!("move default to {}", r.new.name),
        Ddl::HideOldColumn => format!("hide column {}", r.old.name),
        Ddl::ShowOldColumn => format!("show column {}", r.old.name),
        Ddl::MoveDefaultBack => format!("move default back to {}", r.old.name),
    }
}

/// Brings an action's effect about, or leaves everything as it was.
pub async fn act(cx: &Cx<'_>, ddl: &Ddl) -> Result<()> {
    let (engine, r) = (cx.engine(), &cx.resolved);
    let name = action(r, ddl);
    crash::point(&format!("before {name}"));
    if engine.present(r, ddl).await? {
        cx.report(Event::DdlPresent { action: name }).await?;
        return Ok(());
    }
    let door = Door { cx, ddl, name, unhurried: !engine.cost(r, ddl).queues, began: Instant::now() };
    door.tries().await?;
    crash::point(&format!("after {}", door.name));
    Ok(())
}

struct Door<'a> {
    cx: &'a Cx<'a>,
    ddl: &'a Ddl,
    name: String,
    /// Blocks nobody while it waits, so that need not be short.
    unhurried: bool,
    began: Instant,
}

impl Door<'_> {
    async fn tries(&self) -> Result<()> {
        let limits = &self.cx.job.plan.ddl;
        let backoff = ExponentialBuilder::default().with_min_delay(Duration::from_millis(200)).with_max_delay(Duration::from_secs(5)).with_jitter();
        let mut delays = backoff.without_max_times().build();
        let mut timeout = limits.first_try;
        let mut tries = 0;
        loop {
            self.cx.check()?;
            let left = limits.patience.saturating_sub(self.began.elapsed());
            let mut blocker = if self.unhurried { None } else { self.old_blocker().await? };
            let mut tried = None;
            if blocker.is_none() {
                tries += 1;
                let wait = if self.unhurried { left.max(limits.lock_timeout) } else { timeout };
                if self.try_once(wait, tries).await? {
                    return Ok(());
                }
                tried = Some(wait);
                timeout = (timeout * 2).min(limits.lock_timeout);
                blocker = self.cx.engine().blockers(&self.cx.resolved, self.ddl).await?.into_iter().next();
            }
            let delay = delays.next().unwrap_or(Duration::from_secs(5));
            let relation = self.cx.resolved.table.to_string();
            if self.began.elapsed() + delay >= limits.patience {
                return Err(Error::LockNotGot { relation, patience: limits.patience, blocker: blocker.map(Box::new) });
            }
            let event = Event::DdlBlocked { action: self.name.clone(), relation, tried_ms: tried.map(ms), retry_in_ms: ms(delay), blocker };
            self.cx.report(event).await?;
            self.cx.sleep(delay).await?;
        }
    }

    /// A transaction that is older than one queues behind.
    async fn old_blocker(&self) -> Result<Option<Blocker>> {
        let oldest = self.cx.engine().blockers(&self.cx.resolved, self.ddl).await?.into_iter().next();
        Ok(oldest.filter(|b| b.certain && b.age_s > self.cx.job.plan.ddl.max_blocker_age.as_secs_f64()))
    }

    /// True when it is done, false when the lock was not to be had.
    async fn try_once(&self, timeout: Duration, tries: u32) -> Result<bool> {
        let (engine, r) = (self.cx.engine(), &self.cx.resolved);
        match engine.apply(r, self.ddl, timeout, &self.cx.fence).await {
            Ok(applied) => {
                self.cx.report(Event::applied(&self.name, engine.render(r, self.ddl), applied, tries)).await?;
                Ok(true)
            }
            Err(Error::LockNotGot { .. }) => Ok(false),
            Err(e) if e.trouble() == Trouble::ConnectionLost => self.look_again(&e).await,
            // One who was killed had done it already, between our look and our try.
            Err(e) if e.trouble() == Trouble::Duplicate && (matches!(self.ddl, Ddl::Statement(_)) || engine.present(r, self.ddl).await?) => {
                self.cx.report(Event::DdlPresent { action: self.name.clone() }).await?;
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    async fn look_again(&self, lost: &Error) -> Result<bool> {
        let began = Instant::now();
        loop {
            self.cx.sleep(Duration::from_millis(300)).await?;
            match self.cx.engine().present(&self.cx.resolved, self.ddl).await {
                Ok(true) => {
                    self.cx.report(Event::DdlPresent { action: self.name.clone() }).await?;
                    return Ok(true);
                }
                Ok(false) => {
                    self.cx.report(Event::Note { text: format!("{}: {lost}; the server has not done it, so it is tried again", self.name) }).await?;
                    return Ok(false);
                }
                Err(e) if e.trouble() == Trouble::ConnectionLost && began.elapsed() < self.cx.server_away() => {}
                Err(e) => return Err(Error::new(Code::OutcomeUnknown, format!("{}: {lost}; and when we looked again: {e}", self.name))),
            }
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
