//! CPUs that wait in firmware's loop until an address is written to memory, as on boards without PSCI.
//!
//! QEMU's `virt` has PSCI. So the image gets a small firmware behind it, which is entered first: it starts the other
//! CPUs by PSCI into such a loop, and then enters the image. The device tree names the words that they watch.

use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::DeviceTreeProperty;
use granule_cli::boot::tree;

use crate::image::image;
use crate::smp::machine::{machine, ok};

/// Where QEMU loads an image, on a machine whose RAM begins at 1 GiB.
const LOADED: u64 = 0x4020_0000;
/// CPUs of the machine.
const CPUS: u32 = 4;
/// The memory of the firmware, and the offset of its words.
const FIRMWARE_BYTES: u64 = 64 << 10;
const WORDS: u64 = 4 * FIRMWARE.len() as u64;

/// The firmware. CPU 1 waits for the first word after it, CPUs 2 and 3 for the second.
const FIRMWARE: [u32; 24] = [
    0xaa00_03f3, // mov  x19, x0
    0x1000_02f4, // adr  x20, 2f
    0xd280_0035, // mov  x21, #1
    0xd280_0060, // 1:  movz x0, #3
    0xf2b8_8000, // movk x0, #0xc400, lsl #16
    0xaa15_03e1, // mov  x1, x21
    0x1000_0182, // adr  x2, 3f
    0xd341_fea3, // lsr  x3, x21, #1
    0x8b03_0e83, // add  x3, x20, x3, lsl #3
    0xd400_0002, // hvc  #0
    0x9100_06b5, // add  x21, x21, #1
    0xf100_12bf, // cmp  x21, #4
    0x54ff_fee1, // b.ne 1b
    0xaa13_03e0, // mov  x0, x19
    0xaa1f_03e1, // mov  x1, xzr
    0xaa1f_03e2, // mov  x2, xzr
    0xaa1f_03e3, // mov  x3, xzr
    0x1400_0000, // b    .
    0xd503_205f, // 3:  wfe
    0xf940_0004, // ldr  x4, [x0]
    0xb4ff_ffc4, // cbz  x4, 3b
    0xaa1f_03e0, // mov  x0, xzr
    0xd61f_0080, // br   x4
    0xd503_201f, // nop
];
/// The indices of the instructions that depend on the machine.
const CALL: usize = 9;
const ENTER_IMAGE: usize = 17;
const SMC: u32 = 0xd400_0003;

/// An unconditional branch over so many bytes.
fn branch(bytes: i64) -> u32 {
    0x1400_0000 | ((bytes / 4) as u32 & 0x03ff_ffff)
}

/// The image with the firmware behind it, and the offset of the firmware.
fn with_firmware(el: u8) -> (Vec<u8>, u64) {
    let mut bytes = std::fs::read(image()).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let size = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    // One of the header's first two instructions is the branch to the entry.
    let at = usize::from(word(&bytes, 0) >> 26 != 0b101) * 4;
    let old = word(&bytes, at);
    assert_eq!(old >> 26, 0b101, "{old:#x} is not a branch");
    let entry = at as i64 + i64::from((old << 6) as i32 >> 6) * 4;
    let mut firmware = FIRMWARE;
    if el == 2 {
        firmware[CALL] = SMC;
    }
    firmware[ENTER_IMAGE] = branch(entry - (size as i64 + 4 * ENTER_IMAGE as i64));
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(at, &branch(size as i64 - at as i64).to_le_bytes());
    put(16, &(size + FIRMWARE_BYTES).to_le_bytes());
    bytes.resize(size as usize, 0);
    bytes.extend(firmware.iter().flat_map(|word| word.to_le_bytes()));
    bytes.resize((size + FIRMWARE_BYTES) as usize, 0);
    (bytes, size)
}

/// CPU 1 has a word of its own; CPUs 2 and 3 watch one, so that CPU 3 comes in before it is
/// requested.
fn boots(el: u8, size: &str, page_bytes: u64) {
    let (bytes, offset) = with_firmware(el);
    let files = tempfile::tempdir().unwrap();
    let (image, dtb) = (files.path().join("Image"), files.path().join("dtb"));
    std::fs::write(&image, bytes).unwrap();
    let mut request = machine(CPUS, "")
        .image(image)
        .el(el)
        .append(format!("granule.test=ipi arm64.pagesize={size}"));
    let mut tree = tree::model(&tree::dump(&request).unwrap()).unwrap();
    let firmware = LOADED + offset;
    tree.memory_reservations
        .push(MemoryReservation::new(firmware, FIRMWARE_BYTES));
    for (cpu, word) in [(1, 0), (2, 1), (3, 1)] {
        let node = tree.find_node_mut(&format!("/cpus/cpu@{cpu}")).unwrap();
        let mut set = |name: &str, value: Vec<u8>| {
            node.add_property(DeviceTreeProperty::new_unchecked(name, value));
        };
        set("enable-method", b"spin-table\0".to_vec());
        let release = firmware + WORDS + 8 * word;
        set("cpu-release-addr", release.to_be_bytes().to_vec());
    }
    let chosen = tree.find_node_mut("/chosen").unwrap();
    let words = request.append.take().unwrap();
    chosen.add_property(DeviceTreeProperty::new_unchecked(
        "bootargs",
        format!("{words}\0").into_bytes(),
    ));
    std::fs::write(&dtb, tree.to_dtb()).unwrap();
    request.dtb = Some(dtb);
    let made = ok(&request);
    assert_eq!(made.mismatches(), [""; 0]);
    made.has("cpus", CPUS);
    made.has("page_size", page_bytes);
}

#[test]
fn cpus_are_released_at_either_level() {
    boots(1, "4k", 4 << 10);
    boots(2, "64k", 64 << 10);
}
