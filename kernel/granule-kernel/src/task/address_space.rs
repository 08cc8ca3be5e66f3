//! Address spaces of processes: the library's spaces on the kernel's frames, and the space that each CPU
//! is in.
//!
//! Each space has a page size of its own, one of those that [`platform`] has a row for. Callers are
//! independent of it: [`Tables`] hides it. A space's lock leaves interrupts enabled, because its holder may work long (a fork),
//! and interrupts never take it. It is the outermost of the kernel's locks, and its holder does not
//! sleep.

#![allow(unsafe_code, reason = "address spaces shared by their owners")]

use super::area_nodes::AreaNodes;
use super::frames::{Ground, UserMemory};
use super::owned::{self, Array, Boxed};
use super::space_environment::{Common, General, ProgramTables, SpaceKind};
use super::{file_cache, platform, process};
use crate::lock::{Lock, UnmaskedLock};
use crate::mm::kernel_tables;
use crate::mm::sized_tables::SizedTables;
use crate::percpu;
use crate::sched::registers;
use crate::trace::bring_up;
use crate::trace::recorder::Recorder;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    AnyPage, Dispatch, Page, PageChoice, PageSize, PhysicalAddress, VirtualAddress,
};
use granule::space::asid::{AsidCpu, AsidMap, Asids, SpaceAsid};
use granule::space::{Access, Advice, Fault, Rights, Space, SpaceError, Stats, Vmas, asid};
use granule::table::{Offset, TableError};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::sizes;
use granule_linux_abi::abi::Errno;
use granule_trace::recorder::Sink;

static ASID_CPUS: [AsidCpu; MOST_CPUS] = [const { AsidCpu::unused() }; MOST_CPUS];
static ASIDS: Asids<'static> = Asids::of(&ASID_CPUS);
/// The ASIDs in use; `None` outside of user space.
static NUMBERS: Lock<Option<Numbers>> = Lock::new(None);

struct Numbers {
    map: AsidMap<'static>,
    /// The storage of the map, accessed only through the map.
    _words: Array<u64>,
}

/// The statistics of all spaces already dropped.
static GONE: Lock<Stats> = Lock::new(Stats::NONE);

/// The operations of a space, for any page size: those of [`Space`] of the same name, and few more.
pub(crate) trait Tables {
    fn map(&mut self, start: u64, bytes: u64, rights: Rights, label: u8) -> Done;
    /// See [`Space::unmap`], or [`Space::map_over`] where an area comes.
    fn replace(&mut self, start: u64, bytes: u64, new: Option<(Rights, u8)>) -> Done;
    fn discard(&mut self, start: u64, bytes: u64) -> Done;
    fn advise(&mut self, start: u64, bytes: u64, advice: Advice) -> Done;
    fn protect(&mut self, start: u64, bytes: u64, rights: Rights) -> Done;
    fn fault(&mut self, address: u64, access: Access) -> Result<Fault, SpaceError>;
    fn frame_for(&mut self, address: u64, access: Access) -> Result<PhysicalAddress, SpaceError>;
    /// See [`Space::map_shared`].
    ///
    /// # Safety
    ///
    /// As for that function.
    unsafe fn map_shared(&mut self, start: u64, bytes: u64, first: PhysicalAddress) -> Done;
    /// Makes another space with the same content: see [`Space::fork_into`].
    fn fork(&mut self) -> Result<AddressSpace, SpaceError>;
    fn vmas(&self) -> &Vmas<'static>;
    fn set_asid(&mut self, number: u16);
    /// Allows CPUs to walk the tables from here on. Returns the value of TTBR0 without a number.
    fn publish(&mut self) -> Option<Ttbr>;
}

/// The lowest bit of the ASID in a TTBR.
const TTBR_ASID: u32 = 48;

pub(crate) type Done = Result<(), SpaceError>;

/// The memory of a space's pages.
type Memory<P, E> = UserMemory<P, <E as SpaceKind>::Ground>;

