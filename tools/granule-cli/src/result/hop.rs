//! One hop from a kernel to the next, read from both records.

use serde_json::Value;

use super::console_record::RecordLines;

/// Under `-icount shift=0` an instruction takes one nanosecond of counter time.
const NANOSECONDS: u128 = 1_000_000_000;

/// A leaving kernel's record, and the next kernel's if that printed one.
pub(super) struct Hop<'a> {
    pub(super) leaving: &'a RecordLines,
    pub(super) next: Option<&'a RecordLines>,
    /// Whether the leaving kernel was the first kernel.
    pub(super) first: bool,
}

impl<'a> Hop<'a> {
    /// The last hop in these records.
    pub(super) fn last(records: &'a [RecordLines]) -> Option<Self> {
        let at = records.iter().rposition(left)?;
        Some(Self {
            leaving: &records[at],
            next: records.get(at + 1),
            first: at == 0,
        })
    }

    /// A number that the next kernel reported.
    pub(super) fn arrived(&self, key: &str) -> Option<u64> {
        self.next?.get(&format!("kexec.{key}")).and_then(number)
    }

    /// A number that either kernel reported. The next kernel reports more, but one that is not ours
    /// reports nothing.
    pub(super) fn reported(&self, key: &str) -> Option<u64> {
        let leaving = || self.leaving.get(&format!("kexec.leaving.{key}"));
        self.arrived(key).or_else(|| leaving().and_then(number))
    }

    /// The instructions between two tick counts.
    pub(super) fn instructions(&self, from: &str, to: &str) -> Option<u64> {
        let [from, to] = [from, to].map(|key| self.arrived(&format!("count.{key}")));
        let hz = self.arrived("count.hz").filter(|hz| *hz != 0)?;
        let ticks = to?.checked_sub(from?)?;
        u64::try_from(u128::from(ticks) * NANOSECONDS / u128::from(hz)).ok()
    }
}

/// Whether this kernel reported that it leaves for another.
pub(crate) fn left(record: &RecordLines) -> bool {
    record.get("kexec.leaving").is_some()
}

/// A number in either form: a hexadecimal one is text in the record.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => {
            let digits = text.strip_prefix("0x")?;
            // The standard library accepts a sign, which is not a digit.
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok())?
        }
        other => other.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hexadecimal_is_a_number_and_nothing_else_is() {
        assert_eq!(number(&json!("0xff")), Some(255));
        assert_eq!(number(&json!(7)), Some(7));
        for other in [
            json!("ff"),
            json!("0x"),
            json!("0x+1"),
            json!(-1),
            json!(true),
        ] {
            assert_eq!(number(&other), None, "{other}");
        }
        assert_eq!(number(&json!("0x10000000000000000")), None);
    }
}
