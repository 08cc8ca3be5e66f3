//! Memory that a kernel must not map (`no-map`): of lines as in /proc/iomem, or of a device tree and EFI's memory
//! map in the memory of a source. Which rule uses it is not decided here.

use crate::scan;
use crate::source::Memory;
use granule::arch::{PageSize, PhysicalAddress};
use granule_boot::chosen;
use granule_boot::efi::Map;
use granule_boot::tree::{Tree, total_size};
use std::ops::{ControlFlow, Range};

/// The most device trees that are looked for: a boot loader, firmware and the kernel may each have a copy.
const MOST_TREES: usize = 64;

/// Memory that a kernel must not map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMap {
    /// The ranges, in ascending order.
    pub no_map: Vec<Range<u64>>,
    /// Their origin, in words.
    pub origin: String,
}

impl MemoryMap {
    fn new(mut no_map: Vec<Range<u64>>, origin: String) -> Self {
        no_map.retain(|range| range.start < range.end);
        no_map.sort_unstable_by_key(|range| range.start);
        Self { no_map, origin }
    }

    /// The lines of arm64's /proc/iomem, where memory that is not to be mapped is `reserved` at the outermost level;
    /// what is reserved within RAM is mapped.
    /// An error is one line: the first line that is none, or why all of them are of no use.
    pub fn of_lines(text: &str) -> Result<Self, String> {
        let (mut no_map, mut any) = (Vec::new(), false);
        for (number, line) in (1_u64..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty())
        {
            let (range, name) = resource(line).ok_or_else(|| {
                let line: String = line.chars().take(80).collect();
                format!(
                    "line {number}: {line:?} is not a line of /proc/iomem; expected one as `40000000-7fffffff : System RAM`"
                )
            })?;
            any |= range.end > 1;
            if !line.starts_with(' ') && name.eq_ignore_ascii_case("reserved") {
                no_map.push(range);
            }
        }
        match any {
            true => Ok(Self::new(no_map, "/proc/iomem".into())),
            false => Err("no line has an address: /proc/iomem shows them to root alone".into()),
        }
    }

    /// Finds the device tree of the kernel, and through it EFI's memory map. `progress` is called with the bytes that
    /// were looked at since.
    /// An error is one line: nothing is found.
    pub fn find(memory: &dyn Memory, progress: &mut dyn FnMut(u64)) -> Result<Self, String> {
        let mut trees: Vec<(PhysicalAddress, Vec<u8>)> = Vec::new();
        scan::pages(memory, PageSize::MIN, progress, &mut |page, bytes| {
            for (at, word) in (page.0..).step_by(8).zip(bytes.as_chunks::<8>().0) {
                let found = total_size(word).ok().filter(|_| trees.len() < MOST_TREES);
                let Some(size) = found else { continue };
                let mut bytes = vec![0; size as usize];
                let place = PhysicalAddress(at);
                // Trees of other machines, in files of the page cache, name no RAM of this one.
                let ours = memory.read(place, &mut bytes).is_ok() && is_ours(&bytes, memory);
                if ours && trees.iter().all(|(_, other)| *other != bytes) {
                    trees.push((place, bytes));
                }
            }
            ControlFlow::Continue(())
        });
        // The kernel's own has what the boot loader added to the others.
        let Some((place, bytes)) = trees
            .iter()
            .max_by_key(|(_, bytes)| chosen_properties(bytes))
        else {
            return Err(
                "the memory has no device tree of this machine; give a file with the lines of \
                 /proc/iomem (--memory-map)"
                    .into(),
            );
        };
        let tree = Tree::new(bytes).map_err(|error| error.to_string())?;
        let mut no_map: Vec<_> = tree
            .no_map()
            .map(|range| range.start..range.start.saturating_add(range.bytes))
            .collect();
        let mut origin = format!("the device tree at {place}");
        if let Some(map) = efi(&tree, memory) {
            no_map.extend(map);
            origin += " and EFI's memory map";
        }
        if let others @ 1.. = trees.len() - 1 {
            origin += &format!(", one of {} trees", others + 1);
        }
        Ok(Self::new(no_map, origin))
    }
}

