//! The tracker on memory that a test writes: no QEMU.

use super::*;
use granule_trace::Visibility::{self, Earlier, Exchange, Live, Publish};
use std::cell::RefCell;
use std::rc::Rc;

const RAM: u64 = 0x4000_0000;
const PAGES: u64 = 64;
const ROOT: u64 = RAM + 0x1000;
const L2: u64 = RAM + 0x2000;
const L3: u64 = RAM + 0x3000;
const FRAME: u64 = RAM + 0x10000;

/// A page or table descriptor, and a block's.
const TABLE_BITS: u64 = 3;
const PAGE: u64 = 0x703;
/// 39 bits in the upper half with 4K pages, nothing in the lower.
const TCR: u64 = 25 | 1 << 7 | 25 << 16 | 2 << 30 | 0b101 << 32;

#[derive(Clone, Default)]
struct Words(Rc<RefCell<HashMap<u64, u64>>>);

impl Memory for Words {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        let end = RAM + (PAGES << PAGE_SHIFT);
        if address < RAM || address + to.len() as u64 * 8 > end {
            return false;
        }
        let words = self.0.borrow();
        for (index, word) in to.iter_mut().enumerate() {
            *word = words
                .get(&(address + index as u64 * 8))
                .copied()
                .unwrap_or_default();
        }
        true
    }
}

/// A machine whose instructions a test gives one by one.
struct Rig {
    memory: Words,
    marks: &'static Marks,
    tracker: Tracker<'static, Words>,
    by: Origin,
}

impl Rig {
    fn new() -> Self {
        let memory = Words::default();
        let marks: &Marks = Box::leak(Box::new(Marks::new(RAM, PAGES, 2)));
        Self {
            tracker: Tracker::new(memory.clone(), marks, 2),
            memory,
            marks,
            by: Origin { cpu: 0, pc: 0x100 },
        }
    }

    /// A machine with its MMU on: root, second and third level, and one page.
    fn running() -> Self {
        let mut rig = Self::new();
        rig.raw(ROOT, L2 | TABLE_BITS);
        rig.raw(L2, L3 | TABLE_BITS);
        rig.raw(L3, FRAME | PAGE);
        rig.on(TCR);
        rig.tracker.take();
        rig
    }

    fn on(&mut self, tcr: u64) {
        self.msr(System::TCR_EL1, tcr);
        self.msr(System::TTBR1_EL1, ROOT);
        self.msr(System::SCTLR_EL1, 0b101);
    }

    /// Memory changes, by nobody that is seen.
    fn raw(&self, address: u64, value: u64) {
        self.memory.0.borrow_mut().insert(address, value);
    }

    /// A store of the guest, as QEMU's callback tells it.
    fn store(&mut self, address: u64, value: u64) {
        self.store_as(address, value, StoreForm::default());
    }

    fn store_as(&mut self, address: u64, value: u64, form: StoreForm) {
        self.raw(address, value);
        let flags = self.marks.store(self.by.cpu, address);
        if flags & (TABLE | UNMAPPED) != 0 || self.marks.is_uncached(self.by.cpu) {
            let words = Some([value, 0]);
            let bytes = 8;
            self.tracker.store(
                self.by,
                Store {
                    address,
                    bytes,
                    words,
                    form,
                },
            );
        }
    }

    fn barrier(&mut self, barrier: Barrier) {
        if self.marks.barrier(self.by.cpu, barrier) {
            self.tracker.barrier(self.by, barrier);
        }
    }

    fn msr(&mut self, register: System, value: u64) {
        self.tracker.register(self.by, 1, register, value);
    }

    /// DC ZVA of one line.
    fn zero(&mut self, address: u64) {
        self.marks.store(self.by.cpu, address);
        self.tracker.will_store(self.by, address, LINE, 2048);
        for word in 0..LINE / 8 {
            self.raw(address + word * 8, 0);
        }
    }

