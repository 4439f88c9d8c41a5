//! The passfile (`~/.pgpass`): lines of `host:port:database:user:password`.
//!
//! Source of the rules: <https://www.postgresql.org/docs/current/libpq-pgpass.html>.

use std::path::Path;

/// What a passfile had to say.
pub(super) enum Lookup {
    Found(String),
    /// No line fits, or there is no such file.
    Nothing,
    /// It can't be used, and why: shown only if the server then asks for a password.
    Unusable(String),
}

/// The password for a connection, from the file at `path`.
pub(super) fn look_up(path: &Path, host: &str, port: u16, database: &str, user: &str) -> Lookup {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Lookup::Nothing,
        Err(e) => return Lookup::Unusable(format!("the passfile {} can't be read: {e}", path.display())),
        Ok(meta) if !meta.is_file() => return Lookup::Unusable(format!("the passfile {} is not a file", path.display())),
        Ok(meta) if open_to_others(&meta) => {
            return Lookup::Unusable(format!("the passfile {0} was ignored: others may read it; run chmod 0600 {0}", path.display()));
        }
        Ok(_) => {}
    }
    match std::fs::read_to_string(path) {
        Ok(text) => find(&text, [host, &port.to_string(), database, user]).map_or(Lookup::Nothing, Lookup::Found),
        Err(e) => Lookup::Unusable(format!("the passfile {} can't be read: {e}", path.display())),
    }
}

#[cfg(unix)]
fn open_to_others(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    meta.mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn open_to_others(_: &std::fs::Metadata) -> bool {
    false
}

/// The password of the first line whose four fields fit.
fn find(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for want in wanted {
            let (field, tail) = field(rest)?;
            if !(&rest[..rest.len() - tail.len() - 1] == "*" || field == want) {
                return None;
            }
            rest = tail;
        }
        // A colon ends the password too, as it does in libpq.
        let password = field(rest).map_or_else(|| unescape(rest), |(password, _)| password);
        (!password.is_empty()).then_some(password)
    })
}

/// The text up to the next bare colon, unescaped, and what follows the colon.
fn field(text: &str) -> Option<(String, &str)> {
    let mut escaped = false;
    let end = text.char_indices().find_map(|(at, c)| {
        let bare = !escaped;
        escaped = bare && c == '\\';
        (bare && c == ':').then_some(at)
    })?;
    Some((unescape(&text[..end]), &text[end + 1..]))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fitting_line_wins() {
        let text = "# a remark:5432:shop:ann:no\nother:5432:shop:ann:no\ndb:*:shop:ann:first\n*:*:*:*:any\n";
        assert_eq!(find(text, ["db", "5432", "shop", "ann"]).as_deref(), Some("first"));
        assert_eq!(find(text, ["elsewhere", "1", "x", "bob"]).as_deref(), Some("any"));
        assert_eq!(find("db:5432:shop:ann:x", ["db", "5433", "shop", "ann"]), None);
        assert_eq!(find("too:short", ["too", "short", "", ""]), None);
    }

    #[test]
    fn escapes_are_taken_away() {
        assert_eq!(find(r"::1:1:d:u:no", ["::1", "1", "d", "u"]), None);
        assert_eq!(find(r"\:\:1:1:d:u:a\:b\\c", ["::1", "1", "d", "u"]).as_deref(), Some(r"a:b\c"));
        assert_eq!(find(r"\*:1:d:u:no", ["h", "1", "d", "u"]), None, "an escaped star is a star");
    }
}
