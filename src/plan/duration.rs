//! Durations as people write them: `250ms`, `2s`, `5m`, `4h`, `3d`.

use std::time::Duration;

/// Reads one number and one unit. The error says which forms are accepted.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration: write one number and a unit, like \"250ms\", \"2s\", \"5m\", \"4h\" or \"3d\"");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(|| format!("`{text}` is too long"))
}

/// The shortest exact form that `parse` reads back, down to a millisecond.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= size && ms.is_multiple_of(size) {
            return format!("{}{unit}", ms / size);
        }
    }
    format!("{ms}ms")
}

/// Keeps durations readable in JSON: `#[serde(with = "duration::as_text")]`.
pub mod as_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::show(*duration))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        super::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["0ms", "250ms", "2s", "90s", "5m", "4h", "3d"] {
            assert_eq!(parse(&show(parse(text).unwrap())), parse(text));
        }
    }

    #[test]
    fn wrong_units_are_refused() {
        for text in ["", "5", "s", "5 s", "-5s", "1.5h", "5sec", "99999999999999999999d", "999999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
