//! Searches the memory for a kernel's root table if no register or note locates it. The result may
//! be wrong, and is marked as a guess.
//!
//! A candidate is a page whose entries all make sense as a root's, and so do those of all tables
//! below it: tables lie in the memory, outputs are aligned, and no reserved bit is set. If CPUs
//! execute in the upper half, it must map these addresses. Among the candidates the tree that maps
//! the most memory wins, because a kernel maps all of it.

use crate::linux::Space;
use crate::scan;
use crate::source::{Memory, Registers};
use crate::tree::{Origin, Owner, Shape, Tree};
use granule::arch::registers::Tcr;
use granule::arch::{
    Descriptor, Geometry, Kind, Level, OutputFormat, PageSize, PhysicalAddress, VaRange,
};
use std::cell::Cell;
use std::ops::{ControlFlow, Range};

/// The shapes that are tried: page size, bits of address, and whether the format is that of FEAT_LPA2.
/// Of shapes with the same start level, the largest stands for the others.
const SHAPES: [(PageSize, u32, bool); 10] = [
    (PageSize::K4, 48, false),
    (PageSize::K4, 39, false),
    (PageSize::K4, 52, true),
    (PageSize::K16, 47, false),
    (PageSize::K16, 48, false),
    (PageSize::K16, 36, false),
    (PageSize::K16, 52, true),
    (PageSize::K64, 42, false),
    (PageSize::K64, 48, false),
    (PageSize::K64, 52, false),
];

/// The most tables that a candidate is judged by, and that all candidates are.
const MOST_TABLES: u32 = 1 << 16;
const MOST_TABLES_OF_ALL: u64 = 1 << 20;

