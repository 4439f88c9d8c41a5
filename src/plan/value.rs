//! Single values of a plan: text to what it means, or the reason why not.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::Window;
use super::duration;
use super::fault::{Fault, shown};

/// Longer waits than a year are slips of the pen, and would overflow a date.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

pub(super) fn wrong_type(value: &DeValue, wanted: &str, help: &str) -> Fault {
    let found = match value {
        DeValue::Table(_) => "a section".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Integer(number) => format!("the number {}", shown(&number.to_string())),
        DeValue::Float(number) => format!("the number {}", shown(number.as_str())),
        DeValue::Boolean(yes) => format!("{yes}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::String(text) => format!("the text \"{}\"", shown(text)),
    };
    Fault::new(format!("must be {wanted}, not {found}"), help)
}

/// Text that is not blank and that a server takes.
pub(super) fn text<'a>(value: &'a DeValue) -> Result<&'a str, Fault> {
    let text = value.as_str().ok_or_else(|| wrong_type(value, "text", "put it in double quotes"))?;
    if text.trim().is_empty() {
        return Err(Fault::new("is empty", "give it a value, or leave the key out if it is optional"));
    }
    if text.contains('\0') {
        return Err(Fault::new("holds a NUL character", "PostgreSQL takes none, in names or in statements"));
    }
    Ok(text)
}

pub(super) fn duration(value: &DeValue) -> Result<Duration, Fault> {
    let help = "write one number and a unit, like \"250ms\", \"2s\", \"5m\", \"4h\" or \"3d\", at most \"365d\"";
    let text = value.as_str().ok_or_else(|| wrong_type(value, "a duration", help))?;
    match duration::parse(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(Fault::new(format!("must be a duration, not \"{}\"", shown(text)), help)),
    }
}

/// Bytes per second, as `"50MB/s"`. A kB is 1024 bytes, as in PostgreSQL's own settings.
pub(super) fn rate(value: &DeValue) -> Result<u64, Fault> {
    let help = "write one number and kB/s, MB/s or GB/s, like \"50MB/s\"; to have no limit, leave the key out";
    let text = value.as_str().ok_or_else(|| wrong_type(value, "a rate", help))?;
    let wrong = || Fault::new(format!("must be a rate, not \"{}\"", shown(text)), help);
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit: u64 = match &text[digits..] {
        "kB/s" => 1 << 10,
        "MB/s" => 1 << 20,
        "GB/s" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).filter(|rate| (1..=i64::MAX as u64).contains(rate)).ok_or_else(wrong)
}

/// A share, as `"75%"`.
pub(super) fn percent(value: &DeValue) -> Result<u32, Fault> {
    let help = "write a whole number from 1 to 99 and %, like \"75%\"; to have no limit, leave the key out";
    let text = value.as_str().ok_or_else(|| wrong_type(value, "a share", help))?;
    let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit())).and_then(|digits| digits.parse().ok());
    number.filter(|n| (1..=99).contains(n)).ok_or_else(|| Fault::new(format!("must be a share, not \"{}\"", shown(text)), help))
}

/// Hours of the day, as `"22:00-06:00"`.
pub(super) fn window(value: &DeValue, time_zone: &str) -> Result<Window, Fault> {
    let help = "write two times of 24 hours, like \"22:00-06:00\"; the zone goes into `time_zone`";
    let text = value.as_str().ok_or_else(|| wrong_type(value, "hours of the day", help))?;
    Window::parse(text, time_zone).ok_or_else(|| Fault::new(format!("must be hours of the day, not \"{}\"", shown(text)), help))
}

/// The name of a time zone that we know.
pub(super) fn time_zone(value: &DeValue) -> Result<String, Fault> {
    let name = text(value)?;
    let known = jiff::tz::TimeZone::get(name);
    known
        .map(|_| name.to_owned())
        .map_err(|_| Fault::new(format!("is no time zone: \"{}\"", shown(name)), "use an IANA name like \"Europe/Berlin\", or \"UTC\""))
}

pub(super) fn count(value: &DeValue, range: RangeInclusive<u32>) -> Result<u32, Fault> {
    let wanted = match range.clone().into_inner() {
        (least, u32::MAX) => format!("a whole number, at least {least}"),
        (least, most) => format!("a whole number from {least} to {most}"),
    };
    let wrong = || wrong_type(value, &wanted, "write the number without quotes");
    let number = value.as_integer().ok_or_else(wrong)?;
    u32::from_str_radix(number.as_str(), number.radix()).ok().filter(|n| range.contains(n)).ok_or_else(wrong)
}

pub(super) fn one_of<T: Clone>(value: &DeValue, words: &[(&'static str, T)]) -> Result<T, Fault> {
    let list = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    let all = if words.len() == 1 { format!("{list}, or a list of statements") } else { format!("one of {list}") };
    let text = value.as_str().ok_or_else(|| wrong_type(value, &all, "put the word in double quotes"))?;
    if let Some((_, meant)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(meant.clone());
    }
    let help = match super::unknown::nearest(text, words.iter().map(|(word, _)| *word)) {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => format!("write {all}"),
    };
    Err(Fault::new(format!("must be {all}, not \"{}\"", shown(text)), help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        let rate = |text: &'static str| rate(&DeValue::String(text.into())).ok();
        assert_eq!((rate("50MB/s"), rate("1kB/s"), rate("2GB/s")), (Some(50 << 20), Some(1024), Some(2 << 30)));
        for text in ["", "50", "50MB", "MB/s", "0MB/s", "-1MB/s", "1.5GB/s", "50mb/s", "50 MB/s", "99999999999999999GB/s"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }
}