/// The range and the name of a line `START-LAST : NAME`, in hexadecimal.
fn resource(line: &str) -> Option<(Range<u64>, &str)> {
    let (range, name) = line.trim().split_once(" : ")?;
    let (start, last) = range.split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(text, 16).ok())?
    };
    let (start, last) = (number(start)?, number(last)?);
    (start <= last && !name.is_empty()).then(|| (start..last.saturating_add(1), name))
}

/// Whether the bytes are a whole tree that has RAM of this memory, or leaves that to EFI.
fn is_ours(bytes: &[u8], memory: &dyn Memory) -> bool {
    let Some(tree) = Tree::new(bytes).ok().filter(|tree| tree.damage().is_none()) else {
        return false;
    };
    let banks = tree
        .nodes()
        .filter(|node| node.is_memory())
        .filter_map(|node| node.reg());
    let ranges = memory.ranges();
    let has_ram = banks
        .flatten()
        .flatten()
        .any(|bank| ranges.iter().any(|range| range.contains(&bank.start)));
    has_ram || map_place(&tree).is_some()
}

/// The number of properties of `/chosen`.
fn chosen_properties(bytes: &[u8]) -> usize {
    let tree = Tree::new(bytes).ok();
    let chosen = tree.and_then(|tree| tree.find(b"/chosen"));
    chosen.map_or(0, |chosen| chosen.properties().count())
}

/// The place and the bytes of EFI's memory map, and the size and the version of its descriptors.
fn map_place(tree: &Tree<'_>) -> Option<(u64, u64, u32, u32)> {
    let chosen = tree.find(b"/chosen")?;
    let small = |name| chosen.number(name)?.try_into().ok();
    Some((
        chosen.number(chosen::UEFI_MAP_START)?,
        chosen.number(chosen::UEFI_MAP_BYTES)?,
        small(chosen::UEFI_DESCRIPTOR_BYTES)?,
        small(chosen::UEFI_DESCRIPTOR_VERSION)?,
    ))
}