/// Returns the tree that is most like a kernel's, and a line with the reasons; `cpus` are those of
/// the dump, if it has any. `progress` is called with the bytes that were looked at since; all of
/// them are looked at once for each page size.
pub fn kernel(
    memory: &dyn Memory,
    cpus: &[Registers],
    progress: &mut dyn FnMut(u64),
) -> Option<(Tree, String)> {
    let ranges = memory.ranges();
    let highest = ranges.last().map_or(0, |last| last.end);
    let pcs: Vec<u64> = cpus
        .iter()
        .filter_map(|cpu| cpu.get("pc").filter(|pc| pc >> 63 != 0))
        .collect();
    let mut best: Option<(Mapped, Geometry, PhysicalAddress)> = None;
    let left_of_all = Cell::new(MOST_TABLES_OF_ALL);
    for size in PageSize::ALL {
        let shapes: Vec<Geometry> = SHAPES
            .iter()
            .filter(|shape| shape.0 == size)
            .filter_map(|&(size, bits, lpa2)| geometry(size, bits, lpa2, highest))
            .collect();
        scan::pages(memory, size, progress, &mut |root, page| {
            for &geometry in &shapes {
                let candidate = Candidate {
                    memory,
                    ranges: &ranges,
                    geometry,
                    left_of_all: &left_of_all,
                };
                let Some(mapped) = candidate.judge(root, page) else {
                    continue;
                };
                let better = best.is_none_or(|(most, ..)| mapped.bytes > most.bytes);
                if better && pcs.iter().all(|&pc| candidate.maps(root, pc)) {
                    best = Some((mapped, geometry, root));
                }
            }
            match left_of_all.get() {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
    }
    let (mapped, geometry, root) = best?;
    let executes = match pcs.len() {
        0 => "; unconfirmed, pass --ttbr1 and --tcr to be sure".to_owned(),
        1 => " and the address where the CPU executes".to_owned(),
        count => format!(" and the addresses where {count} CPUs execute"),
    };
    let early = match left_of_all.get() {
        0 => "; the search ended early, after a million tables",
        _ => "",
    };
    let tree = Tree::new(Owner::Kernel, root, Shape::Stage1(geometry), Origin::Guess);
    let least = match mapped.whole {
        true => "",
        false => "at least ",
    };
    let unknown = match tree.knows_format() {
        true => "the size of output addresses (TCR.IPS) is not known",
        false => "shareability (TCR.DS) and the size of output addresses (TCR.IPS) are not known",
    };
    let why = format!(
        "guessed: the table at {root} looks like a kernel's root with {} pages and {} bits; it \
         maps {least}{} MiB of the memory{executes}{early}; {unknown}",
        geometry.page_size(),
        geometry.va_bits(),
        mapped.bytes >> 20
    );
    Some((tree, why))
}

fn geometry(size: PageSize, bits: u32, lpa2: bool, highest: u64) -> Option<Geometry> {
    let granule = match size {
        PageSize::K4 => 0b10,
        PageSize::K16 => 0b01,
        _ => 0b11,
    };
    let wide = lpa2 || (size == PageSize::K64 && highest > 1 << 48);
    let output = if wide { 0b110 } else { 0b101 };
    let ds = if lpa2 { Tcr::DS } else { 0 };
    let tcr = Tcr(u64::from(64 - bits) << 16 | granule << 30 | output << 32 | ds);
    Geometry::from_tcr(tcr, VaRange::Upper).ok().flatten()
}

/// The memory that a candidate maps.
#[derive(Clone, Copy)]
struct Mapped {
    bytes: u64,
    /// Whether all of its tables were looked at.
    whole: bool,
}

struct Candidate<'a> {
    memory: &'a dyn Memory,
    ranges: &'a [Range<u64>],
    geometry: Geometry,
    left_of_all: &'a Cell<u64>,
}

impl Candidate<'_> {
    /// Returns how much memory the tree below `root` maps, or `None` if it is not a tree.
    fn judge(&self, root: PhysicalAddress, page: &[u8]) -> Option<Mapped> {
        let level = self.geometry.start_level();
        let (entries, rest) = page.split_at_checked(8 * self.geometry.root_entries())?;
        // Nothing else lies in the page of a small root.
        if rest.iter().any(|&byte| byte != 0) {
            return None;
        }
        // Most pages are not a root, and are refused before any other memory is read.
        self.each(entries, level, &mut |_, _| Some(()))?;
        let (mut mapped, mut left) = (0, MOST_TABLES);
        self.descend(entries, level, &[root], &mut mapped, &mut left)?;
        let whole = left > 0;
        (mapped > 0).then_some(Mapped {
            bytes: mapped,
            whole,
        })
    }

    /// Adds what the tables below `entries` map; `path` leads to them, so that no table is followed
    /// into itself. After `left` tables the rest counts as nothing.
    fn descend(
        &self,
        entries: &[u8],
        level: Level,
        path: &[PhysicalAddress],
        mapped: &mut u64,
        left: &mut u32,
    ) -> Option<()> {
        let size = self.geometry.page_size();
        self.each(entries, level, &mut |kind, address| {
            if kind == Kind::Leaf {
                let leaf = size.entry_bytes(level);
                let there = self.there(address).min(leaf);
                *mapped = mapped.saturating_add(there);
                return Some(());
            }
            if path.contains(&address) {
                return None;
            }
            let left_of_all = self.left_of_all.get();
            if *left == 0 || left_of_all == 0 {
                return Some(());
            }
            *left -= 1;
            self.left_of_all.set(left_of_all - 1);
            let mut table = vec![0; size.bytes() as usize];
            self.memory.read(address, &mut table).ok()?;
            let path = [path, &[address]].concat();
            self.descend(&table, level.next(), &path, mapped, left)
        })
    }

    /// Calls `with` for each valid entry; `None` if one makes no sense there.
    fn each(
        &self,
        entries: &[u8],
        level: Level,
        with: &mut dyn FnMut(Kind, PhysicalAddress) -> Option<()>,
    ) -> Option<()> {
        let table_bytes = self.geometry.page_size().bytes();
        for word in entries.as_chunks::<8>().0 {
            let descriptor = Descriptor(u64::from_le_bytes(*word));
            if !descriptor.is_valid() {
                continue;
            }
            let kind = descriptor.kind(&self.geometry, level);
            let address = self.geometry.address_of(descriptor, level);
            let plausible = match kind {
                Kind::Table => self.there(address) >= table_bytes,
                Kind::Leaf => true,
                Kind::Invalid | Kind::PresentInvalid => false,
            };
            if !plausible || descriptor.0 & self.reserved(kind, level) != 0 {
                return None;
            }
            with(kind, address)?;
        }
        Some(())
    }

    /// The bits of an entry that are zero in every table: those between the attributes and the
    /// address, and those above the address.
    fn reserved(&self, kind: Kind, level: Level) -> u64 {
        let size = self.geometry.page_size();
        let low = match kind {
            Kind::Leaf => size.entry_bytes(level),
            _ => size.bytes(),
        };
        let below = low - PageSize::MIN.bytes();
        let used = match (self.geometry.format(), kind) {
            (OutputFormat::Lpa, _) => PageSize::MAX.bytes() - PageSize::MIN.bytes(),
            _ => 0,
        };
        let control = if level == Level::L3 {
            0
        } else {
            Descriptor::NT
        };
        let above = if self.geometry.format() == OutputFormat::Lpa2 {
            0
        } else {
            0b11 << 48
        };
        below & !used & !control | above
    }

    /// The bytes of memory from `address` on without a hole.
    fn there(&self, address: PhysicalAddress) -> u64 {
        let after = self
            .ranges
            .partition_point(|range| range.start <= address.0);
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        range.map_or(0, |range| range.end.saturating_sub(address.0))
    }

    fn maps(&self, root: PhysicalAddress, address: u64) -> bool {
        Space::below(self.memory, root, self.geometry)
            .physical(address)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::raw;

    const BASE: u64 = 0x4000_0000;

    /// Memory of 4 MiB with a root of `size` pages and `bits` bits in page 3, which maps all of it in
    /// pages at the begin of the upper half, and words that are not tables.
    fn memory(size: PageSize, bits: u32) -> (Vec<u8>, Geometry, PhysicalAddress) {
        let geometry = geometry(size, bits, false, 0).unwrap();
        let bytes = size.bytes();
        let mut memory = vec![0; 4 << 20];
        for at in (1 << 20..2 << 20).step_by(8) {
            memory[at..at + 8].copy_from_slice(
                &(at as u64)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_le_bytes(),
            );
        }
        let put = |memory: &mut Vec<u8>, table: u64, index: u64, word: u64| {
            let at = (table - BASE + 8 * index) as usize;
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        let root = BASE + 3 * bytes;
        let (mut table, mut level) = (root, geometry.start_level());
        while level != Level::L3 {
            put(&mut memory, table, 0, (table + bytes) | 0b11);
            (table, level) = (table + bytes, level.next());
        }
        for page in 0..((4 << 20) / bytes).min(size.entries() as u64) {
            put(&mut memory, table, page, (BASE + page * bytes) | 0x703);
        }
        (memory, geometry, PhysicalAddress(root))
    }

    fn tree(memory: &[u8], pc: u64) -> Option<(Tree, String)> {
        let (memory, _) = raw::open(memory.to_vec(), BASE);
        let mut cpu = Registers::default();
        cpu.set("pc", pc);
        kernel(&*memory, &[cpu], &mut |_| {})
    }

    fn guessed(memory: &[u8], pc: u64) -> Option<(PhysicalAddress, Geometry, String)> {
        let (tree, why) = tree(memory, pc)?;
        let Shape::Stage1(shape) = tree.shape else {
            return None;
        };
        Some((tree.root, shape, why))
    }

    #[test]
    fn a_root_is_found_among_other_pages() {
        for (size, bits, _) in SHAPES {
            // One shape stands for those with the same tables.
            if bits == 52 {
                continue;
            }
            let (memory, geometry, root) = memory(size, bits);
            let (found, shape, why) = guessed(&memory, geometry.base().0 + 0x1000).unwrap();
            assert_eq!((found, shape.page_size()), (root, size), "{bits}: {why}");
            assert!(why.starts_with("guessed: ") && why.contains("where the CPU executes"));
            // The level decides how the tables are read, and it is right.
            assert_eq!(shape.start_level(), geometry.start_level(), "{why}");
        }
    }

    #[test]
    fn a_guess_claims_nothing_that_it_cannot_know() {
        for (size, bits, knows) in [
            (PageSize::K4, 48, false),
            (PageSize::K16, 47, false),
            (PageSize::K64, 42, true),
        ] {
            let (memory, geometry, root) = memory(size, bits);
            let pc = geometry.base().0 + 0x1000;
            let (tree, why) = tree(&memory, pc).unwrap();
            assert_eq!((tree.root, tree.output_size()), (root, None));
            let sharing = crate::attributes::Decoded::new(&tree, 0x703).to_string();
            let word = if knows { " ISH " } else { " SH-unknown " };
            assert!(sharing.contains(word), "{sharing}");
            assert_eq!(why.contains("shareability (TCR.DS)"), !knows, "{why}");
            assert!(why.contains("(TCR.IPS)"), "{why}");
        }
    }

    #[test]
    fn a_tree_that_cannot_be_the_kernels_is_no_guess() {
        let (whole, geometry, root) = memory(PageSize::K4, 48);
        let base = geometry.base().0;
        assert!(guessed(&whole, base + 0x1000).is_some());
        // The CPU executes where the tree maps nothing.
        assert_eq!(guessed(&whole, base + (1 << 40)), None);
        // A table outside of the memory, and one that leads to itself.
        let at = (root.0 - BASE) as usize + 8;
        for word in [0x9000_0003, root.0 | 3] {
            let mut changed = whole.clone();
            changed[at..at + 8].copy_from_slice(&word.to_le_bytes());
            let found = guessed(&changed, base + 0x1000);
            assert!(found.is_none_or(|(found, ..)| found != root));
        }
        assert_eq!(guessed(&[0; 1 << 16], base), None);
        assert_eq!(guessed(&[], base), None);
    }
}
