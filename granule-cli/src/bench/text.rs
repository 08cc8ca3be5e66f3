//! What the reports of all benchmarks share: the schema of their JSON, and how numbers are written.

/// The schema's number. Keys may be added to a schema; none goes away.
pub(super) const SCHEMA: u32 = 1;

/// A number with commas between its thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
