//! Raw mode: the addresses of image, tree and initial RAM disk when we place them in RAM ourselves,
//! and the instructions in flash that enter the image.
//!
//! Pure: addresses and bytes only. `tree` makes the tree's content, `qemu` the options for all
//! this.

use crate::image::RAM_BASE;

/// With firmware in flash, QEMU still copies its own tree (up to 1 MiB) to the start of RAM and
/// refuses to start if anything else lies there.
const QEMU_TREE_BYTES: u64 = 2 << 20;
/// The boot protocol allows a tree of at most 2 MiB, and a kernel may map it as one 2 MiB block: no
/// other piece shares that block.
const TREE_ALIGN: u64 = 2 << 20;
/// The largest page size, so that the disk's first page holds nothing else.
const INITRD_ALIGN: u64 = 64 << 10;

/// The pieces to place.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    /// RAM in bytes, from [`RAM_BASE`] on.
    pub ram_bytes: u64,
    /// Address of the image's first byte.
    pub load_address: u64,
    /// Memory the image needs, zeroed data included.
    pub image_span: u64,
    /// Length of the tree.
    pub tree_bytes: u64,
    /// The requested address of the tree.
    pub tree_address: Option<u64>,
    /// Length of the initial RAM disk, 0 for none.
    pub initrd_bytes: u64,
    /// The requested address of the initial RAM disk.
    pub initrd_address: Option<u64>,
}

/// The addresses of the pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The image's first byte.
    pub image: u64,
    /// The tree's first byte.
    pub tree: u64,
    /// The initial RAM disk's first byte; meaningless if the disk is empty.
    pub initrd: u64,
}

/// A piece that has its place.
struct Taken {
    what: &'static str,
    start: u64,
    end: u64,
}

/// Finds an address for every piece.
///
/// The tree goes behind the image and the disk behind the tree, because RAM there is most likely
/// described by the tree; a piece without room there goes in front of the image.
/// Fails with one line if a piece would lie outside RAM or overlap another.
pub fn lay_out(pieces: &Pieces) -> Result<Layout, String> {
    let mut room = Room {
        start: RAM_BASE + QEMU_TREE_BYTES,
        end: RAM_BASE.saturating_add(pieces.ram_bytes),
        taken: Vec::new(),
    };
    room.take("the image", pieces.load_address, pieces.image_span)?;
    let behind = pieces.load_address.saturating_add(pieces.image_span);
    // Pieces with a requested address go first, so that no other piece takes it.
    if let Some(address) = pieces.initrd_address {
        room.take("the initrd", address, pieces.initrd_bytes)?;
    }
    let tree = match pieces.tree_address {
        Some(address) => {
            room.take("the device tree", address, pieces.tree_bytes)?;
            address
        }
        None => room.find("the device tree", behind, pieces.tree_bytes, TREE_ALIGN)?,
    };
    let initrd = match pieces.initrd_address {
        Some(address) => address,
        None if pieces.initrd_bytes == 0 => behind,
        None => {
            let from = tree.saturating_add(TREE_ALIGN);
            room.find("the initrd", from, pieces.initrd_bytes, INITRD_ALIGN)?
        }
    };
    Ok(Layout {
        image: pieces.load_address,
        tree,
        initrd,
    })
}

struct Room {
    start: u64,
    end: u64,
    taken: Vec<Taken>,
}

impl Room {
    fn contains(&self, start: u64, end: u64) -> bool {
        start >= self.start && end <= self.end
    }

    fn overlapped(&self, start: u64, end: u64) -> impl Iterator<Item = &Taken> {
        let overlaps = move |taken: &&Taken| start < taken.end && taken.start < end;
        self.taken.iter().filter(overlaps)
    }

    fn take(&mut self, what: &'static str, start: u64, bytes: u64) -> Result<(), String> {
        let end = start.saturating_add(bytes.max(1));
        if !self.contains(start, end) {
            return Err(format!(
                "{what} ({start:#x} to {end:#x}) does not lie in RAM, which is {:#x} to {:#x}; choose \
                 another address or more --memory",
                self.start, self.end
            ));
        }
        if let Some(Taken { what: other, .. }) = self.overlapped(start, end).next() {
            return Err(format!(
                "{what} ({start:#x} to {end:#x}) overlaps {other}; choose another address"
            ));
        }
        self.taken.push(Taken { what, start, end });
        Ok(())
    }

    /// First fit from `from` upwards, else from the start of RAM.
    fn find(
        &mut self,
        what: &'static str,
        from: u64,
        bytes: u64,
        align: u64,
    ) -> Result<u64, String> {
        for mut start in [from.max(self.start), self.start] {
            while let Some(aligned) = start.checked_next_multiple_of(align) {
                let end = aligned.saturating_add(bytes.max(1));
                if !self.contains(aligned, end) {
                    break;
                }
                // Behind every piece that it overlaps. The loop ends, since each turn passes at least
                // one piece.
                match self.overlapped(aligned, end).map(|taken| taken.end).max() {
                    Some(behind) => start = behind,
                    None => {
                        self.take(what, aligned, bytes)?;
                        return Ok(aligned);
                    }
                }
            }
        }
        Err(format!(
            "no room in RAM for {what} ({bytes} bytes) beside the image; give more --memory or another \
             --load-address"
        ))
    }
}

/// The instructions at address 0 that enter the image as the boot protocol requires: x0 is the
/// tree's address, x1 to x3 are 0, and the MMU is off since reset.
pub fn flash_stub(layout: &Layout) -> Vec<u8> {
    const X0: u32 = 0;
    const X4: u32 = 4;
    let mut code = Vec::with_capacity(12);
    code.extend(load_register(X0, layout.tree));
    code.extend([
        0xd280_0001, // movz x1, #0
        0xd280_0002, // movz x2, #0
        0xd280_0003, // movz x3, #0
    ]);
    code.extend(load_register(X4, layout.image));
    code.push(0xd61f_0000 | X4 << 5); // br x4
    code.iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect()
}

