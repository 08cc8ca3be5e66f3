//! A next kernel that is loaded: the list, the tables and the pages that it takes, which are all given
//! back when it goes; and what it says of itself.

use super::pages::{self, Held, Words};
use super::refused::Refused;
use crate::mm::live::{self, Kernel};
use crate::mm::transition;
use core::fmt;
use granule::arch::PhysicalAddress;
use granule::table::Counters;
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kexec::{Extent, Header, List, ListError, Needs, Transition, Way, verify};

/// One thing that it is given. Without bytes it is not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    /// Where it is to be: its bytes, and what it takes behind them.
    pub(crate) place: Extent,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Bytes of pages that are where they are to be already.
    pub(crate) in_place: u64,
    /// The digest of its bytes.
    pub(crate) digest: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The list, which was sealed.
    pub(crate) list: List,
    /// The transitional tables.
    pub(crate) tables: Tables,
    pub(crate) way: Way,
    /// Kernel, initramfs, device tree, as [`NAMES`] has them.
    pub(crate) given: [Given; 3],
    /// The page for the note, which the tree names. There is nothing but zeros in it.
    pub(crate) note: PhysicalAddress,
    /// All pages but the tables'.
    #[allow(dead_code, reason = "given back when it is dropped")]
    pub(super) held: Held,
}

impl Loaded {
    /// Completes the list for a CPU whose TCR is `tcr` when it leaves.
    pub(crate) fn seal(&self, tcr: u64) -> Result<Header, ListError> {
        let tables = &self.tables.transition;
        let header = self.list.seal(&mut Words, &self.way, tables, tcr)?;
        if self.way.uncached {
            let bytes = self.list.page.bytes();
            self.list
                .each_page(&Words, |page| pages::clean(&Extent::new(page.0, bytes)))?;
        }
        Ok(header)
    }

    /// Whether the list is as it was sealed.
    pub(crate) fn verify(&self) -> Result<Header, ListError> {
        verify(&Words, self.list.head, |_| {})
    }

    /// Completes the list anew, for a TCR that changed since, if it is as it was sealed.
    pub(crate) fn seal_again(&self, tcr: u64) -> Result<Header, ListError> {
        self.verify()?;
        self.seal(tcr)
    }
}

/// A line a segment, then one for all of it: `/sys/kernel/kexec_segments`.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, given) in NAMES.iter().zip(&self.given).filter(|(_, it)| it.bytes > 0) {
            let Extent { start, bytes } = given.place;
            writeln!(
                f,
                "{name} {start:#x} {} {bytes} {}",
                given.bytes, given.in_place
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

/// Transitional tables, given back when they are dropped.
pub(crate) struct Tables {
    pub(crate) transition: Transition,
    /// How many pages they have.
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
        let transition = transition::build(live::apart(kernel, &counters), needs)?;
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
        transition::free(live::apart(self.kernel, &counters), &self.transition);
    }
}
