//! The state of the injected conflict: the chosen entries, and making them valid again.
//!
//! All of it is in statics, so that the exception handler of any CPU finds it. From [`ARMING`] on the entries
//! may be invalid. Only assembly that accesses nothing but the entries and the state makes them invalid and
//! valid again, since any other access, for example to a stack, might fault on them.

#![allow(unsafe_code, reason = "invalid entries that are only its own then")]

use crate::arch::cpu;
use crate::mm::kernel_tables;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use granule::arch::{Attributes, Descriptor, Level, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{Leaves, TableError, Visit};
use granule_kcore::conflict_injection::{covers, meant};
use granule_kcore::layout;
use granule_kcore::parameters::Parameters;

/// Most levels of tables.
const MOST_LEVELS: usize = Level::ALL.len();

/// No split is chosen.
const IDLE: u32 = 0;
/// Some of the entries may be invalid.
const ARMING: u32 = 1;
/// All entries are invalid, until the first fault.
const PENDING: u32 = 2;
/// A CPU makes them valid.
const MENDING: u32 = 3;
/// All entries are valid again.
const MENDED: u32 = 4;

static ON: AtomicBool = AtomicBool::new(false);
/// Splits of live leaves since it is on.
static SPLITS: AtomicU64 = AtomicU64::new(0);
/// The number of the chosen split.
static WANTED: AtomicU64 = AtomicU64::new(0);
static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// Physical address of the first entry, and the number of entries.
static FIRST: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The virtual addresses that the entries translate.
static START: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Physical addresses of the entries on a walker's path to them; 0 for none.
static PATH: [AtomicU64; MOST_LEVELS] = [const { AtomicU64::new(0) }; MOST_LEVELS];
/// The fixmap slot's own entry: table and index, and the descriptor's attributes.
static SLOT_TABLE: AtomicU64 = AtomicU64::new(0);
static SLOT_INDEX: AtomicU64 = AtomicU64::new(0);
static SLOT_ATTRIBUTES: AtomicU64 = AtomicU64::new(0);
/// The page size in bytes, less one.
static OFFSET_MASK: AtomicU64 = AtomicU64::new(0);
/// For a test: an address that the handler reads although it must not.
static PROBE: AtomicU64 = AtomicU64::new(0);

const RELAXED: Ordering = Ordering::Relaxed;

/// The entries of a split, and the addresses that they translate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) first: u64,
    pub(super) count: usize,
    pub(super) start: VirtualAddress,
    pub(super) bytes: u64,
    pub(super) path: [u64; MOST_LEVELS],
}

/// The fixmap slot's own entry, and the attributes of its mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) table: PhysicalAddress,
    pub(super) index: usize,
    pub(super) attributes: u64,
}

/// Reads the word from the command line, and prepares the slot if it is present.
pub(crate) fn init(parameters: &Parameters<'_>) -> Result<(), TableError> {
    let Some(number) = parameters.test.inject_conflict else {
        return Ok(());
    };
    prepare()?;
    arm(number.get());
    Ok(())
}

/// Makes the fixmap slot for access to entries. Called once, before any split.
pub(crate) fn prepare() -> Result<(), TableError> {
    if SLOT_ATTRIBUTES.load(RELAXED) != 0 {
        return Ok(());
    }
    let Some(kernel) = kernel_tables::kernel() else {
        return Ok(());
    };
    let page = kernel.page();
    let slot = VirtualAddress(layout::INJECT_VADDR);
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    // Any table serves until the slot is used.
    let shown = PhysicalAddress(kernel.root.0 & !(page - 1));
    kernel_tables::look(|_, _, tree| {
        tree.map(slot, shown, page, attributes, Leaves::PAGES)?;
        tree.visit(slot, page, |entry| {
            if entry.level == Level::L3 {
                SLOT_TABLE.store(entry.table.0, RELAXED);
                SLOT_INDEX.store(entry.index as u64, RELAXED);
            }
            Visit::EVERYTHING
        })?;
        Ok(())
    })
    .unwrap_or(Ok(()))?;
    OFFSET_MASK.store(page - 1, RELAXED);
    SLOT_ATTRIBUTES.store(attributes.encode(&kernel.geometry), RELAXED);
    Ok(())
}

