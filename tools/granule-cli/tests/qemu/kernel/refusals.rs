//! Conditions on which the kernel refuses to boot: one clear line each, on the console or in the
//! boot record, and never silence.

use dtoolkit::model::{DeviceTreeNode, DeviceTreeProperty};
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::boot::tree;
use granule_cli::{Outcome, Request};

use crate::booted::Booted;
use crate::kernel::machine::{GIB, IMAGE, MIB, RAM, ends, ok, request, sized};
use crate::kernel::trees::{Crafted, cells, with_tree};

/// Hands the kernel these bytes for a tree.
fn refused(dtb: &[u8]) -> Booted {
    let (request, _files) = with_tree(&request(), dtb);
    ends(&request, Outcome::Refused)
}

#[track_caller]
fn assert_reason(kernel: &Booted, text: &str) {
    kernel.fails_with(text);
    assert_eq!(kernel.boot.exit_code(), 1);
    assert!(!kernel.boot.bad_usage);
}

/// Told by the boot record alone: state parked, and nothing on the console.
#[track_caller]
fn assert_parked(kernel: &Booted, text: &str) {
    assert_reason(kernel, text);
    assert!(kernel.boot.boot_record.as_ref().unwrap().is_parked());
    assert_eq!(kernel.console, "");
}

#[test]
fn a_tree_that_is_none() {
    let whole = tree::dump(&request()).unwrap();
    let mut bad = whole.clone();
    bad[0] ^= 1;
    assert_parked(&refused(&bad), "device tree: bad magic");
    assert_parked(&refused(b""), "device tree: bad magic");
    assert_parked(&refused(&vec![0xff; 4096]), "device tree: bad magic");
}

#[test]
fn a_tree_with_a_bad_header() {
    let whole = tree::dump(&request()).unwrap();
    let with = |at: usize, value: u32| {
        let mut bad = whole.clone();
        bad[at..at + 4].copy_from_slice(&value.to_be_bytes());
        refused(&bad)
    };
    assert_parked(&with(4, 39), "device tree: total size out of range");
    assert_parked(
        &with(4, (2 << 20) + 1),
        "device tree: total size out of range",
    );
    assert_parked(&with(20, 15), "device tree: unsupported version");
    assert_parked(&with(8, u32::MAX - 3), "device tree: the header's blocks");
}

/// Cut off at a dozen places: the header claims more than there is, and zeroes follow in RAM.
#[test]
fn a_truncated_tree() {
    let whole = Crafted::new(&request()).bytes();
    for part in 1..12 {
        let kernel = refused(&whole[..whole.len() * part / 12]);
        assert_reason(&kernel, "device tree: ");
    }
}

#[test]
fn a_tree_without_memory() {
    let mut none = Crafted::new(&request());
    none.banks(&[]);
    assert_reason(&none.refused(), "the device tree names no memory");
    let mut empty = Crafted::new(&request());
    empty.banks(&[(RAM, 0)]);
    assert_reason(&empty.refused(), "the device tree names no memory");
}

#[test]
fn a_bank_that_cannot_be() {
    let mut half = Crafted::new(&request());
    half.set(
        "/memory@40000000",
        "reg",
        cells(&[(RAM, GIB)])[..12].to_vec(),
    );
    assert_reason(
        &half.refused(),
        "the device tree's /memory@40000000 has a reg that is not whole pairs",
    );
    let mut kept = Crafted::new(&request());
    kept.reserved(RAM + 64 * MIB, MIB, false);
    kept.set("/reserved-memory/kept@44000000", "reg", vec![0_u8; 15]);
    assert_reason(
        &kept.refused(),
        "the device tree's /reserved-memory/kept@44000000 has a reg that is not whole pairs",
    );
}

#[test]
fn damage_is_reported_with_the_path_of_its_node() {
    let long = format!("bridge-with-a-name-of-more-than-{}@1", 31);
    let mut tree = Crafted::new(&request());
    let mut node = DeviceTreeNode::new_unchecked(long.as_str());
    node.add_property(DeviceTreeProperty::new_unchecked("marked", "no such token"));
    let mut soc = DeviceTreeNode::new_unchecked("soc");
    soc.add_child(node);
    tree.tree.root.add_child(soc);
    let mut bytes = tree.bytes();
    let value = b"no such token";
    let at = bytes
        .windows(value.len())
        .position(|it| it == value)
        .unwrap();
    // The property's token.
    bytes[at - 9] = 5;
    let kernel = refused(&bytes);
    assert_reason(
        &kernel,
        &format!("device tree: bad token, the tree is damaged or cut off, in /soc/{long}"),
    );
}

