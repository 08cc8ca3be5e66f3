//! Finds single figures in the JSON of the benchmarks, by a path; writes figures and tables as documents have them.

use anyhow::{Context, Result};
use serde_json::Value;

/// The value at a path: keys between dots, and after a key, in brackets, the required values of the one
/// wanted object of the array: `rows[page_size=4096,strategy=direct].linear_map.tlbi`.
pub(super) fn select<'a>(json: &'a Value, path: &str) -> Result<&'a Value> {
    let mut at = json;
    for step in steps(path) {
        let (key, filter) = match step.split_once('[') {
            Some((key, filter)) => (key, filter.strip_suffix(']')),
            None => (step, None),
        };
        if !key.is_empty() {
            at = at.get(key).with_context(|| format!("{path}: no `{key}`"))?;
        }
        if let Some(filter) = filter {
            let mut fitting = at
                .as_array()
                .with_context(|| format!("{path}: `{key}` is no array"))?
                .iter()
                .filter(|item| filter.split(',').all(|pair| has(item, pair)));
            at = fitting
                .next()
                .with_context(|| format!("{path}: nothing in `{key}` has {filter}"))?;
        }
    }
    Ok(at)
}

/// The parts between dots; a dot within brackets divides nothing.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    path.split(move |c| {
        inside = (inside || c == '[') && c != ']';
        c == '.' && !inside
    })
}

fn has(item: &Value, pair: &str) -> bool {
    let Some((key, wanted)) = pair.split_once('=') else {
        return false;
    };
    match item.get(key) {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Number(number)) => number.as_u64().is_some_and(|n| wanted.parse() == Ok(n)),
        _ => false,
    }
}

/// The number at a path.
pub(super) fn number(json: &Value, path: &str) -> Result<f64> {
    let value = select(json, path)?;
    value
        .as_f64()
        .with_context(|| format!("{path}: {value} is no number"))
}

/// The array at a path.
pub(super) fn rows<'a>(json: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    select(json, key)?
        .as_array()
        .with_context(|| format!("{key} is no array"))
}

/// The text at a path.
pub(super) fn text<'a>(json: &'a Value, key: &str) -> Result<&'a str> {
    select(json, key)?
        .as_str()
        .with_context(|| format!("{key} is no text"))
}

/// The count at a path.
pub(super) fn count(json: &Value, path: &str) -> Result<u64> {
    let value = select(json, path)?;
    value
        .as_u64()
        .with_context(|| format!("{path}: {value} is no count"))
}

/// A number with commas between its thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A page size in words.
pub(super) fn page_size(bytes: u64) -> String {
    format!("{}K", bytes >> 10)
}

/// A Markdown table. The first columns and those without a name have words, the others, if any, numbers.
pub(super) fn table(words: usize, head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let columns = head.iter().enumerate().map(|(at, name)| {
        let is_number = at >= words && !name.is_empty();
        (
            (*name).to_owned(),
            if is_number { "---:" } else { "---" }.to_owned(),
        )
    });
    let (names, rule): (Vec<_>, Vec<_>) = columns.unzip();
    line(&names) + &line(&rule) + &rows.iter().map(|row| line(row)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_found_by_what_it_has() {
        let json = json!({"rows": [
            {"page_size": 4096, "way": "base", "map": {"tlbi": 7}},
            {"page_size": 4096, "way": "a.b", "map": {"tlbi": 0}},
        ]});
        let tlbi = |path| count(&json, path).map_err(|error| error.to_string());
        assert_eq!(tlbi("rows[page_size=4096,way=a.b].map.tlbi"), Ok(0));
        assert_eq!(tlbi("rows[way=base].map.tlbi"), Ok(7));
        for (path, told) in [
            ("rows[way=c].map.tlbi", "nothing in `rows` has way=c"),
            ("rows[way=base].map.dsb", "no `dsb`"),
            ("rows[way=base].map", "is no count"),
            ("rows.map", "no `map`"),
            ("rows[way=base].map[a=b]", "is no array"),
        ] {
            assert!(tlbi(path).unwrap_err().contains(told), "{path}");
        }
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_719_085), "1,719,085");
    }
}
