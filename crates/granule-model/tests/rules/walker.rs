//! The walk, for every page size and address size, against numbers of the architecture.

use crate::rig::{AF, MMU_ON, Rig};
use granule_model::{
    Access, AccessKind, Config, FaultKind, Model, Outcome, Regime, Rights, System,
};

/// The bits of address below an entry, for each level from the top one down.
struct Shape {
    granule: u32,
    tg0: u64,
    tg1: u64,
    va_bits: u32,
    ds: bool,
    shifts: &'static [u32],
    /// The first of these levels that may hold blocks, counted from 0 like `shifts`.
    first_block: usize,
}

const K4: (u32, u64, u64) = (12, 0b00, 0b10);
const K16: (u32, u64, u64) = (14, 0b10, 0b01);
const K64: (u32, u64, u64) = (16, 0b01, 0b11);

const fn shape(
    (granule, tg0, tg1): (u32, u64, u64),
    va_bits: u32,
    ds: bool,
    shifts: &'static [u32],
    first_block: usize,
) -> Shape {
    Shape {
        granule,
        tg0,
        tg1,
        va_bits,
        ds,
        shifts,
        first_block,
    }
}

const SHAPES: &[Shape] = &[
    shape(K4, 36, false, &[30, 21, 12], 0),
    shape(K4, 39, false, &[30, 21, 12], 0),
    shape(K4, 42, false, &[39, 30, 21, 12], 1),
    shape(K4, 47, false, &[39, 30, 21, 12], 1),
    shape(K4, 48, false, &[39, 30, 21, 12], 1),
    shape(K4, 48, true, &[39, 30, 21, 12], 0),
    shape(K4, 52, true, &[48, 39, 30, 21, 12], 1),
    shape(K16, 36, false, &[25, 14], 0),
    shape(K16, 39, false, &[36, 25, 14], 1),
    shape(K16, 47, false, &[36, 25, 14], 1),
    shape(K16, 48, false, &[47, 36, 25, 14], 2),
    shape(K16, 52, true, &[47, 36, 25, 14], 1),
    shape(K64, 36, false, &[29, 16], 0),
    shape(K64, 42, false, &[29, 16], 0),
    shape(K64, 48, false, &[42, 29, 16], 0),
    shape(K64, 52, false, &[42, 29, 16], 0),
];

const TABLES: u64 = 0x4000_0000;

impl Shape {
    /// Both halves alike. Output sizes of 52 bits where the format has them.
    fn tcr(&self) -> u64 {
        let size = u64::from(64 - self.va_bits);
        let walks = 0b01 << 8 | 0b01 << 10 | 0b11 << 12;
        let output = if self.wide() { 0b110 } else { 0b101 };
        size | size << 16
            | walks
            | walks << 16
            | self.tg0 << 14
            | self.tg1 << 30
            | output << 32
            | u64::from(self.ds) << 59
    }

    fn wide(&self) -> bool {
        self.ds || self.granule == 16
    }

    /// An output address in a descriptor.
    fn address(&self, address: u64) -> u64 {
        if self.ds {
            (address & ((1 << 50) - 1)) | ((address >> 50) & 0b11) << 8
        } else if self.granule == 16 {
            (address & ((1 << 48) - 1)) | ((address >> 48) & 0b1111) << 12
        } else {
            address
        }
    }

    /// A machine with `va` mapped to `to` by a leaf at a depth, in the half that `va` is in.
    fn machine(&self, va: u64, to: u64, depth: usize, attributes: u64) -> Model {
        let mut rig = Rig::off(Config::default());
        let table = |depth: usize| TABLES + ((depth as u64) << self.granule);
        for level in 0..=depth {
            let above = if level == 0 {
                self.va_bits
            } else {
                self.shifts[level - 1]
            };
            let index = (va & ((1 << above) - 1)) >> self.shifts[level];
            let value = if level < depth {
                self.address(table(level + 1)) | 0b11
            } else {
                let leaf = if level + 1 == self.shifts.len() {
                    0b11
                } else {
                    0b01
                };
                self.address(to >> self.shifts[level] << self.shifts[level]) | leaf | attributes
            };
            rig.store(table(level) + index * 8, value);
        }
        rig.clean(TABLES, 8 << self.granule);
        rig.turn_on(self.tcr(), TABLES, TABLES);
        rig.expect(&[]);
        rig.model
    }

    /// Addresses of both halves, the first, the last and one between.
    fn addresses(&self) -> Vec<u64> {
        let top = (1u64 << self.va_bits) - 1;
        let between = 0x0005_a5a5_a5a5_a5a5 & top;
        let upper = u64::MAX << self.va_bits;
        [0, between, top]
            .into_iter()
            .flat_map(|va| [va, upper | va])
            .collect()
    }
}

