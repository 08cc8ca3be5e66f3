//! Reads the device tree with the MMU off, for the values that the boot needs first.
//!
//! The library parses the bytes (`granule_boot`). This file turns the boot loader's address into bytes that
//! may be read, and the results into plain values, which stay valid after the MMU is on.

use super::park;
use crate::arch::image;
use crate::handover::boot_record::{self, Reason};
use crate::handover::{BootChoice, Conduit, EntryInfo, TreeInfo};
use granule::arch::PageSize;
use granule::hw::cache;
use granule_boot::choice::{self, PageSizeInputs};
use granule_boot::kaslr::Kaslr;
use granule_boot::peek::{ConsoleError, Consoles, Peek};
use granule_boot::sizes::SizeSet;
use granule_boot::tree::{Range, Tree, TreeError, total_size};
use granule_boot::uart::Uart;
use granule_boot::{firmware, machines, peek, words};
use granule_kcore::line::Line;
use granule_kcore::sizes;
use granule_kcore::trace::area::{Area, AreaError};
use smccc::{Call, Hvc, Smc};

/// The page size that applies where nothing else chooses one: the feature `default-4k` and so on.
const BUILD_DEFAULT: Option<PageSize> = if cfg!(feature = "default-4k") {
    Some(PageSize::K4)
} else if cfg!(feature = "default-16k") {
    Some(PageSize::K16)
} else if cfg!(feature = "default-64k") {
    Some(PageSize::K64)
} else {
    None
};

/// The results of the look at the tree.
pub(super) struct Seen {
    pub(super) info: TreeInfo,
    pub(super) consoles: Consoles,
    pub(super) choice: BootChoice,
    pub(super) area: Area,
    pub(super) kaslr: Kaslr,
}

/// Reads the tree at `entry.dtb` and chooses the page size by it. Parks if the tree cannot be used.
pub(super) fn look(entry: &EntryInfo, bytes: &[u8]) -> Seen {
    let tree = match Tree::new(bytes) {
        Ok(tree) => tree,
        Err(error) => refuse(error),
    };
    let seen = tree.peek();
    let area = area(entry, seen.bootargs, &tree, bytes.len() as u64);
    let mut consoles = seen.consoles;
    let trace = area.unwrap_or_default();
    check(&mut consoles, entry, &tree, bytes.len() as u64, trace);
    let info = facts(entry, bytes, &seen, consoles.first());
    // From here on errors also go to the console, if there is one.
    park::learn(&info);
    if let Some(error) = seen.damage {
        refuse_in_node(error, &tree);
    }
    if consoles.first().is_none() {
        no_console(&consoles);
    }
    let area = match area {
        Ok(area) => area,
        Err(error) => park::park(Reason::Trace, error.text().as_bytes()),
    };
    let choice = choose(entry, &seen, info.psci);
    keep_off(entry, &tree, &info, &choice, &area);
    let kaslr = Kaslr::decide(seen.kaslr_seed, seen.bootargs);
    if info.seed_offset != 0 {
        // Nothing reads the tree's bytes from here on.
        wipe(entry.dtb.wrapping_add(info.seed_offset), 8);
    }
    Seen {
        info,
        consoles,
        choice,
        area,
        kaslr,
    }
}

/// Learns the console and the way to power off from a tree that is not looked at further, for a reason to
/// park.
pub(super) fn learn(entry: &EntryInfo, tree: &Tree<'_>, bytes: &[u8]) {
    let seen = tree.peek();
    let mut consoles = seen.consoles;
    let length = bytes.len() as u64;
    check(&mut consoles, entry, tree, length, Area::default());
    park::learn(&facts(entry, bytes, &seen, consoles.first()));
}

/// Overwrites a seed of `bytes` bytes at `start`. A later reader of the tree must not be able to
/// compute the kernel's addresses from it.
pub(super) fn wipe(start: u64, bytes: u64) {
    let seed: *mut u8 = core::ptr::with_exposed_provenance_mut(start as usize);
    for offset in 0..bytes as usize {
        // SAFETY: a property of the tree, which the boot protocol places in RAM and which nothing else uses.
        // Single bytes, as a property is aligned to four only.
        unsafe { seed.wrapping_add(offset).write_volatile(0) };
    }
    // The tree was cleaned, so these lines are not dirty. A cache may still have the old bytes.
    cache::clean_and_invalidate(start..start.wrapping_add(bytes));
}

