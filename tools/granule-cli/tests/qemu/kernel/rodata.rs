//! `rodata=`: what of the linear map is read-only, and which leaves that leaves room for.

use granule_cli::cost::job::MOST_IMAGE_BYTES;
use granule_cli::{LinearMap, PageSize, Rodata};

use crate::booted::Booted;
use crate::kernel::machine::{GIB, IMAGE, RAM, ok, sized};
use crate::kernel::reference::{Reference, range};

const END: u64 = RAM + 4 * GIB;

fn boot(size: PageSize, rodata: Rodata, linear_map: LinearMap) -> Booted {
    ok(&sized(size).rodata(rodata).linear_map(linear_map))
}

/// Text and constants are whole 64K pages, so one number serves every page size.
fn read_only(kernel: &Booted) -> u64 {
    let bytes = kernel.number("self_check.read_only_bytes");
    assert!(
        bytes.is_multiple_of(64 << 10) && (64 << 10..MOST_IMAGE_BYTES).contains(&bytes),
        "{bytes}"
    );
    bytes
}

#[test]
fn off_protects_nothing_and_has_the_largest_leaves() {
    for size in PageSize::ALL {
        let kernel = boot(size, Rodata::Off, LinearMap::Direct);
        kernel.has("self_check.read_only_bytes", 0);
        let expected = Reference::new(size, false, false, &[range(RAM, END)]);
        assert_eq!(kernel.leaves(), expected.leaves(), "{size:?}");
        kernel.has("linear_map.rodata", "off");
    }
}

#[test]
fn noalias_protects_the_image_and_has_the_largest_leaves_round_it() {
    let mut protected = Vec::new();
    for size in PageSize::ALL {
        let kernel = boot(size, Rodata::Noalias, LinearMap::Direct);
        let constants = IMAGE + read_only(&kernel);
        let ranges = [
            range(RAM, IMAGE),
            range(IMAGE, constants),
            range(constants, END),
        ];
        let expected = Reference::new(size, false, false, &ranges);
        assert_eq!(kernel.leaves(), expected.leaves(), "{size:?}");
        protected.push(read_only(&kernel));
    }
    assert!(
        protected.iter().all(|bytes| *bytes == protected[0]),
        "{protected:?}"
    );
}

#[test]
fn on_and_full_are_the_same_and_in_pages() {
    for size in PageSize::ALL {
        let on = boot(size, Rodata::On, LinearMap::Direct);
        let full = boot(size, Rodata::Full, LinearMap::Direct);
        let pages = 4 * GIB / size.bytes();
        assert_eq!(on.leaves(), [(size.bytes(), false, pages)]);
        assert_eq!((on.leaves(), on.counts()), (full.leaves(), full.counts()));
        assert_eq!(read_only(&on), read_only(&full));
        full.has("linear_map.rodata", "full");
    }
}

#[test]
fn on_is_the_default() {
    let kernel = ok(&sized(PageSize::K16));
    kernel.has("linear_map.rodata", "on");
    kernel.has("linear_map.strategy", "direct");
    // The parts of the image that only the boot needs are given back and counted.
    let given_back = kernel.number("memory.static_bytes_given_back");
    assert!(
        given_back > 0 && given_back.is_multiple_of(PageSize::K16.bytes()),
        "{given_back}"
    );
}

#[test]
fn base_and_direct_make_the_same_map() {
    for size in PageSize::ALL {
        for rodata in [Rodata::Off, Rodata::Noalias, Rodata::On] {
            let base = boot(size, rodata, LinearMap::Base);
            let direct = boot(size, rodata, LinearMap::Direct);
            assert_eq!(base.leaves(), direct.leaves(), "{size:?} {rodata:?}");
            for same in ["linear_map.tables", "self_check.read_only_bytes"] {
                base.has(same, direct.number(same));
            }
            // The fixmap shows the table of its own slots, in a page that stays.
            base.has("self_check.leaves", direct.number("self_check.leaves") + 1);
            base.has("linear_map.strategy", "base");
        }
    }
}
