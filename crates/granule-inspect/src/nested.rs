//! Memory below stage 2: by the intermediate addresses that the tables of a guest, or of a host under a
//! hypervisor, have.

use crate::source::{Memory, ReadError};
use crate::tree::Through;
use granule::arch::{Descriptor, IntermediateAddress, PhysicalAddress};
use granule::table::TableView;

/// The memory of a source as a tree sees it.
#[derive(Clone, Copy)]
pub(crate) struct Below<'m> {
    memory: &'m dyn Memory,
    through: Option<Through>,
}

impl<'m> Below<'m> {
    pub(crate) const fn new(memory: &'m dyn Memory, through: Option<Through>) -> Self {
        Self { memory, through }
    }

    /// Where `address` is, and how many bytes at least follow it there.
    pub(crate) fn physical(
        &self,
        address: PhysicalAddress,
    ) -> Result<(PhysicalAddress, u64), ReadError> {
        let Some(Through { root, shape }) = self.through else {
            return Ok((address, u64::MAX - address.0));
        };
        let read = |table: PhysicalAddress, index: usize| {
            let mut entry = [0; 8];
            let place = PhysicalAddress(table.0.checked_add(8 * index as u64)?);
            self.memory.read(place, &mut entry).ok()?;
            Some(Descriptor(u64::from_le_bytes(entry)))
        };
        let failed = |why| ReadError::NotInStage2 { root, address, why };
        let view = TableView::of_guest(shape, root, read);
        match view.query(IntermediateAddress(address.0)) {
            Ok(Some(mapping)) => {
                let page = shape.shape().page_size().bytes();
                Ok((mapping.output, page - address.0 % page))
            }
            Ok(None) => Err(failed("the entry is invalid".into())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// As [`Memory::read`].
    pub(crate) fn read(
        &self,
        address: PhysicalAddress,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let (mut at, mut rest) = (address, buffer);
        while !rest.is_empty() {
            let (place, there) = self.physical(at)?;
            let now = rest.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            if now == 0 {
                return Err(ReadError::Absent(at));
            }
            let (part, others) = rest.split_at_mut(now);
            self.memory.read(place, part)?;
            at = PhysicalAddress(at.0.wrapping_add(now as u64));
            rest = others;
        }
        Ok(())
    }
}