struct Typed<P: PageChoice, E: SpaceKind> {
    /// `None` only during the drop.
    space: Option<Space<'static, P, E::Environment, Memory<P, E>>>,
    page_size: PageSize,
    /// The memory of the areas: the drop takes the space first.
    nodes: AreaNodes,
    /// The ASID that the space was given last.
    asid: Option<u16>,
}

/// A space and the number of its users. The last user drops it.
struct Shared<T: ?Sized> {
    users: AtomicUsize,
    asid: SpaceAsid,
    /// TTBR0 without a number; 0 until the space is published.
    root: AtomicU64,
    /// TCR of a CPU that is in the space.
    tcr: Tcr,
    page_size: PageSize,
    /// Drops the value; [`AddressSpace`] has lost its type.
    drop: unsafe fn(NonNull<()>),
    tables: UnmaskedLock<T>,
}

pub(crate) struct AddressSpace(NonNull<Shared<dyn Tables>>);

// SAFETY: the contents are accessed under their lock.
unsafe impl Send for AddressSpace {}
// SAFETY: as above.
unsafe impl Sync for AddressSpace {}

/// A reference to an [`AddressSpace`] that another owner keeps alive.
#[derive(Clone, Copy)]
pub(super) struct SpaceRef(NonNull<Shared<dyn Tables>>);

/// Whether ASIDs of `bits` bits are enough: each CPU uses one at a time, none uses 0, and one must be left.
pub(super) fn are_numbers_enough(bits: u32) -> bool {
    percpu::ready() + 2 <= 1 << bits
}

/// Allocates the map of ASIDs with `bits` bits. False if memory is exhausted.
pub(super) fn open_numbers(bits: u32) -> bool {
    let Some(mut words) = Array::new(asid::map_words(bits), |_| 0) else {
        return false;
    };
    // SAFETY: the map is dropped together with the words, and only the map accesses them.
    let lent = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr(), words.len()) };
    let map = AsidMap::new(lent);
    NUMBERS.with(|numbers| *numbers = Some(Numbers { map, _words: words }));
    true
}

/// Frees the map of ASIDs. No CPU may be in a space.
pub(super) fn close_numbers() {
    // Fields drop in order of declaration: the map before the words.
    drop(NUMBERS.with(Option::take));
}

/// An empty space; `None` if memory is exhausted, also without unused files.
fn make<P: PageChoice, E: SpaceKind>(size: PageSize) -> Option<Boxed<Shared<Typed<P, E>>>> {
    loop {
        match try_make(size) {
            None if file_cache::shrink() => {}
            made => return made,
        }
    }
}

fn try_make<P: PageChoice, E: SpaceKind>(size: PageSize) -> Option<Boxed<Shared<Typed<P, E>>>> {
    let (platform, kernel) = (platform::get()?, kernel_tables::kernel()?);
    let shape = platform.shape(size)?;
    if E::Ground::ANY_SIZE && size != kernel.geometry.page_size() {
        owned::use_pieces();
    }
    // SAFETY: every table is a frame of the page allocator, which the linear map maps writable.
    let memory = unsafe { Offset::new(kernel.placement.distance()) };
    // SAFETY: the page allocator has all frames that the boot did not keep, and the linear map
    // covers them.
    let pages = unsafe { SizedTables::new(kernel, size) };
    let plain = ProgramTables {
        memory,
        source: pages,
        capabilities: platform.capabilities,
    };
    let environment = E::environment(plain, size.bytes());
    // SAFETY: the drop of `Typed` drops the space first.
    let mut nodes = unsafe { AreaNodes::new() };
    let first = nodes.first()?;
    let space = Space::new(shape.lower, environment, first, platform.settings).ok()?;
    Boxed::new(Shared {
        users: AtomicUsize::new(1),
        asid: SpaceAsid::none(),
        root: AtomicU64::new(0),
        tcr: shape.tcr,
        page_size: size,
        drop: drop_typed::<P, E>,
        tables: UnmaskedLock::new(Typed {
            space: Some(space),
            page_size: size,
            nodes,
            asid: None,
        }),
    })
}