    /// What was told, in few words.
    fn told(&mut self) -> Vec<String> {
        let told = self.tracker.take();
        told.map(|(by, seen)| {
            let what = match seen {
                Seen::Event(Event::Store {
                    address,
                    count,
                    descriptor,
                    visibility,
                    ..
                }) => format!("store {address:x} {count} {descriptor:x} {visibility:?}"),
                Seen::Event(Event::Obtained { start, bytes }) => {
                    format!("obtain {start:x} {bytes:x}")
                }
                Seen::Event(Event::Freed { start, bytes }) => format!("free {start:x} {bytes:x}"),
                Seen::Event(Event::System(system, value)) => {
                    format!("{} {value:x}", system.name().unwrap_or("?"))
                }
                Seen::Event(Event::Lines { start, bytes, .. }) => {
                    format!("lines {start:x} {bytes:x}")
                }
                Seen::Event(Event::Barrier(barrier)) => format!("{:?}", barrier.kind),
                Seen::Event(event) => format!("{event:?}"),
                seen => format!("{seen:x?}"),
            };
            format!("cpu{} {what}", by.cpu)
        })
        .collect()
    }
}

/// The lines of a table with one entry at its beginning, told in one way.
fn table(base: u64, first: u64, visibility: Visibility) -> [String; 3] {
    [
        format!("cpu0 obtain {base:x} 1000"),
        format!("cpu0 store {base:x} 2 {first:x} {visibility:?}"),
        format!("cpu0 store {:x} 510 0 {visibility:?}", base + 16),
    ]
}

#[test]
fn tables_are_told_when_the_mmu_goes_on_from_the_last_level_up() {
    let mut rig = Rig::new();
    rig.raw(ROOT, L2 | TABLE_BITS);
    rig.raw(L2, L3 | TABLE_BITS);
    rig.raw(L3, FRAME | PAGE);
    rig.on(TCR);
    let mut expected = vec![
        format!("cpu0 tcr_el1 {TCR:x}"),
        format!("cpu0 ttbr1_el1 {ROOT:x}"),
    ];
    expected.extend(table(L3, FRAME | PAGE, Earlier));
    expected.extend(table(L2, L3 | TABLE_BITS, Earlier));
    expected.extend(table(ROOT, L2 | TABLE_BITS, Earlier));
    expected.push("cpu0 sctlr_el1 5".into());
    assert_eq!(rig.told(), expected);
}

#[test]
fn stores_to_tables_are_told_and_others_are_not() {
    let mut rig = Rig::running();
    rig.store(FRAME, 7);
    rig.store(RAM + 0x8000, L3 | TABLE_BITS);
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    // The same value again changes nothing.
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    let exchange = StoreForm {
        exchange: true,
        release: true,
    };
    rig.store_as(L3 + 8, 0, exchange);
    assert_eq!(
        rig.told(),
        [
            format!(
                "cpu0 store {:x} 1 {:x} Live",
                L3 + 8,
                (FRAME + 0x1000) | PAGE
            ),
            format!("cpu0 store {:x} 1 0 {Exchange:?}", L3 + 8),
        ]
    );
}

#[test]
fn a_new_table_is_told_as_it_was_stored() {
    let new = RAM + 0x5000;
    let link = |barrier: Option<Barrier>, form: StoreForm| {
        let mut rig = Rig::running();
        rig.store(new, FRAME | PAGE);
        if let Some(barrier) = barrier {
            rig.barrier(barrier);
        }
        rig.store_as(L2 + 8, new | TABLE_BITS, form);
        let mut told = rig.told();
        if barrier.is_some() {
            told.remove(0);
        }
        told
    };
    let plain = StoreForm::default();
    let release = StoreForm {
        release: true,
        exchange: false,
    };
    for (barrier, form, contents, linked) in [
        (None, plain, Live, Live),
        (None, release, Earlier, Publish),
        (Some(Barrier::DMB_ISHST), plain, Earlier, Live),
        (Some(Barrier::DSB_ISHST), plain, Earlier, Live),
        (Some(Barrier::DSB_NSH), plain, Live, Live),
        (Some(Barrier::ISB), plain, Live, Live),
    ] {
        let mut expected = table(new, FRAME | PAGE, contents).to_vec();
        let descriptor = new | TABLE_BITS;
        expected.push(format!(
            "cpu0 store {:x} 1 {descriptor:x} {linked:?}",
            L2 + 8
        ));
        assert_eq!(link(barrier, form), expected, "{barrier:?} {form:?}");
    }
}

#[test]
fn another_cpu_s_stores_are_that_cpu_s() {
    let new = RAM + 0x5000;
    let mut rig = Rig::running();
    rig.by.cpu = 1;
    // Only what goes past the caches is looked at line by line.
    rig.marks.set_uncached(1, false);
    rig.store(new, FRAME | PAGE);
    rig.by.cpu = 0;
    rig.barrier(Barrier::DSB_ISHST);
    rig.store(L2 + 8, new | TABLE_BITS);
    let told = rig.told();
    let stored = format!("cpu1 store {new:x} 2 {:x} Live", FRAME | PAGE);
    assert!(told.contains(&stored), "{told:#?}");
}

