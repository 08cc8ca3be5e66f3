//! Accesses to the pages of a process: the program's, with the faults that they take and the
//! updates by hardware, faults that come late, and the kernel's on its behalf.

use super::meanwhile::find;
use super::processes::{Processes, user};
use crate::watch::Sample;
use granule::arch::{Level, Page};
use granule::space::{Access as Wish, SpaceError};
use granule_model::{AccessKind, FaultKind, Outcome};
use std::ops::Range;

const fn kind(wish: Wish) -> AccessKind {
    match wish {
        Wish::Write => AccessKind::Write,
        Wish::Execute => AccessKind::Fetch,
        _ => AccessKind::Read,
    }
}

impl<P: Page> Processes<P> {
    fn group(&self, page: u64) -> Range<u64> {
        let count = P::SIZE.contiguous_entries(Level::L3) as u64;
        let first = page & !(count - 1);
        first..first + count
    }

    /// Before an access to a page, whose group it may concern.
    fn begin_access(&mut self, process: usize, page: u64) {
        let group = self.group(page);
        self.begin(process, group.start, group.end - group.start);
    }

    /// A program's access on a CPU, with a write of `value` where it is one. An error is one of
    /// memory.
    pub(crate) fn touch(
        &mut self,
        cpu: u32,
        page: u64,
        wish: Wish,
        value: u64,
    ) -> Result<(), SpaceError> {
        let Some(process) = self.running(cpu) else {
            return Ok(());
        };
        let address = self.address(page);
        self.on(cpu);
        for _ in 0..4 {
            let access = user(kind(wish));
            let outcomes = self.world.borrow_mut().model.access(cpu, address.0, access);
            let known = self.all[process].pages.get_mut(&page);
            let may = known
                .as_ref()
                .is_some_and(|known| known.rights.allows(wish));
            if let [Outcome::Memory(to)] = outcomes[..] {
                assert!(may, "page {page:#x} allows {wish:?}");
                let Some(known) = known else { return Ok(()) };
                if wish == Wish::Write {
                    self.frames.write(to.address, value);
                    (known.value, known.dirty) = (value, true);
                } else {
                    assert_eq!(self.frames.value(to.address), known.value, "{page:#x}");
                }
                self.update(process, page, wish == Wish::Write);
                return Ok(());
            }
            self.begin_access(process, page);
            self.watch(process, (page, 0));
            // A page beside it may come with it, in the same leaf, if it is the program's.
            let comes_too = |sample: &Sample| {
                sample.before == Outcome::Fault(FaultKind::Translation)
                    && self.all[process]
                        .pages
                        .contains_key(&(sample.va / self.page()))
            };
            // The rest of its group may be copied with it, as long as others have it too.
            let group = self.group(page);
            let copied_too = |sample: &Sample| {
                let shared = matches!(&sample.before, Outcome::Memory(to) if !to.user.write);
                wish == Wish::Write && shared && group.contains(&(sample.va / self.page()))
            };
            self.world.borrow_mut().watch.samples.retain(|sample| {
                sample.va != address.0 && !comes_too(sample) && !copied_too(sample)
            });
            let done = self.all[process]
                .space
                .fault(address, wish, &mut self.frames);
            self.finish(Some(process));
            match done {
                Ok(_) => assert!(may, "page {page:#x}: {wish:?}"),
                Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => {
                    assert!(!may, "page {page:#x}: {done:?}");
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        // With a fault planted nothing need come of it.
        assert!(
            self.world.borrow().tap.is_some(),
            "{page:#x} faults for ever"
        );
        Ok(())
    }

    /// A fault that a CPU took some time ago is dealt with now, whatever the tables are by now.
    /// The result must be what the program may do.
    pub(crate) fn late_fault(&mut self, cpu: u32, page: u64, wish: Wish) {
        let Some(process) = self.running(cpu) else {
            return;
        };
        self.on(cpu);
        let address = self.address(page);
        self.begin_access(process, page);
        let one = &mut self.all[process];
        let may = one.pages.get(&page).map(|known| known.rights.allows(wish));
        let done = one.space.fault(address, wish, &mut self.frames);
        self.finish(Some(process));
        match may {
            Some(true) => assert!(done.is_ok(), "{done:?}"),
            Some(false) => assert!(matches!(done, Err(SpaceError::Denied { .. })), "{done:?}"),
            None => assert!(
                matches!(done, Err(SpaceError::NotMapped { .. })),
                "{done:?}"
            ),
        }
        if done.is_ok() && wish == Wish::Write {
            // A request for a writable page makes it dirty, for the program's next access.
            let state = self.all[process].space.page(address);
            assert!(state.is_some_and(|state| state.dirty), "{state:?}");
        }
    }

    /// Hardware's account of an access: in the one entry, and none where another member of the
    /// group has it already.
    fn update(&mut self, process: usize, page: u64, dirty: bool) {
        if !self.shape.hardware {
            return;
        }
        let va = self.address(page);
        let space = &self.all[process].space;
        let state = space.page(va);
        if state.is_some_and(|state| state.accessed && (state.dirty || !dirty)) {
            return;
        }
        let entries = self.entries(process);
        if let Some(leaf) = find(&entries, va.0) {
            self.world
                .borrow_mut()
                .model
                .update_by_hardware(leaf.at, dirty);
        }
    }

    /// The kernel's access for the program that a CPU runs.
    pub(crate) fn by_kernel(
        &mut self,
        cpu: u32,
        page: u64,
        wish: Wish,
        value: u64,
    ) -> Result<(), SpaceError> {
        let Some(process) = self.running(cpu) else {
            return Ok(());
        };
        self.on(cpu);
        self.begin_access(process, page);
        let address = self.address(page);
        let one = &mut self.all[process];
        let done = one.space.frame_for(address, wish, &mut self.frames);
        let known = one.pages.get_mut(&page);
        if let (Ok(frame), Some(known)) = (&done, known) {
            if wish == Wish::Write {
                self.frames.write(frame.0, value);
                (known.value, known.dirty) = (value, true);
            } else {
                assert_eq!(self.frames.value(frame.0), known.value);
            }
        }
        self.finish(Some(process));
        match done {
            Ok(_) | Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
