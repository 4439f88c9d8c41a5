//! How a step ended, and what comes next.

use jiff::Timestamp;
use serde::Serialize;

use crate::error::Result;
use crate::report::figures::not_before;
use crate::run::Job;
use crate::stage::Stage;
use crate::state::{StageState, Status};
use crate::status;

/// How a step ended: the last line of `--format json`.
#[derive(Debug, PartialEq, Serialize)]
pub struct Outcome {
    at: Timestamp,
    event: &'static str,
    plan: String,
    stage: Stage,
    state: status::State,
    waiting_for: Option<String>,
    not_before: Option<Timestamp>,
    /// The stage that the next step runs; none at the end.
    next: Option<Stage>,
    next_waits_for: Option<String>,
}

pub async fn of(job: &Job, last: &StageState) -> Result<Outcome> {
    let at = job.engine.now().await?;
    let state = job.engine.load(&job.plan.id).await?;
    let report = status::report(&job.plan, state.as_ref(), &[], at);
    let done = last.status == Status::Done;
    let ended = report.state == status::State::Done;
    Ok(Outcome {
        at,
        event: "step_ended",
        plan: job.plan.id.clone(),
        stage: last.stage,
        state: if done { status::State::Done } else { status::State::Waiting },
        waiting_for: last.waiting_for.clone().filter(|_| !done),
        not_before: last.until.filter(|_| !done),
        next: Some(report.stage).filter(|_| !ended),
        next_waits_for: report.waiting_for.filter(|what| done && what != status::NEXT_STEP),
    })
}

impl Outcome {
    pub fn text(&self) -> String {
        let Outcome { plan, stage, next, .. } = self;
        match (self.state, next) {
            (status::State::Done, None) => format!("{plan}: {stage} is done, and with it the change"),
            (status::State::Done, Some(next)) => {
                let needs = self.next_waits_for.as_ref().map_or(String::new(), |w| format!(", which waits for {w}"));
                format!("{plan}: {stage} is done; next is {next}{needs}")
            }
            _ => {
                let what = self.waiting_for.as_deref().unwrap_or("its condition");
                format!("{plan}: {stage} waits for {}", not_before(what, self.not_before))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::now;

    fn ended(state: status::State, next: Option<Stage>) -> Outcome {
        Outcome {
            at: now(),
            event: "step_ended",
            plan: "orders-status".into(),
            stage: Stage::Validate,
            state,
            waiting_for: Some("a second zero pass".into()),
            not_before: Some(now()),
            next,
            next_waits_for: Some("the deploy that reads `status_v2`, then `sete step`".into()),
        }
    }

    #[test]
    fn the_summary_says_what_is_next() {
        let text = |state, next| ended(state, next).text();
        assert_eq!(
            text(status::State::Done, Some(Stage::ReadSwitch)),
            "orders-status: validate is done; next is read_switch, which waits for the deploy that reads `status_v2`, then `sete step`"
        );
        assert_eq!(
            text(status::State::Waiting, Some(Stage::Validate)),
            "orders-status: validate waits for a second zero pass, not before 2026-01-02T06:00:00Z"
        );
        assert_eq!(text(status::State::Done, None), "orders-status: validate is done, and with it the change");
    }
}
