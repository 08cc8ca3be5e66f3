//! Published times of `map_mem()`: milliseconds, as they were posted.
//!
//! Source: "Speed up boot with faster linear map creation", Ryan Roberts, linux-arm-kernel:
//! v1 of 26 March 2024 (on v6.9-rc1), v2 of 4 April 2024 (on v6.9-rc2), v3 of 12 April 2024, and
//! the message of its patch "Don't remap pgtables for allocate vs populate" (commit 0e9df1c9).
//! All have 4K pages and a map of pages. Times are whole milliseconds: half of one is 8 % of the
//! smallest.

use granule::arch::PageSize;
use granule::linear::{Barriers, Strategy};

/// A machine with published times, and its RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The machine's name in this program; two columns may have the same machine.
    pub machine: &'static str,
    /// The machine's name in the publication.
    pub published_as: &'static str,
    /// GiB of RAM.
    pub gib: u64,
    /// The page sizes that its CPUs support.
    pub page_sizes: &'static [PageSize],
    /// Whether its CPUs have TLBIs by range (FEAT_TLBIRANGE).
    pub tlbi_range: bool,
}

/// Apple's CPUs have no 64K pages; the Altra's, Neoverse N1, have all three.
const APPLE: &[PageSize] = &[PageSize::K4, PageSize::K16];
const NEOVERSE_N1: &[PageSize] = &PageSize::ALL;

/// The columns of the published tables.
pub const COLUMNS: [Column; 4] = [
    Column {
        machine: "apple-m2",
        published_as: "Apple M2, VM",
        gib: 16,
        page_sizes: APPLE,
        tlbi_range: true,
    },
    Column {
        machine: "altra",
        published_as: "Ampere Altra, VM",
        gib: 64,
        page_sizes: NEOVERSE_N1,
        tlbi_range: false,
    },
    Column {
        machine: "altra",
        published_as: "Ampere Altra, VM",
        gib: 256,
        page_sizes: NEOVERSE_N1,
        tlbi_range: false,
    },
    Column {
        machine: "altra-metal",
        published_as: "Ampere Altra, metal",
        gib: 512,
        page_sizes: NEOVERSE_N1,
        tlbi_range: false,
    },
];

/// One line of a published table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    pub posting: &'static str,
    /// The measured strategy.
    pub strategy: Strategy,
    /// The barriers of its page entries.
    pub barriers: Barriers,
    /// Milliseconds, one for each column.
    pub ms: [u32; COLUMNS.len()],
    /// Whether the model is fitted to this line (in the columns that are fitted).
    pub fitted: bool,
}

const fn line(
    posting: &'static str,
    strategy: Strategy,
    barriers: Barriers,
    ms: [u32; COLUMNS.len()],
) -> Line {
    Line {
        posting,
        strategy,
        barriers,
        ms,
        fitted: false,
    }
}

const fn fitted(line: Line) -> Line {
    Line {
        fitted: true,
        ..line
    }
}

use Barriers::{Entry, Table};
use Strategy::{Base, BatchBarriers, LazyUnmap, NoAllocRemap, NoContRemap};

/// All published lines.
pub const LINES: [Line; 12] = [
    line("v1", Base, Entry, [151, 2191, 8990, 17443]),
    line("v1", NoContRemap, Entry, [77, 429, 1753, 3796]),
    line("v1", NoAllocRemap, Entry, [77, 375, 1532, 3366]),
    line("v1", LazyUnmap, Entry, [63, 330, 1312, 2929]),
    fitted(line("v2", Base, Entry, [153, 2227, 8798, 17442])),
    fitted(line("v2", NoContRemap, Entry, [77, 431, 1727, 3796])),
    fitted(line("v2", BatchBarriers, Table, [13, 162, 655, 1656])),
    fitted(line("v2", NoAllocRemap, Table, [11, 109, 449, 1257])),
    fitted(line("v2", LazyUnmap, Table, [6, 61, 257, 838])),
    line("v3", Base, Entry, [168, 2198, 8644, 17447]),
    line("patch", BatchBarriers, Table, [11, 161, 656, 1654]),
    line("v3", NoAllocRemap, Table, [10, 104, 438, 1223]),
];

/// The columns that machines are fitted to. Where a machine has two columns, the other one shows
/// whether the model holds for another RAM size.
pub const FITTED_COLUMNS: [usize; 3] = [0, 1, 3];
