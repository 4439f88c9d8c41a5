//! The text of what watches the application's writes: the sync trigger and the observer.
//!
//! Expressions run inside plpgsql with one local variable per column that they read, in a block named after the table, so
//! that `status` and `orders.status` both mean the row being written and the server can use its fast path for simple
//! expressions. Everything else is reached by its block's name, so that no column's name can shadow it.
//!
//! The functions are SECURITY DEFINER with a pinned search_path: the application's role needs no right on our schema, nor
//! on the schema of the new type, and an empty search_path in its session changes nothing. A conversion that fails leaves
//! the other column as it is (or empty) and the row pending: it never breaks the application's statement.

use crate::engine::Side;
use crate::engine::catalog::Column;
use crate::resolve::{Conversion, Resolved};

use super::sql::{self, dollar, ident, literal, qualified};

/// Settings that change what a cast gives, pinned alike in the triggers and in our own transactions.
pub const PINNED: [(&str, &str); 5] =
    [("TimeZone", "UTC"), ("DateStyle", "ISO, MDY"), ("IntervalStyle", "postgres"), ("extra_float_digits", "1"), ("bytea_output", "hex")];

/// Whether two values differ, exactly: by bytes where the type's own equality is lax or missing.
pub fn differ(a: &str, b: &str, column: &Column) -> String {
    if column.exact_equality {
        format!("{a} IS DISTINCT FROM {b}")
    } else {
        format!("({a})::pg_catalog.text COLLATE \"C\" IS DISTINCT FROM ({b})::pg_catalog.text COLLATE \"C\"")
    }
}

/// Columns under the plan's names, with the columns they are now.
fn actual<'a>(r: &'a Resolved, plan_name: &'a str) -> Option<&'a Column> {
    if plan_name == r.plan_old {
        Some(&r.old)
    } else if plan_name == r.plan_new {
        Some(&r.new)
    } else {
        r.columns.iter().find(|c| c.name == plan_name)
    }
}

/// Columns whose change means that the old side was written, under their present names.
pub fn old_side(r: &Resolved) -> Vec<&Column> {
    let mut columns: Vec<&Column> = r.forward.reads.iter().filter_map(|name| actual(r, name)).filter(|c| c.name != r.new.name).collect();
    if !columns.iter().any(|c| c.name == r.old.name) {
        columns.push(&r.old);
    }
    columns
}

/// A block that puts an expression's value into `"~sete".result`, and whether it worked into `"~sete".ok`.
fn evaluate(r: &Resolved, conversion: &Conversion, function: &str, target: &Column) -> String {
    let variable =
        |name: &String| actual(r, name).map(|c| format!("    {} {} := {}.NEW.{};\n", ident(name), c.type_name, ident(function), ident(&c.name)));
    let variables: String = conversion.reads.iter().filter_map(variable).collect();
    let result = if target.name == r.new.name { "forward" } else { "reverse" };
    let caught = if conversion.safe {
        String::new()
    } else {
        format!("  EXCEPTION WHEN OTHERS THEN\n    \"~sete\".{result} := NULL;\n    \"~sete\".ok := false;\n")
    };
    format!(
        "  \"~sete\".ok := true;\n  <<{label}>>\n  DECLARE\n{variables}  BEGIN\n    \"~sete\".{result} := (\n{expression}\n);\n{caught}  END;\n",
        label = ident(&r.table.name),
        expression = conversion.sql,
    )
}

/// `CREATE FUNCTION` around a body, with everything pinned that the body's meaning depends on.
fn function(r: &Resolved, schema: &str, name: &str, arguments: &str, returns: &str, pin: bool, body: &str) -> String {
    let mut settings = format!("SET search_path TO {}", sql::search_path(&r.table));
    if pin {
        for (setting, value) in PINNED {
            settings += &format!(" SET \"{setting}\" TO {}", literal(value));
        }
    }
    format!(
        "CREATE OR REPLACE FUNCTION {schema}.{}({arguments}) RETURNS {returns} LANGUAGE plpgsql SECURITY DEFINER {settings} AS {}",
        ident(name),
        dollar(body)
    )
}

