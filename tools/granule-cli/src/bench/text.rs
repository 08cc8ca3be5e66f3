//! Parts shared by the reports of all benchmarks: the schema of their JSON, and the form of
//! numbers.

/// The schema's number. Keys may be added to a schema but never removed.
pub(crate) const SCHEMA: u32 = 1;

/// A number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
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
