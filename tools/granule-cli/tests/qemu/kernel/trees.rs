//! Device trees made for a test: QEMU's own for the machine, edited, and handed over byte for byte.

use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use granule_cli::boot::tree;
use granule_cli::{Outcome, Request};
use tempfile::TempDir;

use crate::booted::Booted;
use crate::hooked::hooked;
use crate::kernel::machine::{self};

/// A tree that is being edited, and the machine it is for.
pub(crate) struct Crafted {
    pub(crate) tree: DeviceTree,
    request: Request,
}

impl Crafted {
    /// QEMU's tree for `request`, whose words for the kernel go into it.
    pub(crate) fn new(request: &Request) -> Self {
        let dtb = tree::dump(request).unwrap();
        let tree = tree::model(&dtb).unwrap();
        let mut crafted = Self {
            tree,
            request: Request {
                page_size: None,
                va_bits: None,
                rodata: None,
                linear_map: None,
                append: None,
                ..hooked(request)
            },
        };
        crafted.set("/chosen", "bootargs", request.bootargs().as_str());
        crafted
    }

    pub(crate) fn set<T: dtoolkit::ToPropertyValue>(&mut self, path: &str, name: &str, value: T) {
        let node = self.tree.find_node_mut(path).unwrap();
        node.add_property(DeviceTreeProperty::new_unchecked(name, value));
    }

    pub(crate) fn remove(&mut self, path: &str, name: &str) {
        let node = self.tree.find_node_mut(path).unwrap();
        node.remove_property(name).unwrap();
    }

    /// Takes QEMU's memory away and puts these banks there, one node each: start and bytes.
    pub(crate) fn banks(&mut self, banks: &[(u64, u64)]) -> &mut Self {
        self.tree.root.remove_child("memory@40000000").unwrap();
        for bank in banks {
            self.bank_node(&[*bank]);
        }
        self
    }

    /// Adds a memory node with several regs.
    pub(crate) fn bank_node(&mut self, regs: &[(u64, u64)]) -> &mut Self {
        let name = format!("memory@{:x}", regs[0].0);
        let node = DeviceTreeNode::builder(name)
            .unwrap()
            .property(DeviceTreeProperty::new_unchecked("device_type", "memory"))
            .property(DeviceTreeProperty::new_unchecked("reg", cells(regs)))
            .build();
        self.tree.root.add_child(node);
        self
    }

    /// Adds a child of `/reserved-memory`.
    pub(crate) fn reserved(&mut self, start: u64, bytes: u64, no_map: bool) -> &mut Self {
        if self.tree.find_node("/reserved-memory").is_none() {
            let node = DeviceTreeNode::builder("reserved-memory")
                .unwrap()
                .property(DeviceTreeProperty::new_unchecked("#address-cells", 2u32))
                .property(DeviceTreeProperty::new_unchecked("#size-cells", 2u32))
                .property(DeviceTreeProperty::new_unchecked(
                    "ranges",
                    Vec::<u8>::new(),
                ))
                .build();
            self.tree.root.add_child(node);
        }
        let mut node = DeviceTreeNode::new(format!("kept@{start:x}")).unwrap();
        let reg = cells(&[(start, bytes)]);
        node.add_property(DeviceTreeProperty::new_unchecked("reg", reg));
        if no_map {
            let nothing = Vec::<u8>::new();
            node.add_property(DeviceTreeProperty::new_unchecked("no-map", nothing));
        }
        let parent = self.tree.find_node_mut("/reserved-memory").unwrap();
        parent.add_child(node);
        self
    }

    /// Adds an entry to the tree's memory reservation block.
    pub(crate) fn memreserve(&mut self, start: u64, bytes: u64) -> &mut Self {
        self.tree
            .memory_reservations
            .push(MemoryReservation::new(start, bytes));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.tree.to_dtb()
    }

    /// Boots with the tree as it is now, which must end well.
    pub(crate) fn ok(&self) -> Booted {
        let (request, _files) = self.request();
        machine::ok(&request)
    }

    /// Boots with the tree as it is now, which must be refused by the kernel.
    pub(crate) fn refused(&self) -> Booted {
        let (request, _files) = self.request();
        machine::ends(&request, Outcome::Refused)
    }

    /// The request, and the directory it lives in.
    pub(crate) fn request(&self) -> (Request, TempDir) {
        with_tree(&self.request, &self.bytes())
    }
}

/// The request with exactly these bytes for a tree.
pub(crate) fn with_tree(request: &Request, dtb: &[u8]) -> (Request, TempDir) {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("dtb");
    std::fs::write(&path, dtb).unwrap();
    let request = Request {
        dtb: Some(path),
        ..request.clone()
    };
    (request, files)
}

/// A reg with two cells each for address and size.
pub(crate) fn cells(regs: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (start, size) in regs {
        bytes.extend(start.to_be_bytes());
        bytes.extend(size.to_be_bytes());
    }
    bytes
}
