//! A loaded next kernel: its list, tables and pages, all freed when it is dropped, and the text of
//! `/sys/kernel/kexec_segments`.

use super::pages::{self, Held, Words};
use crate::mm::transition::TransitionTables;
use crate::task::owned::Array;
use core::fmt;
use granule::arch::PhysicalAddress;
use granule_kexec::{ListError, ListHeader, PhysRange, RelocationList, Way, verify};

/// One segment for the next kernel. Without bytes the segment is absent, and its place empty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PayloadSegment {
    pub(crate) name: &'static str,
    /// The segment's place: its bytes and the memory reserved behind them.
    pub(crate) place: PhysRange,
    /// Bytes of the segment.
    pub(crate) bytes: u64,
    /// Bytes of pages that are in place already.
    pub(crate) in_place: u64,
    /// The digest of the segment's bytes.
    pub(crate) digest: u64,
}

/// A loaded next kernel.
pub(crate) struct Loaded {
    /// The sealed list.
    pub(crate) list: RelocationList,
    /// The transitional tables.
    pub(crate) tables: TransitionTables,
    pub(crate) way: Way,
    /// The segments in the order of their loading; some at the end may be absent.
    pub(crate) payload: Array<PayloadSegment>,
    /// The page for the note, if the device tree names one; zeroed until the kernel leaves.
    pub(crate) note: Option<PhysicalAddress>,
    /// All pages except those of the tables.
    pub(super) held: Held,
}

impl Loaded {
    /// Completes the list for a CPU that leaves with `tcr` in TCR.
    pub(crate) fn seal(&mut self, tcr: u64) -> Result<ListHeader, ListError> {
        let header = pages::seal_list(&mut self.list, &self.held, &self.way, &self.tables, tcr)?;
        if self.way.uncached {
            let bytes = self.list.page().bytes();
            self.list
                .each_page(&Words, |page| pages::clean(&PhysRange::new(page.0, bytes)))?;
        }
        Ok(header)
    }

    /// The segments that are there.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &PayloadSegment> {
        self.payload.iter().filter(|it| it.bytes > 0)
    }

    /// Checks that the list is unchanged since it was sealed.
    pub(crate) fn verify(&self) -> Result<ListHeader, ListError> {
        verify(&Words, self.list.head(), |_| {})
    }

    /// Verifies the list and completes it again for a changed TCR.
    pub(crate) fn seal_again(&mut self, tcr: u64) -> Result<ListHeader, ListError> {
        self.verify()?;
        self.seal(tcr)
    }
}

/// One line for each segment, then one for the whole: `/sys/kernel/kexec_segments`.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in self.segments() {
            let PhysRange { start, bytes } = segment.place;
            writeln!(
                f,
                "{} {start:#x} {} {bytes} {}",
                segment.name, segment.bytes, segment.in_place
            )?;
        }
        let totals = self.list.totals();
        writeln!(
            f,
            "entry {:#x} copied {} cleaned {} tables {} list {}",
            self.way.entry.0,
            totals.bytes_copied,
            totals.bytes_cleaned,
            self.tables.count(),
            self.list.pages()
        )
    }
}
