//! A raw image: the bytes of memory from one address on, and nothing else.

use super::bytes::{Extents, Plain, ReadAt};
use super::memory::{Facts, Memory};

/// The memory of an image whose first byte is at `base`.
pub fn open<R: ReadAt + 'static>(image: R, base: u64) -> (Box<dyn Memory>, Facts) {
    let mut extents = Extents::default();
    extents.insert(base, image.bytes(), 0);
    let memory = Plain {
        bytes: image,
        extents,
        left_out: Extents::default(),
    };
    (Box::new(memory), Facts::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::PhysicalAddress;

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
