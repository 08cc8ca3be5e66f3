//! TLBIs and DSBs that execute between two readings of the clock by a program, for
//! `granule bench user`: which instructions count, and the lines with the counts. Pure.
//!
//! A program that measures itself reads CNTVCT_EL0 before and after its work. Each reading writes a
//! line with the counts so far, so counting adds no instruction to the measured work.

use granule_trace::BarrierKind;

use crate::decode::{self, Instruction};

/// An instruction that is counted, or that makes the plugin write the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A TLB invalidation, of whatever scope.
    Tlbi,
    /// A DSB.
    Dsb,
    /// A reading of the virtual counter by a program.
    Reading,
}

/// Counts from the machine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// TLB invalidations.
    pub tlbi: u64,
    /// DSBs.
    pub dsb: u64,
}

impl Counts {
    /// Returns the difference to `before`, or `None` if `before` is later.
    #[must_use]
    pub fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            tlbi: self.tlbi.checked_sub(before.tlbi)?,
            dsb: self.dsb.checked_sub(before.dsb)?,
        })
    }

    /// Formats the counts as a line.
    #[must_use]
    pub fn line(self) -> String {
        format!("{} {}\n", self.tlbi, self.dsb)
    }

    /// Parses the counts from a line without its line ending.
    #[must_use]
    pub fn read(line: &str) -> Option<Self> {
        let (tlbi, dsb) = line.split_once(' ')?;
        Some(Self {
            tlbi: tlbi.parse().ok()?,
            dsb: dsb.parse().ok()?,
        })
    }
}

/// Classifies an instruction at an address.
#[must_use]
pub fn counted(pc: u64, word: u32) -> Option<Counted> {
    // MRS of CNTVCT_EL0. Code in the upper half is a kernel's, which reads the counter for itself.
    if word & !0x1f == 0xd53b_e040 {
        return (pc >> 55 & 1 == 0).then_some(Counted::Reading);
    }
    match decode::decode(word)? {
        Instruction::Tlbi { .. } => Some(Counted::Tlbi),
        Instruction::Barrier(barrier) if barrier.kind == BarrierKind::Dsb => Some(Counted::Dsb),
        // Instructions that no event can express count as well.
        Instruction::Unmodelled(decode::DSB_NXS) => Some(Counted::Dsb),
        Instruction::Unmodelled(decode::OTHER_TLBI | decode::WIDE_TLBI) => Some(Counted::Tlbi),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidations_and_barriers_count_wherever_they_are() {
        for (word, expected) in [
            (0xd508_831f, Some(Counted::Tlbi)), // tlbi vmalle1is
            (0xd508_8720, Some(Counted::Tlbi)), // tlbi vae1, x0
            (0xd508_8225, Some(Counted::Tlbi)), // tlbi rvae1is, x5
            (0xd508_9720, Some(Counted::Tlbi)), // tlbi vae1nxs, x0
            (0xd503_3b9f, Some(Counted::Dsb)),  // dsb ish
            (0xd503_379f, Some(Counted::Dsb)),  // dsb nsh
            (0xd503_3a9f, Some(Counted::Dsb)),  // dsb ishst
            (0xd503_3a3f, Some(Counted::Dsb)),  // dsb ishnxs
            (0xd503_3bbf, None),                // dmb ish
            (0xd503_3fdf, None),                // isb
            (0xd503_309f, None),                // ssbb
            (0xd503_201f, None),                // nop
            (0xd50b_7420, None),                // dc zva, x0
        ] {
            for pc in [0x40_0000, 0xffff_8000_0000_1000] {
                assert_eq!(counted(pc, word), expected, "{word:#x} at {pc:#x}");
            }
        }
    }

    #[test]
    fn a_read_of_the_virtual_counter_by_a_program_is_recognised() {
        // mrs x0 and x30, cntvct_el0; the physical counter is not the clock.
        for word in [0xd53b_e040, 0xd53b_e05e] {
            assert_eq!(counted(0x40_0000, word), Some(Counted::Reading));
            assert_eq!(counted(0xffff_8000_0000_1000, word), None);
        }
        assert_eq!(counted(0x40_0000, 0xd53b_e020), None);
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let (first, second) = (
            Counts { tlbi: 3, dsb: 9 },
            Counts {
                tlbi: u64::MAX,
                dsb: 10,
            },
        );
        for counts in [first, second] {
            let line = counts.line();
            assert_eq!(Counts::read(line.trim_end()), Some(counts));
        }
        for wrong in ["", "1", "1 ", "1 2 3", "a 1", "-1 2"] {
            assert_eq!(Counts::read(wrong), None, "{wrong:?}");
        }
        let more = Counts {
            tlbi: u64::MAX - 3,
            dsb: 1,
        };
        assert_eq!(second.since(first), Some(more));
        assert_eq!(first.since(second), None);
    }
}
