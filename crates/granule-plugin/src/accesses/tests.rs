//! Tests of the stream of a CPU with tables in test memory, without QEMU.

use super::*;
use std::collections::HashMap;

const ROOT: u64 = 0x4000_1000;
/// 39 bits in both halves with 4K pages, ASIDs of 16 bits.
const TCR: u64 = 25 | 25 << 16 | 2 << 30 | 0b101 << 32 | 1 << 36;
const LINEAR: u64 = 0xffff_ff80_0000_0000;
const IMAGE: u64 = 0xffff_ffff_8000_0000;

#[derive(Clone, Default)]
struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        for (index, word) in to.iter_mut().enumerate() {
            let at = address + index as u64 * 8;
            *word = self.0.get(&at).copied().unwrap_or_default();
        }
        true
    }
}

/// A CPU with its MMU on. The first GiB of both halves is a block; the second has a page and a
/// contiguous group of pages, at 0 and 64 KiB.
fn collector() -> Collector<Words> {
    let (level2, level3) = (ROOT + 0x1000, ROOT + 0x2000);
    let mut words = Words::default();
    words.0.insert(ROOT, 0x8000_0701);
    words.0.insert(ROOT + 8, level2 | 3);
    words.0.insert(level2, level3 | 3);
    words.0.insert(level3, 0x9000_0703);
    words.0.insert(level3 + 17 * 8, 0x9001_1703 | 1 << 52);
    let mut collector = Collector::new(words);
    collector.register(System::TCR_EL1, TCR);
    collector.register(System::TTBR0_EL1, ROOT | 7 << 48);
    collector.register(System::TTBR1_EL1, ROOT);
    collector.register(System::SCTLR_EL1, 1);
    collector
}

const fn block(first: u64, el: u8) -> Block {
    Block {
        first,
        last: first + 4,
        instructions: 2,
        el,
    }
}

fn records(collector: &mut Collector<Words>) -> Vec<AccessRecord> {
    let bytes = std::mem::take(collector.out());
    let mut reader = Reader::new(&bytes[..]).unwrap();
    std::iter::from_fn(|| reader.next_record().unwrap()).collect()
}

fn whats(collector: &mut Collector<Words>) -> Vec<What> {
    records(collector)
        .iter()
        .map(|record| record.what)
        .collect()
}

const fn page(address: u64, region: Region, leaf_bits: u8) -> Page {
    Page {
        address,
        region,
        leaf_bits,
    }
}

#[test]
fn the_stream_begins_with_the_first_program_and_has_leaf_sizes() {
    let mut cpu = collector();
    cpu.block(&block(IMAGE, 1));
    cpu.access(AccessKind::Data, 1, LINEAR + 0x5000);
    cpu.block(&block(0x1000, 0));
    cpu.access(AccessKind::Data, 0, 0x4000_0000);
    cpu.access(AccessKind::Data, 0, 0x4001_1008);
    // A tag in the highest byte is not part of the address.
    cpu.access(AccessKind::Data, 0, 0x5500_0000_4000_0000);
    cpu.access(AccessKind::Data, 1, LINEAR + 0x6008);
    cpu.block(&block(IMAGE + 0xffc, 1));
    cpu.finish();
    let data = |page| What::Access(AccessKind::Data, page);
    let fetch = |page| What::Access(AccessKind::Fetch, page);
    assert_eq!(
        whats(&mut cpu),
        [
            What::Begin(12),
            What::Asid(7),
            fetch(page(0x1000, Region::Program, 30)),
            data(page(0x4000_0000, Region::Program, 12)),
            data(page(0x4001_1000, Region::Program, 16)),
            data(page(LINEAR + 0x6000, Region::Linear, 30)),
            fetch(page(IMAGE, Region::Kernel, 0)),
            fetch(page(IMAGE + 0x1000, Region::Kernel, 0)),
            What::End { unseen: false },
        ]
    );
}

#[test]
fn physical_addresses_are_not_translated() {
    let mut cpu = Collector::new(Words::default());
    cpu.block(&block(0x1000, 0));
    cpu.block(&block(0x1000, 3));
    cpu.finish();
    assert_eq!(whats(&mut cpu), [What::End { unseen: false }]);
    let mut cpu = collector();
    cpu.block(&block(0x1000, 0));
    cpu.access(AccessKind::Data, 3, 0x9000_0000);
    cpu.access(AccessKind::Data, 2, 0x9000_0000);
    assert_eq!(whats(&mut cpu).len(), 3);
}

