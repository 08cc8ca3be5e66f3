//! Early memory against a bitmap that does the same the slow and obvious way, and at the edges
//! of the address space.

use granule::arch::PageSize;
use granule_boot::memblock::{Direction, Error, LeftOut, Memblock, RangeList, Region};
use granule_testing::cases::config;
use proptest::prelude::*;

/// The addresses of the bitmap: this many units of 1 KiB, from `BASE` up.
const UNITS: usize = 160;
const UNIT: u64 = 1 << 10;
const BASE: u64 = 0x4000_0000;
/// Few enough that a list runs full.
const CAPACITY: usize = 5;

type Bits = [bool; UNITS];

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(RangeList, usize, usize),
    Free(usize, usize),
    KeepOnly(usize, usize),
    Allocate(Request),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    size: usize,
    align: u64,
    from: usize,
    to: usize,
    direction: Direction,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use RangeList::{Banks, NoMap, Reserved};
    let range = || (0..UNITS, 0..40_usize);
    let request = (
        1..24_usize,
        0..6_u32,
        0..UNITS / 2,
        UNITS / 2..UNITS,
        any::<bool>(),
    );
    let request = request.prop_map(|(size, shift, from, to, top_down)| Request {
        size,
        align: UNIT << shift,
        from,
        to,
        direction: if top_down {
            Direction::TopDown
        } else {
            Direction::BottomUp
        },
    });
    let step = prop_oneof![
        3 => range().prop_map(|(at, len)| Step::Add(Banks, at, len)),
        3 => range().prop_map(|(at, len)| Step::Add(Reserved, at, len)),
        2 => range().prop_map(|(at, len)| Step::Add(NoMap, at, len / 4)),
        3 => range().prop_map(|(at, len)| Step::Free(at, len / 4)),
        1 => (0..UNITS / 4, UNITS / 2..UNITS).prop_map(|(from, to)| Step::KeepOnly(from, to)),
        5 => request.prop_map(Step::Allocate),
    ];
    prop::collection::vec(step, 1..40)
}

/// The slow and obvious way.
#[derive(Clone, Debug)]
struct Model {
    units_per_page: usize,
    banks: Bits,
    reserved: Bits,
    no_map: Bits,
    overlapping: usize,
    left_out: usize,
}

impl Model {
    fn units(at: usize, len: usize) -> std::ops::Range<usize> {
        at..(at + len).min(UNITS)
    }

    fn mapped(&self) -> Bits {
        let mut mapped = [false; UNITS];
        for page in 0..UNITS / self.units_per_page {
            let units = page * self.units_per_page..(page + 1) * self.units_per_page;
            let good = units.clone().all(|unit| self.banks[unit])
                && !units.clone().any(|unit| self.no_map[unit]);
            mapped[units].fill(good);
        }
        mapped
    }

    fn whole_pages(&self) -> usize {
        let mut all_mapped = self.clone();
        all_mapped.no_map = [false; UNITS];
        count_in(&all_mapped.mapped())
    }

    fn free(&self) -> Bits {
        let mut free = self.mapped();
        for (free, reserved) in free.iter_mut().zip(self.reserved) {
            *free &= !reserved;
        }
        free
    }

    fn place(&self, request: &Request) -> Option<usize> {
        let (size, free) = (request.size, self.free());
        let mut places = (request.from..request.to.saturating_sub(size - 1)).filter(|at| {
            (BASE + *at as u64 * UNIT) % request.align == 0
                && free[*at..*at + size].iter().all(|free| *free)
        });
        match request.direction {
            Direction::TopDown => places.next_back(),
            _ => places.next(),
        }
    }

    fn list(&mut self, list: RangeList) -> &mut Bits {
        match list {
            RangeList::Banks => &mut self.banks,
            RangeList::Reserved => &mut self.reserved,
            _ => &mut self.no_map,
        }
    }
}

fn count_in(bits: &[bool]) -> usize {
    bits.iter().filter(|bit| **bit).count()
}

fn runs(bits: &Bits) -> usize {
    (0..UNITS)
        .filter(|at| bits[*at] && (*at == 0 || !bits[at - 1]))
        .count()
}

/// Ranges as bits; fails if they are not ascending and apart.
fn bits(regions: impl IntoIterator<Item = Region>) -> Bits {
    let mut bits = [false; UNITS];
    let mut last_end = None;
    for region in regions {
        assert!(
            last_end.is_none_or(|end| end < region.start()),
            "{region} touches the one before"
        );
        last_end = Some(region.end());
        for address in (region.start()..region.end()).step_by(UNIT as usize) {
            bits[((address - BASE) / UNIT) as usize] = true;
        }
    }
    bits
}

