//! Stage 2: a guest's intermediate physical addresses, the entries that combine both stages, and
//! VMIDs.

use crate::rig::{AF, BLOCK, CONT, INNER, PAGE, RAM, Rig, TABLE, two};
use granule_model::{
    Access, AccessKind, Barrier, Config, Event, FaultKind, Miss, Outcome, Regime, Rule, System,
    Violation,
};

/// The root: level 1, two concatenated tables of 512 entries, for 40 bits with 4K pages.
pub(crate) const ROOT: u64 = 0x4000_0000;
const L2: u64 = 0x4000_2000;
pub(crate) const L3: u64 = 0x4000_3000;
/// A second guest's root.
pub(crate) const OTHER: u64 = 0x4000_4000;
/// The hypervisor's own root, which is empty.
const HOST: u64 = 0x4001_0000;
/// The intermediate physical address of the first page, in the second of the root tables.
pub(crate) const IPA: u64 = 1 << 39;
const READ: u64 = 1 << 6;
pub(crate) const WRITE: u64 = 1 << 7;
const WB: u64 = 0b1111 << 2;
const DBM: u64 = 1 << 51;
/// RAM that the guest may read, write and execute.
pub(crate) const ALL: u64 = AF | INNER | READ | WRITE | WB;
/// 40 bits, 4K pages, start level 1, write-back walks, 48 bits of output, RES1, 16-bit VMIDs.
pub(crate) const VTCR: u64 =
    24 | 0b01 << 6 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 0b101 << 16 | 1 << 19 | 1 << 31;
const VMID: u64 = 7;
const VM: u64 = 1;

impl Rig {
    /// Two CPUs that run the same guest, whose memory is one page.
    pub(crate) fn guest(bbm_level: u8) -> Self {
        Self::guest_with(Config { bbm_level, ..two() }, VTCR)
    }

    pub(crate) fn guest_with(config: Config, vtcr: u64) -> Self {
        let mut guest = Self::off(config);
        for cpu in 0..config.cpus {
            guest.cpu = cpu;
            guest.host();
        }
        for table in [ROOT, ROOT + 0x1000, L2, L3, OTHER, OTHER + 0x1000] {
            guest.fill(table, 512, 0, 0);
        }
        // The entry of the second root table is the 512th.
        guest.store(ROOT + 512 * 8, L2 | TABLE);
        guest.store(L2, L3 | TABLE);
        guest.store(L3, RAM | PAGE | ALL);
        guest.barrier(Barrier::DSB_SY);
        for cpu in 0..config.cpus {
            guest.cpu = cpu;
            guest.tlbi("alle1", 0);
            guest.barrier(Barrier::DSB_NSH);
            guest.register(System::VTCR_EL2, vtcr);
            guest.write(System::VTTBR_EL2, ROOT | VMID << 48);
            guest.write(System::HCR_EL2, VM);
        }
        guest.cpu = 0;
        guest.expect(&[]);
        guest
    }

    /// Turns the hypervisor's own MMU on, so that its stores go through the caches.
    fn host(&mut self) {
        self.fill(HOST, 512, 0, 0);
        self.event(Event::lines(System::DC_CIVAC, HOST, 0x1000));
        self.tlbi("alle2", 0);
        self.barrier(Barrier::DSB_SY);
        let tcr = 16 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 0b101 << 16;
        self.register(System::TCR_EL2, tcr);
        self.write(System::TTBR0_EL2, HOST);
        self.write(System::SCTLR_EL2, 0b101);
    }

    /// The whole order: by intermediate physical address, then what combines both stages.
    pub(crate) fn invalidate_guest(&mut self, name: &str, operand: u64) {
        self.barrier(Barrier::DSB_ISHST);
        self.tlbi(name, operand);
        self.barrier(Barrier::DSB_ISH);
        self.tlbi("vmalle1is", 0);
        self.barrier(Barrier::DSB_ISH);
        self.isb();
    }

    fn guest_outcomes(&self, ipa: u64, kind: AccessKind, user: bool) -> Vec<Outcome> {
        let regime = Regime::Stage2;
        let access = Access { regime, kind, user };
        self.model.outcomes(1, ipa, access)
    }

