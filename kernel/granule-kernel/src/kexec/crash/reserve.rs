//! Memory for a crash kernel: `crashkernel=SIZE[@OFFSET]`.

use crate::dev::console::println;
use granule_boot::memblock::Direction;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::Parameters;
use granule_kcore::persist;
use granule_kexec::PhysRange;
use granule_kexec::image::IMAGE_ALIGN;

/// Memory below this address is preferred: devices of a crash kernel may reach no other.
const LOW: u64 = 1 << 32;

/// Reserves the memory, in multiples of 2 MiB, which are whole pages of every size. Prints why if there is none.
/// Call this after everything else is reserved and before anything is allocated.
#[inline(never)]
pub(crate) fn reserve(parameters: &Parameters<'_>, memory: &mut Memory) -> Option<PhysRange> {
    let wanted = parameters.crash_memory?;
    match find(wanted.bytes, wanted.start, memory) {
        Ok(range) => {
            println!("granule: {range} is reserved for a crash kernel");
            Some(range)
        }
        Err(why) => {
            println!(
                "granule: crashkernel={}: {why}; there is no memory for a crash kernel",
                wanted.bytes
            );
            None
        }
    }
}

fn find(bytes: u64, start: Option<u64>, memory: &mut Memory) -> Result<PhysRange, &'static str> {
    let none = "no free range of RAM is that long";
    let bytes = bytes.checked_next_multiple_of(IMAGE_ALIGN).ok_or(none)?;
    let Some(start) = start else {
        let mut allocate = |end| memory.allocate(bytes, IMAGE_ALIGN, 0..end, Direction::TopDown);
        let start = allocate(LOW).or_else(|_| allocate(u64::MAX));
        return Ok(PhysRange::new(start.map_err(|_| none)?, bytes));
    };
    if !start.is_multiple_of(IMAGE_ALIGN) {
        return Err("its offset is not a multiple of 2 MiB");
    }
    let end = start.checked_add(bytes).ok_or(none)?;
    persist::is_usable(&(start..end), memory)?;
    let full = "there is no room to note that it is in use";
    memory.reserve(start, bytes).map_err(|_| full)?;
    Ok(PhysRange::new(start, bytes))
}
