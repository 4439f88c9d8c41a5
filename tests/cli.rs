//! The binary as a user meets it: exit status, stdout, stderr.

#![expect(clippy::unwrap_used, reason = "a test that can't run its binary has failed")]

use std::process::Command;

/// Runs `sete` without a database and shows what came of it.
fn sete(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sete"));
    // clap wraps at the terminal's width.
    command.args(args).env_remove("DATABASE_URL").env("COLUMNS", "100").env("NO_COLOR", "1");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    format!(
        "$ sete {}\nexit {:?}\n--- stdout\n{}--- stderr\n{}",
        args.join(" "),
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr)
    )
}

const COMMANDS: [&str; 11] = ["plan", "step", "status", "gate", "back", "validate", "pause", "resume", "rejects", "forget", "completions"];

#[test]
fn help() {
    insta::assert_snapshot!("help", sete(&["--help"]));
    let pages: Vec<String> = COMMANDS.iter().map(|c| sete(&[c, "--help"])).collect();
    insta::assert_snapshot!("help_of_commands", pages.join("\n"));
}

#[test]
fn usage_errors() {
    let cases: [&[&str]; 7] = [
        &["stpe", "plan.toml"],
        &["gate", "plan.toml"],
        &["gate", "plan.toml", "--for", "read-old"],
        &["step", "plan.toml", "--through", "backfil"],
        &["gate", "plan.toml", "--for", "drop", "--wait", "5"],
        &["plan", "plan.toml", "--sql", "--offline"],
        &["status", "--format", "yaml"],
    ];
    insta::assert_snapshot!("usage_errors", cases.map(sete).join("\n"));
}

#[test]
fn a_missing_file_or_address() {
    let cases: [&[&str]; 4] =
        [&["step", "missing.toml"], &["gate", "missing.toml", "--for", "drop", "--format", "json"], &["status"], &["status", "--watch"]];
    insta::assert_snapshot!("missing", cases.map(sete).join("\n"));
}

#[test]
fn a_plan_without_a_database() {
    insta::assert_snapshot!("offline", sete(&["plan", "plans/orders_status.toml", "--offline"]));
    let json = sete(&["plan", "plans/orders_status_app.toml", "--offline", "--format", "json"]);
    assert!(json.contains("exit 0") && json.contains("{\"plan\":"), "{json}");
}

#[test]
fn a_plan_with_mistakes() {
    let cases: [&[&str]; 2] =
        [&["plan", "tests/cases/broken.toml", "--offline"], &["plan", "tests/cases/broken.toml", "--offline", "--format", "json"]];
    let shown = cases.map(sete).join("\n");
    assert!(!shown.contains("s3cret"), "{shown}");
    insta::assert_snapshot!("mistakes", shown);
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let shown = sete(&["completions", shell]);
        assert!(shown.contains("exit 0") && shown.contains("rejects") && shown.ends_with("--- stderr\n"), "{shell}");
    }
}

#[test]
fn the_version() {
    assert!(sete(&["--version"]).contains(concat!("sete ", env!("CARGO_PKG_VERSION"))));
}
