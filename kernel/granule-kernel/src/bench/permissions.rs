//! The cost of changing the linear map: `granule.bench=permissions[:CHANGES]`, for `granule bench
//! permissions`.
//!
//! For each size the benchmark makes one change in the middle of a leaf, and then many random changes
//! everywhere (a million by default). After each of the two it undoes all changes and merges, which must
//! leave the map as it was. With `granule.count=instructions` it counts the instructions of the calls and
//! nothing else.

#![allow(unsafe_code, reason = "a block of memory that the benchmark owns")]

use super::copy;
use super::support::{Block, Random, Snapshot, assert_as, kernel, ok};
use crate::arch::counter::InstructionCounter;
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::kernel_tables::{self, Taken};
use crate::mm::{merge, pageattr, pages};
use arrayvec::ArrayVec;
use core::ops::RangeInclusive;
use granule::arch::{Kind, VirtualAddress};
use granule::table::Visit;
use granule_kcore::parameters::Bench;

const GIB: u64 = 1 << 30;
/// Most blocks of 1 GiB that are changed. The random changes stay within them.
const MOST_BLOCKS: usize = 128;
const CHANGES: u64 = 1_000_000;
const SEED: u64 = 1;
/// The sizes of a change: name and bytes (0 for one page).
const SIZES: [(&str, u64); 4] = [("page", 0), ("k64", 64 << 10), ("m2", 2 << 20), ("g1", GIB)];

/// Runs the benchmark that `granule.bench=` requests.
#[inline(never)]
pub(crate) fn run(asked: Bench, counter: Option<&InstructionCounter>) {
    match asked {
        Bench::Permissions(changes) => bench(changes.unwrap_or(CHANGES), counter),
        Bench::Copy(bytes) => copy::run(bytes.unwrap_or(copy::BYTES), counter),
    }
}

fn bench(changes: u64, counter: Option<&InstructionCounter>) {
    let kernel = kernel();
    let whole = Snapshot::take();
    let mut blocks = ArrayVec::<Block, MOST_BLOCKS>::new();
    let order = (GIB / kernel.page()).ilog2();
    while !blocks.is_full()
        && let Some(frame) = pages::allocate(order)
    {
        blocks.push(Block::of(frame, order));
    }
    // Not the last block, because the largest leaves reach to the end of memory.
    let Some(middle) = blocks.get(blocks.len() / 2) else {
        panic!("no free block of 1 GiB: the machine is too small for this benchmark");
    };
    let mut leaves = Leaves::new();
    let before = Snapshot::take();
    let meter = Meter { counter };
    println!("@granule bench.changes={changes}");
    println!("@granule bench.blocks={}", blocks.len());
    for (name, bytes) in SIZES {
        // A size of at most one page repeats the first one.
        if bytes > 0 && bytes <= kernel.page() {
            continue;
        }
        let bytes = bytes.max(kernel.page());
        println!("@granule bench.{name}.bytes={bytes}");
        leaves.remember();
        let pages = bytes / kernel.page();
        // A third of the way in, so that no boundary of a larger leaf coincides with the change.
        let start = VirtualAddress(middle.start + (GIB / 3) / bytes * bytes);
        let single = meter.took(|| pageattr::set_memory_ro(start, pages));
        say(name, "single", &single, leaves.split());
        ok("rw", pageattr::set_memory_rw(start, pages));
        let merged = meter.took(|| leaves.merge_round(start));
        say(name, "single_merge", &merged, 0);
        assert_as(&before, name);

        let mut random = Random::new(SEED);
        let counted = kernel_tables::counted();
        let mut instructions = 0;
        for _ in 0..changes {
            let block = blocks.get(random.below(blocks.len() as u64) as usize);
            let at = random.below(GIB / bytes) * bytes;
            let start = VirtualAddress(block.unwrap_or(middle).start + at);
            let writable = random.below(2) == 0;
            instructions += meter.instructions(|| {
                if writable {
                    pageattr::set_memory_rw(start, pages)
                } else {
                    pageattr::set_memory_ro(start, pages)
                }
            });
        }
        let all = Cost {
            taken: kernel_tables::counted().since(counted),
            instructions,
        };
        say(name, "random", &all, leaves.split());
        for block in &blocks {
            ok(
                "rw",
                pageattr::set_memory_rw(block.at(0), GIB / kernel.page()),
            );
        }
        let merged = meter.took(|| leaves.merge(0, u64::MAX));
        say(name, "random_merge", &merged, 0);
        assert_as(&before, name);
    }
    leaves.block.free();
    for block in blocks {
        block.free();
    }
    assert_as(&whole, "after the benchmark");
}

