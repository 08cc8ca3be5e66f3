//! Looking at all of the memory of a source, page by page. This file does not define what is looked
//! for.

use crate::source::Memory;
use granule::arch::{PageSize, PhysicalAddress};
use std::ops::ControlFlow;

/// The bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// Calls `look` for each whole, aligned page that may be worth it, in ascending order, until it breaks.
/// Pages that cannot be read are passed over. `progress` is called with the bytes that were looked at since.
pub(crate) fn pages(
    memory: &dyn Memory,
    size: PageSize,
    progress: &mut dyn FnMut(u64),
    look: &mut dyn FnMut(PhysicalAddress, &[u8]) -> ControlFlow<()>,
) {
    let bytes = size.bytes();
    let mut buffer = vec![0; PIECE as usize];
    for range in memory.searchable() {
        let Some(mut at) = range.start.checked_next_multiple_of(bytes) else {
            continue;
        };
        while at < range.end && range.end - at >= bytes {
            let piece = PIECE.min((range.end - at) / bytes * bytes);
            let whole = buffer.get_mut(..piece as usize).unwrap_or_default();
            let all = memory.read(PhysicalAddress(at), whole).is_ok();
            for (number, page) in whole.chunks_exact_mut(bytes as usize).enumerate() {
                let address = PhysicalAddress(at + number as u64 * bytes);
                // One page that cannot be read does not hide its neighbours.
                let there = all || memory.read(address, page).is_ok();
                if there && look(address, page).is_break() {
                    return;
                }
            }
            progress(piece);
            match at.checked_add(piece) {
                Some(next) => at = next,
                None => break,
            }
        }
    }
}
