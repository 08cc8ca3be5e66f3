//! Trees that are written are read back with another crate, and with the one reader.

use crate::trees::leaf as node;
use dtoolkit::fdt::Fdt;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::DeviceTree;
use dtoolkit::{Node as _, Property as _};
use granule_boot::tree::{
    Edit, EditPlace, MOST_NAMES, Name, Node, Range, Tree, TreeError, WriteError, Writer, rewrite,
};

fn value(tree: &Fdt<'_>, path: &str, name: &str) -> Option<Vec<u8>> {
    let node = tree.find_node(path)?;
    Some(node.property(name)?.value().to_vec())
}

/// Some of everything that can be written.
fn some(into: &mut [u8]) -> Result<usize, WriteError> {
    let kept = Range::new(0x4000_0000, 0x1000);
    let mut to = Writer::new(into, [kept])?;
    to.begin(b"")?;
    to.cells(b"#address-cells", &[2])?;
    to.cells(b"#size-cells", &[2])?;
    for start in [0, 0x9, 0xabc_def0_0000, u64::MAX] {
        to.begin_at(b"memory", start)?;
        to.text(b"device_type", b"memory")?;
        to.numbers(b"reg", [start, 0x20_0000])?;
        to.end()?;
    }
    to.begin(b"chosen")?;
    to.pieces(b"bootargs", &[b"one ", b"two\0"])?;
    to.property(b"odd", &[1, 2, 3, 4, 5])?;
    to.property(b"empty", &[])?;
    to.list(b"triples", [[1, 2, 3], [4, 5, 6]])?;
    to.end()?;
    to.end()?;
    to.finish(7)
}

