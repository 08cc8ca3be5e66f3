//! Tests of each family on a device in memory, which records the order of accesses.

use super::*;
use granule_boot::uart::Width;
use std::cell::RefCell;

/// A device: its registers, by offset, and what happens to it.
struct Device {
    registers: Vec<u32>,
    /// The register of data, and the one in whose bits `full` are set while a byte is being sent.
    data: usize,
    flags: usize,
    /// The flags while a byte is being sent, and else.
    sending: u32,
    idle: u32,
    /// The number of further reads of flags that find a byte being sent.
    delay: u32,
    slow: u32,
    sent: Vec<u8>,
    writes: Vec<(usize, u32)>,
}

#[derive(Clone, Copy)]
struct Fake<'a>(&'a RefCell<Device>);

impl Registers for Fake<'_> {
    fn read(self, offset: usize) -> u32 {
        let mut device = self.0.borrow_mut();
        if offset != device.flags {
            return device.registers[offset];
        }
        if device.delay == 0 {
            return device.idle;
        }
        device.delay -= 1;
        device.sending
    }

    fn write(self, offset: usize, value: u32) {
        let mut device = self.0.borrow_mut();
        if offset == device.data {
            // What is written to a FIFO that is full is lost.
            if device.delay == 0 {
                device.sent.push(u8::try_from(value).unwrap());
            }
            device.delay = device.slow;
        } else {
            device.registers[offset] = value;
            device.writes.push((offset, value));
        }
    }
}

const BYTES: Layout = Layout {
    shift: 0,
    width: Width::Bits8,
};
const WORDS: Layout = Layout {
    shift: 2,
    width: Width::Bits32,
};

/// A family as its manual has it: the offsets of its data and flags, and the flags while sending and idle.
struct UartCase(Family, Layout, usize, usize, u32, u32);

const CASES: [UartCase; 6] = [
    UartCase(Family::Pl011, WORDS, 0, 0x18, 0x28, 0x90),
    UartCase(Family::Sbsa, WORDS, 0, 0x18, 0x28, 0x90),
    UartCase(Family::Uart8250, BYTES, 0, 5, 0x01, 0x61),
    UartCase(Family::Uart8250, WORDS, 0, 0x14, 0x01, 0x61),
    UartCase(Family::Cadence, WORDS, 0x30, 0x2c, 0x810, 0x0a),
    // The flags of an i.MX that are waited for are in two registers: the other test has both.
    UartCase(Family::Imx, WORDS, 0x40, 0xb4, 0x10, 0x60),
];

impl UartCase {
    fn device(&self, slow: u32) -> RefCell<Device> {
        let Self(family, layout, data, flags, sending, idle) = *self;
        // A driver that went further would leave the page that is checked and mapped.
        let bytes = family.registers() << layout.shift;
        RefCell::new(Device {
            registers: vec![0; bytes],
            data,
            flags,
            sending,
            idle,
            delay: 0,
            slow,
            sent: Vec::new(),
            writes: Vec::new(),
        })
    }

    fn port<'a>(&self, device: &'a RefCell<Device>) -> Port<Fake<'a>> {
        let Self(family, layout, ..) = *self;
        let base = 0x1000;
        let uart = Uart {
            base,
            family,
            layout,
        };
        Port::new(&uart, Fake(device))
    }
}

#[test]
fn every_byte_waits_until_there_is_room() {
    for case in CASES {
        for slow in [0, 1, 7] {
            let device = case.device(slow);
            let port = case.port(&device);
            port.put_all(b"one\ntwo");
            let device = device.borrow();
            assert_eq!(device.sent, b"one\r\ntwo", "{:?} {slow}", case.0);
            assert!(device.writes.is_empty());
        }
    }
}

#[test]
fn a_flush_waits_until_all_has_left() {
    let [others @ .., _] = CASES;
    let imx = UartCase(Family::Imx, WORDS, 0x40, 0x98, 0, 1 << 3);
    for case in others.into_iter().chain([imx]) {
        let device = case.device(5);
        let port = case.port(&device);
        port.put(b'A');
        port.flush();
        assert_eq!(device.borrow().delay, 0, "{:?}", case.0);
    }
}

#[test]
fn a_device_that_is_never_ready_does_not_hang() {
    for case in CASES {
        let device = case.device(u32::MAX);
        device.borrow_mut().delay = u32::MAX;
        let port = case.port(&device);
        port.put(b'B');
        port.flush();
        // It was written to all the same.
        assert!(device.borrow().delay >= u32::MAX - PATIENCE);
    }
}

/// Returns what `enable` writes to the registers with these values.
fn enabling(case: &UartCase, registers: &[(usize, u32)]) -> Vec<(usize, u32)> {
    let device = case.device(0);
    for (offset, value) in registers {
        device.borrow_mut().registers[*offset] = *value;
    }
    case.port(&device).enable();
    device.into_inner().writes
}

#[test]
fn a_transmitter_that_is_off_is_turned_on_and_one_that_is_on_left_alone() {
    let [pl011, sbsa, bytes, words, cadence, imx] = &CASES;
    assert_eq!(enabling(pl011, &[]), [(0x2c, 0x70), (0x30, 0x301)]);
    assert_eq!(
        enabling(pl011, &[(0x2c, 0x6), (0x30, 0x300)]),
        [(0x2c, 0x76), (0x30, 0x301)]
    );
    assert_eq!(enabling(pl011, &[(0x30, 0xc301)]), []);
    for never in [sbsa, bytes, words] {
        assert_eq!(enabling(never, &[]), []);
    }
    assert_eq!(enabling(cadence, &[(0, 0x128)]), [(0, 0x118)]);
    assert_eq!(enabling(cadence, &[(0, 0x130)]), [(0, 0x110)]);
    assert_eq!(enabling(cadence, &[(0, 0x114)]), []);
    let reset = [(0x84, 1)];
    assert_eq!(enabling(imx, &reset), [(0x80, 1), (0x84, 0x4025)]);
    assert_eq!(
        enabling(imx, &[(0x80, 1), (0x84, 0x3)]),
        [(0x80, 1), (0x84, 0x4027)]
    );
    assert_eq!(enabling(imx, &[(0x80, 0x201), (0x84, 0x27)]), []);
}
