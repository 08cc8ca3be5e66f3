//! Target for the device tree that a kernel writes for the next one. Its input is the machine's tree, from
//! firmware or from an earlier kernel.
//!
//! The trees are those of [`nodes`](crate::nodes), with the content that the rewriting looks for:
//! `/chosen`, and reservations that overlap each other and kept memory. Some have spare room at the end,
//! some are damaged. The written tree is read with the crate that the next kernel uses, and compared with
//! the old one.

use crate::bytes::{Bytes, one_line};
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node, Property};
use granule_boot::tree::WriteError;
use granule_kcore::kexec::handoff_note;
use granule_kcore::kexec::next_tree::{
    Changes, NextTreeError, SEED_BYTES, Seeds, most_bytes, write,
};
use granule_kexec::PhysRange;

/// Bytes of a case that select the changes; the others make the tree.
const MINE: usize = 120;

/// The value of bytes that nothing has written.
const FILL: u8 = 0xa5;

/// Properties of `/chosen` that every written tree has.
const OWN: [&str; 6] = [
    "bootargs",
    "linux,initrd-start",
    "linux,initrd-end",
    "kaslr-seed",
    "rng-seed",
    handoff_note::PROPERTY,
];
/// Properties that no written tree has.
const NONE: [&str; 2] = ["linux,elfcorehdr", "linux,ima-kexec-buffer"];
/// Other properties, which stay.
const OTHERS: [&str; 4] = [
    "linux,usable-memory-range",
    "stdout-path",
    "bootargs-append",
    "reg",
];

/// Few ranges, so that they overlap; none is empty.
fn extent(given: &mut Bytes<'_>) -> PhysRange {
    match given.below(8) {
        0 => PhysRange::new(given.word(), given.word() | 1),
        1 => PhysRange::new(0, 0x1000),
        _ => {
            let start = 0x4000_0000 + 0x1_0000 * u64::from(given.byte() % 4);
            PhysRange::new(start, [0x1000, 0x1_0000][given.below(2)])
        }
    }
}

/// A value of the right length, or of another.
fn value(name: &str, given: &mut Bytes<'_>) -> Vec<u8> {
    match (name, given.below(6)) {
        (_, 0) => vec![given.byte(); given.below(20)],
        ("bootargs" | "stdout-path", _) => b"some words\0".to_vec(),
        ("linux,initrd-end", 1) => (extent(given).start as u32).to_be_bytes().to_vec(),
        ("linux,initrd-end", _) => {
            let extent = extent(given);
            let end = extent.start.wrapping_add(extent.bytes);
            end.to_be_bytes().to_vec()
        }
        (_, 1) => (extent(given).start as u32).to_be_bytes().to_vec(),
        _ => extent(given).start.to_be_bytes().to_vec(),
    }
}

fn chosen(given: &mut Bytes<'_>) -> DeviceTreeNode {
    let name = ["chosen", "chosen@0"][given.below(2)];
    let mut node = DeviceTreeNode::new_unchecked(name);
    for name in OWN.into_iter().chain(NONE).chain(OTHERS) {
        if given.below(2) > 0 {
            let value = value(name, given);
            node.add_property(DeviceTreeProperty::new_unchecked(name, value));
        }
    }
    if given.below(3) == 0 {
        let mut child = DeviceTreeNode::new_unchecked("module@1");
        child.add_property(DeviceTreeProperty::new_unchecked("bootargs", "its own"));
        node.add_child(child);
    }
    node
}

/// The machine's tree, and whether all of it is well formed.
fn machine(given: &mut Bytes<'_>, rest: &[u8]) -> (Vec<u8>, bool) {
    let (made, _) = crate::nodes::tree(rest);
    let Ok(read) = Fdt::new(&made) else {
        return (made, false);
    };
    let mut tree = DeviceTree::from_fdt(&read);
    for _ in 0..given.below(5) {
        let one = extent(given);
        let one = MemoryReservation::new(one.start, one.bytes);
        tree.memory_reservations.push(one);
    }
    if given.below(4) > 0 {
        tree.root.add_child(chosen(given));
    }
    let mut written = tree.to_dtb();
    if given.below(4) == 0 {
        let room = written.len() + given.below(200);
        written.resize(room, 0);
        written[4..8].copy_from_slice(&(room as u32).to_be_bytes());
    }
    let damage = given.below(8).saturating_sub(4);
    for _ in 0..damage {
        // Half of them in the header.
        let within = [40, written.len()][given.below(2)];
        let place = given.word() as usize % within;
        written[place] = given.byte();
    }
    (written, damage == 0)
}