#[test]
fn lines_stored_with_the_mmu_off_count_until_they_are_maintained() {
    let mut rig = Rig::new();
    rig.store(ROOT, L2 | TABLE_BITS);
    rig.store(L2, L3 | TABLE_BITS);
    rig.store(L3, FRAME | PAGE);
    rig.barrier(Barrier::DSB_SY);
    for table in [ROOT, L3] {
        rig.tracker
            .maintained(rig.by, 1, System::DC_IVAC, table + 8);
    }
    // Cleaning to the point of unification does not count.
    rig.tracker.maintained(rig.by, 1, System::DC_CVAU, L2);
    rig.on(TCR);
    let told = rig.told();
    let stored: Vec<_> = told.iter().filter(|it| it.contains("store")).collect();
    let (l2, l3) = (L2 | TABLE_BITS, L3 | TABLE_BITS);
    assert_eq!(
        stored,
        [
            &format!("cpu0 store {L3:x} 2 {:x} Earlier", FRAME | PAGE),
            &format!("cpu0 store {:x} 510 0 Earlier", L3 + 16),
            &format!("cpu0 store {L2:x} 2 {l3:x} Live"),
            &format!("cpu0 store {:x} 6 0 Live", L2 + 16),
            &format!("cpu0 store {:x} 504 0 Earlier", L2 + 64),
            &format!("cpu0 store {ROOT:x} 2 {l2:x} Earlier"),
            &format!("cpu0 store {:x} 510 0 Earlier", ROOT + 16),
        ]
    );
}

#[test]
fn a_table_is_freed_when_it_is_stored_to_while_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    // Taken apart after it was unlinked: still a table.
    rig.store(L3, 0);
    assert_eq!(rig.told(), [format!("cpu0 store {L3:x} 1 0 Live")]);
    // A string.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    rig.store(L3 + 16, FRAME | PAGE);
    assert_eq!(rig.told(), [""; 0]);
    // A table again, with what it holds now.
    rig.store(L2, L3 | TABLE_BITS);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 obtain {L3:x} 1000"));
}

#[test]
fn an_entry_that_is_made_invalid_and_keeps_its_address_frees_no_table() {
    const SOFTWARE: u64 = 1 << 63;
    let mut rig = Rig::running();
    rig.store(L2, 0);
    let leaf = (RAM + 0x9000) | PAGE;
    rig.store(L2, L3 | TABLE_BITS);
    rig.store(L3 + 8, leaf);
    rig.store(L2, 0);
    rig.told();
    let waits = SOFTWARE | (leaf & !1);
    rig.store(L3 + 8, waits);
    let at = L3 + 8;
    assert_eq!(rig.told(), [format!("cpu0 store {at:x} 1 {waits:x} Live")]);
    // There is no entry any more whose address the value could keep.
    rig.store(at, waits | 4);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
}

#[test]
fn a_table_that_is_zeroed_is_freed_only_when_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.zero(L3);
    // What the instruction stores is told with the CPU's next one.
    rig.barrier(Barrier::DSB_ISHST);
    assert_eq!(
        rig.told(),
        [format!("cpu0 store {L3:x} 1 0 Live"), "cpu0 Dsb".to_owned()]
    );
    rig.store(L2, 0);
    rig.zero(L3 + 64);
    assert_eq!(
        rig.told(),
        [
            format!("cpu0 store {L2:x} 1 0 Live"),
            format!("cpu0 free {L3:x} 1000")
        ]
    );
}

#[test]
fn a_program_s_root_stays_a_table_while_it_waits() {
    let mut rig = Rig::running();
    let (lower, program) = (TCR & !(1 << 7), RAM + 0x6000);
    rig.msr(System::TCR_EL1, lower);
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program + 16, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.told();
    rig.store(program, L2 | TABLE_BITS);
    let linked = format!("cpu0 store {program:x} 1 {:x} Live", L2 | TABLE_BITS);
    assert_eq!(rig.told(), [linked]);
    rig.store(program + 8, 0xffff_0000_1234_5678);
    let told = rig.told();
    assert_eq!(told, [format!("cpu0 free {program:x} 1000")]);
    // What it led to is led to by the other tree.
    rig.store(L2 + 8, 0x6c6c_6568);
    assert!(rig.told()[0].contains(" Live"));
}

