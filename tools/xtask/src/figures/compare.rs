//! Decides whether the stored results of a run still agree with fresh ones, key by key. Pure.
//!
//! TLBIs, barriers, stores, tables and leaves must agree to the last digit: a difference is a change of the
//! code's behaviour. Instructions may differ a little, because the linker's placement of the kernel's parts
//! moves them: text and constants are read-only in the map and cut it, and the compiler lays out loops
//! anew. Times, and what only names this host or this build, are not compared.

use serde_json::Value;

/// Instructions may differ by this part of the fresh count …
const PART: f64 = 0.01;
/// … or by this many, whichever is more: for a block map a few hundred are more than one in a hundred.
const COUNT: f64 = 200.0;
/// Tolerance of ratios of instructions, one side of which may be a small map.
const RATIO_PART: f64 = 0.03;
/// Tolerance of percentages, in points.
const POINTS: f64 = 0.5;

/// Other fractions are computed from counts: only their last digits depend on the host.
const DIGITS: f64 = 1e-9;

/// Keys that contain times, or describe the host or the build. They and all below them are not compared, nor is an
/// object that names a file by its hash. `pieces` has the places of the image's parts, `ratio` and those after it times
/// over those of the host's floor.
const IGNORED: &str = "version path peak_resident_bytes time_us pieces ratio ns_per_leaf \
    floor_ns_per_leaf floors goals";

/// Words in keys of instructions, or of what is computed from them.
const NEAR: &str = "instructions percent of_bound per_line lines_cleaned";

/// All differences, in the order of the stored results: the path of the key and both values.
pub(super) fn differences(stored: &Value, fresh: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("results", "", Some(stored), Some(fresh), &mut found);
    found
}

/// Compares the values at a path, whose last key is `key`.
fn compare(
    path: &str,
    key: &str,
    stored: Option<&Value>,
    fresh: Option<&Value>,
    found: &mut Vec<String>,
) {
    match (stored, fresh) {
        _ if IGNORED.split(' ').any(|word| word == key) => (),
        (Some(Value::Object(a)), _) if a.contains_key("sha256") => (),
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(added) {
                compare(&format!("{path}.{key}"), key, a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                compare(&format!("{path}[{at}]"), key, a.get(at), b.get(at), found);
            }
        }
        _ if stored == fresh || is_near(key, stored, fresh) => (),
        _ => {
            let [stored, fresh] =
                [stored, fresh].map(|it| it.map_or("nothing".to_owned(), Value::to_string));
            found.push(format!("{path}: stored {stored}, measured {fresh}"));
        }
    }
}

/// Whether two numbers are near enough for what the key is.
fn is_near(key: &str, stored: Option<&Value>, fresh: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    let (Some(a), Some(b)) = (number(stored), number(fresh)) else {
        return false;
    };
    let is_fraction = fresh.is_some_and(Value::is_f64);
    let room = match NEAR.split(' ').any(|word| key.contains(word)) {
        true if key.contains("percent") => POINTS,
        true if is_fraction => RATIO_PART * b.abs(),
        true => (PART * b.abs()).max(COUNT),
        false if is_fraction => DIGITS * b.abs(),
        false => 0.0,
    };
    (a - b).abs() <= room
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_figure_has_its_tolerance() {
        #[rustfmt::skip]
        let mut cases = vec![
            // Counts must be equal.
            ("tlbi", json!(15_000), json!(15_000), true),
            ("tlbi", json!(15_000), json!(15_001), false),
            ("tables", json!(15_000), json!(15_001), false),
            ("descriptor_stores", json!(15_000), json!(15_001), false),
            ("strategy", json!("base"), json!("direct"), false),
            // Instructions may differ by a part or a few.
            ("instructions", json!(100_000), json!(100_900), true),
            ("instructions", json!(100_000), json!(101_100), false),
            ("relocation_instructions", json!(128), json!(328), true),
            ("relocation_instructions", json!(128), json!(329), false),
            ("instructions", json!(100), Value::Null, false),
            // Ratios, computed figures and percentages.
            ("of_bound", json!(0.922), json!(0.949), true),
            ("of_bound", json!(0.922), json!(0.951), false),
            ("predicted_ms", json!(8842.910978592692), json!(8842.910978592693), true),
            ("predicted_ms", json!(8842.9109), json!(8842.911), false),
            ("over_fixed_percent", json!(0.1), json!(-0.4), true),
            ("over_fixed_percent", json!(0.1), json!(-0.41), false),
            ("ratio_to_base", json!({"tlbi": 0.5, "instructions": 0.1879}), json!({"tlbi": 0.5, "instructions": 0.1901}), true),
            ("ratio_to_base", json!({"tlbi": 0.5}), json!({"tlbi": 0.501}), false),
            // Names of the build.
            ("image", json!({"sha256": 7, "bytes": 7}), json!({"sha256": 8, "bytes": 8}), true),
        ];
        let ignored = IGNORED.split(' ');
        cases.extend(ignored.map(|key| (key, json!({"a": 7}), json!({"a": 8}), true)));
        for (key, stored, fresh, is_equal) in cases {
            let row = |value: &Value| json!([{"rows": [{key: value}]}]);
            let found = differences(&row(&stored), &row(&fresh));
            assert_eq!(found.is_empty(), is_equal, "{key}: {stored}, {fresh}");
        }
    }

    #[test]
    fn a_key_or_a_row_more_or_less_is_a_difference() {
        let rows = |rows: Value| json!([{ "rows": rows }]);
        let all = differences(&rows(json!([{"dsb": 1}, 7])), &rows(json!([{"isb": 1}])));
        assert_eq!(
            all,
            [
                "results[0].rows[0].dsb: stored 1, measured nothing",
                "results[0].rows[0].isb: stored nothing, measured 1",
                "results[0].rows[1]: stored 7, measured nothing",
            ]
        );
    }
}
