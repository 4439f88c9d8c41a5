//! Every way a command can end badly. Each has a stable code, an exit status and advice, chosen here and nowhere else.

use std::fmt;
use std::time::Duration;

use crate::finding::Finding;
use crate::plan::Problem;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Exit statuses of the process. Public constants: scripts match on them, so none is ever reused.
pub mod exit {
    pub const DONE: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const BLOCKED: u8 = 3;
    pub const NOT_YET: u8 = 4;
    pub const GAVE_UP: u8 = 5;
    pub const DIVERGED: u8 = 6;
    pub const LEASE_HELD: u8 = 7;
    pub const UNKNOWN: u8 = 8;
    pub const INTERRUPTED: u8 = 130;
}

/// One table of codes: name, text, exit status, what it means, what to do. docs/errors.md is checked against it.
macro_rules! codes {
    ($($name:ident $text:literal $exit:ident $title:literal $advice:literal;)*) => {
        /// A stable code of an error or a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($name),* }

        impl Code {
            pub const ALL: &[Code] = &[$(Code::$name),*];
            /// The printed form. Never renumbered: scripts and runbooks match on it.
            pub const fn as_str(self) -> &'static str { match self { $(Code::$name => $text),* } }
            /// The exit status of a command that ends with this code.
            pub const fn exit(self) -> u8 { match self { $(Code::$name => exit::$exit),* } }
            /// What the code means, in one line.
            pub const fn title(self) -> &'static str { match self { $(Code::$name => $title),* } }
            /// What to do next.
            pub const fn advice(self) -> &'static str { match self { $(Code::$name => $advice),* } }
        }
    };
}

