//! All tests, as one program: it is linked once, and its files share their servers.
//!
//! The whole run is `tests/run.sh`, one file of it `tests/run.sh cases::`.

mod support;

mod backfill;
mod bad_plans;
mod cases;
mod cli;
mod crash;
mod docs;
mod killed;
mod locks;
mod mysql_cases;
mod mysql_catalog;
mod mysql_conn;
mod mysql_crash;
mod mysql_killed;
mod mysql_replica;
mod mysql_rows;
mod mysql_store;
mod mysql_story;
mod postgres_catalog;
mod postgres_conn;
mod roles;
mod story;

/// One that is not listed above would be compiled by nobody.
#[test]
fn every_file_is_part_of_the_program() {
    let listed = include_str!("main.rs");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).expect("tests/ is there") {
        let name = file.expect("an entry of tests/").file_name().into_string().expect("a name in UTF-8");
        let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
        assert!(listed.contains(&format!("\nmod {module};\n")), "tests/main.rs does not list {module}");
    }
}
