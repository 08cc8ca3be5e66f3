//! Updates of the access flag and the dirty state by hardware, and stores that lose them.
//!
//! Hardware changes an entry in one step, at any time while a CPU walks by it with TCR.HA or TCR.HD
//! set. Software that loads such an entry and stores it again, changed, may undo that: it must use
//! one step too (RWLTNL).

use crate::arch::descriptor::{self, Kind};
use crate::event::Order;
use crate::model::{Found, Model};
use crate::state::memory::PAGE_SHIFT;
use crate::state::tables::{Path, TableId};
use crate::violation::Rule;

/// An entry that was emptied by a plain store while hardware might have been updating it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    value: u64,
    event: u64,
}

const TEXT: &str = "may have set the access flag or the dirty state just before the store";

impl Model {
    /// The MMU of some CPU sets the access flag of the leaf at a physical address, and with `dirty`
    /// makes a writable page that is clean dirty, as TCR.HA and TCR.HD have it. Nothing else is
    /// changed, and no entry that is not a leaf with the bits for it; gives whether anything was.
    pub fn update_by_hardware(&mut self, address: u64, dirty: bool) -> bool {
        let old = self.memory.load(address);
        let mut new = old | descriptor::ACCESSED;
        if dirty && old & descriptor::DIRTY_MODIFIER != 0 {
            new &= !descriptor::READ_ONLY;
        }
        if old & descriptor::VALID == 0 || new == old {
            return false;
        }
        let index = (address >> 3) as usize % crate::state::memory::PER_PAGE;
        self.memory.page_mut(address >> PAGE_SHIFT).values_mut()[index] = new;
        true
    }

    /// Whether a CPU that walks one of these ways may be updating a leaf.
    fn may_be_updated(&self, paths: &[Path], leaf: u64) -> bool {
        paths.iter().any(|path| {
            let root = self.tables.root(path.root);
            root.is_some_and(|root| {
                let context = &root.key.context;
                let clean = descriptor::DIRTY_MODIFIER | descriptor::READ_ONLY;
                (context.hardware_access && leaf & descriptor::ACCESSED == 0)
                    || (context.hardware_dirty && leaf & clean == clean)
            })
        })
    }

    /// What a store of `new` over `old` may lose, in a table that CPUs walk by these ways.
    pub(crate) fn check_update(
        &mut self,
        cpu: u32,
        id: TableId,
        paths: &[Path],
        location: u64,
        (old, new): (u64, u64),
        order: Order,
    ) {
        let Some((level, format)) = self
            .tables
            .table(id)
            .map(|table| (table.level, table.format))
        else {
            return;
        };
        let is_leaf = |value| descriptor::kind(value, level, format) == Kind::Leaf;
        let found = |event: u64| {
            let range = (location, location + 7);
            Found::in_memory(Rule::LostUpdate, cpu, range, TEXT)
                .because_of(event)
                .located(location)
        };
        if is_leaf(old) && order == Order::Plain && self.may_be_updated(paths, old) {
            if is_leaf(new) {
                self.report(found(0));
            } else {
                let event = self.now;
                self.suspect_updates
                    .insert(location, Suspect { value: old, event });
            }
        } else if is_leaf(new)
            && let Some(suspect) = self.suspect_updates.remove(&location)
        {
            // Another page is another matter; so is one that has whatever hardware may have set.
            let same = descriptor::leaf_address(suspect.value, level, format)
                == descriptor::leaf_address(new, level, format);
            if same && self.may_be_updated(paths, new) {
                self.report(found(suspect.event));
            }
        }
    }
}
