//! Devices that the last owner of the machine left on, and that write memory. Code before the kernel's image turns
//! them on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use granule_cli::{Outcome, Request};

use crate::image::image;
use crate::kernel::machine::{MIB, ends, request};

/// GICR_CTLR of the CPUs of `virt`, and SMMU_CR0 of its SMMU: bit 0 turns each on.
const LPIS: [u64; 2] = [0x80a_0000, 0x80c_0000];
const SMMU: u64 = 0x905_0020;

/// An image that stores 1 to each of these registers, and goes on in the kernel's image, which lies 2 MiB further.
fn after(registers: &[u64]) -> Vec<u8> {
    let kernel = fs::read(image()).unwrap();
    let mut code = vec![0x5280_0025]; // mov w5, #1
    for register in registers {
        let (high, low) = (register >> 16, register & 0xffff);
        code.push(0xd2a0_0004 | (high as u32) << 5); // movz x4, #high, lsl #16
        code.push(0xb900_0085 | (low as u32 / 4) << 10); // str w5, [x4, #low]
    }
    let further = (2 * MIB as u32 - 64) / 4 - code.len() as u32;
    code.push(0x1400_0000 | further); // b
    let mut made = kernel[..64].to_vec();
    made[..8].copy_from_slice(&[0x10, 0, 0, 0x14, 0, 0, 0, 0]); // b .+64
    let bytes = u64::from_le_bytes(kernel[16..24].try_into().unwrap());
    made[16..24].copy_from_slice(&(bytes + 2 * MIB).to_le_bytes());
    // No EFI stub.
    made[60..64].fill(0);
    made.extend(code.iter().flat_map(|word: &u32| word.to_le_bytes()));
    made.resize(2 * MIB as usize, 0);
    made.extend(kernel);
    made
}

#[test]
fn lpis_are_turned_off_and_smmus_reported() {
    let lpis = |count| {
        format!("granule: {count} redistributors had LPIs left on, which write memory; turned off")
    };
    let smmu = "granule: 1 SMMUs were left on, and stay so: devices behind them may write memory that this kernel uses";
    for (registers, lines) in [
        (&[][..], vec![]),
        (&LPIS[1..], vec![lpis(1)]),
        (&LPIS, vec![lpis(2)]),
        (&[SMMU], vec![smmu.to_owned()]),
        (&[SMMU, LPIS[0]], vec![lpis(1), smmu.to_owned()]),
    ] {
        let files = tempfile::tempdir().unwrap();
        let [image, qemu] = ["image", "qemu"].map(|name| files.path().join(name));
        fs::write(&image, after(registers)).unwrap();
        let usual = request().qemu;
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" -machine iommu=smmuv3\n",
            usual.display()
        );
        fs::write(&qemu, script).unwrap();
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
        let ran = ends(
            &Request {
                image: Some(image),
                qemu,
                smp: 2,
                ..request()
            },
            Outcome::Ok,
        );
        let printed = ran.console.lines().map(str::trim_end);
        let printed: Vec<&str> = printed.filter(|line| line.contains("left on")).collect();
        assert_eq!(printed, lines, "{registers:x?}");
    }
}