fn pins(r: &Resolved) -> bool {
    !(r.forward.safe && r.reverse.safe)
}

/// The declarations that every body shares.
fn declare(r: &Resolved) -> String {
    format!(
        "<<\"~sete\">>\nDECLARE\n  forward {};\n  reverse {};\n  ok boolean;\n  old_changed boolean := false;\n  new_changed boolean := false;\n",
        r.new.type_name, r.old.type_name
    )
}

/// Sets `old_changed` and `new_changed` in an UPDATE.
fn changes(r: &Resolved) -> String {
    let changed = |c: &&Column| differ(&format!("OLD.{}", ident(&c.name)), &format!("NEW.{}", ident(&c.name)), c);
    let old = old_side(r).iter().map(changed).collect::<Vec<_>>().join("\n      OR ");
    let new = changed(&&r.new);
    format!("  IF TG_OP = 'UPDATE' THEN\n    old_changed := {old};\n    new_changed := {new};\n  END IF;\n")
}

/// Records the write in sete.stray_write; whatever goes wrong there is not the application's business.
fn record(r: &Resolved, wrote_only: &str) -> String {
    format!(
        "    BEGIN\n      INSERT INTO sete.stray_write (plan_id, at, application, address, usr, wrote_only)\n      VALUES ({}, pg_catalog.clock_timestamp(), \
         coalesce(pg_catalog.current_setting('application_name', true), ''), coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), \
         session_user, {wrote_only});\n    EXCEPTION WHEN OTHERS THEN NULL;\n    END;\n",
        literal(&r.id)
    )
}

/// Stage 6: whether the statement itself wrote the old column. An insert that left it to its default did not.
fn direct_write(r: &Resolved) -> String {
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let inserted = match &r.origin_default {
        None => format!("NEW.{old} IS NOT NULL"),
        // What a volatile default gave can't be known again, so only a write that left the new column empty tells.
        Some(default) if default.contains('(') => format!("NEW.{old} IS NOT NULL AND NEW.{new} IS NULL"),
        Some(default) => format!("NEW.{old} IS NOT NULL AND {}", differ(&format!("NEW.{old}"), &format!("({default})"), &r.old)),
    };
    let updated = differ(&format!("OLD.{old}"), &format!("NEW.{old}"), &r.old);
    let record = record(r, &literal(&r.old.name));
    format!("  IF TG_OP = 'INSERT' THEN\n    ok := {inserted};\n  ELSE\n    ok := {updated};\n  END IF;\n  IF ok THEN\n{record}  END IF;\n")
}

/// Who wins: the changed side; both changed, the new one unless it is empty; on INSERT a new column that is not empty.
pub fn sync_body(r: &Resolved, watch: bool) -> String {
    let function = &r.names.sync_function;
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let forward = evaluate(r, &r.forward, function, &r.new);
    let reverse = evaluate(r, &r.reverse, function, &r.old);
    let disagree = differ("\"~sete\".forward", &format!("NEW.{new}"), &r.new);
    let watch = if watch { direct_write(r) } else { String::new() };
    format!(
        "{declare}BEGIN\n{watch}{changes}  \
         IF NEW.{new} IS NOT NULL AND NOT (TG_OP = 'INSERT' OR new_changed OR old_changed) THEN\n    RETURN NEW;\n  END IF;\n\
         {forward}  \
         IF (NEW.{new} IS NULL AND (TG_OP = 'INSERT' OR old_changed OR NOT new_changed)) OR (old_changed AND NOT new_changed) THEN\n    \
         NEW.{new} := \"~sete\".forward;\n    RETURN NEW;\n  END IF;\n  \
         IF NOT ({disagree}) THEN\n    RETURN NEW;\n  END IF;\n\
         {reverse}  \
         IF \"~sete\".ok THEN\n    NEW.{old} := \"~sete\".reverse;\n  END IF;\n  \
         RETURN NEW;\nEND",
        declare = declare(r),
        changes = changes(r),
    )
}