/// Checks the consoles that the tree and the command line name.
fn check(consoles: &mut Consoles, entry: &EntryInfo, tree: &Tree<'_>, bytes: u64, area: Area) {
    let taken = [
        (image_range(entry), ConsoleError::InImage),
        (tree_range(entry, bytes), ConsoleError::InTree),
        (trace_range(&area), ConsoleError::InTrace),
    ];
    consoles.check(tree, 1 << entry.features().pa_bits(), &taken);
}

/// Records why there is no console. The boot goes on, and its lines go nowhere.
fn no_console(consoles: &Consoles) {
    let mut message = Line::<224>::new();
    message.push(b"no console: ");
    let mut is_first = true;
    for (source, error) in consoles.passed_over() {
        if !is_first {
            message.push(b"; ");
        }
        is_first = false;
        message.push(source.name().as_bytes());
        message.push(b" ");
        message.push(error.text().as_bytes());
    }
    if is_first {
        message
            .push(b"no stdout-path in /chosen, no earlycon= or console= of a UART in its bootargs");
    }
    boot_record::no_console(message.bytes());
}

pub(super) fn image_range(entry: &EntryInfo) -> Range {
    Range {
        start: entry.load,
        bytes: image::bytes(),
    }
}

fn tree_range(entry: &EntryInfo, bytes: u64) -> Range {
    Range {
        start: entry.dtb,
        bytes,
    }
}

fn trace_range(area: &Area) -> Range {
    Range {
        start: area.start,
        bytes: area.bytes,
    }
}

/// Parks if the pages of the boot tables contain memory that must not be mapped, or must be mapped with other
/// attributes. Mappings are rounded out to the chosen page, and Normal Cacheable memory may be read
/// speculatively even if the program never accesses it.
fn keep_off(entry: &EntryInfo, tree: &Tree<'_>, info: &TreeInfo, choice: &BootChoice, area: &Area) {
    let page = choice.page.size.bytes();
    let image = image_range(entry).outward(page);
    let device_tree = tree_range(entry, info.bytes).outward(page);
    let trace = trace_range(area);
    let console = info.uart.and_then(|uart| uart.page());
    // Records are written there with the MMU off, before the memory map exists.
    if area.is_wanted() && tree.is_another_kernels(trace) {
        park::park(
            Reason::Trace,
            b"granule.trace= names memory that another kernel keeps (linux,usable-memory-range, \
              linux,usable-memory): name another range",
        );
    }
    if console.is_some_and(|registers| registers.outward(page).meets(device_tree)) {
        park::park(
            Reason::Overlap,
            b"the console's registers and the device tree share a page of the chosen size: place the tree elsewhere",
        );
    }
    for range in tree.no_map() {
        if range.meets(image) {
            park::park(
                Reason::NoMap,
                b"a no-map range of /reserved-memory lies in the pages of the image: load it elsewhere",
            );
        }
        if range.meets(device_tree) {
            park::park(
                Reason::NoMap,
                b"a no-map range of /reserved-memory lies in the pages of the device tree: place \
                  the tree elsewhere, or boot with smaller pages",
            );
        }
        if range.meets(trace) {
            park::park(
                Reason::NoMap,
                b"a no-map range of /reserved-memory lies in the area of granule.trace=: name another one",
            );
        }
    }
}

/// The memory for the trace.
fn area(
    entry: &EntryInfo,
    bootargs: &[u8],
    tree: &Tree<'_>,
    tree_bytes: u64,
) -> Result<Area, AreaError> {
    let initrd = match tree.initial_ramdisk() {
        Some(initrd) => (initrd.start, initrd.bytes),
        None => (0, 0),
    };
    let used = [
        (entry.load, image::bytes()),
        (entry.dtb, tree_bytes),
        initrd,
    ];
    let area = Area::of(bootargs)?;
    area.keep_off(&used)?;
    Ok(area)
}

fn refuse(error: TreeError) -> ! {
    park::park(Reason::DeviceTree, error.text().as_bytes())
}