fn erase<P: PageChoice, E: SpaceKind>(made: Boxed<Shared<Typed<P, E>>>) -> AddressSpace {
    let pointer: *mut Shared<dyn Tables> = made.into_pointer().as_ptr();
    // SAFETY: the pointer comes from a non-null pointer.
    AddressSpace(unsafe { NonNull::new_unchecked(pointer) })
}

/// # Safety
///
/// `shared` must come from [`erase`] for this page size and environment, and nothing may use it afterwards.
unsafe fn drop_typed<P: PageChoice, E: SpaceKind>(shared: NonNull<()>) {
    // SAFETY: the caller guarantees it.
    drop(unsafe { Boxed::from_pointer(shared.cast::<Shared<Typed<P, E>>>()) });
}

impl<P: PageChoice, E: SpaceKind> Typed<P, E> {
    fn memory(&self) -> Memory<P, E> {
        // SAFETY: `AddressSpace::new` makes spaces with `KernelSized` for the kernel's page size alone.
        unsafe { UserMemory::new(self.page_size) }
    }

    /// Records that the programs of the space use a range as the tables map it from here on.
    fn assume_visible(&self, start: u64, bytes: u64) {
        if E::MAY_RECORD
            && let Some(asid) = self.asid
        {
            let sink = Recorder::new(self.page_size.bytes());
            sink.assume_visible_in(asid, VirtualAddress(start), bytes);
        }
    }

    /// Calls `what`, and again with more nodes if the areas lack some, or after dropping unused files if memory is
    /// exhausted. An operation that fails has changed nothing.
    fn with_room<R>(
        &mut self,
        mut what: impl FnMut(
            &mut Space<'static, P, E::Environment, Memory<P, E>>,
        ) -> Result<R, SpaceError>,
    ) -> Result<R, SpaceError> {
        let space = self.space.as_mut().ok_or(SpaceError::NotEmpty)?;
        loop {
            match what(space) {
                Err(error @ SpaceError::OutOfVmaNodes { missing }) => {
                    if !self.nodes.lend(space, missing) && !file_cache::shrink() {
                        return Err(error);
                    }
                }
                Err(
                    SpaceError::OutOfFrames { .. }
                    | SpaceError::Tables(TableError::OutOfTables { .. }),
                ) if file_cache::shrink() => {}
                result => return result,
            }
        }
    }
}

impl<P: PageChoice, E: SpaceKind> Drop for Typed<P, E> {
    fn drop(&mut self) {
        let Some(mut space) = self.space.take() else {
            return;
        };
        let mut memory = self.memory();
        space.clear(&mut memory);
        GONE.with(|gone| *gone = gone.and(space.stats()));
        // SAFETY: the space has no user left, so no CPU is in it.
        let _ = unsafe { space.destroy(&mut memory) };
    }
}

