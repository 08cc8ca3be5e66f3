//! More RAM than the CPU or the address space can hold: as much as fits is mapped, and the rest is
//! reported.
//!
//! A CPU's own limit is shown with a bank that only the tree has, as nothing may touch it. RAM above
//! 2^48 cannot be had from QEMU.

use granule_cli::PageSize::{self, K4, K64};
use granule_cli::{Request, Rodata};

use crate::kernel::machine::{GIB, RAM, ok, sized};
use crate::kernel::trees::Crafted;

#[test]
fn more_ram_than_36_bits_can_map() {
    for size in PageSize::ALL {
        let kernel = ok(&sized(size).memory(64 * GIB).va_bits(36).rodata(Rodata::Off));
        // The linear map has half of the kernel's 2^36 bytes.
        assert_eq!(kernel.mapped(), 32 * GIB, "{size:?}");
        kernel.has("linear_map.ram_bytes", 32 * GIB);
        kernel.prints(&format!(
            "{} bytes of RAM do not fit the linear map",
            32 * GIB
        ));
        kernel.prints("36 of virtual address");
    }
}

#[test]
fn the_image_may_lie_in_ram_that_is_left_out() {
    let load = RAM + 48 * GIB;
    let kernel = ok(&Request {
        memory: 64 * GIB,
        va_bits: Some(36),
        load_address: Some(load),
        ..sized(K64)
    });
    assert_eq!(kernel.mapped(), 32 * GIB);
    // It is not seen there, so there is nothing to protect.
    kernel.has("self_check.read_only_bytes", 0);
    // Nor can what the image no longer needs be given to anyone.
    kernel.has("memory.static_bytes_given_back", 0);
}

#[test]
fn ram_just_fits_39_bits() {
    // Half of 2^39 bytes; with the largest leaves the map begins below RAM, so a little less RAM
    // would be left out if that were not given up for a full map.
    let kernel = ok(&sized(K4).memory(256 * GIB).va_bits(39).rodata(Rodata::Off));
    assert_eq!(kernel.mapped(), 256 * GIB);
    assert_eq!(kernel.leaves(), [(GIB, false, 256)]);
    kernel.does_not_print("left out");
}

/// ID_AA64MMFR0_EL1.PARange: 40 bits on the A53, 44 on the A72.
#[test]
fn a_bank_beyond_the_cpus_physical_addresses_is_left_out() {
    for (cpu, bits) in [("cortex-a53", 40), ("cortex-a72", 44)] {
        let limit = 1u64 << bits;
        let mut tree = Crafted::new(&sized(K4).cpu(cpu).memory(GIB));
        let kernel = tree.banks(&[(RAM, GIB), (limit, GIB)]).ok();
        assert_eq!(kernel.mapped(), GIB, "{cpu}");
        kernel.has("linear_map.ram_bytes", GIB);
        kernel.prints(&format!(
            "{GIB} bytes of RAM lie beyond the physical addresses"
        ));
        kernel.prints(&format!("{bits} bits of physical"));
    }
}
