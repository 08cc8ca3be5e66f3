//! Faults on the way of a CPU from a program of one page size to one of another, and in what is
//! invalidated for a program of another size than the CPU runs.

use super::registers::{is_tcr, is_ttbr};
use super::scenes::Result;
use super::spaces::{ASID, is_flush};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::Tap;
use crate::shape::Shape;
use crate::space::sizes::Sizes;
use granule::arch::registers::Tcr;
use granule::space::{Access, Rights};
use granule_model::Rule::*;
use granule_model::{Barrier, Event};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "a program of another page size: TCR is not switched with TTBR0",
        switch,
        || drop_all(is_tcr),
        TablesOfTwoSizes,
        "",
    ),
    fault(
        "a program of another page size: TTBR0 is not switched with TCR",
        switch,
        || drop_all(is_ttbr),
        TablesOfTwoSizes,
        "",
    ),
    fault(
        "a program of another page size: EPD0 is not set",
        switch,
        || nth(0, is_tcr, |_| Vec::new()),
        FieldInUse,
        "",
    ),
    fault(
        "a program of another page size: EPD0 is set nowhere",
        switch,
        || replace(is_tcr, without_epd0),
        FieldInUse,
        "",
    ),
    fault(
        "a program of another page size: no ISB after EPD0 is set",
        switch,
        || nth(0, is_isb, |_| Vec::new()),
        FieldInUse,
        "no ISB after EPD",
    ),
    fault(
        "a program of another page size: no ISB after TTBR0 and TCR",
        switch,
        || nth(1, is_isb, |_| Vec::new()),
        CachedField,
        "",
    ),
    fault(
        "a program of another page size: no TLBI",
        switch,
        || drop_all(is_flush),
        CachedField,
        "no TLBI",
    ),
    fault(
        "a program of another page size: the TLBI comes before TTBR0 and TCR",
        switch,
        || delay(is_new_value, is_nsh),
        CachedField,
        "no TLBI",
    ),
    fault(
        "a program of another page size: no DSB after the TLBI",
        switch,
        || drop_all(is_nsh),
        CachedField,
        "",
    ),
    fault(
        "a program of another page size: no ISB after that DSB",
        switch,
        || nth(2, is_isb, |_| Vec::new()),
        MissingIsb,
        "no ISB after the TLBI",
    ),
    fault(
        "a program of another page size: EPD0 is cleared before the TLBI",
        switch,
        || nth(1, is_tcr, without_epd0),
        CachedField,
        "",
    ),
    fault(
        "a program of another page size: no ISB after EPD0 is cleared",
        switch,
        || nth(3, is_isb, |_| Vec::new()),
        MissingIsb,
        "",
    ),
    fault(
        "two CPUs run programs of two page sizes under one ASID",
        switch_other,
        || replace(is_ttbr, |kind| with_asid(kind, 1)),
        AsidOfTwoSizes,
        "another CPU",
    ),
    fault(
        "a CPU uses an ASID for another page size and does not invalidate it",
        switch_alone,
        || {
            let mut ttbr = replace(is_ttbr, |kind| with_asid(kind, 1));
            let mut flush = drop_all(is_flush);
            Box::new(move |model, kind| {
                let kept = ttbr(model, kind);
                kept.into_iter()
                    .flat_map(|kind| flush(model, kind))
                    .collect()
            })
        },
        AsidOfTwoSizes,
        "may hold entries of its ASID",
    ),
    fault(
        "the TLBI by range for a program names the granule of the program that the CPU runs",
        unmap_of_other,
        || tlbis(of_64k),
        StaleTranslation,
        "its operand names another granule",
    ),
    fault(
        "the level hint of a TLBI for a program names the granule of the program that the CPU runs",
        unmap_one_of_other,
        || tlbis(of_64k),
        StaleTranslation,
        "its operand names another granule",
    ),
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
    let shape = Shape {
        asid: Some(1),
        cpus: 2,
        tlbi_range: true,
        ..Shape::kernel(39)
    };
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

fn tap(sizes: &Sizes, tap: Option<Tap>) {
    sizes.k4.settle();
    assert_eq!(sizes.k4.violations(), Vec::<String>::new());
    sizes.world.borrow_mut().tap = tap;
}

fn end(sizes: Sizes) -> Result {
    sizes.k4.settle();
    Result { world: sizes.world }
}

/// CPU 0 goes to the program of 64K pages.
fn switch(planted: Option<Tap>) -> Result {
    let mut sizes = machine();
    tap(&sizes, planted);
    sizes.k64.switch(0, Some(0));
    end(sizes)
}

/// As [`switch`], after CPU 1 has left all programs.
fn switch_alone(planted: Option<Tap>) -> Result {
    let mut sizes = machine();
    sizes.k64.switch(1, None);
    sizes.k64.on(0);
    tap(&sizes, planted);
    sizes.k64.switch(0, Some(0));
    end(sizes)
}

/// CPU 0 stays in the program of 4K pages, and CPU 1 goes to the other.
fn switch_other(planted: Option<Tap>) -> Result {
    let mut sizes = machine();
    sizes.k64.switch(1, None);
    tap(&sizes, planted);
    sizes.k64.switch(1, Some(0));
    end(sizes)
}

/// CPU 1, which runs a program of 64K pages, takes pages from the one of 4K pages.
fn unmap_of_other(planted: Option<Tap>) -> Result {
    unmap(planted, 6)
}

/// As [`unmap_of_other`], one page.
fn unmap_one_of_other(planted: Option<Tap>) -> Result {
    unmap(planted, 1)
}

fn unmap(planted: Option<Tap>, pages: u64) -> Result {
    let mut sizes = machine();
    sizes.k4.on(1);
    tap(&sizes, planted);
    sizes.k4.unmap(0, FIRST + 2, pages);
    end(sizes)
}
