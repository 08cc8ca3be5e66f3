//! The interrupt controller of the Raspberry Pi 2 and 3 (`brcm,bcm2836-l1-intc`): the registers of each of its four
//! cores, and what a kernel reads and writes there for calls between CPUs and for each CPU's timer; and what silences
//! the other interrupts, also those of the controller behind it (`brcm,bcm2836-armctrl-ic`), which all devices share. No
//! address, and no barrier: who calls this orders it with memory.
//!
//! The controller has no enable bit for all, no priorities and no end of an interrupt: a core's interrupts are the
//! bits of its source register, and each stays there until its cause is gone (BCM2836 ARM-local peripherals, QA7).

/// The number of cores.
pub const CORES: usize = 4;

/// Bytes of the registers.
pub const BYTES: u64 = 0x100;

/// Bytes of the registers of the shared controller, and a multiple at which they begin.
pub const SHARED_BYTES: u64 = 0x200;

/// The number of the interrupt by which CPUs call each other: the core's first mailbox.
pub const CALL: u32 = 4;

/// The numbers of the timers' interrupts: Secure physical, Non-secure physical, that of EL2, virtual.
const TIMERS: u32 = 4;

/// Bits that are written as 1 keep the performance monitors of cores from interrupting: 3:0 for each core, 7:4 as FIQ.
const MONITORS_OFF: u64 = 0x14;
/// Bit 20: the watch over accesses of the bus interrupts core 0.
const BUS_CONTROL: u64 = 0x30;
/// Bit 29: the interrupts of the one timer that belongs to no core. Bit 28: it counts.
const ONE_TIMER_CONTROL: u64 = 0x34;
/// For each core one register at a distance of 4: the timers whose interrupts it takes, by their numbers. Bits 7:4
/// do the same for FIQs.
const TIMER_CONTROL: u64 = 0x40;
/// Likewise the mailboxes whose interrupts it takes. Bits 7:4 do the same for FIQs.
const MAILBOX_CONTROL: u64 = 0x50;
/// Likewise the interrupts that the core has now, by their numbers.
const SOURCE: u64 = 0x60;
/// For each core four mailboxes, one register each: bits that are written as 1 are set.
const SET: u64 = 0x80;
/// Likewise: bits that are written as 1 are cleared; a read has those that are set, which interrupt.
const CLEAR: u64 = 0xc0;

/// Registers of the shared controller (BCM2835 ARM peripherals, 7.5, with offsets less 0x200): bit
/// 7 of the first makes one interrupt come as FIQ; bits of the others that are written as 1 turn
/// interrupts off.
const FIQ_CONTROL: u64 = 0x0c;
const DISABLE: [u64; 3] = [0x1c, 0x20, 0x24];

/// Reads and writes registers, by their offsets in bytes.
pub trait Registers: Copy {
    /// Reads a register.
    fn read(self, offset: u64) -> u32;
    /// Writes a register.
    fn write(self, offset: u64, value: u32);
}

/// The registers of one core.
#[derive(Clone, Copy, Debug)]
pub struct Core<R> {
    registers: R,
    number: u64,
}

impl<R: Registers> Core<R> {
    /// The core of the CPU with these affinity fields, by Aff0. `None` if the controller does not serve it.
    pub const fn of(registers: R, affinity: u64) -> Option<Self> {
        let number = affinity & 0xff;
        if number < CORES as u64 {
            Some(Self { registers, number })
        } else {
            None
        }
    }

    /// Lets calls through to the core, and its timer if one is used. Its other timers and mailboxes, and their FIQs, are
    /// off. The other interrupts are [`silence`]'s and [`silence_shared`]'s.
    pub fn enable(self, timer: Option<u32>) {
        self.empty();
        let timer = timer.filter(|number| is_timer(*number));
        self.write(TIMER_CONTROL, timer.map_or(0, |number| 1 << number));
        self.write(MAILBOX_CONTROL, 1);
    }

    /// Stops all interrupts of the core that a kernel can turn on; an error is the number of one that stays on.
    pub fn disable(self) -> Result<(), u32> {
        self.write(TIMER_CONTROL, 0);
        self.write(MAILBOX_CONTROL, 0);
        self.empty();
        let left = self.read(TIMER_CONTROL) | self.read(MAILBOX_CONTROL) << CALL;
        match left.trailing_zeros() {
            u32::BITS => Ok(()),
            number => Err(number),
        }
    }

    /// Calls the core.
    pub fn call(self) {
        self.registers.write(SET + 16 * self.number, 1);
    }

    /// Takes the interrupt of the core with the smallest number, the calls first; `None` if it went away. A call is
    /// over with this: the next one, from now on, interrupts again.
    pub fn take(self) -> Option<u32> {
        let source = self.read(SOURCE);
        if source & (1 << CALL) != 0 {
            self.clear(0);
            return Some(CALL);
        }
        (source != 0).then(|| source.trailing_zeros())
    }

    fn empty(self) {
        for mailbox in 0..4 {
            self.clear(mailbox);
        }
    }