#[test]
fn another_asid_and_a_tlbi_forget_the_pages_and_record_their_order() {
    let mut cpu = collector();
    cpu.block(&block(0x1000, 0));
    let go = |cpu: &mut Collector<Words>| {
        for at in [0x2000, 0x3000, 0x2000] {
            cpu.access(AccessKind::Data, 0, at);
        }
    };
    go(&mut cpu);
    // The same ASID again emits nothing.
    cpu.register(System::TTBR0_EL1, ROOT | 7 << 48);
    cpu.register(System::TTBR0_EL1, ROOT | 8 << 48);
    go(&mut cpu);
    cpu.invalidated(System::VMALLE1IS, 0);
    go(&mut cpu);
    let records = records(&mut cpu);
    let kinds: Vec<_> = records.iter().skip(3).map(|record| record.what).collect();
    let data = |address| What::Access(AccessKind::Data, page(address, Region::Program, 30));
    let pair = [data(0x2000), data(0x3000)];
    let all = [
        &pair[..],
        &[What::Asid(8)],
        &pair,
        &[What::Tlbi(System::VMALLE1IS, 0)],
        &pair,
    ];
    assert_eq!(kinds, all.concat());
    for record in &records {
        let expected = match record.what {
            What::Asid(8) | What::Tlbi(..) => [SAME, [1, 0, 2, 3]],
            _ => [SAME, SAME],
        };
        assert_eq!(record.order, expected, "{record:?}");
    }
}

/// The pages in the order of their last use, by a list of all accesses and by the stream.
#[test]
fn the_stream_has_the_order_of_all_pages() {
    let mut cpu = collector();
    cpu.block(&block(0x1000, 0));
    let mut state = 1_u32;
    let mut expected: Vec<u64> = Vec::new();
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Few pages most of the time.
        let among = if state >> 30 == 0 { 12 } else { 3 };
        u64::from(state >> 16) % among
    };
    let accesses: Vec<u64> = (0..2000).map(|_| next() << PAGE_SHIFT).collect();
    let mut found: Vec<u64> = Vec::new();
    let mut count = 0;
    records(&mut cpu);
    *cpu.out() = Collector::new(Words::default()).out().clone();
    for address in accesses {
        expected.retain(|at| *at != address);
        expected.insert(0, address);
        cpu.access(AccessKind::Data, 0, address);
    }
    cpu.finish();
    for record in records(&mut cpu) {
        count += 1;
        let kept = found.clone();
        for (at, from) in record.order[1].iter().enumerate() {
            if let Some(page) = kept.get(usize::from(*from)) {
                found[at] = *page;
            }
        }
        if let What::Access(AccessKind::Data, page) = record.what {
            found.retain(|at| *at != page.address);
            found.insert(0, page.address);
        }
    }
    assert_eq!(found, expected);
    assert!(count < 1000, "{count}");
}

#[test]
fn instructions_are_counted_also_where_nothing_else_happens() {
    let mut cpu = collector();
    let mut blocks = 0_u64;
    while blocks * 2 < (3 << 20) + 4 {
        cpu.block(&block(0x1000, 0));
        blocks += 1;
    }
    cpu.unseen();
    cpu.finish();
    let records = records(&mut cpu);
    let sum: u64 = records.iter().map(|it| u64::from(it.instructions)).sum();
    assert_eq!(sum, blocks * 2);
    let passes = records.iter().filter(|it| it.what == What::Pass).count();
    assert_eq!(passes, 3);
    assert_eq!(records.last().unwrap().what, What::End { unseen: true });
}

#[test]
fn bytes_that_are_not_a_stream_are_refused() {
    assert!(matches!(
        Reader::new(&[0_u8; 48][..]),
        Err(AccessesError::Head)
    ));
    assert!(Reader::new(&[][..]).is_err());
    let good = AccessRecord {
        instructions: 5,
        order: [[3, 0, 1, 2], SAME],
        what: What::Asid(9),
    };
    assert_eq!(AccessRecord::new(good.words()), Some(good));
    let [first, a, b] = good.words();
    // An unknown kind, an unknown region, and an order that names a place twice.
    assert_eq!(AccessRecord::new([0xff, a, b]), None);
    assert_eq!(
        AccessRecord::new([u64::from(ACCESS) | 0xe4e4 << 16, 0, 3]),
        None
    );
    assert_eq!(AccessRecord::new([first & !(0xff << 16), a, b]), None);
    let mut cpu = collector();
    cpu.finish();
    let bytes = std::mem::take(cpu.out());
    let mut reader = Reader::new(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(reader.next_record().unwrap(), None);
}