pub(super) fn slot() -> Option<Slot> {
    let attributes = SLOT_ATTRIBUTES.load(RELAXED);
    (attributes != 0).then(|| Slot {
        table: PhysicalAddress(SLOT_TABLE.load(RELAXED)),
        index: SLOT_INDEX.load(RELAXED) as usize,
        attributes,
    })
}

/// Chooses the `number`th split from now on, from 1.
pub(crate) fn arm(number: u64) {
    mend();
    STATE.store(IDLE, RELAXED);
    WANTED.store(SPLITS.load(RELAXED) + number, RELAXED);
    ON.store(true, Ordering::Release);
}

/// Chooses no split, and mends pending entries.
pub(crate) fn disarm() {
    mend();
    ON.store(false, RELAXED);
}

/// Whether splits are counted.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(RELAXED)
}

/// The number of counted splits of live leaves.
pub(crate) fn splits() -> u64 {
    SPLITS.load(RELAXED)
}

/// Whether entries are invalid and no CPU has faulted on them.
pub(crate) fn is_pending() -> bool {
    matches!(STATE.load(RELAXED), ARMING | PENDING)
}

/// Whether the chosen split has been handled.
pub(crate) fn is_mended() -> bool {
    STATE.load(Ordering::Acquire) == MENDED
}

/// Counts a split. Returns true for the chosen one.
pub(super) fn count_split() -> bool {
    SPLITS.fetch_add(1, RELAXED) + 1 == WANTED.load(RELAXED) && STATE.load(RELAXED) == IDLE
}

/// Whether any of the `count` entries from physical address `entry` is pending.
#[inline(never)]
pub(super) fn concerns(entry: u64, count: usize) -> bool {
    if !matches!(STATE.load(RELAXED), ARMING | PENDING | MENDING) {
        return false;
    }
    let (first, all) = (FIRST.load(RELAXED), COUNT.load(RELAXED));
    entry < first + all * 8 && first < entry + count as u64 * 8
}

/// Whether any of the entries is on the path to pending ones.
#[inline(never)]
pub(super) fn leads(entry: u64, count: usize) -> bool {
    matches!(STATE.load(RELAXED), ARMING | PENDING | MENDING)
        && PATH
            .iter()
            .map(|step| step.load(RELAXED))
            .any(|step| step != 0 && covers(entry, count as u64 * 8, step))
}

/// The address of an entry in the slot, of the table that the slot shows.
fn in_slot(entry: u64) -> *mut u64 {
    (layout::INJECT_VADDR + (entry & OFFSET_MASK.load(RELAXED))) as *mut u64
}

/// Changes bits of the valid or present-invalid leaves among the chosen entries, as [`BitChange`] would, and
/// leaves them invalid. Returns how many were changed.
///
/// [`BitChange`]: granule::table::BitChange
///
/// # Safety
///
/// The slot must show the table of the entries, in its page's offset. Nothing else may write them.
pub(super) unsafe fn break_entries(chosen: &Chosen, of: u64, clear: u64, set: u64) -> usize {
    FIRST.store(chosen.first, RELAXED);
    COUNT.store(chosen.count as u64, RELAXED);
    START.store(chosen.start.0, RELAXED);
    BYTES.store(chosen.bytes, RELAXED);
    for (step, entry) in PATH.iter().zip(chosen.path) {
        step.store(entry, RELAXED);
    }
    // An interrupt before the end would delay other CPUs that fault.
    let masked = cpu::mask_interrupts();
    STATE.store(ARMING, Ordering::Release);
    let changed: usize;
    // SAFETY: accesses the entries through the slot, and the state. DMB: a CPU that sees an entry also sees
    // the table that it points to.
    unsafe {
        asm!(
            "dmb ish",
            "2: ldr {old}, [{entry}]",
            "tst {old}, {of}",
            "b.eq 3f",
            "bic {old}, {old}, {clear}",
            "orr {old}, {old}, {set}",
            "str {old}, [{entry}]",
            "add {changed}, {changed}, #1",
            "3: add {entry}, {entry}, #8",
            "subs {left}, {left}, #1",
            "b.ne 2b",
            "stlr {pending:w}, [{state}]",
            entry = inout(reg) in_slot(chosen.first) => _,
            left = inout(reg) chosen.count => _,
            changed = inout(reg) 0usize => changed,
            old = out(reg) _,
            of = in(reg) of,
            clear = in(reg) clear | Descriptor::VALID,
            set = in(reg) set & !Descriptor::VALID,
            pending = in(reg) PENDING,
            state = in(reg) STATE.as_ptr(),
            options(nostack)
        );
    }
    // From here on no TLB has the old translation.
    cpu::tlbi_vmalle1_all();
    cpu::restore_interrupts(masked);
    changed
}

