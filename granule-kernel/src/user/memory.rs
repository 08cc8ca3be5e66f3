//! Address spaces of processes: the library's, on the kernel's frames, and which of them each CPU
//! is in.
//!
//! Callers know no page size: [`Tables`] hides it, and which instance makes a space was chosen at
//! boot ([`prepare`]). A space has a lock that lets interrupts in: what it covers may take long (a
//! fork), and interrupts never take it. It is the outermost of the kernel's locks, and who holds it
//! does not sleep.

use super::frames::UserMemory;
pub(crate) use super::frames::page_bytes;
use super::owned::{Array, Boxed};
use super::registers;
use crate::arch::cpu;
use crate::lock::{Lock, UnmaskedLock};
use crate::mm::live;
use crate::mm::table_pages::TablePages;
use crate::percpu;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use granule::arch::page_size::Page;
use granule::arch::registers::Ttbr;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Dispatch, Geometry, PhysicalAddress, VirtualAddress};
use granule::hw::{self, Hardware};
use granule::space::{
    Access, Area, Areas, AsidCpu, AsidMap, Asids, Fault, Rights, Settings, Space, SpaceAsid,
    SpaceError, Stats, asid,
};
use granule::table::{Offset, Parts, Reached};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::sizes;

/// What the tables of a space stand on.
type Environment = Parts<Reached<Offset>, TablePages<'static>, Hardware>;

/// What holds for all spaces.
#[derive(Clone, Copy, Debug)]
struct Platform {
    geometry: Geometry,
    capabilities: TlbCapabilities,
    settings: Settings,
    make: fn() -> Option<AddressSpace>,
}

static PLATFORM: spin::Once<Platform> = spin::Once::new();

static ASID_CPUS: [AsidCpu; MOST_CPUS] = [const { AsidCpu::unused() }; MOST_CPUS];
static ASIDS: Asids<'static> = Asids::of(&ASID_CPUS);
/// The numbers that are taken; outside of user space there are none.
static NUMBERS: Lock<Option<Numbers>> = Lock::new(None);

struct Numbers {
    map: AsidMap<'static>,
    /// What the map is written in: not to be reached but through it.
    _words: Array<u64>,
}

// Each CPU uses one at a time, so with 8 bits there is always one left.
const _: () = assert!(MOST_CPUS < 255);

/// What was done in all spaces that are gone.
static GONE: Lock<Stats> = Lock::new(Stats::NONE);

/// What can be done with a space, whatever its page size.
pub(crate) trait Tables {
    /// See [`Space::map`].
    fn map(&mut self, start: u64, bytes: u64, rights: Rights, label: u8) -> Done;
    /// See [`Space::unmap`].
    fn unmap(&mut self, start: u64, bytes: u64) -> Done;
    /// See [`Space::discard`].
    fn discard(&mut self, start: u64, bytes: u64) -> Done;
    /// See [`Space::protect`].
    fn protect(&mut self, start: u64, bytes: u64, rights: Rights) -> Done;
    /// See [`Space::fault`].
    fn fault(&mut self, address: u64, access: Access) -> Result<Fault, SpaceError>;
    /// See [`Space::frame_for`].
    fn frame_for(&mut self, address: u64, access: Access) -> Result<PhysicalAddress, SpaceError>;
    /// Another space with the same in it: see [`Space::fork_into`].
    fn fork(&mut self) -> Result<AddressSpace, SpaceError>;
    /// See [`Space::areas`].
    fn areas(&self) -> &Areas<'static>;
    /// See [`Space::stats`].
    fn stats(&self) -> Stats;
    /// See [`Space::set_asid`].
    fn set_asid(&mut self, number: u16);
    /// CPUs may walk the tables from here on.
    fn publish(&mut self);
    /// The root of the tables.
    fn root(&self) -> PhysicalAddress;
}

/// What most operations return.
pub(crate) type Done = Result<(), SpaceError>;