/// The model after an operation on one of its lists, if the list then has room.
fn changed(
    model: &Model,
    list: RangeList,
    units: std::ops::Range<usize>,
    value: bool,
) -> Option<Model> {
    let mut after = model.clone();
    after.list(list)[units].fill(value);
    (runs(after.list(list)) <= CAPACITY).then_some(after)
}

fn run(page_size: PageSize, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut memory = Memblock::<CAPACITY>::new(page_size);
    let mut model = Model {
        units_per_page: (page_size.bytes() / UNIT) as usize,
        banks: [false; UNITS],
        reserved: [false; UNITS],
        no_map: [false; UNITS],
        overlapping: 0,
        left_out: 0,
    };
    for step in steps {
        let address = |at: usize| BASE + at as u64 * UNIT;
        // An operation that failed must have changed nothing.
        let after = match *step {
            Step::Add(list, at, len) => {
                let units = Model::units(at, len);
                let (start, size) = (address(at), units.len() as u64 * UNIT);
                let overlap = count_in(&model.list(list)[units.clone()]);
                let after = changed(&model, list, units, true);
                if list == RangeList::Banks {
                    let got = memory.add_bank(start, size).ok();
                    prop_assert_eq!(got, after.as_ref().map(|_| overlap as u64 * UNIT));
                    after.map(|model| Model {
                        overlapping: model.overlapping + overlap,
                        ..model
                    })
                } else {
                    let got = match list {
                        RangeList::Reserved => memory.reserve(start, size),
                        _ => memory.mark_no_map(start, size),
                    };
                    prop_assert_eq!(got.is_ok(), after.is_some());
                    after
                }
            }
            Step::Free(at, len) => {
                let units = Model::units(at, len);
                let got = memory.free(address(at), units.len() as u64 * UNIT);
                if model.reserved[units.clone()].iter().all(|bit| *bit) {
                    let after = changed(&model, RangeList::Reserved, units, false);
                    prop_assert_eq!(got.is_ok(), after.is_some());
                    after
                } else {
                    prop_assert!(matches!(got, Err(Error::NotReserved { .. })), "{:?}", got);
                    None
                }
            }
            Step::KeepOnly(from, to) => {
                let got = memory.keep_only(address(from), address(to), LeftOut::BeyondVirtual);
                let mut after = model.clone();
                after.banks[..from].fill(false);
                after.banks[to..].fill(false);
                let removed = count_in(&model.banks) - count_in(&after.banks);
                after.left_out += removed;
                prop_assert_eq!(got, removed as u64 * UNIT);
                Some(after)
            }
            Step::Allocate(request) => {
                let Request {
                    align, direction, ..
                } = request;
                let size = request.size as u64 * UNIT;
                let within = address(request.from)..address(request.to);
                let got = memory.allocate(size, align, within, direction);
                match model.place(&request) {
                    None => {
                        prop_assert_eq!(got, Err(Error::OutOfMemory { size, align }));
                        None
                    }
                    Some(at) => {
                        let units = at..at + request.size;
                        let after = changed(&model, RangeList::Reserved, units, true);
                        prop_assert_eq!(got.ok(), after.as_ref().map(|_| address(at)));
                        after
                    }
                }
            }
        };
        model = after.unwrap_or(model);
        prop_assert_eq!(bits(memory.banks().iter().copied()), model.banks);
        prop_assert_eq!(bits(memory.reserved().iter().copied()), model.reserved);
        prop_assert_eq!(bits(memory.no_map().iter().copied()), model.no_map);
        prop_assert_eq!(bits(memory.mapped()), model.mapped());
        prop_assert_eq!(bits(memory.free_ranges()), model.free());
        for page in memory.free_pages() {
            prop_assert!(page.start() % page_size.bytes() == 0);
            prop_assert!(page.end() % page_size.bytes() == 0);
        }
        let mut free_pages = [false; UNITS];
        for (page, free) in model.free().chunks(model.units_per_page).enumerate() {
            let start = page * model.units_per_page;
            free_pages[start..start + free.len()].fill(free.iter().all(|bit| *bit));
        }
        prop_assert_eq!(bits(memory.free_pages()), free_pages);

        let totals = memory.totals();
        let units = |bytes: u64| (bytes / UNIT) as usize;
        prop_assert_eq!(units(totals.ram), count_in(&model.banks));
        prop_assert_eq!(units(totals.mapped), count_in(&model.mapped()));
        prop_assert_eq!(units(totals.free), count_in(&model.free()));
        prop_assert_eq!(
            units(totals.edges),
            count_in(&model.banks) - model.whole_pages()
        );
        prop_assert_eq!(totals.ram, totals.edges + totals.no_map + totals.mapped);
        prop_assert_eq!(totals.mapped, totals.reserved + totals.free);
        prop_assert_eq!(units(totals.overlapping), model.overlapping);
        prop_assert_eq!(units(totals.beyond_virtual), model.left_out);
        let outside = (0..UNITS)
            .filter(|at| model.reserved[*at] && !model.banks[*at])
            .count();
        prop_assert_eq!(units(totals.reserved_outside_ram), outside);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(600, 1))]

    #[test]
    fn agrees_with_a_bitmap_at_4k(steps in steps()) {
        run(PageSize::K4, &steps)?;
    }

    #[test]
    fn agrees_with_a_bitmap_at_16k(steps in steps()) {
        run(PageSize::K16, &steps)?;
    }

    #[test]
    fn never_panics_whatever_the_ranges_are(
        ranges in prop::collection::vec((0..3_u8, extreme(), extreme()), 1..30),
        requests in prop::collection::vec((extreme(), extreme(), extreme(), extreme()), 1..10),
    ) {
        let mut memory = Memblock::<8>::new(PageSize::K64);
        for (list, start, size) in ranges {
            let result = match list {
                0 => memory.add_bank(start, size).map(|_| ()),
                1 => memory.reserve(start, size),
                _ => memory.mark_no_map(start, size),
            };
            if start.checked_add(size).is_none() {
                prop_assert_eq!(result, Err(Error::Overflow { start, size }));
            }
            if let Err(error) = result {
                one_line(&error);
            }
        }
        for (size, align, from, to) in requests {
            for direction in [Direction::BottomUp, Direction::TopDown] {
                match memory.allocate(size, align, from..to, direction) {
                    Ok(at) => {
                        prop_assert!(at >= from && at + size <= to && at.is_multiple_of(align));
                        memory.free(at, size).unwrap();
                    }
                    Err(error) => one_line(&error),
                }
            }
        }
        let _ = memory.free_pages().count();
        let _ = memory.totals();
        memory.truncate(1 << 48, LeftOut::BeyondPhysical);
        prop_assert!(memory.mapped().all(|piece| piece.end() <= 1 << 48));
    }
}

