//! What the live catalog says about a plan's table, as plain data. No opinions: those are in `preflight`.

use serde::Serialize;

use crate::plan::TableName;

#[derive(Clone, Debug, Serialize)]
pub struct Catalog {
    pub server: Server,
    /// None when there is no such relation.
    pub table: Option<Table>,
    /// The planned type as the server writes it; None when it doesn't exist.
    pub new_type: Option<TypeFacts>,
    pub forward: Expression,
    pub reverse: Expression,
}

#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// For example `postgres 15.18`.
    pub version: String,
    /// For example 150018.
    pub version_number: u32,
    pub database: String,
    pub user: String,
    /// Where we are connected, without credentials.
    pub address: String,
    /// A replica, or read-only by setting.
    pub read_only: Option<String>,
    pub superuser: bool,
    /// May switch the user's triggers off for one transaction.
    pub can_suppress_triggers: bool,
    /// May create our state schema, or it is there and writable.
    pub can_keep_state: bool,
    pub can_walk_physically: bool,
    /// Why the version is not supported.
    pub too_old: Option<String>,
    /// It is newer than all that were tried.
    pub untested: bool,
    /// Timeouts other than 0 that the role or database sets by default: name and value.
    pub timeouts: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    Table,
    Partitioned,
    /// A partition: its columns come from the parent.
    Partition,
    View,
    MaterializedView,
    Foreign,
    Sequence,
    Temporary,
    System,
    Other,
}

#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub name: TableName,
    /// The server's own number for it; a table dropped and made again has another.
    pub id: u64,
    pub kind: RelationKind,
    pub owner: String,
    /// Whether our role is the owner or a member of it: needed for every DDL.
    pub owned_by_us: bool,
    /// Rights that our role lacks: SELECT, INSERT, UPDATE on it or on a leaf, USAGE on its schema.
    pub missing_rights: Vec<MissingRight>,
    pub rows: u64,
    pub bytes: u64,
    pub columns: Vec<Column>,
    /// Column numbers in use, dropped ones included, and the most there can be.
    pub columns_used: u32,
    pub columns_max: u32,
    pub key: Option<Key>,
    pub leaves: Vec<Leaf>,
    /// Everything below a partitioned table, from the top down.
    pub partitions: Vec<Partition>,
    pub partition_key: Vec<String>,
    /// Plain inheritance: parents and children.
    pub inherits: Vec<String>,
    /// Row-level security would hide rows from us.
    pub rows_hidden: bool,
    /// How logical replication tells rows apart: `default`, `full`, `nothing`, or the index's columns.
    pub replica_identity: ReplicaIdentity,
    /// The publications that carry the table.
    pub publications: Vec<Publication>,
    pub triggers: Vec<Trigger>,
    /// Indexes over the old column.
    pub indexes: Vec<Index>,
    /// Names of indexes over the new column that are there already: they make each of its updates dearer.
    pub new_indexes: Vec<String>,
    /// CHECK constraints that mention the old column.
    pub checks: Vec<Constraint>,
    /// Foreign keys from the old column.
    pub foreign_keys: Vec<Constraint>,
    /// Objects that hang on the old column and that a drop doesn't take along.
    pub dependents: Vec<Dependent>,
    /// What a swap of the names must make again: everything that reads the column named `change.from` by its number.
    pub rebuilds: Vec<Rebuild>,
    /// The old column's default as the new column's, or why there is none. None without a default.
    pub new_default: Option<Result<String, String>>,
    /// The sequence that the old column owns.
    pub sequence: Option<Sequence>,
    pub ways: Ways,
    /// What InnoDB's DDL depends on; None on another engine.
    pub innodb: Option<InnoDb>,
}

/// How statements on this table are made, where servers differ.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Ways {
    /// NOT NULL is proven by a CHECK that was validated before. Otherwise it is one rebuild, online.
    pub not_null_by_check: bool,
    /// NOT NULL can be taken away in the catalog alone.
    pub null_instantly: bool,
    /// A default that lets inserts leave the old column out, where that is cheaper than letting it be NULL.
    pub relaxed: Option<String>,
    /// What must go before the old column can: a drop would refuse it, or narrow it in silence.
    pub goes_before: Vec<Attached>,
    /// The strongest algorithm below INSTANT that the server has a name for: `INPLACE`, `NOCOPY`.
    pub in_place: &'static str,
    /// Settings may hold for one statement by SET STATEMENT.
    pub set_statement: bool,
}