    /// The physical addresses that a read of the guest may reach, and `None` for a fault.
    fn guest_reads(&self, ipa: u64) -> Vec<Option<u64>> {
        let outcomes = self.guest_outcomes(ipa, AccessKind::Read, false);
        let address = |outcome: Outcome| match outcome {
            Outcome::Memory(translation) => Some(translation.address),
            _ => None,
        };
        outcomes.into_iter().map(address).collect()
    }
}

/// The operand of a TLBI by intermediate physical address.
pub(crate) fn at(ipa: u64) -> u64 {
    ipa >> 12
}

#[test]
fn a_guest_reads_through_concatenated_root_tables() {
    let mut guest = Rig::guest(0);
    assert_eq!(guest.guest_reads(IPA + 0x123), [Some(RAM + 0x123)]);
    assert_eq!(guest.guest_reads(IPA + 0x1000), [None]);
    // The same entry in the first root table is another address.
    assert_eq!(guest.guest_reads(0), [None]);
    assert_eq!(guest.guest_reads(1 << 40), [None]);
    guest.settle(&[]);
}

#[test]
fn stage_2_needs_both_invalidations_in_order() {
    // Steps of the way, each once left out: DSB, by address, DSB, combined, DSB.
    let mut kinds = Vec::new();
    for left_out in 0..6 {
        let mut guest = Rig::guest(0);
        guest.store(L3, RAM | PAGE | ALL & !WRITE);
        let mut step = |index: u32, what: &mut dyn FnMut(&mut Rig)| {
            if index != left_out {
                what(&mut guest);
            }
        };
        step(0, &mut |guest| guest.barrier(Barrier::DSB_ISHST));
        step(1, &mut |guest| guest.tlbi("ipas2e1is", at(IPA)));
        step(2, &mut |guest| guest.barrier(Barrier::DSB_ISH));
        step(3, &mut |guest| guest.tlbi("vmalle1is", 0));
        step(4, &mut |guest| guest.barrier(Barrier::DSB_ISH));
        guest.isb();
        guest.sync();
        let found = guest.model.violations().first().cloned();
        let miss = found.as_ref().and_then(|one| one.missed);
        kinds.push(found.map(|one| (one.rule, miss.map(|(_, miss)| miss))));
        let violations = guest.model.violations();
        let is_intermediate = |one: &Violation| one.to_string().contains(", IPA 0x8000000000");
        assert!(violations.iter().all(is_intermediate), "{violations:?}");
    }
    let stale = |miss| Some((Rule::StaleTranslation, Some(miss)));
    assert_eq!(
        kinds,
        [
            stale(Miss::StoreNotVisible),
            stale(Miss::Stage2Cached),
            stale(Miss::Stage2Cached),
            stale(Miss::Stage2Only),
            stale(Miss::NotComplete),
            None,
        ]
    );
}

#[test]
fn operations_on_a_guest_or_on_all_remove_both_at_once() {
    for (name, operand, ends) in [
        ("vmalls12e1is", 0, true),
        ("vmalls12e1os", 0, true),
        ("alle1is", 0, true),
        ("vmalls12e1", 0, false),
        ("alle1", 0, false),
        ("vmalle1is", 0, false),
        ("alle2is", 0, false),
        ("vae1is", at(IPA), false),
        ("aside1is", VMID << 48, false),
        ("ipas2e1is", at(IPA), false),
        ("ipas2e1", at(IPA), false),
    ] {
        let mut guest = Rig::guest(0);
        guest.store(L3, 0);
        guest.barrier(Barrier::DSB_ISHST);
        guest.tlbi(name, operand);
        guest.barrier(Barrier::DSB_ISH);
        guest.isb();
        guest.sync();
        assert_eq!(guest.model.violation_count() == 0, ends, "{name}");
    }
}

/// A page that was made read-only, then invalidated by `name`, and after that what is combined.
fn narrowed(ipa: u64, name: &str, operand: u64) -> bool {
    let mut guest = Rig::guest(0);
    let entry = L3 + (ipa >> 12 & 511) * 8;
    guest.make(entry, RAM | PAGE | ALL);
    guest.store(entry, RAM | PAGE | ALL & !WRITE);
    guest.invalidate_guest(name, operand);
    guest.sync();
    guest.model.violation_count() == 0
}

