//! The device tree with the MMU off: from an address to what the boot needs of it first.
//!
//! The looking itself is the library's (`granule::boot`), which works on bytes; here an address
//! that a boot loader gave becomes bytes that may be read, and what is found becomes plain
//! values that outlive the MMU's switch.

use super::cache;
use super::park;
use super::record::Reason;
use crate::handover::{BootChoice, Conduit, EntryInfo, TreeInfo};
use crate::image;
use crate::trace::Area;
use granule::arch::PageSize;
use granule::boot::choice::{self, PageSizeInputs, SizeSet};
use granule::boot::peek::{Peek, Tree, TreeError, total_size};
use granule::boot::{machines, peek, words};

/// The page size that is taken where nobody else has a say: `GRANULE_DEFAULT_PAGE_SIZE` when the
/// kernel was built.
const BUILD_DEFAULT: Option<PageSize> = match option_env!("GRANULE_DEFAULT_PAGE_SIZE") {
    None => None,
    Some(text) => match text.as_bytes() {
        b"" => None,
        b"4k" => Some(PageSize::K4),
        b"16k" => Some(PageSize::K16),
        b"64k" => Some(PageSize::K64),
        // While compiling, not while booting.
        _ => panic!("GRANULE_DEFAULT_PAGE_SIZE: expected 4k, 16k or 64k, or nothing"),
    },
};

/// Looks at the tree that the boot loader gave, and chooses by it. Parks when it cannot be used.
pub(super) fn look(entry: &EntryInfo) -> (TreeInfo, BootChoice, Area) {
    let bytes = bytes(entry.dtb);
    let tree = match Tree::new(bytes) {
        Ok(tree) => tree,
        Err(error) => refuse(error),
    };
    let seen = tree.peek();
    let info = facts(entry, bytes, &seen);
    // From here on the console, if the tree names one, hears of it.
    park::learn(&info);
    if let Some(error) = seen.damage {
        refuse(error);
    }
    // Without a console nobody would ever hear how the boot ended: say so where it is read.
    match seen.console {
        Ok(console) if !console.is_pl011 => park::park(
            Reason::NoConsole,
            b"no console: /chosen/stdout-path leads to a device that is not arm,pl011",
        ),
        Ok(_) => {}
        Err(error) => park::park(Reason::NoConsole, error.text().as_bytes()),
    }
    let area = area(entry, seen.bootargs, info.bytes);
    (info, choose(entry, &seen), area)
}

/// Where a trace is to go.
fn area(entry: &EntryInfo, bootargs: &[u8], tree_bytes: u64) -> Area {
    let used = [(entry.load, image::bytes()), (entry.dtb, tree_bytes)];
    match Area::of(bootargs) {
        Ok(area) => match area.keep_off(&used) {
            Ok(()) => area,
            Err(error) => park::park(Reason::Trace, error.text().as_bytes()),
        },
        Err(error) => park::park(Reason::Trace, error.text().as_bytes()),
    }
}

fn refuse(error: TreeError) -> ! {
    park::park(Reason::DeviceTree, error.text().as_bytes())
}

/// The bytes of the tree at `dtb`, as far as its header says.
fn bytes(dtb: u64) -> &'static [u8] {
    if dtb == 0 || dtb & 7 != 0 {
        park::park(
            Reason::DeviceTree,
            b"x0 holds no device tree: expected its physical address, a multiple of 8",
        );
    }
    // The loader may have left the tree in a cache, which reads do not see now (arm-rules
    // section 9). First what tells how much there is.
    cache::clean_to_poc(dtb..dtb + 8);
    // SAFETY: the boot protocol says that a device tree is at `dtb`; a wrong address aborts,
    // which the early vectors tell.
    let start = unsafe { core::slice::from_raw_parts(dtb as *const u8, 8) };
    let size = match total_size(start) {
        Ok(size) => size,
        Err(error) => refuse(error),
    };
    cache::clean_to_poc(dtb..dtb + u64::from(size));
    // SAFETY: as above, for the size that the tree states, at most 2 MiB.
    unsafe { core::slice::from_raw_parts(dtb as *const u8, size as usize) }
}

/// What is handed to the kernel, as values: pointers made here do not outlive the switch.
fn facts(entry: &EntryInfo, bytes: &[u8], seen: &Peek<'_>) -> TreeInfo {
    let console = match seen.console {
        Ok(console) if console.is_pl011 => console.base,
        _ => 0,
    };
    let method = seen.psci.and_then(|psci| psci.method);
    TreeInfo {
        bytes: bytes.len() as u64,
        uart: console,
        bootargs_offset: (seen.bootargs.as_ptr() as u64).wrapping_sub(bytes.as_ptr() as u64),
        bootargs_bytes: seen.bootargs.len() as u64,
        psci: match method {
            Some(peek::Conduit::Hvc) if entry.entry_el == 2 => Conduit::OwnHvc,
            Some(peek::Conduit::Hvc) => Conduit::Hvc,
            Some(peek::Conduit::Smc) => Conduit::Smc,
            _ => Conduit::Unknown,
        },
    }
}

/// The page size and the VA size.
fn choose(entry: &EntryInfo, seen: &Peek<'_>) -> BootChoice {
    let cpu = entry.features();
    let identity = machines::Identity {
        compatible: seen.compatible,
        midr: Some(entry.midr),
        soc: None,
    };
    let inputs = PageSizeInputs {
        cpu: SizeSet::from(&cpu),
        command_line: words::page_size(seen.bootargs),
        machine: machines::find(&identity),
        build_default: BUILD_DEFAULT,
    };
    match choice::choose_page_size(&inputs) {
        Ok(page) => {
            let va = choice::choose_va_bits(&cpu, page.size, words::va_bits(seen.bootargs));
            BootChoice { page, va }
        }
        Err(error) => park::park(Reason::PageSize, error.text().as_bytes()),
    }
}
