//! The common parts of the programs: an entry point, which calls a function with values that the compiler does not know, and
//! the environment of their tables.

#![no_std]

use granule::arch::{CpuFeatures, PageSize, PhysicalAddress};
use granule::hw;
use granule::table::{FreeList, Offset, TableEnvironment};

/// The environment of tables with the pages between two addresses.
///
/// # Safety
///
/// Nothing else uses the memory between them.
pub unsafe fn environment(
    cpu: &CpuFeatures,
    size: PageSize,
    start: u64,
    end: u64,
) -> impl TableEnvironment + use<> {
    // SAFETY: the caller keeps the rules.
    let pages = unsafe {
        let mut pages = FreeList::new(Offset::new(0), size);
        pages.add(PhysicalAddress(start), PhysicalAddress(end));
        pages
    };
    hw::environment(pages, cpu)
}

/// Writes the entry point of a program.
#[macro_export]
macro_rules! program {
    ($run:path) => {
        core::arch::global_asm!(".global _start; _start: bl run; b .");

        #[unsafe(no_mangle)]
        extern "C" fn run(start: u64, output: u64, bytes: u64) -> u64 {
            $run(start, output, bytes)
        }

        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            loop {}
        }
    };
}