    /// Empties a mailbox. A write to Device memory may be acknowledged before it is done, and a
    /// call that another core made meanwhile would be cleared with the one before it; a read of the
    /// device comes after the write.
    fn clear(self, mailbox: u64) {
        let at = CLEAR + 16 * self.number + 4 * mailbox;
        self.registers.write(at, u32::MAX);
        self.registers.read(at);
    }

    fn read(self, register: u64) -> u32 {
        self.registers.read(register + 4 * self.number)
    }

    fn write(self, register: u64, value: u32) {
        self.registers.write(register + 4 * self.number, value);
    }
}

/// Stops what is shared by the cores: the performance monitors of all cores, the bus, and the timer
/// that belongs to no core. A bootloader may have left each on.
pub fn silence(registers: impl Registers) {
    registers.write(MONITORS_OFF, u32::MAX);
    registers.write(BUS_CONTROL, 0);
    registers.write(ONE_TIMER_CONTROL, 0);
    // See `Core::clear`.
    registers.read(ONE_TIMER_CONTROL);
}

/// Stops all interrupts of the shared controller, whose registers these are, and its FIQ: bit 8 of a core's source
/// register. The Raspberry Pi's bootloader leaves USB's on, and USB's may be the FIQ.
pub fn silence_shared(registers: impl Registers) {
    registers.write(FIQ_CONTROL, 0);
    for disable in DISABLE {
        registers.write(disable, u32::MAX);
    }
    registers.read(FIQ_CONTROL);
}

