//! The part of the self-check that every CPU runs: its own walker translates random addresses of
//! the linear map.

use super::start::Facts;
use crate::cpu::ipi;
use crate::mm::map::LinearMap;
use crate::mm::selfcheck::{self, Fault, Looked};
use crate::percpu;
use core::cell::UnsafeCell;
use granule::linear::Placement;
use granule_kcore::cpus::MOST_CPUS;

/// The result of one CPU.
struct Seen(UnsafeCell<Option<Result<u64, Fault>>>);

// SAFETY: only the CPU with that number writes a value, and it is read after all calls have been
// answered.
unsafe impl Sync for Seen {}

/// Runs the check on every other CPU, and stores how many addresses each of them translated.
// Not inlined: the boot's stack frame is large and stays under every later call.
#[inline(never)]
pub(crate) fn translations(
    map: &LinearMap,
    placement: &Placement,
    seed: u64,
    facts: &mut [Facts],
) -> Result<(), (usize, Fault)> {
    let seen = [const { Seen(UnsafeCell::new(None)) }; MOST_CPUS];
    let others = percpu::online().without(percpu::this().number());
    ipi::call(others, &|cpu| {
        let number = cpu.number();
        let mut looked = Looked::default();
        // Each CPU checks other addresses.
        let seed = seed.rotate_left(number as u32 + 1) ^ number as u64;
        let result = selfcheck::translations(map, placement, seed, &mut looked);
        if let Some(Seen(cell)) = seen.get(number) {
            // SAFETY: this value belongs to the running CPU.
            unsafe { *cell.get() = Some(result.map(|()| looked.translations)) };
        }
    });
    for facts in facts
        .iter_mut()
        .filter(|facts| others.contains(facts.number))
    {
        // SAFETY: all calls have been answered.
        let seen = seen
            .get(facts.number)
            .and_then(|Seen(cell)| unsafe { *cell.get() });
        match seen {
            Some(Ok(count)) => facts.translations = count,
            Some(Err(fault)) => return Err((facts.number, fault)),
            None => {}
        }
    }
    Ok(())
}