/// App mode: which column did the statement leave behind?
pub fn observer_body(r: &Resolved, watch: bool) -> String {
    let function = &r.names.observer_function;
    if watch {
        return format!("{}BEGIN\n{}  RETURN NULL;\nEND", declare(r), direct_write(r));
    }
    let (old, new) = (ident(&r.old.name), ident(&r.new.name));
    let forward = evaluate(r, &r.forward, function, &r.new);
    let reverse = evaluate(r, &r.reverse, function, &r.old);
    let wrote = format!(
        "CASE WHEN TG_OP = 'INSERT' AND NEW.{new} IS NULL OR old_changed AND NOT new_changed THEN {old_name} \
         WHEN TG_OP = 'INSERT' AND NEW.{old} IS NULL OR new_changed AND NOT old_changed THEN {new_name} ELSE {both} END",
        old_name = literal(&r.old.name),
        new_name = literal(&r.new.name),
        both = literal(&format!("{} and {}, unequal", r.old.name, r.new.name)),
    );
    format!(
        "{declare}BEGIN\n{changes}{forward}{reverse}  \
         IF (NEW.{new} IS NULL AND \"~sete\".forward IS NOT NULL) OR ({new_differs} AND {old_differs}) THEN\n{record}  \
         ELSE\n    PERFORM pg_catalog.nextval('sete.{counter}');\n  END IF;\n  RETURN NULL;\nEND",
        declare = declare(r),
        changes = changes(r),
        new_differs = differ(&format!("NEW.{new}"), "\"~sete\".forward", &r.new),
        old_differs = differ(&format!("NEW.{old}"), "\"~sete\".reverse", &r.old),
        record = record(r, &wrote),
        counter = r.names.counter,
    )
}

/// Columns that a side's conversion reads: their names in the plan, and what they are now.
fn reads(r: &Resolved, to: Side) -> Vec<(&String, &Column)> {
    r.conversion_to(to).reads.iter().filter_map(|name| Some((name, actual(r, name)?))).collect()
}

/// Both error functions, see [`error_call`].
pub fn error_functions(r: &Resolved) -> [String; 2] {
    [Side::Old, Side::New].map(|to| error_function(r, to, OURS))
}

/// Schema of what stays for as long as the plan does.
const OURS: &str = "sete";
/// Schema of what goes with the transaction.
const TEMPORARY: &str = "pg_temp";

/// [`error_call`]'s function for a table that has none yet, to be taken back with its transaction, and its call.
pub fn temporary_error_function(r: &Resolved, to: Side) -> (String, String) {
    (error_function(r, to, TEMPORARY), call(r, to, TEMPORARY))
}

fn error_function(r: &Resolved, to: Side, schema: &str) -> String {
    let name = &r.names.error_functions[to as usize];
    let reads = reads(r, to);
    let arguments = reads.iter().map(|(name, c)| format!("{} {}", ident(name), c.type_name)).collect::<Vec<_>>().join(", ");
    let variables: String = reads.iter().map(|(n, c)| format!("  {} {} := {}.{};\n", ident(n), c.type_name, ident(name), ident(n))).collect();
    let body = format!(
        "<<\"~sete\">>\nDECLARE\n  result {};\nBEGIN\n<<{}>>\nDECLARE\n{variables}BEGIN\n  \"~sete\".result := (\n{}\n);\n  RETURN NULL;\n\
             EXCEPTION WHEN OTHERS THEN\n  RETURN SQLSTATE || ' ' || SQLERRM;\nEND;\nEND",
        r.column(to).type_name,
        ident(&r.table.name),
        r.conversion_to(to).sql
    );
    function(r, schema, name, &arguments, "text", true, &body)
}

/// Says why a row doesn't convert to a side's type: NULL when it does.
pub fn error_call(r: &Resolved, to: Side) -> String {
    call(r, to, OURS)
}

