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
    /// The tree's path among Debian's; without one QEMU makes it.
    pub(super) tree: Option<&'static str>,
    /// The kernel's words.
    pub(super) words: &'static str,
    /// The QEMUs that have the board.
    pub(super) qemus: &'static [&'static str],
    /// The page sizes that its CPU has.
    pub(super) page_sizes: &'static [PageSize],
    /// The CPUs that the tree names, and those that come up.
    pub(super) cpus: usize,
    pub(super) up: usize,
    /// Why no more come up.
    pub(super) missing: &'static str,
    /// Its console.
    pub(super) console: &'static str,
}

const ALL: &[&str] = &["7.2", "10.0", "11.1"];
/// The trees name the mini UART; QEMU's first serial line is the PL011.
const PI_3: &str = "earlycon=pl011,0x3f201000";
const PI_4: &str = "earlycon=pl011,0xfe201000";
const NO_GIC: &str = "the device tree names no interrupt controller that is known (arm,gic-v3, arm,gic-400, arm,cortex-a15-gic)";

pub(super) const BOARDS: [Board; 7] = [
    Board {
        name: "raspi3ap",
        options: &[],
        tree: Some("broadcom/bcm2837-rpi-3-a-plus.dtb"),
        words: PI_3,
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 1,
        missing: NO_GIC,
        console: PI_3,
    },
    Board {
        name: "raspi3b",
        options: &[],
        tree: Some("broadcom/bcm2837-rpi-3-b.dtb"),
        words: PI_3,
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 1,
        missing: NO_GIC,
        console: PI_3,
    },
    Board {
        name: "raspi4b",
        options: &[],
        tree: Some("broadcom/bcm2711-rpi-4-b.dtb"),
        words: PI_4,
        qemus: &["10.0", "11.1"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
        console: PI_4,
    },
    Board {
        name: "xlnx-zcu102",
        options: &["-smp", "4", "-m", "1G"],
        tree: Some("xilinx/zynqmp-zcu102-rev1.0.dtb"),
        words: "",
        qemus: &["7.2"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
        console: "stdout-path",
    },
    Board {
        name: "imx8mp-evk",
        options: &["-smp", "4", "-m", "1G", "-serial", "null"],
        tree: Some("freescale/imx8mp-evk.dtb"),
        words: "",
        qemus: &["10.0"],
        page_sizes: &[K4, K64],
        cpus: 4,
        up: 4,
        missing: "",
        console: "stdout-path",
    },
    Board {
        name: "xlnx-versal-virt",
        options: &["-m", "1G"],
        tree: None,
        words: "",
        qemus: ALL,
        page_sizes: &[K4, K64],
        cpus: 2,
        up: 2,
        missing: "",
        console: "stdout-path",
    },
    Board {
        name: "amd-versal2-virt",
        options: &["-m", "1G"],
        tree: None,
        words: "",
        qemus: &["11.1"],
        page_sizes: &[K4, K16, K64],
        cpus: 8,
        up: 8,
        missing: "",
        console: "stdout-path",
    },
];

impl Board {
    /// Its row in the document.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test compares the document"))]
    pub(super) fn row(&self) -> String {
        let Self {
            name,
            cpus,
            up,
            console,
            missing,
            ..
        } = self;
        let tree = self
            .tree
            .map_or("QEMU's".to_owned(), |it| format!("`{it}`"));
        let sizes: Vec<_> = self
            .page_sizes
            .iter()
            .map(|it| show_size(it.bytes()))
            .collect();
        let (qemus, sizes) = (self.qemus.join(", "), sizes.join(", "));
        let row = format!(
            "| `{name}` | {qemus} | {tree} | {sizes} | {up} of {cpus} | `{console}` | {missing}"
        );
        format!("{} |", row.trim_end())
    }
}