impl<P: PageChoice, E: SpaceKind> Tables for Typed<P, E> {
    fn map(&mut self, start: u64, bytes: u64, rights: Rights, label: u8) -> Done {
        self.with_room(|space| space.map(VirtualAddress(start), bytes, rights, label))
    }
    fn replace(&mut self, start: u64, bytes: u64, new: Option<(Rights, u8)>) -> Done {
        let (at, frames) = (VirtualAddress(start), &mut self.memory());
        let done = self.with_room(|space| match new {
            Some((rights, label)) => space.map_over(at, bytes, rights, label, frames),
            None => space.unmap(at, bytes, frames),
        });
        self.assume_visible(start, bytes);
        done
    }
    fn discard(&mut self, start: u64, bytes: u64) -> Done {
        let frames = &mut self.memory();
        let done = self.with_room(|space| space.discard(VirtualAddress(start), bytes, frames));
        self.assume_visible(start, bytes);
        done
    }
    fn advise(&mut self, start: u64, bytes: u64, advice: Advice) -> Done {
        self.with_room(|space| space.advise(VirtualAddress(start), bytes, advice))
    }
    fn protect(&mut self, start: u64, bytes: u64, rights: Rights) -> Done {
        let frames = &mut self.memory();
        let done =
            self.with_room(|space| space.protect(VirtualAddress(start), bytes, rights, frames));
        self.assume_visible(start, bytes);
        done
    }
    fn fault(&mut self, address: u64, access: Access) -> Result<Fault, SpaceError> {
        let mut frames = self.memory();
        let mut fault = |space: &mut Space<'static, P, E::Environment, Memory<P, E>>| {
            space.fault(VirtualAddress(address), access, &mut frames)
        };
        let first = self.space.as_mut().ok_or(SpaceError::NotEmpty);
        let mut done = first.and_then(&mut fault);
        if let Err(error) = &done
            && !matches!(
                error,
                SpaceError::Denied { .. } | SpaceError::NotMapped { .. }
            )
        {
            // Again, because what failed for want of memory has changed nothing that a program sees.
            done = self.with_room(fault);
        }
        let page = self.page_size.bytes();
        self.assume_visible(address & !(page - 1), page);
        done
    }
    fn frame_for(&mut self, address: u64, access: Access) -> Result<PhysicalAddress, SpaceError> {
        let frames = &mut self.memory();
        let done = self.with_room(|space| space.frame_for(VirtualAddress(address), access, frames));
        let page = self.page_size.bytes();
        self.assume_visible(address & !(page - 1), page);
        done
    }
    unsafe fn map_shared(&mut self, start: u64, bytes: u64, first: PhysicalAddress) -> Done {
        let frames = &mut self.memory();
        let space = self.space.as_mut().ok_or(SpaceError::NotEmpty)?;
        // SAFETY: the caller keeps the rules.
        let done = unsafe { space.map_shared(VirtualAddress(start), bytes, first, frames) };
        self.assume_visible(start, bytes);
        done
    }
    fn fork(&mut self) -> Result<AddressSpace, SpaceError> {
        let address = VirtualAddress(0);
        let mut child = make::<P, E>(self.page_size).ok_or(SpaceError::OutOfFrames { address })?;
        let needed = self.vmas().nodes();
        let Shared { tables, root, .. } = &mut *child;
        let other = tables.get_mut();
        let frames = &mut self.memory();
        self.with_room(|space| {
            let child = other.space.as_mut().ok_or(SpaceError::NotEmpty)?;
            let missing = needed.saturating_sub(child.vmas().spare_nodes());
            if !other.nodes.lend(child, missing) {
                return Err(SpaceError::OutOfFrames { address });
            }
            space.fork_into(child, frames)
        })?;
        *root.get_mut() = other.publish().map_or(0, Ttbr::bits);
        // The parent's pages are read-only now, so that the first write copies them.
        self.assume_visible(0, platform::end());
        Ok(erase(child))
    }
    fn vmas(&self) -> &Vmas<'static> {
        static NONE: Vmas<'static> = Vmas::new(0);
        self.space.as_ref().map_or(&NONE, Space::vmas)
    }
    fn set_asid(&mut self, number: u16) {
        self.asid = Some(number);
        if let Some(space) = &mut self.space {
            // SAFETY: `enter` renews the number before a CPU walks the tables under another one.
            unsafe { space.set_asid(Some(number)) };
        }
    }
    fn publish(&mut self) -> Option<Ttbr> {
        let space = self.space.as_mut()?;
        // SAFETY: the TLBIs reach all CPUs, and the settings are common to them.
        unsafe { space.make_live() };
        // Completes the stores to the tables before any CPU gets the root in its TTBR0.
        bring_up::dsb_ishst();
        space.ttbr(0)
    }
}

impl AddressSpace {
    /// An empty space with pages of `size`, which no CPU walks before it is [published](Self::publish). `None`
    /// if memory is exhausted, or programs cannot have the size.
    pub(crate) fn new(size: PageSize) -> Option<Self> {
        struct Make;
        impl Dispatch for Make {
            type Output = Option<AddressSpace>;
            fn run<P: Page>(self) -> Self::Output {
                make::<P, Common>(P::SIZE).map(erase)
            }
        }
        let kernel = kernel_tables::kernel()?.geometry.page_size();
        let is_kernels = sizes::MIN == sizes::MAX || kernel == size;
        if is_kernels && !Recorder::new(0).is_active() {
            sizes::dispatch(size, Make)
        } else {
            make::<AnyPage, General>(size).map(erase)
        }
    }

