//! Where the image lies, and the exception level it is entered at: the same map comes of it. And copies that are
//! right wherever they lie.

use granule_cli::{PageSize, Request};

use crate::kernel::machine::{GIB, IMAGE, MIB, RAM, ok, sized};
use crate::kernel::reference::{Reference, range};

#[test]
fn each_page_size_at_three_load_addresses() {
    let memory = 8 * GIB;
    // QEMU's own place, one above 4 GiB, and the last 4 MiB of RAM.
    for load in [IMAGE, 0x1_4000_0000, RAM + memory - 4 * MIB] {
        for size in PageSize::ALL {
            let kernel = ok(&Request {
                memory,
                load_address: Some(load),
                ..sized(size)
            });
            kernel.prints(&format!("image at {load:#x}"));
            let expected = Reference::new(size, false, true, &[range(RAM, RAM + memory)]);
            assert_eq!(kernel.leaves(), expected.leaves(), "{size:?} at {load:#x}");
            assert_eq!(kernel.mapped(), memory);
            kernel.has("page_size", size.bytes());
            kernel.has("page_size_source", "command-line");
        }
    }
}

#[test]
fn el1_and_el2_with_and_without_vhe() {
    // ID_AA64MMFR1_EL1.VH of QEMU's models: the A72 has none.
    for (cpu, vhe) in [("cortex-a72", false), ("neoverse-n1", true), ("max", true)] {
        for el in [1, 2] {
            let kernel = ok(&sized(granule_cli::PageSize::K64).cpu(cpu).el(el));
            let stays = vhe && el == 2;
            kernel.has("entry_el", el);
            kernel.has("run_el", if stays { 2 } else { 1 });
            assert_eq!(kernel.flag("vhe"), stays, "{cpu}");
        }
    }
}

#[test]
fn several_cpus_are_harmless() {
    let kernel = ok(&sized(granule_cli::PageSize::K16).smp(4));
    assert_eq!(kernel.mapped(), 4 * GIB);
}

/// The kernel's own `memcpy`, which runs with the MMU off too: 201 lengths, from and to eight alignments.
#[test]
fn copies_are_right_and_make_no_unaligned_access() {
    let kernel = ok(&sized(PageSize::K4).append("granule.test=copies"));
    kernel.prints("granule: 12864 copies are right");
}
