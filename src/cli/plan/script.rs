//! The preview as a script that can be read in review, or run by hand.

use super::{cost, estimate};
use crate::plan::{Ddl, EngineKind};
use crate::preview::{ActionPreview, Preview, StagePreview};
use crate::stage::Stage;

pub fn page(p: &Preview, limits: &Ddl) -> String {
    let mut out = comment(&format!(
        "{}: {}, on {}\n\
         What `sete step` would send. sete looks for blockers first, tries with a short lock timeout, backs off, and checks\n\
         what each stage waits for; a script does none of that. Run the stages on different days, not in one go.",
        p.plan, p.change, p.table
    ));
    for f in &p.findings {
        out += &comment(&format!("{} {}: {}", f.finding.code, f.finding.subject, f.finding.message));
    }
    out.extend(p.stages.iter().map(|s| stage(s, p.engine, limits)));
    out
}

fn stage(s: &StagePreview, engine: EngineKind, limits: &Ddl) -> String {
    let mut out = "\n".to_string() + &comment(&format!("{}/{} {}: {}", s.stage.number(), Stage::ALL.len(), s.stage, s.does));
    for action in &s.actions {
        out += &format!("\n{}{}", comment(&format!("{} ({})", action.action, cost(action))), statements(action, engine, limits));
    }
    if let Some(b) = &s.backfill {
        out += &comment(&format!("each batch, again and again ({}):\n{}", estimate(b), b.sql));
    }
    out + &comment(&format!("done when {}", s.done_when))
}

/// With a lock timeout, as all DDL, which ends with the action.
fn statements(action: &ActionPreview, engine: EngineKind, limits: &Ddl) -> String {
    let sql: String = action.sql.iter().map(|sql| format!("{};\n", sql.trim_end().trim_end_matches(';'))).collect();
    let limit = if action.online { limits.patience.max(limits.lock_timeout) } else { limits.lock_timeout };
    let ms = limit.as_millis();
    match engine {
        // Built beside everybody else, and therefore outside of a transaction.
        EngineKind::Postgres if action.online => format!("SET lock_timeout = '{ms}ms';\n{sql}RESET lock_timeout;\n"),
        EngineKind::Postgres => format!("BEGIN;\nSET LOCAL lock_timeout = '{ms}ms';\n{sql}COMMIT;\n"),
        EngineKind::Mysql => format!("SET SESSION lock_wait_timeout = 1;\n{}", action.sql.iter().map(|sql| for_mysql(sql)).collect::<String>()),
    }
}

/// The mysql client takes a body with semicolons under another delimiter only.
fn for_mysql(sql: &str) -> String {
    if sql.contains(";\n") { format!("DELIMITER $$\n{sql}$$\nDELIMITER ;\n") } else { format!("{sql};\n") }
}

fn comment(text: &str) -> String {
    text.lines().map(|line| format!("-- {line}\n")).collect()
}