/// Addresses and sizes near powers of two and near the end of the address space.
fn extreme() -> impl Strategy<Value = u64> {
    (0..=64_u32, -3_i64..=3).prop_map(|(shift, offset)| {
        1_u64
            .checked_shl(shift)
            .unwrap_or(0)
            .wrapping_add_signed(offset)
    })
}

fn one_line(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
}

fn spans(regions: impl IntoIterator<Item = Region>) -> Vec<(u64, u64)> {
    regions
        .into_iter()
        .map(|region| (region.start(), region.end()))
        .collect()
}

#[test]
fn banks_round_inward_and_no_map_rounds_outward() {
    let mut memory: Memblock = Memblock::new(PageSize::K64);
    memory.add_bank(0x4000_0400, 0x10_0000).unwrap();
    memory.mark_no_map(0x4004_ffff, 2).unwrap();
    assert_eq!(
        spans(memory.mapped()),
        [(0x4001_0000, 0x4004_0000), (0x4006_0000, 0x4010_0000)],
        "both pages that the two bytes touch are left out, and the part pages at the ends"
    );
    let totals = memory.totals();
    assert_eq!(totals.edges, 0x1_0000, "0xfc00 bytes below and 0x400 above");
    assert_eq!(totals.no_map, 0x2_0000);
}

#[test]
fn says_what_it_left_out() {
    let mut memory: Memblock = Memblock::new(PageSize::K4);
    memory.add_bank(1 << 30, 1 << 30).unwrap();
    memory.add_bank(1 << 40, 1 << 30).unwrap();
    memory.add_bank(1 << 55, 1 << 30).unwrap();
    assert_eq!(memory.truncate(1 << 48, LeftOut::BeyondPhysical), 1 << 30);
    let window = (1 << 30, (1 << 40) + (1 << 29));
    assert_eq!(
        memory.keep_only(window.0, window.1, LeftOut::BeyondVirtual),
        1 << 29
    );
    let totals = memory.totals();
    assert_eq!(
        (totals.beyond_physical, totals.beyond_virtual),
        (1 << 30, 1 << 29)
    );
    assert_eq!(totals.ram, (1 << 30) + (1 << 29));
}

