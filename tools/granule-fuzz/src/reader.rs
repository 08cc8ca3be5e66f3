//! Target for the reader of device trees itself: any bytes, and trees of [`nodes`](crate::nodes) that are
//! damaged. Where the crate dtoolkit takes a tree too, both must read the same. The meaning of nodes is for
//! the targets of [`nodes`](crate::nodes).

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node as _, Property as _};
use granule_boot::tree::{Node, Token, Tree};
use granule_cli::boot::tree::model;

pub(crate) fn device_tree_reader(bytes: &[u8]) {
    read(bytes);
    let (made, _) = crate::nodes::tree(bytes);
    read(&made);
}

/// Reads the tree; whether it is compared with what the other reader makes of it.
fn read(bytes: &[u8]) -> bool {
    let Ok(tree) = Tree::new(bytes) else {
        return false;
    };
    let damage = tree.damage();
    let path = tree.damaged_node().to_string();
    assert_eq!(path, last_open(&tree));
    let mut nodes = 0;
    for node in tree.nodes() {
        nodes += 1;
        if nodes < 50 {
            look(&node, bytes.len());
        }
    }
    // A node takes a word for its beginning and one for its name.
    assert!(nodes <= bytes.len() / 8);
    let reservations = tree.reservations();
    if let Ok(reservations) = reservations {
        assert!(reservations.count() <= bytes.len() / 16);
    }
    // The host's editable form is read as it was written.
    let edited = model(bytes);
    assert_eq!(edited.is_ok(), damage.is_none() && reservations.is_ok());
    if let Ok(edited) = edited {
        let written = edited.to_dtb();
        assert!(Tree::new(&written).is_ok_and(|tree| tree.damage().is_none()));
    }
    let size = u32::from_be_bytes(*bytes[4..].first_chunk().unwrap_or(&[0; 4]));
    let both = Fdt::new(&bytes[..size as usize]).ok();
    let both = both.filter(|_| damage.is_none());
    if let (Some(other), Some(root)) = (&both, tree.root()) {
        same(&root, &other.root());
    }
    both.is_some()
}

/// The path of the innermost node that is open where the walk ends: whoever reads the tokens in order
/// finds the damage in it.
fn last_open(tree: &Tree<'_>) -> String {
    let mut open = Vec::new();
    let mut walk = tree.walk();
    loop {
        match walk.next() {
            Ok(Some(Token::Begin { name })) => open.push(name.escape_ascii().to_string()),
            Ok(Some(Token::End)) => drop(open.pop()),
            Ok(Some(_)) => {}
            _ => break,
        }
    }
    // Paths leave out the root's name, which is empty in a sound tree.
    format!("/{}", open.get(1..).unwrap_or_default().join("/"))
}

/// Checks what holds for any node.
fn look(node: &Node<'_>, most: usize) {
    let _ = (node.child_cells(), node.to_cpu(0x1000), node.is_usable());
    assert!(node.reg().map_or(0, Iterator::count) <= most);
    assert!(node.strings(b"compatible").count() <= most);
    let path = node.path().to_string();
    let parent = node.parent().map(|parent| parent.path().to_string());
    assert!(
        parent.is_none_or(|parent| path.starts_with(&parent)),
        "{path}"
    );
}

/// Both readers see the same names, values and children.
fn same(node: &Node<'_>, other: &FdtNode<'_>) {
    assert_eq!(node.name(), other.name().as_bytes());
    let mut others = other.properties();
    for property in node.properties() {
        let Some(other) = others.next() else {
            panic!("{}: a property more", node.path());
        };
        assert_eq!(property.name.bytes(), other.name().as_bytes());
        assert_eq!(property.value, other.value());
    }
    assert!(others.next().is_none(), "{}: a property less", node.path());
    let mut others = other.children();
    for child in node.children() {
        let Some(other) = others.next() else {
            panic!("{}: a child more", node.path());
        };
        same(&child, &other);
    }
    assert!(others.next().is_none(), "{}: a child less", node.path());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the other reader accepted no tree, nothing would be compared.
    #[test]
    fn trees_are_compared() {
        let mut compared = 0;
        for bytes in crate::bytes::drawn(1000, 256) {
            compared += u32::from(read(&crate::nodes::tree(&bytes).0));
        }
        println!("{compared} compared");
        assert!(compared > 300);
    }
}
