//! Tests of the model: accesses whose misses are counted by hand.

use super::*;
use crate::cpus::CPUS;

const SMALL: [&[u8]; 3] = [&[12, 16, 21], &[], &[]];

const fn tlb(entries: usize, ways: usize) -> Tlb {
    Tlb {
        entries,
        ways,
        sizes: SMALL,
    }
}

/// Two entries for fetches and data each, and two sets of two.
const CPU: Cpu = Cpu {
    name: "small",
    fetch: tlb(2, 2),
    data: tlb(2, 2),
    second: tlb(4, 2),
    source: "",
    assumed: "",
};

const fn at(va: u64) -> Address {
    Address { va, asid: 1 }
}

const KERNEL: u64 = 0xffff_8000_0000_0000;

/// The misses of loads through leaves of a size.
fn loads(pages: &[u64], leaf_bits: u8) -> Misses {
    let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
    for page in pages {
        tlbs.access(AccessKind::Data, at(page << 12), leaf_bits);
    }
    tlbs.misses()
}

#[test]
fn the_entry_that_was_not_used_for_longest_goes_and_the_second_level_keeps_it() {
    // 1 goes when 3 comes, as 0 was used again; 0 and 2 share a set of the second level.
    let misses = loads(&[0, 1, 0, 3, 0, 1], 12);
    assert_eq!((misses.data, misses.program), (4, 3));
    // Three pages of one set of the second level, in turn, in two ways.
    let misses = loads(&[0, 2, 4, 0, 2, 4], 12);
    assert_eq!((misses.data, misses.program), (6, 6));
    // Three pages of two sets: the second level has them all.
    let misses = loads(&[0, 1, 2, 0, 1, 2], 12);
    assert_eq!((misses.data, misses.program), (6, 3));
    assert_eq!((misses.fetch, misses.kernel), (0, 0));
}

#[test]
fn an_entry_is_as_large_as_the_leaf_or_the_next_smaller_size() {
    let pages: Vec<u64> = (0..64).collect();
    for (leaf_bits, misses) in [(12, 64), (14, 64), (16, 4), (20, 4), (21, 1), (30, 1)] {
        assert_eq!(loads(&pages, leaf_bits).program, misses, "{leaf_bits}");
    }
    let [_, _, _, a72, a76] = CPUS else { panic!() };
    assert_eq!((a72.name, a76.name), ("cortex-a72", "cortex-a76"));
    // 2 MiB blocks: 1 MiB in the first level of the one, 2 MiB in that of the other.
    for (cpu, page_size, leaf_bits, first, second) in [
        (a72, PageSize::K4, 21, 2, 1),
        (a76, PageSize::K4, 21, 1, 1),
        // 2 MiB groups of 64K pages, for which the one has no larger entry in its second level.
        (a72, PageSize::K64, 21, 2, 32),
    ] {
        let mut tlbs = Tlbs::new(cpu, page_size);
        for page in 0..512 {
            tlbs.access(AccessKind::Data, at(page << 12), leaf_bits);
        }
        let misses = tlbs.misses();
        // Only a miss of the first level looks up the second, so the second misses no more often.
        let expected = (first, second.min(first));
        assert_eq!((misses.data, misses.all()), expected, "{}", cpu.name);
    }
}

#[test]
fn fetches_and_data_have_a_first_level_each_and_share_the_second() {
    let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
    tlbs.access(AccessKind::Fetch, at(0), 12);
    tlbs.access(AccessKind::Data, at(0), 12);
    tlbs.access(AccessKind::Data, at(KERNEL), 12);
    let misses = tlbs.misses();
    let expected = Misses {
        fetch: 1,
        data: 2,
        program: 1,
        kernel: 1,
    };
    assert_eq!(misses, expected);
}

