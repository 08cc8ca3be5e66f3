//! Spaces that share frames, with all that watches them.

use crate::cpu::{self, Hardware, Outcome};
use crate::frames::{Frame, Frames};
use crate::reference::{Page as Known, Reference};
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, OutputFormat, PageChoice, VirtualAddress};
use granule::space::{Access, Advice, Fault, Rights, Settings, Space, SpaceError, VmaNode};
use granule::table::TableError;
use granule_testing::host::{self, Host, HostEnvironment, Runs};
use granule_testing::walk::{Arch, Leaf};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicPtr;

pub type Tested<P> = Space<'static, P, HostEnvironment, Frames>;

/// One process.
pub struct Process<P: PageChoice> {
    pub space: Tested<P>,
    pub reference: Reference,
}

pub struct World<P: PageChoice> {
    pub geometry: Geometry,
    pub arch: Arch,
    pub host: Rc<Host>,
    pub frames: Frames,
    pub settings: Settings,
    /// The nodes for VMAs of a new process.
    pub vma_nodes: usize,
    pub processes: Vec<Process<P>>,
    next_asid: u16,
}

/// Whether memory ran out.
pub fn ran_out(error: &SpaceError) -> bool {
    matches!(
        error,
        SpaceError::OutOfFrames { .. }
            | SpaceError::TooManyVmas { .. }
            | SpaceError::OutOfVmaNodes { .. }
            | SpaceError::Tables(TableError::OutOfTables { .. })
    )
}

/// An access to the frame that a page has: a write of `value`, or a read of what was written last.
fn use_frame(frame: &mut Frame, known: &mut Known, access: Access, value: u64) {
    if access == Access::Write {
        assert_eq!(frame.owners, 1, "a shared frame is written");
        frame.value = value;
        (known.value, known.dirty) = (value, true);
    } else {
        assert_eq!(frame.value, known.value, "{known:?}");
    }
}

/// Nodes for VMAs that stay for good: a static has their address, so that Miri does not report a leak.
fn nodes(count: usize) -> &'static mut [VmaNode<'static>] {
    static KEPT: Mutex<Vec<AtomicPtr<VmaNode<'static>>>> = Mutex::new(Vec::new());
    let nodes = Vec::leak((0..count).map(|_| VmaNode::EMPTY).collect());
    KEPT.lock()
        .unwrap()
        .push(AtomicPtr::new(nodes.as_mut_ptr()));
    nodes
}

impl<P: PageChoice> World<P> {
    pub fn new(geometry: Geometry, settings: Settings) -> Self {
        let (tables, count) = if cfg!(miri) { (40, 300) } else { (400, 1500) };
        // Beside the frames that go one by one, some for whole leaves.
        let runs = if cfg!(miri) { 0x70 } else { 5 * 512 };
        Self::with_frames(geometry, settings, tables, count, runs)
    }

    pub fn with_frames(
        geometry: Geometry,
        settings: Settings,
        tables: usize,
        count: usize,
        runs: usize,
    ) -> Self {
        let page = geometry.page_size().bytes();
        let host = Host::new(&geometry, 0x4000_0000, tables);
        host.set_runs(Runs::Scattered);
        // Where 52-bit formats keep the upper address bits elsewhere, frames are on both sides.
        let first = match geometry.format() {
            OutputFormat::Lpa => (1 << 48) - page * 64,
            OutputFormat::Lpa2 => (1 << 50) - page * 64,
            _ => 0x8000_0000 + 3 * page,
        };
        Self {
            geometry,
            arch: Arch::of(&geometry),
            host,
            frames: Frames::new(first, page, count, runs),
            settings,
            vma_nodes: 8,
            processes: Vec::new(),
            next_asid: 1,
        }
    }

    pub fn page(&self) -> u64 {
        self.arch.page()
    }

    pub fn address(&self, page: u64) -> VirtualAddress {
        VirtualAddress(page * self.page())
    }

