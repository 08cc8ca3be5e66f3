//! The EFI stub: the kernel's image as an EFI application, which ends the firmware's boot services and enters a
//! copy of the image as a boot loader would.
//!
//! It runs with the MMU on, in the firmware's flat map, on the firmware's stack. None of the kernel's own
//! code runs here. Of the running image only its relocated words are written; the copy has them too, and its
//! entry relocates them for its own place. Before the boot services end, an error is one line on the firmware's console
//! and a status for the firmware, and all memory is given back. After that nothing can fail but the tree,
//! which the kernel checks for itself. What is decided is in `granule_kcore::efi`.
//!
//! # The steps, in order
//!
//! 1. The assembly (`entry`) relocates the image for the address where it was loaded. The file has no PE
//!    relocations, because the kernel has its own, which may be applied any number of times.
//! 2. The load options become the command line. If they are empty, the tree's bootargs count. The device tree
//!    is the one in the configuration table, or an empty one.
//! 3. Memory that the tree reserves, the area of `granule.trace=` and the range of
//!    `granule.persist=` are allocated (`held`), so that nothing else is placed there; the firmware
//!    need not list them. An area in memory that the firmware keeps is refused.
//! 4. The kernel's seed (`kaslr-seed`) comes from the firmware's random number generator. With one, and
//!    without `nokaslr`, the image is copied to a random multiple of 2 MiB, each free one as likely as the
//!    others; else to the lowest. It is always copied, also where it could stay: every boot tests the one
//!    path, and the copy is what the kernel's entry expects, an image as it is in the file, with memory
//!    behind it for `.bss`, stacks and the pool.
//! 5. The initramfs is loaded (`initrd` has the order of its sources). All that is allocated begins and ends
//!    at multiples of the largest page. An initramfs of the tree's that shares such a page with memory that
//!    the firmware keeps is copied: a kernel with pages of 64 KiB could not map it.
//! 6. An empty list of memory to keep (Linux's `LINUX_EFI_MEMRESERVE`) becomes a configuration table, unless
//!    there is one (`reservations`).
//! 7. The new tree is the old one with other properties in `/chosen`: Linux's, and `linux,uefi-secure-boot`
//!    too, without which a distribution's Linux that follows by kexec finds no EFI. It is written once before
//!    the boot services end, to see that it can be, and once more after that, with the final memory map: its
//!    length does not depend on the numbers.
//! 8. ExitBootServices. A stale memory map is read again, as the specification demands. In the final map,
//!    memory that the firmware uses at run time gets its physical addresses as the virtual ones: the firmware
//!    is given no new addresses, and a Linux that follows by kexec calls its services where the map has them.
//! 9. What is read with the MMU off is cleaned to the point of coherency: the image, the tree, the memory
//!    map, the tables of the firmware and of ACPI, the initramfs, and the last instructions of the stub.
//!    These turn the MMU and the caches off at the present exception level, invalidate the TLB and the
//!    instruction cache, and jump to the copy, which begins as in any other boot.
//!
//! All memory is of the type `EfiLoaderData`, which nobody keeps for the firmware. The PE header, by which
//! firmware loads the image, is `early::head::pe`: offsets in the file are addresses in memory, so boot
//! loaders for arm64 Images, kexec and EFI firmware load the same file.

mod entry;
mod files;
mod firmware;
mod held;
mod initrd;
mod leave;
mod memory;
mod pages;
mod reservations;

use core::convert::Infallible;
use firmware::{Failure, Firmware, OrFailure};
use granule_boot::tree::Tree;
use granule_kcore::efi::description::{self, Description, EMPTY_BYTES, SecureBoot};
use granule_kcore::efi::options;
use leave::Leaving;
use memory::MemoryMap;
use pages::Pages;
use reservations::Reservations;
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Handle, Status};

/// The first function of the stub, called by its assembly. Returns only if the boot failed.
#[allow(unsafe_code, reason = "assembly calls it with firmware's table")]
#[unsafe(no_mangle)]
extern "C" fn efi_main(handle: Handle, table: *const SystemTable) -> Status {
    // SAFETY: the firmware calls the entry of an application with its handle and the system table.
    let Some(firmware) = (unsafe { Firmware::new(handle, table) }) else {
        return Status::INVALID_PARAMETER;
    };
    let Err(failure) = boot(&firmware);
    if let Some(what) = failure.what {
        firmware.say("granule: ");
        firmware.say(what);
        firmware.say("\r\n");
    }
    failure.status
}

/// Every step of the boot, in order. What was allocated is given back on the way out.
fn boot(firmware: &Firmware) -> Result<Infallible, Failure> {
    let loaded = firmware.loaded_image()?;
    let options = command_line(firmware, loaded.options)?;
    let mut none = [0; EMPTY_BYTES];
    let old = tree(firmware, &mut none)?;
    let words = match &options {
        Some((pages, length)) => pages.first(*length),
        None => bootargs(&old),
    };
    // First what must stay free of all that follows.
    let _held = held::hold(firmware, &old, words)?;
    let mut seed = [0; 8];
    let seed = firmware.random(&mut seed).then_some(seed);
    let copy = memory::image(firmware, words)?;
    let initrd = initrd::load(firmware, loaded.device, &old, words)?;
    let reservations = Reservations::install(firmware)?;
    let map = MemoryMap::new(firmware)?;
    let description = Description {
        command_line: options.as_ref().map(|_| words),
        initrd: initrd.as_ref().map(Pages::range),
        seed,
        system_table: firmware.system_table(),
        map: map.facts(),
        secure_boot: SecureBoot::of(
            firmware.variable(&firmware::SECURE_BOOT),
            firmware.variable(&firmware::SETUP_MODE),
        ),
    };
    let leaving = Leaving {
        firmware,
        tree: Pages::new(firmware, description::most_bytes(&old, &description))?,
        old,
        description,
        copy,
        reservations,
        map,
    };
    Err(leaving.leave())
}

/// The command line of the load options, with its length; `None` if they are empty.
fn command_line<'f>(
    firmware: &'f Firmware,
    options: &[u8],
) -> Result<Option<(Pages<'f>, usize)>, Failure> {
    let most = options::most_bytes(options.len());
    if most == 0 {
        return Ok(None);
    }
    let mut pages = Pages::new(firmware, most)?;
    let length = options::command_line(options, pages.bytes_mut())
        .or_failure(Status::LOAD_ERROR, "the load options cannot be read")?;
    Ok((length > 0).then_some((pages, length)))
}

/// The firmware's device tree, or an empty one in `none`.
fn tree<'a>(firmware: &Firmware, none: &'a mut [u8]) -> Result<Tree<'a>, Failure> {
    let bytes = match firmware.device_tree()? {
        Some(bytes) => bytes,
        None => {
            let length =
                description::empty(none).map_err(|error| Failure::unreadable(error.text()))?;
            none.get(..length).unwrap_or_default()
        }
    };
    Tree::new(bytes).map_err(|error| Failure::unreadable(error.text()))
}

fn bootargs<'a>(tree: &Tree<'a>) -> &'a [u8] {
    let chosen = tree.root().and_then(|root| root.child(b"chosen"));
    chosen
        .and_then(|chosen| chosen.text(b"bootargs"))
        .unwrap_or_default()
}
