//! The decoder of ESR and FAR: the cause of an exception, and its description in words. No other file of the
//! kernel looks at bits of a syndrome; fault status codes are `granule::arch::fault_status`.

use core::fmt;
use granule::arch::FaultStatus;
use granule::space::Access;

/// The exception class, ESR bits 31:26.
const fn class(esr: u64) -> u64 {
    esr >> 26 & 0x3f
}

/// The cause of a synchronous exception, as far as the kernel handles causes differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SVC in AArch64.
    SystemCall,
    /// An instruction or data abort.
    Abort(Abort),
    /// A misaligned program counter or stack pointer.
    Misaligned,
    /// A floating-point exception that is trapped.
    FloatingPoint,
    /// A breakpoint, step or watchpoint, or BRK.
    Debug,
    /// An undefined or trapped instruction, an illegal state, or a class that later CPUs add.
    Other,
}

/// An instruction or data abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Whether the exception level did not change: the kernel caused the abort.
    pub own: bool,
    /// The access that the instruction attempted.
    pub access: Access,
    /// The reason why it failed.
    pub status: FaultStatus,
}

/// The cause of the exception.
pub const fn cause(esr: u64) -> Cause {
    let class = class(esr);
    if let Some(status) = FaultStatus::of_esr(esr) {
        let access = match (class < 0x24, esr >> 6 & 1, esr >> 8 & 1) {
            (true, ..) => Access::Execute,
            // CM: cache maintenance is reported as a write, but is none.
            (false, 1, 0) => Access::Write,
            _ => Access::Read,
        };
        return Cause::Abort(Abort {
            own: class & 1 == 1,
            access,
            status,
        });
    }
    match class {
        0x15 => Cause::SystemCall,
        0x22 | 0x26 => Cause::Misaligned,
        0x2c => Cause::FloatingPoint,
        0x30..=0x35 | 0x3c => Cause::Debug,
        _ => Cause::Other,
    }
}

/// The abort, if the exception is one that the kernel itself caused.
pub const fn own_abort(esr: u64) -> Option<Abort> {
    match cause(esr) {
        Cause::Abort(abort) if abort.own => Some(abort),
        _ => None,
    }
}

/// Whether the exception was `BRK #number`.
pub const fn is_brk(esr: u64, number: u64) -> bool {
    class(esr) == 0x3c && esr & 0xffff == number
}

/// Describes an exception in one line.
pub const fn describe(esr: u64, far: u64) -> Description {
    Description { esr, far }
}

/// An exception with its description in words, through `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    esr: u64,
    far: u64,
}

/// The name of an exception class.
const fn class_name(class: u64) -> &'static str {
    match class {
        0x00 => "unknown reason (undefined instruction?)",
        0x01 => "trapped WFI or WFE",
        0x03 | 0x05 => "trapped AArch32 coprocessor access",
        0x04 | 0x0c => "trapped AArch32 coprocessor access (64-bit)",
        0x06 => "trapped AArch32 LDC or STC",
        0x07 => "trapped FP or SIMD access",
        0x09 => "trapped pointer authentication",
        0x0a => "trapped LD64B or ST64B",
        0x0d => "branch target exception (BTI)",
        0x0e => "illegal execution state",
        0x11 => "SVC from AArch32",
        0x12 => "HVC from AArch32",
        0x13 => "SMC from AArch32",
        0x14 => "trapped 128-bit system register access",
        0x15 => "SVC",
        0x16 => "HVC",
        0x17 => "SMC",
        0x18 => "trapped system register access",
        0x19 => "trapped SVE access",
        0x1a => "trapped ERET",
        0x1b => "transactional memory exception",
        0x1c => "pointer authentication failure",
        0x1d => "trapped SME access",
        0x20 => "instruction abort from a lower level",
        0x21 => "instruction abort",
        0x22 => "misaligned program counter",
        0x24 => "data abort from a lower level",
        0x25 => "data abort",
        0x26 => "misaligned stack pointer",
        0x27 => "memory copy or set exception",
        0x28 => "trapped AArch32 floating point",
        0x2c => "trapped floating point",
        0x2d => "guarded control stack exception",
        0x2f => "SError",
        0x30 => "breakpoint from a lower level",
        0x31 => "breakpoint",
        0x32 => "software step from a lower level",
        0x33 => "software step",
        0x34 => "watchpoint from a lower level",
        0x35 => "watchpoint",
        0x38 => "BKPT from AArch32",
        0x3a => "vector catch from AArch32",
        0x3c => "BRK",
        _ => "reserved exception class",
    }
}

