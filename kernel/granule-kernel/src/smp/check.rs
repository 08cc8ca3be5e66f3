//! The part of the self-check that every CPU runs: its own walker translates random addresses of
//! the linear map.

use super::start;
use crate::cpu::ipi;
use crate::mm::map::LinearMap;
use crate::mm::selfcheck::{self, Fault, Looked};
use crate::percpu;
use core::sync::atomic::Ordering;
use granule::linear::Placement;

/// Runs the check on every other CPU, and stores how many addresses each of them translated. The error is the
/// first that a CPU found.
#[inline(never)]
pub(crate) fn translations(
    map: &LinearMap,
    placement: &Placement,
    seed: u64,
) -> Result<(), (usize, Fault)> {
    let others = percpu::online().without(percpu::this().number());
    let wrong = spin::Once::new();
    ipi::call(others, &|cpu| {
        let number = cpu.number();
        let mut looked = Looked::default();
        // Each CPU checks other addresses.
        let seed = seed.rotate_left(number as u32 + 1) ^ number as u64;
        match selfcheck::translations(map, placement, seed, &mut looked) {
            Ok(()) => {
                if let Some(facts) = start::facts_of(number) {
                    facts
                        .translations
                        .store(looked.translations, Ordering::Relaxed);
                }
            }
            Err(fault) => {
                wrong.call_once(|| (number, fault));
            }
        }
    });
    wrong.try_into_inner().map_or(Ok(()), Err)
}