    pub fn new_space(&mut self) -> Result<Tested<P>, SpaceError> {
        let capabilities = TlbCapabilities {
            range: self.next_asid % 2 == 0,
            level_hint: true,
            ..TlbCapabilities::BASIC
        };
        let environment = host::environment(&self.host, capabilities);
        let nodes = nodes(self.vma_nodes);
        let mut space = Space::new(self.geometry, environment, nodes, self.settings)?;
        // SAFETY: no CPU walks the tables.
        unsafe { space.set_asid(Some(self.next_asid)) };
        self.next_asid += 1;
        Ok(space)
    }

    pub fn start(&mut self) -> usize {
        let mut space = self.new_space().unwrap();
        // SAFETY: no CPU walks the tables but those of the test.
        unsafe { space.make_live() };
        self.processes.push(Process {
            space,
            reference: Reference::default(),
        });
        self.processes.len() - 1
    }

    pub fn map(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        rights: Rights,
        label: u8,
    ) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        let Process { space, reference } = &mut self.processes[process];
        space.map(start, bytes, rights, label)?;
        for page in page..page + count {
            let new = Known::new(rights, label);
            assert_eq!(reference.pages.insert(page, new), None, "page {page:#x}");
        }
        Ok(())
    }

    pub fn unmap(&mut self, process: usize, page: u64, count: u64) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        let Process { space, reference } = &mut self.processes[process];
        space.unmap(start, bytes, &mut self.frames)?;
        reference
            .pages
            .retain(|&at, _| at < page || at >= page + count);
        Ok(())
    }

    /// Maps whatever is there.
    pub fn map_over(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        rights: Rights,
        label: u8,
    ) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        let Process { space, reference } = &mut self.processes[process];
        space.map_over(start, bytes, rights, label, &mut self.frames)?;
        for page in page..page + count {
            reference.pages.insert(page, Known::new(rights, label));
        }
        Ok(())
    }

    pub fn discard(&mut self, process: usize, page: u64, count: u64) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        let Process { space, reference } = &mut self.processes[process];
        space.discard(start, bytes, &mut self.frames)?;
        for (_, known) in reference.pages.range_mut(page..page + count) {
            (known.value, known.dirty) = (0, false);
        }
        Ok(())
    }

    pub fn advise(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        advice: Advice,
    ) -> Result<(), SpaceError> {
        self.change(
            process,
            page..page + count,
            |space, start, bytes, _| space.advise(start, bytes, advice),
            |known| known.advice = advice,
        )
    }

    pub fn protect(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        rights: Rights,
    ) -> Result<(), SpaceError> {
        self.change(
            process,
            page..page + count,
            |space, start, bytes, frames| space.protect(start, bytes, rights, frames),
            |known| known.rights = rights,
        )
    }

    /// A change of pages that must all be there, and what it makes of each.
    fn change(
        &mut self,
        process: usize,
        pages: Range<u64>,
        change: impl FnOnce(&mut Tested<P>, VirtualAddress, u64, &mut Frames) -> Result<(), SpaceError>,
        record: impl Fn(&mut Known),
    ) -> Result<(), SpaceError> {
        let start = self.address(pages.start);
        let bytes = (pages.end - pages.start) * self.page();
        let Process { space, reference } = &mut self.processes[process];
        let there = reference.all_there(pages.start, pages.end);
        let done = change(space, start, bytes, &mut self.frames);
        if !there {
            assert!(
                matches!(done, Err(SpaceError::NotMapped { .. })),
                "{done:?}"
            );
            return Ok(());
        }
        done?;
        reference
            .pages
            .range_mut(pages)
            .for_each(|(_, known)| record(known));
        Ok(())
    }

    /// A program's access, and a write of `value` where it is one.
    pub fn touch(
        &mut self,
        process: usize,
        page: u64,
        access: Access,
        value: u64,
    ) -> Result<Option<Fault>, SpaceError> {
        let address = self.address(page);
        let hardware = Hardware {
            access: self.settings.hardware_access,
            dirty: self.settings.hardware_dirty,
        };
        let Process { space, reference } = &mut self.processes[process];
        let known = reference.pages.get_mut(&page);
        let may = known
            .as_ref()
            .is_some_and(|known| known.rights.allows(access));
        let mut last = None;
        for _ in 0..4 {
            let root = space.tables().root_table().0;
            let outcome = cpu::access(&self.arch, &self.host, root, address.0, access, hardware);
            if let Outcome::Frame(frame) = outcome {
                assert!(may, "page {page:#x} allows what it must not: {access:?}");
                use_frame(self.frames.at_mut(frame), known.unwrap(), access, value);
                return Ok(last);
            }
            match space.fault(address, access, &mut self.frames) {
                Ok(fault) => {
                    assert!(may, "page {page:#x}: {fault:?} for {access:?}");
                    last = Some(fault);
                }
                Err(error @ (SpaceError::NotMapped { .. } | SpaceError::Denied { .. })) => {
                    assert!(!may, "page {page:#x} {access:?}: {error}");
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        panic!("page {page:#x} faults for ever: {last:?}");
    }

    /// The kernel's access for the program.
    pub fn by_kernel(
        &mut self,
        process: usize,
        page: u64,
        access: Access,
        value: u64,
    ) -> Result<(), SpaceError> {
        let address = VirtualAddress(self.address(page).0 + 8);
        let Process { space, reference } = &mut self.processes[process];
        let known = reference.pages.get_mut(&page);
        let may = known
            .as_ref()
            .is_some_and(|known| known.rights.allows(access));
        match space.frame_for(address, access, &mut self.frames) {
            Ok(frame) => {
                assert!(may, "page {page:#x} for the kernel: {access:?}");
                assert_eq!(frame.0 & (self.arch.page() - 1), 8);
                let frame = self.frames.at_mut(frame.0 - 8);
                use_frame(frame, known.unwrap(), access, value);
                Ok(())
            }
            Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => {
                assert!(!may);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub fn fork(&mut self, process: usize) -> Result<usize, SpaceError> {
        let mut child = self.new_space()?;
        let parent = &mut self.processes[process];
        if let Err(error) = parent.space.fork_into(&mut child, &mut self.frames) {
            assert!(child.vmas().is_empty(), "a child of a failed fork");
            // SAFETY: no CPU was ever in the child.
            unsafe { child.destroy(&mut self.frames) };
            return Err(error);
        }
        // SAFETY: as in `start`.
        unsafe { child.make_live() };
        let mut reference = parent.reference.clone();
        // A frame that both have may be read-only now where the hardware's account was clean.
        for known in reference.pages.values_mut() {
            known.dirty = false;
        }
        self.processes.push(Process {
            space: child,
            reference,
        });
        Ok(self.processes.len() - 1)
    }

    pub fn exit(&mut self, process: usize) {
        let process = self.processes.swap_remove(process);
        // SAFETY: no CPU walks tables of this test.
        unsafe { process.space.destroy(&mut self.frames) };
    }

    /// Everything, against everything.
    pub fn check(&self) {
        let mut owners = 0;
        let mut tables = 0;
        for (number, Process { space, reference }) in self.processes.iter().enumerate() {
            let found = space.vmas().iter().map(|vma| {
                let page = self.page();
                let kind = (vma.rights, vma.label, vma.advice);
                (vma.start.0 / page, vma.end.0 / page, kind)
            });
            assert_eq!(
                found.collect::<Vec<_>>(),
                reference.vmas(),
                "vmas of {number}"
            );
            let mut tree = self.arch.walk(&self.host, space.tables().root_table());
            tables += tree.tables.len();
            self.check_groups(&tree.leaves);
            tree.leaves = self.pages_of(&tree.leaves);
            owners += tree.leaves.len() as u64;
            assert_eq!(
                tree.present_invalid,
                [],
                "entries present-invalid for good in {number}"
            );
            assert_eq!(space.stats().resident, tree.leaves.len() as u64);
            let mut leaves = tree.leaves.iter().peekable();
            for (&page, known) in &reference.pages {
                let at = page * self.page();
                let Some(leaf) = leaves.next_if(|leaf| leaf.offset == at) else {
                    assert_eq!(known.value, 0, "page {page:#x} of {number} is lost");
                    continue;
                };
                self.check_leaf(number, known, leaf, space);
            }
            assert_eq!(leaves.next(), None, "a page of {number} outside of vmas");
        }
        assert_eq!(self.frames.owners(), owners, "owners of frames, and pages");
        assert_eq!(
            self.host.given_out(),
            tables,
            "tables given out, and tables"
        );
        assert_eq!(self.host.reserved_in_vain(), 0, "tables reserved in vain");
    }

    /// Each page of each leaf as a leaf of its own, with the level of the leaf that it is in.
    fn pages_of(&self, leaves: &[Leaf]) -> Vec<Leaf> {
        let mut pages = Vec::new();
        for leaf in leaves {
            let count = if leaf.level == 3 {
                1
            } else {
                self.geometry.page_size().entries() as u64
            };
            pages.extend((0..count).map(|page| Leaf {
                offset: leaf.offset + page * self.page(),
                output: leaf.output + page * self.page(),
                ..*leaf
            }));
        }
        pages
    }

    fn check_leaf(&self, number: usize, known: &Known, leaf: &Leaf, space: &Tested<P>) {
        let what = format!("{leaf:x?} of {number}, {known:?}");
        let frame = self.frames.at(leaf.output);
        assert_eq!(frame.value, known.value, "{what}");
        let bit = |at: u32| leaf.word & 1 << at != 0;
        assert!(leaf.level == 3 || leaf.level == 2, "{what}");
        assert_eq!(bit(6), known.rights.any(), "EL0: {what}");
        assert!(bit(11), "not global: {what}");
        assert!(bit(53), "EL1 never executes: {what}");
        assert_eq!(bit(54), !known.rights.execute, "EL0 executes: {what}");
        assert!(
            !known.rights.execute || frame.synchronised,
            "EL0 may execute it, and it was not synchronised since it was filled: {what}"
        );
        let writable = !bit(7) || bit(51);
        assert!(!writable || known.rights.write, "{what}");
        assert!(
            !writable || frame.owners == 1,
            "writable and shared: {what}"
        );
        assert!(bit(10) || self.settings.hardware_access, "{what}");
        let state = space.page(VirtualAddress(leaf.offset)).unwrap();
        assert_eq!(state.frame.0, leaf.output);
        assert_eq!(state.block, leaf.level == 2);
        assert_eq!(state.writable, writable, "{what}");
        assert!(state.dirty || !known.dirty, "written, but clean: {what}");
    }

    /// Members of a group are all there, and alike but for what hardware does.
    fn check_groups(&self, leaves: &[Leaf]) {
        let members = self.arch.contiguous(3);
        let bytes = members * self.page();
        let grouped: Vec<_> = leaves
            .iter()
            .filter(|leaf| leaf.word & 1 << 52 != 0)
            .collect();
        let hardware = |word: u64| {
            let dirty = if word & 1 << 51 != 0 { 1 << 7 } else { 0 };
            self.arch.attributes_in(word) & !(1 << 10 | 1 << 55 | dirty)
        };
        for group in grouped.chunks(members as usize) {
            let first = group[0];
            assert_eq!(group.len() as u64, members, "{first:x?}");
            assert_eq!(first.offset % bytes, 0, "{first:x?}");
            assert_eq!(first.output % bytes, 0, "{first:x?}");
            for (member, leaf) in group.iter().enumerate() {
                let distance = member as u64 * self.page();
                assert_eq!(leaf.offset, first.offset + distance);
                assert_eq!(leaf.output, first.output + distance);
                assert_eq!(hardware(leaf.word), hardware(first.word));
            }
        }
    }

    /// Everything ends, and everything is given back.
    pub fn end(mut self) {
        while !self.processes.is_empty() {
            self.exit(0);
            self.check();
        }
        assert_eq!(self.frames.owners(), 0);
        assert_eq!(self.host.given_out(), 0);
    }
}
