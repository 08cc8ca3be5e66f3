//! Trees that are unusual and no reason to refuse a boot: long names, blocks in another order, no
//! console, memory that is another kernel's, ranges that reach the end of the address space.

use dtoolkit::model::{DeviceTreeNode, DeviceTreeProperty};
use granule_boot::tree::Tree;
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::boot::tree;
use granule_cli::{Outcome, Request, Rodata};
use granule_testing::text::assert_ends_with;

use crate::booted::Booted;
use crate::kernel::machine::{GIB, IMAGE, MIB, RAM, ends, ok, request, sized};
use crate::kernel::trees::{Crafted, cells, with_tree};

const UART: &str = "/pl011@9000000";

/// The machine with more words for the kernel.
fn with_words(words: &str) -> Crafted {
    Crafted::new(&request().append(words))
}

/// One GiB, in which nothing is read-only, so that each bank is one piece.
fn one_gib(size: PageSize) -> Crafted {
    Crafted::new(&sized(size).rodata(Rodata::Off).memory(GIB))
}

#[test]
fn names_over_31_characters() {
    let mut tree = one_gib(K4);
    let mut deep = DeviceTreeNode::new_unchecked("usb-controller-with-a-very-long-name@fe200000");
    deep.add_child(DeviceTreeNode::new_unchecked("y".repeat(300)));
    tree.tree.root.add_child(deep);
    let long = "snps,quirk-frame-length-adjustment";
    for path in ["/", "/chosen", "/cpus", "/memory@40000000", UART] {
        tree.set(path, long, 0x20_u32);
    }
    tree.reserved(RAM + 512 * MIB, 4096, false);
    tree.set("/reserved-memory", long, 1_u32);
    let kernel = tree.ok();
    assert_eq!(kernel.mapped(), GIB);
}

/// The tree of a machine that QEMU has and that cannot run the kernel: it is read all the same.
#[test]
fn a_tree_by_qemu_with_a_long_name_is_read() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("dtb");
    let option = format!("xlnx-versal-virt,dumpdtb={}", path.display());
    let done = std::process::Command::new(request().qemu)
        .args(["-display", "none", "-machine", &option])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let dumped = std::fs::read(&path).unwrap();
    // The written part of it is read again.
    let written = tree::model(&dumped).unwrap().to_dtb();
    for bytes in [dumped, written] {
        let tree = Tree::new(&bytes).unwrap();
        let long = b"snps,quirk-frame-length-adjustment";
        let node = tree.nodes().find(|node| node.property(long).is_some());
        let node = node.unwrap().path().to_string();
        assert_eq!(node, "/usb@ff9d0000/dwc3@fe200000");
    }
}

/// The blocks of a tree (reservations, structure, strings) in another order.
fn ordered(dtb: &[u8], order: [usize; 3]) -> Vec<u8> {
    let field = |at: usize| u32::from_be_bytes(dtb[at..at + 4].try_into().unwrap()) as usize;
    let (structure, strings, reservations) = (field(8), field(12), field(16));
    let blocks = [
        &dtb[reservations..structure],
        &dtb[structure..structure + field(36)],
        &dtb[strings..strings + field(32)],
    ];
    let mut made = dtb[..40].to_vec();
    for block in order {
        let place = made.len() as u32;
        let at = [16, 8, 12][block];
        made[at..at + 4].copy_from_slice(&place.to_be_bytes());
        made.extend(blocks[block]);
        made.resize(made.len().next_multiple_of(8), 0);
    }
    let size = made.len() as u32;
    made[4..8].copy_from_slice(&size.to_be_bytes());
    made
}

