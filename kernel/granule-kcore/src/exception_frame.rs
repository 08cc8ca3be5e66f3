//! The register frame that the exception vectors store, and its form in a fatal report. The vectors
//! themselves are in `granule-kernel`.

use core::fmt;

/// The interrupted registers, in the order that the vectors store them.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Frame {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The stack pointer at the exception.
    pub sp: u64,
    /// The address at which the exception was taken.
    pub elr: u64,
    /// The interrupted processor state.
    pub spsr: u64,
    /// The exception syndrome.
    pub esr: u64,
    /// The faulting address, for faults that have one.
    pub far: u64,
    /// A frame record (x29, elr): a walk of frame pointers continues in the interrupted code.
    pub record: [u64; 2],
}

/// Size of a frame in bytes, which keeps the stack pointer 16-byte aligned.
pub const FRAME_BYTES: usize = size_of::<Frame>();
const _: () = assert!(FRAME_BYTES.is_multiple_of(16));

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  pc {:016x}  sp {:016x}  spsr {:08x}",
            self.elr, self.sp, self.spsr
        )?;
        for (row, registers) in self.x.chunks(4).enumerate() {
            for (column, value) in registers.iter().enumerate() {
                let number = row * 4 + column;
                let gap = if column == 0 { "  " } else { " " };
                write!(f, "{gap}x{number:<2} {value:016x}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_is_shown_once() {
        let mut frame = Frame {
            x: [0; 31],
            sp: 0x1000,
            elr: 0x2000,
            spsr: 0x3c5,
            esr: 0,
            far: 0,
            record: [0; 2],
        };
        for (number, value) in frame.x.iter_mut().enumerate() {
            *value = 0xabc0_0000 + number as u64;
        }
        let text = frame.to_string();
        for number in 0..31u64 {
            let shown = format!("x{number:<2} {:016x}", 0xabc0_0000 + number);
            assert_eq!(text.matches(&shown).count(), 1, "{shown} in\n{text}");
        }
        assert!(text.contains("pc 0000000000002000  sp 0000000000001000  spsr 000003c5"));
    }
}
