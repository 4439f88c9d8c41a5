//! Database addresses, which may hold a password and therefore never print one.

use std::fmt;

/// A database address. `Display` and `Debug` show it without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DbUrl(String);

impl DbUrl {
    pub fn new(text: impl Into<String>) -> Self {
        DbUrl(text.into())
    }

    /// The address as given, password included: for the driver only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask(&self.0))
    }
}

impl fmt::Debug for DbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DbUrl({self})")
    }
}

/// `text` with the password of every address in it (`user:password@`, `password=…`) replaced by `***`.
pub fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (head, tail) = rest.split_at(at + 3);
        out.push_str(head);
        // The user part ends at the last @ before the path: a password may hold @ itself.
        let authority_end = tail.find(['/', '?', ' ', '"', '\'', '\n']).unwrap_or(tail.len());
        let authority = &tail[..authority_end];
        match authority.rfind('@').map(|end| (authority.find(':'), end)) {
            Some((Some(colon), end)) if colon < end => {
                out.push_str(&authority[..=colon]);
                out.push_str("***");
                out.push_str(&authority[end..]);
            }
            _ => out.push_str(authority),
        }
        rest = &tail[authority_end..];
    }
    out.push_str(rest);
    mask_keyword(&out)
}

/// Masks `password=value` and `sslpassword=value` in keyword strings and query parts.
fn mask_keyword(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.to_ascii_lowercase().find("password=") {
        let value = at + "password=".len();
        out.push_str(&rest[..value]);
        out.push_str("***");
        let tail = &rest[value..];
        let end = match tail.strip_prefix('\'') {
            Some(quoted) => quoted.find('\'').map_or(tail.len(), |i| i + 2),
            None => tail.find(['&', ' ', '"', '\n']).unwrap_or(tail.len()),
        };
        rest = &tail[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_address_shows_its_password() {
        for (address, shown) in [
            ("postgres://shop:s3cret@db/x", "postgres://shop:***@db/x"),
            ("postgres://shop:p@ss@db:5432/x?a=b", "postgres://shop:***@db:5432/x?a=b"),
            ("host=db password=s3cret user=shop", "host=db password=*** user=shop"),
            ("host=db password='s3 cret' user=shop", "host=db password=*** user=shop"),
            ("postgres://db/x?password=s3cret&sslmode=require", "postgres://db/x?password=***&sslmode=require"),
            ("postgres://shop@db/x", "postgres://shop@db/x"),
            ("mysql://shop:s3cret@db:3306/x?ssl-mode=REQUIRED", "mysql://shop:***@db:3306/x?ssl-mode=REQUIRED"),
            ("mariadb://db/x?user=shop&password=s3cret", "mariadb://db/x?user=shop&password=***"),
        ] {
            assert_eq!(DbUrl::new(address).to_string(), shown);
            assert!(!format!("{:?}", DbUrl::new(address)).contains("cret"));
        }
    }
}
