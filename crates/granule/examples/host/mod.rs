//! The environment of the examples: host memory that stands for physical memory, and a CPU that
//! prints the barriers and TLBIs issued to it.
//!
//! A user of the library provides no more than this. In a kernel `Offset` (an identity or linear
//! map) replaces [`Pages`], and on arm64 `hw::issue` is what [`Host`] calls to issue an instruction.

use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
use granule::arch::{Geometry, PageSize, PhysicalAddress};
use granule::forward;
use granule::table::{FreeList, Maintenance, PhysToVirt, TableEnvironment};
use std::cell::Cell;
use std::rc::Rc;

/// Host memory that stands for a range of physical memory. It exists until the program ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    memory: *mut u64,
    words: usize,
    first: PhysicalAddress,
}

// SAFETY: the memory is never freed, and an address outside it panics. A `u64` slice is aligned to 8
// bytes.
unsafe impl PhysToVirt for Pages {
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        let word = ((table.0 - self.first.0) / 8) as usize;
        assert!(word < self.words, "{table} is not memory for tables");
        self.memory.wrapping_add(word)
    }
}

/// The environment of the examples' tables: a list of pages, and a CPU that prints the barriers and
/// TLBIs issued to it while `aloud` is set.
#[derive(Debug)]
pub(crate) struct Host {
    pages: FreeList<Pages>,
    capabilities: TlbCapabilities,
    pub(crate) aloud: Rc<Cell<bool>>,
}

// SAFETY: the list keeps the promises for the pages. No CPU walks the tables, so no instruction is
// needed.
unsafe impl TableEnvironment for Host {
    forward!(self.pages: reach allocate free pages reserve allocate_run allocate_aligned);

    fn invalidate(&mut self, instruction: Maintenance) {
        if self.aloud.get() {
            println!("    {}", in_words(instruction));
        }
    }

    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }
}

fn in_words(instruction: Maintenance) -> String {
    match instruction {
        Maintenance::DsbIshst => "dsb ishst".into(),
        Maintenance::DsbIsh => "dsb ish".into(),
        Maintenance::Isb => "isb".into(),
        Maintenance::Tlbi(_, op) => match op {
            TlbiOp::All => "tlbi of everything".into(),
            TlbiOp::Address { operand, scope, .. } => {
                format!("tlbi by address, {operand:#018x} ({scope:?})")
            }
            TlbiOp::Range { operand, scope, .. } => {
                format!("tlbi by range, {operand:#018x} ({scope:?})")
            }
            other => format!("tlbi {other:x?}"),
        },
    }
}

/// Makes an environment with `count` pages for tables, at the physical address `first`.
pub(crate) fn environment(
    geometry: &Geometry,
    first: PhysicalAddress,
    count: usize,
    range: bool,
) -> Host {
    let size = geometry.page_size();
    let bytes = count as u64 * size.bytes();
    let memory = vec![0_u64; (bytes / 8) as usize].leak();
    let memory = Pages {
        memory: memory.as_mut_ptr(),
        words: memory.len(),
        first,
    };
    let mut pages = FreeList::new(memory, size);
    // SAFETY: the memory is nobody else's, and `memory` reaches all of it.
    unsafe { pages.add(first, PhysicalAddress(first.0 + bytes)) };
    Host {
        pages,
        capabilities: TlbCapabilities {
            range,
            level_hint: range,
            ..TlbCapabilities::BASIC
        },
        aloud: Rc::default(),
    }
}

/// A size in the largest unit that divides it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if bytes >> shift > 0 && bytes % (1 << shift) == 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// The page size in the first argument, if there is one.
pub(crate) fn page_size_argument() -> Result<Option<PageSize>, String> {
    let Some(word) = std::env::args().nth(1) else {
        return Ok(None);
    };
    let named = PageSize::ALL.into_iter().find(|size| size.name() == word);
    named
        .map(Some)
        .ok_or_else(|| format!("{word:?} is not a page size: expected 4k, 16k or 64k"))
}
