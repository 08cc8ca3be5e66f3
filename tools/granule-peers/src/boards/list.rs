//! The list of boards: the options of QEMU, and the expected boot. `docs/boards.md` has a row for
//! each.

use granule_cli::PageSize::{self, K4, K16, K64};

/// A board, on which all CPUs must come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Board {
    pub(super) name: &'static str,
    /// More options for QEMU. Serial lines here come before the console.
    pub(super) options: &'static str,
    pub(super) tree: Tree,
    /// The QEMUs that have the board.
    pub(super) qemus: &'static [&'static str],
    /// The page sizes that its CPU has.
    pub(super) page_sizes: &'static [PageSize],
    /// The CPUs that the tree names.
    pub(super) cpus: usize,
}

/// The origin of a board's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// Debian's packages, with the tree's path there.
    Debian(&'static str),
    Qemu,
    /// This project, with the code that starts the CPUs (`npcm845.rs`).
    Npcm845,
}

const ALL: &[&str] = &["7.2", "10.0", "11.1"];
const NEWER: &[&str] = &["10.0", "11.1"];
const NEWEST: &[&str] = &["11.1"];
const EACH: &[PageSize] = &[K4, K16, K64];
const NO_16K: &[PageSize] = &[K4, K64];
/// The Raspberry Pi's trees name the mini UART as the console, which is QEMU's second serial line.
const PI: &str = "-serial null";

const fn board(
    name: &'static str,
    options: &'static str,
    tree: Tree,
    (qemus, page_sizes): (&'static [&'static str], &'static [PageSize]),
    cpus: usize,
) -> Board {
    Board {
        name,
        options,
        tree,
        qemus,
        page_sizes,
        cpus,
    }
}

#[rustfmt::skip]
pub(super) const BOARDS: [Board; 10] = [
    board("virt", "-cpu max -smp 4 -m 1G -nic none", Tree::Qemu, (ALL, EACH), 4),
    board("raspi3ap", PI, Tree::Debian("broadcom/bcm2837-rpi-3-a-plus.dtb"), (ALL, NO_16K), 4),
    board("raspi3b", PI, Tree::Debian("broadcom/bcm2837-rpi-3-b.dtb"), (ALL, NO_16K), 4),
    board("raspi4b", PI, Tree::Debian("broadcom/bcm2711-rpi-4-b.dtb"), (NEWER, NO_16K), 4),
    board("xlnx-zcu102", "-smp 4 -m 1G", Tree::Debian("xilinx/zynqmp-zcu102-rev1.0.dtb"), (ALL, NO_16K), 4),
    board("imx8mp-evk", "-smp 4 -m 1G -serial null", Tree::Debian("freescale/imx8mp-evk.dtb"), (NEWER, NO_16K), 4),
    board("imx8mm-evk", "-smp 4 -m 1G -serial null", Tree::Debian("freescale/imx8mm-evk.dtb"), (NEWEST, NO_16K), 4),
    board("npcm845-evb", "-m 1G", Tree::Npcm845, (NEWER, NO_16K), 4),
    board("xlnx-versal-virt", "-m 1G", Tree::Qemu, (ALL, NO_16K), 2),
    board("amd-versal2-virt", "-m 1G", Tree::Qemu, (NEWEST, EACH), 8),
];

impl Board {
    /// Returns the tree's path in Debian's packages.
    pub(super) fn debian_tree(&self) -> Option<&'static str> {
        match self.tree {
            Tree::Debian(path) => Some(path),
            Tree::Qemu | Tree::Npcm845 => None,
        }
    }
}