/// A space of one page size. `None` only while it is dropped.
struct Typed<P: Page>(Option<Space<'static, P, Environment>>);

/// A space, and who has it. The last who gives it up drops it.
struct Shared<T: ?Sized> {
    users: AtomicUsize,
    asid: SpaceAsid,
    /// How to drop it: [`AddressSpace`] does not know what it is.
    drop: unsafe fn(NonNull<()>),
    tables: UnmaskedLock<T>,
}

/// An address space, shared by who has it.
pub(crate) struct AddressSpace(NonNull<Shared<dyn Tables>>);

// SAFETY: what is in it is reached under its lock.
unsafe impl Send for AddressSpace {}
// SAFETY: as above.
unsafe impl Sync for AddressSpace {}

/// An [`AddressSpace`] that somebody else keeps.
#[derive(Clone, Copy)]
pub(super) struct SpaceRef(NonNull<Shared<dyn Tables>>);

/// Sets up what all spaces have. `geometry` is that of the lower half.
pub(super) fn prepare(geometry: Geometry, capabilities: TlbCapabilities, settings: Settings) {
    struct Make;
    impl Dispatch for Make {
        type Output = fn() -> Option<AddressSpace>;
        fn run<P: Page>(self) -> Self::Output {
            || make::<P>().map(erase)
        }
    }
    let make = sizes::dispatch(geometry.page_size(), Make);
    PLATFORM.call_once(|| Platform {
        geometry,
        capabilities,
        settings,
        make,
    });
}

/// Gives the numbers of spaces, of `bits` bits, a place; false if there is no memory.
pub(super) fn open_numbers(bits: u32) -> bool {
    let Some(mut words) = Array::new(asid::map_words(bits), |_| 0) else {
        return false;
    };
    // SAFETY: the map is dropped with the words, and nobody else reaches them before.
    let lent = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr(), words.len()) };
    let map = AsidMap::new(lent);
    NUMBERS.with(|numbers| *numbers = Some(Numbers { map, _words: words }));
    true
}

/// Gives that back: no CPU is in a space.
pub(super) fn close_numbers() {
    // The map before the words, as they are declared.
    drop(NUMBERS.with(Option::take));
}

/// Room for areas at first: most programs have fewer.
const FIRST_AREAS: usize = 64;

fn make<P: Page>() -> Option<Boxed<Shared<Typed<P>>>> {
    let (platform, kernel) = (PLATFORM.get()?, live::kernel()?);
    // SAFETY: every table is a frame of the page allocator, which the linear map shows writable.
    let memory = Reached(unsafe { Offset::new(kernel.placement.distance()) });
    let parts = Parts {
        memory,
        // SAFETY: `Pages` has all frames that the boot did not keep, which the linear map shows.
        allocator: unsafe { TablePages::new(kernel) },
        maintenance: Hardware::new(platform.capabilities),
    };
    let mut areas = Array::new(FIRST_AREAS, |_| Area::EMPTY)?;
    // SAFETY: the space is dropped, or gives its areas back, before `areas` is.
    let lent = unsafe { core::slice::from_raw_parts_mut(areas.as_mut_ptr(), areas.len()) };
    let space = Space::new(platform.geometry, parts, lent, platform.settings).ok()?;
    let _ = areas.leak();
    Boxed::new(Shared {
        users: AtomicUsize::new(1),
        asid: SpaceAsid::none(),
        drop: drop_typed::<P>,
        tables: UnmaskedLock::new(Typed(Some(space))),
    })
}

fn erase<P: Page>(made: Boxed<Shared<Typed<P>>>) -> AddressSpace {
    let pointer: *mut Shared<dyn Tables> = made.into_pointer().as_ptr();
    // SAFETY: it comes from a pointer that is not null.
    AddressSpace(unsafe { NonNull::new_unchecked(pointer) })
}

