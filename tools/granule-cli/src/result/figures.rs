//! The cost of leaving for another kernel, computed from both kernels' records: the object `kexec`
//! of the JSON object.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::console_record::RecordLines;
use super::hop::Hop;
use super::payload::{Compared, Payload};

/// The cost of one kernel's leaving for another, as far as it was reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Figures {
    /// Page size of the leaving kernel; null if it did not print it.
    pub from_page_size: Option<u64>,
    /// Page size of the next kernel; null if it did not print it.
    pub to_page_size: Option<u64>,
    /// Bytes of image, initial RAM disk and device tree.
    pub bytes_total: Option<u64>,
    /// Bytes of these that the relocation copied, because they could not be loaded in place.
    pub bytes_copied: Option<u64>,
    /// Cache lines that the relocation cleaned to the point of coherency.
    pub lines_cleaned: Option<u64>,
    /// DSBs of the relocation.
    pub dsb: Option<u64>,
    /// Instructions of the relocation, up to the next kernel's entry, in steps of 16 (a tick of the counter); null
    /// without `--icount`, and if the next kernel does not print when it was entered.
    pub instructions: Option<u64>,
    /// Whether the files arrived intact, by this program's own digests of them: the image as loaded, and after
    /// arrival the part of it that no boot step writes; initial RAM disk and tree as loaded and after arrival. Null
    /// if not all of these digests were printed, as with a kernel that is not ours.
    pub digest_ok: Option<bool>,
    /// The difference between the payload given and the payload that arrived.
    #[serde(skip)]
    pub(crate) differs: Option<String>,
}

impl Figures {
    /// The figures of the kernels' chain; `None` if no kernel left and none was requested to.
    pub(crate) fn of(
        boots: &[RecordLines],
        payload: Option<&Payload>,
        counted: bool,
    ) -> Option<Self> {
        let Some(hop) = Hop::last(boots) else {
            return payload.map(|_| Self::default());
        };
        let page_size = |record: &RecordLines| record.get("page_size").and_then(Value::as_u64);
        let compared = payload
            .filter(|_| hop.first)
            .map(|payload| payload.compare(&hop));
        Some(Self {
            from_page_size: page_size(hop.leaving),
            to_page_size: hop.next.and_then(page_size),
            bytes_total: hop.reported("bytes_total"),
            bytes_copied: hop.reported("bytes_copied"),
            lines_cleaned: hop.reported("lines_cleaned"),
            dsb: hop.reported("dsb"),
            instructions: counted
                .then(|| hop.instructions("leave", "entry"))
                .flatten(),
            digest_ok: compared.as_ref().and_then(|compared| match compared {
                Compared::Same => Some(true),
                Compared::Differs(_) => Some(false),
                Compared::Incomplete => None,
            }),
            differs: match compared {
                Some(Compared::Differs(line)) => Some(line),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(lines: &[&str]) -> RecordLines {
        let mut record = RecordLines::default();
        for line in lines {
            record.line(line);
        }
        record
    }

    fn leaving() -> RecordLines {
        record(&[
            "page_size=4096",
            "kexec.leaving.bytes_total=70",
            "kexec.leaving.dsb=3",
        ])
    }

    #[test]
    fn figures_are_the_next_kernels_or_else_those_of_the_one_that_left() {
        let next = record(&[
            "page_size=65536",
            "kexec.bytes_total=71",
            "kexec.bytes_copied=0",
            "kexec.lines_cleaned=5",
            "kexec.count.leave=1000",
            "kexec.count.entry=1010",
            "kexec.count.hz=62500000",
        ]);
        let both = Figures::of(&[leaving(), next], None, true).unwrap();
        assert_eq!(
            crate::json::value(&both),
            json!({
                "from_page_size": 4096, "to_page_size": 65536, "bytes_total": 71, "bytes_copied": 0,
                "lines_cleaned": 5, "dsb": 3, "instructions": 160, "digest_ok": null,
            })
        );
        let alone = Figures::of(&[leaving()], None, true).unwrap();
        assert_eq!((alone.bytes_total, alone.to_page_size), (Some(70), None));
        assert_eq!(alone.instructions, None);
    }

    #[test]
    fn a_boot_that_does_not_leave_has_no_figures() {
        let stayed = [record(&["page_size=4096", "kexec.refused=no"])];
        assert_eq!(Figures::of(&stayed, None, false), None);
        let payload = Payload::new(vec![1], None, None);
        let refused = Figures::of(&stayed, Some(&payload), false);
        assert_eq!(refused, Some(Figures::default()));
    }

    #[test]
    fn counts_that_run_backwards_are_not_instructions() {
        let odd = |entry: &str, hz: &str| {
            let next = record(&["kexec.count.leave=9", entry, hz]);
            Figures::of(&[leaving(), next], None, true)
                .unwrap()
                .instructions
        };
        assert_eq!(odd("kexec.count.entry=8", "kexec.count.hz=1"), None);
        assert_eq!(odd("kexec.count.entry=10", "kexec.count.hz=0"), None);
        assert_eq!(
            odd("kexec.count.entry=10", "kexec.count.hz=1000000000"),
            Some(1)
        );
        assert_eq!(
            odd("kexec.count.entry=0xb", "kexec.count.hz=1000000000"),
            Some(2)
        );
    }
}
