//! The virtual addresses in the memory map. The firmware is given no new addresses, so its memory
//! at run time stays where it is; a later kernel calls its services at the addresses in the map.

/// The attribute of memory that the firmware uses at run time.
const RUNTIME: u64 = 1 << 63;
/// Offsets in a descriptor of the memory map.
const PHYSICAL_AT: usize = 8;
const VIRTUAL_AT: usize = 16;
const ATTRIBUTES_AT: usize = 32;

/// Gives each descriptor of the firmware's memory at run time its physical address as the virtual one. `map` has a
/// descriptor every `apart` bytes; what is left at its end, or too short, stays as it is.
pub fn make_flat(map: &mut [u8], apart: usize) {
    if apart == 0 {
        return;
    }
    for descriptor in map.chunks_exact_mut(apart) {
        let number = |at: usize| {
            let bytes = descriptor.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let is_runtime = number(ATTRIBUTES_AT).is_some_and(|bits| bits & RUNTIME != 0);
        let (true, Some(physical)) = (is_runtime, number(PHYSICAL_AT)) else {
            continue;
        };
        let place = descriptor.get_mut(VIRTUAL_AT..);
        if let Some(place) = place.and_then(<[u8]>::first_chunk_mut) {
            *place = physical.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::firmware::{WB, descriptor};

    #[test]
    fn only_memory_of_run_time_gets_its_physical_address() {
        for apart in [40, 48, 64] {
            let all = [
                (6, 0x7f00_0000, WB | RUNTIME),
                (7, 0x4000_0000, WB),
                (11, 0x900_0000, RUNTIME),
            ];
            let map =
                all.map(|(kind, start, attributes)| descriptor(kind, start, 3, attributes, apart));
            let old = map.concat();
            let mut new = old.clone();
            make_flat(&mut new, apart);
            for (at, (_, start, attributes)) in all.into_iter().enumerate() {
                let of = |map: &[u8]| map[at * apart..][..apart].to_vec();
                let mut expected = of(&old);
                if attributes & RUNTIME != 0 {
                    expected[VIRTUAL_AT..][..8].copy_from_slice(&u64::to_le_bytes(start));
                }
                assert_eq!(of(&new), expected);
            }
        }
    }

    #[test]
    fn no_size_of_a_descriptor_does_harm() {
        for apart in 0..50 {
            for bytes in 0..100 {
                make_flat(&mut vec![0xff; bytes], apart);
            }
        }
    }
}
