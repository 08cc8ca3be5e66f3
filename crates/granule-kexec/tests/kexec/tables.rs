//! Transitional tables: exactly the requested pages are mapped, with the requested attributes, and
//! a call that runs out of pages takes none.

use crate::scene::RAM;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    CpuFeatures, Geometry, Page, Page4K, Page16K, Page64K, PageSize, PhysicalAddress, VaRange,
};
use granule_kexec::{
    Clean, Needs, PhysRange, Refusal, Segment, Transition, TransitionError, build, free,
    identity_geometry,
};
use granule_testing::host::{Event, Host, Runs, environment};
use granule_testing::walk::Arch;
use std::rc::Rc;
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;
const TABLES: u64 = 0x4500_0000;
const CODE: u64 = 0x4480_0000;

pub fn cpu(wide: bool) -> CpuFeatures {
    CpuFeatures {
        mmfr0: if wide {
            6 | 2 << 20 | 1 << 28
        } else {
            5 | 1 << 20
        },
        mmfr2: u64::from(wide) << 16,
        ..CpuFeatures::NONE
    }
}

fn upper(cpu: &CpuFeatures, size: PageSize, va_bits: u32) -> Geometry {
    Geometry::new(
        cpu,
        size,
        va_bits,
        VaRange::Upper,
        granule::arch::Regime::El1And0,
    )
    .unwrap()
}

struct Made {
    host: Rc<Host>,
    made: Result<Transition, TransitionError>,
}

fn make(needs: &Needs<'_>, budget: usize, runs: Runs) -> Made {
    let host = Host::new(&needs.upper, TABLES, 64);
    host.set_budget(budget);
    host.set_runs(runs);
    let parts = environment(&host, TlbCapabilities::BASIC);
    let made = build(parts, needs);
    Made { host, made }
}

/// The usual segments: an image that is moved to 2 MiB, an initramfs, sources and list pages.
const WRITTEN: [PhysRange; 2] = [
    PhysRange::new(RAM[0].start, 34 * MIB),
    PhysRange::new(RAM[0].start + 40 * MIB, MIB),
];
const READ: [PhysRange; 3] = [
    PhysRange::new(RAM[0].start + 35 * MIB, 0x1_0000),
    PhysRange::new(RAM[0].start + 36 * MIB, 2 * MIB),
    PhysRange::new(RAM[1].start + 0x1_0000, 0x3_0000),
];

fn needs(cpu: CpuFeatures, upper: Geometry) -> Needs<'static> {
    Needs {
        cpu,
        upper,
        distance: upper.base().0.wrapping_sub(RAM[0].start),
        code: PhysicalAddress(CODE),
        written: &WRITTEN,
        read: &READ,
        segments: &[],
    }
}

/// A transition whose addresses are those of some tables.
pub fn transition() -> &'static Transition {
    static MADE: OnceLock<Transition> = OnceLock::new();
    MADE.get_or_init(|| {
        let cpu = cpu(false);
        let needs = needs(cpu, upper(&cpu, PageSize::K4, 48));
        make(&needs, 64, Runs::Long).made.unwrap()
    })
}

