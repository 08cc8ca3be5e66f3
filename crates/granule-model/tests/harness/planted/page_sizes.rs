//! Faults on the way of a CPU from a program of one page size to one of another, and in what is
//! invalidated for a program of another size than the CPU runs.

use super::registers::{is_tcr, is_ttbr};
use super::spaces::{ASID, is_flush};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::{Shared, Tap};
use crate::shape::Shape;
use crate::space::sizes::Sizes;
use granule::arch::registers::Tcr;
use granule::space::{Access, Rights};
use granule_model::Rule::*;
use granule_model::{Barrier, Event};

pub(super) const FAULTS: &[Fault] = &[
    fault("a program of another page size: TCR is not switched with TTBR0")
        .planted(switch, || drop_all(is_tcr))
        .breaks(TablesOfTwoSizes, ""),
    fault("a program of another page size: TTBR0 is not switched with TCR")
        .planted(switch, || drop_all(is_ttbr))
        .breaks(TablesOfTwoSizes, ""),
    fault("a program of another page size: EPD0 is not set")
        .planted(switch, || nth(0, is_tcr, |_| Vec::new()))
        .breaks(FieldInUse, ""),
    fault("a program of another page size: EPD0 is set nowhere")
        .planted(switch, || replace(is_tcr, without_epd0))
        .breaks(FieldInUse, ""),
    fault("a program of another page size: no ISB after EPD0 is set")
        .planted(switch, || nth(0, is_isb, |_| Vec::new()))
        .breaks(FieldInUse, "no ISB after EPD"),
    fault("a program of another page size: no ISB after TTBR0 and TCR")
        .planted(switch, || nth(1, is_isb, |_| Vec::new()))
        .breaks(CachedField, ""),
    fault("a program of another page size: no TLBI")
        .planted(switch, || drop_all(is_flush))
        .breaks(CachedField, "no TLBI"),
    fault("a program of another page size: the TLBI comes before TTBR0 and TCR")
        .planted(switch, || delay(is_new_value, is_nsh))
        .breaks(CachedField, "no TLBI"),
    fault("a program of another page size: no DSB after the TLBI")
        .planted(switch, || drop_all(is_nsh))
        .breaks(CachedField, ""),
    fault("a program of another page size: no ISB after that DSB")
        .planted(switch, || nth(2, is_isb, |_| Vec::new()))
        .breaks(MissingIsb, "no ISB after the TLBI"),
    fault("a program of another page size: EPD0 is cleared before the TLBI")
        .planted(switch, || nth(1, is_tcr, without_epd0))
        .breaks(CachedField, ""),
    fault("a program of another page size: no ISB after EPD0 is cleared")
        .planted(switch, || nth(3, is_isb, |_| Vec::new()))
        .breaks(MissingIsb, ""),
    fault("two CPUs run programs of two page sizes under one ASID")
        .planted(switch_other, || replace(is_ttbr, |kind| with_asid(kind, 1)))
        .breaks(AsidOfTwoSizes, "another CPU"),
    fault("a CPU uses an ASID for another page size and does not invalidate it")
        .planted(switch_alone, || {
            let mut ttbr = replace(is_ttbr, |kind| with_asid(kind, 1));
            let mut flush = drop_all(is_flush);
            Box::new(move |model, kind| {
                let kept = ttbr(model, kind);
                kept.into_iter()
                    .flat_map(|kind| flush(model, kind))
                    .collect()
            })
        })
        .breaks(AsidOfTwoSizes, "may hold entries of its ASID"),
    fault("the TLBI by range for a program names the granule of the program that the CPU runs")
        .planted(unmap_of_other, || tlbis(of_64k))
        .breaks(StaleTranslation, "its operand names another granule"),
    fault(
        "the level hint of a TLBI for a program names the granule of the program that the CPU runs",
    )
    .planted(unmap_one_of_other, || tlbis(of_64k))
    .breaks(StaleTranslation, "its operand names another granule"),
];

const fn is_nsh(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_NSH))
}

