//! A loaded next kernel: its list, tables and pages, all freed when it is dropped, and the text of
//! `/sys/kernel/kexec_segments`.

use super::pages::{self, Held, Words};
use super::refused::Refused;
use crate::mm::kernel_tables::{self, Kernel};
use crate::mm::transition;
use core::fmt;
use granule::arch::PhysicalAddress;
use granule::table::Counters;
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kexec::{
    ListError, ListHeader, Needs, PhysRange, RelocationList, Transition, Way, verify,
};

/// One segment for the next kernel. Without bytes the segment is absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PayloadSegment {
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
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The sealed list.
    pub(crate) list: RelocationList,
    /// The transitional tables.
    pub(crate) tables: Tables,
    pub(crate) way: Way,
    /// Kernel, initramfs and device tree, in the order of [`NAMES`].
    pub(crate) payload: [PayloadSegment; 3],
    /// The page for the note, which the device tree names; zeroed until the kernel leaves.
    pub(crate) note: PhysicalAddress,
    /// All pages except those of the tables.
    #[allow(dead_code, reason = "freed when it is dropped")]
    pub(super) held: Held,
}

impl Loaded {
    /// Completes the list for a CPU that leaves with `tcr` in TCR.
    pub(crate) fn seal(&self, tcr: u64) -> Result<ListHeader, ListError> {
        let tables = &self.tables.transition;
        let header = self.list.seal(&mut Words, &self.way, tables, tcr)?;
        if self.way.uncached {
            let bytes = self.list.page.bytes();
            self.list
                .each_page(&Words, |page| pages::clean(&PhysRange::new(page.0, bytes)))?;
        }
        Ok(header)
    }

    /// Checks that the list is unchanged since it was sealed.
    pub(crate) fn verify(&self) -> Result<ListHeader, ListError> {
        verify(&Words, self.list.head, |_| {})
    }

    /// Verifies the list and completes it again for a changed TCR.
    pub(crate) fn seal_again(&self, tcr: u64) -> Result<ListHeader, ListError> {
        self.verify()?;
        self.seal(tcr)
    }
}

/// One line for each segment, then one for the whole: `/sys/kernel/kexec_segments`.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, segment) in NAMES
            .iter()
            .zip(&self.payload)
            .filter(|(_, it)| it.bytes > 0)
        {
            let PhysRange { start, bytes } = segment.place;
            writeln!(
                f,
                "{name} {start:#x} {} {bytes} {}",
                segment.bytes, segment.in_place
            )?;
        }
        let totals = &self.list.totals;
        writeln!(
            f,
            "entry {:#x} copied {} cleaned {} tables {} list {}",
            self.way.entry.0,
            totals.bytes_copied,
            totals.bytes_cleaned,
            self.tables.count,
            self.list.pages
        )
    }
}

/// Transitional tables, freed on drop.
pub(crate) struct Tables {
    pub(crate) transition: Transition,
    /// Pages of the tables.
    pub(crate) count: u64,
    kernel: &'static Kernel,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tables: {:?}", self.count, self.transition)
    }
}

impl Tables {
    pub(super) fn build(kernel: &'static Kernel, needs: &Needs<'_>) -> Result<Self, Refused> {
        let counters = Counters::new();
        let transition = transition::build(kernel_tables::apart(kernel, &counters), needs)?;
        let count = counters.get().tables;
        Ok(Self {
            transition,
            count,
            kernel,
        })
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let counters = Counters::new();
        transition::free(
            kernel_tables::apart(self.kernel, &counters),
            &self.transition,
        );
    }
}
