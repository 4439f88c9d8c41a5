//! Which schema actions belong to which stage, in order. `sete plan` shows exactly these.

use super::Stage;
use crate::engine::{Ddl, Side};
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
            Stage::ReadSwitch if plan.read_switch.mode == SwitchMode::Swap => vec![Ddl::SwapNames { swapped: true }],
            Stage::ReadSwitch => Vec::new(),
            Stage::StopWrites => stop_writes(resolved, app),
            Stage::Drop => plan.drop.hide.map(|_| Ddl::HideOldColumn).into_iter().chain([Ddl::DropOldColumn]).collect(),
        }
    }
}

fn stop_writes(resolved: &Resolved, app: bool) -> Vec<Ddl> {
    let (watch, remove) =
        if app { (Ddl::InstallObserver { watch: true }, Ddl::DropObserver) } else { (Ddl::InstallSync { watch: true }, Ddl::DropSync) };
    let relax = resolved.origin_not_null.then_some(Ddl::DropNotNull(Side::Old));
    let default = (resolved.default.is_some() || resolved.sequence.is_some()).then_some(Ddl::MoveDefault);
    // The default before the sync goes, so that no insert is left without one.
    relax.into_iter().chain([watch]).chain(default).chain([remove]).collect()
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
        assert_eq!(actions, [Ddl::DropNotNull(Side::Old), Ddl::InstallSync { watch: true }, Ddl::MoveDefault, Ddl::DropSync]);
    }

    #[test]
    fn only_a_swap_touches_the_catalog_at_the_read_switch() {
        let (mut plan, resolved) = (fixture::plan(), fixture::resolved());
        assert!(Stage::ReadSwitch.actions(&plan, &resolved).is_empty());
        plan.read_switch.mode = SwitchMode::Swap;
        assert_eq!(Stage::ReadSwitch.actions(&plan, &resolved), [Ddl::SwapNames { swapped: true }]);
    }
}
