//! A column's definition as SHOW CREATE TABLE gives it, taken apart as far as we change it: MODIFY must name all of it again.

use std::fmt;
use std::ops::Range;

use sqlparser::tokenizer::Token;

use super::sql::tokens;

/// What stands after a column's name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Definition {
    /// The type with its character set and collation.
    pub type_name: String,
    pub not_null: bool,
    /// SQL text; None for none, and for NULL.
    pub default: Option<String>,
    /// For example `CURRENT_TIMESTAMP(3)`.
    pub on_update: Option<String>,
    pub invisible: bool,
    /// Everything else: comment, generation, storage.
    pub rest: String,
}

impl Definition {
    pub fn parse(text: &str) -> Definition {
        // The server hides from older ones what they can't read.
        let plain = text.replace("/*!80023 INVISIBLE */", "INVISIBLE");
        let mut words = Words { text: &plain, tokens: tokens(&plain).unwrap_or_default(), at: 0 };
        let mut out = Definition { type_name: words.value().to_string(), ..Definition::default() };
        let mut rest = Vec::new();
        while !words.done() {
            if words.take(&["UNSIGNED"]) {
                out.type_name += " unsigned";
            } else if words.take(&["ZEROFILL"]) {
                out.type_name += " zerofill";
            } else if words.take(&["CHARACTER", "SET"]) {
                out.type_name += &format!(" CHARACTER SET {}", words.value());
            } else if words.take(&["COLLATE"]) {
                out.type_name += &format!(" COLLATE {}", words.value());
            } else if words.take(&["NOT", "NULL"]) {
                out.not_null = true;
            } else if words.take(&["NULL"]) {
                out.not_null = false;
            } else if words.take(&["DEFAULT"]) {
                out.default = Some(words.value().to_string()).filter(|value| !value.eq_ignore_ascii_case("NULL"));
            } else if words.take(&["ON", "UPDATE"]) {
                out.on_update = Some(words.value().to_string());
            } else if words.take(&["INVISIBLE"]) {
                out.invisible = true;
            } else {
                rest.push(words.value());
            }
        }
        out.rest = rest.join(" ");
        out
    }
}

/// As ADD COLUMN and MODIFY take it.
impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.type_name, if self.not_null { "NOT NULL" } else { "NULL" })?;
        if let Some(default) = &self.default {
            write!(f, " DEFAULT {default}")?;
        }
        if let Some(on_update) = &self.on_update {
            write!(f, " ON UPDATE {on_update}")?;
        }
        if self.invisible {
            f.write_str(" INVISIBLE")?;
        }
        if !self.rest.is_empty() {
            write!(f, " {}", self.rest)?;
        }
        Ok(())
    }
}

struct Words<'a> {
    text: &'a str,
    tokens: Vec<(Token, Range<usize>)>,
    at: usize,
}

impl<'a> Words<'a> {
    fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Goes past these words, if they come next.
    fn take(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(i, word)| {
            matches!(self.tokens.get(self.at + i), Some((Token::Word(w), _)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
        });
        self.at += if found { words.len() } else { 0 };
        found
    }

    /// A word or a constant, with the sign before it and the parentheses that follow it, as it is written.
    fn value(&mut self) -> &'a str {
        let Some((_, first)) = self.tokens.get(self.at) else { return "" };
        let start = first.start;
        let next = |at: usize| self.tokens.get(at).map(|(token, _)| token);
        let mut at = self.at;
        while matches!(next(at), Some(Token::Minus | Token::Plus)) {
            at += 1;
        }
        let introducer = matches!(next(at), Some(Token::Word(w)) if w.value.starts_with('_'));
        if !matches!(next(at), Some(Token::LParen)) {
            at += if introducer { 2 } else { 1 };
        }
        // `next value for `db`.`sequence``, `db`.`function`(…)
        while matches!(next(at), Some(Token::Period)) {
            at += 2;
        }
        let mut depth = 0;
        while let Some(token) = next(at) {
            match token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ if depth == 0 => break,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        self.at = at.min(self.tokens.len());
        let end = self.tokens.get(self.at.saturating_sub(1)).map_or(start, |(_, span)| span.end);
        &self.text[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_taken_apart_and_put_together() {
        for (text, again) in [
            ("int NOT NULL AUTO_INCREMENT", "int NOT NULL AUTO_INCREMENT"),
            ("int(10) unsigned DEFAULT '5'", "int(10) unsigned NULL DEFAULT '5'"),
            ("varchar(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL DEFAULT 'a''b'", "varchar(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL DEFAULT 'a''b'"),
            ("text NOT NULL DEFAULT (_utf8mb4'')", "text NOT NULL DEFAULT (_utf8mb4'')"),
            ("varchar(30) DEFAULT (concat(_utf8mb4'a',_utf8mb4'b')) COMMENT 'it''s NOT NULL'", "varchar(30) NULL DEFAULT (concat(_utf8mb4'a',_utf8mb4'b')) COMMENT 'it''s NOT NULL'"),
            ("timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)", "timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"),
            ("int DEFAULT NULL /*!80023 INVISIBLE */", "int NULL INVISIBLE"),
            ("int(11) INVISIBLE DEFAULT -1", "int(11) NULL DEFAULT -1 INVISIBLE"),
            ("enum('a','b(''') DEFAULT NULL", "enum('a','b(''') NULL"),
            ("decimal(10,2) NOT NULL", "decimal(10,2) NOT NULL"),
        ] {
            let definition = Definition::parse(text);
            assert_eq!(definition.to_string(), again, "{text}");
            assert_eq!(Definition::parse(again), definition, "{text}");
        }
        assert_eq!(Definition::parse("enum('a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL").type_name, "enum('a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
    }
}
