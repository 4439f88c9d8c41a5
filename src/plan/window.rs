//! Hours of the day in a time zone: `throttle.window = "22:00-06:00"`, `throttle.time_zone = "Europe/Berlin"`.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// From a time of the day up to another; over midnight when it ends before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: Time,
    pub to: Time,
    /// IANA name.
    pub time_zone: String,
}

impl Window {
    /// Reads `HH:MM-HH:MM`. None for anything else, and for a window without length.
    pub fn parse(text: &str, time_zone: &str) -> Option<Window> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (time_of_day(from)?, time_of_day(to)?);
        (from != to).then(|| Window { from, to, time_zone: time_zone.to_string() })
    }

    /// Whether it is open at that moment. False where the time zone is unknown: a missing signal is a bad one.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let Ok(zone) = TimeZone::get(&self.time_zone) else { return false };
        let time = now.to_zoned_datetime(zone).time();
        if self.from < self.to { self.from <= time && time < self.to } else { time >= self.from || time < self.to }
    }
}

fn time_of_day(text: &str) -> Option<Time> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let digits = |s: &str| (s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<i8>().ok()).flatten();
    Time::new(digits(hours)?, digits(minutes)?, 0, 0).ok()
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} {}", self.from.strftime("%H:%M"), self.to.strftime("%H:%M"), self.time_zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(window: &str, zone: &str, at: &str) -> bool {
        Window::parse(window, zone).unwrap().is_open(at.parse().unwrap())
    }

    #[test]
    fn a_window_may_go_over_midnight() {
        for (at, expected) in [("21:59", false), ("22:00", true), ("03:00", true), ("05:59", true), ("06:00", false)] {
            assert_eq!(open("22:00-06:00", "UTC", &format!("2026-03-01T{at}:00Z")), expected, "{at}");
        }
        assert!(open("09:00-17:00", "UTC", "2026-03-01T09:00:00Z") && !open("09:00-17:00", "UTC", "2026-03-01T17:00:00Z"));
    }

    #[test]
    fn the_zone_counts_with_its_summer_time() {
        assert!(open("22:00-06:00", "Europe/Berlin", "2026-01-10T21:30:00Z"));
        assert!(!open("22:00-06:00", "Europe/Berlin", "2026-01-10T20:30:00Z"));
        assert!(open("22:00-06:00", "Europe/Berlin", "2026-07-10T20:30:00Z"));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in ["22:00", "22-06", "24:00-06:00", "22:00-22:00", "9:00-17:00", "22:60-23:00", "-", ""] {
            assert_eq!(Window::parse(text, "UTC"), None, "{text}");
        }
    }
}
