//! The preview for a pull request.

use super::{cost, data, estimate, header};
use crate::preview::{Preview, StagePreview, weight};

pub fn page(p: &Preview) -> String {
    let mut out = format!("## sete: {}\n\n", p.plan);
    for (word, says) in header(p) {
        out += &format!("- **{word}**: {says}\n");
    }
    if !p.findings.is_empty() {
        out += "\n### Findings\n\n| | code | about | says | what to do |\n|---|---|---|---|---|\n";
        for f in &p.findings {
            let cells =
                [weight(f.finding.severity), f.finding.code.to_string(), f.finding.subject.clone(), f.finding.message.clone(), f.advice.to_string()];
            out += &format!("| {} |\n", cells.map(|c| cell(&c)).join(" | "));
        }
    }
    if let Some(found) = &p.data {
        out += "\n### Data\n\n";
        out.extend(data(found).iter().map(|line| format!("- {}\n", cell(line))));
    }
    out.extend(p.stages.iter().map(stage));
    out
}

fn stage(s: &StagePreview) -> String {
    let mut out = format!("\n### {}. {}\n\n{}.\n", s.stage.number(), s.stage, capital(&s.does));
    for action in &s.actions {
        let title = capital(&action.action);
        out += &format!("\n{title} ({}):\n\n{}", cost(action), fenced(&action.sql.join("\n")));
    }
    if let Some(b) = &s.backfill {
        out += &format!("\nEach batch ({}):\n\n{}", estimate(b), fenced(&b.sql));
    }
    out + &format!("\nDone when {}. Back: {}.\n", s.done_when, s.undone_by)
}

/// A code block, with a fence that the text doesn't hold.
fn fenced(sql: &str) -> String {
    let fence = (3..).map(|n| "`".repeat(n)).find(|fence| !sql.contains(fence.as_str())).unwrap_or_default();
    format!("{fence}sql\n{sql}\n{fence}\n")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