codes! {
    PlanUnreadable "E001" USAGE "the plan file can't be read" "Check the path and its permissions.";
    PlanInvalid "E002" USAGE "the plan file has mistakes" "Each is shown with its line and column; docs/plan-format.md lists every key.";
    PlanHasPassword "E003" USAGE "the plan holds a password" "Put the address into an environment variable and write `database = \"env:NAME\"`.";
    NoDatabase "E004" USAGE "no database address was given" "Pass --url, set `database = \"env:NAME\"` in the plan, or set DATABASE_URL.";
    Usage "E005" USAGE "the command line doesn't fit together" "See `sete COMMAND --help`.";
    NotSupported "E006" USAGE "this version can't do that yet" "CHANGELOG.md says what each version can do.";
    NoSuchPlan "E007" USAGE "the database knows no such plan" "A plan is known from its first `sete step` on; check its id and the database address.";
    BadAddress "E008" USAGE "the database address is not valid" "Use postgres://user@host:port/database?sslmode=verify-full, the password from PGPASSWORD or a passfile; or mysql://user@host:port/database?ssl-mode=VERIFY_IDENTITY, the password from MYSQL_PWD.";

    TableMissing "E101" BLOCKED "the table doesn't exist" "Write it as schema.table, spelled as in the catalog.";
    NotATable "E102" BLOCKED "it is not an ordinary table" "Views, foreign, temporary and system tables can't be changed in stages; name the base table.";
    ColumnMissing "E103" BLOCKED "the column doesn't exist" "Check `change.from`; names are case-sensitive as in the catalog.";
    TypeMissing "E104" BLOCKED "the new type doesn't exist" "Create it first (for example CREATE TYPE … AS ENUM), or qualify it with its schema.";
    ExpressionInvalid "E105" BLOCKED "an expression of the plan doesn't work on this table" "Try it in a SELECT over the table; it may use the table's columns only.";
    ExpressionType "E106" BLOCKED "an expression returns another type than its column" "Add a cast to the expression.";
    NewColumnType "E107" BLOCKED "the new column is already there, with another type" "Choose another name in `change.to`, or drop that column if nothing uses it.";
    NewColumnFilled "E108" BLOCKED "the new column is already there with a default, NOT NULL or a generator" "IS NULL would find nothing to fill. Drop the default and NOT NULL, or choose another name; sete adds both at the end.";
    NoKey "E109" BLOCKED "the table has no key that the walk needs" "Add a primary key or a unique index over NOT NULL columns, or use PostgreSQL 14 or later with walk = \"physical\".";
    RowSecurity "E110" BLOCKED "row-level security hides rows from this role" "Run as the table's owner (without FORCE) or as a role with BYPASSRLS; half of the rows would be left behind.";
    ReadOnly "E111" BLOCKED "the server takes no writes" "It is a replica or read-only; connect to the primary (target_session_attrs=read-write).";
    Rights "E112" BLOCKED "the role lacks rights" "docs/privileges.md lists the smallest set of grants.";
    UserTrigger "E113" BLOCKED "a row trigger of yours would fire for every backfilled row" "Say what you want: backfill.user_triggers = \"fire\" or \"suppress\".";
    SuppressRights "E114" BLOCKED "this role can't suppress triggers" "Suppressing needs a superuser, or on PostgreSQL 15 and later GRANT SET ON PARAMETER session_replication_role TO the role. MySQL and MariaDB have no such switch: take \"fire\".";
    PartitionKey "E115" BLOCKED "the column is part of the partition key" "A partition key can't be changed in place; make a new partitioned table and move the rows.";
    Inheritance "E116" BLOCKED "the table takes part in inheritance" "Only declarative partitions are walked; detach the children or change them one by one.";
    NameTooLong "E117" BLOCKED "a name is too long for the server" "PostgreSQL cuts names at 63 bytes; choose a shorter one.";
    NameTaken "E118" BLOCKED "a name that is needed is in use" "Rename or drop the object that has the name.";
    KeyColumn "E119" BLOCKED "the old column is part of the primary key" "Other tables and the row identity hang on it; see docs/stages.md on keys.";
    GeneratedColumn "E120" BLOCKED "the old column is generated or an identity" "Change the generation expression instead, or turn the identity into a sequence default first.";
    StructureByHand "E121" BLOCKED "a part of the old column's structure can't be copied by itself" "Write it for the new column under [structure], or set that entry to an empty list to do without.";
    NoColumnsLeft "E122" BLOCKED "the table has used up its column numbers" "Dropped columns count against the limit of 1600; a rewrite of the table (pg_repack) doesn't free them, a new table does.";
    LaterTrigger "E123" BLOCKED "a BEFORE trigger of yours sorts after the sync trigger" "It could change the old column after the sync has read it. PostgreSQL: rename it so that it sorts earlier. MySQL, MariaDB: drop it and create it again with PRECEDES and the sync trigger's name.";
    Dependent "E124" BLOCKED "something depends on the old column" "sete never cascades. Redefine or drop what is listed, then run again.";
    ReplicaIdentity "E125" BLOCKED "logical replication would lose its row identity" "Choose a replica identity without the old column first.";
    RoleTimeout "E126" BLOCKED "the role has a timeout of its own" "Only a remark: sete sets its own limits inside each transaction.";
    CachedPlans "E127" BLOCKED "clients with prepared statements may fail once" "Statements prepared as SELECT * or over the column report 'cached plan must not change result type' once; restart or use a driver that retries.";
    LossyReverse "E128" BLOCKED "the way back may lose or refuse values" "Check `reverse`: a value of the new type that the old can't hold leaves the old column as it was.";
    StillRead "E129" BLOCKED "statements still read the old column" "Deploy the version that doesn't, then run again.";
    InsertNeedsOld "E130" BLOCKED "an insert without the old column still fails" "Drop the constraint that the message names, or give it a condition that allows NULL.";
    ServerTooOld "E131" BLOCKED "the server version is not supported" "PostgreSQL 13 to 18, MySQL 8.0.29 to 9.x and MariaDB 10.6 to 11.x are.";
    SyncBroken "E132" BLOCKED "the sync trigger is missing, disabled or changed, or (MySQL, MariaDB) its account does not exist" "Run `sete back` to before dual_write and step again; rows written meanwhile are found by the backfill and validate.";
    SwapBlocked "E133" BLOCKED "the names can't be swapped" "Redefine what is listed, or use read_switch.mode = \"app\".";
    NotOnline "E134" BLOCKED "the server can't do it without copying or locking the table" "Nothing was changed. The server's message says what is in the way; docs/engines.md says what each server can do.";
    ServerChanged "E135" BLOCKED "the connection leads to another server than before" "A proxy or a failover has moved it. Look which server is the primary, then run again.";
    NotInnoDb "E136" BLOCKED "the table is not in InnoDB" "Nothing else has transactions and row locks: ALTER TABLE … ENGINE=InnoDB first.";
    TriggerRights "E137" BLOCKED "the server refuses triggers of this account" "Set log_bin_trust_function_creators = 1, or give the account SUPER; see docs/privileges.md.";
    Cascade "E138" BLOCKED "a foreign key changes the column without firing a trigger" "Neither the sync nor the observer would see it. Make it ON UPDATE RESTRICT ON DELETE RESTRICT, or let the application do what the cascade does.";
    InsertSelect "E139" BLOCKED "INSERT … SELECT can't leave a NOT NULL column to a trigger on this server" "Name the column in such statements, or set structure.not_null = [] and add NOT NULL when stage 6 is done.";
    ZeroDate "E140" BLOCKED "a default is no date" "Only a remark: sete's own statements run without NO_ZERO_DATE, but yours may fail with error 1067.";
    External "E141" BLOCKED "the command of drop.external did not do it" "Its output says why; the column is as it was. Run `sete step` again when that is put right.";

    PlanEdited "E201" BLOCKED "the plan's [change] was edited after its first stage ran" "The database holds half of the old change. Put the old text back, or go back to the start (`sete back`) and `sete forget` it first.";
    StateTooNew "E202" BLOCKED "the state in the database was written by a newer sete" "Use that version or a later one.";
    NothingToUndo "E203" BLOCKED "there is nothing to go back from" "No stage of this plan has run.";
    CannotUndo "E204" BLOCKED "the drop can't be undone" "Restore the column from a backup.";
    IllegalMove "E205" BLOCKED "the stage doesn't allow that now" "`sete status PLAN` shows where the plan stands.";
    TargetChanged "E206" BLOCKED "the table is not the one the plan began on" "It was dropped and made again, or the plan names another; `sete status` shows both.";
    NeedsConfirmation "E207" BLOCKED "the drop was not confirmed" "Pass --yes; the drop can't be undone.";
    InUse "E208" BLOCKED "the plan is in the middle of its change" "Go back to the start with `sete back`, or finish it, before it is forgotten.";
    NothingToJoin "E209" BLOCKED "there is no running backfill to join" "Start one with `sete step PLAN`, then join it from other machines.";

    Waiting "E301" NOT_YET "the stage is waiting" "Run `sete step` again later, or let it wait with --wait.";
    GateClosed "E302" NOT_YET "the gate is closed" "The reason is in the message; `sete gate --wait` waits for it.";
    Paused "E303" NOT_YET "the plan is paused" "`sete resume PLAN` lets it go on.";
    NothingToDo "E304" NOT_YET "there is nothing left to do" "The plan has been through all its stages.";

    LockNotGot "E401" GAVE_UP "the lock was not to be had" "Nothing was changed. End or wait for the session that is named, then run again.";
    BuildLost "E403" GAVE_UP "the work of an online build was lost at its end" "Nothing has changed. Run again when no long transaction is to be expected; ddl.patience does not help here.";
    PaceGivenUp "E402" GAVE_UP "the backfill could not go on" "Progress is saved; run again when the rows or the throttle that is named are free.";

    Diverged "E501" DIVERGED "old and new columns differ" "`sete validate PLAN --repair` rewrites these rows from the column that owns the value.";
    BadRow "E502" DIVERGED "a row doesn't convert" "Correct the row or the expression, or set backfill.on_bad_row = \"set_aside\"; then run again.";
    Rejects "E503" DIVERGED "rejected rows are left" "`sete rejects PLAN` lists them; correct them, then `sete rejects PLAN --retry`.";
    SyncProbe "E504" DIVERGED "the sync trigger did not fill the probe row" "The message says what the server answered; the trigger was removed again.";

    LeaseHeld "E601" LEASE_HELD "another runner holds the lease" "It is named; wait for it, or pass --wait.";
    LeaseLost "E602" LEASE_HELD "this runner lost its lease" "Another one has taken over; nothing more was written by this one.";
    RegionTaken "E603" LEASE_HELD "another worker has taken this worker's region" "It was silent for too long; nothing more was written by it there.";

    OutcomeUnknown "E701" UNKNOWN "it can't be told whether the server has done it" "The connection broke at the worst moment. Look with `sete status PLAN` once the server answers; running `sete step` again is safe.";

    Connect "E801" FAILED "the server can't be reached" "Check address, network, user and password, and what the server lets in (pg_hba.conf, mysql.user).";
    Tls "E802" FAILED "the secure connection failed" "Check sslmode and sslrootcert (ssl-mode and ssl-ca), and the server's certificate.";
    ConnectionLost "E803" FAILED "the connection to the server was lost" "Progress is saved; run again.";
    Database "E804" FAILED "the server refused a statement" "The server's message says why; progress is saved.";
    Internal "E805" FAILED "an assumption of sete's own did not hold" "Please report it with the message.";

    Interrupted "E901" INTERRUPTED "interrupted; progress is saved" "Run the same command again to go on.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

/// A session that holds a lock which somebody needs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Blocker {
    pub pid: i64,
    pub application: String,
    pub user: String,
    /// Seconds since its transaction began.
    pub age_s: f64,
    pub state: String,
    /// The start of its last statement.
    pub query: String,
    /// The server says that it holds the lock; otherwise it may be any of those with an open transaction.
    pub certain: bool,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let application = if self.application.is_empty() { "(unnamed)" } else { &self.application };
        if !self.certain {
            f.write_str("perhaps (this server keeps no record of who holds what) ")?;
        }
        write!(f, "pid {}, application {application}, user {}, {}, transaction open for {:.1} s", self.pid, self.user, self.state, self.age_s)?;
        if !self.query.is_empty() {
            write!(f, ", last statement: {}", self.query)?;
        }
        Ok(())
    }
}

