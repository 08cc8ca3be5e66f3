//! Replays made-up workloads through the plugin's own collector.

use super::*;
use granule_plugin::accesses::{Block, Collector, Reader};
use granule_plugin::track::Memory;
use granule_trace::System;

/// Tables are not read: the guest's own leaves are unknown.
#[derive(Debug)]
struct Nothing;

impl Memory for Nothing {
    fn load(&self, _: u64, _: &mut [u64]) -> bool {
        false
    }
}

const LINEAR: u64 = 0xffff_0000_0000_0000;
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// 48 bits in both halves with 4K pages, ASIDs of 16 bits.
const TCR: u64 = 16 | 16 << 16 | 2 << 30 | 1 << 36;

/// A step of a made-up CPU.
#[derive(Clone, Copy)]
enum Step {
    Access(AccessKind, u64),
    Asid(u16),
    Tlbi(System, u64),
}

/// Replays the records that the collector emits for the steps.
fn replay(steps: &[Step]) -> Counted {
    let mut collector = Collector::new(Nothing);
    for (register, value) in [(System::TCR_EL1, TCR), (System::SCTLR_EL1, 1)] {
        collector.register(register, value);
    }
    let block = |first| Block {
        first,
        last: first,
        instructions: 10,
        el: u8::from(first < 1 << 63) ^ 1,
    };
    collector.block(&block(0x40_0000));
    for step in steps {
        match *step {
            Step::Access(AccessKind::Fetch, va) => collector.block(&block(va)),
            Step::Access(kind, va) => collector.access(kind, 1, va),
            Step::Asid(asid) => collector.register(System::TTBR0_EL1, u64::from(asid) << 48),
            Step::Tlbi(op, operand) => collector.invalidated(op, operand),
        }
    }
    collector.finish();
    let bytes = std::mem::take(collector.out());
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut replay = Replay::default();
    while let Some(record) = reader.next_record().unwrap() {
        replay.add(&record);
    }
    replay.finish()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A program that goes through 48 MiB in order, with a stack, code in few pages, a kernel that clears
/// each page in its linear map, and now and then another process and a TLBI.
fn workload(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut steps = Vec::new();
    let data = |va| Step::Access(AccessKind::Data, va);
    for page in 0..4000_u64 {
        let address = 0x1_0000_0000 + (page << 12);
        for _ in 0..3 {
            steps.push(Step::Access(
                AccessKind::Fetch,
                0x40_0000 + (random.below(6) << 12),
            ));
            steps.push(data(0x7fff_0000 + (random.below(3) << 12)));
            steps.push(data(address));
        }
        steps.push(Step::Access(
            AccessKind::Fetch,
            IMAGE + (random.below(40) << 12),
        ));
        steps.push(data(LINEAR + 0x4000_0000 + (page << 12)));
        steps.push(data(LINEAR + (random.below(1500) << 12)));
        match random.below(400) {
            0 => steps.push(Step::Asid(1 + random.below(3) as u16)),
            1 => {
                let asid = 1 + random.below(3);
                steps.push(Step::Tlbi(System::VALE1IS, asid << 48 | address >> 12));
            }
            2 => steps.push(Step::Tlbi(System::VMALLE1IS, 0)),
            _ => (),
        }
    }
    steps
}

/// The misses without the stream: each access goes to the model.
fn directly(steps: &[Step], cpu: &Cpu, map: Map) -> Misses {
    let mut tlbs = Tlbs::new(cpu, map.page_size);
    let mut asid = 0;
    let access = |tlbs: &mut Tlbs, kind, asid, va: u64| {
        let region = match va {
            0..0x8000_0000_0000_0000 => granule_plugin::accesses::Region::Program,
            LINEAR..0xffff_8000_0000_0000 => granule_plugin::accesses::Region::Linear,
            _ => granule_plugin::accesses::Region::Kernel,
        };
        let address = va >> 12 << 12;
        let leaf_bits = 0;
        let page = Page {
            address,
            region,
            leaf_bits,
        };
        tlbs.access(kind, Address { va: address, asid }, map.leaf_bits(&page));
    };
    access(&mut tlbs, AccessKind::Fetch, asid, 0x40_0000);
    for step in steps {
        match *step {
            Step::Access(kind, va) => access(&mut tlbs, kind, asid, va),
            Step::Asid(other) => asid = other,
            Step::Tlbi(op, operand) => {
                tlbs.invalidate(&Invalidation::of(op, operand, 12).unwrap());
            }
        }
    }
    tlbs.misses()
}

#[test]
fn no_model_can_tell_the_stream_from_all_accesses() {
    for seed in [1, 2] {
        let steps = workload(seed);
        let counted = replay(&steps);
        assert!(counted.ended && !counted.unseen);
        for row in &counted.rows {
            let expected = directly(&steps, row.cpu, row.map);
            assert_eq!(row.misses, expected, "{} {:?}", row.cpu.name, row.map);
        }
    }
}

#[test]
fn every_cpu_has_a_row_for_each_page_size_that_it_has_and_each_shape() {
    let counted = replay(&[]);
    let rows = |name: &str, page_size| {
        let rows = counted.rows.iter();
        rows.filter(|row| row.cpu.name == name && row.map.page_size == page_size)
            .count()
    };
    // Four shapes, and the guest's own with its page size.
    for (name, expected) in [
        ("cortex-a53", [5, 0, 4]),
        ("cortex-a55", [5, 4, 4]),
        ("cortex-a57", [5, 0, 4]),
        ("cortex-a72", [5, 0, 4]),
        ("cortex-a76", [5, 4, 4]),
    ] {
        assert_eq!(
            PageSize::ALL.map(|size| rows(name, size)),
            expected,
            "{name}"
        );
    }
    assert_eq!(counted.page_size, Some(PageSize::K4));
    assert_eq!(counted.instructions, 10);
}

#[test]
fn larger_leaves_never_miss_more_where_accesses_are_near_each_other() {
    let counted = replay(&workload(3));
    counted.check_order().unwrap();
    // A workload that fits into every TLB would have the order without any work.
    for cpu in CPUS {
        let of = |shape| counted.row(cpu, PageSize::K4, shape).unwrap().misses.all();
        assert!(of(Shape::Pages) > 2 * of(Shape::Contiguous), "{}", cpu.name);
        assert!(of(Shape::Pages) > of(Shape::LinearBlocks), "{}", cpu.name);
        let change = counted.linear_change(cpu, PageSize::K4).unwrap();
        assert!((-100.0..-20.0).contains(&change), "{} {change}", cpu.name);
    }
}

#[test]
fn an_order_that_is_broken_is_reported() {
    let mut counted = replay(&workload(4));
    counted.check_order().unwrap();
    let blocks = Map {
        page_size: PageSize::K4,
        shape: Shape::Blocks,
    };
    let row = counted
        .rows
        .iter_mut()
        .find(|row| row.map == blocks)
        .unwrap();
    row.misses.program += 1 << 40;
    let line = counted.check_order().unwrap_err();
    assert!(
        line.starts_with("cortex-a53: 1099") && line.contains("4k blocks"),
        "{line}"
    );
    assert!(Counted::default().check_order().is_err());
}