fn reads_to(model: &Model, va: u64) -> Result<u64, FaultKind> {
    match model.outcomes(0, va, Access::READ)[..] {
        [Outcome::Memory(translation)] => Ok(translation.address),
        [Outcome::Fault(kind)] => Err(kind),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn every_level_of_every_shape_translates() {
    for shape in SHAPES {
        for va in shape.addresses() {
            for depth in 0..shape.shifts.len() {
                let to: u64 = if shape.wide() {
                    0x000d_cba9_8765_4321
                } else {
                    0x0000_cba9_8765_4321
                };
                let model = shape.machine(va, to, depth, AF);
                let size = 1u64 << shape.shifts[depth];
                let expected = if depth >= shape.first_block {
                    Ok((to & !(size - 1)) | (va & (size - 1)))
                } else {
                    Err(FaultKind::Translation)
                };
                assert_eq!(
                    reads_to(&model, va),
                    expected,
                    "granule {} va bits {} ds {} depth {depth} va {va:#x}",
                    shape.granule,
                    shape.va_bits,
                    shape.ds
                );
                // The entry next to it translates nothing.
                let other = va ^ size;
                if size < 1 << shape.va_bits && depth >= shape.first_block {
                    assert_eq!(reads_to(&model, other), Err(FaultKind::Translation));
                }
            }
        }
    }
}

#[test]
fn addresses_outside_of_the_halves_fault() {
    for shape in SHAPES.iter().filter(|shape| shape.va_bits < 52) {
        let model = shape.machine(0, 0x8000_0000, shape.shifts.len() - 1, AF);
        assert_eq!(
            reads_to(&model, 1 << shape.va_bits),
            Err(FaultKind::Translation)
        );
        assert_eq!(
            reads_to(&model, !(1 << shape.va_bits)),
            Err(FaultKind::Translation)
        );
        // Without TBI the top byte counts.
        assert_eq!(reads_to(&model, 0x0100 << 48), Err(FaultKind::Translation));
    }
}

#[test]
fn access_flag_and_output_size_fault() {
    let four_k = &SHAPES[4];
    let model = four_k.machine(0, 0x8000_0000, 3, 0);
    assert_eq!(reads_to(&model, 0), Err(FaultKind::AccessFlag));
    // 4K without DS has 48 bits; a machine with fewer faults beyond them.
    let mut rig = Rig::off(Config {
        pa_bits: 40,
        ..Config::default()
    });
    rig.store(TABLES, 1 << 40 | 0b01 | AF);
    rig.write(System::TCR_EL1, 25 | 0b101 << 32 | 1 << 23);
    rig.write(System::TTBR0_EL1, TABLES);
    rig.write(System::SCTLR_EL1, MMU_ON);
    assert_eq!(reads_to(&rig.model, 0), Err(FaultKind::AddressSize));
}

/// AP[2:1], PXN, UXN, the table's bits 62:59; what EL1 and EL0 may do (r, w, x).
const PERMISSIONS: &[(u64, bool, bool, u64, &str, &str)] = &[
    (0b00, false, false, 0, "rwx", "--x"),
    (0b00, false, true, 0, "rwx", "---"),
    (0b00, true, true, 0, "rw-", "---"),
    (0b01, false, false, 0, "rw-", "rwx"),
    (0b01, true, true, 0, "rw-", "rw-"),
    (0b10, false, true, 0, "r-x", "---"),
    (0b10, true, false, 0, "r--", "--x"),
    (0b11, false, false, 0, "r-x", "r-x"),
    (0b11, true, true, 0, "r--", "r--"),
    // PXNTable, UXNTable, APTable[0] (no EL0), APTable[1] (read-only).
    (0b01, false, false, 0b0001, "rw-", "rwx"),
    (0b11, false, false, 0b0001, "r--", "r-x"),
    (0b11, false, false, 0b0010, "r-x", "r--"),
    (0b01, true, true, 0b0100, "rw-", "---"),
    (0b01, false, true, 0b1000, "r-x", "r--"),
    (0b00, true, true, 0b1000, "r--", "---"),
];

fn text(rights: Rights) -> String {
    [
        (rights.read, 'r'),
        (rights.write, 'w'),
        (rights.execute, 'x'),
    ]
    .into_iter()
    .map(|(allowed, letter)| if allowed { letter } else { '-' })
    .collect()
}

#[test]
fn permissions_are_those_of_the_leaf_and_the_tables_above() {
    let shape = &SHAPES[1];
    for &(ap, pxn, uxn, limits, kernel, user) in PERMISSIONS {
        let attributes = AF | ap << 6 | u64::from(pxn) << 53 | u64::from(uxn) << 54;
        let model = shape.machine(0, 0x8000_0000, 2, attributes);
        let mut rig = Rig { model, cpu: 0 };
        // The level 1 entry is the first of the top table.
        let table = rig.model.descriptor(TABLES);
        rig.store(TABLES, table | limits << 59);
        rig.invalidate("vmalle1is", 0);
        for (kind, letter) in [
            (AccessKind::Read, 'r'),
            (AccessKind::Write, 'w'),
            (AccessKind::Fetch, 'x'),
        ] {
            for (user, rights) in [(false, kernel), (true, user)] {
                let what = format!("{ap:#b} {pxn} {uxn} {limits:#b} {letter}");
                let regime = Regime::El10;
                let outcomes = rig.model.outcomes(0, 0, Access { regime, kind, user });
                if !rights.contains(letter) {
                    assert_eq!(outcomes, [Outcome::Fault(FaultKind::Permission)], "{what}");
                    continue;
                }
                let [Outcome::Memory(found)] = outcomes[..] else {
                    panic!("{what}: {outcomes:?}");
                };
                let found = if user { found.user } else { found.privileged };
                assert_eq!(text(found), rights, "{what}");
            }
        }
    }
}

#[test]
fn shareability_is_the_leafs_or_with_ds_the_registers() {
    for (ds, expected) in [(false, 0b10), (true, 0b11)] {
        let shape = SHAPES
            .iter()
            .find(|shape| shape.granule == 12 && shape.va_bits == 48 && shape.ds == ds)
            .unwrap();
        let leaf = if ds { AF } else { AF | 0b10 << 8 };
        let model = shape.machine(0, 0x8000_0000, 3, leaf);
        let [Outcome::Memory(translation)] = model.outcomes(0, 0, Access::READ)[..] else {
            panic!("no translation");
        };
        assert_eq!(translation.shareability, expected);
        assert_eq!(translation.memory, 0xff);
    }
}
