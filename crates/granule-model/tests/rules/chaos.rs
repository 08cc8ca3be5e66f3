//! Events without sense: whatever a trace contains, the model goes on.

use crate::rig::*;
use granule_model::{
    Access, AccessKind, Barrier, BitChange, Config, Event, Model, Regime, System, Visibility,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }

    /// Any bits, few of them set, or many.
    fn bits(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next(),
            1 => self.next() & self.next() & self.next(),
            2 => self.next() | self.next() | self.next(),
            _ => 1 << (self.next() % 64),
        }
    }

    /// A place in one of a few tables, at its beginning or end.
    fn place(&mut self) -> u64 {
        let table = self.one_of(&[
            0x10_0000,
            0x11_0000,
            0x12_0000,
            0x13_0000,
            0xf_ffff_ffff_0000,
        ]);
        table + self.one_of(&[0, 8, 0x70, 0xff8, 0x1_0000 - 8])
    }

    fn descriptor(&mut self) -> u64 {
        let to = self.one_of(&[0x10_0000, 0x11_0000, 0x12_0000, 0x13_0000, RAM]);
        let attributes = self.one_of(&[0, AF, RW, RW | RO, RW | CONT, RW | NG, NT | RW, DEVICE]);
        match self.next() % 8 {
            0 => 0,
            1 => self.bits(),
            2..=4 => to | TABLE,
            5 => to | BLOCK | attributes,
            _ => to | PAGE | attributes,
        }
    }

    fn tcr(&mut self) -> u64 {
        let sizes = self.one_of(&[12, 16, 25, 28, 39, 47, 48, 5, 63]);
        let granules = self.one_of(&[0b10 << 30, 0b01 << 14 | 0b11 << 30, 0b10 << 14 | 0b01 << 30]);
        sizes | sizes << 16 | granules | self.one_of(&[0, 1 << 59, EPD0, 1 << 23, 1 << 39, 7 << 32])
    }

    /// A register or instruction of a kind.
    fn named(&mut self, kind: fn(System) -> bool) -> System {
        let all: Vec<System> = System::NAMED
            .iter()
            .map(|(system, _)| *system)
            .filter(|system| kind(*system))
            .collect();
        self.one_of(&all)
    }

    fn event(&mut self) -> Event {
        let order = self.one_of(&[Visibility::Live, Visibility::Publish]);
        let address = self.place();
        match self.next() % 32 {
            0 => Event::Reset,
            1..=3 => {
                let register = self.named(System::is_register);
                let value = match self.next() % 4 {
                    0 => self.bits(),
                    1 => self.tcr(),
                    2 => self.place() | self.next() << 60,
                    _ => MMU_ON,
                };
                Event::System(register, value)
            }
            4 => Event::System(System::SCTLR_EL1, MMU_ON),
            5 => Event::System(System::TCR_EL1, self.tcr()),
            6 => Event::Store {
                address,
                count: self.next() as u32 % 3,
                descriptor: self.descriptor(),
                step: self.one_of(&[0, 0x1000, 0x1_0000]),
                visibility: order,
            },
            7 => Event::Update {
                address,
                count: self.next() as u32 % 3,
                change: BitChange {
                    of: self.one_of(&[1, 1 << 63, 1 << 63 | 1]),
                    clear: self.bits(),
                    set: self.bits() & !0xffff_ffff_f000,
                },
                visibility: order,
            },
            8 => Event::code(address, self.next() % 256),
            9 => Event::lines(
                self.named(System::is_data_cache),
                address,
                self.next() % 0x2_0000,
            ),
            10 => Event::System(self.one_of(&[System::IC_IALLU, System::IC_IALLUIS]), 0),
            11 => Event::obtained(address & !0xffff, 0x1_0000),
            12 => Event::freed(address & !0xffff, self.one_of(&[0, 0x1000, 0x1_0000])),
            13 => Event::assume_visible(self.bits(), self.next() % 0x10_0000),
            14 => Event::Settled,
            15..=18 => {
                let name = self.one_of(&[
                    "vmalle1",
                    "vmalle1is",
                    "vae1is",
                    "vaale1",
                    "rvaae1is",
                    "rvale1",
                    "aside1is",
                    "vae2is",
                    "rvae3is",
                    "alle3",
                ]);
                System::from_name(name).map_or(Event::Settled, |op| Event::System(op, self.bits()))
            }
            19..=22 => Event::Barrier(self.one_of(&Barrier::NAMED)),
            _ => Event::Store {
                address,
                count: 1,
                descriptor: self.descriptor(),
                step: 0,
                visibility: order,
            },
        }
    }
}

#[test]
fn no_event_stops_the_model() {
    for seed in 1..=24u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut model = Model::new(Config {
            cpus: 3,
            bbm_level: (seed % 4) as u8,
            strict: seed.is_multiple_of(2),
            most_violations: 10,
            pa_bits: if seed.is_multiple_of(3) { 40 } else { 52 },
            ..Config::default()
        });
        for _ in 0..1500 {
            let cpu = (random.next() % 4) as u32;
            let kind = random.event();
            // There is no CPU 3, and memory ends at 52 bits.
            let taken = model.event(cpu, kind).is_ok();
            assert!(cpu < 3 || !taken);
            let access = Access {
                regime: random.one_of(&[Regime::El10, Regime::El2, Regime::El3]),
                kind: random.one_of(&[AccessKind::Read, AccessKind::Write, AccessKind::Fetch]),
                user: random.next().is_multiple_of(2),
            };
            let va = random.one_of(&[0, VA, u64::MAX, random.0]);
            let outcomes = model.access(cpu, va, access);
            assert_eq!(outcomes.is_empty(), cpu == 3);
        }
        assert!(model.violation_count() > 0, "seed {seed}");
    }
}