#[test]
fn operands_are_intermediate_addresses() {
    let ipa = IPA + 0x5000;
    let hint = |granule: u64, level: u64| at(ipa) | (granule << 2 | level) << 44;
    // NUM + 1 times 2 pages, and the granule.
    let range = |first: u64, num: u64, granule: u64| first >> 12 | num << 39 | granule << 46;
    for (name, operand, ends) in [
        ("ipas2e1is", at(ipa), true),
        ("ipas2le1is", at(ipa), true),
        ("ipas2e1os", at(ipa), true),
        // Bits 63:48 name no VMID: those of a virtual address's operand are ignored.
        ("ipas2e1is", at(ipa) | 0xffff << 48, true),
        ("ipas2e1is", at(ipa + 0x1000), false),
        ("ipas2e1is", ipa, false),
        ("ipas2e1", at(ipa), false),
        ("ipas2le1is", hint(0b01, 3), true),
        ("ipas2le1is", hint(0b01, 2), false),
        ("ipas2le1is", hint(0b10, 3), false),
        ("ripas2e1is", range(ipa - 0x1000, 0, 0b01), true),
        ("ripas2le1is", range(ipa - 0x3000, 1, 0b01), true),
        ("ripas2le1is", range(ipa - 0x3000, 0, 0b01), false),
        ("ripas2le1is", range(ipa - 0x1000, 0, 0b10), false),
        ("ripas2le1", range(ipa - 0x1000, 0, 0b01), false),
    ] {
        assert_eq!(narrowed(ipa, name, operand), ends, "{name} {operand:#x}");
    }
}

#[test]
fn a_table_is_freed_after_an_invalidation_of_all_levels() {
    for (name, rules) in [
        ("ipas2e1is", &[][..]),
        ("vmalls12e1is", &[]),
        ("ipas2le1is", &[Rule::FreedInUse]),
        // Combined entries hold no pointer to a table of stage 2, but removing them does not help.
        ("vmalle1is", &[Rule::FreedInUse]),
    ] {
        let mut guest = Rig::guest(0);
        guest.store(L2, 0);
        let operand = if name.starts_with("ipa") { at(IPA) } else { 0 };
        guest.invalidate_guest(name, operand);
        guest.event(Event::freed(L3, 0x1000));
        guest.expect(rules);
    }
}

#[test]
fn break_before_make_takes_both_invalidations() {
    for (combined_too, rules) in [(true, &[][..]), (false, &[Rule::BreakBeforeMake])] {
        let mut guest = Rig::guest(0);
        guest.store(L3, 0);
        guest.barrier(Barrier::DSB_ISHST);
        guest.tlbi("ipas2e1is", at(IPA));
        guest.barrier(Barrier::DSB_ISH);
        if combined_too {
            guest.tlbi("vmalle1is", 0);
            guest.barrier(Barrier::DSB_ISH);
        }
        guest.isb();
        guest.store(L3, (RAM + 0x10_0000) | PAGE | ALL);
        guest.expect(rules);
    }
    // In place, changes other than of permissions.
    for (new, rules) in [
        (RAM | PAGE | ALL & !READ, &[][..]),
        (RAM | PAGE | ALL | 0b10 << 53, &[]),
        (RAM | PAGE | ALL | 1 << 55, &[]),
        ((RAM + 0x1000) | PAGE | ALL, &[Rule::BreakBeforeMake]),
        (RAM | PAGE | ALL & !(1 << 2), &[Rule::BreakBeforeMake]),
        (RAM | PAGE | ALL & !(1 << 8), &[Rule::BreakBeforeMake]),
        (RAM | PAGE | ALL | CONT, &[Rule::BreakBeforeMake]),
    ] {
        let mut guest = Rig::guest(0);
        guest.store(L3, new);
        guest.barrier(Barrier::DSB_ISHST);
        let mut found = guest.rules();
        found.retain(|rule| *rule == Rule::BreakBeforeMake);
        assert_eq!(found, rules, "{new:#x}");
    }
}

