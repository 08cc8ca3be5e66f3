//! The tables that map firmware's memory, and the switch of this CPU to them and back.

#![allow(unsafe_code, reason = "a root of its own for firmware's mapping")]

use crate::arch::cpu;
use crate::mm::kernel_tables::{self, Kernel, pointer};
use crate::mm::pages;
use crate::mm::walker;
use crate::sched::registers;
use crate::trace::bring_up;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{CpuFeatures, Geometry, PhysicalAddress, VirtualAddress};
use granule::table::{Counters, Piece, TableError};

/// The values of the registers during a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roots {
    tcr: u64,
    ttbr0: u64,
}

/// A page of zeros for a root, freed unless it is kept.
struct Root {
    page: PhysicalAddress,
    bytes: u64,
}

impl Root {
    fn new(kernel: &Kernel) -> Result<Self, TableError> {
        let none = TableError::OutOfTables { needed: 1 };
        let page = pages::allocate_one().ok_or(none)?;
        let root = Self {
            page,
            bytes: kernel.page(),
        };
        let start = pointer(page).ok_or(none)?;
        // SAFETY: the page was just allocated, and the linear map shows it writable.
        unsafe { start.as_ptr().write_bytes(0, root.bytes as usize) };
        bring_up::zeroed_table(page.0, root.bytes);
        bring_up::dsb_ishst();
        Ok(root)
    }

    /// The value of TTBR0 for this root.
    fn ttbr(&self, lower: &Geometry) -> u64 {
        // SAFETY: the page is the root of a tree that `make` makes. No CPU is left with it in its TTBR0
        // (`Roots::with`), so it may be freed.
        unsafe { Ttbr::from_root(lower, self.page, 0) }.bits()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        bring_up::table_freed(self.page.0, self.bytes);
        pages::release(self.page, 1);
    }
}

/// Builds the tables for `pieces`, and calls `look` with them; then `read`, which may reach firmware's memory by
/// them. Returns what it returns.
///
/// # Errors
///
/// The tables cannot be made, or one of both refuses them. All memory is given back.
pub(super) fn make<R, E: From<TableError>>(
    kernel: &Kernel,
    boot_cpu: &CpuFeatures,
    lower: &Geometry,
    pieces: impl Iterator<Item = Piece> + Clone,
    look: impl FnOnce(&dyn walker::Tree) -> Result<(), E>,
    read: impl FnOnce(&dyn walker::Tree, &Roots) -> Result<R, E>,
) -> Result<(Roots, R), E> {
    let root = Root::new(kernel)?;
    let counters = Counters::new();
    let environment = kernel_tables::apart(kernel, &counters);
    // SAFETY: the root is an empty table of this function's own, which no CPU walks yet.
    let mut tables = unsafe { walker::open(root.page, *lower, environment)? };
    let mut mapped = 0;
    let made = pieces.clone().try_for_each(|piece| {
        tables.map_pieces(&[piece])?;
        mapped += 1;
        Ok(())
    });
    let roots = Roots {
        tcr: Tcr::new(boot_cpu, Some(lower), Some(&kernel.geometry)).0,
        ttbr0: root.ttbr(lower),
    };
    let made = made.and_then(|()| look(&*tables));
    match made.and_then(|()| read(&*tables, &roots)) {
        Ok(result) => {
            core::mem::forget(root);
            Ok((roots, result))
        }
        Err(error) => {
            for piece in pieces.take(mapped) {
                // What was mapped above can be unmapped.
                let _ = tables.unmap(piece.start, piece.bytes);
            }
            Err(error)
        }
    }
}

/// Whether all of a range is mapped, and may be executed if it is code.
pub(super) fn is_mapped(tables: &dyn walker::Tree, start: u64, bytes: u64, is_code: bool) -> bool {
    let Some(end) = start.checked_add(bytes) else {
        return false;
    };
    let mut at = start;
    while at < end {
        let Some(found) = tables.query(VirtualAddress(at)) else {
            return false;
        };
        if is_code && !found.attributes.permissions.privileged_execute {
            return false;
        }
        at = found.start.0.saturating_add(found.bytes);
    }
    true
}

impl Roots {
    /// As [`with`](Self::with), with interrupts masked meanwhile.
    pub(super) fn masked<R>(&self, work: impl FnOnce() -> R) -> R {
        let masked = cpu::mask_interrupts();
        let result = self.with(work);
        cpu::restore_interrupts(masked);
        result
    }

    /// Calls `work` with firmware's memory in the lower half of this CPU. Interrupts must be masked.
    pub(super) fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        let (tcr, ttbr0) = (cpu::tcr_el1(), registers::ttbr0_el1());
        // SAFETY: the tables have the shape of this TCR, which has the kernel's upper half. The kernel accesses
        // nothing through the lower half but what `work` does.
        unsafe { registers::shape(self.tcr, self.ttbr0) };
        let result = work();
        // SAFETY: as it was.
        unsafe { registers::shape(tcr, ttbr0) };
        result
    }
}
