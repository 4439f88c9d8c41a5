//! What the table is like, and what becomes of it: `status`, a text, becomes an enum; once `amount`, an int, a bigint.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// (a) Rows of about 140 bytes, bigint key, four indexes
    Plain,
    /// (b) The same with a random uuid as its key
    Uuid,
    /// (c) Wide rows with a text of 6 kB that is stored apart, a tenth of the rows
    Toast,
    /// (d) No index but the key's
    Bare,
    /// (e) Fillfactor 70
    Loose,
    /// (f) As plain, with a transaction that is held open meanwhile
    Held,
    /// (g) As plain, an int that becomes a bigint: the new column makes each row 8 to 12 bytes longer
    Wider,
}

/// The change of a shape, in the words of a plan.
pub struct Change {
    pub from: &'static str,
    pub to: &'static str,
    pub new_type: &'static str,
    pub forward: &'static str,
    /// What the application sets.
    pub write: &'static str,
}

impl Shape {
    /// The key's type, and how the n-th is made.
    fn key(self) -> (&'static str, &'static str) {
        match self {
            Shape::Uuid => ("uuid", "gen_random_uuid()"),
            _ => ("bigint", "n"),
        }
    }

    pub fn change(self) -> Change {
        match self {
            Shape::Wider => Change { from: "amount", to: "amount_v2", new_type: "bigint", forward: "amount", write: "amount = amount + 1" },
            _ => Change {
                from: "status",
                to: "status_v2",
                new_type: "order_status",
                forward: "status::order_status",
                write: "status = CASE status WHEN 'new' THEN 'paid' ELSE 'new' END",
            },
        }
    }

    pub fn key_type(self) -> &'static str {
        self.key().0
    }

    pub fn rows(self, asked: u64) -> u64 {
        if self == Shape::Toast { asked / 10 } else { asked }
    }

    /// Statements that make the table.
    pub fn setup(self, rows: u64) -> Vec<String> {
        let (key_type, key) = self.key();
        let fillfactor = if self == Shape::Loose { 70 } else { 100 };
        let body = if self == Shape::Toast { "repeat(md5(n::text), 190)" } else { "repeat('x', 40 + (n % 41)::int)" };
        let mut out = vec![
            "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped')".to_string(),
            format!(
                "CREATE TABLE orders (id {key_type} NOT NULL, customer int NOT NULL, created timestamptz NOT NULL, status text NOT NULL, \
                 amount int NOT NULL, weight numeric(10, 2), note text) WITH (fillfactor = {fillfactor}, autovacuum_enabled = off)"
            ),
            // Apart and not compressed, as a document that is compressed already.
            if self == Shape::Toast { "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL".into() } else { "SELECT 1".into() },
            format!(
                "INSERT INTO orders SELECT {key}, n % 5000, now() - n * interval '1 s', (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], \
                 n % 100000, (n % 1000) / 7.0, {body} FROM generate_series(1, {}) n",
                self.rows(rows)
            ),
            "ALTER TABLE orders ADD PRIMARY KEY (id)".into(),
        ];
        if self != Shape::Bare {
            out.extend(["customer", "created", "weight"].map(|column| format!("CREATE INDEX ON orders ({column})")));
        }
        out.push("VACUUM (ANALYZE) orders".into());
        out
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Plain => "(a) bigint key, four indexes",
            Shape::Uuid => "(b) random uuid key, four indexes",
            Shape::Toast => "(c) wide rows with TOAST, four indexes",
            Shape::Bare => "(d) no index but the key",
            Shape::Loose => "(e) fillfactor 70, four indexes",
            Shape::Held => "(f) four indexes, a transaction held open",
            Shape::Wider => "(g) four indexes, the new column is wider",
        })
    }
}