/// `movz`, then three `movk`: 16 bits each, whatever the value.
fn load_register(register: u32, value: u64) -> [u32; 4] {
    let part = |index: u32| ((value >> (16 * index)) as u32 & 0xffff) << 5 | index << 21 | register;
    [
        0xd280_0000 | part(0), // movz xN, #value[15:0]
        0xf280_0000 | part(1), // movk xN, #value[31:16], lsl #16
        0xf280_0000 | part(2), // movk xN, #value[47:32], lsl #32
        0xf280_0000 | part(3), // movk xN, #value[63:48], lsl #48
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: Pieces = Pieces {
        ram_bytes: 512 << 20,
        load_address: 0x4020_0000,
        image_span: 0x12_3456,
        tree_bytes: 10_000,
        tree_address: None,
        initrd_bytes: 0,
        initrd_address: None,
    };

    /// The places in the layout of these pieces after a change.
    fn laid_out(change: impl FnOnce(&mut Pieces)) -> Result<[u64; 3], String> {
        let mut pieces = PIECES;
        change(&mut pieces);
        lay_out(&pieces).map(|layout| [layout.image, layout.tree, layout.initrd])
    }

    #[test]
    fn tree_and_disk_go_behind_the_image_where_there_is_room() {
        let behind = laid_out(|it| it.initrd_bytes = 5 << 20);
        assert_eq!(behind, Ok([0x4020_0000, 0x4040_0000, 0x4060_0000]));
        // An image at the end of RAM.
        let in_front = laid_out(|it| (it.load_address, it.initrd_bytes) = (0x5fe0_0000, 1));
        assert_eq!(in_front, Ok([0x5fe0_0000, 0x4020_0000, 0x4040_0000]));
        let above_4_gib = laid_out(|it| (it.ram_bytes, it.load_address) = (8 << 30, 0x1_4000_0000));
        assert_eq!(above_4_gib.unwrap()[1], 0x1_4020_0000);
        // The tree is not laid over a disk with a place of its own.
        let fixed = laid_out(|it| {
            (it.initrd_address, it.initrd_bytes) = (Some(0x4040_1000), 3 << 20);
        });
        assert_eq!(fixed.unwrap()[1..], [0x4080_0000, 0x4040_1000]);
    }

    #[test]
    fn a_place_or_length_that_does_not_fit_is_refused() {
        type Change = fn(&mut Pieces);
        let outside = "does not lie in RAM";
        let changes: [(Change, &str); 11] = [
            // QEMU uses the start of RAM, and there is nothing below RAM.
            (
                |it| it.load_address = 0x4000_0000,
                "the image (0x40000000 to ",
            ),
            (|it| it.load_address = 0, outside),
            (|it| it.load_address = u64::MAX - 3, outside),
            (|it| it.load_address = 0x6000_0000, outside),
            (|it| it.image_span = 1 << 30, outside),
            (|it| it.image_span = u64::MAX, outside),
            (|it| it.ram_bytes = 1 << 20, outside),
            (|it| it.tree_address = Some(0x1000), outside),
            (
                |it| it.tree_address = Some(0x4020_0008),
                "overlaps the image",
            ),
            (
                |it| it.ram_bytes = 4 << 20,
                "no room in RAM for the device tree (10000 bytes)",
            ),
            (
                |it| it.initrd_bytes = 1 << 30,
                "no room in RAM for the initrd",
            ),
        ];
        for (change, expected) in changes {
            let line = laid_out(change).unwrap_err();
            assert!(line.contains(expected), "{expected}: {line}");
        }
    }

    #[test]
    fn pieces_never_overlap_wherever_the_image_lies() {
        for step in 0..255 {
            let load_address = 0x4020_0000 + step * (2 << 20);
            let pieces = Pieces {
                load_address,
                initrd_bytes: 3 << 20,
                ..PIECES
            };
            let layout = lay_out(&pieces).unwrap();
            let mut places = [
                (layout.image, pieces.image_span),
                (layout.tree, pieces.tree_bytes),
                (layout.initrd, pieces.initrd_bytes),
            ];
            places.sort_unstable();
            assert!(places[0].0 >= RAM_BASE + QEMU_TREE_BYTES);
            assert!(
                places.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0),
                "{places:x?}"
            );
            assert!(places[2].0 + places[2].1 <= RAM_BASE + pieces.ram_bytes);
        }
    }

    #[test]
    fn the_stub_is_what_an_assembler_makes_of_it() {
        let layout = Layout {
            image: 0x1_4020_0000,
            tree: 0x1234_5678_9abc_def0,
            initrd: 0,
        };
        let words: Vec<u32> = flash_stub(&layout)
            .chunks(4)
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
            .collect();
        assert_eq!(
            words,
            [
                0xd29b_de00, // movz x0, #0xdef0
                0xf2b3_5780, // movk x0, #0x9abc, lsl #16
                0xf2ca_cf00, // movk x0, #0x5678, lsl #32
                0xf2e2_4680, // movk x0, #0x1234, lsl #48
                0xd280_0001,
                0xd280_0002,
                0xd280_0003,
                0xd280_0004, // movz x4, #0
                0xf2a8_0404, // movk x4, #0x4020, lsl #16
                0xf2c0_0024, // movk x4, #0x1, lsl #32
                0xf2e0_0004, // movk x4, #0, lsl #48
                0xd61f_0080, // br x4
            ]
        );
    }
}
