//! Finds passwords, so that a plan that holds one is refused and nothing shows it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Notes, shown};
use crate::error::Code;

/// What a connection string names besides its password. Without one of these, `password = 'x'` may be plain SQL over a column.
const ADDRESS_WORDS: [&str; 6] = ["host=", "hostaddr=", "dbname=", "user=", "port=", "service="];

/// Notes every string of the file that holds a password.
pub(super) fn report(top: &DeTable, notes: &Notes) {
    for (key, value) in top {
        scan(key.get_ref(), value, notes);
    }
}

fn scan(key: &str, value: &Spanned<DeValue>, notes: &Notes) {
    match value.get_ref() {
        DeValue::String(text) if is_password_key(key) || holds(text, is_address_key(key)) => {
            let help = "put the address into an environment variable and name that: `database = \"env:DATABASE_URL\"`; then change the password";
            let fault = Fault::new(format!("`{}` holds a password", shown(key)), help);
            notes.add(value.span(), Fault { code: Code::PlanHasPassword, ..fault });
        }
        DeValue::Array(items) => items.iter().for_each(|item| scan(key, item, notes)),
        DeValue::Table(table) => table.iter().for_each(|(key, value)| scan(key.get_ref(), value, notes)),
        _ => {}
    }
}

fn is_password_key(key: &str) -> bool {
    matches!(key.to_ascii_lowercase().as_str(), "password" | "passwd" | "pwd" | "sslpassword" | "pgpassword")
}

fn is_address_key(key: &str) -> bool {
    matches!(key, "database" | "replicas" | "databases" | "url")
}

fn holds(text: &str, is_address: bool) -> bool {
    let tight: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let is_address = is_address || text.contains("://") || ADDRESS_WORDS.iter().any(|word| tight.contains(word));
    !in_urls(text).is_empty() || (is_address && !in_settings(text).is_empty())
}

/// `text` with `***` for each password.
pub(super) fn hide(text: &str) -> String {
    replace(text, |_| "***".to_owned())
}

/// `text` with a star for each byte of a password: every span into it stays right.
pub(super) fn blank(text: &str) -> String {
    replace(text, |password| "*".repeat(password.len()))
}

fn replace(text: &str, with: impl Fn(&str) -> String) -> String {
    let mut spans = in_urls(text);
    spans.extend(in_settings(text));
    spans.sort_by_key(|span| span.start);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        // A password inside another one's bytes: only what is left of it.
        let start = span.start.max(at);
        if start < span.end {
            out.push_str(&text[at..start]);
            out.push_str(&with(&text[start..span.end]));
            at = span.end;
        }
    }
    out.push_str(&text[at..]);
    out
}

/// The passwords of `scheme://user:password@host`.
fn in_urls(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("://") {
        let start = at + 3;
        let url = &text[start..];
        let url = &url[..end_of(url, char::is_whitespace)];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let Some(colon) = authority.find(':') else { continue };
        // A password may hold @ and, unescaped, even / or ?; it is a port if it is all digits.
        let end = match authority.rfind('@') {
            Some(end) => Some(end),
            None if authority[colon + 1..].bytes().all(|b| b.is_ascii_digit()) => None,
            None => url.rfind('@'),
        };
        if let Some(end) = end.filter(|end| colon + 1 < *end) {
            found.push(start + colon + 1..start + end);
        }
    }
    found
}

/// The passwords of `password=secret`, quoted or not, with blanks or not.
fn in_settings(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut found = Vec::new();
    for word in ["password", "passwd", "pwd"] {
        for (at, _) in lower.match_indices(word) {
            let after = lower[at + word.len()..].trim_start();
            let Some(value) = after.strip_prefix('=').map(str::trim_start) else { continue };
            let start = text.len() - value.len();
            let range = match value.chars().next() {
                Some('\'' | '"') => start + 1..start + 1 + end_of(&text[start + 1..], |c| c == '\n'),
                _ => start..start + end_of(&text[start..], |c| c.is_whitespace() || matches!(c, '&' | ';' | ',')),
            };
            if !range.is_empty() {
                found.push(range);
            }
        }
    }
    found
}

/// Where a value ends: at a quote that is not escaped, or where `stop` says so.
fn end_of(text: &str, stop: impl Fn(char) -> bool) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if !escaped && (matches!(c, '"' | '\'') || stop(c)) {
            return at;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_and_hidden() {
        for (text, shown) in [
            ("postgres://shop:s3cret@db/x", "postgres://shop:***@db/x"),
            ("postgres://shop:s3@cret@db:5432/x", "postgres://shop:***@db:5432/x"),
            ("postgres://shop:s3/cret@db:5432/x", "postgres://shop:***@db:5432/x"),
            ("postgres://db/x?user=shop&password=s3cret&sslmode=require", "postgres://db/x?user=shop&password=***&sslmode=require"),
            ("host=db password = s3cret user=shop", "host=db password = *** user=shop"),
            ("host=db PASSWORD='s3 cret' user=shop", "host=db PASSWORD='***' user=shop"),
        ] {
            assert!(holds(text, false), "{text}");
            assert_eq!(hide(text), shown);
            assert_eq!(blank(text).len(), text.len());
            assert!(!blank(text).contains("cret"));
        }
    }

    #[test]
    fn what_is_no_password_is_let_through() {
        for text in
            ["postgres://shop@db:5432/x", "env:DATABASE_URL", "status::order_status", "crypt(password, salt)", "password = 'x'", "a://b:5432/x?m=a@b"]
        {
            assert!(!holds(text, false), "{text}");
        }
    }
}
