//! A raw image: the bytes of memory from one address on, and nothing else.

use super::bytes::{Extents, Plain, ReadAt, cut_off};
use super::memory::{Facts, Memory, OpenError};
use std::io;
use std::ops::Range;

/// The memory of an image whose first byte is at `base`.
pub fn open<R: ReadAt + 'static>(image: R, base: u64) -> (Box<dyn Memory>, Facts) {
    let mut extents = Extents::default();
    extents.insert(base, image.bytes(), 0);
    plain(image, extents)
}

fn plain<R: ReadAt + 'static>(bytes: R, extents: Extents) -> (Box<dyn Memory>, Facts) {
    let memory = Plain {
        bytes,
        extents,
        left_out: Extents::default(),
    };
    (Box::new(memory), Facts::default())
}

/// The memory of several images, each with the address of its first byte.
/// Fails if two have the same address.
pub fn open_all<R: ReadAt + 'static>(
    images: Vec<(R, u64)>,
) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let mut extents = Extents::default();
    let mut end = 0_u64;
    let mut placed: Vec<Range<u64>> = Vec::new();
    for (image, base) in &images {
        let range = *base..base.saturating_add(image.bytes());
        let other = placed
            .iter()
            .find(|other| other.start < range.end && range.start < other.end);
        if let Some(other) = other {
            let (first, other) = (other.start.max(range.start), other.start);
            return Err(OpenError(format!(
                "the raw images at {other:#x} and {base:#x} both have {first:#x}: give each the address of its first byte"
            )));
        }
        extents.insert(*base, image.bytes(), end);
        end = end.saturating_add(image.bytes());
        placed.push(range);
    }
    let images = images.into_iter().map(|(image, _)| image).collect();
    Ok(plain(Joined(images), extents))
}

/// Files one behind the other.
#[derive(Debug)]
struct Joined<R>(Vec<R>);

impl<R: ReadAt> ReadAt for Joined<R> {
    fn bytes(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |all, file| all.saturating_add(file.bytes()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        // The extents of memory end with their files, so no read goes on in the next.
        let mut offset = offset;
        for file in &self.0 {
            match offset.checked_sub(file.bytes()) {
                Some(behind) => offset = behind,
                None => return file.read_at(offset, buffer),
            }
        }
        Err(cut_off())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::PhysicalAddress;

    #[test]
    fn several_images_are_one_memory() {
        let images = vec![
            (vec![1, 2], 0x8000),
            (vec![], 0x10),
            (vec![5, 6, 7], 0x1_0000_0000),
            (vec![3, 4], 0x8002),
        ];
        let (memory, _) = open_all(images).unwrap();
        assert_eq!(
            memory.ranges(),
            [0x8000..0x8004, 0x1_0000_0000..0x1_0000_0003]
        );
        for (address, expected) in [
            (0x8000, [1, 2, 3]),
            (0x8001, [2, 3, 4]),
            (0x1_0000_0000, [5, 6, 7]),
        ] {
            let mut three = [0; 3];
            memory.read(PhysicalAddress(address), &mut three).unwrap();
            assert_eq!(three, expected, "{address:#x}");
        }
        assert!(memory.read(PhysicalAddress(0x8003), &mut [0; 3]).is_err());
        let error = open_all(vec![(vec![1, 2], 0x8000), (vec![3], 0x8001)])
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .contains("at 0x8000 and 0x8001 both have 0x8001"),
            "{error}"
        );
    }

    #[test]
    fn an_image_begins_at_its_base_and_ends() {
        let (memory, _) = open(vec![1, 2, 3, 4], 0x4000_0000);
        assert_eq!(memory.ranges().first(), Some(&(0x4000_0000..0x4000_0004)));
        assert_eq!(memory.ranges().len(), 1);
        let mut two = [0; 2];
        memory.read(PhysicalAddress(0x4000_0002), &mut two).unwrap();
        assert_eq!(two, [3, 4]);
        for absent in [0x3fff_ffff, 0x4000_0003, u64::MAX] {
            assert!(memory.read(PhysicalAddress(absent), &mut two).is_err());
        }
        let (memory, _) = open(vec![1; 16], u64::MAX - 7);
        assert!(
            memory
                .read(PhysicalAddress(u64::MAX - 7), &mut [0; 16])
                .is_err()
        );
    }
}
