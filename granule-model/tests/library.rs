//! The library on the modelled machine: its operations at random, for every page size, break no
//! rule, and after each the addresses translate as a plain map says, under every TLB content
//! that the model allows.

use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::tlbi::{Reach, TlbCapabilities, TlbiOp};
use granule::arch::{
    Attributes, CpuFeatures, Descriptor, Geometry, Half, IdRegisters, MemoryType, Page, Page4K,
    Page16K, Page64K, Permissions, PhysicalAddress, Regime as LibraryRegime, Shareability,
    VirtualAddress,
};
use granule::table::{
    BitChange, Holes, Leaves, Maintenance, PageTables, PermissionChange, TableAllocator,
    TableMemory, TableRun, Visibility,
};
use granule_model::{
    Access, Barrier, Config, Event, EventKind, FaultKind, Model, Order, Outcome, Regime, Register,
    Target, Tlbi, TlbiScope,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Table memory, barriers and TLBIs of the model.
struct Machine {
    model: Rc<RefCell<Model>>,
    can: TlbCapabilities,
    free: Vec<u64>,
    next: u64,
}

impl Machine {
    fn event(&self, kind: EventKind) {
        let event = Event { cpu: 0, kind };
        assert_eq!(self.model.borrow_mut().event(event), Ok(()));
    }
}

const fn order(visibility: Visibility) -> Order {
    match visibility {
        Visibility::Publish => Order::Release,
        _ => Order::Plain,
    }
}

// SAFETY: every entry named becomes one event of the model, which holds the memory.
unsafe impl TableMemory for Machine {
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        Descriptor(self.model.borrow().descriptor(table.0 + index as u64 * 8))
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.event(EventKind::StoreDescriptor {
            address: table.0 + index as u64 * 8,
            value: descriptor.0,
            order: order(visibility),
        });
    }

    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller's promise; no hardware updates these tables.
        unsafe {
            let old = self.load(table, index);
            self.store(table, index, descriptor, visibility);
            old
        }
    }

    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        self.event(EventKind::FillDescriptors {
            address: table.0 + first as u64 * 8,
            count: count as u64,
            first: descriptor.0,
            step,
            order: order(visibility),
        });
    }

    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let changed = (first..first + count)
            // SAFETY: the caller vouches for these entries.
            .filter(|&index| change.concerns(unsafe { self.load(table, index) }))
            .count();
        self.event(EventKind::UpdateDescriptors {
            address: table.0 + first as u64 * 8,
            count: count as u64,
            of: change.of,
            clear: change.clear,
            set: change.set,
            order: order(visibility),
        });
        changed
    }
}

// SAFETY: pages come from a counter or were freed, so nobody else has them.
unsafe impl TableAllocator for Machine {
    fn reserve(&mut self, _tables: usize) -> bool {
        true
    }

    fn allocate(&mut self, _most: usize) -> Option<TableRun> {
        let bytes = self.can.geometry.page_size().bytes();
        let page = self.free.pop().unwrap_or_else(|| {
            self.next += bytes;
            self.next
        });
        self.event(EventKind::TableObtained {
            address: page,
            bytes,
        });
        Some(TableRun {
            first: PhysicalAddress(page),
            count: 1,
        })
    }

    fn free(&mut self, table: PhysicalAddress) {
        self.event(EventKind::TableFreed {
            address: table.0,
            bytes: self.can.geometry.page_size().bytes(),
        });
        self.free.push(table.0);
    }
}

