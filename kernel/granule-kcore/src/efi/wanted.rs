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
    use crate::made_trees::{cells, node, tree};

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
        let starts = (1..=300_u64).map(|number| number << 16);
        let nodes = starts.clone().map(|start| {
            let reg = cells(&[0, start as u32 + 8, 16]);
            node(&format!("one@{start:x}"), &[("reg", &reg)], [])
        });
        let reservations: Vec<_> = starts.clone().map(|start| (start, 1)).collect();
        let root = node("", &[], [node("reserved-memory", &[], nodes)]);
        let bytes = tree(root, &reservations);
        let all: Vec<_> = reserved(&Tree::new(&bytes).unwrap()).collect();
        assert_eq!(all.len(), 600);
        let range = |start, bytes| Range { start, bytes };
        assert_eq!(
            [all[0], all[300]],
            [range(0x1_0000, 1), range(0x1_0008, 16)]
        );
    }
}
