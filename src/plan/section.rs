//! One section of a plan, read key by key. Asking for a key makes it known, so that there is no second list of keys to keep.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Part;
use super::fault::{Fault, Notes};
use super::value;

pub(super) struct Section<'a> {
    /// "" is the top of the file.
    name: &'static str,
    table: Option<&'a DeTable<'a>>,
    span: Range<usize>,
    notes: &'a Notes,
    /// Keys with a mistake: what was put in their place must not cause another.
    bad: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub fn top(table: &'a DeTable<'a>, notes: &'a Notes) -> Self {
        Section { name: "", table: Some(table), span: 0..0, notes, bad: Vec::new() }
    }

    /// Opens `[name]`. A section that is not there reads as an empty one.
    pub fn open(&mut self, name: &'static str) -> Section<'a> {
        let mut section = Section { name, table: None, span: self.span.clone(), notes: self.notes, bad: Vec::new() };
        if let Some((key, value)) = self.find(name) {
            match value.get_ref().as_table() {
                Some(table) => section.table = Some(table),
                None => {
                    let help = format!("write [{name}] on a line of its own and its keys below");
                    self.fault(name, value.span(), Fault::new("must be a section, once", help));
                }
            }
            section.span = if value.span().is_empty() { key } else { value.span() };
        }
        section
    }

    /// Opens `[name]`, which must be there.
    pub fn open_required(&mut self, name: &'static str) -> Section<'a> {
        if !self.has(name) {
            let fault = Fault::new(format!("the section [{name}] is missing"), format!("write [{name}] on a line of its own and its keys below"));
            self.notes.add(self.span.clone(), fault);
        }
        self.open(name)
    }

    /// The span of a key, and its value.
    fn find(&self, key: &'static str) -> Option<(Range<usize>, &'a Spanned<DeValue<'a>>)> {
        self.notes.know(self.name, key);
        self.table?.get_key_value(key).map(|(key, value)| (key.span(), value))
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { format!("`{key}`") } else { format!("`{}.{key}`", self.name) }
    }

    fn fault(&mut self, key: &'static str, span: Range<usize>, fault: Fault) {
        self.bad.push(key);
        let message = format!("{} {}", self.path(key), fault.message);
        self.notes.add(span, Fault { message, ..fault });
    }

    pub fn has(&self, key: &'static str) -> bool {
        self.find(key).is_some()
    }

    /// Whether `read` took a value under `key`, or there was none.
    fn is_good(&self, key: &str) -> bool {
        !self.bad.contains(&key)
    }

    /// Reads a key that may be left out.
    pub fn optional<T>(&mut self, key: &'static str, read: impl FnOnce(&DeValue) -> Result<T, Fault>) -> Option<T> {
        let (_, value) = self.find(key)?;
        read(value.get_ref()).map_err(|fault| self.fault(key, value.span(), fault)).ok()
    }

    /// Reads a key that must be there.
    pub fn required<T>(&mut self, key: &'static str, read: impl FnOnce(&DeValue) -> Result<T, Fault>) -> Option<T> {
        if !self.has(key) {
            self.missing(key);
        }
        self.optional(key, read)
    }

    /// Notes that `key` is missing, unless the whole section is.
    pub fn missing(&mut self, key: &'static str) {
        if self.table.is_none() {
            return;
        }
        let place = if self.name.is_empty() { "at the top of the file".to_owned() } else { format!("under [{}]", self.name) };
        self.fault(key, self.span.clone(), Fault::new("is missing", format!("write `{key} = …` {place}")));
    }

    pub fn duration(&mut self, key: &'static str, default: Duration) -> Duration {
        self.optional(key, value::duration).unwrap_or(default)
    }

    /// One of a few words, the first of which is the default.
    pub fn one_of<T: Copy, const N: usize>(&mut self, key: &'static str, words: [(&'static str, T); N]) -> T {
        let default = words[0].1;
        self.optional(key, |v| value::one_of(v, &words)).unwrap_or(default)
    }

    pub fn count(&mut self, key: &'static str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        self.optional(key, |v| value::count(v, range)).unwrap_or(default)
    }

    /// A list, each item of which can be wrong by itself.
    pub fn list<T>(&mut self, key: &'static str, read: impl Fn(&DeValue) -> Result<T, Fault>) -> Option<Vec<T>> {
        let (_, value) = self.find(key)?;
        let Some(items) = value.get_ref().as_array() else {
            self.fault(key, value.span(), value::wrong_type(value.get_ref(), "a list", "write it as [\"…\", \"…\"]"));
            return None;
        };
        let mut list = Vec::new();
        for item in items.iter() {
            match read(item.get_ref()) {
                Ok(read) => list.push(read),
                Err(fault) => self.fault(key, item.span(), fault),
            }
        }
        Some(list)
    }

    /// `"auto"`, or a list of statements.
    pub fn part(&mut self, key: &'static str, statement: impl Fn(&DeValue) -> Result<String, Fault>) -> Part {
        match self.find(key) {
            None => Part::Auto,
            Some((_, value)) if value.get_ref().is_str() => self.optional(key, |v| value::one_of(v, &[("auto", Part::Auto)])).unwrap_or(Part::Auto),
            Some(_) => self.list(key, statement).map_or(Part::Auto, Part::Statements),
        }
    }

    /// Refuses a key that the format has and this version hasn't.
    pub fn not_yet(&mut self, key: &'static str) {
        if let Some((span, _)) = self.find(key) {
            self.bad.push(key);
            self.notes.add(span, Fault::not_yet(&self.path(key)));
        }
    }

    /// Makes keys known that nobody reads.
    pub fn know(&self, keys: &[&'static str]) {
        keys.iter().for_each(|key| self.notes.know(self.name, key));
    }

    /// Notes `fault` unless `holds`, at the first of `keys` that the file has. Silent where one of them is already known to be wrong.
    pub fn check(&mut self, keys: &[&'static str], holds: bool, fault: Fault) {
        if holds || !keys.iter().all(|key| self.is_good(key)) {
            return;
        }
        let found = keys.iter().find_map(|key| self.find(key).map(|(_, value)| (*key, value.span())));
        if let Some((key, span)) = found {
            self.bad.push(key);
            self.notes.add(span, fault);
        }
    }

    /// Refuses a duration of zero; `why` says what it would do.
    pub fn not_zero(&mut self, key: &'static str, duration: Duration, why: &str) {
        let fault = Fault::new(format!("{} is zero", self.path(key)), why);
        self.check(&[key], !duration.is_zero(), fault);
    }
}
