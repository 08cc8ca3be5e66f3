//! EFI's runtime services in the boot: what they need is read while the device tree is there, they begin once
//! the kernel's tables are complete, and one line says what became of them.

use super::power;
use crate::dev::console::println;
use crate::efi::{self, Inputs, Off};
use crate::handover::Handover;
use crate::mm::firmware;
use crate::report;
use granule::arch::PageSize;
use granule_boot::expand::Request;
use granule_boot::tree::Tree;
use granule_kcore::parameters::Parameters;

/// What the device tree says of the firmware; `None` if EFI did not start the machine.
pub(super) fn inputs(handover: &Handover, parameters: &Parameters<'_>) -> Option<Inputs> {
    let expanded = handover.expanded.as_ref()?;
    let request = firmware::with_tree(handover, |tree| {
        // The tree was made of a request that was read before.
        Request::of(&Tree::new(tree).ok()?).ok()?
    });
    Some(Inputs {
        request: request?,
        attributes: expanded.attributes,
        supported: expanded.supported,
        are_wanted: parameters.runtime_services,
        boot_cpu: handover.entry.features(),
    })
}

/// Turns the services on.
// Not inlined: the boot's stack frame is large and stays under every later call.
#[inline(never)]
pub(super) fn begin(inputs: &Inputs, handover: &Handover, page_size: PageSize) {
    match efi::begin(inputs) {
        Ok(regions) => on(regions, page_size),
        Err(why) => off(why, handover),
    }
}

fn on(regions: usize, page_size: PageSize) {
    let secure_boot = efi::is_secure_boot();
    let words = match secure_boot {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown to the firmware",
    };
    println!(
        "granule: EFI runtime services: {regions} regions, mapped with {page_size} pages; Secure Boot is {words}"
    );
    report::efi_runtime(secure_boot, regions);
}

fn off(why: Off, handover: &Handover) {
    println!("granule: EFI runtime services are off: {why}");
    report::efi_off(why);
    power::tell_no_way(handover);
}