#[test]
fn a_block_is_split_in_place_from_level_2_on() {
    for (level, rules) in [(0, &[Rule::BreakBeforeMake][..]), (2, &[]), (3, &[])] {
        let mut guest = Rig::guest(level);
        let block = 2 << 20;
        let entry = L2 + 8;
        guest.make(entry, RAM + block | BLOCK | ALL);
        guest.fill(OTHER, 512, RAM + block | PAGE | ALL, 0x1000);
        guest.barrier(Barrier::DSB_ISHST);
        guest.store(entry, OTHER | TABLE);
        guest.expect(rules);
    }
}

#[test]
fn guests_are_distinguished_by_vmid() {
    let mut guest = Rig::guest(0);
    // CPU 0 goes to another guest, with another VMID and nothing mapped.
    guest.write(System::VTTBR_EL2, OTHER | 8 << 48);
    guest.store(L3, 0);
    guest.invalidate_guest("ipas2e1is", at(IPA));
    guest.sync();
    let missed = guest.model.violations()[0].missed.map(|(_, miss)| miss);
    assert_eq!(missed, Some(Miss::WrongVmid));
    guest.expect(&[Rule::StaleTranslation]);
    // Back in the guest, the same operations reach it.
    let mut guest = Rig::guest(0);
    guest.write(System::VTTBR_EL2, OTHER | 8 << 48);
    guest.store(L3, 0);
    guest.write(System::VTTBR_EL2, ROOT | VMID << 48);
    guest.invalidate_guest("ipas2e1is", at(IPA));
    guest.settle(&[]);
    // Another guest under the same VMID.
    guest.store(L3, RAM | PAGE | ALL);
    guest.barrier(Barrier::DSB_ISHST);
    guest.store(OTHER + 512 * 8, (RAM + (1 << 30)) | BLOCK | ALL);
    guest.barrier(Barrier::DSB_ISHST);
    guest.register(System::VTTBR_EL2, OTHER | VMID << 48);
    // Another output address, and another size.
    guest.expect(&[Rule::BreakBeforeMake; 2]);
}

/// Two CPUs at EL2 with the VMID of an empty guest in VTTBR_EL2, after an ISB, and stage 2 off.
fn at_el2() -> Rig {
    let cpus = 2;
    let mut guest = Rig::off(Config {
        cpus,
        ..Config::default()
    });
    guest.fill(ROOT, 1024, 0, 0);
    guest.fill(OTHER, 1024, 0, 0);
    guest.event(Event::lines(System::DC_CIVAC, ROOT, 0x6000));
    guest.barrier(Barrier::DSB_SY);
    for cpu in (0..cpus).rev() {
        guest.cpu = cpu;
        guest.host();
        guest.register(System::VTCR_EL2, VTCR);
        guest.write(System::VTTBR_EL2, ROOT | VMID << 48);
    }
    guest.expect(&[]);
    guest
}

#[test]
fn a_guest_is_entered_once_its_vmid_or_all_were_invalidated() {
    let ish = Barrier::DSB_ISH;
    // The CPU that invalidates, what, and the barrier.
    for (by, name, barrier, rules) in [
        (0, "alle1", Some(Barrier::DSB_NSH), &[][..]),
        (0, "vmalls12e1", Some(Barrier::DSB_NSH), &[]),
        (0, "vmalls12e1is", Some(ish), &[]),
        (1, "vmalls12e1is", Some(ish), &[]),
        (1, "alle1is", Some(ish), &[]),
        (0, "", Some(ish), &[Rule::UnknownTlb]),
        (0, "vmalls12e1is", None, &[Rule::UnknownTlb]),
        (
            0,
            "vmalls12e1is",
            Some(Barrier::DSB_NSH),
            &[Rule::UnknownTlb],
        ),
        (1, "vmalls12e1", Some(ish), &[Rule::UnknownTlb]),
        (1, "alle1", Some(ish), &[Rule::UnknownTlb]),
        (0, "vmalle1is", Some(ish), &[Rule::UnknownTlb]),
        (0, "ipas2e1is", Some(ish), &[Rule::UnknownTlb]),
        (0, "alle2is", Some(ish), &[Rule::UnknownTlb]),
    ] {
        let mut guest = at_el2();
        guest.cpu = by;
        if !name.is_empty() {
            guest.tlbi(name, 0);
        }
        barrier
            .into_iter()
            .for_each(|barrier| guest.barrier(barrier));
        guest.cpu = 0;
        // The exception return is all that stands between the register and the guest.
        guest.register(System::HCR_EL2, VM);
        guest.expect(&[]);
        guest.event(Event::User);
        guest.expect(rules);
        // Once.
        guest.event(Event::User);
        guest.expect(&[]);
    }
}