fn refuse_in_node(error: TreeError, tree: &Tree<'_>) -> ! {
    let mut message = Line::<200>::new();
    message.push(error.text().as_bytes());
    message.push(b", in ");
    tree.damaged_node().parts(|part| message.push(part));
    park::park(Reason::DeviceTree, message.bytes())
}

/// Parks if `tree` lies in the image's memory. The entry code has zeroed a part of that, so a tree there
/// cannot be trusted, even if it looks sound.
fn keep_off_image(entry: &EntryInfo, tree: Range) {
    if tree.meets(image_range(entry)) {
        park::park(
            Reason::Overlap,
            b"the device tree overlaps the memory of the image, which is more than its file \
              (image_size in its header): place the tree elsewhere",
        );
    }
}

/// The bytes of the boot loader's tree, as many as its header states.
pub(super) fn bytes(entry: &EntryInfo) -> &'static [u8] {
    let dtb = entry.dtb;
    if dtb == 0 || dtb & 7 != 0 {
        park::park(
            Reason::DeviceTree,
            b"x0 holds no device tree: expected its physical address, a multiple of 8",
        );
    }
    keep_off_image(entry, tree_range(entry, 8));
    // The loader may have left the tree in a cache, which reads bypass now (arm-rules section 9). Start with
    // the fields that state the size.
    cache::clean(dtb..dtb + 8);
    // SAFETY: the boot protocol places a device tree at `dtb`. A wrong address aborts, which the early
    // vectors report.
    let start = unsafe { core::slice::from_raw_parts(dtb as *const u8, 8) };
    let size = match total_size(start) {
        Ok(size) => size,
        Err(error) => refuse(error),
    };
    keep_off_image(entry, tree_range(entry, u64::from(size)));
    cache::clean(dtb..dtb + u64::from(size));
    // SAFETY: as above, for the size that the tree states, at most 2 MiB.
    unsafe { core::slice::from_raw_parts(dtb as *const u8, size as usize) }
}

/// The values for the kernel. Pointers made here would not stay valid after the switch.
fn facts(entry: &EntryInfo, bytes: &[u8], seen: &Peek<'_>, uart: Option<Uart>) -> TreeInfo {
    let method = seen.psci.and_then(|psci| psci.method);
    TreeInfo {
        bytes: bytes.len() as u64,
        uart,
        bootargs_offset: (seen.bootargs.as_ptr() as u64).wrapping_sub(bytes.as_ptr() as u64),
        bootargs_bytes: seen.bootargs.len() as u64,
        seed_offset: seen.kaslr_seed.map_or(0, |value| {
            (value.as_ptr() as u64).wrapping_sub(bytes.as_ptr() as u64)
        }),
        seed: seen
            .kaslr_seed
            .map_or(0, |value| u64::from_be_bytes(*value)),
        psci: match method {
            Some(peek::Conduit::Hvc) if entry.entry_el == 2 => Conduit::OwnHvc,
            Some(peek::Conduit::Hvc) => Conduit::Hvc,
            Some(peek::Conduit::Smc) => Conduit::Smc,
            _ => Conduit::Unknown,
        },
    }
}

/// The SoC ID from firmware, for machines that the tree's `compatible` does not identify.
fn soc_id(seen: &Peek<'_>, conduit: Conduit) -> Option<u32> {
    let psci = seen.psci?;
    let arguments = |first| [first, 0, 0, 0, 0, 0, 0];
    firmware::soc_id(&psci, |function, first| {
        let [answer, ..] = match conduit {
            Conduit::Smc => Smc::call32(function, arguments(first)),
            Conduit::Hvc => Hvc::call32(function, arguments(first)),
            // NOT_SUPPORTED: there is no firmware to call.
            Conduit::Unknown | Conduit::OwnHvc => [u32::MAX; 8],
        };
        answer
    })
}

/// Chooses the page size and the VA size.
fn choose(entry: &EntryInfo, seen: &Peek<'_>, conduit: Conduit) -> BootChoice {
    let cpu = entry.features();
    let identity = machines::Identity {
        compatible: seen.compatible,
        midr: Some(entry.midr),
        soc: soc_id(seen, conduit),
    };
    let inputs = PageSizeInputs {
        cpu: SizeSet::from(&cpu),
        built: sizes::BUILT,
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
