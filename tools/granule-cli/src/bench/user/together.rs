//! Programs of all page sizes at once beside each alone (`--together`): what a row is compared with. Pure.

use super::lines::Op;
use super::{Done, Programs, Ran, SIZES};

/// Instructions of the same work, on the same kernel, where a program is alone. `op` is of the boot `ran`, with
/// programs of all sizes; for work of all of them at once it is the sum.
///
/// `None` if `ran` is another boot, or one to compare with is missing.
pub(super) fn alone(done: &Done, ran: &Ran, op: &Op) -> Option<u64> {
    if ran.cell.programs != Programs::Together {
        return None;
    }
    let mut sum = 0_u64;
    for size in SIZES
        .iter()
        .filter(|size| op.page.is_none_or(|page| page == size.bytes()))
    {
        let beside = done.rows.iter().find(|other| {
            other.cell.page_size == ran.cell.page_size
                && other.cell.programs == Programs::Alone(*size)
        });
        let mut ops = beside?.figures.as_ref()?.ops.iter();
        let best = ops.find(|other| op.is_same_work(other))?.time?.best;
        sum = sum.saturating_add(best);
    }
    Some(sum)
}