#[test]
fn refuses_what_cannot_be() {
    let mut memory: Memblock<2> = Memblock::new(PageSize::K4);
    assert_eq!(
        memory.add_bank(0x1000, 0),
        Ok(0),
        "a bank of no bytes is not a bank"
    );
    let overflow = Error::Overflow {
        start: u64::MAX,
        size: 1,
    };
    assert_eq!(memory.add_bank(u64::MAX, 1), Err(overflow));
    memory.add_bank(0x1000, 0x1000).unwrap();
    memory.add_bank(0x3000, 0x1000).unwrap();
    let full = Error::TooManyRegions {
        list: RangeList::Banks,
        start: 0x5000,
        capacity: 2,
    };
    assert_eq!(memory.add_bank(0x5000, 0x1000), Err(full));
    assert_eq!(
        full.to_string(),
        "memblock: no room for the bank at 0x5000, the limit is 2"
    );
    assert_eq!(
        memory.add_bank(0x2000, 0x1000),
        Ok(0),
        "what closes a gap needs no room"
    );
    assert_eq!(spans(memory.banks().iter().copied()), [(0x1000, 0x4000)]);

    let all = 0..u64::MAX;
    for (size, align) in [(0, 1), (1, 0), (1, 3)] {
        let refused = memory.allocate(size, align, all.clone(), Direction::BottomUp);
        assert_eq!(refused, Err(Error::BadRequest { size, align }));
    }
    // Both ends of the free RAM are taken: a place in the middle finds no room in the list.
    memory.reserve(0x1000, 0x400).unwrap();
    memory.reserve(0x3c00, 0x400).unwrap();
    let middle = memory.allocate(0x1000, 0x1000, all.clone(), Direction::BottomUp);
    let full = Error::TooManyRegions {
        list: RangeList::Reserved,
        start: 0x2000,
        capacity: 2,
    };
    assert_eq!(middle, Err(full));
    assert_eq!(
        memory.allocate(0x400, 1, all, Direction::BottomUp),
        Ok(0x1400)
    );
}

#[test]
fn a_bank_at_address_zero_is_ram() {
    let mut memory: Memblock = Memblock::new(PageSize::K4);
    memory.add_bank(0, 0x2000).unwrap();
    let all = 0..u64::MAX;
    assert_eq!(
        memory.allocate(0x1000, 0x1000, all.clone(), Direction::BottomUp),
        Ok(0)
    );
    assert_eq!(
        memory.allocate(0x1000, 0x1000, all.clone(), Direction::TopDown),
        Ok(0x1000)
    );
    let none = Error::OutOfMemory { size: 1, align: 1 };
    assert_eq!(memory.allocate(1, 1, all, Direction::TopDown), Err(none));
    memory.free(0, 0x2000).unwrap();
    assert_eq!(
        memory.free(0, 1),
        Err(Error::NotReserved { start: 0, size: 1 })
    );
}

/// More reservations than there is room for: none is lost, those that are near each other become one, and there is
/// room for what comes after.
#[test]
fn any_number_of_reservations_is_kept() {
    let mut memory = Memblock::<16>::new(PageSize::K4);
    memory.add_bank(0, 1 << 40).unwrap();
    let places: Vec<u64> = (1..=200_u64).map(|place| (place * place) << 13).collect();
    let mut between = 0;
    for start in &places {
        between += memory.reserve_coarsely(*start, 0x1000).unwrap();
    }
    assert_eq!(memory.reserved().len(), 12);
    for start in &places {
        let holds = |own: &Region| own.start() <= *start && start + 0x1000 <= own.end();
        assert!(memory.reserved().iter().any(holds), "{start:#x}");
    }
    let reserved = memory.totals().reserved;
    assert_eq!(reserved, 200 * 0x1000 + between);
    // The gaps grow, so the far ones stay free.
    assert_eq!(memory.reserved()[11].start(), places[199]);
    for _ in 0..4 {
        memory
            .allocate(0x2000, 0x2000, 0..u64::MAX, Direction::TopDown)
            .unwrap();
    }
    // As few as there may be are left as they are.
    let mut few = Memblock::<16>::new(PageSize::K4);
    for start in &places[..12] {
        assert_eq!(few.reserve_coarsely(*start, 0x1000), Ok(0));
    }
    assert_eq!(few.reserved().len(), 12);
    let error = few.reserve_coarsely(u64::MAX, 2);
    assert!(matches!(error, Err(Error::Overflow { .. })));
}
