//! Guests of a few instructions each, as arm64 Images: enough to try every way
//! a boot can end without a kernel. Instructions are words with their assembly
//! beside them; the labels are counted by hand.

/// The conduit of PSCI calls: QEMU listens on `hvc` when the guest is entered at EL1 and on `smc`
/// when it has EL2 to itself.
pub(crate) fn psci_conduit(el: u8) -> u32 {
    if el == 2 {
        0xd400_0003 // smc #0
    } else {
        0xd400_0002 // hvc #0
    }
}

/// An Image whose header claims `image_size` bytes of memory.
fn image(code: &[u32], data: &[u8], image_size: u64) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0..4].copy_from_slice(&0x1400_0010_u32.to_le_bytes()); // b .+64
    bytes[16..24].copy_from_slice(&image_size.to_le_bytes());
    bytes[24..32].copy_from_slice(&0b1010_u64.to_le_bytes());
    bytes[56..60].copy_from_slice(b"ARM\x64");
    bytes.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(data);
    bytes
}

/// adr xN, .+4*words
fn adr(register: u32, words: u32) -> u32 {
    0x1000_0000 | words << 5 | register
}

/// x9 = the PL011's data register.
const X9_UART: u32 = 0xd2a1_2009; // movz x9, #0x0900, lsl #16

/// Prints the text at x10 up to its NUL.
const PRINT: [u32; 4] = [
    0x3840_154b, // ldrb w11, [x10], #1
    0x3400_006b, // cbz w11, .+12
    0xb900_012b, // str w11, [x9]
    0x17ff_fffd, // b .-12
];

/// PSCI SYSTEM_OFF.
fn power_off(el: u8) -> [u32; 4] {
    [
        0xd280_0100,      // movz x0, #0x0008
        0xf2b0_8000,      // movk x0, #0x8400, lsl #16
        psci_conduit(el), // smc #0 or hvc #0
        0x1400_0000,      // b .
    ]
}

