//! The `sete` binary, run as a user runs it: on a plan file, with an address, as a process of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub const STAGES: [&str; 7] = ["expand", "dual_write", "backfill", "validate", "read_switch", "stop_writes", "drop"];

/// The waits of a plan, as short as they can be.
pub const AT_ONCE: &str = r#"
[ddl]
patience = "5s"
[dual_write]
quiet_for = "1ms"
min_writes = 0
[validate]
apart = "0ms"
[read_switch]
soak = "0ms"
[stop_writes]
quiet_for = "1ms"
[drop]
soak = "0ms"
"#;

/// A plan file in a folder of its own, and the database it is for.
pub struct Sete {
    pub folder: PathBuf,
    pub plan: PathBuf,
    pub url: String,
    pub env: Vec<(String, String)>,
}

/// What a command left behind.
#[derive(Debug)]
pub struct Out {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Out {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }

    /// Everything that was said.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// The text of a plan that changes one column's type, with waits of `AT_ONCE` unless `more` says otherwise.
pub fn retype(id: &str, table: &str, from: &str, to: &str, new_type: &str, more: &str) -> String {
    format!(
        "id = \"{id}\"\nengine = \"postgres\"\n[change]\nkind = \"type\"\ntable = {table:?}\nfrom = {from:?}\nto = {to:?}\ntype = {new_type:?}\n{}",
        settings(more)
    )
}

/// `AT_ONCE`, with the keys of `more` in place of its own.
pub fn settings(more: &str) -> String {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for text in [AT_ONCE, more] {
        sections.push((String::new(), Vec::new()));
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with('[') && !line.contains('=') {
                sections.push((line.to_owned(), Vec::new()));
            } else if let Some(section) = sections.last_mut() {
                section.1.push(line.to_owned());
            }
        }
    }
    let mut merged: Vec<(String, Vec<String>)> = Vec::new();
    for (name, lines) in sections {
        let at = merged.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            merged.push((name.clone(), Vec::new()));
            merged.len() - 1
        });
        for line in lines {
            let key = |line: &str| line.split('=').next().map(|key| key.trim().to_owned());
            merged[at].1.retain(|old| key(old) != key(&line));
            merged[at].1.push(line);
        }
    }
    // Keys without a section belong to [change], which comes before.
    merged.into_iter().map(|(name, lines)| format!("{name}\n{}\n", lines.join("\n"))).collect()
}

impl Sete {
    pub fn new(url: &str, plan: &str) -> Sete {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("sete-plan-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&folder).expect("a folder for the plan");
        let file = folder.join("plan.toml");
        std::fs::write(&file, plan).expect("the plan is written");
        Sete { folder, plan: file, url: url.to_owned(), env: Vec::new() }
    }

    pub fn env(mut self, name: &str, value: &str) -> Sete {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another text for the same plan file.
    pub fn rewrite(&self, plan: &str) {
        std::fs::write(&self.plan, plan).expect("the plan is written");
    }

    /// `sete COMMAND PLAN ARGS…`, not yet run.
    pub fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sete"));
        process.env_remove("DATABASE_URL").envs(self.env.iter().cloned()).arg(command).arg(&self.plan).args(args).args(["--url", &self.url]);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        process
    }

    pub fn start(&self, command: &str, args: &[&str]) -> Child {
        self.command(command, args).spawn().expect("sete runs")
    }

    pub fn run(&self, command: &str, args: &[&str]) -> Out {
        finish(self.start(command, args))
    }

    /// `step` through one stage, or `back`, with something in its environment.
    pub fn play(&self, back: bool, stage: &str, env: &[(&str, &str)]) -> Out {
        let mut command = match back {
            true => self.command("back", &[]),
            false => self.command("step", &["--through", stage, "--wait", "60s", "--yes"]),
        };
        finish(command.envs(env.iter().copied()).spawn().expect("sete runs"))
    }

    /// Runs a command that must end with status 0.
    pub fn ok(&self, command: &str, args: &[&str]) -> Out {
        let out = self.run(command, args);
        assert_eq!(out.code, 0, "sete {command} {args:?}\n{}", out.text());
        out
    }

    /// Runs a command that must end with this status and code.
    pub fn fails(&self, command: &str, args: &[&str], status: i32, code: &str) -> Out {
        let out = self.run(command, args);
        assert!(
            out.code == status && out.text().contains(code),
            "sete {command} {args:?}: {status} {code} expected, got {}\n{}",
            out.code,
            out.text()
        );
        out
    }

    /// Steps until `stage` is done, waiting where it must.
    pub fn through(&self, stage: &str) -> Out {
        self.ok("step", &["--through", stage, "--wait", "60s", "--yes"])
    }

    /// The one plan's status.
    pub fn status(&self) -> serde_json::Value {
        self.ok("status", &["--format", "json"]).json()[0].clone()
    }

    /// The stage that is current, and its state.
    pub fn at(&self) -> (String, String) {
        let status = self.status();
        (status["stage"].as_str().unwrap_or_default().to_owned(), status["state"].as_str().unwrap_or_default().to_owned())
    }
}

/// Waits for the end of a command.
pub fn finish(child: Child) -> Out {
    let out = child.wait_with_output().expect("sete ends");
    Out {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

impl Drop for Sete {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
