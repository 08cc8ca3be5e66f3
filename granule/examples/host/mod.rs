//! The environment of the examples: host memory that stands for physical memory, and a CPU that
//! prints the barriers and TLBIs issued to it.
//!
//! A user of the library provides no more than this. On arm64 `DirectMapped<Offset>` (an identity
//! or linear map) replaces [`Pages`] as memory, and `hw::Hardware` replaces [`Spoken`]. The user
//! writes the allocator.

#![allow(dead_code, reason = "each example uses its share of this")]

use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
use granule::arch::{Geometry, PageSize, PhysicalAddress, Regime};
use granule::table::{
    DirectMapped, Environment, FreedTable, PhysToVirt, TableAllocator, TableRun, TlbOps,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Pages for tables: host memory that stands for a range of physical memory.
#[derive(Debug)]
struct Pool {
    memory: *mut u64,
    words: usize,
    page: u64,
    first: PhysicalAddress,
    /// The index of the first page that was never allocated.
    next: Cell<u64>,
    returned: RefCell<Vec<PhysicalAddress>>,
}

impl Pool {
    fn count(&self) -> u64 {
        self.words as u64 * 8 / self.page
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let slice = core::ptr::slice_from_raw_parts_mut(self.memory, self.words);
        // SAFETY: the pointer and length are those of `Box::into_raw` in `environment`, and only
        // this method frees them.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// The pool as table memory and as table allocator.
#[derive(Clone, Debug)]
pub(crate) struct Pages(Rc<Pool>);

// SAFETY: the pool allocates only pages inside its memory, which lives as long as this value. A
// `u64` slice is aligned to 8 bytes.
unsafe impl PhysToVirt for Pages {
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        let offset = table.0 - self.0.first.0;
        self.0.memory.wrapping_add((offset / 8) as usize)
    }
}

// SAFETY: the pool allocates a page only once until it is freed. Each page lies in the pool's
// memory, which `PhysToVirt` above reaches.
unsafe impl TableAllocator for Pages {
    fn reserve(&mut self, tables: usize) -> bool {
        let pool = &self.0;
        let free = pool.count() - pool.next.get() + pool.returned.borrow().len() as u64;
        tables as u64 <= free
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let pool = &self.0;
        let left = pool.count() - pool.next.get();
        if left == 0 {
            let first = pool.returned.borrow_mut().pop()?;
            return Some(TableRun { first, count: 1 });
        }
        // A long run of pages is linked with one loop.
        let count = left.min(most as u64);
        let first = PhysicalAddress(pool.first.0 + pool.next.get() * pool.page);
        pool.next.set(pool.next.get() + count);
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    fn free(&mut self, table: FreedTable) {
        self.0.returned.borrow_mut().push(table.address());
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
pub(crate) type TableEnvironment = Environment<DirectMapped<Pages>, Pages, Spoken>;

/// Makes an environment with `count` pages for tables, at the physical address `first`.
pub(crate) fn environment(
    geometry: &Geometry,
    first: PhysicalAddress,
    count: usize,
    range: bool,
) -> TableEnvironment {
    let page = geometry.page_size().bytes();
    let words = count * (page / 8) as usize;
    let memory = vec![0_u64; words].into_boxed_slice();
    let pages = Pages(Rc::new(Pool {
        memory: Box::into_raw(memory).cast(),
        words,
        page,
        first,
        next: Cell::new(0),
        returned: RefCell::new(Vec::new()),
    }));
    Environment {
        memory: DirectMapped(pages.clone()),
        allocator: pages,
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
        if bytes >> shift > 0 && bytes.is_multiple_of(1 << shift) {
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
        .ok_or_else(|| format!("{word:?} is no page size: say 4k, 16k or 64k"))
}
