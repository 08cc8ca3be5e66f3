//! Events in the middle of an operation on a space: hardware sets access flags and makes pages
//! dirty for the other CPUs in it, and the translations that these may find are checked.

use crate::machine::{self, World};
use crate::random::Random;
use crate::watch::Sample;
use granule::arch::Descriptor;
use granule_model::{Access, Model, Outcome};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Hardware's update of one page's entry at one moment of an operation: before the event of that
/// number, an exchange being one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) page: u64,
    /// The dirty state too, and not the access flag alone.
    pub(crate) dirty: bool,
    pub(crate) moment: u64,
}

/// The hardware that updates entries.
#[derive(Default)]
pub(crate) struct Hardware {
    /// The pages that it made dirty, by address.
    written: Rc<RefCell<BTreeSet<u64>>>,
    /// Its update at one moment of the next operation.
    injection: Option<Injection>,
    /// The moments of that operation so far, and whether it did something.
    injected: Rc<Cell<(u64, bool)>>,
}

/// A leaf's descriptor.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    /// The first address that it maps, and how many bytes.
    pub(super) va: u64,
    pub(super) bytes: u64,
    /// Where it is.
    pub(super) at: u64,
    /// Its bits 0 and 1.
    pub(super) kind: u64,
}

/// The leaves of a process.
pub(super) type Entries = Vec<Leaf>;

impl Leaf {
    /// Whether the entry is a valid leaf still, and no pointer to the table of a split block.
    fn is_still(self, entry: Descriptor) -> bool {
        let kind = Descriptor::VALID | Descriptor::TABLE_OR_PAGE;
        entry.0 & kind == self.kind
    }
}

/// The leaf that maps an address.
pub(super) fn find(entries: &Entries, va: u64) -> Option<Leaf> {
    let maps = |leaf: &&Leaf| va.wrapping_sub(leaf.va) < leaf.bytes;
    entries.iter().find(maps).copied()
}

impl Hardware {
    pub(super) fn inject(&mut self, injection: Injection) {
        self.injected.set((0, false));
        self.injection = Some(injection);
    }

    /// Takes the update that is to be made in the next operation, once.
    pub(super) const fn take_injection(&mut self) -> Option<Injection> {
        self.injection.take()
    }

    pub(super) fn injected(&self) -> (u64, bool) {
        self.injected.get()
    }

    /// Takes the addresses of what was made dirty since the last call.
    pub(super) fn take_written(&self) -> BTreeSet<u64> {
        core::mem::take(&mut *self.written.borrow_mut())
    }

    /// Any of these entries, now and then.
    pub(super) fn at_random(&self, entries: Entries, mut random: Random) -> machine::Meanwhile {
        let written = Rc::clone(&self.written);
        Box::new(move |model: &mut Model| {
            if entries.is_empty() || !random.once_in(3) {
                return;
            }
            let leaf = entries[random.below(entries.len() as u64) as usize];
            let (va, address) = (leaf.va, leaf.at);
            let entry = Descriptor(model.descriptor(address));
            let clean = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
            let dirty = random.either() && entry.0 & clean == clean;
            if leaf.is_still(entry) && model.update_by_hardware(address, dirty) && dirty {
                written.borrow_mut().insert(va);
            }
        })
    }

    /// The entry of `va` at the moment that is wanted.
    pub(super) fn at_moment(
        &self,
        entries: &Entries,
        va: u64,
        injection: Injection,
    ) -> machine::Meanwhile {
        let Some(leaf) = find(entries, va) else {
            panic!("page {:#x} is not there", injection.page);
        };
        let (written, injected) = (Rc::clone(&self.written), Rc::clone(&self.injected));
        let mut unlinked = false;
        Box::new(move |model: &mut Model| {
            let (moment, done) = injected.get();
            let mut updated = false;
            let reaches = |outcome: &Outcome| !matches!(outcome, Outcome::Fault(_));
            let valid = leaf.is_still(Descriptor(model.descriptor(leaf.at)));
            // From where no CPU reaches a valid entry on, its table leads nowhere.
            unlinked |= valid && !model.outcomes(1, va, Access::READ).iter().any(reaches);
            if unlinked {
                return;
            }
            if moment == injection.moment {
                let entry = Descriptor(model.descriptor(leaf.at));
                let clean = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
                let may = entry.0 & clean == clean || !injection.dirty;
                updated = leaf.is_still(entry)
                    && may
                    && model.update_by_hardware(leaf.at, injection.dirty);
                if updated && injection.dirty {
                    written.borrow_mut().insert(va);
                }
            }
            injected.set((moment + 1, done || updated));
        })
    }
}

/// Watches what `cpus`, a mask, may find at these addresses in the middle of an operation that is
/// not about them: the frames that are there before and after it, or a fault.
pub(super) fn watch(
    world: &mut World,
    cpus: u64,
    access: Access,
    addresses: impl IntoIterator<Item = u64>,
) {
    let mut samples = Vec::new();
    for va in addresses {
        if let [before] = world.model.outcomes(world.cpu, va, access)[..] {
            samples.push(Sample {
                va,
                access,
                before,
                after: before,
                breaks: false,
            });
        }
    }
    world.watch.cpus = cpus;
    world.watch.may_fault = true;
    world.watch.samples = samples;
}
