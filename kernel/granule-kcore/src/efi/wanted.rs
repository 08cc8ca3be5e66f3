//! Memory that firmware takes for free and that must stay untouched: the reservations of the device
//! tree, and the range of `granule.persist=`.

use crate::persist;
use granule_boot::tree::{Range, Tree};
use granule_boot::words;

/// The range that the command line keeps for the next boot, if it can be read.
#[must_use]
pub fn persist(line: &[u8]) -> Option<Range> {
    let range = persist::range(words::find(line, b"granule.persist=")?).ok()?;
    Some(Range {
        start: range.start,
        bytes: range.end.checked_sub(range.start)?,
    })
}

/// Returns the memory that the tree reserves, by its list and by its nodes.
pub fn reserved<'a>(tree: &Tree<'a>) -> impl Iterator<Item = Range> + use<'a> {
    let listed = tree.reservations().into_iter().flatten();
    let nodes = tree.reserved_memory().into_iter().flatten();
    let in_nodes = nodes.flat_map(|node| node.reg().into_iter().flatten().flatten());
    listed.chain(in_nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtoolkit::memreserve::MemoryReservation;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

    #[test]
    fn the_range_for_the_next_boot_is_known() {
        let range = |start, bytes| Some(Range { start, bytes });
        assert_eq!(
            persist(b"x granule.persist=0x4f000000,0x1000 y"),
            range(0x4f00_0000, 0x1000)
        );
        for line in [&b""[..], b"granule.persist=", b"granule.persist=0x1,0x1000"] {
            assert_eq!(persist(line), None);
        }
    }

    #[test]
    fn hundreds_of_reservations_of_both_kinds_are_found() {
        let mut tree = DeviceTree::new();
        let mut node = DeviceTreeNode::new_unchecked("reserved-memory");
        for number in 1..=300_u64 {
            let start = number << 16;
            tree.memory_reservations
                .push(MemoryReservation::new(start, 1));
            let reg = [start as u32 + 8, 16].map(u32::to_be_bytes).concat();
            let reg = [[0; 4].as_slice(), &reg].concat();
            let mut one = DeviceTreeNode::new_unchecked(format!("one@{start:x}"));
            one.add_property(DeviceTreeProperty::new_unchecked("reg", reg));
            node.add_child(one);
        }
        tree.root.add_child(node);
        let bytes = tree.to_dtb();
        let all: Vec<_> = reserved(&Tree::new(&bytes).unwrap()).collect();
        assert_eq!(all.len(), 600);
        let range = |start, bytes| Range { start, bytes };
        assert_eq!(
            (all[0], all[300]),
            (range(0x1_0000, 1), range(0x1_0008, 16))
        );
    }
}
