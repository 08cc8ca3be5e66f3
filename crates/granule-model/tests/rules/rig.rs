//! A small machine: 4K pages, 48-bit addresses, one tree for the upper half, ready to be
//! changed.

use granule_model::{
    Access, Barrier, BitChange, Config, Event, Model, Outcome, Rule, System, Visibility,
};

/// Tables of the tree: levels 0 to 3.
pub(crate) const L0: u64 = 0x4000_0000;
pub(crate) const L1: u64 = 0x4000_1000;
pub(crate) const L2: u64 = 0x4000_2000;
pub(crate) const L3: u64 = 0x4000_3000;
/// A table that is not linked.
pub(crate) const SPARE: u64 = 0x4000_4000;
/// The first address of the upper half, which the tree translates.
pub(crate) const VA: u64 = 0xffff_0000_0000_0000;
/// The memory that pages map to.
pub(crate) const RAM: u64 = 0x8000_0000;

pub(crate) const PAGE: u64 = 0b11;
pub(crate) const BLOCK: u64 = 0b01;
pub(crate) const TABLE: u64 = 0b11;
pub(crate) const AF: u64 = 1 << 10;
pub(crate) const INNER: u64 = 0b11 << 8;
pub(crate) const RO: u64 = 1 << 7;
pub(crate) const NON_SECURE: u64 = 1 << 5;
pub(crate) const NG: u64 = 1 << 11;
pub(crate) const NT: u64 = 1 << 16;
pub(crate) const GUARDED: u64 = 1 << 50;
pub(crate) const CONT: u64 = 1 << 52;
pub(crate) const XN: u64 = 0b11 << 53;
/// Normal memory, read-write, not executable.
pub(crate) const RW: u64 = AF | INNER | XN;
/// MAIR index 1: Device.
pub(crate) const DEVICE: u64 = 1 << 2;

pub(crate) const MAIR: u64 = 0x44_04_ff;
/// 4K in both halves, 48 bits, 48-bit output, cached walks, 16-bit ASIDs.
pub(crate) const TCR: u64 = 16
    | 0b01 << 8
    | 0b01 << 10
    | 0b11 << 12
    | 16 << 16
    | 0b01 << 24
    | 0b01 << 26
    | 0b11 << 28
    | 0b10 << 30
    | 0b101 << 32
    | 1 << 36;
pub(crate) const EPD0: u64 = 1 << 7;
/// M, C, I.
pub(crate) const MMU_ON: u64 = 1 | 1 << 2 | 1 << 12;

pub(crate) struct Rig {
    pub(crate) model: Model,
    pub(crate) cpu: u32,
}

impl Rig {
    /// A machine of two CPUs with a BBM level that walk the same empty tree.
    pub(crate) fn new(bbm_level: u8) -> Self {
        Self::with(Config { bbm_level, ..two() })
    }

    pub(crate) fn with(config: Config) -> Self {
        let mut rig = Self::off(config);
        rig.fill(L0, 512, 0, 0);
        rig.fill(L1, 512, 0, 0);
        rig.fill(L2, 512, 0, 0);
        rig.fill(L3, 512, 0, 0);
        rig.store(L0, L1 | TABLE);
        rig.store(L1, L2 | TABLE);
        rig.store(L2, L3 | TABLE);
        rig.clean(L0, 0x4000);
        for cpu in 0..config.cpus {
            rig.cpu = cpu;
            rig.turn_on(TCR | EPD0, 0, L0);
        }
        rig.cpu = 0;
        rig.expect(&[]);
        rig
    }

    /// A machine with its MMU off, and a tree with one page in memory. The table behind it is empty.
    pub(crate) fn with_page(page: u64) -> Self {
        let mut rig = Self::off(Config::default());
        rig.fill(L0, 5 * 512, 0, 0);
        rig.store(L3, page);
        for table in [L2, L1, L0] {
            rig.store(table, (table + 0x1000) | TABLE);
        }
        rig.clean(L0, 0x5000);
        rig
    }

    /// EL2 without VHE, so with one half: the MMU is on, by the tree at [`L0`] that is in memory.
    pub(crate) fn turn_on_el2(&mut self) {
        self.tlbi("alle2", 0);
        self.barrier(Barrier::DSB_NSH);
        self.register(System::MAIR_EL2, MAIR);
        self.register(System::TCR_EL2, TCR & 0x3fff | 0b101 << 16);
        self.write(System::TTBR0_EL2, L0);
        self.write(System::SCTLR_EL2, MMU_ON);
        self.expect(&[]);
    }

    /// A chain of four tables at `base`, the first entry of each leading to the next; the last is empty.
    pub(crate) fn chain(&mut self, base: u64) {
        self.fill(base, 4 * 512, 0, 0);
        for table in [base, base + 0x1000, base + 0x2000] {
            self.store(table, (table + 0x1000) | TABLE);
        }
    }

    /// A machine that nothing was done to.
    pub(crate) fn off(config: Config) -> Self {
        Self {
            model: Model::new(config),
            cpu: 0,
        }
    }