/// # Safety
///
/// `shared` must come from [`erase`] for this page size, and nobody use it any more.
unsafe fn drop_typed<P: Page>(shared: NonNull<()>) {
    // SAFETY: the caller's promise.
    drop(unsafe { Boxed::from_pointer(shared.cast::<Shared<Typed<P>>>()) });
}

impl<P: Page> Typed<P> {
    /// Does it, with more room for areas if that is what it needs.
    fn with_room<R>(
        &mut self,
        mut what: impl FnMut(&mut Space<'static, P, Environment>) -> Result<R, SpaceError>,
    ) -> Result<R, SpaceError> {
        let space = self.0.as_mut().ok_or(SpaceError::NotEmpty)?;
        loop {
            match what(space) {
                Err(full @ SpaceError::AreasFull { capacity }) => {
                    enlarge(space, capacity * 2).ok_or(full)?;
                }
                result => return result,
            }
        }
    }
}

/// Gives a space room for so many areas; `None` if there is no memory.
fn enlarge<P: Page>(space: &mut Space<'static, P, Environment>, count: usize) -> Option<()> {
    let more = Array::new(count, |_| Area::EMPTY)?;
    // It has room for more than there are, or for as many.
    let old = space.enlarge_areas(more.leak()).ok()?;
    // SAFETY: leaked by `make` or here, once.
    drop(unsafe { Array::from_static(old) });
    Some(())
}

impl<P: Page> Drop for Typed<P> {
    fn drop(&mut self) {
        let Some(mut space) = self.0.take() else {
            return;
        };
        space.clear(&mut UserMemory);
        let stats = space.stats();
        GONE.with(|gone| *gone = gone.and(stats));
        if let Ok(areas) = space.enlarge_areas(&mut []) {
            // SAFETY: leaked by `make` or `enlarge`, once.
            drop(unsafe { Array::from_static(areas) });
        }
        // SAFETY: nobody has the space any more, so no CPU is in it.
        let _ = unsafe { space.destroy(&mut UserMemory) };
    }
}

impl<P: Page> Tables for Typed<P> {
    fn map(&mut self, start: u64, bytes: u64, rights: Rights, label: u8) -> Done {
        self.with_room(|space| space.map(VirtualAddress(start), bytes, rights, label))
    }
    fn unmap(&mut self, start: u64, bytes: u64) -> Done {
        self.with_room(|space| space.unmap(VirtualAddress(start), bytes, &mut UserMemory))
    }
    fn discard(&mut self, start: u64, bytes: u64) -> Done {
        self.with_room(|space| space.discard(VirtualAddress(start), bytes, &mut UserMemory))
    }
    fn protect(&mut self, start: u64, bytes: u64, rights: Rights) -> Done {
        self.with_room(|space| space.protect(VirtualAddress(start), bytes, rights, &mut UserMemory))
    }
    fn fault(&mut self, address: u64, access: Access) -> Result<Fault, SpaceError> {
        self.with_room(|space| space.fault(VirtualAddress(address), access, &mut UserMemory))
    }
    fn frame_for(&mut self, address: u64, access: Access) -> Result<PhysicalAddress, SpaceError> {
        self.with_room(|space| space.frame_for(VirtualAddress(address), access, &mut UserMemory))
    }
    fn fork(&mut self) -> Result<AddressSpace, SpaceError> {
        let address = VirtualAddress(0);
        let mut child = make::<P>().ok_or(SpaceError::OutOfFrames { address })?;
        let count = self.areas().all().len();
        let other = child.tables.get_mut();
        self.with_room(|space| {
            let child = other.0.as_mut().ok_or(SpaceError::NotEmpty)?;
            if child.areas().capacity() < count {
                enlarge(child, count).ok_or(SpaceError::OutOfFrames { address })?;
            }
            space.fork_into(child, &mut UserMemory)
        })?;
        other.publish();
        Ok(erase(child))
    }
    fn areas(&self) -> &Areas<'static> {
        static NONE: spin::Once<Areas<'static>> = spin::Once::new();
        match &self.0 {
            Some(space) => space.areas(),
            None => NONE.call_once(|| Areas::new(&mut [])),
        }
    }
    fn stats(&self) -> Stats {
        self.0.as_ref().map_or_else(Stats::default, Space::stats)
    }
    fn set_asid(&mut self, number: u16) {
        if let Some(space) = &mut self.0 {
            space.set_asid(Some(number));
        }
    }
    fn publish(&mut self) {
        if let Some(space) = &mut self.0 {
            space.make_live();
            // Before the root gets into any TTBR0, on whatever CPU.
            hw::dsb_ishst();
        }
    }
    fn root(&self) -> PhysicalAddress {
        self.0.as_ref().map_or(PhysicalAddress(0), Space::root)
    }
}

