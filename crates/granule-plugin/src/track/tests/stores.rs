//! Tests of the events of stores to tables, of hardware's updates and of cache maintenance.

use super::*;

#[test]
fn tables_are_reported_from_the_last_level_up_when_the_mmu_is_enabled() {
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
    assert_eq!(rig.emitted(), expected);
}

#[test]
fn only_stores_to_tables_are_emitted() {
    let mut rig = Rig::running();
    rig.store(FRAME, 7);
    rig.store(RAM + 0x8000, L3 | TABLE_BITS);
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    // The same value again is not a change.
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    let exchange = StoreForm {
        exchange: true,
        release: true,
    };
    rig.store_as(L3 + 8, 0, exchange);
    assert_eq!(
        rig.emitted(),
        [
            stored(L3 + 8, (FRAME + 0x1000) | PAGE),
            format!("cpu0 store {:x} 1 0 {Exchange:?}", L3 + 8),
        ]
    );
}

#[test]
fn a_new_table_is_reported_as_it_was_stored() {
    let new = RAM + 0x5000;
    let link = |barrier: Option<Barrier>, form: StoreForm| {
        let mut rig = Rig::running();
        rig.store(new, FRAME | PAGE);
        if let Some(barrier) = barrier {
            rig.barrier(barrier);
        }
        rig.store_as(L2 + 8, new | TABLE_BITS, form);
        let mut emitted = rig.emitted();
        if barrier.is_some() {
            emitted.remove(0);
        }
        emitted
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
fn stores_of_another_cpu_are_attributed_to_it() {
    let new = RAM + 0x5000;
    let mut rig = Rig::running();
    rig.by.cpu = 1;
    // Only stores past the caches are tracked by lines.
    rig.marks.set_uncached(1, false);
    rig.store(new, FRAME | PAGE);
    rig.by.cpu = 0;
    rig.barrier(Barrier::DSB_ISHST);
    rig.store(L2 + 8, new | TABLE_BITS);
    let emitted = rig.emitted();
    let stored = format!("cpu1 store {new:x} 2 {:x} Live", FRAME | PAGE);
    assert!(emitted.contains(&stored), "{emitted:#?}");
}

#[test]
fn a_dsb_is_emitted_again_after_another_cpu_stored_to_a_table() {
    let mut rig = Rig::running();
    let dsb = |rig: &mut Rig, cpu| {
        rig.by.cpu = cpu;
        rig.barrier(Barrier::DSB_ISHST);
        rig.emitted().iter().filter(|it| it.contains("Dsb")).count()
    };
    dsb(&mut rig, 0);
    assert_eq!(dsb(&mut rig, 0), 0);
    rig.by.cpu = 1;
    rig.store(L3, 0);
    rig.emitted();
    assert_eq!(dsb(&mut rig, 0), 1);
    assert_eq!(dsb(&mut rig, 0), 0);
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
    let emitted = rig.emitted();
    let stored: Vec<_> = emitted.iter().filter(|it| it.contains("store")).collect();
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
fn zeros_of_a_cleared_page_are_older_than_later_stores() {
    const OTHER: u64 = RAM + 0x4000;
    for (between, zeros) in [(Some(Barrier::DSB_ISHST), Earlier), (None, Live)] {
        let mut rig = Rig::running();
        rig.zero(OTHER);
        rig.marks.zero(0, OTHER);
        if let Some(barrier) = between {
            rig.barrier(barrier);
        }
        rig.store(OTHER + 24, FRAME | PAGE);
        rig.emitted();
        rig.store(L2 + 8, OTHER | TABLE_BITS);
        let emitted = rig.emitted();
        let entry = stored(OTHER + 24, FRAME | PAGE);
        let stores: Vec<_> = emitted.iter().filter(|it| it.contains("store")).collect();
        if zeros == Earlier {
            // First the earlier contents, then the store that a walker may miss.
            let before = format!("cpu0 store {OTHER:x} 512 0 Earlier");
            assert_eq!(stores[..2], [&before, &entry]);
            assert_eq!(stores.len(), 3);
        } else {
            assert!(stores.iter().all(|it| it.ends_with("Live")), "{emitted:?}");
        }
    }
}

#[test]
fn the_next_store_to_an_unmapped_frame_is_emitted() {
    let mut rig = Rig::running();
    rig.store(FRAME, 1);
    rig.store(L3, 0);
    rig.emitted();
    rig.store(FRAME + 0x1000, 1);
    rig.store(FRAME + 8, 1);
    rig.store(FRAME + 16, 1);
    let seen = Event::reused(FRAME + 8, 8);
    assert_eq!(rig.emitted(), [format!("cpu0 {seen:?}")]);
    // Other permissions, but the same frame: not a reuse.
    rig.store(L3, FRAME | PAGE);
    rig.store(L3, FRAME | PAGE | 1 << 7);
    rig.emitted();
    rig.zero(FRAME);
    assert_eq!(rig.emitted(), [""; 0]);
    // The whole table is unlinked.
    rig.store(L2, 0);
    rig.emitted();
    rig.zero(FRAME);
    assert_eq!(rig.emitted().len(), 1);
}

#[test]
fn hardware_updates_are_emitted_at_the_next_store_to_the_table() {
    let mut rig = Rig::running();
    let old = FRAME | TABLE_BITS | 1 << 51 | 1 << 7;
    rig.store(L3, old);
    rig.emitted();
    rig.raw(L3, old & !(1 << 7) | 1 << 10);
    // Not a change by hardware: a store of another CPU, whose callback is still to come.
    rig.store(L3 + 8, (FRAME + 0x1000) | PAGE);
    assert_eq!(rig.emitted().len(), 1);
    rig.msr(System::TCR_EL1, TCR | 3 << 39);
    rig.emitted();
    rig.raw(L3 + 16, FRAME | PAGE);
    rig.store(L3 + 8, 0);
    let update = Event::found(L3, old & !(1 << 7) | 1 << 10);
    let emitted = rig.emitted();
    assert_eq!(emitted[0], format!("cpu0 {update:?}"));
    assert_eq!(emitted.len(), 2);
}

#[test]
fn cache_maintenance_of_tables_is_emitted_as_ranges() {
    let mut rig = Rig::running();
    // The tables do not map themselves: with the MMU off, the addresses are physical.
    rig.msr(System::SCTLR_EL1, 0);
    rig.emitted();
    for line in 0..4 {
        rig.tracker
            .maintained(rig.by, 1, System::DC_CIVAC, L3 + line * LINE);
    }
    rig.tracker.maintained(rig.by, 1, System::DC_CIVAC, FRAME);
    rig.tracker.maintained(rig.by, 1, System::DC_CIVAC, L2);
    rig.barrier(Barrier::DSB_SY);
    assert_eq!(
        rig.emitted(),
        [
            format!("cpu0 lines {L3:x} 100"),
            format!("cpu0 lines {L2:x} 40"),
            "cpu0 Dsb".to_owned()
        ]
    );
}

#[test]
fn addresses_are_translated_by_the_tables() {
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
fn discarding_lines_of_caches_in_use_is_reported_as_missing() {
    let mut rig = Rig::new();
    rig.tracker.dropped(rig.by);
    assert!(rig.emitted().is_empty());
    rig.on(TCR);
    rig.msr(System::SCTLR_EL1, 0);
    rig.emitted();
    rig.tracker.dropped(rig.by);
    assert_eq!(
        rig.emitted(),
        [r#"cpu0 Missing("dc isw of caches in use")"#]
    );
    let mut rig = Rig::running();
    rig.tracker.reset(rig.by);
    rig.emitted();
    rig.tracker.dropped(rig.by);
    assert!(rig.emitted().is_empty());
}

#[test]
fn stores_past_the_caches_are_completed_by_a_barrier_before_the_mmu_is_enabled() {
    for is_completed in [true, false] {
        let mut rig = Rig::new();
        rig.store(ROOT, 0);
        rig.store(ROOT + 8, FRAME | 1);
        if is_completed {
            rig.barrier(Barrier::DSB_SY);
        }
        rig.emitted();
        rig.on(TCR);
        let emitted = rig.emitted();
        let [.., before, last] = &emitted[..] else {
            panic!("{emitted:?}");
        };
        assert_eq!(last, "cpu0 sctlr_el1 5");
        assert_eq!(before == "cpu0 Dsb", is_completed, "{emitted:?}");
        assert!(emitted.iter().any(|it| it.contains("Live")), "{emitted:?}");
    }
}

/// Memory in which the other CPU stores to a table at the moment when it is read.
struct Raced(Words, &'static Marks);

impl Memory for Raced {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        let is_table = self.1.store(1, address) & TABLE != 0;
        assert!(is_table, "a store to {address:#x} would not be seen");
        self.0.load(address, to)
    }
}

#[test]
fn a_table_is_marked_before_it_is_read() {
    let Rig {
        memory, marks, by, ..
    } = Rig::new();
    memory.0.borrow_mut().insert(ROOT, L2 | TABLE_BITS);
    let mut tracker = Tracker::new(Raced(memory, marks), marks, 2);
    for (register, value) in [
        (System::TCR_EL1, TCR),
        (System::TTBR1_EL1, ROOT),
        (System::SCTLR_EL1, 0b101),
    ] {
        tracker.register(by, 1, register, value);
    }
    assert!(marks.flags(L2) & TABLE != 0);
}