/// What went wrong. The library returns it; only `cli::error` prints it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    PlanUnreadable { path: String, source: std::io::Error },
    #[error("{path}: {} in the plan", count(problems.len(), "mistake"))]
    PlanInvalid { path: String, text: String, problems: Vec<Problem> },
    #[error("{} the plan", blocking(findings))]
    Blocked { findings: Vec<Finding> },
    #[error("no lock on {relation} within {}: {}", crate::plan::duration::show(*patience), blocker.as_ref().map_or("the holder had gone when we looked".into(), |b| b.to_string()))]
    LockNotGot { relation: String, patience: Duration, blocker: Option<Box<Blocker>> },
    /// An error that its code and one sentence say completely.
    #[error("{message}")]
    Coded { code: Code, message: String },
    /// A refusal of the server, or a broken connection.
    #[error("{context}: {message}")]
    Database { code: Code, trouble: Trouble, context: String, message: String, sqlstate: Option<String> },
}

/// What kind of trouble a refused statement means, in no engine's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    LockTimeout,
    Deadlock,
    Serialization,
    /// By a timeout or by an administrator.
    Cancelled,
    ConnectionLost,
    /// A value that doesn't convert or breaks a constraint.
    BadData,
    /// A name that isn't there.
    Undefined,
    /// Something of that name is there already.
    Duplicate,
    /// A replica, or read-only by a setting.
    ReadOnly,
    /// The role lacks a right.
    Rights,
    Other,
}

