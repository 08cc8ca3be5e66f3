//! The CPUs in the device tree, and whether PSCI can start them.

use crate::cpus::{AFFINITY, MOST_CPUS};
use arrayvec::ArrayVec;
use core::fmt;
use granule_boot::tree::{Node, Path, Tree};

/// The CPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus {
    /// The secondary CPUs in the tree's order: the affinity fields of their MPIDRs.
    pub others: ArrayVec<u64, { MOST_CPUS - 1 }>,
    /// Number of CPUs that the tree marks as usable, the boot CPU and those left out included.
    pub expected: usize,
}

/// A CPU that exists but cannot be started.
#[derive(Clone, Copy, Debug)]
pub struct NotStarted<'a> {
    /// Its node.
    pub node: Path<'a>,
    /// The affinity fields of its MPIDR, if the node states them.
    pub affinity: Option<u64>,
    /// The reason.
    pub why: LeftOut,
}

impl fmt::Display for NotStarted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the CPU {}", self.node)?;
        if let Some(affinity) = self.affinity {
            write!(f, " (MPIDR {affinity:#x})")?;
        }
        write!(f, " is not started: {}", self.why)
    }
}

/// Why a CPU cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Its node has no `enable-method`, or one other than PSCI.
    NotPsci,
    /// Its node has no readable `reg`.
    BadReg,
    /// Another node has the same `reg`.
    Twice,
    /// The limit on the number of CPUs is reached.
    TooMany,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPsci => f.write_str("its enable-method is not \"psci\""),
            Self::BadReg => f.write_str("its reg is not one address of at most 64 bits"),
            Self::Twice => f.write_str("another node has the same reg"),
            Self::TooMany => write!(f, "this kernel runs on {MOST_CPUS} CPUs at most"),
        }
    }
}

/// Reads `/cpus`; `boot` is the boot CPU's affinity. A tree without that node, or without the boot CPU
/// in it, still yields the boot CPU. `left_out` is called for each CPU that cannot be started.
pub fn cpus<'a>(tree: &Tree<'a>, boot: u64, mut left_out: impl FnMut(NotStarted<'a>)) -> Cpus {
    let mut cpus = Cpus::default();
    let mut seen_boot = false;
    if let Some(node) = child(tree, b"cpus") {
        for cpu in node
            .children()
            .filter(|node| is_cpu(node) && is_usable(node))
        {
            cpus.expected += 1;
            let affinity = affinity(&cpu);
            let why = match affinity {
                None => LeftOut::BadReg,
                Some(affinity) if affinity == boot && !seen_boot => {
                    seen_boot = true;
                    continue;
                }
                Some(affinity) if affinity == boot || cpus.others.contains(&affinity) => {
                    LeftOut::Twice
                }
                Some(_) if !is_psci(&cpu) => LeftOut::NotPsci,
                Some(affinity) => match cpus.others.try_push(affinity) {
                    Ok(()) => continue,
                    Err(_) => LeftOut::TooMany,
                },
            };
            left_out(NotStarted {
                node: cpu.path(),
                affinity,
                why,
            });
        }
    }
    if !seen_boot {
        cpus.expected += 1;
    }
    cpus
}

/// Whether the tree's PSCI has the standard function numbers, which exist since version 0.2. The
/// version before had numbers of the firmware's choice.
pub fn has_psci(tree: &Tree<'_>) -> bool {
    child(tree, b"psci").is_some_and(|psci| {
        psci.is_compatible(b"arm,psci-0.2") || psci.is_compatible(b"arm,psci-1.0")
    })
}

fn child<'a>(tree: &Tree<'a>, name: &[u8]) -> Option<Node<'a>> {
    tree.root()?.child(name)
}

fn is_cpu(node: &Node<'_>) -> bool {
    node.property(b"device_type") == Some(b"cpu\0")
}

/// Whether the CPU may be started. A `disabled` CPU is not running and may be started by its
/// enable-method (devicetree specification, section 3.8); any other status but okay means that the CPU
/// is out of order.
fn is_usable(node: &Node<'_>) -> bool {
    node.is_usable() || node.text(b"status") == Some(b"disabled")
}

fn affinity(node: &Node<'_>) -> Option<u64> {
    let id = node.reg()?.next().flatten()?.start;
    (id & !AFFINITY == 0).then_some(id)
}