/// Something that is over the old column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attached {
    ForeignKey(String),
    Check(String),
    Index(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct InnoDb {
    /// The table's storage engine; everything else here is of no use unless it is InnoDB.
    pub engine: String,
    pub row_format: String,
    /// Changes of the columns that were made in the catalog alone, and how many there can be before a rebuild.
    pub row_versions: Option<(u32, u32)>,
    /// FULLTEXT indexes.
    pub fulltext: Vec<String>,
    /// Whether a FULLTEXT index, or a stored generated column, leaves only a copy of the table.
    pub fulltext_copies: bool,
    pub stored_columns: Vec<String>,
    /// Columns with a default that is no date.
    pub zero_dates: Vec<String>,
    /// Foreign keys by which the server changes columns of this table itself: no trigger fires.
    pub cascades: Vec<Cascade>,
    /// Why CREATE TRIGGER would be refused.
    pub no_triggers: Option<String>,
    /// An INSERT … SELECT that leaves a NOT NULL column to a trigger is refused.
    pub insert_select_refused: bool,
    /// The AUTO_INCREMENT column.
    pub auto_increment: Option<String>,
    /// Replicas that are connected, where we may see them.
    pub replicas: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cascade {
    pub name: String,
    pub columns: Vec<String>,
    /// For example `ON UPDATE CASCADE`.
    pub rule: String,
}

impl Table {
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingRight {
    /// For example `UPDATE`.
    pub right: String,
    /// For example `table public.orders`.
    pub on: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Publication {
    pub name: String,
    /// Its column list, if it has one.
    pub columns: Option<Vec<String>>,
    /// Whether it carries updates: those need a replica identity.
    pub updates: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaIdentity {
    Default,
    Full,
    Nothing,
    Index(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    pub name: String,
    /// As the server writes it, length and precision included, schema-qualified unless built in.
    pub type_name: String,
    /// Whether the type's equality is equality of bytes, so that it may be compared as it is.
    pub exact_equality: bool,
    pub not_null: bool,
    pub default: Option<String>,
    pub generated: bool,
    pub identity: bool,
    /// Quoted and qualified, where it isn't the type's own.
    pub collation: Option<String>,
    /// All that stands after its name in the table's text, on servers where a change of it must repeat that.
    pub definition: String,
    /// Set to the current time by each UPDATE that doesn't name it.
    pub on_update: bool,
    /// Not in SELECT *.
    pub invisible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeFacts {
    pub type_name: String,
    pub exact_equality: bool,
    /// The old column's own collation, where the new type takes one: the new column is to have it too.
    pub collation: Option<String>,
}

/// An expression of the plan, as it was tried against the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expression {
    pub sql: String,
    /// Columns of the table that it may read.
    pub reads: Vec<String>,
    /// The type it returns, or the server's message.
    pub result: Result<String, String>,
    /// Whether a value of that type is accepted by the column it goes to without a further cast.
    pub assignable: bool,
    /// Can't fail and can't lose: the same type, or a cast that the server applies by itself.
    pub safe: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    pub name: String,
    pub primary: bool,
    /// Name and type of each column.
    pub columns: Vec<(String, String)>,
}

/// A physical table: the table itself, or a partition that holds rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leaf {
    pub id: u64,
    pub file: u64,
    pub name: TableName,
    pub rows: u64,
    pub pages: u32,
    /// The walk key on this leaf.
    pub key: Option<Key>,
    /// A foreign table: its rows are elsewhere.
    pub foreign: bool,
}

/// A place in the tree below a partitioned table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    pub name: TableName,
    pub parent: TableName,
    /// It holds rows; otherwise it is partitioned itself.
    pub leaf: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trigger {
    pub name: String,
    pub function: String,
    /// Would fire for an UPDATE of the new column.
    pub fires_on_backfill: bool,
    /// BEFORE, row level, on INSERT or UPDATE.
    pub before_row: bool,
    pub ours: bool,
    pub enabled: bool,
    /// Runs after the sync trigger, and may change what that has read.
    pub after_sync: bool,
    pub definition: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Index {
    pub name: String,
    pub definition: String,
    pub unique: bool,
    /// The name of the constraint that owns it.
    pub constraint: Option<String>,
    pub primary: bool,
    /// Why it can't be copied for the new column: an expression, a predicate over the old column, an operator class.
    pub not_copyable: Option<String>,
    /// The statement that builds the same index over the new column: with `{name}`, `{table}` and
    /// `{concurrently}` left open, since a partitioned table's index is built leaf by leaf. The three come in the order
    /// concurrently, name, table, before anything of the user's; [`crate::resolve::IndexSpec::statement`] fills them.
    pub template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Constraint {
    pub name: String,
    pub definition: String,
    /// The same over the new column, or why there is none.
    pub rewritten: Result<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DependentKind {
    View,
    MaterializedView,
    GeneratedColumn,
    Policy,
    Trigger,
    Rule,
    Publication,
    Statistics,
    ForeignKey,
    Exclusion,
    Function,
    /// A procedure or function whose body is kept as text only.
    Routine,
    Event,
    Check,
}

impl DependentKind {
    pub fn words(self) -> &'static str {
        match self {
            DependentKind::View => "view",
            DependentKind::MaterializedView => "materialized view",
            DependentKind::GeneratedColumn => "generated column",
            DependentKind::Policy => "policy",
            DependentKind::Trigger => "trigger",
            DependentKind::Rule => "rule",
            DependentKind::Publication => "publication",
            DependentKind::Statistics => "statistics object",
            DependentKind::ForeignKey => "foreign key",
            DependentKind::Exclusion => "exclusion constraint",
            DependentKind::Function => "function",
            DependentKind::Routine => "stored routine",
            DependentKind::Event => "event",
            DependentKind::Check => "check",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dependent {
    pub kind: DependentKind,
    pub name: String,
    pub definition: String,
    /// False for a function whose text mentions the column: a hint, no more.
    pub certain: bool,
}

/// Something that is made again when the names are swapped, with owner, grants and comment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rebuild {
    pub kind: DependentKind,
    pub name: String,
    /// Run before and after the renames, or why it can't be made again.
    pub statements: Result<(Vec<String>, Vec<String>), String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sequence {
    /// Quoted and qualified.
    pub name: String,
    pub type_name: String,
}