#[test]
fn an_address_space_has_its_own_entries_and_kernel_entries_are_global() {
    let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
    for asid in [1, 2, 1] {
        tlbs.access(AccessKind::Data, Address { va: 0x1000, asid }, 12);
        tlbs.access(AccessKind::Fetch, Address { va: KERNEL, asid }, 12);
    }
    assert_eq!((tlbs.misses().program, tlbs.misses().kernel), (2, 1));
}

#[test]
fn a_tlbi_removes_what_it_names() {
    const ONE: u64 = 1 << 48;
    let page = |va: u64| va >> 12 & ((1 << 44) - 1);
    // RVAE1: two pages of 4K from an address.
    let two = |va: u64| page(va) & ((1 << 37) - 1) | 1 << 46 | ONE;
    for (op, operand, removed) in [
        (System::VMALLE1, 0, [true, true, true]),
        (System::VMALLE1IS, 0, [true, true, true]),
        (System::ASIDE1IS, ONE, [true, true, false]),
        (System::ASIDE1IS, 2 << 48, [false, false, false]),
        (System::VALE1IS, ONE | page(0x5000), [true, false, false]),
        (System::VAE1IS, 2 << 48 | page(0x5000), [false; 3]),
        (System::VAALE1IS, page(0x5000), [true, false, false]),
        (System::VAALE1IS, page(KERNEL), [false, false, true]),
        // The ASID does not matter for what is global.
        (System::VALE1, 7 << 48 | page(KERNEL), [false, false, true]),
        // A page of a block.
        (
            System::VALE1IS,
            ONE | page(0x0020_3000),
            [false, true, false],
        ),
        (System::RVAE1IS, two(0x4000), [true, false, false]),
        (System::RVAE1IS, two(0x6000), [false, false, false]),
        (
            System::RVAAE1IS,
            two(KERNEL - 0x2000),
            [false, false, false],
        ),
        (System::RVAAE1IS, two(KERNEL), [false, false, true]),
    ] {
        let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
        let places = [(at(0x5000), 12), (at(0x0021_0000), 21), (at(KERNEL), 12)];
        for (address, bits) in places {
            tlbs.second.access(address, bits);
        }
        let what = Invalidation::of(op, operand, 12).unwrap();
        tlbs.invalidate(&what);
        let missed = places.map(|(address, bits)| {
            let entry = address.entry(bits);
            !tlbs.second.entries.contains(&entry)
        });
        assert_eq!(missed, removed, "{op:?} {operand:#x}");
    }
    assert_eq!(Invalidation::of(System::VAE2IS, 0, 12), None);
    assert_eq!(Invalidation::of(System::IPAS2E1IS, 0, 12), None);
    let all = Some(Invalidation::All);
    assert_eq!(Invalidation::of(System::ALLE1IS, 0, 12), all);
}

#[test]
fn a_tlbi_of_a_larger_page_removes_all_its_smaller_entries() {
    let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
    let (first, last) = (at(0x1_0000), at(0x1_f000));
    tlbs.access(AccessKind::Data, first, 12);
    tlbs.access(AccessKind::Data, last, 12);
    let operand = 1 << 48 | 0x13;
    let what = Invalidation::of(System::VALE1IS, operand, 16).unwrap();
    tlbs.invalidate(&what);
    tlbs.access(AccessKind::Data, first, 12);
    tlbs.access(AccessKind::Data, last, 12);
    assert_eq!(tlbs.misses().program, 4);
}

#[test]
fn an_entry_that_was_removed_is_the_first_to_be_used_again() {
    let mut tlbs = Tlbs::new(&CPU, PageSize::K4);
    for page in [0, 1] {
        tlbs.access(AccessKind::Data, at(page << 12), 12);
    }
    // 1 was used last, and goes: 0 stays when 2 comes.
    let what = Invalidation::of(System::VALE1IS, 1 << 48 | 1, 12).unwrap();
    tlbs.invalidate(&what);
    for page in [2, 0] {
        tlbs.access(AccessKind::Data, at(page << 12), 12);
    }
    assert_eq!(tlbs.misses().data, 3);
}