/// Whether a translation fault at `address` stands for a TLB conflict abort. Called by the exception handler
/// of any CPU.
pub(crate) fn stands_for(address: u64) -> bool {
    match STATE.load(Ordering::Acquire) {
        IDLE => false,
        _ if !covers(START.load(RELAXED), BYTES.load(RELAXED), address) => false,
        // The fault was raised before another CPU mended the entries, unless there still is no translation.
        MENDED => cpu::translate(address).is_ok(),
        _ => true,
    }
}

/// Makes pending entries valid and returns when they are. The exception handler calls it too.
pub(crate) fn mend() {
    let masked = cpu::mask_interrupts();
    while matches!(STATE.load(Ordering::Acquire), ARMING | PENDING | MENDING) {
        let seen: u32;
        // SAFETY: while the state is PENDING the slot shows the entries' table, and software also changes
        // them by exclusives. Accesses the entries through the slot, and the state. DSB: walkers see the
        // stores; ISB: this CPU's walker sees them at once.
        unsafe {
            asm!(
                "2: ldaxr {seen:w}, [{state}]",
                "cmp {seen:w}, #{pending}",
                "b.ne 5f",
                "stxr {failed:w}, {mending:w}, [{state}]",
                "cbnz {failed:w}, 2b",
                "3: ldxr {value}, [{entry}]",
                "cbz {value}, 4f",
                "tbnz {value}, #{present_invalid}, 4f",
                "orr {value}, {value}, #{valid}",
                "stxr {failed:w}, {value}, [{entry}]",
                "cbnz {failed:w}, 3b",
                "4: add {entry}, {entry}, #8",
                "subs {left}, {left}, #1",
                "b.ne 3b",
                "dsb ishst",
                "isb",
                "stlr {mended:w}, [{state}]",
                "5: clrex",
                seen = out(reg) seen,
                failed = out(reg) _,
                value = out(reg) _,
                entry = inout(reg) in_slot(FIRST.load(RELAXED)) => _,
                left = inout(reg) COUNT.load(RELAXED) => _,
                state = in(reg) STATE.as_ptr(),
                mending = in(reg) MENDING,
                mended = in(reg) MENDED,
                pending = const PENDING,
                present_invalid = const Descriptor::PRESENT_INVALID.trailing_zeros(),
                valid = const Descriptor::VALID,
                options(nostack)
            );
        }
        if !matches!(seen, ARMING | MENDING) {
            break;
        }
        cpu::relax();
    }
    cpu::restore_interrupts(masked);
}

/// Changes the meaning of a pending entry, even if it is mended meanwhile: a walker sees it as invalid, or as
/// `change` makes it.
pub(super) fn change(entry: u64, change: impl Fn(Descriptor) -> Descriptor) {
    // SAFETY: an entry of the table that the slot has shown since before the state became ARMING. All
    // accesses to it are atomic.
    let entry = unsafe { AtomicU64::from_ptr(in_slot(entry)) };
    let mut stored = entry.load(RELAXED);
    loop {
        let new = change(meant(Descriptor(stored)));
        let new = if stored & Descriptor::VALID == 0 {
            new.0 & !Descriptor::VALID
        } else {
            new.0
        };
        match entry.compare_exchange_weak(stored, new, Ordering::Release, RELAXED) {
            Ok(_) => break,
            Err(seen) => stored = seen,
        }
    }
    if STATE.load(Ordering::Acquire) != PENDING {
        // The CPU that mended the entries may already have passed this one.
        mend();
        let mended = |stored| Some(meant(Descriptor(stored)).0);
        let _ = entry.fetch_update(Ordering::Release, RELAXED, mended);
    }
}

/// For a test: makes the handler read `address` before it mends anything.
pub(crate) fn set_probe(address: u64) {
    PROBE.store(address, RELAXED);
}

/// Reads the address of [`set_probe`], if one is set.
pub(crate) fn probe() {
    let address = PROBE.load(RELAXED);
    if address != 0 {
        // SAFETY: the test gave an address in the linear map, and the read is meant to fault.
        unsafe { (address as *const u64).read_volatile() };
    }
}