#[test]
fn an_invalidation_is_that_of_the_vmid_in_effect() {
    let (here, there) = (ROOT | VMID << 48, OTHER | 8 << 48);
    // The VMID that is invalidated, whether it is in effect by then, and that of the guest.
    for (invalidated, isb, entered, rules) in [
        (here, true, here, &[][..]),
        (there, true, there, &[]),
        (there, true, here, &[Rule::UnknownTlb]),
        (here, true, there, &[Rule::UnknownTlb]),
        (there, false, there, &[Rule::UnknownTlb]),
    ] {
        let mut guest = at_el2();
        // Under a VMID that is nobody's, as it may be before the first guest.
        guest.write(System::HCR_EL2, VM);
        guest.register(System::VTTBR_EL2, invalidated);
        if isb {
            guest.isb();
        }
        guest.tlbi("vmalls12e1is", 0);
        guest.barrier(Barrier::DSB_ISH);
        guest.isb();
        guest.register(System::VTTBR_EL2, entered);
        guest.expect(&[]);
        guest.event(Event::User);
        guest.expect(rules);
    }
    // A CPU that was off received no TLBI, and one that was reset has an unknown TLB.
    let mut guest = at_el2();
    guest.tlbi("vmalls12e1is", 0);
    guest.barrier(Barrier::DSB_ISH);
    guest.event(Event::Reset);
    guest.host();
    guest.register(System::VTCR_EL2, VTCR);
    guest.register(System::VTTBR_EL2, here);
    guest.register(System::HCR_EL2, VM);
    guest.event(Event::User);
    guest.expect(&[Rule::UnknownTlb]);
    // The host's own programs are not a guest.
    let mut guest = at_el2();
    guest.register(System::HCR_EL2, VM | 1 << 34 | 1 << 27);
    guest.event(Event::User);
    guest.expect(&[]);
}

#[test]
fn stage_2_goes_off_while_caches_hold_code() {
    // The hypervisor's own MMU stays on.
    for (register, rules) in [
        (System::HCR_EL2, &[][..]),
        (System::SCTLR_EL2, &[Rule::NotCleaned]),
    ] {
        let mut guest = Rig::guest_with(Config::default(), VTCR);
        guest.event(Event::code(RAM, 64));
        guest.register(register, 0);
        guest.expect(rules);
    }
}

#[test]
fn the_registers_of_stage_2_take_a_tlbi() {
    // VMALLS12E1 empties one guest only; ALLE1 all.
    let mut guest = Rig::guest(0);
    guest.write(System::HCR_EL2, 0);
    guest.write(System::VTCR_EL2, VTCR + 1);
    guest.write(System::HCR_EL2, VM);
    guest.settle(&[Rule::CachedField, Rule::StaleTranslation]);

    // In place.
    let mut guest = Rig::guest(0);
    guest.register(System::VTCR_EL2, VTCR | 0b10 << 14);
    assert!(guest.rules().contains(&Rule::FieldInUse));
}

#[test]
fn a_host_that_is_not_out_of_its_own_regime_reaches_no_guest() {
    // HCR_EL2.E2H and TGE: VMALLE1 concerns EL2&0.
    let mut guest = Rig::guest(0);
    let host = 1 << 34 | 1 << 27;
    guest.write(System::HCR_EL2, VM | host);
    guest.store(L3, 0);
    guest.invalidate_guest("ipas2e1is", at(IPA));
    guest.settle(&[Rule::StaleTranslation]);
}