#[test]
fn a_program_s_empty_root_waits_no_more() {
    let program = RAM + 0x6000;
    // A table of another level, which nothing leads to yet; it was in a list of free pages before, or not.
    for link in [false, true] {
        let mut rig = emptied_root(program);
        if link {
            rig.store(program, RAM + 0x8000);
            rig.told();
        }
        rig.store(program, L3 | TABLE_BITS);
        assert_eq!(rig.told(), [format!("cpu0 free {program:x} 1000")]);
    }
}

/// A program's root that had an entry, and that no TTBR has any more.
fn emptied_root(program: u64) -> Rig {
    let mut rig = Rig::running();
    rig.msr(System::TCR_EL1, TCR & !(1 << 7));
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.store(program, 0);
    rig.told();
    rig
}

#[test]
fn tables_below_an_unlinked_table_count_as_unlinked() {
    const OTHER: u64 = RAM + 0x9000;
    let mut rig = Rig::running();
    rig.store(ROOT, 0);
    rig.told();
    // Of a program, in memory that was the last table.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    // The table between is linked again, with what it holds now.
    rig.store(L2, OTHER | TABLE_BITS);
    rig.told();
    rig.store(ROOT, L2 | TABLE_BITS);
    assert_eq!(rig.told()[0], format!("cpu0 obtain {OTHER:x} 1000"));
    rig.store(OTHER + 8, FRAME | PAGE);
    let stored = format!("cpu0 store {:x} 1 {:x} Live", OTHER + 8, FRAME | PAGE);
    assert_eq!(rig.told(), [stored]);
}

#[test]
fn a_table_takes_the_place_of_one_that_waits() {
    let mut rig = Rig::running();
    let (lower, program) = (TCR & !(1 << 7), RAM + 0x6000);
    rig.msr(System::TCR_EL1, lower);
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.told();
    rig.store(L2 + 8, program | TABLE_BITS);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 free {program:x} 1000"), "{told:?}");
    assert_eq!(told[1], format!("cpu0 obtain {program:x} 1000"));
}

#[test]
fn tables_smaller_than_a_page_share_it_with_other_data() {
    let mut rig = Rig::new();
    // 42 bits, 4K: eight entries at the top.
    let tcr = TCR & !(63 << 16) | 22 << 16;
    rig.on(tcr);
    let told = rig.told();
    assert!(
        told.contains(&format!("cpu0 obtain {ROOT:x} 40")),
        "{told:?}"
    );
    rig.store(ROOT + 64, 0x1234_5678);
    assert_eq!(rig.told(), [""; 0]);
    rig.store(ROOT + 56, 0);
    rig.store(ROOT + 56, L2 | TABLE_BITS);
    // The value that was there is no change.
    assert_eq!(rig.told().len(), 3);
}

#[test]
fn a_small_table_is_not_as_young_as_what_shares_its_page() {
    const TOP: u64 = RAM + 0x8000;
    // Another CPU stores past its caches, with no barrier: which lines it stored to is known.
    for (stored, how) in [(TOP + 0x800, "Earlier"), (TOP, "Live")] {
        let mut rig = Rig::new();
        rig.on(TCR & !(63 << 16) | 22 << 16);
        rig.by.cpu = 1;
        rig.store(stored, 8);
        rig.by.cpu = 0;
        rig.told();
        rig.msr(System::TTBR1_EL1, TOP);
        let told = rig.told();
        let mut stores = told.iter().filter(|it| it.contains("store")).peekable();
        assert!(stores.peek().is_some(), "{told:?}");
        assert!(stores.all(|it| it.ends_with(how)), "{told:?}");
    }
}

#[test]
fn zeroing_beside_a_small_table_leaves_it() {
    let mut rig = Rig::new();
    rig.on(TCR & !(63 << 16) | 22 << 16);
    rig.tracker.reset(rig.by);
    rig.told();
    // No TTBR leads to the table of 64 bytes now, and the next line is zeroed.
    rig.zero(ROOT + 64);
    assert_eq!(rig.told(), [""; 0]);
    rig.zero(ROOT);
    assert_eq!(rig.told(), [format!("cpu0 free {ROOT:x} 40")]);
}