/// The tree's pages are mapped whole: with large ones more of what lies beside it.
#[test]
fn a_no_map_range_beside_the_tree() {
    let at = RAM + 128 * MIB;
    for size in PageSize::ALL {
        let mut tree = Crafted::new(&sized(size));
        tree.reserved(at + (32 << 10), 4096, true);
        let (request, _files) = tree.request();
        assert!(tree.bytes().len() < 16 << 10);
        let request = Request {
            dtb_address: Some(at),
            ..request
        };
        if size == K64 {
            let kernel = ends(&request, Outcome::Refused);
            assert_reason(&kernel, "no-map");
            assert_reason(&kernel, "in the pages of the device tree");
        } else {
            ok(&request);
        }
    }
}

#[test]
fn a_bank_without_the_image() {
    let mut tree = Crafted::new(&request());
    tree.banks(&[(RAM + 64 * MIB, 512 * MIB)]);
    assert_reason(&tree.refused(), "does not lie in one bank");
    let mut half = Crafted::new(&request());
    half.banks(&[(RAM, IMAGE - RAM + MIB)]);
    assert_reason(&half.refused(), "RAM is too small");
}

/// The image's memory is more than its file. What the kernel reads and writes before it looks at the initramfs has
/// damaged that, or is damaged by it.
#[test]
fn an_initramfs_in_memory_of_the_kernel_is_refused() {
    let (tree_at, trace_at) = (RAM + 128 * MIB, RAM + 256 * MIB);
    for (start, owner) in [
        (IMAGE - 4096, "overlaps the memory of the image"),
        (IMAGE + MIB, "overlaps the memory of the image"),
        (tree_at - 4096, "overlaps the memory of the device tree"),
        (tree_at + 4096, "overlaps the memory of the device tree"),
        (
            trace_at + MIB,
            "granule.trace= names memory that the image, the device tree or the initramfs is in",
        ),
    ] {
        let mut tree = Crafted::new(&request());
        tree.set(
            "/chosen",
            "bootargs",
            format!("granule.trace={trace_at:#x},0x1000000").as_str(),
        );
        tree.set("/chosen", "linux,initrd-start", start);
        tree.set("/chosen", "linux,initrd-end", start + 8192);
        let (request, _files) = tree.request();
        let request = Request {
            dtb_address: Some(tree_at),
            ..request
        };
        assert_reason(&ends(&request, Outcome::Refused), owner);
    }
}

#[test]
fn ram_that_is_too_small_for_its_tables() {
    // All but the image is reserved, and there is more RAM than the static pool's tables map.
    let mut tree = Crafted::new(&sized(K4));
    tree.reserved(RAM, IMAGE - RAM, false)
        .reserved(IMAGE, 4 * GIB, false);
    let kernel = tree.refused();
    assert_reason(
        &kernel,
        "no free range of RAM holds the tables of the linear map",
    );
}

#[test]
fn the_least_ram_that_qemu_can_load_an_image_into() {
    let kernel = ends(&request().memory(4 * MIB), Outcome::Refused);
    assert_reason(&kernel, "QEMU: ");
    for size in PageSize::ALL {
        let kernel = ok(&sized(size).memory(8 * MIB));
        assert_eq!(kernel.mapped(), 8 * MIB);
    }
}

#[test]
fn an_image_at_a_misaligned_address() {
    for offset in [4, 0x1000, 0x1_0000, 0x10_0000] {
        let kernel = ends(
            &Request {
                load_address: Some(IMAGE + offset),
                ..request()
            },
            Outcome::Refused,
        );
        assert_parked(&kernel, "loaded at an address that is not 2 MiB aligned");
    }
}

#[test]
fn words_that_are_not_understood_are_reported_and_passed_over() {
    for (words, line) in [
        (
            "rodata=maybe",
            "rodata=maybe: expected off, noalias, on or full; taking on",
        ),
        (
            "linear_map=magic",
            "linear_map=magic: expected base, no-cont-remap, batch-barriers, no-alloc-remap, \
             lazy-unmap or direct; taking direct",
        ),
        (
            "rodata=",
            "rodata=: expected off, noalias, on or full; taking on",
        ),
        (
            "debug_pagealloc=yes granule.kexec=fast granule.kexce=digest",
            "granule.kexce: no such word; ignored",
        ),
        (
            "debug_pagealloc=yes granule.kexec=fast",
            "debug_pagealloc=yes: expected on or off; taking off",
        ),
        (
            "granule.kexec=fast",
            "granule.kexec=fast: expected uncached, digest, or both with a comma between them; ignored",
        ),
        (
            "granule.test=prak",
            "granule.test=prak: expected the name of a test",
        ),
        (
            "granule.test=kexec:filp@3",
            "granule.test=kexec:filp@3: expected kernel, initrd, tree, flip",
        ),
    ] {
        let kernel = ok(&sized(K64).append(words));
        kernel.prints(line);
        kernel.has("linear_map.rodata", "on");
        kernel.has("linear_map.strategy", "direct");
    }
}

#[test]
fn a_command_line_that_is_too_long_is_reported() {
    let kernel = ok(&sized(K16).append("x".repeat(3000)));
    kernel.prints("only 2048 are read");
}
