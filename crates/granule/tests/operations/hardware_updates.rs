//! Updates by hardware between any two accesses of an operation on leaves.
//!
//! The environment here stands for CPUs with TCR.HA and TCR.HD too: before its Nth access it notes
//! one access of a CPU in the tables, as the architecture allows it. N runs over all accesses of
//! the operation. Whatever the operation makes of the leaf, the page must still have the note, or a
//! harvest must have reported it.

use granule::arch::bbm::BbmLevel;
use granule::arch::{
    Descriptor, Geometry, Page, Page4K, PageSize, PhysicalAddress, Stage2Geometry, VaRange,
};
use granule::forward;
use granule::table::{
    BitChange, Maintenance, PageTables, Stage1, Stage2, TableEnvironment, Visibility,
};
use granule_testing::held::Held;
use granule_testing::host::{self, Host, HostEnvironment};
use granule_testing::shape::PLAIN;
use granule_testing::stage::TestStage;
use granule_testing::walk::{Arch, Leaf};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

mod scenes;

use scenes::{BLOCK, Scene, scenes};

const ACCESSED: u64 = 1 << 10;
const MODIFIER: u64 = 1 << 51;

/// An access of a CPU to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Reads it: the access flag is set.
    Reads,
    /// Writes it: the page is marked dirty.
    Writes,
}

/// The CPUs that update entries.
struct Cpus {
    host: Rc<Host>,
    arch: Arch,
    root: Cell<PhysicalAddress>,
    /// Accesses of the operation before the CPU's.
    left: Cell<Option<u64>>,
    does: Does,
    /// The page that is accessed, by its offset.
    at: u64,
    /// The number of the member that gets the note instead, if the page is in a group.
    member: Option<usize>,
    /// The entries of the group that a TLB holds for the page.
    group: RefCell<Option<(u64, usize, usize)>>,
    noted: Cell<bool>,
}

impl Cpus {
    /// The table, index, and level of the entry that translates an offset.
    fn entry(&self, offset: u64) -> (u64, usize, i32) {
        let mut table = self.root.get().0;
        let mut level = self.arch.start_level();
        loop {
            let index = (offset >> self.arch.shift(level)) as usize % self.arch.entries();
            let word = self.host.word(table, index);
            if word & 0b11 != 0b11 || level == 3 {
                return (table, index, level);
            }
            table = self.arch.table_address(word);
            level += 1;
        }
    }

    /// Lets a TLB hold the group of the page.
    fn cache(&self) {
        let (table, index, level) = self.entry(self.at);
        if self.host.word(table, index) >> 52 & 1 != 0 {
            let count = self.arch.contiguous(level) as usize;
            let first = index / count * count;
            *self.group.borrow_mut() = Some((table, first, count));
        }
    }

    /// One access of the operation to the tables is next.
    fn tick(&self) {
        let Some(left) = self.left.get() else { return };
        self.left.set(left.checked_sub(1));
        if left == 0 {
            self.access();
        }
    }

    fn access(&self) {
        let (mut table, mut index, _) = self.entry(self.at);
        if let (Some((group, first, count)), Some(member)) = (*self.group.borrow(), self.member) {
            (table, index) = (group, first + member % count);
        }
        let word = self.host.word(table, index);
        let valid = word & 1 != 0;
        let new = match self.does {
            Does::Reads => word | ACCESSED,
            Does::Writes if word & MODIFIER != 0 => self.arch.made_dirty(word) | ACCESSED,
            Does::Writes => word,
        };
        if valid && new != word {
            self.host.set_word(table, index, new);
            self.noted.set(true);
        }
    }
}

struct Updated {
    inner: HostEnvironment,
    cpus: Rc<Cpus>,
}

// SAFETY: each call is handed on, or made of calls that are; between two of them only bits that
// hardware may change are changed.
unsafe impl TableEnvironment for Updated {
    // `update_alike` is the update below.
    const BY_POINTER: bool = false;

    forward!(self.inner: reach reserve allocate allocate_run allocate_aligned free capabilities);
    forward!(self.inner after { self.cpus.tick(); }: load find_unlike store exchange fill);

    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let mut changed = 0;
        for index in first..first + count {
            self.cpus.tick();
            let old = Descriptor(self.cpus.host.word(table.0, index));
            if !change.concerns(old) {
                continue;
            }
            changed += 1;
            // SAFETY: the caller vouches for the entry.
            unsafe {
                let updated = old.is_valid() && old.0 & (1 << 10 | 1 << 51) != 1 << 10;
                if updated && visibility != Visibility::Private {
                    // Atomic: nothing comes between.
                    self.inner.update(table, index, 1, change, visibility);
                } else {
                    self.cpus.tick();
                    let new = change.apply(old);
                    self.inner.store(table, index, new, visibility);
                }
            }
        }
        changed
    }

    fn invalidate(&mut self, instruction: Maintenance) {
        if let Maintenance::Tlbi(..) = instruction {
            // Every TLBI of these operations reaches the page's leaf; other tests check that they do.
            *self.cpus.group.borrow_mut() = None;
        }
        self.inner.invalidate(instruction);
    }
}

type Tables<S> = PageTables<Page4K, Updated, S>;

type Reported = Vec<(u64, u64)>;

