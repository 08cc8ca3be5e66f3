//! Leaving for the next kernel, and arriving in it.
//!
//! Loading: [`load`](mod@load) makes a [`Loaded`] from files and [`segments`] from those of a program, both by
//! [`assemble`] with pages from [`pages`], on the [`machine`] recorded at boot. This file
//! holds the loaded kernel and the lock for changing it.
//!
//! [`refused`] has the reasons for a refusal; [`messages`] limits how often they are printed.
//!
//! Leaving: [`leave`](mod@leave) takes the steps from the call to the jump. [`verify_tables`] verifies the tables
//! once more, and [`quiesce`] quiesces the devices. Arriving: [`arrive`] reports the handoff note. The device tree,
//! the note, the options and the request to the boot CPU are in `granule_kcore::kexec`.
//!
//! # Loading
//!
//! All that a load takes is owned by values that free it ([`loaded`]). So a refusal at any point leaves
//! nothing behind, and a kernel that was loaded before stays loaded.
//!
//! 1. The machine's facts (RAM, firmware's reservations, the device tree's address) are noted at boot,
//!    because the tree's window is dropped.
//! 2. The next tree is the machine's own with another `/chosen` (`granule_kcore::kexec::next_tree`). Its
//!    length must be known for the places, and does not depend on them.
//! 3. Places are the lowest that fit in free memory, counting blocks of 2 MiB and more. If there is none, or
//!    no memory is left for the rest, they are the lowest in RAM that is not reserved, over this kernel. They
//!    follow the arm64 boot protocol (`granule_kexec::place`): an image without the flag that it may be
//!    anywhere goes as near to RAM's first byte as possible; the initramfs is within 32 GiB of the image,
//!    counted from a multiple of 1 GiB; the tree has at most 2 MiB and a 2 MiB block of its own if there is
//!    one, and never a block with memory that must not be mapped.
//! 4. Every free page of every place is taken first ([`pages`]). A segment's bytes keep these pages, bytes
//!    without such a page go elsewhere. If the bytes are to be copied anyway, the place's pages are only
//!    held, and freed at the end. Memory inside a place that others free meanwhile is put aside until all is
//!    taken. So no later page can be in the way, and no page is searched for twice.
//! 5. Bytes are copied, followed by zeros, and digested. Image and tree are cleaned now where they are in
//!    place. If all memory behind the image's bytes is free, it is kept and cleaned too.
//! 6. The list and the tables are made and sealed. The list's pages are known apart from the list, so a list
//!    that was written over loses none.
//!
//! `kexec_load` has no tree to make and no places to choose: its steps are 4 to 6, with all memory of a segment
//! written and cleaned.
//!
//! Cleaning follows CTR_EL0 of the CPU that loads. Machines whose CPUs differ in the smallest line, or in
//! whether instruction fetches need maintenance (IDC, DIC), are not supported.
//!
//! # Leaving
//!
//! The boot CPU leaves from its own loop, with no task on any CPU and no lock held. Each step is undone if a
//! later one fails:
//!
//! 1. Freeze: no CPU takes up a task; running tasks leave at the end of their call or time slice (undone by
//!    `sched::thaw`).
//! 2. Verify: the list's digest; the transitional tables, walked and compared with the list, the places and
//!    the list's pages; the copy of the relocation code.
//! 3. CPUs off: each CPU quiesces its part of the interrupt controller and calls CPU_OFF from its
//!    own loop; AFFINITY_INFO is polled until the CPU is off, one CPU after the other (undone by
//!    the way of the first start). The kernel refuses to leave while a CPU waits in its image
//!    (parked, given up).
//! 4. Quiesce: timer and PMU; of GICv2 and v3 all enables, pending and active states, groups and the CPU
//!    interface, read back (undone by setting the controller up again; instruction counting stays off).
//! 5. Programs' registers: TCR and TTBR0 as before user space, the list sealed for them.
//! 6. Note: totals, digests and counts in a page that both kernels keep, cleaned; the record ends; a trace
//!    gets the coming steps ([`trace::leaving`](crate::trace::leaving)).
//! 7. Jump: the counter is stored last, then `relocate::leave`.
//!
//! The next kernel finds the note by `/chosen/granule,kexec-note`. With `granule.kexec=digest` it digests
//! tree, initramfs and its own text and constants. The note's page, a trace's memory and the memory of
//! `granule.persist=` are in the tree's memory reservations, so that a Linux keeps off them too.

pub(crate) mod arrive;
mod assemble;
pub(crate) mod crash;
pub(crate) mod hook;
pub(crate) mod leave;
pub(crate) mod load;
pub(crate) mod loaded;
pub(crate) mod machine;
pub(crate) mod messages;
pub(crate) mod pages;
mod quiesce;
pub(crate) mod refused;
mod seeds;
mod segments;
pub(crate) mod syscall;
pub(crate) mod verify_tables;

use crate::dev::console::print;
use crate::lock::Lock;
use core::sync::atomic::{AtomicBool, Ordering};
use loaded::Loaded;
use messages::Subject;
use refused::Refused;

static LOADED: Lock<Option<Loaded>> = Lock::new(None);
static BUSY: AtomicBool = AtomicBool::new(false);

/// The exclusive right to load, unload or leave.
#[derive(Debug)]
pub(crate) struct Busy(());

impl Busy {
    /// Takes the right; `None` while another caller has it. A load may take seconds.
    pub(crate) fn take() -> Option<Self> {
        // Build the value only after the swap succeeds: dropping a spare value would release the
        // other caller's right.
        (!BUSY.swap(true, Ordering::Acquire)).then(|| Self(()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// Loads a next kernel in place of the loaded one. On refusal the loaded one stays.
pub(crate) fn load(busy: &Busy, request: &Request<'_>) -> Result<(), Refused> {
    let new = load::load(request)?;
    keep(busy, new);
    Ok(())
}

/// Keeps a kernel that was loaded, and frees the one before.
fn keep(_busy: &Busy, new: Loaded) {
    messages::say(Subject::Loaded, || {
        print!("granule: kexec: the next kernel is loaded\n{new}");
    });
    let old = LOADED.with(|slot| slot.replace(new));
    drop(old);
}

/// Frees the loaded kernel, if any.
pub(crate) fn unload(_busy: &Busy) {
    let old = LOADED.with(Option::take);
    drop(old);
}

/// Calls `work` with the loaded kernel, if any. The slot is empty meanwhile: `work` waits for other
/// CPUs, so it runs outside the lock. The waiting caller holds `Busy`.
fn begin<R>(work: impl FnOnce(&mut Loaded) -> R) -> Option<R> {
    let mut loaded = LOADED.with(Option::take)?;
    let result = work(&mut loaded);
    let old = LOADED.with(|slot| slot.replace(loaded));
    drop(old);
    Some(result)
}

/// Calls `look` with the loaded kernel.
pub(crate) fn with_loaded<R>(look: impl FnOnce(Option<&Loaded>) -> R) -> R {
    LOADED.with(|slot| look(slot.as_ref()))
}
/// A request to load a next kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The content of the image file.
    pub(crate) kernel: &'a [u8],
    /// The initramfs, if any.
    pub(crate) initrd: Option<&'a [u8]>,
    /// The command line, without a NUL.
    pub(crate) command_line: &'a [u8],
    /// Load no segment directly into its place: for measurements and tests.
    pub(crate) copy: bool,
}