impl Maintenance for Machine {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.can
    }

    fn dsb_ishst(&mut self) {
        self.event(EventKind::Barrier(Barrier::DsbIshst));
    }

    fn dsb_ish(&mut self) {
        self.event(EventKind::Barrier(Barrier::DsbIsh));
    }

    fn isb(&mut self) {
        self.event(EventKind::Barrier(Barrier::Isb));
    }

    fn tlbi(&mut self, op: TlbiOp) {
        let (target, operand) = match op {
            TlbiOp::All => (Target::All, 0),
            TlbiOp::Asid { operand } => (Target::Asid, operand),
            TlbiOp::Address {
                operand,
                reach,
                all_asids,
            } => (
                Target::Address {
                    last_level: reach == Reach::LastLevel,
                    all_asids,
                },
                operand,
            ),
            TlbiOp::Range {
                operand,
                reach,
                all_asids,
            } => (
                Target::Range {
                    last_level: reach == Reach::LastLevel,
                    all_asids,
                },
                operand,
            ),
            other => panic!("the model does not know {other:?}"),
        };
        self.event(EventKind::Tlbi(Tlbi {
            regime: Regime::El10,
            scope: TlbiScope::InnerShareable,
            target,
            operand,
        }));
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn features() -> CpuFeatures {
    CpuFeatures::new(IdRegisters {
        midr: 0x410f_d034,
        // 52-bit physical addresses, all granules, LPA2.
        mmfr0: 6 | 0b10 << 4 | 2 << 20 | 1 << 28,
        mmfr1: 0,
        mmfr2: 1 << 16 | 1 << 28,
        isar0: 0,
    })
}

/// `steps` random operations on a tree of `va_bits`, with and without the optional TLBI forms.
fn run<P: Page>(va_bits: u32, range: bool, asid: Option<u16>, seed: u64, steps: u64) {
    let cpu = features();
    let half = if asid.is_some() {
        Half::Lower
    } else {
        Half::Upper
    };
    let regime = LibraryRegime::El1And0;
    let geometry = Geometry::new(&cpu, P::SIZE, va_bits, half, regime);
    let Ok(geometry) = geometry else {
        panic!("no {va_bits} bits with {}", P::SIZE);
    };
    let model = Rc::new(RefCell::new(Model::new(Config {
        cpus: 2,
        ..Config::default()
    })));
    let machine = Machine {
        model: Rc::clone(&model),
        can: TlbCapabilities {
            geometry,
            range,
            level_hint: range,
            repeat: false,
        },
        free: Vec::new(),
        next: 0x4000_0000,
    };
    let event = |cpu, kind| assert_eq!(model.borrow_mut().event(Event { cpu, kind }), Ok(()));
    let Ok(mut tables) = PageTables::<P, _>::new(geometry, machine) else {
        panic!("no root");
    };
    let root = tables.root();
    event(
        0,
        EventKind::Cache {
            op: granule_model::CacheOp::CleanInvalidateToPoc,
            address: root.0,
            bytes: P::SIZE.bytes(),
        },
    );
    event(0, EventKind::Barrier(Barrier::DsbSy));
    tables.set_asid(asid);
    tables.make_live();
    let (lower, upper) = match half {
        Half::Lower => (Some(&geometry), None),
        _ => (None, Some(&geometry)),
    };
    let ttbr = Ttbr::new(&geometry, root, asid.unwrap_or(0)).0;
    for cpu_number in 0..2 {
        let all = Tlbi::from_name("vmalle1", 0).map(EventKind::Tlbi);
        let write = |register, value| EventKind::RegisterWrite { register, value };
        for kind in all.into_iter().chain([
            EventKind::Barrier(Barrier::DsbNsh),
            write(Register::MairEl1, Mair::STANDARD.0),
            write(Register::TcrEl1, Tcr::new(&cpu, lower, upper).0),
            write(Register::Ttbr0El1, ttbr),
            write(Register::Ttbr1El1, ttbr),
            EventKind::Barrier(Barrier::Isb),
            write(Register::SctlrEl1, 1 | 1 << 2 | 1 << 12),
            EventKind::Barrier(Barrier::Isb),
        ]) {
            event(cpu_number, kind);
        }
    }

    // A window of pages; what each maps to, and whether it is writable.
    let page = P::SIZE.bytes();
    let pages = 3 * P::SIZE.entries() as u64;
    let base = match half {
        Half::Upper => u64::MAX << va_bits,
        _ => 0,
    };
    let mut plain: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut random = Random(seed);
    let mut done = [0; 3];
    for step in 0..steps {
        let alignment = [1, 16, P::SIZE.entries() as u64][random.below(3) as usize];
        let first = random.below(pages) / alignment * alignment;
        let count = ((1 + random.below(4)) * alignment).min(pages - first);
        let (start, bytes) = (VirtualAddress(base + first * page), count * page);
        match random.below(3) {
            0 => {
                let output = PhysicalAddress(0x10_0000_0000 + random.below(8) * pages * page);
                let writable = random.below(2) == 0;
                let permissions = if writable {
                    Permissions::READ_WRITE
                } else {
                    Permissions::READ
                };
                let leaves = if random.below(2) == 0 {
                    Leaves::LARGEST
                } else {
                    Leaves::PAGES
                };
                let attributes = Attributes {
                    memory: MemoryType::Normal,
                    shareability: Shareability::Inner,
                    permissions,
                    global: asid.is_none(),
                    accessed: true,
                };
                let output = PhysicalAddress(output.0 + first * page);
                if tables.map(start, output, bytes, attributes, leaves).is_ok() {
                    done[0] += 1;
                    for index in 0..count {
                        plain.insert(first + index, (output.0 + index * page, writable));
                    }
                }
            }
            1 => {
                if tables.unmap(start, bytes).is_ok() {
                    done[1] += 1;
                    plain.retain(|at, _| *at < first || *at >= first + count);
                }
            }
            _ => {
                let writable = random.below(2) == 0;
                let change = PermissionChange {
                    writable: Some(writable),
                    ..PermissionChange::default()
                };
                if tables.protect(start, bytes, change, Holes::Skip).is_ok() {
                    done[2] += 1;
                    for (_, value) in plain.range_mut(first..first + count) {
                        value.1 = writable;
                    }
                }
            }
        }
        event(0, EventKind::Sync);
        event(1, EventKind::Barrier(Barrier::Isb));
        let model = model.borrow();
        let text: Vec<String> = model.violations().iter().map(ToString::to_string).collect();
        assert!(text.is_empty(), "seed {seed:#x} step {step}: {text:#?}");
        for _ in 0..8 {
            let at = random.below(pages);
            let offset = random.below(page);
            let va = base + at * page + offset;
            for cpu in 0..2 {
                let outcomes = model.outcomes(cpu, va, Access::WRITE);
                let right = match (plain.get(&at), &outcomes[..]) {
                    (Some(&(output, true)), [Outcome::Memory(found)]) => {
                        found.address == output + offset && found.memory == 0xff
                    }
                    (Some((_, false)), [Outcome::Fault(FaultKind::Permission)])
                    | (None, [Outcome::Fault(FaultKind::Translation)]) => true,
                    _ => false,
                };
                assert!(
                    right,
                    "seed {seed:#x} step {step} {va:#x}: {:?}, {outcomes:?}",
                    plain.get(&at)
                );
            }
        }
    }
    assert!(
        done.iter().all(|&times| times > 3),
        "too little was done: {done:?}"
    );
}

#[test]
fn kernel_tables_of_4k() {
    for (va_bits, range, seed) in [(39, false, 1), (48, true, 2), (52, true, 3)] {
        run::<Page4K>(va_bits, range, None, seed, 300);
    }
}

#[test]
fn kernel_tables_of_16k() {
    for (va_bits, range, seed) in [(36, false, 4), (47, true, 5), (52, true, 6)] {
        run::<Page16K>(va_bits, range, None, seed, 100);
    }
}

#[test]
fn kernel_tables_of_64k() {
    for (va_bits, range, seed) in [(42, false, 7), (48, true, 8), (52, true, 9)] {
        run::<Page64K>(va_bits, range, None, seed, 60);
    }
}

#[test]
fn process_tables() {
    run::<Page4K>(48, true, Some(7), 10, 200);
    run::<Page16K>(47, false, Some(7), 11, 60);
}
