//! Guest RAM, in the memory of QEMU's process.
//!
//! `granule watch` makes QEMU back the RAM by a memory file of a fixed name, which the list of the
//! process's mappings contains.

#![allow(unsafe_code, reason = "the guest's RAM in the process's memory")]

use crate::track::Memory;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The place of guest RAM.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ram {
    /// The first physical address.
    base: u64,
    /// The number of bytes; 0 if the RAM was not found.
    bytes: u64,
    /// The address in this process.
    host: usize,
}

impl Ram {
    /// Finds RAM of this size in a mapping with `name` in its name.
    pub(crate) fn find(name: &str, base: u64, bytes: u64) -> Option<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let host = maps.lines().find_map(|line| mapping(line, name, bytes))?;
        Some(Self { base, bytes, host })
    }

    /// Returns the first physical address.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the number of bytes; 0 if the RAM was not found.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Parses the address of a readable mapping of this size with `name` in its name.
fn mapping(line: &str, name: &str, bytes: u64) -> Option<usize> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let is_readable = words.next()?.starts_with('r');
    let from = usize::from_str_radix(from, 16).ok()?;
    let to = usize::from_str_radix(to, 16).ok()?;
    // The name is the rest of the line, and may have spaces.
    let named = line.get(line.find('/')?..)?.contains(name);
    (is_readable && named && to.checked_sub(from)? as u64 == bytes).then_some(from)
}

impl Memory for Ram {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        let Some(offset) = address.checked_sub(self.base) else {
            return false;
        };
        let bytes = to.len() as u64 * 8;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) || offset % 8 != 0 {
            return false;
        }
        for (index, word) in to.iter_mut().enumerate() {
            let at = self.host + offset as usize + index * 8;
            // SAFETY: `at` is an aligned word of the mapping that `find` found, by the private `host` and
            // `bytes`. QEMU keeps it until it ends. The guest may store to it at any time, which an
            // atomic load allows.
            *word = unsafe { &*(at as *const AtomicU64) }.load(Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_the_size_and_name_is_found() {
        let maps = "\
7f0000000000-7f0000001000 rw-s 00000000 00:01 7 /memfd:memory-backend-memfd (deleted)
7f1000000000-7f1040000000 rw-p 00000000 00:00 0
7f2000000000-7f2040000000 ---s 00000000 00:01 9 /memfd:memory-backend-memfd (deleted)
7f3000000000-7f3040000000 rw-s 00000000 00:01 9 /memfd:memory-backend-memfd (deleted)
7f4000000000-7f4000002000 rw-s 00000000 00:01 9 /home/some one/ram
";
        let find = |bytes| {
            maps.lines()
                .find_map(|line| mapping(line, "memory-backend-memfd", bytes))
        };
        assert_eq!(find(1 << 30), Some(0x7f30_0000_0000));
        assert_eq!(find(1 << 12), Some(0x7f00_0000_0000));
        assert_eq!(find(1 << 20), None);
        assert_eq!(mapping("", "", 0), None);
        let spaced = maps.lines().last().unwrap();
        assert_eq!(
            mapping(spaced, "some one/ram", 0x2000),
            Some(0x7f40_0000_0000)
        );
    }

    #[test]
    fn only_whole_words_inside_are_loaded() {
        let words = [1_u64, 2, 3, 4];
        let ram = Ram {
            base: 0x4000_0000,
            bytes: 32,
            host: words.as_ptr() as usize,
        };
        let load = |address, count| {
            let mut to = vec![0; count];
            ram.load(address, &mut to).then_some(to)
        };
        assert_eq!(load(0x4000_0008, 2), Some(vec![2, 3]));
        for (address, count) in [
            (0x4000_0008, 4),
            (0x4000_0004, 1),
            (0x3fff_fff8, 1),
            (0, 1),
            (u64::MAX - 7, 1),
            (0x4000_0020, 1),
        ] {
            assert_eq!(load(address, count), None, "{address:#x}");
        }
    }
}
