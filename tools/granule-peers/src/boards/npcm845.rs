//! A replacement for firmware on Nuvoton's NPCM845 board: its tree, which neither Debian's packages
//! nor QEMU have, and the code that starts its CPUs. QEMU's own start code cannot be used: it is at
//! the address of the board's boot ROM, and it is 32-bit code for all CPUs but the first. The
//! addresses are those of QEMU's machine `npcm845-evb`.

use anyhow::{Result, anyhow};
use granule_boot::tree::{Range, WriteError, Writer};

/// The start address of every CPU: in RAM, above the boot ROM and below the image.
pub(super) const START: u64 = 0x10_0000;
/// The address of the eight bytes that all CPUs but the first poll.
const RELEASE: u64 = START + 0x80;
/// The bytes at the start of RAM that are reserved: the boot ROM, and the code here.
const RESERVED: u64 = 0x11_0000;

pub(super) const CPUS: u64 = 4;

/// The code at [`START`]. The first CPU finds the tree, which QEMU puts after the initramfs, at a
/// multiple of 2 MiB from 128 MiB on, and enters the image at 2 MiB. The others poll [`RELEASE`].
#[rustfmt::skip]
const CODE: [u32; 25] = [
    0xd538_00a1, // mrs  x1, mpidr_el1
    0x9240_0421, // and  x1, x1, #3
    0xb400_0101, // cbz  x1, first
    0xd2a0_0205, // movz x5, #0x10, lsl #16
    0xf280_1005, // movk x5, #0x80
    0xd503_205f, // watch: wfe
    0xf940_00a4, // ldr  x4, [x5]
    0xb4ff_ffc4, // cbz  x4, watch
    0xd61f_0080, // br   x4
    0xd503_201f, // nop
    0xd2a1_0000, // first: movz x0, #0x800, lsl #16
    0x5281_ba07, // movz w7, #0x0dd0
    0x72bd_bfc7, // movk w7, #0xedfe, lsl #16
    0xb940_0006, // look: ldr w6, [x0]
    0x6b07_00df, // cmp  w6, w7
    0x5400_0060, // b.eq found
    0x9148_0000, // add  x0, x0, #0x200, lsl #12
    0x17ff_fffc, // b    look
    0xd280_0001, // found: mov x1, #0
    0xd280_0002, // mov  x2, #0
    0xd280_0003, // mov  x3, #0
    0xd2a0_0404, // movz x4, #0x20, lsl #16
    0xd61f_0080, // br   x4
    0xd503_201f, // nop
    0xd503_201f, // nop
];

/// The start method of all CPUs but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// They run from the start, and poll [`RELEASE`].
    SpinTable,
    /// QEMU's own PSCI.
    Psci,
}

impl Method {
    /// Returns the method of a QEMU version: 10.0 has no PSCI on this board, and starts all CPUs at
    /// once; 11.1 starts only the first.
    pub(super) fn of(qemu: &str) -> Self {
        if qemu == "10.0" {
            Self::SpinTable
        } else {
            Self::Psci
        }
    }
}

/// Returns the bytes of the code, up to the end of the polled bytes, which are zero.
pub(super) fn code() -> Vec<u8> {
    let mut bytes: Vec<u8> = CODE.iter().flat_map(|it| it.to_le_bytes()).collect();
    bytes.resize((RELEASE - START) as usize + 8, 0);
    bytes
}

pub(super) fn tree(method: Method) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 0x4000];
    let used =
        write(&mut bytes, method).map_err(|error| anyhow!("no tree for the NPCM845: {error}"))?;
    bytes.truncate(used);
    Ok(bytes)
}

fn write(into: &mut [u8], method: Method) -> Result<usize, WriteError> {
    /// The phandle of the interrupt controller.
    const GIC: u32 = 1;
    let reserved = Range {
        start: 0,
        bytes: RESERVED,
    };
    let mut to = Writer::new(into, [reserved])?;
    to.begin(b"")?;
    to.cells(b"#address-cells", &[2])?;
    to.cells(b"#size-cells", &[2])?;
    to.cells(b"interrupt-parent", &[GIC])?;
    to.text(b"compatible", b"nuvoton,npcm845-evb")?;
    to.begin(b"chosen")?;
    to.text(b"stdout-path", b"/serial@f0000000")?;
    to.end()?;
    // QEMU fills in the size.
    to.begin_at(b"memory", 0)?;
    to.text(b"device_type", b"memory")?;
    to.numbers(b"reg", [0, 0x4000_0000])?;
    to.end()?;
    to.begin(b"cpus")?;
    to.cells(b"#address-cells", &[2])?;
    to.cells(b"#size-cells", &[0])?;
    for cpu in 0..CPUS {
        to.begin_at(b"cpu", cpu)?;
        to.text(b"device_type", b"cpu")?;
        to.text(b"compatible", b"arm,cortex-a35")?;
        to.numbers(b"reg", [cpu])?;
        match method {
            Method::SpinTable => {
                to.text(b"enable-method", b"spin-table")?;
                to.numbers(b"cpu-release-addr", [RELEASE])?;
            }
            Method::Psci => to.text(b"enable-method", b"psci")?,
        }
        to.end()?;
    }
    to.end()?;
    if method == Method::Psci {
        to.begin(b"psci")?;
        to.text(b"compatible", b"arm,psci-1.0")?;
        to.text(b"method", b"smc")?;
        to.end()?;
    }
    to.begin(b"timer")?;
    to.text(b"compatible", b"arm,armv8-timer")?;
    let private = |number| [1, number, 0xf08];
    to.cells(b"interrupts", &[13, 14, 11, 10].map(private).concat())?;
    to.end()?;
    to.begin_at(b"interrupt-controller", 0xdfff_9000)?;
    to.text(b"compatible", b"arm,gic-400")?;
    to.property(b"interrupt-controller", &[])?;
    to.cells(b"#interrupt-cells", &[3])?;
    to.cells(b"phandle", &[GIC])?;
    to.numbers(b"reg", [0xdfff_9000, 0x1000, 0xdfff_a000, 0x2000])?;
    to.end()?;
    to.begin_at(b"serial", 0xf000_0000)?;
    to.text(b"compatible", b"nuvoton,npcm845-uart")?;
    to.numbers(b"reg", [0xf000_0000, 0x1000])?;
    to.cells(b"reg-shift", &[2])?;
    to.end()?;
    to.end()?;
    to.finish(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_boot::tree::Tree;
    use granule_kcore::devicetree::{cpus, intc};

    #[test]
    fn the_kernel_finds_its_devices_in_the_tree() {
        for method in [Method::SpinTable, Method::Psci] {
            let bytes = tree(method).unwrap();
            let tree = Tree::new(&bytes).unwrap();
            let found = intc::controller(&tree);
            assert!(
                matches!(found, Ok(intc::Controller::GicV2 { .. })),
                "{found:?}"
            );
            assert_eq!(intc::timer(&tree, false), Some(30));
            assert_eq!(intc::timer(&tree, true), Some(26));
            assert_eq!(cpus::has_psci(&tree), method == Method::Psci);
        }
    }

    #[test]
    fn the_code_ends_before_the_polled_bytes() {
        let bytes = code();
        assert!(4 * CODE.len() as u64 <= RELEASE - START);
        assert_eq!(bytes.len() as u64, RELEASE - START + 8);
        assert!(bytes.ends_with(&[0; 8]));
        // RAM below the image is reserved.
        assert!(START + (bytes.len() as u64) <= RESERVED && RESERVED <= 0x20_0000);
    }
}