fn call(r: &Resolved, to: Side, schema: &str) -> String {
    let arguments = reads(r, to).iter().map(|(_, c)| ident(&c.name)).collect::<Vec<_>>().join(", ");
    format!("{schema}.{}({arguments})", ident(&r.names.error_functions[to as usize]))
}

/// Not our own session.
fn not_ours(r: &Resolved) -> String {
    format!("pg_catalog.current_setting('sete.by', true) IS DISTINCT FROM {}", literal(&r.names.marker))
}

/// The two triggers, on INSERT and UPDATE: the latter is called only when a column of ours is concerned.
fn triggers(r: &Resolved, names: &[String; 2], when: &str, function: &str) -> Vec<String> {
    let table = qualified(&r.table);
    let changed = |c: &Column| differ(&format!("OLD.{}", ident(&c.name)), &format!("NEW.{}", ident(&c.name)), c);
    let mut concerned: Vec<String> = old_side(r).into_iter().map(changed).collect();
    concerned.push(changed(&r.new));
    if when == "BEFORE" {
        // A row that is still empty is filled by whatever update comes along.
        concerned.push(format!("NEW.{} IS NULL", ident(&r.new.name)));
    }
    let not_ours = not_ours(r);
    let mut out = Vec::new();
    for (name, event, condition) in
        [(&names[0], "INSERT", not_ours.clone()), (&names[1], "UPDATE", format!("{not_ours} AND ({})", concerned.join(" OR ")))]
    {
        out.push(format!(
            "CREATE TRIGGER {} {when} {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION sete.{}()",
            ident(name),
            ident(function)
        ));
        // ALWAYS: a session or subscription that runs as a replica writes rows like any other.
        out.push(format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {}", ident(name)));
    }
    out
}

/// Everything that the sync needs. Triggers that are there already are taken down first by `apply`: CREATE OR REPLACE
/// TRIGGER is PostgreSQL 14's.
pub fn install_sync(r: &Resolved, watch: bool) -> Vec<String> {
    let mut out: Vec<String> = error_functions(r).into();
    out.push(sync_function(r, watch));
    out.extend(triggers(r, &r.names.sync_triggers, "BEFORE", &r.names.sync_function));
    out
}

/// The function alone: enough where the triggers are in place, and it needs no lock on the table.
pub fn sync_function(r: &Resolved, watch: bool) -> String {
    function(r, OURS, &r.names.sync_function, "", "trigger", pins(r), &sync_body(r, watch))
}

pub fn install_observer(r: &Resolved, watch: bool) -> Vec<String> {
    let mut out: Vec<String> = error_functions(r).into();
    out.push(format!("CREATE SEQUENCE IF NOT EXISTS sete.{}", ident(&r.names.counter)));
    out.push(observer_function(r, watch));
    out.extend(triggers(r, &r.names.observer_triggers, "AFTER", &r.names.observer_function));
    out
}

pub fn observer_function(r: &Resolved, watch: bool) -> String {
    function(r, OURS, &r.names.observer_function, "", "trigger", pins(r), &observer_body(r, watch))
}

pub fn drop_triggers(r: &Resolved, names: &[String; 2]) -> Vec<String> {
    names.iter().map(|name| format!("DROP TRIGGER IF EXISTS {} ON {}", ident(name), qualified(&r.table))).collect()
}

pub fn drop_sync(r: &Resolved) -> Vec<String> {
    let mut out = drop_triggers(r, &r.names.sync_triggers);
    out.push(format!("DROP FUNCTION IF EXISTS sete.{}()", ident(&r.names.sync_function)));
    out
}

pub fn drop_observer(r: &Resolved) -> Vec<String> {
    let mut out = drop_triggers(r, &r.names.observer_triggers);
    out.push(format!("DROP FUNCTION IF EXISTS sete.{}()", ident(&r.names.observer_function)));
    out.push(format!("DROP SEQUENCE IF EXISTS sete.{}", ident(&r.names.counter)));
    out
}
