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

/// Keys of times, and of the host and the build: with all below them they are not compared, and no object that names a
/// file by its hash. `pieces` has the places of
/// the image's parts, `ratio` and those after it times over those of the host's floor.
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

    fn is_equal(key: &str, stored: impl Into<Value>, fresh: impl Into<Value>) -> bool {
        let row = |value: Value| json!([{"rows": [{key: value}]}]);
        differences(&row(stored.into()), &row(fresh.into())).is_empty()
    }

    #[test]
    fn counts_must_be_equal() {
        for key in ["tlbi", "dsb", "isb", "tables", "descriptor_stores"] {
            assert!(is_equal(key, 15_000, 15_000));
            assert!(!is_equal(key, 15_000, 15_001));
        }
        assert!(!is_equal("strategy", "base", "direct"));
    }

    #[test]
    fn instructions_may_differ_by_a_part_or_a_few() {
        assert!(is_equal("instructions", 100_000, 100_900));
        assert!(!is_equal("instructions", 100_000, 101_100));
        assert!(is_equal("relocation_instructions", 128, 328));
        assert!(!is_equal("relocation_instructions", 128, 329));
        assert!(!is_equal("instructions", 100, Value::Null));
    }

    #[test]
    fn ratios_and_percentages_have_their_own_tolerance() {
        assert!(is_equal("of_bound", 0.922, 0.949));
        assert!(!is_equal("of_bound", 0.922, 0.951));
        assert!(is_equal(
            "predicted_ms",
            8842.910978592692,
            8842.910978592693
        ));
        assert!(!is_equal("predicted_ms", 8842.9109, 8842.911));
        assert!(is_equal("over_fixed_percent", 0.1, -0.4));
        assert!(!is_equal("over_fixed_percent", 0.1, -0.41));
        let ratio =
            |tlbi: f64, instructions: f64| json!({"tlbi": tlbi, "instructions": instructions});
        assert!(is_equal(
            "ratio_to_base",
            ratio(0.5, 0.1879),
            ratio(0.5, 0.1901)
        ));
        assert!(!is_equal(
            "ratio_to_base",
            ratio(0.5, 0.1879),
            ratio(0.501, 0.1879)
        ));
    }

    #[test]
    fn times_and_what_names_the_host_are_not_compared() {
        for key in IGNORED.split(' ') {
            assert!(is_equal(key, json!({"a": 7}), json!({"a": 8})), "{key}");
        }
        let image = |sha256| json!({"sha256": sha256, "bytes": sha256});
        assert!(is_equal("image", image(7), image(8)));
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