/// The meaning of a fault status code (DFSC or IFSC), and the level if it has one.
const fn fault(code: u64) -> (&'static str, Option<i8>) {
    let level = Some((code & 3) as i8);
    match code {
        0x00..=0x03 => ("address size fault", level),
        0x04..=0x07 => ("translation fault", level),
        0x08..=0x0b => ("access flag fault", level),
        0x0c..=0x0f => ("permission fault", level),
        0x10 => ("synchronous external abort", None),
        0x11 => ("tag check fault", None),
        0x12 => ("synchronous external abort on a table walk", Some(-2)),
        0x13 => ("synchronous external abort on a table walk", Some(-1)),
        0x14..=0x17 => ("synchronous external abort on a table walk", level),
        0x18 => ("parity or ECC error", None),
        0x1b => ("parity or ECC error on a table walk", Some(-1)),
        0x1c..=0x1f => ("parity or ECC error on a table walk", level),
        0x21 => ("alignment fault", None),
        0x22 => ("granule protection fault on a table walk", Some(-2)),
        0x23 => ("granule protection fault on a table walk", Some(-1)),
        0x24..=0x27 => ("granule protection fault on a table walk", level),
        0x28 => ("granule protection fault", None),
        0x29 => ("address size fault", Some(-1)),
        0x2a => ("translation fault", Some(-2)),
        0x2b => ("translation fault", Some(-1)),
        0x2c => ("address size fault", Some(-2)),
        0x30 => ("TLB conflict abort", None),
        0x31 => ("unsupported atomic hardware update", None),
        0x34 => ("implementation defined fault (lockdown)", None),
        0x35 => (
            "implementation defined fault (exclusive or atomic access)",
            None,
        ),
        _ => ("reserved fault status", None),
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { esr, far } = *self;
        let class = class(esr);
        f.write_str(class_name(class))?;
        match class {
            0x20 | 0x21 | 0x24 | 0x25 => {
                let data = class >= 0x24;
                let (what, level) = fault(esr & 0x3f);
                // ISS.CM: cache maintenance is reported as a write, but is none.
                let access = match (data, esr >> 8 & 1, esr >> 6 & 1) {
                    (false, ..) => "executing",
                    (true, 1, _) => "cache maintenance or address translation at",
                    (true, _, 1) => "writing",
                    (true, ..) => "reading",
                };
                write!(f, ": {what}")?;
                if let Some(level) = level {
                    write!(f, ", level {level}")?;
                }
                // ISS.FnV is defined for external aborts only (code 0x10).
                if esr & 0x3f == 0x10 && esr >> 10 & 1 == 1 {
                    write!(f, ", {access} an unknown address")?;
                } else {
                    write!(f, ", {access} {far:#018x}")?;
                }
                // ISS.S1PTW: the walk's own access faulted in stage 2.
                if esr >> 7 & 1 == 1 {
                    f.write_str(", on a stage 1 walk at stage 2")?;
                }
            }
            0x22 | 0x34 | 0x35 => write!(f, ", address {far:#018x}")?,
            0x15..=0x17 | 0x3c => write!(f, " #{:#x}", esr & 0xffff)?,
            0x18 => {
                let iss = esr & 0x1ff_ffff;
                let direction = if iss & 1 == 1 { "read" } else { "write" };
                write!(
                    f,
                    ": {direction} of S{}_{}_C{}_C{}_{}",
                    iss >> 20 & 3,
                    iss >> 14 & 7,
                    iss >> 10 & 15,
                    iss >> 1 & 15,
                    iss >> 17 & 7
                )?;
            }
            _ => {}
        }
        write!(f, " (ESR {esr:#010x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(esr: u64, far: u64) -> String {
        describe(esr, far).to_string()
    }

    #[test]
    fn an_exception_is_described_in_words() {
        // MRS x0, S3_3_C9_C12_0: op0 21:20, op2 19:17, op1 16:14, CRn 13:10, CRm 4:1.
        let mrs = 3 << 20 | 3 << 14 | 9 << 10 | 12 << 1 | 1;
        for (class, iss, far, expected) in [
            (
                0x25,
                1 << 25 | 1 << 6 | 0x07,
                0xdead_0000,
                "data abort: translation fault, level 3, writing 0x00000000dead0000 (ESR 0x96000047)",
            ),
            (
                0x25,
                1 << 25 | 0x0e,
                0x1000,
                "data abort: permission fault, level 2, reading 0x0000000000001000 (ESR 0x9600000e)",
            ),
            // Cache maintenance is not called a write.
            (
                0x25,
                1 << 8 | 1 << 6 | 0x05,
                0x1000,
                "data abort: translation fault, level 1, cache maintenance or address translation at \
                 0x0000000000001000 (ESR 0x94000145)",
            ),
            // Bit 6 means nothing there.
            (
                0x21,
                1 << 6 | 0x0f,
                0x1000,
                "instruction abort: permission fault, level 3, executing 0x0000000000001000 (ESR 0x8400004f)",
            ),
            // An external abort without an address shows none.
            (
                0x25,
                1 << 10 | 0x10,
                0x1234,
                "data abort: synchronous external abort, reading an unknown address (ESR 0x94000410)",
            ),
            (0x3c, 1 << 25 | 0x1234, 0, "BRK #0x1234 (ESR 0xf2001234)"),
            (
                0x18,
                mrs,
                0,
                "trapped system register access: read of S3_3_C9_C12_0 (ESR 0x6030e419)",
            ),
        ] {
            assert_eq!(words(class << 26 | iss, far), expected);
        }
    }

    #[test]
    fn levels_below_zero_have_codes_of_their_own() {
        assert_eq!(fault(0x2b), ("translation fault", Some(-1)));
        assert_eq!(fault(0x29), ("address size fault", Some(-1)));
        assert_eq!(fault(0x13).1, Some(-1));
        assert_eq!(fault(0x30), ("TLB conflict abort", None));
    }

    #[test]
    fn only_aborts_of_the_kernel_are_reported_as_such() {
        for class in 0..64u64 {
            for status in 0..64 {
                let expected = (class == 0x21 || class == 0x25).then_some(status);
                // IL, and ISS bits that mean something else, must not matter.
                let esr = class << 26 | 1 << 25 | 1 << 6 | status;
                let found = own_abort(esr).map(|abort| abort.status.0);
                assert_eq!(found, expected, "{class:#x}");
            }
        }
        for esr in [0x9600_0030, 0x8600_0030] {
            assert!(own_abort(esr).unwrap().status.is_tlb_conflict());
        }
    }

    #[test]
    fn an_abort_says_what_was_wanted() {
        let access = |esr: u64| match cause(esr) {
            Cause::Abort(abort) => abort.access,
            other => panic!("{other:?}"),
        };
        for class in [0x20, 0x21] {
            assert_eq!(access(class << 26 | 1 << 6 | 4), Access::Execute);
        }
        for class in [0x24, 0x25] {
            assert_eq!(access(class << 26 | 1 << 6 | 4), Access::Write);
            assert_eq!(access(class << 26 | 4), Access::Read);
            assert_eq!(access(class << 26 | 1 << 8 | 1 << 6 | 4), Access::Read);
        }
    }

    #[test]
    fn every_class_has_its_cause() {
        let has = |class: u64, of| cause(class << 26) == of;
        let classes = |of: Cause| Vec::from_iter((0..64).filter(|class| has(*class, of)));
        assert_eq!(classes(Cause::SystemCall), [0x15]);
        assert_eq!(classes(Cause::Misaligned), [0x22, 0x26]);
        assert_eq!(classes(Cause::FloatingPoint), [0x2c]);
        let debug = [0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3c];
        assert_eq!(classes(Cause::Debug), debug);
        // The eleven classes above and the four aborts are not among them.
        assert_eq!(classes(Cause::Other).len(), 64 - 11 - 4);
    }

    #[test]
    fn every_class_and_code_has_one_line() {
        for esr in (0..64u64).flat_map(|class| (0..64).map(move |code| class << 26 | code)) {
            let text = words(esr, u64::MAX);
            let is_line = !text.contains('\n') && text.is_ascii();
            assert!(is_line && text.len() < 200, "{text}");
        }
    }
}
