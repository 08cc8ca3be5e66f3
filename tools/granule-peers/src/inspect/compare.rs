//! Compares the trees that were read with QEMU's translation and the guest kernel's pages. Pure:
//! QEMU is a function here.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};
use granule_inspect::ranges::{Merger, Range};
use granule_inspect::source::Memory;
use granule_inspect::tree::Tree;
use granule_inspect::walk::{EVERYTHING, Event, Tables, walk};

/// The most ranges that are compared; of more, a sample of this size is.
const MOST_RANGES: usize = 2000;
/// The seed of the sample.
const SEED: u64 = 1;

/// A tree as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    pub(crate) ranges: Vec<Range>,
    /// The number of tables by level.
    pub(crate) tables: BTreeMap<i32, u64>,
}

/// Reads a tree, which must be complete.
pub(super) fn walked(memory: &dyn Memory, tree: &Tree) -> Result<Walked> {
    let (mut walked, mut merger) = (Walked::default(), Merger::default());
    let ended = walk(&Tables::new(memory, tree), tree, EVERYTHING, |event| {
        match event {
            Event::Table(table) if table.before.is_none() => {
                *walked.tables.entry(table.level.number()).or_default() += 1;
            }
            Event::Table(_) => {}
            Event::Leaves(leaves) => walked.ranges.extend(merger.push(Range::of(tree, leaves))),
            Event::LeftOut(table) => return ControlFlow::Break(table.to_string()),
        }
        ControlFlow::Continue(())
    });
    if let ControlFlow::Break(left_out) = ended {
        anyhow::bail!("{}: {left_out}", tree.owner);
    }
    walked.ranges.extend(merger.end());
    ensure!(!walked.ranges.is_empty(), "{} maps nothing", tree.owner);
    Ok(walked)
}

/// Checks that two readings of one tree are the same.
pub(super) fn same(one: &Walked, other: &Walked) -> Result<()> {
    for (one, other) in one.ranges.iter().zip(&other.ranges) {
        ensure!(one == other, "{one:x?} is {other:x?} in the other");
    }
    let (one, other) = (
        (one.ranges.len(), &one.tables),
        (other.ranges.len(), &other.tables),
    );
    ensure!(
        one == other,
        "ranges and tables are {one:?}, and {other:?} in the other"
    );
    Ok(())
}

/// Chooses the ranges to compare: all, or a random one of each of as many equal parts of the list.
fn drawn(number: usize) -> Vec<usize> {
    let mut state = SEED;
    let mut random = move || {
        // Knuth's MMIX generator, whose upper bits are random enough.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    if number <= MOST_RANGES {
        return (0..number).collect();
    }
    (0..MOST_RANGES)
        .map(|at| (at * number + random() % number) / MOST_RANGES)
        .collect()
}

/// Checks that QEMU translates like the ranges, at both ends and in the middle, and does not
/// translate the addresses beside them.
pub(super) fn translation(
    ranges: &[Range],
    mut translate: impl FnMut(u64) -> Result<Option<u64>>,
) -> Result<String> {
    let (mut inside, mut beside) = (0_u64, 0_u64);
    let drawn = drawn(ranges.len());
    for &at in &drawn {
        let range = ranges.get(at).context("there is no such range")?;
        for offset in [0, range.bytes / 2, range.bytes - 1] {
            let address = range.start.wrapping_add(offset);
            let (found, expected) = (translate(address)?, range.output.wrapping_add(offset));
            ensure!(
                found == Some(expected),
                "{address:#x} is {expected:#x} in {range:x?}, and {found:#x?} for QEMU"
            );
            inside += 1;
        }
        let before = at.checked_sub(1).and_then(|at| ranges.get(at));
        let ends = [
            (range.start.checked_sub(1), before.map(Range::last)),
            (
                range.last().checked_add(1),
                ranges.get(at + 1).map(|after| after.start),
            ),
        ];
        for (address, mapped) in ends {
            let Some(address) = address.filter(|_| address != mapped) else {
                continue;
            };
            let found = translate(address)?;
            ensure!(
                found.is_none(),
                "{address:#x}, beside {range:x?}, is mapped to {found:#x?} for QEMU"
            );
            beside += 1;
        }
    }
    // If all ranges were adjacent, no address beside them would be compared.
    ensure!(beside > 0, "no address beside a range was compared");
    let of = match ranges.len() {
        all if all == drawn.len() => "all".to_owned(),
        all => format!("of {all}, drawn with the seed {SEED}"),
    };
    Ok(format!(
        "{} ranges ({of}): {inside} addresses agree, {beside} beside them are mapped by neither",
        drawn.len()
    ))
}