    /// Turns the MMU on, as it should be.
    pub(crate) fn turn_on(&mut self, tcr: u64, ttbr0: u64, ttbr1: u64) {
        self.tlbi("vmalle1", 0);
        self.barrier(Barrier::DSB_NSH);
        self.register(System::MAIR_EL1, MAIR);
        self.register(System::TCR_EL1, tcr);
        self.register(System::TTBR0_EL1, ttbr0);
        self.register(System::TTBR1_EL1, ttbr1);
        self.isb();
        self.register(System::SCTLR_EL1, MMU_ON);
        self.isb();
    }

    pub(crate) fn event(&mut self, kind: Event) {
        assert_eq!(self.model.event(self.cpu, kind), Ok(()));
    }

    pub(crate) fn register(&mut self, register: System, value: u64) {
        self.event(Event::System(register, value));
    }

    /// Writes a register, and makes the write take effect.
    pub(crate) fn write(&mut self, register: System, value: u64) {
        self.register(register, value);
        self.isb();
    }

    pub(crate) fn store(&mut self, address: u64, value: u64) {
        self.event(Event::store(address, value));
    }

    /// Stores an entry, and makes the store take effect.
    pub(crate) fn make(&mut self, address: u64, value: u64) {
        self.store(address, value);
        self.publish();
    }

    pub(crate) fn release(&mut self, address: u64, value: u64) {
        self.event(Event::Store {
            address,
            count: 1,
            descriptor: value,
            step: 0,
            visibility: Visibility::Publish,
        });
    }

    pub(crate) fn fill(&mut self, address: u64, count: u32, first: u64, step: u64) {
        self.event(Event::fill(address, count, first, step));
    }

    /// Changes bits of the valid ones.
    pub(crate) fn update(&mut self, address: u64, count: u32, clear: u64, set: u64) {
        self.event(Event::Update {
            address,
            count,
            change: BitChange { of: 1, clear, set },
            visibility: Visibility::Live,
        });
    }

    pub(crate) fn barrier(&mut self, barrier: Barrier) {
        self.event(Event::Barrier(barrier));
    }

    pub(crate) fn isb(&mut self) {
        self.barrier(Barrier::ISB);
    }

    pub(crate) fn tlbi(&mut self, name: &str, operand: u64) {
        let Some(op) = System::from_name(name) else {
            panic!("there is no tlbi {name}");
        };
        self.event(Event::System(op, operand));
    }

    /// Cleans and invalidates the lines of tables, or of other memory.
    pub(crate) fn clean(&mut self, start: u64, bytes: u64) {
        self.event(Event::lines(System::DC_CIVAC, start, bytes));
        self.barrier(Barrier::DSB_SY);
    }

    /// Invalidates all of EL1&0 on this CPU.
    pub(crate) fn flush(&mut self) {
        self.tlbi("vmalle1", 0);
        self.barrier(Barrier::DSB_NSH);
        self.isb();
    }

    /// Makes stores to invalid entries take effect: DSB ISHST, ISB.
    pub(crate) fn publish(&mut self) {
        self.barrier(Barrier::DSB_ISHST);
        self.isb();
    }

    /// DSB ISHST, a TLBI, DSB ISH, ISB.
    pub(crate) fn invalidate(&mut self, name: &str, operand: u64) {
        self.barrier(Barrier::DSB_ISHST);
        self.tlbi(name, operand);
        self.barrier(Barrier::DSB_ISH);
        self.isb();
    }

    pub(crate) fn sync(&mut self) {
        self.event(Event::Settled);
    }

    /// The rules that were broken, in order.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        self.model.violations().iter().map(|one| one.rule).collect()
    }

    /// Exactly these rules were broken, in this order; forgets them.
    #[track_caller]
    pub(crate) fn expect(&mut self, rules: &[Rule]) {
        assert_eq!(self.rules(), rules, "{:#?}", self.model.violations());
        self.model.clear_violations();
    }

    /// This rule was broken once, and no other, unless all is legal.
    #[track_caller]
    pub(crate) fn expect_unless(&mut self, legal: bool, rule: Rule) {
        self.expect(if legal {
            &[]
        } else {
            std::slice::from_ref(&rule)
        });
    }

    /// Everything is relied on, by which exactly these rules are broken.
    #[track_caller]
    pub(crate) fn settle(&mut self, rules: &[Rule]) {
        self.sync();
        self.expect(rules);
    }

    /// A read by CPU `cpu` may go to these physical addresses, or fault (`None`).
    #[track_caller]
    pub(crate) fn reads(&self, cpu: u32, va: u64, expected: &[Option<u64>]) {
        let mut found: Vec<Option<u64>> = self
            .model
            .outcomes(cpu, va, Access::READ)
            .into_iter()
            .map(|outcome| match outcome {
                Outcome::Memory(translation) => Some(translation.address),
                Outcome::Fault(_) => None,
                Outcome::Conflict => Some(u64::MAX),
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

/// A machine of two CPUs.
pub(crate) fn two() -> Config {
    Config {
        cpus: 2,
        ..Config::default()
    }
}

/// The operand of a TLBI by address.
pub(crate) fn at(va: u64) -> u64 {
    (va >> 12) & 0x0fff_ffff_ffff
}
