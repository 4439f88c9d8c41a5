//! The documentation against the program: codes, keys, dependencies, commands, plans, links.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sete::error::Code;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The pages at the root and all in docs/, by their path.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from).into();
    let docs = std::fs::read_dir(root().join("docs")).expect("docs/ is there").map(|entry| entry.expect("an entry of docs/").file_name());
    pages.extend(docs.map(|name| Path::new("docs").join(name)).filter(|path| path.extension().is_some_and(|e| e == "md")));
    pages.sort();
    assert!(pages.len() >= 9, "{pages:?}");
    pages
}

/// A page's code blocks, with what stands behind their opening fence.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let body = lines.by_ref().take_while(|line| line.trim() != "```");
            blocks.push((info.trim(), body.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()));
        }
    }
    blocks
}

/// A page without its code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Cells of the rows of all tables.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    text.lines().filter(|line| line.starts_with("| ")).map(cells).collect()
}

// --- errors ----------------------------------------------------------------------------------------------------------

const GROUPS: [(&str, &str, &str); 10] = [
    ("E0", "Usage and the plan file", "Nothing was sent to the server that changes anything."),
    (
        "E1",
        "Findings",
        "Said by `sete plan`, before anything is written; a stage looks again before it begins. A finding can be a blocker, can stand in the way \
         of one later stage only, or be a remark: the exit status is for those that block.",
    ),
    ("E2", "State", "The plan's own state doesn't allow it. Nothing was changed."),
    ("E3", "Not yet", "Nothing is wrong; run it again later."),
    ("E4", "Gave up", "Safe to run again."),
    ("E5", "Old and new", "A person has to look at the rows that are named."),
    ("E6", "The lease", "One runner for each plan."),
    ("E7", "Outcome unknown", "Never repeated blindly."),
    ("E8", "Failures", "Progress is saved."),
    ("E9", "Interrupted", "Progress is saved."),
];

fn errors_page() -> String {
    let mut page = String::from(
        "# Codes\n\n<!-- Made from src/error.rs: `SETE_BLESS=1 cargo test docs::`. Don't edit. -->\n\nEvery error and finding has a code, which \
         is never given another meaning, and an exit status. An error is printed as `error[CODE]: message` with a hint below; with \
         `--format json` also as an object on stdout. What the exit statuses mean is in [ci.md](ci.md), what to do at night in \
         [operations.md](operations.md).\n",
    );
    let mut left = Code::ALL.len();
    for (prefix, title, what) in GROUPS {
        let codes: Vec<&Code> = Code::ALL.iter().filter(|code| code.as_str().starts_with(prefix)).collect();
        left -= codes.len();
        write!(page, "\n## {title}\n\n{what}\n\n| code | exit | what it means | what to do |\n|---|---|---|---|\n").expect("a page");
        for code in codes {
            let cell = |text: &str| text.replace('|', "\\|");
            writeln!(page, "| {code} | {} | {} | {} |", code.exit(), cell(code.title()), cell(code.advice())).expect("a page");
        }
    }
    assert_eq!(left, 0, "a code belongs to no group of the page");
    page
}

#[test]
fn every_code_is_in_the_page_as_the_program_says_it() {
    let page = errors_page();
    if std::env::var_os("SETE_BLESS").is_some() {
        std::fs::write(root().join("docs/errors.md"), &page).expect("docs/errors.md is written");
    }
    assert!(read("docs/errors.md") == page, "docs/errors.md is not what src/error.rs says: SETE_BLESS=1 cargo test docs::");
}

/// A code that a page speaks of exists.
#[test]
fn no_page_names_a_code_that_is_gone() {
    let known: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    for path in pages() {
        let page = read(&path);
        let words = page.split(|c: char| !c.is_ascii_alphanumeric());
        let is_code = |word: &&str| word.len() == 4 && word.starts_with('E') && word[1..].bytes().all(|b| b.is_ascii_digit());
        for code in words.filter(is_code) {
            assert!(known.contains(code), "{}: {code}", path.display());
        }
    }
}

// --- the plan file ---------------------------------------------------------------------------------------------------

