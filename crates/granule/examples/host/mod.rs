//! The environment of the examples: host memory that stands for physical memory, and a CPU that
//! prints the barriers and TLBIs issued to it.
//!
//! A user of the library provides no more than this. On arm64 `DirectMapped<Offset>` (an identity
//! or linear map) replaces [`Pages`] as memory, and `hw::Hardware` replaces [`Spoken`].

use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
use granule::arch::{Geometry, PageSize, PhysicalAddress, Regime};
use granule::table::{DirectMapped, Environment, FreeList, PhysToVirt, TlbOps};
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

/// A CPU that prints the barriers and TLBIs issued to it while `aloud` is set.
#[derive(Debug)]
pub(crate) struct Spoken {
    capabilities: TlbCapabilities,
    pub(crate) aloud: Rc<Cell<bool>>,
}

impl Spoken {
    fn say(&self, what: &str) {
        if self.aloud.get() {
            println!("    {what}");
        }
    }
}

impl TlbOps for Spoken {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.capabilities
    }

    fn dsb_ishst(&mut self) {
        self.say("dsb ishst");
    }

    fn dsb_ish(&mut self) {
        self.say("dsb ish");
    }

    fn isb(&mut self) {
        self.say("isb");
    }

    fn tlbi(&mut self, _regime: Regime, op: TlbiOp) {
        match op {
            TlbiOp::All => self.say("tlbi of everything"),
            TlbiOp::Address { operand, scope, .. } => {
                self.say(&format!("tlbi by address, {operand:#018x} ({scope:?})"));
            }
            TlbiOp::Range { operand, scope, .. } => {
                self.say(&format!("tlbi by range, {operand:#018x} ({scope:?})"));
            }
            other => self.say(&format!("tlbi {other:x?}")),
        }
    }
}

/// The environment of the examples' tables.
pub(crate) type TableEnvironment = Environment<DirectMapped<Pages>, FreeList<Pages>, Spoken>;

/// Makes an environment with `count` pages for tables, at the physical address `first`.
pub(crate) fn environment(
    geometry: &Geometry,
    first: PhysicalAddress,
    count: usize,
    range: bool,
) -> TableEnvironment {
    let size = geometry.page_size();
    let bytes = count as u64 * size.bytes();
    let memory = vec![0_u64; (bytes / 8) as usize].leak();
    let pages = Pages {
        memory: memory.as_mut_ptr(),
        words: memory.len(),
        first,
    };
    let mut allocator = FreeList::new(pages, size);
    // SAFETY: the memory is nobody else's, and `pages` reaches all of it.
    unsafe { allocator.add(first, PhysicalAddress(first.0 + bytes)) };
    Environment {
        memory: DirectMapped(pages),
        allocator,
        tlb: Spoken {
            capabilities: TlbCapabilities::BASIC.range(range).level_hint(range),
            aloud: Rc::default(),
        },
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
