//! What of a plan may not change once its first stage has run: `[change]`, whole.
//!
//! The engine needs no place here: the fingerprint is kept in the target database, which is of one engine.

use sha2::{Digest, Sha256};

use super::{Change, Kind};

/// Stands first in what is hashed. Raise it if the same change must ever hash differently.
const FORMAT: &str = "sete change 1";

/// The SHA-256 of the change, in hex.
pub fn of(change: &Change) -> String {
    let mut hash = Sha256::new();
    hash.update(FORMAT);
    // Keys that are not set leave no trace, so that a key added in a later version changes no older fingerprint.
    // Lengths go before values: no value can pass for the next key.
    for (key, value) in fields(change) {
        if let Some(value) = value {
            hash.update(format!("\n{key} {} {value}", value.len()));
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What differs, a line for each key: `change.forward: "a" → "b"`.
pub fn differences(old: &Change, new: &Change) -> Vec<String> {
    let show = |value: Option<&str>| value.map_or("(not set)".to_owned(), |value| format!("{value:?}"));
    let pairs = fields(old).into_iter().zip(fields(new));
    pairs.filter(|((_, old), (_, new))| old != new).map(|((key, old), (_, new))| format!("change.{key}: {} → {}", show(old), show(new))).collect()
}

fn fields(change: &Change) -> [(&'static str, Option<&str>); 7] {
    let Change { kind, table, from, to, new_type, forward, reverse } = change;
    let kind = match kind {
        Kind::Type => "type",
        Kind::Rename => "rename",
    };
    [
        ("kind", Some(kind)),
        ("table", Some(table)),
        ("from", Some(from)),
        ("to", Some(to)),
        ("type", new_type.as_deref()),
        ("forward", forward.as_deref()),
        ("reverse", reverse.as_deref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> Change {
        Change {
            kind: Kind::Type,
            table: "public.orders".into(),
            from: "status".into(),
            to: "status_v2".into(),
            new_type: Some("order_status".into()),
            forward: Some("status::order_status".into()),
            reverse: None,
        }
    }

    #[test]
    fn a_fingerprint_stays_what_it_was() {
        // Stored in databases: if this fails, every running plan is refused as edited.
        insta::assert_snapshot!(of(&change()), @"568810fccf27852102cfa61eb8e1e8852fa673209a88d750b73b0f17ba539fc1");
    }

    #[test]
    fn every_key_counts() {
        let mut seen = std::collections::HashSet::from([of(&change())]);
        let edits: [fn(&mut Change); 8] = [
            |c| c.kind = Kind::Rename,
            |c| c.table = "orders".into(),
            |c| c.from = "state".into(),
            |c| c.to = "status_v3".into(),
            |c| c.new_type = None,
            |c| c.forward = Some("lower(status)::order_status".into()),
            |c| c.reverse = Some("status_v2::text".into()),
            |c| (c.from, c.to) = ("status\nto 9 status_v2".into(), "x".into()),
        ];
        for edit in edits {
            let mut edited = change();
            edit(&mut edited);
            assert!(seen.insert(of(&edited)));
            assert!(!differences(&change(), &edited).is_empty());
        }
    }

    #[test]
    fn differences_show_both_sides() {
        let new = Change { forward: Some("lower(status)".into()), reverse: Some("status_v2::text".into()), ..change() };
        let lines = ["change.forward: \"status::order_status\" → \"lower(status)\"", "change.reverse: (not set) → \"status_v2::text\""];
        assert_eq!(differences(&change(), &new), lines);
        assert!(differences(&new, &new).is_empty());
    }

    #[test]
    fn a_stored_change_reads_back() {
        let json = serde_json::to_string(&change()).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&json).unwrap(), change());
    }
}