fn exactly<P: Page>(wide: bool, va_bits: u32) {
    let cpu = cpu(wide);
    let needs = needs(cpu, upper(&cpu, P::SIZE, va_bits));
    for runs in [Runs::Long, Runs::Scattered] {
        let Made { host, made } = make(&needs, 64, runs);
        let made = made.unwrap();
        let events = host.take_events();
        // Stores are over when the barriers come, and nobody walks: no TLBI, no other barrier.
        assert_eq!(events[events.len() - 2..], [Event::DsbIshst, Event::Isb]);
        let barriers = events.iter().filter(|one| {
            matches!(
                one,
                Event::DsbIsh | Event::Isb | Event::Tlbi(_) | Event::DsbIshst
            )
        });
        assert_eq!(barriers.count(), 2);

        let arch = Arch::of(&needs.upper);
        let tree = arch.walk(&host, made.roots()[1]);
        // Every page, what it leads to, and whether it is written.
        let mut expected = std::collections::BTreeMap::new();
        for (extents, writable) in [(&WRITTEN[..], true), (&READ[..], false)] {
            for extent in extents {
                for at in
                    (extent.start..extent.start + extent.bytes).step_by(P::SIZE.bytes() as usize)
                {
                    expected.insert(at.wrapping_add(needs.distance), (at, writable));
                }
            }
        }
        let mut found = std::collections::BTreeMap::new();
        for leaf in &tree.leaves {
            let writable = leaf.word & 1 << 7 == 0;
            // Never executed, by nobody; accessed; global; Normal, as index 0 of MAIR is.
            assert_eq!(leaf.word >> 53 & 0b11, 0b11);
            assert_eq!(leaf.word & (1 << 10 | 1 << 11 | 0b111 << 2), 1 << 10);
            for at in (0..leaf.bytes).step_by(P::SIZE.bytes() as usize) {
                let va = arch.address(leaf.offset + at);
                assert_eq!(found.insert(va, (leaf.output + at, writable)), None);
            }
        }
        assert!(
            found == expected,
            "other pages are mapped than those requested"
        );
        // The largest leaves: 32 MiB and more are there for every page size but 64K, whose block
        // is larger than the image.
        let largest = tree.leaves.iter().map(|leaf| leaf.bytes).max();
        let block = match P::SIZE {
            PageSize::K4 => 2 * MIB,
            PageSize::K16 => 32 * MIB,
            _ => 0x1_0000,
        };
        assert_eq!(largest, Some(block));

        // The identity map: one page, executable by the kernel, not written.
        let arch = Arch::of(&made.geometries()[0]);
        let low = arch.walk(&host, made.roots()[0]);
        assert_eq!(low.leaves.len(), 1);
        let leaf = low.leaves[0];
        assert_eq!(
            (leaf.offset, leaf.output, leaf.bytes),
            (CODE, CODE, P::SIZE.bytes())
        );
        assert_eq!(leaf.word >> 53 & 1, 0, "PXN");
        assert_eq!(
            (leaf.word >> 54 & 1, leaf.word >> 7 & 1),
            (1, 1),
            "UXN, read-only"
        );
        let bits = made.geometries()[0].va_bits();
        assert_eq!(bits, 31, "0x4480_0000 has 31 bits");
        // All tables are among the pages that were given out, and no page is in both trees.
        let tables = tree.tables.len() + low.tables.len();
        assert_eq!(tables, host.given_out());

        // SAFETY: no CPU gets the value.
        let expected = unsafe { Ttbr::from_root(&needs.upper, made.roots()[1], 0) };
        assert_eq!(made.ttbr1(), expected);
        assert_eq!(made.distance(), needs.distance);
        let parts = environment(&host, TlbCapabilities::BASIC);
        // SAFETY: the tables are of this host, and no CPU walks them.
        unsafe { free(parts, made) };
        assert_eq!(host.given_out(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "the reference of all mapped takes Miri minutes")]
fn exactly_what_is_asked_for_is_mapped_with_the_largest_leaves() {
    exactly::<Page4K>(false, 39);
    exactly::<Page64K>(false, 48);
    exactly::<Page4K>(false, 48);
    exactly::<Page4K>(true, 52);
    exactly::<Page16K>(false, 47);
    exactly::<Page16K>(true, 52);
    exactly::<Page64K>(true, 52);
}

#[test]
fn every_allocation_that_fails_is_refused_and_takes_nothing() {
    let cpu = cpu(false);
    let needs = needs(cpu, upper(&cpu, PageSize::K4, 48));
    let all = make(&needs, 64, Runs::Long);
    assert!(all.made.is_ok());
    let tables = all.host.given_out();
    assert!(tables > 6);
    for budget in 0..tables {
        if cfg!(miri) && ![0, 1, tables - 1].contains(&budget) {
            continue;
        }
        let Made { host, made } = make(&needs, budget, Runs::Long);
        let why = made.unwrap_err();
        assert!(
            matches!(why, TransitionError::Refused(Refusal::OutOfPages { what: "transitional tables", needed }) if needed > 0),
            "{budget} pages: {why}"
        );
        assert_eq!(host.given_out(), 0, "{budget} pages");
    }
    assert!(make(&needs, tables, Runs::Long).made.is_ok());
}

#[test]
fn unmappable_ranges_are_refused_and_take_no_memory() {
    let cpu = cpu(false);
    let usual = needs(cpu, upper(&cpu, PageSize::K4, 39));
    let half = [PhysRange::new(0x4000_0800, 0x1000)];
    let twice = [PhysRange::new(RAM[0].start, 0x1000)];
    let far = [PhysRange::new(1 << 45, 0x1000)];
    let wrap = [PhysRange::new(u64::MAX - 0xfff, 0x1000)];
    let all = [&twice, &half, &far, &wrap];
    for &read in &all[..if cfg!(miri) { 1 } else { all.len() }] {
        let needs = Needs { read, ..usual };
        let Made { host, made } = make(&needs, 64, Runs::Long);
        let why = made.unwrap_err();
        assert!(matches!(why, TransitionError::Table(_)), "{why}");
        assert_eq!(host.given_out(), 0);
    }
    let needs = Needs {
        code: PhysicalAddress(1 << 48),
        ..usual
    };
    let Made { host, made } = make(&needs, 64, Runs::Long);
    assert!(
        matches!(made, Err(TransitionError::Code { .. })),
        "{made:?}"
    );
    assert_eq!(host.given_out(), 0);
}

#[test]
fn a_page_where_a_segment_is_to_be_is_refused() {
    let cpu = cpu(false);
    let usual = needs(cpu, upper(&cpu, PageSize::K4, 48));
    let segment = |destination| {
        [Segment {
            name: "image",
            destination,
            bytes: 1,
            memory: 0x1000,
            pages: &[],
            clean: Clean::All,
        }]
    };
    let made = |destination| {
        let segments = segment(destination);
        let needs = Needs {
            segments: &segments,
            ..usual
        };
        let Made { host, made } = make(&needs, 64, Runs::Long);
        match made {
            Ok(_) => assert!(host.given_out() > 0),
            Err(why) => {
                assert_eq!(host.given_out(), 0);
                assert!(
                    matches!(why, TransitionError::Refused(Refusal::PageInTheWay { page, .. })
                    if page <= destination && destination - page < 64 * 0x1000),
                    "{why}"
                );
            }
        }
        made.map_err(|why| why.to_string())
    };
    let tables = make(&usual, 64, Runs::Long).host.given_out() as u64;
    let some: &[u64] = if cfg!(miri) {
        &[3]
    } else {
        &[0, 1, tables / 2, tables - 1]
    };
    for index in some {
        let line = made(TABLES + index * 0x1000).unwrap_err();
        assert!(line.contains("transitional tables"), "{line}");
    }
    assert!(made(TABLES + tables * 0x1000).is_ok());
    let line = made(CODE).unwrap_err();
    assert!(line.contains("relocation code"), "{line}");
}

#[test]
fn tcr_changes_in_the_lower_half_only() {
    let some = if cfg!(miri) { 1 } else { 4 };
    for (size, va_bits, wide) in [
        (PageSize::K4, 39, false),
        (PageSize::K4, 52, true),
        (PageSize::K16, 47, false),
        (PageSize::K64, 42, false),
    ]
    .into_iter()
    .take(some)
    {
        let cpu = cpu(wide);
        let high = upper(&cpu, size, va_bits);
        let lower = identity_geometry(&cpu, &high, PhysicalAddress(CODE)).unwrap();
        let needs = needs(cpu, high);
        let made = make(&needs, 64, Runs::Long);
        let made = made.made.unwrap();
        let user = high
            .with_va_range(&cpu, VaRange::Lower, 40, high.page_size())
            .unwrap();
        // TCR of a kernel that runs programs: another T0SZ, hardware updates, TBI, an erratum's bits.
        let own = 0b11 << 39 | 1 << 37 | 0b11 << 53;
        for now in [
            Tcr::new(&cpu, Some(&user), Some(&high)).0 | own,
            Tcr::new(&cpu, None, Some(&high)).0 | own,
        ] {
            let expected = Tcr::new(&cpu, Some(&lower), Some(&high)).0 | own;
            assert_eq!(made.tcr(now), expected);
            assert_eq!(made.tcr(now | Tcr::EPD1), expected);
        }
    }
}

#[test]
fn the_identity_map_is_as_small_as_the_page_allows() {
    let cpu = cpu(false);
    let high = upper(&cpu, PageSize::K4, 39);
    for (page, bits) in [
        (0, 25),
        (0x1ff_f000, 25),
        (0x200_0000, 26),
        (0x4000_0000, 31),
        (0xffff_ffff_f000, 48),
    ] {
        let lower = identity_geometry(&cpu, &high, PhysicalAddress(page)).unwrap();
        assert_eq!((lower.va_bits(), lower.page_size()), (bits, PageSize::K4));
    }
    for page in [1 << 48, u64::MAX - 0xfff] {
        assert!(identity_geometry(&cpu, &high, PhysicalAddress(page)).is_err());
    }
}
