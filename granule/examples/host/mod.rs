//! What the examples run on: ordinary memory that plays physical memory for tables, and a CPU
//! that says aloud which barriers and TLBIs it is asked for.
//!
//! This is all that a user of the library has to bring. On arm64 `Reached<Offset>` (an identity
//! or linear map) takes the place of [`Pages`] as memory and `hw::Hardware` the place of
//! [`Spoken`]; the allocator stays yours.

#![allow(dead_code, reason = "each example uses its share of this")]

use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
use granule::arch::{Geometry, PageSize, PhysicalAddress};
use granule::table::{FreedTable, Maintenance, Parts, Reach, Reached, TableAllocator, TableRun};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Pages for tables: memory from the host, said to lie at a physical address.
#[derive(Debug)]
struct Pool {
    memory: *mut u64,
    words: usize,
    page: u64,
    first: PhysicalAddress,
    /// The first page that was never given out.
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
        // SAFETY: the pointer and length are those that `Box::into_raw` gave in `environment`.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// Both sides of the pool: reaches the tables in it, and gives them out.
#[derive(Clone, Debug)]
pub(crate) struct Pages(Rc<Pool>);

// SAFETY: the pool gives out only pages inside its memory, and that lives as long as this does;
// a `u64` slice is aligned to 8 bytes.
unsafe impl Reach for Pages {
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        let offset = table.0 - self.0.first.0;
        self.0.memory.wrapping_add((offset / 8) as usize)
    }
}

// SAFETY: a page is given out once until it comes back, and is a page of the pool's memory,
// which `Reach` above reaches.
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
        // As many in a row as there are: they are then linked with one loop.
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

/// A CPU that prints what it is asked to do, once it is told to speak.
#[derive(Debug)]
pub(crate) struct Spoken {
    capabilities: TlbCapabilities,
    pub(crate) aloud: bool,
}

impl Spoken {
    fn say(&self, what: &str) {
        if self.aloud {
            println!("    {what}");
        }
    }
}

impl Maintenance for Spoken {
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

    fn tlbi(&mut self, op: TlbiOp) {
        match op {
            TlbiOp::All => self.say("tlbi of everything"),
            TlbiOp::Address { operand, reach, .. } => {
                self.say(&format!("tlbi by address, {operand:#018x} ({reach:?})"));
            }
            TlbiOp::Range { operand, reach, .. } => {
                self.say(&format!("tlbi by range, {operand:#018x} ({reach:?})"));
            }
            other => self.say(&format!("tlbi {other:x?}")),
        }
    }
}

/// What tables stand on here.
pub(crate) type Environment = Parts<Reached<Pages>, Pages, Spoken>;

/// Makes it, with `count` pages for tables that are said to lie at `first`.
pub(crate) fn environment(
    geometry: &Geometry,
    first: PhysicalAddress,
    count: usize,
    range: bool,
) -> Environment {
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
    Parts {
        memory: Reached(pages.clone()),
        allocator: pages,
        maintenance: Spoken {
            capabilities: TlbCapabilities {
                geometry: *geometry,
                range,
                level_hint: range,
                repeat: false,
            },
            aloud: false,
        },
    }
}

/// A size as people write it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if bytes >> shift > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// The page size that the first argument names, if there is one.
pub(crate) fn page_size_argument() -> Result<Option<PageSize>, String> {
    let Some(word) = std::env::args().nth(1) else {
        return Ok(None);
    };
    let named = PageSize::ALL.into_iter().find(|size| size.name() == word);
    named
        .map(Some)
        .ok_or_else(|| format!("{word:?} is no page size: say 4k, 16k or 64k"))
}