#[test]
fn every_key_of_a_plan_is_in_the_page_and_no_other() {
    let page = read("docs/plan-format.md");
    let keys = sete::plan::keys();
    let is_section = |key: &str| keys.iter().any(|(section, _)| *section == key);
    // By heading: the top of the file, and each [section].
    let mut found = BTreeSet::new();
    let mut told = BTreeSet::new();
    for part in page.split("\n## ").skip(1) {
        let heading = part.lines().next().unwrap_or_default();
        let section = match heading.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some((name, _)) => name.to_owned(),
            None if heading == "The top of the file" => String::new(),
            None => continue,
        };
        if !section.is_empty() {
            told.insert((String::new(), section.clone()));
        }
        for row in rows(part) {
            if let Some(key) = row[0].strip_prefix('`').and_then(|cell| cell.strip_suffix('`')) {
                found.insert((section.clone(), key.to_owned()));
                assert!(row.len() == 4, "{section}.{key}: type, default and meaning");
            }
        }
        // Keys that come later are named in a sentence.
        for (_, key) in keys.iter().filter(|(s, _)| *s == section) {
            if prose(part).contains(&format!("`{key}`")) || prose(part).contains(&format!("`[{key}]`")) {
                told.insert((section.clone(), (*key).to_owned()));
            }
        }
    }
    for (section, key) in &keys {
        let pair = ((*section).to_owned(), (*key).to_owned());
        assert!(found.contains(&pair) || told.contains(&pair), "docs/plan-format.md does not say what `{key}` in [{section}] is");
    }
    for (section, key) in found {
        assert!(
            keys.contains(&(section.as_str(), key.as_str())) && !is_section(&key),
            "docs/plan-format.md lists `{key}` in [{section}], which no plan has"
        );
    }
}

/// A block marked `toml fragment` is a part that goes below the smallest plan.
#[test]
fn plans_in_the_pages_are_plans() {
    const SMALLEST: &str = "id = \"x\"\nengine = \"postgres\"\n[change]\nkind = \"rename\"\ntable = \"t\"\nfrom = \"a\"\nto = \"b\"\n";
    let mut seen = 0;
    for path in pages() {
        for (info, text) in blocks(&read(&path)) {
            let text = match info {
                "toml" => text,
                "toml fragment" => format!("{SMALLEST}{text}"),
                _ => continue,
            };
            seen += 1;
            if let Err(problems) = sete::plan::parse(&text) {
                panic!("{}:\n{}", path.display(), sete::plan::render("block", &text, &problems));
            }
        }
    }
    assert!(seen >= 3, "{seen} plans");
}

// --- commands --------------------------------------------------------------------------------------------------------

fn help(command: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_sete")).args([command, "--help"]).output().expect("sete runs");
    assert!(out.status.success(), "`sete {command}` does not exist");
    String::from_utf8(out.stdout).expect("help in UTF-8")
}

/// Lines `$ sete …` of blocks marked `console`, and every `sete …` of a script: the command and its flags exist.
#[test]
fn commands_in_the_pages_exist() {
    let mut seen = 0;
    for path in pages() {
        for (info, text) in blocks(&read(&path)) {
            for line in text.lines() {
                let command = match info {
                    "console" => line.strip_prefix("$ sete "),
                    "yaml" | "sh" => line.split_once("sete ").filter(|(before, _)| !before.ends_with(['/', '-'])).map(|(_, rest)| rest),
                    _ => None,
                };
                let Some(command) = command else { continue };
                let words: Vec<&str> = command.split_whitespace().take_while(|w| !["|", "||", "&&", ";"].contains(w)).collect();
                let help = help(words[0]);
                for flag in words.iter().filter(|word| word.starts_with("--")) {
                    let flag = flag.trim_end_matches([';', '"']);
                    assert!(help.split_whitespace().any(|word| word == flag), "{}: {line}: no {flag}", path.display());
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen} commands");
}

// --- links and dependencies ------------------------------------------------------------------------------------------

#[test]
fn links_lead_somewhere() {
    for path in pages() {
        let page = prose(&read(&path));
        for link in page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || link.starts_with("https://") {
                continue;
            }
            let target = root().join(&path).with_file_name("").join(file);
            assert!(target.exists(), "{}: {link}", path.display());
        }
    }
}

#[test]
fn the_readme_leads_to_every_page() {
    let readme = read("README.md");
    for path in pages() {
        let link = format!("]({})", path.display());
        assert!(path == Path::new("README.md") || readme.contains(&link), "README.md has no link to {}", path.display());
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml");
    let mut wanted = BTreeSet::new();
    for section in ["dependencies", "dev-dependencies"] {
        for (name, value) in manifest[section].as_table().expect("a table of dependencies") {
            wanted.insert(value.get("package").and_then(|package| package.as_str()).unwrap_or(name).to_owned());
        }
    }
    let page = read("docs/dependencies.md");
    let listed: BTreeSet<String> = rows(&page).iter().filter_map(|row| Some(row[0].strip_prefix('`')?.strip_suffix('`')?.to_owned())).collect();
    assert_eq!(listed, wanted, "docs/dependencies.md against Cargo.toml");
    for row in rows(&page).iter().filter(|row| row[0].starts_with('`')) {
        assert!(row.len() == 3 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}
