//! Finds single figures in the JSON of the benchmarks by a path, and computes differences, products and quotients of
//! them. Pure.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The operators of an expression, which is computed from left to right.
const OPERATORS: [&str; 3] = [" - ", " * ", " / "];

/// The figure of an expression: numbers and paths with operators between them. A path that begins with a dot goes on
/// from the path `at`.
pub(super) fn figure(json: &Value, at: &str, expression: &str) -> Result<f64> {
    let last = OPERATORS
        .iter()
        .filter_map(|it| Some((expression.rfind(it)?, *it)));
    if let Some((place, operator)) = last.max() {
        let left = figure(json, at, &expression[..place])?;
        let right = figure(json, at, &expression[place + operator.len()..])?;
        let result = match operator {
            " - " => left - right,
            " * " => left * right,
            _ => left / right,
        };
        ensure!(result.is_finite(), "{expression}: {result} is not a figure");
        return Ok(result);
    }
    if let Ok(number) = expression.parse() {
        return Ok(number);
    }
    let start = if expression.starts_with('.') { at } else { "" };
    let path = [start, expression].concat();
    let value = select(json, &path)?;
    let number = value.as_f64();
    number.with_context(|| format!("{path}: {value} is not a number"))
}

/// The value at a path: keys or places in an array between dots, and after a key, in brackets, what the one wanted object
/// of the array has: `rows[page_size=4K&strategy=direct].linear_map.tlbi`.
pub(crate) fn select<'a>(json: &'a Value, path: &str) -> Result<&'a Value> {
    let mut at = json;
    for step in steps(path) {
        let (key, filter) = match step.split_once('[') {
            Some((key, filter)) => (key, filter.strip_suffix(']')),
            None => (step, None),
        };
        let part = match at {
            Value::Array(all) => key.parse().ok().and_then(|place: usize| all.get(place)),
            _ => at.get(key),
        };
        at = part.with_context(|| format!("{path}: no `{key}`"))?;
        let Some(filter) = filter else { continue };
        let all = at.as_array();
        let all = all.with_context(|| format!("{path}: `{key}` is not an array"))?;
        let mut fitting = all
            .iter()
            .filter(|item| filter.split('&').all(|pair| has(item, pair)));
        at = match (fitting.next(), fitting.next()) {
            (Some(one), None) => one,
            (None, _) => bail!("{path}: nothing in `{key}` has {filter}"),
            _ => bail!("{path}: several objects in `{key}` have {filter}"),
        };
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
        Some(Value::Bool(is)) => is.to_string() == wanted,
        Some(Value::Number(number)) => number.as_u64().is_some_and(|n| bytes(wanted) == Some(n)),
        _ => false,
    }
}

/// A number, of bytes if it has a unit: `4K`, `512G`.
fn bytes(text: &str) -> Option<u64> {
    let unit = "KMG".find(|unit| text.ends_with(unit));
    let number: u64 = text.trim_end_matches(['K', 'M', 'G']).parse().ok()?;
    Some(number << unit.map_or(0, |unit| 10 * (unit + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows() -> Value {
        json!({"rows": [
            {"page_size": 4096, "way": "base", "large": false, "map": {"tlbi": 7, "dsb": 21}},
            {"page_size": 4096, "way": "a 1.b", "large": true, "map": {"tlbi": 0}},
        ]})
    }

    #[test]
    fn a_row_is_found_by_what_it_has() {
        let tlbi = |path| figure(&rows(), "", path).map_err(|error| error.to_string());
        assert_eq!(tlbi("rows[page_size=4K&way=a 1.b].map.tlbi"), Ok(0.0));
        assert_eq!(tlbi("rows[large=false].map.tlbi"), Ok(7.0));
        assert_eq!(tlbi("rows.1.map.tlbi"), Ok(0.0));
        for (path, reason) in [
            ("rows[way=c].map.tlbi", "nothing in `rows` has way=c"),
            ("rows[page_size=4K].map.tlbi", "several objects in `rows`"),
            ("rows[way=base].map.isb", "no `isb`"),
            ("rows[way=base].map", "is not a number"),
            ("rows.map", "no `map`"),
            ("rows.2", "no `2`"),
            ("rows[way=base].map[a=b]", "is not an array"),
        ] {
            assert!(tlbi(path).unwrap_err().contains(reason), "{path}");
        }
    }

    #[test]
    fn operators_are_carried_out_from_left_to_right() {
        let of = |text| figure(&rows(), "rows[way=base].map", text).ok();
        assert_eq!(of(".dsb / .tlbi * 4"), Some(12.0));
        assert_eq!(of(".dsb - 1 - .tlbi / 2"), Some(6.5));
        assert_eq!(of("40.5e6"), Some(40.5e6));
        assert_eq!(of("1 / 0"), None);
    }
}
