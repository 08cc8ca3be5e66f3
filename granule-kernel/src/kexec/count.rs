//! What the relocation code executes beside its loops: barriers and TLBIs, which do not grow with the
//! bytes.
//!
//! Counted by going through the very steps (`granule::kexec::steps`) with a list that has the header
//! and no records.

use core::mem::size_of;
use granule::kexec::steps::{self, Machine};
use granule::kexec::{END, Header};
use granule::trace::{Barrier, System};

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) dsb: u64,
    pub(crate) tlbi: u64,
}

impl Counts {
    /// Of the way that a header says.
    pub(crate) fn of(header: &Header) -> Self {
        let mut counting = Counting {
            header: *header,
            counts: Self::default(),
        };
        // The header's own address is of no consequence: 0. Records follow it, by which the list ends.
        counting.header.first = size_of::<Header>() as u64;
        counting.header.distance = 0;
        steps::leave(&mut counting, 0);
        counting.counts
    }
}

struct Counting {
    header: Header,
    counts: Counts,
}

impl Machine for Counting {
    fn word(&mut self, address: u64) -> u64 {
        let header = &self.header;
        match address as usize {
            at if at == core::mem::offset_of!(Header, flags) => header.flags,
            at if at == core::mem::offset_of!(Header, first) => header.first,
            // What goes into registers, and beyond the header the record that ends the list.
            _ => END,
        }
    }
    fn system(&mut self, system: System, _operand: u64) {
        self.counts.tlbi += u64::from(system == System::VMALLE1);
    }
    fn barrier(&mut self, barrier: Barrier) {
        let dsb = [Barrier::DSB_SY, Barrier::DSB_NSH].contains(&barrier);
        self.counts.dsb += u64::from(dsb);
    }
    fn move_line(&mut self, _to: u64, _from: u64) {}
    fn line_bytes(&mut self) -> u64 {
        64
    }
    fn tcr(&mut self) -> u64 {
        0
    }
    fn mask(&mut self) {}
    fn vectors(&mut self, _address: u64) {}
    fn branch(&mut self, _address: u64) {}
    fn set_el2_vectors(&mut self, _number: u64, _address: u64) {}
    fn enter_el2(&mut self) {}
    fn sctlr_el2(&mut self, _value: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::kexec::{EL2, UNCACHED};

    #[test]
    fn barriers_are_those_of_the_way() {
        let of = |flags| {
            Counts::of(&Header {
                flags,
                ..Header::default()
            })
        };
        // Two changes of tables, the end of the copy twice, the last TLBI.
        assert_eq!(of(0), Counts { dsb: 5, tlbi: 3 });
        assert_eq!(of(EL2), of(0));
        // The lines once more, behind the copy.
        assert_eq!(of(UNCACHED), Counts { dsb: 7, tlbi: 3 });
    }
}