/// Whether a number is that of a timer's interrupt.
pub const fn is_timer(number: u32) -> bool {
    number < TIMERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The device, by its manual: what is stored, and the lines of the timers.
    #[derive(Default)]
    struct Device {
        timers: [u32; CORES],
        timer_control: [u32; CORES],
        mailbox_control: [u32; CORES],
        mailboxes: [[u32; 4]; CORES],
        /// Cleared bits of a mailbox that are on their way here, as Device memory with early acknowledgement allows:
        /// core, mailbox, bits. The next read waits for them; writes of other cores do not.
        on_the_way: Vec<(usize, usize, u32)>,
        /// A bit that no write clears, as of broken hardware.
        stuck: u32,
        monitors: u32,
        bus_control: u32,
        one_timer_control: u32,
        shared: [u32; 3],
        shared_fiq: u32,
    }

    impl Device {
        /// The sources from bit 8 on that a core has, and whether it has an FIQ, if every device
        /// requests an interrupt. All but the performance monitors are core 0's, as after reset.
        fn others(&self, core: usize) -> (u32, bool) {
            let first = |is: bool| u32::from(is && core == 0);
            let source = first(self.shared != [0; 3]) << 8
                | (self.monitors >> core & 1) << 9
                | first(self.bus_control & 1 << 20 != 0) << 10
                | first(self.one_timer_control & 1 << 29 != 0) << 11;
            let own = self.timer_control[core] | self.mailbox_control[core] | self.monitors;
            let shared = core == 0 && self.shared_fiq & 1 << 7 != 0;
            (source, own >> 4 != 0 || shared)
        }
    }

    /// The registers of the shared controller.
    #[derive(Clone, Copy)]
    struct Shared<'a>(&'a RefCell<Device>);

    impl Registers for Shared<'_> {
        fn read(self, offset: u64) -> u32 {
            assert_eq!(offset, 0xc);
            self.0.borrow().shared_fiq
        }

        fn write(self, offset: u64, value: u32) {
            let it = &mut *self.0.borrow_mut();
            match offset {
                0xc => it.shared_fiq = value,
                0x1c | 0x20 | 0x24 => it.shared[(offset as usize - 0x1c) / 4] &= !value,
                _ => panic!("write of {offset:#x}"),
            }
        }
    }

    impl Registers for &RefCell<Device> {
        fn read(self, offset: u64) -> u32 {
            let mut it = self.borrow_mut();
            for (owner, at, bits) in std::mem::take(&mut it.on_the_way) {
                it.mailboxes[owner][at] &= !bits;
            }
            let core = (offset >> 2 & 3) as usize;
            let owner = (offset >> 4 & 3) as usize;
            match offset & !0xf {
                0xc0..0x100 => it.mailboxes[owner][core],
                0x40 => it.timer_control[core],
                0x50 => it.mailbox_control[core] | it.stuck,
                0x60 => {
                    let timers = it.timers[core] & it.timer_control[core] & 0xf;
                    let full = (0..4).filter(|at| it.mailboxes[core][*at] != 0);
                    let mailboxes: u32 = full.map(|at| 1 << at).sum();
                    let own = timers | (mailboxes & it.mailbox_control[core] & 0xf) << 4;
                    own | it.others(core).0
                }
                0x30 if offset == 0x34 => it.one_timer_control,
                _ => panic!("read of {offset:#x}"),
            }
        }

        fn write(self, offset: u64, value: u32) {
            let it = &mut *self.borrow_mut();
            let core = (offset >> 2 & 3) as usize;
            let owner = (offset >> 4 & 3) as usize;
            match offset {
                0x14 => it.monitors &= !value,
                0x30 => it.bus_control = value,
                0x34 => it.one_timer_control = value,
                0x40..0x50 => it.timer_control[core] = value,
                0x50..0x60 => it.mailbox_control[core] = value,
                0x80..0xc0 => it.mailboxes[owner][core] |= value,
                0xc0..0x100 => it.on_the_way.push((owner, core, value)),
                _ => panic!("write of {offset:#x}"),
            }
        }
    }

    fn core(device: &RefCell<Device>, affinity: u64) -> Core<&RefCell<Device>> {
        Core::of(device, affinity).unwrap()
    }

    #[test]
    fn a_call_reaches_its_core_alone_and_once() {
        let device = RefCell::default();
        for number in 0..CORES as u64 {
            core(&device, number).enable(None);
        }
        for to in 0..CORES as u64 {
            core(&device, to).call();
            core(&device, to).call();
            for number in 0..CORES as u64 {
                let taken = (number == to).then_some(CALL);
                assert_eq!(core(&device, number).take(), taken, "{to} to {number}");
                assert_eq!(core(&device, number).take(), None);
            }
        }
    }

    #[test]
    fn a_call_right_behind_another_is_not_cleared_with_it() {
        let device = RefCell::default();
        let it = core(&device, 2);
        it.enable(None);
        for _ in 0..3 {
            it.call();
            assert_eq!(it.take(), Some(CALL));
        }
        assert_eq!(it.take(), None);
        // Also one that comes as soon as the core takes calls.
        it.enable(None);
        it.call();
        assert_eq!(it.take(), Some(CALL));
    }

    #[test]
    fn the_timer_that_is_used_interrupts_while_its_condition_holds() {
        let device = RefCell::new(Device {
            timers: [0, 0b1111, 0, 0],
            ..Device::default()
        });
        let it = core(&device, 0x8000_0001);
        it.enable(None);
        assert_eq!(it.take(), None);
        it.enable(Some(2));
        assert_eq!(it.take(), Some(2));
        assert_eq!(it.take(), Some(2));
        // A call comes first, and the timer is still there.
        it.call();
        assert_eq!(it.take(), Some(CALL));
        assert_eq!(it.take(), Some(2));
        device.borrow_mut().timers[1] = 0b1011;
        assert_eq!(it.take(), None);
        // A number without a timer turns nothing on.
        it.enable(Some(9));
        assert_eq!(device.borrow().timer_control, [0; 4]);
    }

    #[test]
    fn what_firmware_left_is_gone_when_a_core_is_enabled() {
        let device = RefCell::new(Device {
            timer_control: [0xff; 4],
            mailbox_control: [0xff; 4],
            mailboxes: [[7; 4]; 4],
            ..Device::default()
        });
        core(&device, 3).enable(Some(1));
        let left = device.borrow();
        assert_eq!(left.timer_control, [0xff, 0xff, 0xff, 0b10]);
        assert_eq!(left.mailbox_control, [0xff, 0xff, 0xff, 1]);
        assert_eq!(left.mailboxes, [[7; 4], [7; 4], [7; 4], [0; 4]]);
    }

    #[test]
    fn no_interrupt_that_a_bootloader_left_on_comes_through() {
        let device = RefCell::new(Device {
            timer_control: [0xff; 4],
            mailbox_control: [0xff; 4],
            monitors: 0xff,
            bus_control: 0x1f_ffff,
            one_timer_control: 0x3000_0001,
            shared: [u32::MAX; 3],
            shared_fiq: 0x89,
            ..Device::default()
        });
        assert_eq!(device.borrow().others(0), (0xf00, true));
        assert_eq!(device.borrow().others(3), (0x200, true));
        silence(&device);
        assert_eq!(device.borrow().others(0).0, 0x100);
        silence_shared(Shared(&device));
        for number in 0..CORES as u64 {
            core(&device, number).enable(Some(1));
            assert_eq!(core(&device, number).take(), None);
            assert_eq!(device.borrow().others(number as usize), (0, false));
        }
    }

    #[test]
    fn a_disabled_core_has_no_interrupt_and_says_what_stays_on() {
        let device = RefCell::new(Device {
            timers: [0b1111; 4],
            ..Device::default()
        });
        let it = core(&device, 2);
        it.enable(Some(1));
        it.call();
        assert_eq!(it.disable(), Ok(()));
        assert_eq!(it.take(), None);
        it.enable(None);
        assert_eq!(it.take(), None, "the call before was forgotten");
        device.borrow_mut().stuck = 0b100;
        assert_eq!(it.disable(), Err(6));
    }

    #[test]
    fn a_fifth_cpu_is_not_served() {
        let device = RefCell::<Device>::default();
        assert!(Core::of(&device, 0xf03).is_some());
        assert!(Core::of(&device, 4).is_none());
        assert!(Core::of(&device, 0x104).is_none());
    }
}
