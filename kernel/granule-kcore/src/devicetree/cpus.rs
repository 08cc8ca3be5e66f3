//! The CPUs in the device tree, and how each of them is started: by PSCI, or by an address that it watches.

use super::child;
use crate::cpus::AFFINITY;
use core::fmt;
use granule_boot::tree::{Node, Path, Tree};
use thiserror::Error;

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
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum LeftOut {
    #[error("its enable-method is neither \"psci\" nor \"spin-table\"")]
    NoMethod,
    #[error("its cpu-release-addr is not one address, of 32 or 64 bits and a multiple of 8")]
    NoRelease,
    #[error("its reg is not one address of at most 64 bits")]
    BadReg,
    #[error("its reg has bits outside the affinity fields of MPIDR (39 to 32 and 23 to 0)")]
    NoAffinity,
    #[error("another node has the same reg")]
    Twice,
}

/// Reads `/cpus`; `boot` is the boot CPU's affinity. Returns the number of CPUs that the tree marks as usable,
/// the boot CPU and those left out included: a tree without that node, or without the boot CPU in it, still has
/// the boot CPU.
pub fn cpus<'a>(tree: &Tree<'a>, boot: u64, found: &mut impl Found<'a>) -> usize {
    let mut expected = 0;
    let mut seen_boot = false;
    if let Some(node) = child(tree, b"cpus") {
        let usable = |node: &Node<'_>| is_cpu(node) && is_usable(node);
        for cpu in node.children().filter(usable) {
            expected += 1;
            let affinity = affinity(&cpu);
            let method = match affinity {
                Err(why) => Err(why),
                Ok(affinity) if affinity == boot && !seen_boot => {
                    seen_boot = true;
                    continue;
                }
                Ok(affinity) if affinity == boot || found.is_known(affinity) => Err(LeftOut::Twice),
                Ok(affinity) => enable_method(&cpu).map(|by| Other { affinity, by }),
            };
            match method {
                Ok(other) => found.found(other),
                Err(why) => found.left_out(NotStarted {
                    node: cpu.path(),
                    affinity: affinity.ok(),
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

fn is_cpu(node: &Node<'_>) -> bool {
    node.property(b"device_type") == Some(b"cpu\0")
}

/// Whether the CPU may be started. A `disabled` CPU is not running and may be started by its
/// enable-method (devicetree specification, section 3.8); any other status but okay means that the CPU
/// is out of order.
fn is_usable(node: &Node<'_>) -> bool {
    node.is_usable() || node.text(b"status") == Some(b"disabled")
}

fn affinity(node: &Node<'_>) -> Result<u64, LeftOut> {
    let first = node.reg().and_then(|mut reg| reg.next().flatten());
    match first.ok_or(LeftOut::BadReg)?.start {
        id if id & !AFFINITY == 0 => Ok(id),
        _ => Err(LeftOut::NoAffinity),
    }
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
    use crate::made_trees::{Properties, node, tree};

    const PSCI: (&str, &[u8]) = ("enable-method", b"psci\0");
    const TABLE: (&str, &[u8]) = ("enable-method", b"spin-table\0");

    /// The CPUs that were found, in order, a line for each that cannot be started, and their number.
    #[derive(Default)]
    struct Seen {
        others: Vec<Other>,
        lines: Vec<String>,
        expected: usize,
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

    /// Reads a tree whose CPUs have these `reg`s and further properties. They are `cpu@0` and so on.
    fn read(address_cells: u8, all: &[(&[u8], Properties<'_>)]) -> Seen {
        let nodes = all.iter().enumerate().map(|(number, (reg, more))| {
            let own = [("device_type", &b"cpu\0"[..]), ("reg", reg)];
            node(&format!("cpu@{number:x}"), &[&own, *more].concat(), [])
        });
        let nodes = nodes.chain([node("cpu-map", &[], [])]);
        let cells: &[u8] = &[0, 0, 0, address_cells];
        let properties = [("#address-cells", cells), ("#size-cells", &[0; 4])];
        read_root([node("cpus", &properties, nodes)])
    }

    fn read_root(children: impl IntoIterator<Item = dtoolkit::model::DeviceTreeNode>) -> Seen {
        let bytes = tree(node("", &[], children), &[]);
        let mut seen = Seen::default();
        seen.expected = cpus(&Tree::new(&bytes).unwrap(), 0, &mut seen);
        seen
    }

    fn psci(affinity: u64) -> Other {
        let by = EnableMethod::Psci;
        Other { affinity, by }
    }

    #[test]
    fn other_cpus_are_in_the_order_of_the_tree() {
        let seen = read(
            1,
            &[
                (&[0, 0, 1, 0], &[PSCI]),
                (&[0, 0, 0, 0], &[PSCI]),
                (&[0, 0, 0, 1], &[PSCI, ("status", b"disabled\0")]),
            ],
        );
        assert_eq!(seen.others, [psci(0x100), psci(1)]);
        assert_eq!((seen.lines.len(), seen.expected), (0, 3));
        // Two cells hold the highest affinity field.
        let two = [0, 0, 0, 1, 0, 0, 0, 2];
        let seen = read(2, &[(&[0; 8], &[PSCI]), (&two, &[PSCI])]);
        assert_eq!(seen.others, [psci(0x1_0000_0002)]);
        assert_eq!((seen.lines.len(), seen.expected), (0, 2));
        // There may be more CPUs than bits in a word.
        let regs: Vec<_> = (0..=300_u32).map(u32::to_be_bytes).collect();
        let all: Vec<_> = regs.iter().map(|reg| (&reg[..], &[PSCI][..])).collect();
        let seen = read(1, &all);
        assert_eq!(
            (seen.others.len(), seen.lines.len(), seen.expected),
            (300, 0, 301)
        );
    }

    #[test]
    fn a_release_address_has_one_cell_or_two() {
        let at = |release| [TABLE, ("cpu-release-addr", release)];
        let seen = read(
            1,
            &[
                (&[0, 0, 0, 0], &at(&[0, 0, 0, 0, 0, 0, 0, 0xd8])),
                (&[0, 0, 0, 1], &at(&[0, 0, 0, 0, 0, 0, 0, 0xe0])),
                (&[0, 0, 0, 2], &at(&[0x3b, 0x3f, 0xff, 0xf0])),
                (&[0, 0, 0, 3], &at(&[0, 0, 0, 1, 0x80, 0, 0, 0])),
                // Both: firmware with PSCI can stop a CPU too.
                (&[0, 0, 0, 4], &[("enable-method", b"spin-table\0psci\0")]),
            ],
        );
        let table = |affinity, release| Other {
            affinity,
            by: EnableMethod::SpinTable { release },
        };
        let tables = [
            table(1, 0xe0),
            table(2, 0x3b3f_fff0),
            table(3, 0x1_8000_0000),
        ];
        assert_eq!(seen.others, [&tables[..], &[psci(4)]].concat());
        assert_eq!((seen.lines.len(), seen.expected), (0, 5));
        for release in [&[0; 8][..], &[0, 0, 0, 4], &[1, 2, 3], &[0; 12], &[]] {
            let seen = read(1, &[(&[0, 0, 0, 1], &at(release))]);
            assert_eq!(seen.others, []);
            let line = &seen.lines[0];
            assert!(line.contains("its cpu-release-addr is not"), "{line}");
        }
    }

    #[test]
    fn cpus_that_cannot_be_started_are_left_out_and_still_expected() {
        let seen = read(
            1,
            &[
                (&[0, 0, 0, 0], &[PSCI]),
                (&[0, 0, 0, 1], &[("enable-method", b"brcm,bcm2836-smp\0")]),
                (&[0, 0, 0, 2], &[TABLE]),
                (&[0, 0, 0, 3], &[PSCI]),
                (&[0, 0, 0, 3], &[PSCI]),
                (&[0, 0, 0, 0], &[PSCI]),
                (&[1, 0, 0, 4], &[PSCI]),
                (&[0, 0], &[PSCI]),
                (&[0, 0, 0, 5], &[PSCI, ("status", b"fail\0")]),
                (&[0, 0, 0, 6], &[]),
            ],
        );
        assert_eq!(seen.others, [psci(3)]);
        let method = "its enable-method is neither \"psci\" nor \"spin-table\"";
        let release =
            "its cpu-release-addr is not one address, of 32 or 64 bits and a multiple of 8";
        let reg = "its reg is not one address of at most 64 bits";
        let bits = "its reg has bits outside the affinity fields of MPIDR (39 to 32 and 23 to 0)";
        let expected = [
            ("1 (MPIDR 0x1)", method),
            ("2 (MPIDR 0x2)", release),
            ("4 (MPIDR 0x3)", "another node has the same reg"),
            ("5 (MPIDR 0x0)", "another node has the same reg"),
            ("6", bits),
            ("7", reg),
            ("9 (MPIDR 0x6)", method),
        ];
        let lines =
            expected.map(|(cpu, why)| format!("the CPU /cpus/cpu@{cpu} is not started: {why}"));
        assert_eq!(seen.lines, lines);
        assert_eq!(seen.expected, 9);
    }

    #[test]
    fn there_is_always_the_boot_cpu() {
        assert_eq!(read(1, &[]).expected, 1);
        let strange = read(1, &[(&[0, 0, 0, 7], &[PSCI])]);
        assert_eq!((strange.others, strange.expected), (vec![psci(7)], 2));
        assert_eq!(read_root([]).expected, 1);
    }

    #[test]
    fn psci_before_0_2_is_not_enough() {
        for (compatible, expected) in [
            (&b"arm,psci-1.0\0arm,psci-0.2\0arm,psci\0"[..], true),
            (b"arm,psci-0.2\0", true),
            (b"arm,psci\0", false),
        ] {
            let psci = node("psci", &[("compatible", compatible)], []);
            let bytes = tree(node("", &[], [psci]), &[]);
            assert_eq!(has_psci(&Tree::new(&bytes).unwrap()), expected);
        }
    }
}
