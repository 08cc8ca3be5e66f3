//! Device trees on the host: QEMU's own tree for a request, and the properties that we put into
//! `/chosen`. `granule_boot::tree` reads trees; the crate dtoolkit writes them.
//!
//! Trees given with `--dtb` are only read, never edited. A broken one is not an error here: the kernel
//! must see it unchanged.

use std::process::Command;

use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use granule_boot::tree::{Node, Tree, TreeError};

use super::{guest, qemu};
use crate::request::{COUNT_INSTRUCTIONS, Request};
use crate::trace_area::TraceArea;

/// The tree that QEMU makes for this request's machine, without bootargs, initrd and QEMU's
/// padding. A test edits or breaks it and passes it back with [`Request::dtb`].
/// Fails with one line: QEMU is missing, refuses the machine, or writes no tree.
pub fn dump(request: &Request) -> Result<Vec<u8>, String> {
    request.check()?;
    let dir = guest::temp_dir()?;
    let path = dir.path().join("dtb");
    let extra = qemu::option_with_path(",dumpdtb=", &path, "");
    let extra = extra
        .to_str()
        .ok_or("the temporary directory's name is not UTF-8; set TMPDIR")?;
    let mut command = Command::new(&request.qemu);
    command.args(qemu::machine_options(request, extra));
    let output =
        qemu::run_briefly(command).map_err(|error| qemu::cannot_start(&request.qemu, &error))?;
    let bytes = std::fs::read(&path).map_err(|_| {
        qemu::first_error(&String::from_utf8_lossy(&output.stderr))
            .unwrap_or_else(|| "QEMU wrote no device tree and printed no error".into())
    })?;
    Ok(model(&bytes)?.to_dtb())
}

/// A tree as values that can be edited.
/// Fails with one line: the error in the tree, and the node that has it.
pub fn model(dtb: &[u8]) -> Result<DeviceTree, String> {
    let wrong = |error: TreeError| format!("QEMU's device tree: {error}");
    let tree = Tree::new(dtb).map_err(wrong)?;
    if let Some(error) = tree.damage() {
        return Err(format!("{}, in {}", wrong(error), tree.damaged_node()));
    }
    let mut made = DeviceTree::new();
    made.memory_reservations = tree
        .reservations()
        .map_err(wrong)?
        .map(|range| MemoryReservation::new(range.start, range.bytes))
        .collect();
    if let Some(root) = tree.root() {
        made.root = node_model(&root);
    }
    Ok(made)
}

fn node_model(node: &Node<'_>) -> DeviceTreeNode {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Names may be longer than the specification allows.
    let mut made = DeviceTreeNode::new_unchecked(text(node.name()));
    for property in node.properties() {
        let name = text(property.name.bytes());
        made.add_property(DeviceTreeProperty::new_unchecked(name, property.value));
    }
    for child in node.children() {
        made.add_child(node_model(&child));
    }
    made
}

/// The tree with `bootargs`, the initrd's addresses and the seed of the kernel's addresses in `/chosen`.
pub(crate) fn with_chosen(
    dtb: &[u8],
    bootargs: &str,
    initrd: Option<(u64, u64)>,
    kaslr_seed: Option<u64>,
) -> Result<Vec<u8>, String> {
    let mut tree = model(dtb)?;
    if tree.find_node("/chosen").is_none() {
        tree.root.add_child(DeviceTreeNode::new_unchecked("chosen"));
    }
    let chosen = tree
        .find_node_mut("/chosen")
        .ok_or("QEMU's device tree: /chosen cannot be made")?;
    if !bootargs.is_empty() {
        chosen.add_property(DeviceTreeProperty::new_unchecked("bootargs", bootargs));
    }
    if let Some((start, end)) = initrd {
        chosen.add_property(DeviceTreeProperty::new_unchecked(
            "linux,initrd-start",
            start,
        ));
        chosen.add_property(DeviceTreeProperty::new_unchecked("linux,initrd-end", end));
    }
    if let Some(seed) = kaslr_seed {
        chosen.add_property(DeviceTreeProperty::new_unchecked("kaslr-seed", seed));
    }
    Ok(tree.to_dtb())
}

/// Whether the bootargs of an exact tree request instruction counts.
pub fn counts_instructions(dtb: &[u8]) -> bool {
    bootargs(dtb).is_some_and(|text| {
        text.split_whitespace()
            .any(|word| word == COUNT_INSTRUCTIONS)
    })
}

/// The trace area in the bootargs of an exact tree.
pub fn trace_area(dtb: &[u8]) -> Option<TraceArea> {
    TraceArea::of_bootargs(&bootargs(dtb)?)
}

fn bootargs(dtb: &[u8]) -> Option<String> {
    let text = chosen(dtb)?.text(b"bootargs")?;
    Some(str::from_utf8(text).ok()?.to_owned())
}

fn chosen(dtb: &[u8]) -> Option<Node<'_>> {
    Tree::new(dtb).ok()?.root()?.child(b"chosen")
}

/// The initrd's address in an exact tree.
pub fn initrd_start(dtb: &[u8]) -> Option<u64> {
    chosen(dtb)?.number(b"linux,initrd-start")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(dtb: &[u8], name: &str) -> Vec<u8> {
        let value = chosen(dtb).unwrap().property(name.as_bytes());
        value.unwrap().to_vec()
    }

    #[test]
    fn chosen_is_made_and_then_replaced() {
        let empty = DeviceTree::new().to_dtb();
        let once = with_chosen(&empty, "a b", Some((0x1_4000_0000, 0x1_4000_1000)), None).unwrap();
        assert_eq!(text(&once, "bootargs"), b"a b\0");
        assert_eq!(initrd_start(&once), Some(0x1_4000_0000));
        assert_eq!(
            text(&once, "linux,initrd-end"),
            0x1_4000_1000_u64.to_be_bytes()
        );
        let twice = with_chosen(&once, "granule.count=instructions", None, Some(7)).unwrap();
        assert_eq!(text(&twice, "bootargs"), b"granule.count=instructions\0");
        assert_eq!(text(&twice, "kaslr-seed"), 7_u64.to_be_bytes());
        assert!(counts_instructions(&twice) && !counts_instructions(&once));
    }

    #[test]
    fn broken_trees_are_looked_into_without_harm() {
        let whole = with_chosen(&DeviceTree::new().to_dtb(), "x", Some((1, 2)), None).unwrap();
        for length in 0..whole.len() {
            assert_eq!(initrd_start(&whole[..length]), None);
            assert!(!counts_instructions(&whole[..length]));
        }
        assert!(
            with_chosen(b"junk", "x", None, None)
                .unwrap_err()
                .contains("device tree")
        );
    }
}