#[test]
fn a_store_that_is_seen_before_its_call_gives_a_small_root_back() {
    let mut rig = Rig::running();
    let small = TCR & !(1 << 7 | 63) | 22;
    let (waits, runs) = (RAM + 0x6000, RAM + 0x6040);
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.told();
    // Another CPU's allocator stores a word of its list, and this CPU zeroes a line beside.
    rig.raw(waits + 32, 0x00dc_ba98_7654_3003);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 free {waits:x} 40"), "{told:?}");
    assert!(!told.iter().any(|it| it.contains("Missing")), "{told:?}");
    // A word that leads to a table is a change of a program that waits.
    let mut rig = Rig::running();
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.told();
    rig.raw(waits + 32, L2 | TABLE_BITS);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    assert!(rig.told()[0].starts_with("cpu0 store"));
}

#[test]
fn a_table_may_lead_to_itself() {
    let mut rig = Rig::running();
    rig.store(ROOT + 8, ROOT | TABLE_BITS);
    assert!(
        rig.told()
            .iter()
            .any(|it| it.starts_with(&format!("cpu0 store {:x}", ROOT + 8)))
    );
    rig.store(ROOT + 8, 0);
    assert_eq!(rig.told().len(), 1);
}

#[test]
fn zeros_of_a_page_that_was_cleared_are_older_than_what_was_stored_since() {
    const OTHER: u64 = RAM + 0x4000;
    for (between, zeros) in [(Some(Barrier::DSB_ISHST), Earlier), (None, Live)] {
        let mut rig = Rig::running();
        rig.zero(OTHER);
        rig.marks.zero(0, OTHER);
        if let Some(barrier) = between {
            rig.barrier(barrier);
        }
        rig.store(OTHER + 24, FRAME | PAGE);
        rig.told();
        rig.store(L2 + 8, OTHER | TABLE_BITS);
        let told = rig.told();
        let entry = format!("cpu0 store {:x} 1 {:x} Live", OTHER + 24, FRAME | PAGE);
        let stores: Vec<_> = told.iter().filter(|it| it.contains("store")).collect();
        if zeros == Earlier {
            // First what was there before, then what a walker may miss.
            let before = format!("cpu0 store {OTHER:x} 512 0 Earlier");
            assert_eq!(stores[..2], [&before, &entry]);
            assert_eq!(stores.len(), 3);
        } else {
            assert!(stores.iter().all(|it| it.ends_with("Live")), "{told:?}");
        }
    }
}

#[test]
fn a_program_goes_on_where_el1_s_registers_say_so() {
    let mut rig = Rig::running();
    rig.told();
    rig.tracker.returned(rig.by, 1);
    assert_eq!(rig.told(), ["cpu0 User"]);
    // EL3, and EL2 without its host's programs, have other registers.
    rig.tracker.returned(rig.by, 3);
    rig.tracker.returned(rig.by, 2);
    let told: Vec<_> = rig.tracker.take().map(|(_, seen)| seen).collect();
    assert_eq!(told, [Seen::Exception; 2]);
    rig.msr(System::HCR_EL2, 1 << 34 | 1 << 27);
    rig.told();
    rig.tracker.returned(rig.by, 2);
    assert_eq!(rig.told(), ["cpu0 User"]);
}

#[test]
fn a_frame_that_was_unmapped_is_told_when_it_is_stored_to_next() {
    let mut rig = Rig::running();
    rig.store(FRAME, 1);
    rig.store(L3, 0);
    rig.told();
    rig.store(FRAME + 0x1000, 1);
    rig.store(FRAME + 8, 1);
    rig.store(FRAME + 16, 1);
    let seen = Event::Reused {
        start: FRAME + 8,
        bytes: 8,
    };
    assert_eq!(rig.told(), [format!("cpu0 {seen:?}")]);
    // Other permissions, the same frame: no reuse.
    rig.store(L3, FRAME | PAGE);
    rig.store(L3, FRAME | PAGE | 1 << 7);
    rig.told();
    rig.zero(FRAME);
    assert_eq!(rig.told(), [""; 0]);
    // With its whole table.
    rig.store(L2, 0);
    rig.told();
    rig.zero(FRAME);
    assert_eq!(rig.told().len(), 1);
}

#[test]
fn hardware_updates_are_told_with_the_next_store_to_the_table() {
    let mut rig = Rig::running();
    let old = FRAME | TABLE_BITS | 1 << 51 | 1 << 7;
    rig.store(L3, old);
    rig.told();
    rig.raw(L3, old & !(1 << 7) | 1 << 10);
    // Not a change that hardware makes: another CPU's store, whose callback is to come.
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    assert_eq!(rig.told().len(), 1);
    rig.msr(System::TCR_EL1, TCR | 3 << 39);
    rig.told();
    rig.raw(L3 + 16, FRAME | PAGE);
    rig.store(L3 + 8, 0);
    let update = Event::Found {
        address: L3,
        descriptor: old & !(1 << 7) | 1 << 10,
    };
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 {update:?}"));
    assert_eq!(told.len(), 2);
}

