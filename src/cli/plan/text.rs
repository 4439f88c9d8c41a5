//! The preview for a terminal.

use super::{cost, data, estimate, header};
use crate::error::count;
use crate::preview::{FindingView, Preview, StagePreview, weight};
use crate::stage::Stage;

pub fn page(p: &Preview) -> String {
    let mut out = format!("{}\n\n", p.plan);
    for (word, says) in header(p) {
        out += &format!("  {word:<8}{says}\n");
    }
    out.extend(p.stages.iter().map(stage));
    out += &findings(p);
    if let Some(found) = &p.data {
        out += "\nData:\n";
        out.extend(data(found).iter().map(|line| format!("  {line}\n")));
    }
    out
}

fn stage(s: &StagePreview) -> String {
    let mut out = format!("\n{}/{} {}: {}\n", s.stage.number(), Stage::ALL.len(), s.stage, s.does);
    for action in &s.actions {
        out += &format!("    -- {} ({})\n", action.action, cost(action));
        out.extend(action.sql.iter().map(|sql| indent(sql)));
    }
    if let Some(b) = &s.backfill {
        out += &format!("    -- each batch; {}\n{}", estimate(b), indent(&b.sql));
    }
    out + &format!("    done when {}\n    back: {}\n", s.done_when, s.undone_by)
}

fn indent(sql: &str) -> String {
    sql.lines().map(|line| format!("    {line}\n")).collect()
}

fn findings(p: &Preview) -> String {
    if p.live.is_none() {
        return "\nNot checked against a database (--offline).\n".to_string();
    }
    if p.findings.is_empty() {
        return "\nNo findings.\n".to_string();
    }
    let mut out = format!("\n{}:\n", count(p.findings.len(), "finding"));
    out.extend(p.findings.iter().map(finding));
    if p.blocked {
        out += "\nBlocked: nothing can start before this is dealt with.\n";
    }
    out
}

fn finding(f: &FindingView) -> String {
    let FindingView { finding, advice } = f;
    format!("  {}[{}] {}: {}\n    {advice}\n", weight(finding.severity), finding.code, finding.subject, finding.message)
}