#[test]
fn rights_of_a_guest() {
    let mut guest = Rig::guest(0);
    use AccessKind::{Fetch, Read, Write};
    let fault = [Outcome::Fault(FaultKind::Permission)];
    // Bits besides AF, and what EL1 and EL0 may do then.
    for (index, (bits, privileged, user)) in [
        (READ | WRITE, "rwx", "rwx"),
        (READ, "r-x", "r-x"),
        (WRITE, "-w-", "-w-"),
        (0, "---", "---"),
        (READ | 0b01 << 53, "r--", "r-x"),
        (READ | 0b10 << 53, "r--", "r--"),
        (READ | 0b11 << 53, "r-x", "r--"),
        (READ | DBM, "r-x", "r-x"),
    ]
    .into_iter()
    .enumerate()
    {
        let index = index as u64 + 1;
        guest.make(L3 + index * 8, RAM | PAGE | AF | INNER | WB | bits);
        guest.cpu = 1;
        guest.isb();
        guest.cpu = 0;
        for (rights, user) in [(privileged, false), (user, true)] {
            for (kind, letter) in [(Read, 'r'), (Write, 'w'), (Fetch, 'x')] {
                let found = guest.guest_outcomes(IPA + index * 0x1000, kind, user);
                assert_eq!(
                    found != fault,
                    rights.contains(letter),
                    "{bits:#x} {kind:?}"
                );
            }
        }
    }
    guest.expect(&[]);
}

#[test]
fn hardware_makes_a_clean_page_dirty_and_a_plain_store_may_lose_it() {
    // VTCR_EL2.HA and HD.
    let mut guest = Rig::guest_with(Config::default(), VTCR | 0b11 << 21);
    let clean = RAM | PAGE | DBM | ALL & !WRITE;
    guest.make(L3 + 8, clean);
    assert!(guest.model.update_by_hardware(L3 + 8, true));
    assert_eq!(guest.model.descriptor(L3 + 8), clean | WRITE);
    assert!(!guest.model.update_by_hardware(L3, true));
    // Dirty: nothing can get lost.
    guest.store(L3 + 8, clean);
    guest.expect(&[]);
    // Clean: the store may come just after the update.
    guest.store(L3 + 8, clean | 1 << 55);
    guest.expect(&[Rule::LostUpdate]);
}

#[test]
fn sizes_that_the_architecture_does_not_have_translate_nothing() {
    let config = Config::default();
    // VTCR_EL2, and whether it is one: T0SZ and SL0 must fit, and the machine must have the size.
    let of = |ipa_bits: u64, sl0: u64| VTCR & !0xff | (64 - ipa_bits) | sl0 << 6;
    for (vtcr, config, valid) in [
        (of(40, 1), config, true),
        (of(43, 1), config, true),
        (of(44, 1), config, false),
        (of(40, 2), config, true),
        (of(39, 2), config, false),
        (of(40, 0), config, false),
        (of(30, 1), config, false),
        (
            of(40, 2),
            Config {
                pa_bits: 42,
                ..config
            },
            false,
        ),
        (
            of(40, 1),
            Config {
                pa_bits: 36,
                ..config
            },
            false,
        ),
        (of(25, 3), config, true),
        (
            of(25, 3),
            Config {
                small_tables: false,
                ..config
            },
            false,
        ),
        (of(52, 2), config, false),
        (of(52, 2) | 1 << 32, config, true),
        (of(52, 0) | 1 << 32 | 1 << 33, config, true),
    ] {
        let mut guest = Rig::off(config);
        guest.fill(ROOT, 1, RAM | BLOCK | ALL, 0);
        guest.barrier(Barrier::DSB_SY);
        guest.tlbi("alle1", 0);
        guest.barrier(Barrier::DSB_NSH);
        guest.register(System::VTCR_EL2, vtcr);
        guest.write(System::VTTBR_EL2, ROOT);
        guest.write(System::HCR_EL2, VM);
        assert_eq!(!guest.model.page_sizes().is_empty(), valid, "{vtcr:#x}");
    }
}