/// The cost of a series of changes.
struct Cost {
    taken: Taken,
    instructions: u64,
}

struct Meter<'c> {
    counter: Option<&'c InstructionCounter>,
}

impl Meter<'_> {
    /// Runs `work` and returns the instructions of `work` alone, or 0 if they are not counted.
    fn instructions(&self, work: impl FnOnce() -> Result<(), LinearError>) -> u64 {
        let (result, count) = match self.counter {
            Some(counter) => {
                let (result, count) = counter.measure(work);
                (result, ok("counting instructions", count))
            }
            None => (work(), 0),
        };
        ok("a change", result);
        count
    }

    fn took(&self, work: impl FnOnce() -> Result<(), LinearError>) -> Cost {
        let before = kernel_tables::counted();
        let instructions = self.instructions(work);
        Cost {
            taken: kernel_tables::counted().since(before),
            instructions,
        }
    }
}

fn say(size: &str, kind: &str, cost: &Cost, split: u64) {
    let own = [("leaves_split", split), ("instructions", cost.instructions)];
    for (key, value) in own.into_iter().chain(cost.taken.figures()) {
        println!("@granule bench.{size}.{kind}.{key}={value}");
    }
}

/// A list of the map's leaves at one time. A contiguous group counts as one leaf.
struct Leaves {
    block: Block,
    count: usize,
    /// From the first listed address to the last.
    range: RangeInclusive<u64>,
}

/// Flag in the word that holds a leaf's size: the leaf is a group, and the size is that of its entries.
const GROUP: u64 = 1;

impl Leaves {
    fn new() -> Self {
        Self {
            block: Block::new(4 << 20),
            count: 0,
            range: 0..=0,
        }
    }

    /// Merges around an address, as far as the largest leaf reaches.
    fn merge_round(&self, address: VirtualAddress) -> Result<(), LinearError> {
        let kernel = kernel_tables::kernel();
        let largest = kernel.and_then(|k| k.geometry.leaf_sizes().map(|size| size.bytes).max());
        let mask = largest.unwrap_or(1) - 1;
        self.merge(address.0 & !mask, address.0 | mask)
    }

    /// Merges between two addresses, where memory exists.
    fn merge(&self, first: u64, last: u64) -> Result<(), LinearError> {
        let page = kernel().page();
        let first = first.max(*self.range.start());
        let last = last.min(*self.range.end());
        merge::merge_linear_map(VirtualAddress(first), (last - first) / page + 1).map(|_| ())
    }

    fn words(&mut self) -> &mut [[u64; 2]] {
        let room = self.block.bytes() as usize / size_of::<[u64; 2]>();
        // SAFETY: this value owns the block, which is writable RAM, and any bytes are valid words.
        unsafe { core::slice::from_raw_parts_mut(self.block.start as *mut [u64; 2], room) }
    }

    fn remember(&mut self) {
        let words = self.words();
        let mut count = 0;
        let (mut low, mut high) = (u64::MAX, 0);
        kernel_tables::look(|kernel, _, tree| {
            let group = |level| {
                let mut sizes = kernel.geometry.leaf_sizes();
                let found = sizes.find(|size| size.level == level && size.contiguous);
                found.map_or(1, |size| size.bytes)
            };
            let (start, bytes) = (kernel.geometry.base(), kernel.geometry.span() / 2);
            tree.visit(start, bytes, |entry| {
                let hint = entry.descriptor.is_contiguous();
                let first = !hint || entry.start.0.is_multiple_of(group(entry.level));
                if entry.kind == Kind::Leaf {
                    low = low.min(entry.start.0);
                    high = entry.start.0 + (entry.bytes - 1);
                }
                if entry.kind == Kind::Leaf && first {
                    let Some(word) = words.get_mut(count) else {
                        panic!("the map has more leaves than the benchmark can remember");
                    };
                    *word = [entry.start.0, entry.bytes | if hint { GROUP } else { 0 }];
                    count += 1;
                }
                Visit::EVERYTHING
            })
        });
        self.count = count;
        self.range = low..=high;
    }

    /// Counts the listed leaves that have been split.
    fn split(&mut self) -> u64 {
        let count = self.count;
        let remembered = self.words().get(..count).unwrap_or_default();
        let mut split = 0;
        kernel_tables::look(|_, _, tree| {
            for [start, bytes] in remembered {
                let now = tree.query(VirtualAddress(*start));
                let whole = now.is_some_and(|now| {
                    now.bytes == bytes & !GROUP && now.contiguous == (bytes & GROUP != 0)
                });
                split += u64::from(!whole);
            }
        });
        split
    }
}
