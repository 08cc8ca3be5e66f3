//! The CPUs in the device tree, and how each of them is started: by PSCI, or by an address that it watches.

use crate::cpus::AFFINITY;
use core::fmt;
use granule_boot::tree::{Node, Path, Tree};

/// A secondary CPU that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The affinity fields of its MPIDR.
    pub affinity: u64,
    /// The way in which it is started.
    pub by: EnableMethod,
}

/// The way in which a CPU is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnableMethod {
    /// By PSCI CPU_ON.
    Psci,
    /// It waits in firmware's loop until an address is written to `release`.
    SpinTable {
        /// The physical address of eight bytes, aligned.
        release: u64,
    },
}

/// The receiver of what [`cpus`] finds.
pub trait Found<'a> {
    /// Whether a CPU with this affinity was [`found`](Self::found) before.
    fn is_known(&self, affinity: u64) -> bool;
    /// The next secondary CPU, in the tree's order.
    fn found(&mut self, other: Other);
    /// A CPU that cannot be started.
    fn left_out(&mut self, cpu: NotStarted<'a>);
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
    /// Its node has no `enable-method` that is known.
    NoMethod,
    /// Its node has no usable `cpu-release-addr`.
    NoRelease,
    /// Its node has no readable `reg`.
    BadReg,
    /// Another node has the same `reg`.
    Twice,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMethod => "its enable-method is neither \"psci\" nor \"spin-table\"",
            Self::NoRelease => {
                "its cpu-release-addr is not one address, of 32 or 64 bits and a multiple of 8"
            }
            Self::BadReg => "its reg is not one address of at most 64 bits",
            Self::Twice => "another node has the same reg",
        })
    }
}

/// Reads `/cpus`; `boot` is the boot CPU's affinity. Returns the number of CPUs that the tree marks as usable,
/// the boot CPU and those left out included: a tree without that node, or without the boot CPU in it, still has
/// the boot CPU.
pub fn cpus<'a>(tree: &Tree<'a>, boot: u64, found: &mut impl Found<'a>) -> usize {
    let mut expected = 0;
    let mut seen_boot = false;
    if let Some(node) = child(tree, b"cpus") {
        for cpu in node
            .children()
            .filter(|node| is_cpu(node) && is_usable(node))
        {
            expected += 1;
            let affinity = affinity(&cpu);
            let method = match affinity {
                None => Err(LeftOut::BadReg),
                Some(affinity) if affinity == boot && !seen_boot => {
                    seen_boot = true;
                    continue;
                }
                Some(affinity) if affinity == boot || found.is_known(affinity) => {
                    Err(LeftOut::Twice)
                }
                Some(affinity) => enable_method(&cpu).map(|by| Other { affinity, by }),
            };
            match method {
                Ok(other) => found.found(other),
                Err(why) => found.left_out(NotStarted {
                    node: cpu.path(),
                    affinity,
                    why,
                }),
            }
        }
    }
    expected + usize::from(!seen_boot)
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

