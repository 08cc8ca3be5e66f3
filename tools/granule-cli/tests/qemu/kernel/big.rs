//! Half a terabyte: what is not touched costs nothing.

use std::time::Duration;

use granule_cli::{PageSize, Rodata};

use crate::kernel::machine::{GIB, ok, sized};

#[test]
fn half_a_terabyte_in_4k_pages_stays_small_on_the_host() {
    let memory = 512 * GIB;
    let kernel = ok(&sized(PageSize::K4)
        .memory(memory)
        .timeout(Duration::from_secs(300)));
    assert_eq!(kernel.mapped(), memory);
    assert_eq!(kernel.leaves(), [(4096, false, memory / 4096)]);
    // One table of level 3 for each 2M, one of level 2 for each GiB or part, two of level 1:
    // RAM begins at 1 GiB and so ends 1 GiB into the second 512 GiB.
    let tables = memory / (2 << 20) + memory / GIB + 2;
    kernel.has("linear_map.tables", tables);
    kernel.has("linear_map.tlbi", 0);
    assert!(kernel.number("linear_map.dsb") <= 16);
    // All 4096, less those of the last stride that pages in use leave no room for.
    assert!((4090..=4096).contains(&kernel.number("self_check.patterns")));
    let pages = memory / 4096;
    assert!(kernel.number("memory.page_metadata_bytes") <= 16 * pages);
    #[cfg(target_os = "linux")]
    {
        let peak = kernel.number("qemu.peak_resident_bytes");
        // At least the tables themselves, or it was not measured.
        assert!(peak > tables * 4096 && peak < 4 * GIB, "{peak}");
    }
}

/// One bank with more frames than a span of the page allocator can have.
#[test]
fn a_bank_of_sixteen_terabytes_in_4k_pages_boots() {
    let memory = 16 << 40;
    let kernel = ok(&sized(PageSize::K4)
        .memory(memory)
        .rodata(Rodata::Off)
        .timeout(Duration::from_secs(300)));
    assert_eq!(kernel.mapped(), memory);
    let free = kernel.number("memory.free_bytes");
    // Each frame has 12 bytes of metadata.
    assert!(free > memory / 4096 * 4080 && free < memory, "{free}");
}
