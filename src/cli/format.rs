//! `--format`: each command names the forms that it has.

use clap::builder::{PossibleValuesParser, TypedValueParser};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
    Markdown,
    Prometheus,
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
            Format::Markdown => "markdown",
            Format::Prometheus => "prometheus",
        }
    }

    /// Accepts these forms and no other.
    pub fn among(forms: &'static [Format]) -> impl TypedValueParser<Value = Format> {
        let names = PossibleValuesParser::new(forms.iter().map(|f| f.name()));
        names.try_map(|name| forms.iter().copied().find(|f| f.name() == name).ok_or("no such format"))
    }
}
