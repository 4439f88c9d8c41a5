//! The text of what watches the application's writes: the sync triggers and the observer's.
//!
//! A trigger is one compound statement, run with the rights of who created it and with the sql_mode of that moment. Everything
//! that can fail stands in a block whose handler swallows it: a conversion that fails leaves the other column as it is (or
//! empty) and the row pending, and never breaks the application's statement. What the session has set otherwise and an
//! expression depends on is set for the one statement that evaluates it: a statement of the application that is killed in
//! the middle leaves nothing behind in its session.
//!
//! There is no CREATE OR REPLACE on both servers, so that each variant has names of its own: the new pair is created before
//! the old one goes. Two pairs at a time do no harm, since the second finds both columns equal.

use crate::engine::Side;
use crate::engine::catalog::Column;
use crate::resolve::{Conversion, Resolved};

use super::sql::{self, differ, ident, literal, names_in, qualified, replace_columns, type_word};

/// Two triggers, on INSERT and on UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    Sync { watch: bool },
    Observer { watch: bool },
}

impl Watcher {
    /// All that the same names begin with, in any variant.
    fn base(self, r: &Resolved) -> &[String; 2] {
        match self {
            Watcher::Sync { .. } => &r.names.sync_triggers,
            Watcher::Observer { .. } => &r.names.observer_triggers,
        }
    }

    /// The names of this variant; those after a swap are others.
    pub fn names(self, r: &Resolved) -> [String; 2] {
        let (Watcher::Sync { watch } | Watcher::Observer { watch }) = self;
        let suffix = match (watch, r.swapped) {
            (false, false) => "",
            (true, false) => "_watch",
            (false, true) => "_swapped",
            (true, true) => "_swapped_watch",
        };
        self.base(r).clone().map(|base| format!("{base}{suffix}"))
    }

    /// The names of all variants, this one's included.
    pub fn all_names(self, r: &Resolved) -> Vec<String> {
        let suffixes = ["", "_watch", "_swapped", "_swapped_watch"];
        self.base(r).iter().flat_map(|base| suffixes.map(|suffix| format!("{base}{suffix}"))).collect()
    }

    pub fn timing(self) -> &'static str {
        match self {
            Watcher::Sync { .. } => "BEFORE",
            Watcher::Observer { .. } => "AFTER",
        }
    }

    /// What the triggers do, on INSERT and on UPDATE. `home` is the database of our own tables.
    pub fn bodies(self, r: &Resolved, home: &str) -> [String; 2] {
        [Event::Insert, Event::Update].map(|event| match self {
            Watcher::Sync { watch } => sync_body(r, home, event, watch),
            Watcher::Observer { watch: true } => unless_ours(r, None, &format!("BEGIN\n{QUIETLY}{}END;\n", direct_write(r, home, event))),
            Watcher::Observer { watch: false } => observer_body(r, home, event),
        })
    }

    /// Both CREATE TRIGGER: each comes after all that the table has already.
    pub fn create(self, r: &Resolved, home: &str) -> [String; 2] {
        let [on_insert, on_update] = self.bodies(r, home);
        let [insert, update] = self.names(r);
        let one = |name: &str, event, body| self.create_one(r, name, event, body);
        [one(&insert, "INSERT", &on_insert), one(&update, "UPDATE", &on_update)]
    }

    pub fn create_one(self, r: &Resolved, name: &str, event: &str, body: &str) -> String {
        format!("CREATE TRIGGER {} {} {event} ON {} FOR EACH ROW {body}", ident(name), self.timing(), qualified(&r.table))
    }
}

/// In the table's database, where triggers live.
pub fn drop_trigger(r: &Resolved, name: &str) -> String {
    let schema = r.table.schema.as_ref().map(|schema| format!("{}.", ident(schema))).unwrap_or_default();
    format!("DROP TRIGGER IF EXISTS {schema}{}", ident(name))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Insert,
    Update,
}

/// Writes of one session that are counted.
const ENOUGH: u32 = 1000;

/// Nothing that goes wrong while watching is the application's business.
const QUIETLY: &str = "DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;\n";

/// Columns under the plan's names, with the columns they are now.
pub fn actual<'a>(r: &'a Resolved, plan_name: &str) -> Option<&'a Column> {
    let is = |name: &str| name.to_lowercase() == plan_name.to_lowercase();
    if is(&r.plan_old) {
        Some(&r.old)
    } else if is(&r.plan_new) {
        Some(&r.new)
    } else {
        r.columns.iter().find(|c| is(&c.name))
    }
}