fn enable_method(node: &Node<'_>) -> Result<EnableMethod, LeftOut> {
    let methods = node.strings(b"enable-method");
    if methods.has(b"psci") {
        Ok(EnableMethod::Psci)
    } else if methods.has(b"spin-table") {
        let release = node.number(b"cpu-release-addr");
        let usable = release.filter(|release| *release != 0 && release.is_multiple_of(8));
        let release = usable.ok_or(LeftOut::NoRelease)?;
        Ok(EnableMethod::SpinTable { release })
    } else {
        Err(LeftOut::NoMethod)
    }
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

    /// The CPUs that were found, in order.
    #[derive(Default)]
    struct Seen {
        others: Vec<Other>,
        lines: Vec<String>,
    }

    impl<'a> Found<'a> for Seen {
        fn is_known(&self, affinity: u64) -> bool {
            self.others.iter().any(|other| other.affinity == affinity)
        }
        fn found(&mut self, other: Other) {
            self.others.push(other);
        }
        fn left_out(&mut self, cpu: NotStarted<'a>) {
            self.lines.push(cpu.to_string());
        }
    }

    /// The affinities of the CPUs that PSCI starts, a line for each CPU that cannot be started, and the number
    /// of CPUs.
    fn read(
        address_cells: u8,
        nodes: Vec<DeviceTreeNode>,
        boot: u64,
    ) -> (Vec<u64>, Vec<String>, usize) {
        let (seen, expected) = read_all(address_cells, nodes, boot);
        let psci = |other: &Other| {
            assert_eq!(other.by, EnableMethod::Psci);
            other.affinity
        };
        (seen.others.iter().map(psci).collect(), seen.lines, expected)
    }

    fn read_all(address_cells: u8, nodes: Vec<DeviceTreeNode>, boot: u64) -> (Seen, usize) {
        let cells: &[u8] = &[0, 0, 0, address_cells];
        let properties = [("#address-cells", cells), ("#size-cells", &[0; 4])];
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![node("cpus", &properties, nodes)]);
        let bytes = tree.to_dtb();
        let mut seen = Seen::default();
        let expected = cpus(&Tree::new(&bytes).unwrap(), boot, &mut seen);
        (seen, expected)
    }

    #[test]
    fn all_but_the_boot_cpu_are_others_in_the_tree_s_order() {
        let nodes = vec![
            cpu(&[0, 0, 1, 0], &[PSCI]),
            cpu(&[0, 0, 0, 0], &[PSCI]),
            cpu(&[0, 0, 0, 1], &[PSCI, ("status", b"disabled\0")]),
            node("cpu-map", &[], vec![]),
        ];
        assert_eq!(read(1, nodes, 0), (vec![0x100, 1], vec![], 3));
    }

    #[test]
    fn two_cells_hold_the_highest_affinity_field() {
        let nodes = vec![
            cpu(&[0, 0, 0, 0, 0, 0, 0, 0], &[PSCI]),
            cpu(&[0, 0, 0, 1, 0, 0, 0, 2], &[PSCI]),
        ];
        assert_eq!(read(2, nodes, 0), (vec![0x1_0000_0002], vec![], 2));
    }

    #[test]
    fn a_release_address_has_one_cell_or_two() {
        const TABLE: (&str, &[u8]) = ("enable-method", b"spin-table\0");
        let with =
            |number, release| cpu(&[0, 0, 0, number], &[TABLE, ("cpu-release-addr", release)]);
        let nodes = vec![
            with(0, &[0, 0, 0, 0, 0, 0, 0, 0xd8]),
            with(1, &[0, 0, 0, 0, 0, 0, 0, 0xe0]),
            with(2, &[0x3b, 0x3f, 0xff, 0xf0]),
            with(3, &[0, 0, 0, 1, 0x80, 0, 0, 0]),
            // Both: firmware with PSCI can stop a CPU too.
            cpu(&[0, 0, 0, 4], &[("enable-method", b"spin-table\0psci\0")]),
        ];
        let (seen, expected) = read_all(1, nodes, 0);
        let table = |affinity, release| Other {
            affinity,
            by: EnableMethod::SpinTable { release },
        };
        let psci = Other {
            affinity: 4,
            by: EnableMethod::Psci,
        };
        assert_eq!(
            seen.others,
            [
                table(1, 0xe0),
                table(2, 0x3b3f_fff0),
                table(3, 0x1_8000_0000),
                psci
            ]
        );
        assert_eq!((seen.lines, expected), (vec![], 5));
        for release in [&[0; 8][..], &[0, 0, 0, 4], &[1, 2, 3], &[0; 12], &[]] {
            let (seen, _) = read_all(1, vec![with(1, release)], 0);
            assert_eq!(seen.others, []);
            assert!(
                seen.lines[0].contains("its cpu-release-addr is not"),
                "{:?}",
                seen.lines
            );
        }
    }

    #[test]
    fn cpus_that_cannot_be_started_are_left_out_and_still_expected() {
        let nodes = vec![
            named("cpu@a", &[0, 0, 0, 0], &[PSCI]),
            named(
                "cpu@b",
                &[0, 0, 0, 1],
                &[("enable-method", b"brcm,bcm2836-smp\0")],
            ),
            named(
                "cpu@c",
                &[0, 0, 0, 2],
                &[("enable-method", b"spin-table\0")],
            ),
            named("cpu@d", &[0, 0, 0, 3], &[PSCI]),
            named("cpu@e", &[0, 0, 0, 3], &[PSCI]),
            named("cpu@f", &[0, 0, 0, 0], &[PSCI]),
            named("cpu@g", &[1, 0, 0, 4], &[PSCI]),
            named("cpu@h", &[0, 0], &[PSCI]),
            named("cpu@i", &[0, 0, 0, 5], &[PSCI, ("status", b"fail\0")]),
            named("cpu@j", &[0, 0, 0, 6], &[]),
        ];
        let (others, lines, expected) = read(1, nodes, 0);
        assert_eq!(others, [3]);
        assert_eq!(
            lines,
            [
                "the CPU /cpus/cpu@b (MPIDR 0x1) is not started: its enable-method is neither \"psci\" nor \"spin-table\"",
                "the CPU /cpus/cpu@c (MPIDR 0x2) is not started: its cpu-release-addr is not one \
                 address, of 32 or 64 bits and a multiple of 8",
                "the CPU /cpus/cpu@e (MPIDR 0x3) is not started: another node has the same reg",
                "the CPU /cpus/cpu@f (MPIDR 0x0) is not started: another node has the same reg",
                "the CPU /cpus/cpu@g is not started: its reg is not one address of at most 64 bits",
                "the CPU /cpus/cpu@h is not started: its reg is not one address of at most 64 bits",
                "the CPU /cpus/cpu@j (MPIDR 0x6) is not started: its enable-method is neither \"psci\" nor \"spin-table\"",
            ]
        );
        assert_eq!(expected, 9);
    }

    #[test]
    fn there_is_always_the_boot_cpu() {
        assert_eq!(read(1, vec![], 0).2, 1);
        let strange = read(1, vec![cpu(&[0, 0, 0, 7], &[PSCI])], 0);
        assert_eq!(strange, (vec![7], vec![], 2));
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![]);
        let bytes = tree.to_dtb();
        let mut seen = Seen::default();
        assert_eq!(cpus(&Tree::new(&bytes).unwrap(), 3, &mut seen), 1);
    }

    #[test]
    fn there_may_be_more_cpus_than_bits_in_a_word() {
        let nodes = (0..=300u16)
            .map(|n| cpu(&[0, 0, (n >> 8) as u8, n as u8], &[PSCI]))
            .collect();
        let (others, lines, expected) = read(1, nodes, 0);
        assert_eq!((others.len(), lines.len(), expected), (300, 0, 301));
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