/// The memory of EFI's map that Linux does not map: cacheable, and not for its use.
fn efi(tree: &Tree<'_>, memory: &dyn Memory) -> Option<Vec<Range<u64>>> {
    let (start, bytes, descriptor, version) = map_place(tree)?;
    Map::check(bytes, descriptor, version).ok()?;
    let mut map = vec![0; bytes as usize];
    memory.read(PhysicalAddress(start), &mut map).ok()?;
    let map = Map::new(&map, descriptor, version).ok()?;
    // ACPI's tables (9) and persistent memory (14) are mapped.
    let kept = map.filter(|it| it.is_readable() && it.is_kept() && !matches!(it.kind, 9 | 14));
    let ranges = kept.filter_map(|it| it.range());
    Some(
        ranges
            .map(|range| range.start..range.start.saturating_add(range.bytes))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::raw;
    use granule_boot::tree::{WriteError, Writer};

    const BASE: u64 = 0x4000_0000;

    /// A tree with RAM at `ram`, a no-map range there, and properties of `/chosen`.
    fn tree(ram: u64, chosen: &[(&[u8], u64)]) -> Result<Vec<u8>, WriteError> {
        let mut bytes = vec![0; 4096];
        let mut to = Writer::new(&mut bytes, [])?;
        let two_cells = |to: &mut Writer<'_>| {
            to.cells(b"#address-cells", &[2])?;
            to.cells(b"#size-cells", &[2])
        };
        to.begin(b"")?;
        two_cells(&mut to)?;
        to.begin(b"memory")?;
        to.text(b"device_type", b"memory")?;
        to.numbers(b"reg", [ram, 1 << 20])?;
        to.end()?;
        to.begin(b"reserved-memory")?;
        two_cells(&mut to)?;
        to.property(b"ranges", &[])?;
        for (name, at) in [(&b"kept"[..], ram + 0x1000), (b"mapped", ram + 0x9000)] {
            to.begin(name)?;
            to.numbers(b"reg", [at, 0x2000])?;
            if name == b"kept" {
                to.property(b"no-map", &[])?;
            }
            to.end()?;
        }
        to.end()?;
        to.begin(b"chosen")?;
        for &(name, value) in chosen {
            match name {
                chosen::UEFI_MAP_START => to.numbers(name, [value])?,
                _ => to.cells(name, &[value as u32])?,
            }
        }
        to.end()?;
        to.end()?;
        let used = to.finish(0)?;
        bytes.truncate(used);
        Ok(bytes)
    }

    #[test]
    fn the_tree_of_the_machine_is_found_and_efis_map_through_it() {
        let place = |memory: &mut [u8], at: u64, bytes: &[u8]| {
            memory[(at - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        let find =
            |memory: &[u8]| MemoryMap::find(&*raw::open(memory.to_vec(), BASE).0, &mut |_| {});
        let mut memory = vec![0; 1 << 20];
        assert!(
            find(&memory)
                .unwrap_err()
                .contains("no device tree of this machine")
        );
        // That of another machine, and one that is cut off.
        place(
            &mut memory,
            BASE + 0x3000,
            &tree(0x8_0000_0000, &[]).unwrap(),
        );
        place(&mut memory, BASE + 0x5000, &tree(BASE, &[]).unwrap()[..200]);
        assert!(find(&memory).is_err());
        place(&mut memory, BASE + 0x2_0008, &tree(BASE, &[]).unwrap());
        let found = find(&memory).unwrap();
        let kept = BASE + 0x1000..BASE + 0x3000;
        assert_eq!(found.no_map, vec![kept; 1]);
        assert_eq!(found.origin, "the device tree at 0x40020008");
        // The kernel's, with what the boot stub added.
        let map = BASE + 0x4_0000;
        let chosen = [
            (chosen::UEFI_MAP_START, map),
            (chosen::UEFI_MAP_BYTES, 4 * 48),
            (chosen::UEFI_DESCRIPTOR_BYTES, 48),
            (chosen::UEFI_DESCRIPTOR_VERSION, 1),
        ];
        let kinds = [(7_u64, 8_u64), (6, 1 << 63 | 8), (0, 8), (11, 1 << 63)];
        for (number, (kind, attributes)) in (0..).zip(kinds) {
            let words = [kind, BASE + 0x10_0000 * number, 0, 2, attributes, 0];
            place(
                &mut memory,
                map + 48 * number,
                &words.map(u64::to_le_bytes).concat(),
            );
        }
        place(&mut memory, BASE + 0x6_0000, &tree(BASE, &chosen).unwrap());
        let found = find(&memory).unwrap();
        let kept = [
            BASE + 0x1000..BASE + 0x3000,
            BASE + 0x10_0000..BASE + 0x10_2000,
            BASE + 0x20_0000..BASE + 0x20_2000,
        ];
        assert_eq!(found.no_map, kept);
        assert_eq!(
            found.origin,
            "the device tree at 0x40060000 and EFI's memory map, one of 2 trees"
        );
    }

    #[test]
    fn lines_of_iomem() {
        let text = "\
09000000-09000fff : pl011@9000000
40000000-bfffffff : System RAM
  40010000-4111ffff : Kernel code
  48000000-480fffff : reserved
c0000000-c00fffff : reserved
8000000000-80000fffff : Reserved

";
        let map = MemoryMap::of_lines(text).unwrap();
        assert_eq!(
            map.no_map,
            [0xc000_0000..0xc010_0000, 0x80_0000_0000..0x80_0010_0000]
        );
        for (line, words) in [
            ("0-fff", "line 8: \"0-fff\" is not a line of /proc/iomem"),
            ("0x0-0xfff : x", "line 8: "),
            ("fff-0 : x", "line 8: "),
            ("0-+f : x", "line 8: "),
            (" : x", "line 8: "),
            ("0-10000000000000000 : x", "line 8: "),
        ] {
            let error = MemoryMap::of_lines(&format!("{text}{line}\n")).unwrap_err();
            assert!(error.contains(words) && error.len() < 200, "{error}");
        }
        let hidden = "00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n";
        assert!(
            MemoryMap::of_lines(hidden)
                .unwrap_err()
                .contains("to root alone")
        );
        assert!(MemoryMap::of_lines("").is_err());
    }
}