#[test]
fn what_is_written_is_read_by_another_crate() {
    let mut bytes = [0xa5; 4096];
    let used = some(&mut bytes).unwrap();
    assert!(bytes[used..].iter().all(|byte| *byte == 0xa5));
    let read = Fdt::new(&bytes[..used]).unwrap();
    for (name, start) in [
        ("memory@0", 0),
        ("memory@9", 9),
        ("memory@abcdef00000", 0xabc_def0_0000),
        ("memory@ffffffffffffffff", u64::MAX),
    ] {
        let path = format!("/{name}");
        let reg = [start, 0x20_0000_u64].map(u64::to_be_bytes).concat();
        assert_eq!(value(&read, &path, "reg"), Some(reg), "{name}");
        let kind = value(&read, &path, "device_type");
        assert_eq!(kind.unwrap(), b"memory\0");
    }
    let chosen = |name| value(&read, "/chosen", name).unwrap();
    assert_eq!(chosen("bootargs"), b"one two\0");
    assert_eq!(chosen("odd"), [1, 2, 3, 4, 5]);
    assert!(chosen("empty").is_empty());
    assert_eq!(chosen("triples"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(value(&read, "/", "#size-cells").unwrap(), [0, 0, 0, 2]);
    let kept: Vec<_> = read.memory_reservations().collect();
    assert_eq!(kept, [MemoryReservation::new(0x4000_0000, 0x1000)]);
    assert_eq!(Tree::new(&bytes).unwrap().boot_cpu(), 7);
    // Each name is there once.
    let strings = Tree::new(&bytes).unwrap().strings().len();
    let names = "#address-cells #size-cells device_type reg bootargs odd empty triples ";
    assert_eq!(strings, names.len());
}

/// With any less room there is an error, and never a byte outside.
#[test]
fn too_little_room_is_an_error_wherever_it_ends() {
    let mut bytes = [0; 4096];
    let used = some(&mut bytes).unwrap();
    for room in 0..used {
        let mut bytes = vec![0xa5; used];
        let error = some(&mut bytes[..room]).unwrap_err();
        assert_eq!(error, WriteError::Full { room });
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(bytes[room..].iter().all(|byte| *byte == 0xa5));
    }
    let mut exact = vec![0; used];
    assert_eq!(some(&mut exact), Ok(used));
    assert_eq!(exact, bytes[..used]);
}

fn root(into: &mut [u8]) -> Writer<'_> {
    let mut to = Writer::new(into, []).unwrap();
    to.begin(b"").unwrap();
    to
}

#[test]
fn a_writer_that_is_misused_says_so() {
    let mut bytes = [0; 4096];
    assert_eq!(root(&mut bytes).finish(0), Err(WriteError::Misused));
    let mut to = root(&mut bytes);
    to.end().unwrap();
    assert_eq!(to.property(b"late", &[]), Err(WriteError::Misused));
    assert_eq!(to.begin(b"second"), Err(WriteError::Misused));
    assert_eq!(to.begin_at(b"second", 1), Err(WriteError::Misused));
    assert_eq!(to.end(), Err(WriteError::Misused));
    let none = Writer::new(&mut bytes, []).unwrap();
    assert_eq!(none.finish(0), Err(WriteError::Misused));
    let names: Vec<_> = (0..=MOST_NAMES).map(|it| format!("n{it}")).collect();
    let mut to = root(&mut bytes);
    for name in &names[..MOST_NAMES] {
        to.property(name.as_bytes(), &[]).unwrap();
        to.property(name.as_bytes(), &[]).unwrap();
    }
    let last = names[MOST_NAMES].as_bytes();
    assert_eq!(to.property(last, &[]), Err(WriteError::Misused));
}

/// Drops memory nodes, renews a property of `/chosen`, and adds a node to the root and to another node.
struct Changes;

impl<'t> Edit<'t> for Changes {
    fn keeps(&mut self, place: &EditPlace<'t>, node: &Node<'t>) -> bool {
        !matches!(place, EditPlace::Child(_)) || !node.is_memory()
    }
    fn keeps_property(&mut self, place: &EditPlace<'t>, name: Name<'t>) -> bool {
        !(matches!(place, EditPlace::Chosen) && name.is(b"bootargs"))
    }
    fn begins(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Result<(), WriteError> {
        match place {
            EditPlace::Chosen => to.text(b"bootargs", b"new"),
            _ => Ok(()),
        }
    }
    fn ends(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Result<(), WriteError> {
        match place {
            EditPlace::Root => {
                to.begin(b"added")?;
                to.text(b"compatible", b"granule,test")?;
                to.end()
            }
            EditPlace::Child(node) if node.is_named(b"bus") => {
                to.begin(b"more")?;
                to.end()
            }
            _ => Ok(()),
        }
    }
}

fn old() -> DeviceTree {
    let mut tree = DeviceTree::new();
    let mut memory = node("memory@0", &[("device_type", b"memory\0")]);
    memory.add_child(node("inside", &[("bootargs", b"inside\0")]));
    tree.root.add_child(memory);
    let mut bus = node("bus", &[("bootargs", b"kept\0"), ("odd", b"123")]);
    bus.add_child(node("memory@1", &[("device_type", b"memory\0")]));
    tree.root.add_child(bus);
    tree
}

fn changed(old: &DeviceTree) -> DeviceTree {
    let old = old.to_dtb();
    let mut bytes = vec![0; old.len() + 512];
    let tree = Tree::new(&old).unwrap();
    let used = rewrite(&tree, [], &mut Changes, &mut bytes).unwrap();
    DeviceTree::from_fdt(&Fdt::new(&bytes[..used]).unwrap())
}

#[test]
fn a_tree_is_copied_with_the_changes_alone() {
    let mut with = old();
    with.root
        .add_child(node("chosen", &[("bootargs", b"old\0"), ("x", b"y")]));
    for (old, chosen) in [
        (old(), node("chosen", &[("bootargs", b"new\0")])),
        (with, node("chosen", &[("bootargs", b"new\0"), ("x", b"y")])),
    ] {
        let mut expected = DeviceTree::new();
        let mut bus = node("bus", &[("bootargs", b"kept\0"), ("odd", b"123")]);
        bus.add_child(node("memory@1", &[("device_type", b"memory\0")]));
        bus.add_child(node("more", &[]));
        expected.root.add_child(bus);
        expected.root.add_child(chosen);
        expected
            .root
            .add_child(node("added", &[("compatible", b"granule,test\0")]));
        assert_eq!(changed(&old).root, expected.root);
    }
}

#[test]
fn a_damaged_tree_is_not_copied() {
    let mut bytes = old().to_dtb();
    let structure = u32::from_be_bytes(*bytes[8..].first_chunk().unwrap()) as usize;
    bytes[structure + 3] = 77;
    let tree = Tree::new(&bytes).unwrap();
    let written = rewrite(&tree, [], &mut Changes, &mut [0; 1024]);
    let at = structure as u32;
    let expected = WriteError::Malformed(TreeError::BadToken { at });
    assert_eq!(written, Err(expected));
}
