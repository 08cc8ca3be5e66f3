//! The memory of a secondary CPU: two stacks, its data and its mailbox, allocated for good when the
//! CPU is started.

#![allow(unsafe_code, reason = "memory of a CPU that has not started")]

use super::inputs::{BringUp, Obstacle};
use crate::handover::mailbox::Mailbox;
use crate::percpu::stacks::{self, STACK_BYTES};
use crate::percpu::{self, PerCpu, per_cpu};
use crate::trace::bring_up;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{Attributes, Permissions, PhysicalAddress, VirtualAddress};
use granule::hw::cache;
use granule::table::{Leaves, Piece};
use granule_boot::memblock::Direction;

pub(super) struct CpuPlace {
    pub(super) cpu: &'static PerCpu,
    pub(super) mailbox: &'static Mailbox,
    /// Physical address of the bottom of the CPU's own stack.
    pub(super) stack: u64,
}

/// Distance of a CPU's mailbox from its data: behind them, alone in its cache lines.
fn mailbox_offset() -> u64 {
    percpu::bytes().next_multiple_of(align_of::<Mailbox>() as u64)
}

per_cpu! {
    /// Physical address of the CPU's mailbox.
    static MAILBOX: AtomicU64 = AtomicU64::new(0);
}

/// The physical address of `address`, which lies in the mailbox of CPU `number`.
pub(super) fn physical(number: usize, address: u64) -> u64 {
    let mailbox = MAILBOX.of(number);
    let start = mailbox.map_or(0, |start| start.load(Ordering::Relaxed));
    start.wrapping_add(address.wrapping_sub(stacks::data(number) + mailbox_offset()))
}

/// The mailbox of CPU `number`, which is not the boot CPU.
pub(super) fn mailbox(number: usize) -> Option<&'static Mailbox> {
    if number == 0 || number >= percpu::ready() {
        return None;
    }
    let mailbox = (stacks::data(number) + mailbox_offset()) as *const Mailbox;
    // SAFETY: `prepare` has mapped it for good, and zero bytes are one.
    Some(unsafe { &*mailbox })
}

pub(super) fn prepare(machine: &mut BringUp<'_, '_>, affinity: u64) -> Result<CpuPlace, Obstacle> {
    let number = percpu::ready();
    let page = machine.request.geometry.page_size().bytes();
    let data_bytes = (mailbox_offset() + size_of::<Mailbox>() as u64).next_multiple_of(page);
    let stacks_bytes = stacks::STACKS * STACK_BYTES;
    let physical = machine
        .memory
        .allocate(
            stacks_bytes + data_bytes,
            // No larger, so that the places lie side by side and are one range of reserved memory.
            page,
            0..u64::MAX,
            Direction::TopDown,
        )
        .map_err(Obstacle::Memory)?;
    let parts = [
        (stacks::bottom(number, 0), physical, STACK_BYTES),
        (
            stacks::bottom(number, 1),
            physical + STACK_BYTES,
            STACK_BYTES,
        ),
        (stacks::data(number), physical + stacks_bytes, data_bytes),
    ];
    for (start, output, bytes) in parts {
        let piece = Piece {
            start: VirtualAddress(start),
            output: PhysicalAddress(output),
            bytes,
            attributes: Attributes::normal(Permissions::READ_WRITE),
            leaves: Leaves::PAGES,
        };
        machine.map(piece).map_err(Obstacle::Tables)?;
    }
    let data = stacks::data(number);
    // SAFETY: just mapped, and nothing uses it yet.
    unsafe { (data as *mut u8).write_bytes(0, data_bytes as usize) };
    // The CPU uses its first stack and its mailbox with its MMU off. Cached lines of them must not be written back
    // over that.
    for (start, _, bytes) in parts {
        cache::clean_and_invalidate(start..start + bytes);
    }
    // SAFETY: stacks and data are mapped and zero, and only the boot CPU prepares CPUs.
    let cpu = unsafe { percpu::add(affinity) };
    if let Some(mailbox) = MAILBOX.of(number) {
        let start = physical + stacks_bytes + mailbox_offset();
        mailbox.store(start, Ordering::Relaxed);
        bring_up::lines_dropped(start, size_of::<Mailbox>() as u64);
    }
    let mailbox = mailbox(number).ok_or(Obstacle::NoPlace)?;
    Ok(CpuPlace {
        cpu,
        mailbox,
        stack: physical,
    })
}
