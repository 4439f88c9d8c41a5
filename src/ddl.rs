//! The one door for schema statements. Here only what an action is called; the door is built elsewhere.

use crate::engine::Ddl;
use crate::resolve::Resolved;

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
        Ddl::MoveDefaultBack => format!("move default back to {}", r.old.name),
    }
}