    pub(crate) fn page_size(&self) -> PageSize {
        self.shared().page_size
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_size().bytes()
    }

    /// Allows CPUs to walk the tables from here on.
    pub(crate) fn publish(&self) {
        let root = self.with(|tables| tables.publish());
        let root = root.map_or(0, Ttbr::bits);
        self.shared().root.store(root, Ordering::Release);
    }

    /// Another owner of the same space.
    pub(crate) fn share(&self) -> Self {
        self.shared().users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// Lets a CPU enter the space.
    pub(super) const fn reference(&self) -> SpaceRef {
        SpaceRef(self.0)
    }

    fn shared(&self) -> &Shared<dyn Tables> {
        // SAFETY: the value lives as long as an owner exists, and `self` is one.
        unsafe { self.0.as_ref() }
    }

    /// As [`with`](Self::with), for a call whose error a program gets.
    pub(super) fn change<R>(
        &self,
        work: impl FnOnce(&mut (dyn Tables + 'static)) -> Result<R, SpaceError>,
    ) -> Result<R, Errno> {
        self.with(work).map_err(process::out_of_memory)
    }

    /// Calls `work` with the tables, under the lock. `work` must not sleep, nor lock another space.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut (dyn Tables + 'static)) -> R) -> R {
        self.shared().tables.with(work)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.shared().users.fetch_sub(1, Ordering::AcqRel) == 1 {
            let drop = self.shared().drop;
            // SAFETY: this was the last owner, and no CPU is in the space: each CPU leaves it before its
            // task moves to another CPU or ends.
            unsafe { drop(self.0.cast()) };
        }
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressSpace of {:?}", self.shared().asid.number())
    }
}

/// Lets this CPU enter `space`. Interrupts must be masked.
///
/// # Safety
///
/// An owner must keep the space for as long as this CPU is in it, and have published it.
pub(super) unsafe fn enter(space: SpaceRef) {
    // SAFETY: the caller guarantees an owner.
    let shared = unsafe { space.0.as_ref() };
    let number = percpu::this().number();
    // There are more ASIDs than CPUs, so `None` cannot occur.
    let asid = ASIDS.enter(number, &shared.asid);
    let Some(asid) = asid.or_else(|| renew(shared, number)) else {
        return;
    };
    let root = shared.root.load(Ordering::Relaxed);
    // SAFETY: the root and the shape of published tables do not change, and the number is the space's: its
    // TLBIs name it. An ASID changes its space, and so its page size, only when a generation of ASIDs begins,
    // after which each CPU invalidates its whole TLB before it uses a number (`renew`).
    unsafe {
        let ttbr0 = Ttbr::from_bits(root | u64::from(asid) << TTBR_ASID);
        registers::enter_space(shared.tcr, ttbr0);
    }
}

/// Gives a space a number of the current generation.
#[cold]
#[inline(never)]
fn renew(shared: &Shared<dyn Tables>, cpu: usize) -> Option<u16> {
    shared.tables.with(|tables| {
        let renewed = NUMBERS.with(|numbers| {
            ASIDS
                .renew(&mut numbers.as_mut()?.map, cpu, &shared.asid)
                .ok()
        })?;
        if renewed.flush {
            bring_up::tlbi_vmalle1_local();
            if platform::get()?.capabilities.repeat {
                bring_up::tlbi_vmalle1_local();
            }
        }
        tables.set_asid(renewed.asid);
        Some(renewed.asid)
    })
}

/// Lets this CPU leave its space.
pub(super) fn leave() {
    registers::leave_space();
}

/// The statistics of all spaces, once they are dropped.
pub(super) fn done() -> Stats {
    GONE.with(|gone| *gone)
}