/// TTBR0, and TCR with walks disabled and a granule of 64K.
const fn is_new_value(kind: &Event) -> bool {
    let of_64k = 0b01 << 14;
    is_ttbr(kind)
        || is_tcr(kind)
            && matches!(kind, Event::System(_, value) if *value & of_64k != 0 && *value & Tcr::EPD0 != 0)
}

fn without_epd0(mut kind: Event) -> Vec<Event> {
    if let Event::System(_, value) = &mut kind {
        *value &= !Tcr::EPD0;
    }
    vec![kind]
}

fn with_asid(mut kind: Event, asid: u64) -> Vec<Event> {
    if let Event::System(_, value) = &mut kind {
        *value = *value & !ASID | asid << 48;
    }
    vec![kind]
}

/// TG of an operand: bits 47:46 of a range, and of a level hint too. The base of a range is in pages.
const fn of_64k((op, operand): Tlbi) -> Tlbi {
    const BASE: u64 = (1 << 37) - 1;
    let operand = operand | 0b11 << 46;
    if matches!(op.crm(), 2 | 6) {
        (op, operand & !BASE | (operand & BASE) >> 4)
    } else {
        (op, operand)
    }
}

/// The first page that programs use.
const FIRST: u64 = 0x40000;

/// A program of 4K pages on CPU 0, which has ASID 1, and one of 64K pages on CPU 1.
fn machine() -> Sizes {
    let shape = Shape::kernel(39).asid(1).cpus(2).tlbi_range(true);
    let mut sizes = Sizes::new(shape, 1);
    sizes.k4.quiet = true;
    sizes.k64.quiet = true;
    sizes.k4.start_on(1);
    sizes.k4.map(0, FIRST, 64, Rights::READ_WRITE);
    sizes.k64.start_on(0);
    sizes.k64.switch(1, Some(0));
    sizes.k64.map(0, FIRST, 64, Rights::READ_WRITE);
    for page in FIRST..FIRST + 10 {
        let _ = sizes.k4.touch(0, page, Access::Write, page);
        let _ = sizes.k64.touch(1, page, Access::Write, page);
    }
    assert_eq!(sizes.k4.number(0), Some(1));
    sizes
}

impl Sizes {
    /// Does something with a fault planted, and relies on it. Nothing was wrong before.
    fn play(mut self, tap: Option<Tap>, does: impl FnOnce(&mut Self)) -> Shared {
        self.k4.settle();
        assert_eq!(self.k4.violations(), Vec::<String>::new());
        self.world.borrow_mut().tap = tap;
        does(&mut self);
        self.k4.settle();
        self.world
    }
}

/// CPU 0 goes to the program of 64K pages.
fn switch(planted: Option<Tap>) -> Shared {
    machine().play(planted, |sizes| sizes.k64.switch(0, Some(0)))
}

/// As [`switch`], after CPU 1 has left all programs.
fn switch_alone(planted: Option<Tap>) -> Shared {
    let mut sizes = machine();
    sizes.k64.switch(1, None);
    sizes.k64.on(0);
    sizes.play(planted, |sizes| sizes.k64.switch(0, Some(0)))
}

/// CPU 0 stays in the program of 4K pages, and CPU 1 goes to the other.
fn switch_other(planted: Option<Tap>) -> Shared {
    let mut sizes = machine();
    sizes.k64.switch(1, None);
    sizes.play(planted, |sizes| sizes.k64.switch(1, Some(0)))
}

/// CPU 1, which runs a program of 64K pages, takes pages from the one of 4K pages.
fn unmap_of_other(planted: Option<Tap>) -> Shared {
    unmap(planted, 6)
}

/// As [`unmap_of_other`], one page.
fn unmap_one_of_other(planted: Option<Tap>) -> Shared {
    unmap(planted, 1)
}

fn unmap(planted: Option<Tap>, pages: u64) -> Shared {
    let sizes = machine();
    sizes.k4.on(1);
    sizes.play(planted, |sizes| sizes.k4.unmap(0, FIRST + 2, pages))
}
