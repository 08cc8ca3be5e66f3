//! The records of several kernels on one console: `@granule end` ends a record, and the next line
//! begins the next kernel's.
//!
//! `console_record` parses the lines of a record.
//!
//! All records are judged together (`boot::outcome`): if the next kernel fails or never reports, the boot has
//! failed.

use super::console_record::RecordLines;

/// The records of all kernels on one console.
#[derive(Debug, Default)]
pub struct Records {
    /// The records that have ended.
    earlier: Vec<RecordLines>,
    /// The record being read, or read last.
    last: RecordLines,
}

impl Records {
    /// The most records kept apart. A longer chain of kernels is a mistake, and a guest must not
    /// fill our memory with records.
    pub const MOST: usize = 64;

    /// Takes one line, without `@granule `; returns whether it ended a record.
    pub fn line(&mut self, line: &str) -> bool {
        // Records beyond the bound are merged into one, which then has lines after its end.
        if self.last.has_ended() && self.earlier.len() + 1 < Self::MOST {
            self.earlier.push(std::mem::take(&mut self.last));
        }
        self.last.line(line);
        line == "end"
    }

    /// The records in order; there is always at least one, which may be empty.
    pub fn iter(&self) -> impl Iterator<Item = &RecordLines> {
        self.earlier.iter().chain([&self.last])
    }

    pub fn last(&self) -> &RecordLines {
        &self.last
    }

    /// The number of kernels that printed a line.
    pub fn count(&self) -> usize {
        self.earlier.len() + usize::from(!self.last.is_empty())
    }

    /// The record that describes the guest: the last one with a page size, which our kernels print
    /// before anything else; the last record if none has one.
    pub fn ours(&self) -> &RecordLines {
        let has_page_size = |record: &&RecordLines| record.get("page_size").is_some();
        let mut latest_first = [&self.last].into_iter().chain(self.earlier.iter().rev());
        latest_first.find(has_page_size).unwrap_or(&self.last)
    }

    /// The records with at least one line, in order.
    pub fn into_boots(mut self) -> Vec<RecordLines> {
        if !self.last.is_empty() {
            self.earlier.push(self.last);
        }
        self.earlier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(lines: &[&str]) -> Records {
        let mut records = Records::default();
        for line in lines {
            records.line(line);
        }
        records
    }

    fn sizes(records: &Records) -> Vec<Option<u64>> {
        let size =
            |record: &RecordLines| record.get("page_size").and_then(serde_json::Value::as_u64);
        records.iter().map(size).collect()
    }

    #[test]
    fn lines_after_an_end_belong_to_the_next_kernel() {
        let two = records(&[
            "page_size=4096",
            "errata=a",
            "outcome=ok",
            "end",
            "page_size=65536",
            "outcome=panic",
            "reason=r",
            "end",
        ]);
        assert_eq!(sizes(&two), [Some(4096), Some(65536)]);
        assert_eq!(two.count(), 2);
        assert_eq!(two.ours().get("errata"), Some(&serde_json::json!([])));
        assert_eq!(two.last().reason(), Some("r"));
        assert!(two.iter().all(RecordLines::has_ended));
        let boots = two.into_boots();
        assert_eq!(boots[0].get("errata"), Some(&serde_json::json!(["a"])));
    }

    #[test]
    fn one_kernel_is_one_record_wherever_it_stops() {
        let lines = ["page_size=4096", "outcome=ok", "end"];
        for length in 0..=lines.len() {
            let one = records(&lines[..length]);
            assert_eq!(
                (one.iter().count(), one.count()),
                (1, usize::from(length > 0))
            );
            assert_eq!(one.last().has_ended(), length == lines.len());
        }
        assert!(Records::default().into_boots().is_empty());
    }

    #[test]
    fn a_second_record_that_is_cut_short_has_no_end() {
        let two = records(&["page_size=4096", "outcome=ok", "end", "page_size=65536"]);
        let ended: Vec<bool> = two.iter().map(RecordLines::has_ended).collect();
        assert_eq!(ended, [true, false]);
        // A line that cannot be parsed counts as a line too.
        let noise = records(&["outcome=ok", "end", "?"]);
        assert_eq!((noise.count(), noise.last().faults().len()), (2, 1));
    }

    #[test]
    fn the_last_of_ours_describes_the_guest() {
        let other = records(&["page_size=4096", "end", "probe.el=2", "outcome=ok", "end"]);
        assert_eq!(other.ours().get("page_size"), Some(&4096.into()));
        let none = records(&["a=1", "end", "b=2"]);
        assert!(none.ours().get("b").is_some());
    }

    #[test]
    fn an_endless_chain_stays_bounded() {
        let mut many = Records::default();
        for _ in 0..10 * Records::MOST {
            many.line("page_size=4096");
            assert!(many.line("end"));
        }
        assert_eq!(many.count(), Records::MOST);
    }
}