/// A conversion's expression over the columns as they are called now, each with `prefix`: `NEW.` in a trigger, nothing in a statement.
pub fn expression(r: &Resolved, conversion: &Conversion, prefix: &str) -> String {
    let becomes = |name: &str| actual(r, name).map(|c| format!("{prefix}{}", ident(&c.name)));
    replace_columns(&conversion.sql, &r.table.name, becomes).unwrap_or_else(|| conversion.sql.clone())
}

/// Columns whose change means that the old side was written, under their present names.
pub fn old_side(r: &Resolved) -> Vec<&Column> {
    let mut columns: Vec<&Column> = r.forward.reads.iter().filter_map(|name| actual(r, name)).filter(|c| c.name != r.new.name).collect();
    if !columns.iter().any(|c| c.name == r.old.name) {
        columns.push(&r.old);
    }
    columns
}

/// Session variables that change what an expression gives: their type, the value that they have in our sessions, whether
/// MySQL takes them in a SET_VAR hint, and the functions that depend on them.
const PINNED: [(&str, &str, &str, bool, &[&str]); 4] = [
    (
        "time_zone",
        "VARCHAR(64) CHARACTER SET utf8mb4",
        "'+00:00'",
        true,
        &[
            "now",
            "current_timestamp",
            "localtime",
            "localtimestamp",
            "sysdate",
            "curdate",
            "current_date",
            "curtime",
            "current_time",
            "from_unixtime",
            "unix_timestamp",
            "convert_tz",
        ],
    ),
    ("lc_time_names", "VARCHAR(64) CHARACTER SET utf8mb4", "'en_US'", false, &["date_format", "monthname", "dayname", "str_to_date", "format"]),
    ("default_week_format", "INT", "0", false, &["week"]),
    ("div_precision_increment", "INT", "4", true, &["avg"]),
];

/// Those of them that matter here.
#[derive(Default)]
struct Pins {
    /// Before and after the word SELECT: they hold for that statement alone.
    before: String,
    hint: String,
    /// Name, type and value of what MySQL can only set for the session. Put back at once, and harmless in one that is killed
    /// before: they only choose names of months, the number of a week.
    session: Vec<(&'static str, &'static str, &'static str)>,
}

impl Pins {
    fn of(r: &Resolved) -> Pins {
        let texts = [&r.forward.sql, &r.reverse.sql];
        let named: Vec<String> = texts.iter().flat_map(|sql| names_in(sql)).collect();
        let of_time = |c: &Column| type_word(&c.type_name) == "timestamp";
        let times = r.forward.reads.iter().chain(&r.reverse.reads).filter_map(|name| actual(r, name)).chain([&r.old, &r.new]).any(of_time);
        let matters = |name: &str, words: &[&str]| match name {
            "time_zone" if times => true,
            "div_precision_increment" if texts.iter().any(|sql| sql.contains('/')) => true,
            _ => named.iter().any(|name| words.contains(&name.as_str())),
        };
        let (mut pins, mut settings, mut hints) = (Pins::default(), Vec::new(), Vec::new());
        for (name, ty, value, hintable, words) in PINNED {
            if !matters(name, words) {
                continue;
            }
            match hintable {
                _ if r.ways.set_statement => settings.push(format!("{name} = {value}")),
                true => hints.push(format!("SET_VAR({name} = {value})")),
                false => pins.session.push((name, ty, value)),
            }
        }
        if !settings.is_empty() {
            pins.before = format!("SET STATEMENT {} FOR ", settings.join(", "));
        }
        if !hints.is_empty() {
            pins.hint = format!("/*+ {} */ ", hints.join(" "));
        }
        pins
    }

    fn are_none(&self) -> bool {
        self.before.is_empty() && self.hint.is_empty() && self.session.is_empty()
    }