impl Trouble {
    /// Whether the same statement may well succeed a moment later.
    pub fn passes(self) -> bool {
        matches!(self, Trouble::LockTimeout | Trouble::Deadlock | Trouble::Serialization | Trouble::Cancelled | Trouble::ConnectionLost)
    }
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error::Coded { code, message: message.into() }
    }

    pub fn code(&self) -> Code {
        match self {
            Error::PlanUnreadable { .. } => Code::PlanUnreadable,
            Error::PlanInvalid { problems, .. } => problems.iter().map(|p| p.code).find(|c| *c != Code::PlanInvalid).unwrap_or(Code::PlanInvalid),
            Error::Blocked { findings } => findings.iter().find(|f| f.blocks()).map_or(Code::Internal, |f| f.code),
            Error::LockNotGot { .. } => Code::LockNotGot,
            Error::Coded { code, .. } | Error::Database { code, .. } => *code,
        }
    }

    /// The kind of a server's refusal; `Other` for all that isn't one.
    pub fn trouble(&self) -> Trouble {
        match self {
            Error::Database { trouble, .. } => *trouble,
            _ => Trouble::Other,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        self.code().advice()
    }
}

/// "1 finding blocks", "2 findings block". Those that only remark something don't count.
fn blocking(findings: &[Finding]) -> String {
    let n = findings.iter().filter(|finding| finding.blocks()).count();
    count(n, "finding") + if n == 1 { " blocks" } else { " block" }
}

/// "1 row", "2 rows".
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_advise() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!(code.advice().ends_with('.'), "{code} has no advice");
        }
    }
}
