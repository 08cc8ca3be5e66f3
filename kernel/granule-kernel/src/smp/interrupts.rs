//! Sets up interrupts on the boot CPU, and maps the interrupt controller for all CPUs.

#![allow(unsafe_code, reason = "registers of the interrupt controller")]

use super::inputs::{BringUp, Obstacle};
use crate::dev::{intc, registry, timer};
use crate::percpu;
use arrayvec::ArrayVec;
use core::ops::Range;
use granule::arch::{Attributes, PhysicalAddress, VirtualAddress};
use granule::table::{Leaves, Piece, TableError};
use granule_boot::tree::Tree;
use granule_kcore::devicetree::intc::{self as intc_tree, Controller};
use granule_kcore::layout;

/// Sets up interrupts on this CPU, and what the others need for theirs.
pub(super) fn prepare(machine: &mut BringUp<'_, '_>, fdt: &Tree<'_>) -> Result<(), Obstacle> {
    let controller = intc_tree::controller(fdt).map_err(Obstacle::Controller)?;
    let page_size = machine.request.geometry.page_size();
    let driver = match controller {
        Controller::GicV2 { .. } => &intc::GIC_V2_DRIVER,
        Controller::GicV3 { .. } => &intc::GIC_V3_DRIVER,
        Controller::Bcm2836 { .. } => &intc::BCM2836_DRIVER,
    };
    if !registry::probe(driver, page_size) {
        return Err(Obstacle::ControllerPageSize);
    }
    let mapped = map_controller(machine, &controller).map_err(Obstacle::Tables)?;
    let at_el2 = machine.handover.entry.run_el == 2;
    if let Some(number) = intc_tree::timer(fdt, at_el2).filter(|_| machine.has_programs)
        && registry::probe(&timer::DRIVER, page_size)
    {
        timer::use_interrupt(number);
    }
    // SAFETY: the registers were just mapped, for good, and this is the only call.
    unsafe { intc::init(&mapped, percpu::this()) }.map_err(Obstacle::Interrupts)
}

/// Maps the registers of the interrupt controller.
fn map_controller(
    machine: &mut BringUp<'_, '_>,
    controller: &Controller,
) -> Result<intc::Mapped, TableError> {
    let slot = layout::FIXMAP_SLOT_BYTES;
    // One slot covers all registers that are used of a distributor or CPU interface.
    let frame = |range: &Range<u64>| range.start..range.end.min(range.start + slot);
    match controller {
        Controller::GicV2 {
            distributor,
            cpu_interface,
        } => Ok(intc::Mapped::GicV2 {
            distributor: map_device(machine, layout::INTC_VADDR, slot, &frame(distributor))?,
            cpu_interface: map_device(
                machine,
                layout::INTC_VADDR + 4 * slot,
                slot,
                &frame(cpu_interface),
            )?,
        }),
        Controller::GicV3 {
            distributor,
            redistributors,
            stride,
        } => {
            let distributor = map_device(machine, layout::INTC_VADDR, slot, &frame(distributor))?;
            let mut mapped = ArrayVec::new();
            let align = layout::REDISTRIBUTORS_ALIGN;
            let mut window = layout::REDISTRIBUTORS_VADDR;
            for region in redistributors {
                // CPUs whose redistributors have no place here get an error when they look for them.
                let most = (layout::REDISTRIBUTORS_END - 2 * align).saturating_sub(window);
                let bytes = (region.end - region.start).min(most);
                if bytes == 0 {
                    break;
                }
                let region = region.start..region.start + bytes;
                let start = map_device(machine, window, align, &region)?;
                // A page that is larger than the rest of the registers is mapped to its end.
                window = (start + bytes).next_multiple_of(align);
                // The list has room for every region that the tree can name.
                let _ = mapped.try_push(start..start + bytes);
            }
            Ok(intc::Mapped::GicV3 {
                distributor,
                redistributors: mapped,
                stride: *stride,
            })
        }
        Controller::Bcm2836 { registers, shared } => {
            let registers = map_device(machine, layout::INTC_VADDR, slot, &frame(registers))?;
            let window = layout::INTC_VADDR + 4 * slot;
            let shared = shared.as_ref().map(frame);
            let shared = shared.map(|range| map_device(machine, window, slot, &range));
            Ok(intc::Mapped::Bcm2836 {
                registers,
                shared: shared.transpose()?,
            })
        }
    }
}

/// Maps `registers` in the address range at `window`, keeping the offset in `align`. Returns their virtual
/// address.
fn map_device(
    machine: &mut BringUp<'_, '_>,
    window: u64,
    align: u64,
    registers: &Range<u64>,
) -> Result<u64, TableError> {
    let page = machine.request.geometry.page_size().bytes();
    let first = registers.start & !(page - 1);
    // Where a page is larger than the registers, the rest of it is never accessed.
    let bytes = (registers.end - first).next_multiple_of(page);
    let start = window + (first & (align - 1));
    let piece = Piece {
        start: VirtualAddress(start),
        output: PhysicalAddress(first),
        bytes,
        attributes: Attributes::device(),
        leaves: Leaves::LARGEST,
    };
    machine.map(piece)?;
    Ok(start + (registers.start - first))
}
