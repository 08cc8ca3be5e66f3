//! The boards: how QEMU is started for each, and how far our kernel comes on it. `docs/boards.md` has a row for each.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::sizes::show_size;

/// A board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Board {
    /// QEMU's name of it.
    pub(super) name: &'static str,
    /// More options of QEMU's. Serial lines here come before the console.
    pub(super) options: &'static [&'static str],
    pub(super) tree: Tree,
    /// The QEMUs that have the board.
    pub(super) qemus: &'static [&'static str],
    /// The page sizes that its CPU has.
    pub(super) page_sizes: &'static [PageSize],
    /// The CPUs that the tree names, and those that come up.
    pub(super) cpus: usize,
    pub(super) up: usize,
    /// Why no more come up.
    pub(super) missing: &'static str,
}

/// Where a board's tree is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// Debian's packages, with its path there.
    Debian(&'static str),
    Qemu,
    /// This project, with the code that starts the CPUs (`npcm845.rs`).
    Npcm845,
}

const ALL: &[&str] = &["7.2", "10.0", "11.1"];
/// The Raspberry Pi's trees name the mini UART as the console, which is QEMU's second serial line.
const PI: &[&str] = &["-serial", "null"];

pub(super) const BOARDS: [Board; 10] = [
    Board {
        name: "virt",
        options: &["-cpu", "max", "-smp", "4", "-m", "1G", "-nic", "none"],
        tree: Tree::Qemu,
        qemus: ALL,
        page_sizes: &[K4, K16, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "raspi3ap",
        options: PI,
        tree: Tree::Debian("broadcom/bcm2837-rpi-3-a-plus.dtb"),
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "raspi3b",
        options: PI,
        tree: Tree::Debian("broadcom/bcm2837-rpi-3-b.dtb"),
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "raspi4b",
        options: PI,
        tree: Tree::Debian("broadcom/bcm2711-rpi-4-b.dtb"),
        qemus: &["10.0", "11.1"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "xlnx-zcu102",
        options: &["-smp", "4", "-m", "1G"],
        tree: Tree::Debian("xilinx/zynqmp-zcu102-rev1.0.dtb"),
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "imx8mp-evk",
        options: &["-smp", "4", "-m", "1G", "-serial", "null"],
        tree: Tree::Debian("freescale/imx8mp-evk.dtb"),
        qemus: &["10.0", "11.1"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "imx8mm-evk",
        options: &["-smp", "4", "-m", "1G", "-serial", "null"],
        tree: Tree::Debian("freescale/imx8mm-evk.dtb"),
        qemus: &["11.1"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "npcm845-evb",
        options: &["-m", "1G"],
        tree: Tree::Npcm845,
        qemus: &["10.0", "11.1"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
    },
    Board {
        name: "xlnx-versal-virt",
        options: &["-m", "1G"],
        tree: Tree::Qemu,
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 2,
        up: 2,
        missing: "",
    },
    Board {
        name: "amd-versal2-virt",
        options: &["-m", "1G"],
        tree: Tree::Qemu,
        qemus: &["11.1"],
        page_sizes: &[K4, K16, K64],
        cpus: 8,
        up: 8,
        missing: "",
    },
];

impl Board {
    /// The tree's path among Debian's.
    pub(super) fn debian_tree(&self) -> Option<&'static str> {
        match self.tree {
            Tree::Debian(path) => Some(path),
            Tree::Qemu | Tree::Npcm845 => None,
        }
    }

    /// Its row in the document.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test compares the document"))]
    pub(super) fn row(&self) -> String {
        let Self {
            name,
            cpus,
            up,
            missing,
            ..
        } = self;
        let tree = match self.tree {
            Tree::Debian(path) => format!("`{path}`"),
            Tree::Qemu => "QEMU's".to_owned(),
            Tree::Npcm845 => "ours".to_owned(),
        };
        let sizes: Vec<_> = self
            .page_sizes
            .iter()
            .map(|it| show_size(it.bytes()))
            .collect();
        let (qemus, sizes) = (self.qemus.join(", "), sizes.join(", "));
        let row = format!("| `{name}` | {qemus} | {tree} | {sizes} | {up} of {cpus} | {missing}");
        format!("{} |", row.trim_end())
    }
}