fn nul(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// Prints a text and powers off.
pub(crate) fn prints(text: &str, el: u8) -> Vec<u8> {
    let mut code = vec![X9_UART, adr(10, 9)];
    code.extend(PRINT);
    code.extend(power_off(el));
    image(&code, &nul(text), 1 << 20)
}

/// Prints a text and then turns round for ever.
pub(crate) fn prints_and_spins(text: &str) -> Vec<u8> {
    let mut code = vec![X9_UART, adr(10, 6)];
    code.extend(PRINT);
    code.push(0x1400_0000); // b .
    image(&code, &nul(text), 1 << 20)
}

/// Prints a text and then waits for interrupts that never come.
pub(crate) fn prints_and_sleeps(text: &str) -> Vec<u8> {
    let mut code = vec![X9_UART, adr(10, 7)];
    code.extend(PRINT);
    code.push(0xd503_207f); // wfi
    code.push(0x17ff_ffff); // b .-4
    image(&code, &nul(text), 1 << 20)
}

/// A boot record as it stands in an image file.
fn boot_record(reason: u32, message: &str) -> Vec<u8> {
    let mut record = b"GRANULE-BOOTREC\0".to_vec();
    for word in [1, 0, reason, message.len() as u32] {
        record.extend(word.to_le_bytes());
    }
    record.extend(message.as_bytes());
    record.resize(256, 0);
    record
}

/// Turns round `65536 * turns` times, prints by how much the virtual counter went on
/// meanwhile, 8 bytes, and powers off. It has a boot record, so that it is
/// looked at while it runs.
pub(crate) fn prints_the_time_of_a_loop(turns: u16, el: u8) -> Vec<u8> {
    let mut code = vec![
        X9_UART,
        0xd2a0_000a | u32::from(turns) << 5, // movz x10, #turns, lsl #16
        0xd53b_e04c,                         // mrs x12, cntvct_el0
        0xf100_054a,                         // subs x10, x10, #1
        0x54ff_ffe1,                         // b.ne .-4
        0xd53b_e04d,                         // mrs x13, cntvct_el0
        0xcb0c_01ad,                         // sub x13, x13, x12
    ];
    code.extend(prints_register(13));
    code.extend(power_off(el));
    code.resize(48, 0);
    image(&code, &boot_record(0, ""), 1 << 20)
}

/// Prints the 8 bytes of a register, the lowest first.
fn prints_register(register: u32) -> impl Iterator<Item = u32> {
    (0..8).flat_map(move |byte| {
        [
            0xd340_fc0b | (byte * 8) << 16 | register << 5, // lsr x11, xN, #8*byte
            0xb900_012b,                                    // str w11, [x9]
        ]
    })
}

/// Parks with this message in the boot record, never printing.
pub(crate) fn parks(message: &str) -> Vec<u8> {
    parks_after(&[], message)
}

/// Writes to 1024 pages of RAM, 4 MiB from each other, and then parks with this message.
pub(crate) fn touches_4_gib_here_and_there_and_parks(message: &str) -> Vec<u8> {
    let touch = [
        0xd2b0_000a, // movz x10, #0x8000, lsl #16
        0xd280_800b, // movz x11, #1024
        0xf900_015f, // str xzr, [x10]
        0x9150_014a, // add x10, x10, #0x400, lsl #12
        0xf100_056b, // subs x11, x11, #1
        0x54ff_ffa1, // b.ne .-12
    ];
    parks_after(&touch, message)
}

fn parks_after(first: &[u32], message: &str) -> Vec<u8> {
    let mut code = first.to_vec();
    code.extend([
        adr(10, 48 - code.len() as u32), // the record, 192 bytes behind the first instruction
        0x5280_006b,                     // movz w11, #3
        0xb900_154b,                     // str w11, [x10, #20]
        0xd503_3f9f,                     // dsb sy
        0xd503_207f,                     // wfi
        0x17ff_ffff,                     // b .-4
    ]);
    code.resize(48, 0);
    image(&code, &boot_record(42, message), 1 << 20)
}

/// Prints what `text` makes of the offset in the image of a boot record, and then parks with this message
/// in it. The record's magic is completed only then, so that the record is not found in the image's file.
pub(crate) fn prints_and_parks_elsewhere(
    text: impl FnOnce(u64) -> String,
    message: &str,
) -> (Vec<u8>, u64) {
    // Behind header and code.
    const RECORD: u32 = 64 + 16 * 4;
    let mut code = vec![X9_UART, adr(10, 15 + 64)];
    code.extend(PRINT);
    code.extend([
        adr(10, 16 - 6), // the record
        0x5280_08eb,     // movz w11, #'G'
        0x3900_014b,     // strb w11, [x10]
        0x5280_006b,     // movz w11, #3
        0xb900_154b,     // str w11, [x10, #20]
        0xd503_3f9f,     // dsb sy
        0xd503_207f,     // wfi
        0x17ff_ffff,     // b .-4
    ]);
    code.resize(16, 0);
    let mut data = boot_record(42, message);
    data[0] = b'g';
    data.extend(nul(&text(u64::from(RECORD))));
    (image(&code, &data, 1 << 20), u64::from(RECORD))
}

/// Prints the text that lies where x0 points, then `!` unless x1, x2 and x3 are
/// all zero, then powers off.
pub(crate) fn prints_what_x0_points_to(el: u8) -> Vec<u8> {
    let mut code = vec![X9_UART, 0xaa00_03ea /* mov x10, x0 */];
    code.extend(PRINT);
    code.extend([
        0xaa02_0021, // orr x1, x1, x2
        0xaa03_0021, // orr x1, x1, x3
        0xb400_0081, // cbz x1, .+16
        0x5280_042b, // movz w11, #0x21
        0xb900_012b, // str w11, [x9]
        0xd503_201f, // nop
    ]);
    code.extend(power_off(el));
    image(&code, &[], 1 << 20)
}

/// Prints the whole device tree at x0, byte for byte, then the address of its
/// own first instruction and the tree's, 8 bytes each.
pub(crate) fn prints_the_tree(el: u8) -> Vec<u8> {
    let mut code = vec![
        X9_UART,
        0xaa00_03ea, // mov x10, x0
        0xb940_040c, // ldr w12, [x0, #4]
        0x5ac0_098c, // rev w12, w12
        0x3840_154b, // ldrb w11, [x10], #1
        0xb900_012b, // str w11, [x9]
        0x7100_058c, // subs w12, w12, #1
        0x54ff_ffa1, // b.ne .-12
        0x10ff_fd0d, // adr x13, .-96: the first instruction
        0xaa00_03ee, // mov x14, x0
    ];
    for register in [13, 14] {
        code.extend(prints_register(register));
    }
    code.extend(power_off(el));
    image(&code, &[], 1 << 20)
}
