//! One JSON object a line.

use jiff::Timestamp;
use serde::Serialize;

use super::{Event, Reporter, Sink};

pub struct Json(Sink);

impl Json {
    pub fn new(out: Sink) -> Self {
        Json(out)
    }
}

#[derive(Serialize)]
struct Line<'a> {
    at: Timestamp,
    #[serde(flatten)]
    event: &'a Event,
}

impl Reporter for Json {
    fn report(&self, event: &Event) {
        if let Ok(text) = serde_json::to_string(&Line { at: Timestamp::now(), event }) {
            // A message that can't be shown must not end the work that it is about.
            self.0.line(&text).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sink::Captured;
    use crate::stage::Stage;

    #[test]
    fn each_line_is_an_object_with_its_time() {
        let text = Captured::default();
        let json = Json::new(Sink::new(text.clone()));
        json.report(&Event::StageStarted { stage: Stage::Expand });
        json.report(&Event::DdlApplied { action: "add".into(), statements: vec!["alter …".into()], wait_ms: 0.4, hold_ms: 1.5, tries: 1 });
        let lines: Vec<serde_json::Value> = text.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&lines[0]["event"], &lines[0]["stage"]), (&"stage_started".into(), &"expand".into()));
        assert_eq!((&lines[1]["wait_ms"], &lines[1]["hold_ms"]), (&0.4.into(), &1.5.into()));
        assert!(lines.iter().all(|l| l["at"].as_str().unwrap().parse::<Timestamp>().is_ok()));
    }
}
