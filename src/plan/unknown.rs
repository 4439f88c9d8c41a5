//! Keys that nobody asked for, with the key that was probably meant.

use toml::de::DeTable;

use super::fault::{Fault, Notes, shown};

/// Notes every key of the file that no section asked for.
pub(super) fn report(top: &DeTable, notes: &Notes) {
    for (key, value) in top {
        let name = key.get_ref();
        if !notes.knows("", name) {
            let what = if value.get_ref().is_table() { "section" } else { "key" };
            notes.add(key.span(), Fault::new(format!("unknown {what} `{}`", shown(name)), help("", name, notes)));
        } else if let Some(table) = value.get_ref().as_table().filter(|_| notes.is_section(name)) {
            for key in table.keys().filter(|key| !notes.knows(name, key.get_ref())) {
                let message = format!("unknown key `{}` in [{name}]", shown(key.get_ref()));
                notes.add(key.span(), Fault::new(message, help(name, key.get_ref(), notes)));
            }
        }
    }
}

fn help(section: &str, key: &str, notes: &Notes) -> String {
    let homes: Vec<_> = notes.sections_with(key).iter().map(|section| format!("[{section}]")).collect();
    if !homes.is_empty() {
        return format!("`{key}` belongs under {}", homes.join(" or "));
    }
    let known = notes.keys_of(section);
    if let Some(near) = nearest(key, known.iter().copied()) {
        return if notes.is_section(near) { format!("did you mean [{near}]?") } else { format!("did you mean `{near}`?") };
    }
    let (sections, keys): (Vec<&str>, Vec<&str>) = known.into_iter().partition(|key| section.is_empty() && notes.is_section(key));
    let keys = format!("the keys here are {}", list(&keys, '`', '`'));
    if sections.is_empty() { keys } else { format!("{keys}; the sections are {}", list(&sections, '[', ']')) }
}

fn list(words: &[&str], open: char, close: char) -> String {
    words.iter().map(|word| format!("{open}{word}{close}")).collect::<Vec<_>>().join(", ")
}

/// The word that `text` is a slip of, if there is one.
pub(super) fn nearest<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer texts are no slips of a key, and comparing them would take its time.
    if text.len() > 40 {
        return None;
    }
    let text = text.to_lowercase().replace('-', "_");
    let slips = (text.chars().count() / 3).max(1);
    words.map(|word| (strsim::osa_distance(&text, word), word)).filter(|(distance, _)| *distance <= slips).min().map(|(_, word)| word)
}
