//! Answers to programs that test modules: the number of leaves in the kernel's tables, and how the linear map shows the
//! pages of the vmalloc area.

use crate::arch::image;
use crate::mm::{kernel_tables, walker};
use granule::arch::VirtualAddress;
use granule_kcore::layout;

/// The first arguments of the two `prctl`s: "GRLV" and "GRAL" in ASCII.
const LEAVES: u64 = 0x4752_4c56;
const ALIASES: u64 = 0x4752_414c;

/// Answers a `prctl` with this first argument, if it is one of the two.
pub(super) fn answer(what: u64) -> Option<u64> {
    match what {
        LEAVES => kernel_tables::look(|_, _, tree| walker::leaves(tree).0),
        ALIASES => aliases(),
        _ => None,
    }
}

/// Counts pages of the vmalloc area, with 20 bits for each number from bit 0 on: those that are writable in one mapping and
/// not through the other; those that can be written and executed, through whichever mapping, or executed through the
/// linear map; and all that are executable.
fn aliases() -> Option<u64> {
    kernel_tables::look(|kernel, _, tree| {
        let (mut differ, mut unsound, mut executable) = (0, 0, 0);
        for at in layout::vmalloc(image::start()).step_by(kernel.page() as usize) {
            let Some(own) = tree.query(VirtualAddress(at)) else {
                continue;
            };
            let linear = kernel.placement.virtual_address(own.output);
            let Some(linear) = linear.and_then(|linear| tree.query(linear)) else {
                continue;
            };
            let (own, linear) = (own.attributes.permissions, linear.attributes.permissions);
            let writable = own.writable || linear.writable;
            let runs = own.privileged_execute || linear.privileged_execute;
            differ += u64::from(own.writable != linear.writable);
            unsound += u64::from(writable && runs || linear.privileged_execute);
            executable += u64::from(own.privileged_execute);
        }
        differ | unsound << 20 | executable << 40
    })
}
