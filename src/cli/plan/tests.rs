use super::*;
use crate::error::Code;
use crate::finding::{Finding, Severity};
use crate::fixture;
use crate::stage::Stage;

fn preview(findings: &[Finding]) -> Preview {
    let (plan, resolved) = (fixture::plan(), fixture::resolved());
    Preview::live(&plan, &fixture::catalog(), Some(&resolved), findings, &fixture::Words)
}

fn findings() -> Vec<Finding> {
    let finding = |code, severity, subject: &str, message: &str| Finding { code, severity, subject: subject.into(), message: message.into() };
    vec![
        finding(Code::UserTrigger, Severity::Blocker, "trigger touch_updated_at", "it would fire for every row | twice"),
        finding(Code::Dependent, Severity::Later(Stage::Drop), "view public.v_orders", "it reads `status`"),
        finding(Code::CachedPlans, Severity::Warning, "table public.orders", "prepared statements may fail once"),
    ]
}

#[test]
fn text_shows_the_seven_stages_and_the_findings() {
    insta::assert_snapshot!(text::page(&preview(&findings())));
}

#[test]
fn markdown_shows_the_same() {
    insta::assert_snapshot!(markdown::page(&preview(&findings())));
}

#[test]
fn the_script_holds_ddl_with_its_timeouts_and_the_backfill_as_a_comment() {
    insta::assert_snapshot!(script::page(&preview(&[]), &fixture::plan().ddl));
}

#[test]
fn without_a_table_there_are_the_findings_and_the_stages_in_words() {
    let catalog = crate::engine::Catalog { table: None, ..fixture::catalog() };
    let missing =
        Finding { code: Code::TableMissing, severity: Severity::Blocker, subject: "table public.orders".into(), message: "there is none".into() };
    let preview = Preview::live(&fixture::plan(), &catalog, None, &[missing], &fixture::Words);
    let text = text::page(&preview);
    assert!(preview.blocked && text.contains("blocker[E101]") && text.contains("7/7 drop") && !text.contains("walk"), "{text}");
}

#[test]
fn offline_speaks_in_words() {
    insta::assert_snapshot!(text::page(&Preview::offline(&fixture::plan())));
}

#[test]
fn json_has_what_is_known() {
    let json = serde_json::to_value(preview(&findings())).unwrap();
    assert_eq!((&json["rows"], &json["walk"], &json["blocked"]), (&400_000.into(), &"physical".into(), &true.into()));
    assert_eq!((&json["findings"][1]["code"], &json["findings"][1]["severity"]["later"]), (&"E124".into(), &"drop".into()));
    assert_eq!(json["stages"].as_array().unwrap().len(), 7);
    let offline = serde_json::to_value(Preview::offline(&fixture::plan())).unwrap();
    assert!(offline.get("rows").is_none());
}

#[test]
fn the_estimate_respects_the_plan_s_own_limit() {
    let mut plan = fixture::plan();
    plan.backfill.max_rows_per_s = Some(1000);
    plan.backfill.pause = std::time::Duration::from_millis(500);
    let preview = Preview::live(&plan, &fixture::catalog(), Some(&fixture::resolved()), &[], &fixture::Words);
    let backfill = preview.stages[2].backfill.as_ref().unwrap();
    assert_eq!((backfill.batches, backfill.seconds), (400, 600));
}