#[test]
fn cache_maintenance_of_tables_is_told_as_ranges() {
    let mut rig = Rig::running();
    // The tables map no tables: the addresses are physical with the MMU off.
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    for line in 0..4 {
        rig.tracker
            .maintained(rig.by, 1, System::DC_CIVAC, L3 + line * LINE);
    }
    rig.tracker.maintained(rig.by, 1, System::DC_CIVAC, FRAME);
    rig.tracker.maintained(rig.by, 1, System::DC_CIVAC, L2);
    rig.barrier(Barrier::DSB_SY);
    assert_eq!(
        rig.told(),
        [
            format!("cpu0 lines {L3:x} 100"),
            format!("cpu0 lines {L2:x} 40"),
            "cpu0 Dsb".to_owned()
        ]
    );
}

#[test]
fn addresses_are_translated_as_the_tables_say() {
    let mut rig = Rig::running();
    let va = 0xffff_ff80_0000_0123;
    assert_eq!(rig.tracker.translate(0, 1, va), Some(FRAME | 0x123));
    assert_eq!(rig.tracker.translate(0, 1, va + 0x1000), None);
    // The other CPU has its MMU off.
    assert_eq!(rig.tracker.translate(1, 1, 0x4000_0010), Some(0x4000_0010));
    rig.raw(L3, (FRAME + 0x2000) | PAGE);
    rig.tracker.invalidated(rig.by, 1, System::VMALLE1, 0);
    assert_eq!(rig.tracker.translate(0, 1, va), Some(FRAME | 0x2123));
}