impl AddressSpace {
    /// An empty one, which no CPU walks before it is [published](Tables::publish); `None` if there
    /// is no memory.
    pub(crate) fn new() -> Option<Self> {
        (PLATFORM.get()?.make)()
    }

    /// One more who has it.
    pub(crate) fn share(&self) -> Self {
        self.shared().users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// The same, to be entered.
    pub(super) const fn reference(&self) -> SpaceRef {
        SpaceRef(self.0)
    }

    fn shared(&self) -> &Shared<dyn Tables> {
        // SAFETY: it is there for as long as somebody has it.
        unsafe { self.0.as_ref() }
    }

    /// Calls `work` with the tables, under the lock. `work` must not sleep, nor do so with another
    /// space.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut (dyn Tables + 'static)) -> R) -> R {
        self.shared().with(work)
    }
}

impl<T: Tables + ?Sized> Shared<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.tables.with(work)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.shared().users.fetch_sub(1, Ordering::AcqRel) == 1 {
            let drop = self.shared().drop;
            // SAFETY: nobody has it any more, and no CPU is in it: each leaves it before its task
            // is anybody else's, or ends.
            unsafe { drop(self.0.cast()) };
        }
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressSpace of {:?}", self.shared().asid.number())
    }
}

/// This CPU is in that space from here on. Interrupts must be masked.
///
/// # Safety
///
/// Somebody must keep the space for as long as this CPU is in it.
pub(super) unsafe fn enter(space: SpaceRef) {
    let Some(platform) = PLATFORM.get() else {
        return;
    };
    // SAFETY: the caller's promise.
    let shared = unsafe { space.0.as_ref() };
    let number = percpu::this().number();
    let entered = ASIDS.enter(number, &shared.asid);
    let root_and_number = match entered {
        // SAFETY: the root never changes.
        Some(number) => Some((unsafe { &*shared.tables.get() }.root(), number)),
        None => shared.with(|tables| {
            let renewed = NUMBERS.with(|numbers| {
                ASIDS
                    .renew(&mut numbers.as_mut()?.map, number, &shared.asid)
                    .ok()
            })?;
            if renewed.flush {
                cpu::tlbi_vmalle1_local();
                if platform.capabilities.repeat {
                    cpu::tlbi_vmalle1_local();
                }
            }
            tables.set_asid(renewed.asid);
            Some((tables.root(), renewed.asid))
        }),
    };
    // There are more numbers than CPUs.
    let Some((root, number)) = root_and_number else {
        return;
    };
    let ttbr = Ttbr::new(&platform.geometry, root, number);
    // SAFETY: tables of the shape that `registers::open` set; the kernel reaches nothing through
    // them.
    unsafe { cpu::set_ttbr0_el1(ttbr.0) };
}

/// This CPU is in no space from here on.
pub(super) fn leave() {
    registers::leave_space();
}

/// What was done in all spaces there were, once they are gone.
pub(super) fn done() -> Stats {
    GONE.with(|gone| *gone)
}

/// The addresses of user space end here.
pub(crate) fn end() -> u64 {
    PLATFORM
        .get()
        .map_or(0, |platform| platform.geometry.span())
}
