//! Memory removed, added again, and added for the first time.

use dtoolkit::model::DeviceTreeProperty;
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::boot::tree;
use granule_cli::{Request, Rodata};

use crate::hooked::test_image;
use crate::permissions::machine::{machine, ok};

const MIB: u64 = 1 << 20;

#[test]
fn removed_memory_is_gone_and_comes_back_as_it_was() {
    for (size, cpus, el, rodata) in [
        (K4, 4, 2, Rodata::Noalias),
        (K16, 4, 1, Rodata::Noalias),
        (K64, 1, 2, Rodata::Noalias),
        (K16, 2, 2, Rodata::Full),
    ] {
        let made = ok(&machine(cpus, size, "granule.test=hotplug")
            .el(el)
            .rodata(rodata));
        assert!(made.tested("hotplug.bytes") > 256 * MIB);
    }
}

/// The tree lists less RAM than there is; the kernel gets the rest later.
#[test]
fn memory_that_the_tree_does_not_describe_is_added() {
    const TOLD: u64 = 512 * MIB;
    const ADDED: u64 = 256 * MIB;
    for size in PageSize::ALL {
        let mut request = machine(2, size, "granule.test=hotplug-new");
        let words = request.bootargs();
        let dtb = tree::dump(&request).unwrap();
        let mut tree = tree::model(&dtb).unwrap();
        let node = tree.find_node_mut("/memory@40000000").unwrap();
        let reg = [0x4000_0000, TOLD].map(u64::to_be_bytes).concat();
        node.add_property(DeviceTreeProperty::new_unchecked("reg", reg));
        let node = tree.find_node_mut("/chosen").unwrap();
        let words = format!("{words}\0").into_bytes();
        node.add_property(DeviceTreeProperty::new_unchecked("bootargs", words));
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("dtb");
        std::fs::write(&path, tree.to_dtb()).unwrap();
        // The tree has the words.
        request = Request {
            image: Some(test_image()),
            dtb: Some(path),
            page_size: None,
            rodata: None,
            append: None,
            ..request
        };
        let made = ok(&request);
        assert_eq!(made.tested("hotplug.new_bytes"), ADDED);
        assert_eq!(made.tested("hotplug.twice"), 64);
        // 12 bytes a frame, and a bit for 256 of them, in a block of 2^n pages.
        let frames = ADDED / size.bytes();
        let bytes = 12 * frames + 4 * frames.div_ceil(256).div_ceil(32);
        let pages = bytes.div_ceil(size.bytes()).next_power_of_two();
        assert_eq!(made.tested("hotplug.metadata"), pages * size.bytes());
        // In the largest leaves that fit: entries of 256 MiB.
        let entry = match size {
            K4 => 2 * MIB,
            K16 => 32 * MIB,
            // Half of a block: pages, in groups.
            K64 => 64 << 10,
        };
        assert_eq!(made.tested("hotplug.leaves"), ADDED / entry, "{size:?}");
    }
}