    /// Gives variables their values.
    fn set(&self, values: &[(&str, String)]) -> String {
        if self.before.is_empty() && self.hint.is_empty() {
            return values.iter().map(|(name, value)| format!("SET {name} = (\n{value}\n);\n")).collect();
        }
        let (names, values): (Vec<&str>, Vec<String>) = values.iter().map(|(name, value)| (*name, format!("(\n{value}\n)"))).unzip();
        format!("{}SELECT {}{} INTO {};\n", self.before, self.hint, values.join(", "), names.join(", "))
    }
}

/// A block that puts an expression's value into `sete_f` or `sete_r`, NULL where it fails, and then `sete_ok` is false.
fn evaluate(r: &Resolved, to: Side) -> String {
    let (conversion, target, variable) = match to {
        Side::New => (&r.forward, &r.new, "sete_f"),
        Side::Old => (&r.reverse, &r.old, "sete_r"),
    };
    let mut out = "SET sete_ok = TRUE;\nBEGIN\n".to_string();
    if !conversion.safe {
        // A warning is what a strict mode makes an error of elsewhere: cut, rounded out of range, not a number.
        out += &format!("DECLARE EXIT HANDLER FOR SQLEXCEPTION, SQLWARNING BEGIN SET {variable} = NULL; SET sete_ok = FALSE; END;\n");
    }
    out += &Pins::of(r).set(&[(variable, expression(r, conversion, "NEW."))]);
    if type_word(&target.type_name) == "json" && !conversion.safe {
        // MariaDB's JSON is a text with a CHECK, which would refuse the row.
        out += &format!("IF NOT JSON_VALID({variable}) THEN SET {variable} = NULL; SET sete_ok = FALSE; END IF;\n");
    }
    out + "END;\n"
}

/// Runs unless the session is one of ours. The condition is looked at before any variable is made: most updates don't meet it.
fn unless_ours(r: &Resolved, only: Option<&str>, statements: &str) -> String {
    let only = only.map(|condition| format!(" AND (\n{condition})")).unwrap_or_default();
    format!("BEGIN\nIF NOT (@sete_by <=> {}){only} THEN\n{statements}END IF;\nEND", literal(&r.names.marker))
}

/// The variables, then `compute` under the pinned settings, then `assign` under the session's own. An update that changes
/// neither side is passed over, unless `or_if`.
fn computed(r: &Resolved, event: Event, or_if: &str, compute: &str, assign: &str) -> String {
    let mut declared = format!(
        "DECLARE sete_f {};\nDECLARE sete_r {};\nDECLARE sete_ok BOOLEAN DEFAULT TRUE;\nDECLARE sete_set, sete_wrote TINYINT DEFAULT 0;\n\
         DECLARE sete_old_changed, sete_new_changed, sete_differ BOOLEAN DEFAULT FALSE;\n",
        r.new.type_name, r.old.type_name
    );
    let (mut pin, mut unpin) = (String::new(), String::new());
    let pins = Pins::of(r);
    for (name, ty, value) in &pins.session {
        declared += &format!("DECLARE sete_{name} {ty} DEFAULT @@SESSION.{name};\n");
        pin += &format!("SET SESSION {name} = {value};\n");
        unpin += &format!("SET SESSION {name} = sete_{name};\n");
    }
    let (changes, compute) = match event {
        Event::Insert => (String::new(), compute.to_string()),
        Event::Update => (changes(r), format!("IF {or_if}sete_old_changed OR sete_new_changed THEN\n{compute}END IF;\n")),
    };
    let block = format!(
        "BEGIN\n{declared}{pin}BEGIN\nDECLARE EXIT HANDLER FOR SQLEXCEPTION SET sete_set = 0;\n{changes}{compute}END;\n{unpin}{assign}END;\n"
    );
    // Two moments of a TIMESTAMP may look alike in the session's own time zone: then only the inner look tells.
    let first = (event == Event::Update && pins.are_none()).then(|| format!("{or_if}{}\n OR {}", old_changed(r), changed(&r.new)));
    unless_ours(r, first.as_deref(), &block)
}

fn changed(c: &Column) -> String {
    differ(&format!("OLD.{}", ident(&c.name)), &format!("NEW.{}", ident(&c.name)), c)
}

fn old_changed(r: &Resolved) -> String {
    old_side(r).into_iter().map(changed).collect::<Vec<_>>().join("\n OR ")
}

/// Sets both flags in an UPDATE.
fn changes(r: &Resolved) -> String {
    Pins::of(r).set(&[("sete_old_changed", old_changed(r)), ("sete_new_changed", changed(&r.new))])
}

/// Who wins: the changed side; both changed, the new one unless it is empty; on INSERT a new column that is not empty.
fn sync_body(r: &Resolved, home: &str, event: Event, watch: bool) -> String {
    let (old, new) = (format!("NEW.{}", ident(&r.old.name)), format!("NEW.{}", ident(&r.new.name)));
    let forwards = match event {
        Event::Insert => format!("{new} IS NULL"),
        Event::Update => format!("({new} IS NULL AND (sete_old_changed OR NOT sete_new_changed)) OR (sete_old_changed AND NOT sete_new_changed)"),
    };
    let compute = format!(
        "{forward}IF {forwards} THEN\nSET sete_set = 1;\nELSE\n{look}IF sete_differ THEN\n{reverse}IF sete_ok THEN SET sete_set = 2; END IF;\nEND IF;\n\
         END IF;\n",
        forward = evaluate(r, Side::New),
        reverse = evaluate(r, Side::Old),
        look = Pins::of(r).set(&[("sete_differ", differ("sete_f", &new, &r.new))]),
    );
    // A NULL that the old column can't hold stays out of it: the statement must not fail by our doing.
    let keeps = if r.old.not_null { " AND sete_r IS NOT NULL" } else { "" };
    let watched = if watch { format!("BEGIN\n{QUIETLY}{}END;\n", direct_write(r, home, event)) } else { String::new() };
    let assign = format!("IF sete_set = 1 THEN\nSET {new} = sete_f;\nELSEIF sete_set = 2{keeps} THEN\nSET {old} = sete_r;\nEND IF;\n");
    // A row that is still empty is filled by whatever update comes along.
    computed(r, event, &format!("{new} IS NULL OR "), &compute, &format!("{watched}{assign}"))
}

/// App mode: which column did the statement leave behind?
fn observer_body(r: &Resolved, home: &str, event: Event) -> String {
    let (old, new) = (format!("NEW.{}", ident(&r.old.name)), format!("NEW.{}", ident(&r.new.name)));
    let (by_old, by_new) = match event {
        Event::Insert => (format!("{new} IS NULL"), format!("{old} IS NULL")),
        Event::Update => ("sete_old_changed AND NOT sete_new_changed".to_string(), "sete_new_changed AND NOT sete_old_changed".to_string()),
    };
    let apart = format!("({new} IS NULL AND sete_f IS NOT NULL) OR ({} AND {})", differ(&new, "sete_f", &r.new), differ(&old, "sete_r", &r.old));
    let compute = format!(
        "{forward}{reverse}{look}IF sete_differ THEN\n\
         SET sete_wrote = CASE WHEN {by_old} THEN 1 WHEN {by_new} THEN 2 ELSE 3 END;\nELSE\nSET sete_wrote = 4;\nEND IF;\n",
        forward = evaluate(r, Side::New),
        reverse = evaluate(r, Side::Old),
        look = Pins::of(r).set(&[("sete_differ", apart)]),
    );
    let both = format!("{} and {}, unequal", r.old.name, r.new.name);
    let wrote = format!("ELT(sete_wrote, {}, {}, {})", literal(&r.old.name), literal(&r.new.name), literal(&both));
    // A row of its own for each write, so that no two writers wait for each other; enough of them is enough.
    let seen = format!("@sete_seen_{}", r.names.marker);
    let count = format!(
        "SET {seen} = COALESCE({seen}, 0) + 1;\nIF {seen} <= {ENOUGH} THEN\nINSERT INTO {}.`sete_write` (plan_id) VALUES ({});\nEND IF;\n",
        ident(home),
        literal(&r.id)
    );
    let assign =
        format!("BEGIN\n{QUIETLY}IF sete_wrote BETWEEN 1 AND 3 THEN\n{}ELSEIF sete_wrote = 4 THEN\n{count}END IF;\nEND;\n", record(r, home, &wrote));
    computed(r, event, "", &compute, &assign)
}

/// Stage 6: whether the statement itself wrote the old column. An insert that left it to its default did not.
fn direct_write(r: &Resolved, home: &str, event: Event) -> String {
    let (old, new) = (format!("NEW.{}", ident(&r.old.name)), format!("NEW.{}", ident(&r.new.name)));
    let wrote = match (event, r.origin_default.as_ref().or(r.ways.relaxed.as_ref())) {
        (Event::Update, _) => differ(&format!("OLD.{}", ident(&r.old.name)), &old, &r.old),
        (Event::Insert, None) => format!("{old} IS NOT NULL"),
        (Event::Insert, Some(default)) if sql::is_constant(default) => format!("{old} IS NOT NULL AND NOT ({old} <=> {default})"),
        // What it gave can't be known again, so only a write that left the new column empty tells.
        (Event::Insert, Some(_)) => format!("{old} IS NOT NULL AND {new} IS NULL"),
    };
    format!("IF {wrote} THEN\n{}END IF;\n", record(r, home, &literal(&r.old.name)))
}

/// Records the write in `sete_stray_write`. What the application calls itself is known where our account may look, else not.
fn record(r: &Resolved, home: &str, wrote_only: &str) -> String {
    format!(
        "BEGIN\nDECLARE sete_application VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT '';\n{QUIETLY}\
         SET sete_application = COALESCE((SELECT MAX(ATTR_VALUE) FROM performance_schema.session_connect_attrs \
         WHERE PROCESSLIST_ID = CONNECTION_ID() AND ATTR_NAME = 'program_name'), '');\n\
         INSERT INTO {}.`sete_stray_write` (plan_id, at, application, address, usr, wrote_only) VALUES ({}, UTC_TIMESTAMP(6), sete_application, \
         SUBSTRING_INDEX(USER(), '@', -1), SUBSTRING_INDEX(USER(), '@', 1), {wrote_only});\nEND;\n",
        ident(home),
        literal(&r.id)
    )
}