fn is_psci(node: &Node<'_>) -> bool {
    node.strings(b"enable-method").has(b"psci")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

    fn node(
        name: &str,
        properties: &[(&str, &[u8])],
        children: Vec<DeviceTreeNode>,
    ) -> DeviceTreeNode {
        let mut node = DeviceTreeNode::new(name).unwrap();
        for (name, value) in properties {
            node.add_property(DeviceTreeProperty::new(*name, value.to_vec()).unwrap());
        }
        for child in children {
            node.add_child(child);
        }
        node
    }

    fn cpu(reg: &[u8], more: &[(&str, &[u8])]) -> DeviceTreeNode {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        named(&format!("cpu@{number:x}"), reg, more)
    }

    fn named(name: &str, reg: &[u8], more: &[(&str, &[u8])]) -> DeviceTreeNode {
        let mut properties = vec![("device_type", &b"cpu\0"[..]), ("reg", reg)];
        properties.extend(more);
        node(name, &properties, vec![])
    }

    const PSCI: (&str, &[u8]) = ("enable-method", b"psci\0");

    fn read(address_cells: u8, children: Vec<DeviceTreeNode>, boot: u64) -> Cpus {
        let cells: &[u8] = &[0, 0, 0, address_cells];
        let properties = [("#address-cells", cells), ("#size-cells", &[0; 4])];
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![node("cpus", &properties, children)]);
        let bytes = tree.to_dtb();
        cpus(&Tree::new(&bytes).unwrap(), boot, |cpu| panic!("{cpu}"))
    }

    /// The CPUs, and a line for each that cannot be started.
    fn read_all(children: Vec<DeviceTreeNode>) -> (Cpus, Vec<String>) {
        let properties = [
            ("#address-cells", &[0, 0, 0, 1][..]),
            ("#size-cells", &[0; 4]),
        ];
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![node("cpus", &properties, children)]);
        let bytes = tree.to_dtb();
        let mut lines = Vec::new();
        let cpus = cpus(&Tree::new(&bytes).unwrap(), 0, |cpu| {
            lines.push(cpu.to_string());
        });
        (cpus, lines)
    }

    #[test]
    fn all_but_the_boot_cpu_are_others_in_the_tree_s_order() {
        let nodes = vec![
            cpu(&[0, 0, 1, 0], &[PSCI]),
            cpu(&[0, 0, 0, 0], &[PSCI]),
            cpu(&[0, 0, 0, 1], &[PSCI, ("status", b"disabled\0")]),
            node("cpu-map", &[], vec![]),
        ];
        let cpus = read(1, nodes, 0);
        assert_eq!(cpus.others.as_slice(), [0x100, 1]);
        assert_eq!(cpus.expected, 3);
    }

    #[test]
    fn two_cells_hold_the_highest_affinity_field() {
        let nodes = vec![
            cpu(&[0, 0, 0, 0, 0, 0, 0, 0], &[PSCI]),
            cpu(&[0, 0, 0, 1, 0, 0, 0, 2], &[PSCI]),
        ];
        assert_eq!(read(2, nodes, 0).others.as_slice(), [0x1_0000_0002]);
    }

    #[test]
    fn cpus_that_cannot_be_started_are_left_out_and_still_expected() {
        let nodes = vec![
            named("cpu@a", &[0, 0, 0, 0], &[PSCI]),
            named(
                "cpu@b",
                &[0, 0, 0, 1],
                &[("enable-method", b"spin-table\0")],
            ),
            named("cpu@c", &[0, 0, 0, 2], &[]),
            named("cpu@d", &[0, 0, 0, 3], &[PSCI]),
            named("cpu@e", &[0, 0, 0, 3], &[PSCI]),
            named("cpu@f", &[0, 0, 0, 0], &[PSCI]),
            named("cpu@g", &[1, 0, 0, 4], &[PSCI]),
            named("cpu@h", &[0, 0], &[PSCI]),
            named("cpu@i", &[0, 0, 0, 5], &[PSCI, ("status", b"fail\0")]),
        ];
        let (cpus, lines) = read_all(nodes);
        assert_eq!(cpus.others.as_slice(), [3]);
        assert_eq!(
            lines,
            [
                "the CPU /cpus/cpu@b (MPIDR 0x1) is not started: its enable-method is not \"psci\"",
                "the CPU /cpus/cpu@c (MPIDR 0x2) is not started: its enable-method is not \"psci\"",
                "the CPU /cpus/cpu@e (MPIDR 0x3) is not started: another node has the same reg",
                "the CPU /cpus/cpu@f (MPIDR 0x0) is not started: another node has the same reg",
                "the CPU /cpus/cpu@g is not started: its reg is not one address of at most 64 bits",
                "the CPU /cpus/cpu@h is not started: its reg is not one address of at most 64 bits",
            ]
        );
        assert_eq!(cpus.expected, 8);
    }

    #[test]
    fn there_is_always_the_boot_cpu() {
        assert_eq!(read(1, vec![], 0).expected, 1);
        let strange = read(1, vec![cpu(&[0, 0, 0, 7], &[PSCI])], 0);
        assert_eq!((strange.expected, strange.others.as_slice()), (2, &[7][..]));
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![]);
        let bytes = tree.to_dtb();
        let alone = cpus(&Tree::new(&bytes).unwrap(), 3, |cpu| panic!("{cpu}"));
        assert_eq!(alone.expected, 1);
    }

    #[test]
    fn more_cpus_than_there_is_room_for_are_counted() {
        let nodes = (0..100).map(|n| cpu(&[0, 0, 0, n], &[PSCI])).collect();
        let (cpus, lines) = read_all(nodes);
        assert_eq!((cpus.others.len(), cpus.expected), (MOST_CPUS - 1, 100));
        assert_eq!(lines.len(), 100 - MOST_CPUS);
        assert!(lines.iter().all(|line| line.ends_with("CPUs at most")));
    }

    #[test]
    fn psci_before_0_2_is_not_enough() {
        for (compatible, expected) in [
            (&b"arm,psci-1.0\0arm,psci-0.2\0arm,psci\0"[..], true),
            (b"arm,psci-0.2\0", true),
            (b"arm,psci\0", false),
        ] {
            let mut tree = DeviceTree::new();
            let psci = node("psci", &[("compatible", compatible)], vec![]);
            tree.root = node("", &[], vec![psci]);
            let bytes = tree.to_dtb();
            assert_eq!(has_psci(&Tree::new(&bytes).unwrap()), expected);
        }
    }
}