/// Checks that a process's pages are those that its kernel reported.
pub(super) fn pages(
    walked: &Walked,
    reported: &BTreeMap<u64, u64>,
    page_bytes: u64,
) -> Result<String> {
    let mut found = BTreeMap::new();
    for range in &walked.ranges {
        let pages = (0..range.bytes / page_bytes).map(|page| {
            (
                range.start / page_bytes + page,
                range.output / page_bytes + page,
            )
        });
        found.extend(pages);
    }
    for (page, frame) in reported {
        let there = found.get(page);
        ensure!(
            there == Some(frame),
            "page {page:#x} has the frame {frame:#x} for Linux, and {there:#x?} in its tables"
        );
    }
    let more = found.keys().find(|page| !reported.contains_key(page));
    ensure!(
        more.is_none(),
        "page {:#x} is in its tables, but Linux reported no frame",
        more.copied().unwrap_or_default()
    );
    // A process without pages would also agree.
    let count = reported.len();
    ensure!(count > 16, "the process has {count} pages");
    Ok(format!("{count} pages"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_inspect::source::raw;
    use granule_inspect::{registers, tree};

    const PAGE: u64 = 4096;

    /// Makes a tree of 39 bits: a root, a table of level 2, and one of level 3 with pages 0 to 39
    /// at 2 GiB, and page 50.
    fn small() -> Walked {
        let base = 0x4000_0000;
        let mut words = vec![0_u64; 3 * 512];
        words[0] = (base + PAGE) | 0b11;
        words[512] = (base + 2 * PAGE) | 0b11;
        for page in (0..40).chain([50]) {
            words[1024 + page as usize] = (0x8000_0000 + page * PAGE) | 0x703;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (memory, _) = raw::open(bytes, base);
        let mut cpu = granule_inspect::source::Registers::default();
        cpu.set("ttbr1_el1", base);
        cpu.set("tcr_el1", 25 << 16 | 0b10 << 30 | 1 << 7);
        let (trees, _) = registers::trees(&[cpu], tree::Origin::Registers);
        walked(&*memory, &trees[0]).unwrap()
    }

    fn by(walked: &Walked, address: u64) -> Option<u64> {
        let range = walked
            .ranges
            .iter()
            .find(|range| (range.start..=range.last()).contains(&address))?;
        Some(range.output + (address - range.start))
    }

    /// The pages of that tree as Linux reports them.
    fn reported(small: &Walked) -> BTreeMap<u64, u64> {
        let first = small.ranges[0].start / PAGE;
        let pages = (0..40).chain([50]);
        pages.map(|page| (first + page, 0x8_0000 + page)).collect()
    }

    #[test]
    fn agreement_is_counted() {
        let small = small();
        assert_eq!(small.ranges.len(), 2);
        assert_eq!(small.tables, BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
        let line = translation(&small.ranges, |address| Ok(by(&small, address))).unwrap();
        assert_eq!(
            line,
            "2 ranges (all): 6 addresses agree, 4 beside them are mapped by neither"
        );
        let line = pages(&small, &reported(&small), PAGE).unwrap();
        assert_eq!(line, "41 pages");
        assert!(same(&small, &small).is_ok());
    }

    #[test]
    fn each_difference_is_found() {
        let small = small();
        let (start, last) = (small.ranges[0].start, small.ranges[0].last());
        for (wrong, words) in [
            (start, format!("{start:#x} is")),
            (start + 20 * PAGE, format!("{:#x} is", start + 20 * PAGE)),
            (last, format!("{last:#x} is")),
            (start - 1, "beside".to_owned()),
            (last + 1, "beside".to_owned()),
        ] {
            let error = translation(&small.ranges, |address| {
                let right = by(&small, address);
                Ok(if address == wrong {
                    Some(right.unwrap_or(0) ^ 1)
                } else {
                    right
                })
            });
            let error = error.unwrap_err().to_string();
            assert!(error.contains(&words), "{error}");
        }
        let (page, right) = (start / PAGE, reported(&small));
        let changed = |page, frame: Option<u64>| {
            let mut all = right.clone();
            match frame {
                Some(frame) => all.insert(page, frame),
                None => all.remove(&page),
            };
            pages(&small, &all, PAGE).unwrap_err().to_string()
        };
        assert!(changed(page + 3, Some(1)).contains("has the frame 0x1 for Linux"));
        assert!(changed(page + 45, Some(1)).contains("in its tables"));
        assert!(changed(page + 50, None).contains("Linux reported no frame"));
        let mut changed = small.clone();
        changed.ranges[1].attributes ^= 1 << 54;
        assert!(same(&small, &changed).is_err());
        changed.ranges.pop();
        assert!(same(&small, &changed).is_err());
    }

    #[test]
    fn a_sample_is_spread_and_always_the_same() {
        assert_eq!(drawn(7), [0, 1, 2, 3, 4, 5, 6]);
        let some = drawn(10 * MOST_RANGES);
        assert_eq!(some, drawn(10 * MOST_RANGES));
        assert!(some.iter().enumerate().all(|(at, &range)| range / 10 == at));
    }
}