pub(crate) fn kexec_tree(bytes: &[u8]) {
    let (mine, rest) = bytes.split_at(bytes.len().min(MINE));
    let mut given = Bytes(mine);
    let kept: Vec<_> = (0..given.below(4)).map(|_| extent(&mut given)).collect();
    let line: Vec<_> = (0..given.below(40)).map(|at| at as u8 | 0x40).collect();
    let has = given.byte();
    let changes = Changes {
        command_line: &line,
        initrd: (has & 1 != 0).then(|| extent(&mut given)),
        note: Some(extent(&mut given)),
        crash: None,
        kept: &kept,
        old: extent(&mut given),
        seeds: Seeds {
            kaslr: (has & 4 != 0).then(|| given.word()),
            rng: (has & 2 != 0).then_some([has; SEED_BYTES]),
        },
    };
    let (machine, sound) = machine(&mut given, rest);
    let new = rewritten(&machine, &changes);
    assert!(new.is_some() || !sound, "a sound tree is refused");
    rewritten(bytes, &changes);
}

/// Writes the new tree, if that is possible, and checks statements that hold for every old tree.
fn rewritten(old: &[u8], changes: &Changes<'_>) -> Option<Vec<u8>> {
    let most = most_bytes(old, changes)
        .inspect_err(|error| one_line(&error.to_string()))
        .ok()?;
    // The sizes in a tree never make a kernel look for more memory than this.
    let few = 1024 + changes.command_line.len() + 16 * changes.kept.len();
    assert!(most <= 3 * old.len() + few, "{most} for {}", old.len());
    let mut into = vec![FILL; most + 64];
    let length = write(old, changes, &mut into[..most])
        .inspect_err(|error| one_line(&error.to_string()))
        .ok()?;
    assert!(into[length..].iter().all(|byte| *byte == FILL));
    into.truncate(length);
    // Its length is the same with no spare room, and when no place is known yet.
    let mut exact = vec![!FILL; length];
    assert_eq!(write(old, changes, &mut exact), Ok(length));
    assert_eq!(exact, into);
    let room = length - 1;
    assert_eq!(
        write(old, changes, &mut exact[..room]),
        Err(NextTreeError::Tree(WriteError::Full { room }))
    );
    let unplaced = Changes {
        initrd: changes.initrd.map(|_| PhysRange::default()),
        note: changes.note.map(|note| PhysRange::new(0, note.bytes)),
        ..*changes
    };
    assert_eq!(most_bytes(old, &unplaced), Ok(most));
    assert_eq!(write(old, &unplaced, &mut exact), Ok(length));
    // The tree for a kernel after the next one is no longer.
    let again = most_bytes(&into, changes).map(|most| vec![0; most]);
    let again = again.and_then(|mut room| write(&into, changes, &mut room));
    assert!(again.is_ok_and(|again| again <= length), "{again:?}");
    let size = u32::from_be_bytes(*old[4..].first_chunk()?) as usize;
    if let Ok(read) = Fdt::new(&old[..size]) {
        let new = Fdt::new(&into);
        let new = new.unwrap_or_else(|error| panic!("nobody can read what was made: {error}"));
        check_changes(&new, &read, changes);
        all_else(&new, &read);
    }
    Some(into)
}

/// The `/chosen` node: the first, with or without a unit address.
fn chosen_of<'a>(tree: &Fdt<'a>) -> Option<FdtNode<'a>> {
    let is_chosen = |name: &str| name == "chosen" || name.starts_with("chosen@");
    tree.root().children().find(|node| is_chosen(node.name()))
}

