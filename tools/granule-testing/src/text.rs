//! Checks of text that a program printed.

/// Panics unless `text` has `part` in it.
#[track_caller]
pub fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text}");
}

/// Panics unless `text` begins with `part`.
#[track_caller]
pub fn assert_starts_with(text: &str, part: &str) {
    assert!(text.starts_with(part), "{part:?} does not begin {text}");
}

/// Panics unless `text` ends with `part`.
#[track_caller]
pub fn assert_ends_with(text: &str, part: &str) {
    assert!(text.ends_with(part), "{part:?} does not end {text}");
}