#[test]
fn each_thing_that_goes_unseen_is_said_once() {
    let mut rig = Rig::new();
    rig.msr(System::TTBR1_EL1, 0x1000);
    rig.msr(System::TCR_EL1, TCR);
    rig.msr(System::SCTLR_EL1, 1);
    rig.msr(System::TTBR1_EL1, 0x2000);
    // TCR2_EL1: zero is what it had.
    let tcr2 = System(0xc103);
    rig.msr(tcr2, 0);
    let told = rig.told();
    let outside = told
        .iter()
        .filter(|it| it.contains("tables outside of RAM"));
    assert_eq!(outside.count(), 1);
    assert!(!told.iter().any(|it| it.contains("tcr2")));
    rig.msr(tcr2, 2);
    assert_eq!(rig.told(), [r#"cpu0 Missing("tcr2_el1")"#]);
    // A guest under stage 2.
    rig.msr(System::HCR_EL2, 1);
    rig.msr(System::TTBR1_EL1, ROOT);
    rig.tracker.invalidated(rig.by, 1, System::VMALLE1, 0);
    let told = rig.told();
    let missing: Vec<_> = told.iter().filter(|it| it.contains("Missing")).collect();
    assert_eq!(missing, [r#"cpu0 Missing("a guest's own tables")"#]);
    assert!(!told.iter().any(|it| it.contains("vmalle1")));
}

#[test]
fn a_second_security_state_is_said_to_go_unseen() {
    const NS: u64 = 1;
    const SMD: u64 = 1 << 7;
    let mut rig = Rig::new();
    // Firmware chooses a state before anything below it translates.
    rig.tracker.register(rig.by, 3, SCR_EL3, NS);
    assert!(rig.told().is_empty());
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD);
    assert!(rig.told().is_empty());
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD | NS);
    assert_eq!(rig.told(), [r#"cpu0 Missing("two security states")"#]);
}

#[test]
fn a_cpu_that_goes_off_leaves_its_tables() {
    let mut rig = Rig::running();
    rig.tracker.reset(rig.by);
    assert_eq!(rig.told(), ["cpu0 Reset"]);
    assert!(rig.marks.is_uncached(0));
    rig.store(ROOT, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {ROOT:x} 1000")]);
}

#[test]
fn registers_that_a_hypervisor_writes_for_its_guest_are_not_the_machines() {
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 2, System::HCR_EL2, 1);
    rig.told();
    for register in [System::TTBR0_EL1, System::TTBR1_EL1, System::TCR_EL1] {
        rig.tracker.register(rig.by, 2, register, 0x7000);
    }
    assert_eq!(rig.told(), [r#"cpu0 Missing("a guest's own tables")"#]);
    // With VHE the names are those of EL2's own registers.
    rig.tracker
        .register(rig.by, 2, System::HCR_EL2, 1 | 1 << 34);
    rig.tracker.register(rig.by, 2, System::TTBR1_EL1, ROOT);
    assert_eq!(
        rig.told().last().unwrap(),
        &format!("cpu0 ttbr1_el1 {ROOT:x}")
    );
}

#[test]
fn a_guest_is_entered_by_an_exception_return_of_el2() {
    // The level of the ERET, whether SPSR_EL2 names a level below EL2, HCR_EL2.
    for (level, to_guest, hcr, told) in [
        (2, true, 1, "cpu0 User"),
        (2, false, 1, "cpu0 Exception"),
        (2, true, 0, "cpu0 Exception"),
        // The guest's own programs.
        (1, true, 1, "cpu0 Exception"),
        (1, false, 0, "cpu0 User"),
        // A host with VHE, whose programs are no guests.
        (2, true, 1 | 1 << 34 | 1 << 27, "cpu0 User"),
    ] {
        let mut rig = Rig::running();
        rig.tracker.register(rig.by, 2, System::HCR_EL2, hcr);
        rig.marks.set_to_guest(0, to_guest);
        rig.told();
        rig.tracker.returned(rig.by, level);
        assert_eq!(
            rig.told(),
            [told],
            "EL{level}, {to_guest}, HCR_EL2 {hcr:#x}"
        );
    }
}

#[test]
fn caches_that_were_in_use_may_lose_what_they_are_told_to_drop() {
    let mut rig = Rig::new();
    rig.tracker.dropped(rig.by);
    assert!(rig.told().is_empty());
    rig.on(TCR);
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    rig.tracker.dropped(rig.by);
    assert_eq!(rig.told(), [r#"cpu0 Missing("dc isw of caches in use")"#]);
    let mut rig = Rig::running();
    rig.tracker.reset(rig.by);
    rig.told();
    rig.tracker.dropped(rig.by);
    assert!(rig.told().is_empty());
}

#[test]
fn stores_past_the_caches_are_completed_by_the_barrier_that_came_before_the_mmu() {
    for is_completed in [true, false] {
        let mut rig = Rig::new();
        rig.store(ROOT, 0);
        rig.store(ROOT + 8, FRAME | 1);
        if is_completed {
            rig.barrier(Barrier::DSB_SY);
        }
        rig.told();
        rig.on(TCR);
        let told = rig.told();
        let [.., before, last] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(last, "cpu0 sctlr_el1 5");
        assert_eq!(before == "cpu0 Dsb", is_completed, "{told:?}");
        assert!(told.iter().any(|it| it.contains("Live")), "{told:?}");
    }
}

#[test]
fn a_list_in_the_first_words_of_tables_that_wait_is_no_reuse() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    // Not a valid descriptor, in the first word.
    rig.store(L3, RAM + 0x8000);
    assert_eq!(
        rig.told(),
        [format!("cpu0 store {L3:x} 1 {:x} Live", RAM + 0x8000)]
    );
    rig.store(L3 + 8, RAM + 0x8000);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    rig.store(L3, 0x8001);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
}

#[test]
fn a_kernel_that_begins_anew_has_none_of_the_old_tables() {
    const NEXT: u64 = RAM + 0x8000;
    let mut rig = Rig::running();
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    // The same kernel goes on.
    rig.msr(System::SCTLR_EL1, 0b101);
    assert_eq!(rig.told(), ["cpu0 sctlr_el1 5"]);
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    // The next one has a table of another level where the old one's third level was.
    rig.raw(NEXT, L3 | TABLE_BITS);
    rig.raw(L3, FRAME | TABLE_BITS);
    rig.msr(System::TTBR1_EL1, NEXT);
    rig.msr(System::SCTLR_EL1, 0b101);
    let told = rig.told();
    let place = |line: &str| told.iter().position(|it| it == line);
    for old in [ROOT, L2, L3] {
        assert!(
            place(&format!("cpu0 free {old:x} 1000")).is_some(),
            "{told:?}"
        );
    }
    let freed = place(&format!("cpu0 free {L3:x} 1000"));
    assert!(
        freed < place(&format!("cpu0 obtain {L3:x} 1000")),
        "{told:?}"
    );
    // What its second level leads to is a table now.
    rig.store(FRAME, 7);
    assert_eq!(rig.told(), [format!("cpu0 store {FRAME:x} 1 7 Live")]);
}

#[test]
fn an_empty_root_of_every_page_size_is_given_back_once() {
    const LOWER: u64 = TCR & !(1 << 7);
    let sized = |tg0: u64| LOWER | tg0 << 14;
    let (empty, program) = (RAM + 0x20000, RAM + 0x30000);
    let mut rig = Rig::running();
    rig.raw(program, L3 | TABLE_BITS);
    let enter = |rig: &mut Rig, from: u64, to: u64, root: u64| {
        rig.msr(System::TCR_EL1, from | 1 << 7);
        rig.msr(System::TTBR0_EL1, root);
        rig.msr(System::TCR_EL1, to | 1 << 7);
        rig.msr(System::TCR_EL1, to);
    };
    // CPU 0 is in it with 4K, CPU 1 with 16K pages.
    enter(&mut rig, TCR, sized(0), empty);
    rig.by.cpu = 1;
    rig.on(sized(2) | 1 << 7);
    enter(&mut rig, sized(2), sized(2), empty);
    // CPU 0 goes to a program of 64K pages and comes back to it with these, while CPU 1 is in it and after
    // CPU 1 has left it: an ISB may still be to come there.
    let freed = |told: &[String]| told.iter().filter(|line| line.contains("free")).count();
    for (cpu, from, to) in [(0, 0, 1), (1, 2, 0)] {
        rig.by.cpu = cpu;
        enter(&mut rig, sized(from), sized(to), program | 5 << 48);
        rig.told();
        rig.msr(System::TTBR0_EL1, empty);
        let told = rig.told();
        assert!(told.iter().any(|line| line.contains("obtain")), "{told:?}");
        assert_eq!(freed(&told), 0, "{told:?}");
    }
    rig.by.cpu = 0;
    // Nobody is in it, and it is used for something else.
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.by.cpu = 1;
    enter(&mut rig, sized(0), sized(1), program | 5 << 48);
    rig.told();
    rig.store(empty + 8, 0x6c6c_6568);
    let told = rig.told();
    assert!(freed(&told) > 0, "{told:?}");
}

#[test]
fn an_empty_root_that_all_have_left_is_no_memory_given_back_when_its_shape_changes() {
    // The CPU that left it may walk it until its next ISB.
    let (empty, program) = (RAM + 0x20000, RAM + 0x30000);
    let lower = TCR & !(1 << 7);
    for (root, freed) in [(empty, 0), (program, 1)] {
        let mut rig = Rig::running();
        rig.raw(program, L3 | TABLE_BITS);
        rig.msr(System::TCR_EL1, lower);
        rig.msr(System::TTBR0_EL1, root);
        rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 5 << 48);
        rig.by.cpu = 1;
        rig.on(lower | 1 << 14);
        rig.told();
        rig.msr(System::TTBR0_EL1, root);
        let told = rig.told();
        let told = told.iter().filter(|line| line.contains("free"));
        assert_eq!(told.count(), freed, "{root:x}");
    }
}

#[test]
fn the_lower_half_is_read_by_the_granule_that_tcr_has_then() {
    // A program of 64K pages under a kernel of 4K pages: its tables are told as such, and no walk is
    // told of while EPD0 is set.
    let (root, last) = (RAM + 0x20000, RAM + 0x30000);
    let lower = TCR & !(1 << 7) | 1 << 14;
    let mut rig = Rig::running();
    rig.raw(root, last | TABLE_BITS);
    rig.raw(last + 8, FRAME | PAGE);
    rig.msr(System::TTBR0_EL1, root | 5 << 48);
    rig.msr(System::TCR_EL1, lower | 1 << 7);
    let told = rig.told();
    assert!(told.iter().all(|line| line.contains("_el1")), "{told:?}");
    rig.msr(System::TCR_EL1, lower);
    let told = rig.told();
    for obtained in [
        format!("cpu0 obtain {root:x} 2000"),
        format!("cpu0 obtain {last:x} 10000"),
    ] {
        assert!(told.contains(&obtained), "{told:?}");
    }
    assert_eq!(rig.tracker.translate(0, 0, 0x1_0123), Some(FRAME + 0x123));
    // TLBIs and stores to it are told as always; the last-level table has 8192 entries.
    rig.store(last + 8 * 8191, FRAME | PAGE);
    assert_eq!(rig.told().len(), 1);
}