/// Performs the scene with the CPU's access before access `number` of the operation. Returns
/// whether there is such an access, and whether it was noted.
fn perform<S: TestStage>(
    geometry: S::Geometry,
    scene: &Scene<S>,
    does: Does,
    at: u64,
    member: Option<usize>,
    number: u64,
) -> (bool, bool) {
    let shape: Geometry = geometry.into();
    let host = Host::new(&shape, 0x4000_0000, 64);
    let arch = Arch::of(&shape);
    // The mapping begins where every size of leaf may begin.
    let start = 1 << 30;
    let cpus = Rc::new(Cpus {
        host: Rc::clone(&host),
        arch,
        root: Cell::new(PhysicalAddress(0)),
        left: Cell::new(None),
        does,
        at: start + at,
        member,
        group: RefCell::new(None),
        noted: Cell::new(false),
    });
    let can = crate::bench::Setting::LIVE.capabilities();
    let environment = Updated {
        inner: host::environment(&host, can),
        cpus: Rc::clone(&cpus),
    };
    let mut tables = Tables::<S>::new(geometry, environment).unwrap();
    cpus.root.set(tables.root_table());
    let accessed = does == Does::Writes || scene.only;
    let attributes = S::watched(does == Does::Writes, accessed);
    let first = S::at(start);
    tables
        .map(
            first,
            PhysicalAddress(start),
            scene.bytes,
            attributes,
            scene.leaves,
        )
        .unwrap();
    if scene.only {
        // All others are noted already.
        for page in (0..scene.bytes).step_by(0x1000) {
            let (table, index, _) = cpus.entry(start + page);
            let word = host.word(table, index);
            let word = match (does, page == at) {
                (Does::Reads, true) => word & !ACCESSED,
                (Does::Writes, false) => arch.made_dirty(word),
                _ => word,
            };
            host.set_word(table, index, word);
        }
    }
    let mut tables = Held::new(tables, true);
    // SAFETY: no CPU walks the tables.
    unsafe { tables.set_bbm(BbmLevel::Level3) };
    cpus.cache();
    cpus.left.set(Some(number));
    let reported = (scene.operation)(&mut tables, start, scene.bytes);
    let reached = cpus.left.replace(None).is_none();
    // The tables are well-formed, and the page has its note.
    let tree = arch.walk(&host, tables.root_table());
    let holds = |leaf: &&Leaf| (leaf.offset..leaf.offset + leaf.bytes).contains(&cpus.at);
    let leaf = tree.leaves.iter().find(holds).unwrap();
    if cpus.noted.get() {
        let what = scene.what;
        let is_noted = |leaf: &Leaf| match does {
            Does::Reads => leaf.word & ACCESSED != 0,
            Does::Writes => leaf.word & MODIFIER != 0 && arch.made_dirty(leaf.word) == leaf.word,
        };
        // A group has the note if any member has it.
        let group = arch.contiguous(leaf.level) * leaf.bytes;
        let same_group = |other: &Leaf| {
            let hint = (leaf.word & other.word) >> 52 & 1 != 0;
            hint && other.level == leaf.level && other.offset / group == leaf.offset / group
        };
        let noted = is_noted(leaf)
            || tree
                .leaves
                .iter()
                .any(|other| same_group(other) && is_noted(other))
            || reported
                .iter()
                .any(|&(start, bytes)| (start..start + bytes).contains(&cpus.at));
        assert!(
            noted,
            "{what}: {does:?} at {at:#x}, noted in member {member:?}, is lost before access \
             {number}: {leaf:x?}"
        );
    }
    let mapped: u64 = tree.leaves.iter().map(|leaf| leaf.bytes).sum();
    assert_eq!(mapped, scene.bytes);
    (reached, cpus.noted.get())
}

#[test]
#[cfg_attr(miri, ignore = "every access of an operation takes Miri minutes")]
fn an_update_by_hardware_is_never_lost() {
    assert_eq!(Page4K::SIZE, PageSize::K4);
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    no_update_is_lost::<Stage1>(geometry);
}

#[test]
#[cfg_attr(miri, ignore = "every access of an operation takes Miri minutes")]
fn an_update_by_hardware_is_never_lost_at_stage_2() {
    // Two root tables.
    let geometry = Stage2Geometry::new(&PLAIN.features(), PageSize::K4, 40).unwrap();
    no_update_is_lost::<Stage2>(geometry);
}

fn no_update_is_lost<S: TestStage>(geometry: S::Geometry) {
    for scene in &scenes::<S>() {
        for does in [Does::Reads, Does::Writes] {
            let mut noted = 0;
            for &at in scene.at {
                let members = [None, Some(0), Some(7)];
                let grouped = scene.leaves.contiguous && scene.bytes != BLOCK;
                for &member in &members[..if grouped { 3 } else { 1 }] {
                    let mut number = 0;
                    loop {
                        let (reached, was_noted) =
                            perform(geometry, scene, does, at, member, number);
                        noted += u64::from(was_noted);
                        if !reached {
                            break;
                        }
                        number += 1;
                    }
                    assert!(number > 2, "{}: {number} accesses", scene.what);
                }
            }
            println!("{}: {does:?}, noted {noted} times", scene.what);
            // A merge looks at little before it finds an entry that hardware may update; the
            // others have some hundred accesses.
            let least = 5;
            assert!(noted > least, "{}: {does:?}, {noted} times", scene.what);
        }
    }
}
