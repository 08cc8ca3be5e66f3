//! The order of what a CPU does on its way to another space, instruction by instruction. What each
//! step is for, the model's harness shows, where one is left out at a time.

use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{PageSize, VaRange};
use granule::space::switch::{Registers, enter, enter_anew};
use granule_testing::shape::{LARGE, PLAIN};

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Tcr(u64),
    Ttbr0(u64),
    Isb,
    Tlbi,
    Dsb,
}

use Step::{Dsb, Isb, Tlbi};

#[derive(Default)]
struct Steps(Vec<Step>);

impl Registers for Steps {
    unsafe fn write_tcr(&mut self, value: Tcr) {
        self.0.push(Step::Tcr(value.0));
    }
    unsafe fn write_ttbr0(&mut self, value: Ttbr) {
        self.0.push(Step::Ttbr0(value.bits()));
    }
    fn isb(&mut self) {
        self.0.push(Isb);
    }
    fn tlbi_all_local(&mut self) {
        self.0.push(Tlbi);
    }
    fn dsb_nsh(&mut self) {
        self.0.push(Dsb);
    }
}

fn steps(from: Tcr, to: Tcr, repeat: bool) -> Vec<Step> {
    let mut steps = Steps::default();
    // SAFETY: no CPU gets the values.
    unsafe { enter(&mut steps, from, to, Ttbr::from_bits(0x5000), repeat) };
    steps.0
}

fn tcr(lower: PageSize) -> Tcr {
    let features = PLAIN.features();
    let upper = PLAIN.geometry(PageSize::K16, 47, VaRange::Upper);
    let lower = PLAIN.geometry(lower, 39, VaRange::Lower);
    Tcr::new(&features, Some(&lower), Some(&upper))
}

#[test]
fn one_shape_is_one_write_and_an_isb() {
    for size in [PageSize::K4, PageSize::K16, PageSize::K64] {
        let same = tcr(size);
        assert_eq!(steps(same, same, true), [Step::Ttbr0(0x5000), Isb]);
        // Unless the ASID had other tables.
        let mut steps = Steps::default();
        // SAFETY: no CPU gets the values.
        unsafe { enter_anew(&mut steps, same, same, Ttbr::from_bits(0x5000), false) };
        assert_eq!(steps.0.len(), 10);
        assert!(steps.0.contains(&Tlbi));
    }
}

#[test]
fn another_shape_is_entered_while_nothing_is_walked() {
    let (from, to) = (tcr(PageSize::K4), tcr(PageSize::K64));
    let off = |tcr: Tcr| Step::Tcr(tcr.0 | Tcr::EPD0);
    let written = || [Step::Ttbr0(0x5000), off(to), Isb];
    let mut expected = vec![off(from), Isb];
    expected.extend(written());
    expected.extend([Tlbi, Dsb, Isb, Step::Tcr(to.0), Isb]);
    assert_eq!(steps(from, to, false), expected);
    // An erratum has each TLBI twice.
    let mut expected = vec![off(from), Isb];
    expected.extend(written());
    expected.extend([Tlbi, Dsb, Tlbi, Dsb, Isb, Step::Tcr(to.0), Isb]);
    assert_eq!(steps(from, to, true), expected);
    // No walks before, and none after.
    let mut expected = Vec::from(written());
    expected.extend([Tlbi, Dsb, Isb, Step::Tcr(to.0), Isb]);
    assert_eq!(steps(Tcr(from.0 | Tcr::EPD0), to, false), expected);
    let mut expected = vec![off(from), Isb];
    expected.extend(written());
    expected.extend([Tlbi, Dsb, Isb]);
    assert_eq!(steps(from, Tcr(to.0 | Tcr::EPD0), false), expected);
}

#[test]
fn the_lower_half_takes_another_size_and_the_rest_stays() {
    let kept = |tcr: Tcr| tcr.0 & !0xffff;
    for from in [PageSize::K4, PageSize::K16, PageSize::K64] {
        for to in [PageSize::K4, PageSize::K16, PageSize::K64] {
            let lower = PLAIN.geometry(to, 39, VaRange::Lower);
            let before = Tcr(tcr(from).0 | Tcr::HA | Tcr::HD);
            let after = before.with_lower(&lower);
            assert_eq!(after, Some(Tcr(tcr(to).0 | Tcr::HA | Tcr::HD)));
            assert_eq!(after.map(kept), Some(kept(before)));
            // Walks that were off are on.
            assert_eq!(Tcr(before.0 | Tcr::EPD0).with_lower(&lower), after);
        }
    }
}

#[test]
fn a_format_that_both_halves_do_not_share_is_refused() {
    // LARGE has LPA2 for 4K and 16K pages, whose descriptors DS gives their format.
    let wide = |size, range| LARGE.geometry(size, 48, range);
    let of = |lower, upper| {
        let tcr = Tcr::new(&LARGE.features(), None, Some(&upper));
        tcr.with_lower(&lower).is_some()
    };
    for size in [PageSize::K4, PageSize::K16] {
        let upper = wide(size, VaRange::Upper);
        for lower in [PageSize::K4, PageSize::K16, PageSize::K64] {
            assert!(of(wide(lower, VaRange::Lower), upper));
        }
        assert!(!of(PLAIN.geometry(size, 39, VaRange::Lower), upper));
        assert!(of(PLAIN.geometry(PageSize::K64, 39, VaRange::Lower), upper));
    }
    let plain = PLAIN.geometry(PageSize::K4, 39, VaRange::Upper);
    assert!(!of(wide(PageSize::K16, VaRange::Lower), plain));
    assert!(!of(wide(PageSize::K64, VaRange::Lower), plain));
    assert!(!of(plain, plain), "an upper half for the lower one");
}
