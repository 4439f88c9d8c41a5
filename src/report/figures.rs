//! Figures as people read them.

use jiff::Timestamp;

/// `120,000`.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Milliseconds: `0.4 ms`, `12 ms`, `1.3 s`.
pub fn ms(ms: f64) -> String {
    match ms {
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Seconds in the two largest units that matter: `5 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn span(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {unit}"),
        _ => format!("{big} {unit} {small} {small_unit}"),
    };
    match (d, h, m) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, m) => two(m, "min", s, "s"),
        (0, h, m) => two(h, "h", m, "min"),
        (d, h, _) => two(d, "d", h, "h"),
    }
}

/// `64.0 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

/// `2026-01-02T10:00:00Z`: to the second, in UTC, so that it can be pasted into any other tool.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What is waited for, with the earliest time that it can end, unless the words say that already.
pub fn not_before(said: &str, at: Option<Timestamp>) -> String {
    match at {
        Some(at) if !said.contains("not before") => format!("{said}, not before {}", time(at)),
        _ => said.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.04, 9.0, 12.4, 1300.0].map(ms), ["0.0 ms", "9.0 ms", "12 ms", "1.3 s"]);
        assert_eq!([5, 60, 200, 7500, 273_600].map(span), ["5 s", "1 min", "3 min 20 s", "2 h 5 min", "3 d 4 h"]);
        assert_eq!([12, 2048, 64 << 20, 3 << 40].map(bytes), ["12 B", "2.0 KiB", "64.0 MiB", "3.0 TiB"]);
    }
}
