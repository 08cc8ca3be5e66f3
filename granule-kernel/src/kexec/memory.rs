//! The list's memory, through the linear map.

use crate::cpu;
use crate::memory::live;
use granule::arch::PhysicalAddress;
use granule::kexec::ListMemory;

/// Through the linear map.
pub(super) struct Linear;

impl ListMemory for Linear {
    fn load(&self, address: u64) -> Option<u64> {
        let at = live::kernel()?
            .placement
            .virtual_address(PhysicalAddress(address))?;
        cpu::translate(at.0).ok()?;
        // SAFETY: mapped.
        Some(unsafe { (at.0 as *const u64).read_volatile() })
    }
    fn store(&mut self, address: u64, word: u64) {
        if let Some(at) =
            live::kernel().and_then(|it| it.placement.virtual_address(PhysicalAddress(address)))
        {
            // SAFETY: mapped.
            unsafe { (at.0 as *mut u64).write_volatile(word) };
        }
    }
}
