//! Which schema actions belong to which stage, and what each is called. `sete plan` shows exactly these.

use super::Stage;
use crate::engine::Ddl;
use crate::plan::{DualWriteMode, Plan, SwitchMode};
use crate::resolve::Resolved;

impl Stage {
    /// The stage's schema actions, in order. Those whose effect is there already are passed over when it runs.
    pub fn actions(self, plan: &Plan, resolved: &Resolved) -> Vec<Ddl> {
        let app = plan.dual_write.mode == DualWriteMode::App;
        match self {
            Stage::Expand => vec![Ddl::AddColumn],
            Stage::DualWrite if app => vec![Ddl::InstallObserver { watch: false }],
            Stage::DualWrite => vec![Ddl::InstallSync { watch: false }],
            Stage::Backfill => Vec::new(),
            Stage::Validate => resolved.structure.clone(),
            Stage::ReadSwitch if plan.read_switch.mode == SwitchMode::Swap => vec![Ddl::SwapNames],
            Stage::ReadSwitch => Vec::new(),
            Stage::StopWrites => stop_writes(resolved, app),
            Stage::Drop => vec![Ddl::DropOldColumn],
        }
    }
}

fn stop_writes(resolved: &Resolved, app: bool) -> Vec<Ddl> {
    let mut actions = Vec::new();
    if resolved.origin_not_null {
        actions.push(Ddl::RelaxOld);
    }
    if app {
        actions.extend([Ddl::InstallObserver { watch: true }, Ddl::DropObserver]);
    } else {
        actions.extend([Ddl::InstallSync { watch: true }, Ddl::DropSync]);
    }
    if resolved.default.is_some() || resolved.sequence.is_some() {
        actions.push(Ddl::MoveDefault);
    }
    actions
}

impl Ddl {
    /// What the action does, for previews and reports.
    pub fn words(&self) -> String {
        match self {
            Ddl::AddColumn => "add the new column".into(),
            Ddl::DropNewColumn => "drop the new column".into(),
            Ddl::InstallSync { watch: false } => "install the sync trigger".into(),
            Ddl::InstallSync { watch: true } => "have the sync trigger record direct writes to the old column".into(),
            Ddl::DropSync => "remove the sync trigger".into(),
            Ddl::InstallObserver { watch: false } => "install the observer of one-sided writes".into(),
            Ddl::InstallObserver { watch: true } => "have the observer record direct writes to the old column".into(),
            Ddl::DropObserver => "remove the observer".into(),
            Ddl::BuildIndex(index) => format!("build index {}", index.name),
            Ddl::DropIndex(index) => format!("drop index {}", index.name),
            Ddl::AddConstraint(constraint) => format!("add constraint {}", constraint.name),
            Ddl::ValidateConstraint(constraint) => format!("validate constraint {}", constraint.name),
            Ddl::DropConstraint(constraint) => format!("drop constraint {}", constraint.name),
            Ddl::SetNotNull => "set the new column NOT NULL".into(),
            Ddl::DropNotNull => "let the new column be NULL".into(),
            Ddl::Statement(_) => "run your own statement".into(),
            Ddl::Analyze => "analyze the new column".into(),
            Ddl::SwapNames => "swap the two names".into(),
            Ddl::RelaxOld => "let the old column be NULL".into(),
            Ddl::TightenOld => "set the old column NOT NULL".into(),
            Ddl::MoveDefault => "move default and sequence to the new column".into(),
            Ddl::MoveDefaultBack => "move default and sequence back to the old column".into(),
            Ddl::DropOldColumn => "drop the old column".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn the_mode_decides_between_sync_and_observer() {
        let (mut plan, resolved) = (fixture::plan(), fixture::resolved());
        assert_eq!(Stage::DualWrite.actions(&plan, &resolved), [Ddl::InstallSync { watch: false }]);
        assert!(Stage::StopWrites.actions(&plan, &resolved).contains(&Ddl::DropSync));
        plan.dual_write.mode = DualWriteMode::App;
        assert_eq!(Stage::DualWrite.actions(&plan, &resolved), [Ddl::InstallObserver { watch: false }]);
        assert!(Stage::StopWrites.actions(&plan, &resolved).contains(&Ddl::DropObserver));
    }

    #[test]
    fn stop_writes_relaxes_only_what_was_strict() {
        let (plan, mut resolved) = (fixture::plan(), fixture::resolved());
        resolved.origin_not_null = false;
        resolved.default = None;
        assert_eq!(Stage::StopWrites.actions(&plan, &resolved), [Ddl::InstallSync { watch: true }, Ddl::DropSync]);
        resolved.origin_not_null = true;
        resolved.default = Some("'new'".into());
        let actions = Stage::StopWrites.actions(&plan, &resolved);
        assert_eq!((actions.first(), actions.last()), (Some(&Ddl::RelaxOld), Some(&Ddl::MoveDefault)));
    }

    #[test]
    fn only_a_swap_touches_the_catalog_at_the_read_switch() {
        let (mut plan, resolved) = (fixture::plan(), fixture::resolved());
        assert!(Stage::ReadSwitch.actions(&plan, &resolved).is_empty());
        plan.read_switch.mode = SwitchMode::Swap;
        assert_eq!(Stage::ReadSwitch.actions(&plan, &resolved), [Ddl::SwapNames]);
    }
}