#[test]
fn the_blocks_of_a_tree_in_any_order() {
    let mut tree = one_gib(K16);
    tree.memreserve(RAM + 512 * MIB, 4 * MIB);
    let (base, _files) = tree.request();
    let bytes = tree.bytes();
    let mut free = Vec::new();
    for order in [[2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let made = ordered(&bytes, order);
        assert_ne!(made, bytes);
        let (request, _files) = with_tree(&base, &made);
        let kernel = ok(&request);
        assert_eq!(kernel.mapped(), GIB);
        free.push(kernel.number("memory.free_bytes"));
    }
    // The reservation was read in all orders.
    assert!(free.iter().all(|bytes| *bytes == free[0]), "{free:?}");
    let none = one_gib(K16).ok().number("memory.free_bytes");
    assert_eq!(none - free[0], 4 * MIB);
}

/// A tree in which that property of a node is another one; without a value it is gone.
fn edited(words: &str, path: &str, name: &str, value: Option<&str>) -> Crafted {
    let mut tree = with_words(words);
    match value {
        Some(value) => tree.set(path, name, value),
        None => tree.remove(path, name),
    }
    tree
}

#[test]
fn earlycon_names_the_console_before_anything_else() {
    let short = "earlycon=pl011,0x9000000";
    let long = "earlycon=pl011,mmio32,0x9000000,115200n8";
    for (words, path, name, value) in [
        (short, "/chosen", "stdout-path", None),
        (long, "/chosen", "stdout-path", Some("/nowhere@1")),
        // The properties of a node make no difference to an address.
        (short, UART, "compatible", Some("vendor,uart")),
        // Linux's name of the device.
        (
            "console=ttyAMA0,115200 root=/dev/vda",
            "/chosen",
            "stdout-path",
            None,
        ),
    ] {
        edited(words, path, name, value).ok();
    }
    // The older name.
    let mut older = edited("", "/chosen", "stdout-path", None);
    older.set("/chosen", "linux,stdout-path", UART);
    older.ok();
}

#[test]
fn an_earlycon_that_is_not_understood_is_reported() {
    let kernel = with_words("earlycon=uart8250,io,0x3f8").ok();
    kernel.prints("earlycon=uart8250,io,0x3f8: expected a UART and the address");
    // Without a value it means the console that the tree names.
    with_words("earlycon")
        .ok()
        .does_not_print("granule: earlycon");
}

/// A console that cannot be used does not silence the next one, which prints why it was passed
/// over.
#[test]
fn a_console_that_cannot_be_used_is_passed_over_and_reported() {
    for (base, why) in [
        (0x900_0001, "at 0, unaligned, or across a multiple of 4096"),
        (0x900_0ff0, "at 0, unaligned, or across a multiple of 4096"),
        (1 << 60, "beyond the CPU's physical addresses"),
        (IMAGE, "in the memory of the image"),
        (RAM + 511 * MIB, "in RAM"),
        (
            RAM + 256 * MIB + 4096,
            "in a no-map range of /reserved-memory",
        ),
    ] {
        let mut tree = with_words(&format!("earlycon=pl011,{base:#x}"));
        tree.reserved(RAM + 256 * MIB, 8192, true);
        let kernel = tree.ok();
        let line = format!("granule: not the console: earlycon= has registers {why}");
        kernel.prints(&line);
    }
    let mut other = with_words("console=ttyAMA0");
    let mut uart = DeviceTreeNode::new_unchecked("uart@a000000");
    for (name, value) in [
        ("compatible", b"vendor,uart\0".to_vec()),
        ("reg", cells(&[(0xa00_0000, 4096)])),
    ] {
        uart.add_property(DeviceTreeProperty::new_unchecked(name, value));
    }
    other.tree.root.add_child(uart);
    other.set("/chosen", "stdout-path", "/uart@a000000");
    let kernel = other.ok();
    kernel.prints(
        "not the console: /chosen/stdout-path leads to a device that is not a UART of a known kind",
    );
}

/// The records of a trace would be written into the registers.
#[test]
fn a_console_in_the_area_of_the_trace_is_passed_over() {
    let kernel = with_words("granule.trace=0x50000000,0x4000000 earlycon=pl011,0x50001000").ok();
    kernel.prints("not the console: earlycon= has registers in the area of granule.trace=");
}

#[test]
fn every_console_that_is_named_is_reported_if_none_can_be_used() {
    let mut tree = with_words("earlycon=pl011,0x9000001 console=ttyAMA0 console=ttyAMAx");
    tree.set("/chosen", "stdout-path", "/nowhere@1");
    without_console(
        &tree,
        "no console: earlycon= has registers at 0, unaligned, or across a multiple of 4096; \
         /chosen/stdout-path leads to no node; console= has a value that is not understood",
    );
}

/// Boots a kernel that has no console to its end.
fn without_console(tree: &Crafted, why: &str) {
    let (request, _files) = tree.request();
    let kernel = ends(&request, Outcome::GuestExit);
    assert_eq!(kernel.console, "");
    kernel.fails_with(why);
    assert_ends_with(kernel.reason(), "the kernel had finished");
}

#[test]
fn without_a_console_the_kernel_boots_on_and_leaves_its_record() {
    let none = edited("", "/chosen", "stdout-path", None);
    without_console(&none, "no console: no stdout-path in /chosen");
    let nowhere = edited("", "/chosen", "stdout-path", Some("/nowhere@1"));
    without_console(&nowhere, "no console: /chosen/stdout-path leads to no node");
    let unknown = edited("", UART, "compatible", Some("vendor,uart"));
    let why = "leads to a device that is not a UART of a known kind";
    without_console(&unknown, why);
    let mut bare = with_words("");
    bare.tree.root.remove_child("chosen").unwrap();
    without_console(&bare, "no console: no stdout-path in /chosen");
    // A later failure replaces that reason. The user needs it more.
    let mut fails = edited("", "/chosen", "stdout-path", None);
    fails.set("/chosen", "linux,usable-memory-range", vec![0_u8; 12]);
    let why = "the device tree's /chosen has a linux,usable-memory-range that is not whole pairs";
    without_console(&fails, why);
}

/// An access there would fault, or write where something else lies.
#[test]
fn a_console_that_cannot_be_where_the_tree_puts_it() {
    for (base, why) in [
        (0x900_0002, "unaligned"),
        (0, "at 0"),
        (1 << 60, "beyond the CPU's physical addresses"),
        (u64::MAX - 4095, "beyond the CPU's physical addresses"),
        (IMAGE + 4096, "in the memory of the image"),
        (RAM + 511 * MIB, "in RAM"),
    ] {
        let mut tree = with_words("");
        tree.set(UART, "reg", cells(&[(base, 4096)]));
        without_console(&tree, why);
    }
}

#[test]
fn a_boot_that_cannot_go_on_without_a_console_parks() {
    let tree = edited("granule.trace=0x1", "/chosen", "stdout-path", None);
    let kernel = tree.refused();
    assert!(kernel.boot.boot_record.as_ref().unwrap().is_parked());
    kernel.fails_with("granule.trace");
    assert_eq!(kernel.console, "");
}

#[test]
fn ranges_that_reach_the_end_of_the_address_space_have_no_effect() {
    let page = 4096;
    let end = u64::MAX - page + 1;
    for size in PageSize::ALL {
        let mut tree = one_gib(size);
        tree.bank_node(&[(end, page), (end, 2 * page)])
            .memreserve(end, page)
            .memreserve(1 << 60, 1 << 50)
            .reserved(end - page, 4 * page, false)
            .reserved(1 << 59, 1 << 51, true);
        let kernel = tree.ok();
        assert_eq!(kernel.mapped(), GIB);
        kernel.has("linear_map.ram_bytes", GIB);
        let node = "the device tree's /memory@fffffffffffff000 has";
        kernel.prints(&format!(
            "{node} 0x1000 bytes at {end:#x}, which reach the end of the address space; left out"
        ));
        kernel.prints(&format!("{node} 0x2000 bytes at {end:#x}"));
        kernel.prints(&format!(
            "the device tree reserves 0x1000 bytes at {end:#x}"
        ));
        kernel.prints(&format!(
            "the device tree reserves 0x4000 bytes at {:#x}",
            end - page
        ));
        kernel.prints("reserved range 0x1000000000000000 to 0x1004000000000000 lies outside RAM");
    }
}

/// A reservation that begins in RAM and has no end keeps the RAM.
#[test]
fn a_reservation_without_an_end_keeps_what_is_ram() {
    let free = |tree: &Crafted| tree.ok().number("memory.free_bytes");
    let mut bounded = one_gib(K4);
    bounded.memreserve(RAM + 768 * MIB, 256 * MIB);
    let mut endless = one_gib(K4);
    endless.memreserve(RAM + 768 * MIB, u64::MAX - RAM);
    assert_eq!(free(&endless), free(&bounded));
}

/// The pieces of the linear map, as first addresses and bytes.
fn pieces(kernel: &Booted) -> Vec<(u64, u64)> {
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let pieces = kernel.text("linear_map.pieces").split(',');
    let pieces = pieces.map(|piece| piece.split_once('+').unwrap());
    pieces
        .map(|(start, bytes)| (number(start), number(bytes)))
        .collect()
}

#[test]
fn a_list_of_pieces_that_is_too_long_for_its_line_is_cut_and_counted() {
    // A no-map range divides each bank but the first, in which the image is.
    let banks: Vec<_> = (0..128)
        .map(|n| (RAM + n * 8 * MIB, if n == 0 { 7 } else { 4 } * MIB))
        .collect();
    let mut tree = one_gib(K4);
    tree.banks(&banks);
    for (start, _) in &banks[1..] {
        tree.reserved(start + MIB, 4096, true);
    }
    let kernel = tree.ok();
    let recorded = pieces(&kernel);
    let left_out = kernel.number("linear_map.pieces_left_out");
    assert!(left_out > 0, "{}", recorded.len());
    assert_eq!(recorded.len() as u64 + left_out, 1 + 2 * 127);
    let line = kernel.text("linear_map.pieces").len() + "@granule linear_map.pieces=".len();
    assert!((4096 - 32..=4094).contains(&line), "{line}");
    assert_eq!(recorded[2], (RAM + 9 * MIB + 4096, 3 * MIB - 4096));
    let few = pieces(&one_gib(K4).ok());
    assert_eq!(few, [(RAM, GIB)]);
}

#[test]
fn memory_outside_linux_usable_memory_range_is_neither_mapped_nor_used() {
    for size in PageSize::ALL {
        let mut tree = one_gib(size);
        let ranges = [(RAM + 640 * MIB, 64 * MIB), (RAM, 512 * MIB)];
        tree.set("/chosen", "linux,usable-memory-range", cells(&ranges));
        let kernel = tree.ok();
        assert_eq!(
            pieces(&kernel),
            [(RAM, 512 * MIB), (RAM + 640 * MIB, 64 * MIB)]
        );
        assert_eq!(kernel.mapped(), 576 * MIB);
        kernel.prints(&format!(
            "linux,usable-memory-range leaves {} bytes of RAM; other RAM",
            576 * MIB
        ));
    }
}

/// The tree is mapped by the boot tables, and the linear map leaves it alone.
#[test]
fn the_tree_may_lie_outside_the_usable_memory() {
    let mut tree = one_gib(K64);
    let range = cells(&[(RAM, 512 * MIB)]);
    tree.set("/chosen", "linux,usable-memory-range", range);
    let (request, _files) = tree.request();
    let kernel = ok(&Request {
        dtb_address: Some(RAM + 800 * MIB),
        ..request
    });
    assert_eq!(pieces(&kernel), [(RAM, 512 * MIB)]);
}

/// An initial RAM disk there is RAM that may not be mapped, so there is nothing to run.
#[test]
fn an_initial_ram_disk_outside_the_usable_memory_is_reported() {
    let mut tree = one_gib(K4);
    let range = cells(&[(RAM, 512 * MIB)]);
    tree.set("/chosen", "linux,usable-memory-range", range);
    tree.set("/chosen", "linux,initrd-start", RAM + 700 * MIB);
    tree.set("/chosen", "linux,initrd-end", RAM + 701 * MIB);
    let (request, _files) = tree.request();
    let kernel = ok(&request);
    assert_eq!(pieces(&kernel), [(RAM, 512 * MIB)]);
    kernel.prints("is not in RAM that is mapped: no user space");
}

/// Records are written there before the memory map exists.
#[test]
fn a_trace_outside_the_usable_memory_is_refused() {
    for (area, expected) in [
        (RAM + 600 * MIB, Some("another kernel keeps")),
        (RAM + 300 * MIB, None),
    ] {
        let mut tree = with_words(&format!("granule.trace={area:#x},0x1000000"));
        tree.set(
            "/chosen",
            "linux,usable-memory-range",
            cells(&[(RAM, 512 * MIB)]),
        );
        match expected {
            Some(expected) => {
                let kernel = tree.refused();
                kernel.fails_with(expected);
            }
            None => drop(tree.ok()),
        }
    }
}

/// The RAM is a file, so every byte of it can be looked at afterwards.
#[test]
fn not_a_byte_outside_the_usable_memory_is_written() {
    let memory = 256 * MIB;
    let usable = [(RAM, 64 * MIB), (RAM + 160 * MIB, 64 * MIB)];
    for size in PageSize::ALL {
        let mut tree = Crafted::new(&Request {
            memory,
            dtb_address: Some(RAM + 48 * MIB),
            ..sized(size)
        });
        tree.set("/chosen", "linux,usable-memory-range", cells(&usable));
        let (request, files) = tree.request();
        let ram = files.path().join("ram");
        let before = vec![0xa5; memory as usize];
        std::fs::write(&ram, &before).unwrap();
        ok(&Request {
            ram_file: Some(ram.clone()),
            ..request
        });
        let after = std::fs::read(&ram).unwrap();
        assert_eq!(after.len(), before.len());
        let written: Vec<_> = after
            .chunks(4096)
            .enumerate()
            .filter(|(_, page)| page.iter().any(|byte| *byte != 0xa5))
            .map(|(page, _)| RAM + 4096 * page as u64)
            .collect();
        let inside = |at: &u64| {
            usable
                .iter()
                .any(|(start, bytes)| (*start..start + bytes).contains(at))
        };
        let outside: Vec<_> = written.iter().filter(|at| !inside(at)).collect();
        assert!(outside.is_empty(), "{size:?}: {outside:x?}");
        // The kernel's self-check writes to pages of all that is usable.
        assert!(written.iter().any(|at| *at >= usable[1].0), "{size:?}");
    }
}

#[test]
fn a_memory_node_gives_only_what_linux_usable_memory_leaves_of_it() {
    let mut tree = one_gib(K4);
    tree.banks(&[(RAM, 512 * MIB), (RAM + 512 * MIB, 512 * MIB)]);
    let part = cells(&[(RAM + 600 * MIB, 8 * MIB)]);
    tree.set("/memory@60000000", "linux,usable-memory", part);
    let kernel = tree.ok();
    assert_eq!(
        pieces(&kernel),
        [(RAM, 512 * MIB), (RAM + 600 * MIB, 8 * MIB)]
    );
    kernel.prints("the device tree's /memory@60000000 has linux,usable-memory; other memory");
}

#[test]
fn a_range_of_usable_memory_that_cannot_be_read_is_refused() {
    for (path, name) in [
        ("/chosen", "linux,usable-memory-range"),
        ("/memory@40000000", "linux,usable-memory"),
    ] {
        let mut tree = one_gib(K4);
        tree.set(path, name, vec![0_u8; 12]);
        let kernel = tree.refused();
        let line = format!("the device tree's {path} has a {name} that is not whole pairs");
        kernel.fails_with(&line);
    }
}