/// The values that the next kernel gets.
fn check_changes(new: &Fdt<'_>, old: &Fdt<'_>, changes: &Changes<'_>) {
    let chosen = chosen_of(new).unwrap_or_else(|| panic!("no /chosen"));
    let once = |name: &str| {
        let found: Vec<_> = chosen.properties().filter(|it| it.name() == name).collect();
        assert!(found.len() <= 1, "{name} twice");
        found.first().map(|it| it.value().to_vec())
    };
    let number = |number: u64| Some(number.to_be_bytes().to_vec());
    let initrd = changes.initrd;
    let end = initrd.map(|it| it.start.saturating_add(it.bytes));
    let line = [changes.command_line, &[0]].concat();
    assert_eq!(once("bootargs"), Some(line));
    assert_eq!(
        once("linux,initrd-start"),
        initrd.and_then(|it| number(it.start))
    );
    assert_eq!(once("linux,initrd-end"), end.and_then(number));
    assert_eq!(once("kaslr-seed"), changes.seeds.kaslr.and_then(number));
    let seed = changes.seeds.rng.map(|it| it.to_vec());
    assert_eq!(once("rng-seed"), seed);
    assert_eq!(
        once(handoff_note::PROPERTY),
        number(changes.note.unwrap_or_default().start)
    );
    for name in NONE {
        assert_eq!(once(name), None, "{name}");
    }
    let all = |tree: &Fdt<'_>| -> Vec<_> {
        let all = tree.memory_reservations();
        all.map(|it| PhysRange::new(it.address(), it.size()))
            .collect()
    };
    let (was, now) = (all(old), all(new));
    let wanted = || changes.kept.iter().chain(&changes.note);
    for one in wanted() {
        assert!(now.contains(one), "{one:x?} of {now:x?}");
    }
    let from_old = now.len() - wanted().count();
    assert!(now[..from_old].iter().all(|one| was.contains(one)));
    // A reservation that is gone was this kernel's alone, or was named as such: a property that is missing
    // or of another length names 0.
    let named = |start: u64| {
        let values = chosen_of(old).into_iter().flat_map(|it| it.properties());
        let names = ["linux,initrd-start", handoff_note::PROPERTY];
        let mut values = values.filter(|it| names.contains(&it.name()));
        start == 0
            || values.any(|it| {
                let value = it.value();
                let short = value.len() == 4 && value == (start as u32).to_be_bytes();
                short || value.starts_with(&start.to_be_bytes())
            })
    };
    for gone in was.iter().filter(|one| !now.contains(one)) {
        assert!(*gone == changes.old || named(gone.start), "{gone:x?}");
    }
}

/// Everything else is unchanged.
fn all_else(new: &Fdt<'_>, old: &Fdt<'_>) {
    let chosen = |tree: &Fdt<'_>| {
        let node = chosen_of(tree)?;
        let mut node = DeviceTreeNode::from_node(&node);
        for name in OWN.into_iter().chain(NONE) {
            node.remove_property(name);
        }
        Some(node)
    };
    let before = chosen(old).unwrap_or_else(|| DeviceTreeNode::new_unchecked("chosen"));
    assert_eq!(chosen(new), Some(before));
    let rest = |tree: &Fdt<'_>| {
        let mut root = DeviceTree::from_fdt(tree).root;
        if let Some(chosen) = chosen_of(tree) {
            root.remove_child(chosen.name());
        }
        root
    };
    assert_eq!(rest(new), rest(old));
}

#[cfg(test)]
mod reached {
    use super::*;

    /// If all trees were refused, every check above would pass.
    #[test]
    fn trees_are_rewritten_and_read() {
        let (mut written, mut refused, mut damaged) = (0, 0, 0);
        for bytes in crate::bytes::drawn(2000, 300) {
            let (mine, rest) = bytes.split_at(MINE);
            let (old, sound) = machine(&mut Bytes(mine), rest);
            let changes = Changes {
                command_line: b"x",
                initrd: None,
                note: Some(PhysRange::new(0x5000_0000, 0x1000)),
                crash: None,
                kept: &[],
                old: PhysRange::new(0x4000_0000, 0x1000),
                seeds: Seeds {
                    kaslr: Some(1),
                    rng: None,
                },
            };
            let new = rewritten(&old, &changes);
            written += u32::from(new.is_some() && sound);
            damaged += u32::from(new.is_some() && !sound);
            refused += u32::from(new.is_none());
        }
        println!("{written} as they should be, {damaged} damaged, {refused} refused");
        assert!(written > 300 && damaged > 100 && refused > 100);
    }
}
