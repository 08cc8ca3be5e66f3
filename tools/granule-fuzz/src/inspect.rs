//! The target for readers of other kernels' tables: a memory that repeats a few words at every address,
//! with holes.

use crate::bytes::Bytes;
use crate::tables;
use core::ops::ControlFlow;
use granule::arch::registers::Mair;
use granule::arch::{CpuFeatures, PageSize, PhysicalAddress, Stage2Geometry, VirtualAddress};
use granule_inspect::attributes::Decoded;
use granule_inspect::diff::{Listed, diff};
use granule_inspect::explain::explain;
use granule_inspect::lint::{Accepted, LintOptions, lint};
use granule_inspect::map::Map;
use granule_inspect::ranges::{Merger, Range};
use granule_inspect::source::{Memory, ReadError};
use granule_inspect::totals::Totals;
use granule_inspect::tree::{Origin, Owner, Shape, Tree};
use granule_inspect::walk::{EVERYTHING, Event, Tables, walk};

/// Every page of the 64-bit space, but for holes: the words of the fuzzer, in another order in each.
struct Repeated {
    words: Vec<u64>,
    holes: u64,
}

impl Memory for Repeated {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        let page = ((address.0 >> 12) + 1).wrapping_mul(0x9e37_79b9);
        if self.holes != 0 && page.is_multiple_of(self.holes) {
            return Err(ReadError::Absent(address));
        }
        for (index, bytes) in buffer.chunks_exact_mut(8).enumerate() {
            let word = self.words[(page as usize ^ index) % self.words.len()];
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<core::ops::Range<u64>> {
        // Nothing here calls this.
        Vec::new()
    }
}

/// The most tables that a walk enters.
const MOST_TABLES: u64 = 2;

pub(crate) fn inspect(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    // Tables of large pages take longer and show no more.
    let size = PageSize::ALL[bytes.below(16).saturating_sub(13)];
    let shape = if bytes.byte() & 1 == 0 {
        tables::geometry(&mut bytes, size).map(Shape::Stage1)
    } else {
        stage2(&mut bytes, size).map(Shape::Stage2)
    };
    let Some(shape) = shape else { return };
    let root = PhysicalAddress(match bytes.byte() {
        0..128 => 0,
        _ => bytes.word(),
    });
    let memory_types = (bytes.byte() & 1 == 0).then(|| Mair(bytes.word()));
    let origin = match bytes.byte() & 1 {
        0 => Origin::Guess,
        _ => Origin::Registers,
    };
    let tree = Tree {
        memory_types,
        ..Tree::new(Owner::Kernel, root, shape, origin)
    };
    let holes = u64::from(bytes.byte());
    let address = bytes.word();
    let mut words = Vec::new();
    while !bytes.is_empty() && words.len() < 64 {
        words.push(bytes.word());
    }
    words.push(0);
    let memory = Repeated { words, holes };
    let found = listed(&memory, &tree);
    let one = Listed {
        tree: &tree,
        ranges: &found,
    };
    assert!(diff(one, one).is_empty());
    drawn(&tree, &found, usize::from(address as u8));
    explained(&memory, &tree, address, &found);
    let every = "loop 0-ffffffffffffffff x\nshared-table 0-ffffffffffffffff x";
    let options = LintOptions {
        accepted: Accepted::parse(every).0,
        most: 5,
        most_tables: MOST_TABLES,
        ..LintOptions::default()
    };
    let linted = lint(&memory, core::slice::from_ref(&tree), &options, &mut |_| {});
    for finding in &linted.findings.list {
        assert!(!finding.to_string().contains('\n'));
    }
    let _ = Accepted::parse(&String::from_utf8_lossy(&address.to_le_bytes()));
}

/// Maps of few cells lose no byte.
fn drawn(tree: &Tree, ranges: &[Range], most: usize) {
    let map = Map::of(tree, ranges, most);
    assert!(map.cells.len() <= most.max(1));
    let parts = map
        .cells
        .iter()
        .flat_map(|cell| cell.parts(tree).into_values());
    assert_eq!(
        parts.sum::<u64>(),
        ranges.iter().map(|range| range.bytes).sum::<u64>()
    );
    let sums = map.cells.iter().map(|cell| cell.ranges);
    assert_eq!(sums.sum::<u64>(), ranges.len() as u64);
}

fn stage2(bytes: &mut Bytes<'_>, size: PageSize) -> Option<Stage2Geometry> {
    let cpu = CpuFeatures {
        mmfr0: 0x1022_0006 & !(0xf << 24) | 0x6,
        mmfr1: u64::from(bytes.byte() & 1) << 28,
        mmfr2: 1 << 16 | 1 << 28 | u64::from(bytes.byte() & 1) << 40,
        ..CpuFeatures::NONE
    };
    Stage2Geometry::new(&cpu, size, 25 + bytes.below(28) as u32).ok()
}

/// All ranges, which ascend and lie in the address space.
fn listed(memory: &Repeated, tree: &Tree) -> Vec<Range> {
    let geometry = tree.geometry();
    let (mut found, mut totals, mut merger) = (Vec::new(), Totals::default(), Merger::default());
    let mut next = geometry.base().0;
    let tables = Tables::new(memory, tree).limit(MOST_TABLES);
    let _: ControlFlow<()> = walk(&tables, tree, EVERYTHING, |event| {
        match event {
            Event::Table(_) => totals.add_table(tree),
            Event::Leaves(leaves) => {
                assert!(leaves.start >= next, "{leaves:x?}");
                next = leaves.start + (leaves.count * leaves.leaf_bytes - 1);
                assert!(geometry.offset(VirtualAddress(next)).is_some());
                totals.add_range(tree, &Range::of(tree, leaves));
                found.extend(merger.push(Range::of(tree, leaves)));
            }
            Event::LeftOut(it) => assert!(!it.to_string().is_empty()),
        }
        ControlFlow::Continue(())
    });
    found.extend(merger.end());
    // Roots beyond the limit are entered too.
    assert!(totals.tables <= MOST_TABLES.max(geometry.root_tables() as u64));
    assert_eq!(
        totals.mapped(),
        found.iter().map(|range| range.bytes).sum::<u64>()
    );
    found
}

/// Checks that an explanation agrees with the list: a listed address is translated as listed.
fn explained(memory: &Repeated, tree: &Tree, address: u64, found: &[Range]) {
    let tables = Tables::new(memory, tree);
    for range in found.iter().take(3) {
        let text = explain(&tables, tree, range.last()).to_string();
        let output = range.output.wrapping_add(range.bytes - 1);
        let decoded = Decoded::new(tree, range.attributes);
        let beyond = output >> tree.geometry().pa_bits() != 0;
        let is_explained = text.contains(&format!("{output:#x}")) || beyond || !decoded.accessed;
        assert!(is_explained, "{range:x?} {text}");
    }
    assert!(explain(&tables, tree, address).steps.len() <= 5);
}
