//! The relocation code: an assembly island, built only for arm64 without an operating system.
//!
//! The assembly is in `relocate.s`, a file of its own, because a test reads it too: the test
//! executes it one instruction at a time, on its own memory and registers, and compares every step
//! with [`steps`](super::steps). The code makes no decisions; [`leave`] states what must hold
//! before it runs.

#![allow(unsafe_code, reason = "the relocation code, and the jump to it")]

use super::{header, layout};
use core::arch::global_asm;
use core::mem::offset_of;
use granule::arch::VirtualAddress;
use header::ListHeader;

global_asm!(
    include_str!("relocate.s"),
    flags = const offset_of!(ListHeader, flags),
    distance = const offset_of!(ListHeader, distance),
    ttbr1 = const offset_of!(ListHeader, ttbr1),
    entry = const offset_of!(ListHeader, entry),
    code = const offset_of!(ListHeader, code),
    tcr = const offset_of!(ListHeader, tcr),
    sctlr_el2 = const offset_of!(ListHeader, sctlr_el2),
    epd0 = const layout::EPD0,
    epd1 = const layout::EPD1,
    uncached_bit = const layout::UNCACHED_BIT,
    el2_bit = const layout::EL2_BIT,
    set_vectors = const layout::SET_VECTORS,
    copy = const layout::COPY,
    copy_bit = const layout::COPY_BIT,
    clean_bit = const layout::CLEAN_BIT,
    link_bit = const layout::LINK_BIT,
    most_line = const layout::MOST_LINE,
    start = const layout::START,
    code_bytes = const layout::CODE_BYTES,
);

unsafe extern "C" {
    static granule_kexec_code: [u8; layout::CODE_BYTES];
    fn granule_kexec_leave(header: u64) -> !;
}

/// The relocation code as bytes, to be copied to the start of a page of its own. Only the copy is
/// ever executed.
#[must_use]
pub fn code() -> &'static [u8; layout::CODE_BYTES] {
    // SAFETY: the assembly above, which is private to this file, defines a read-only section of exactly
    // so many bytes.
    unsafe { &granule_kexec_code }
}

/// Leaves this kernel: carries out the list at `header` and starts the next kernel.
///
/// # Safety
///
/// * No other CPU runs, no device writes to memory, and no interrupt or debug exception may come:
///   exceptions are masked here and stay masked.
/// * `header` is the linear-map address of the list's first page. The list was
///   [sealed](super::RelocationList::seal), and [verified](fn@super::verify) since.
/// * Its TTBR0 and TTBR1 are those of a [`Transition`](super::Transition) whose linear map has the
///   same distance, that was not [freed](super::free), and that was built in an environment which
///   issues barriers on this CPU. The list's pages were not freed either.
/// * Its TCR is [`Transition::tcr`](super::Transition::tcr) of the current TCR. This CPU runs at EL1, or at
///   EL2 with E2H and TGE.
/// * [`code`] was copied to the page that the identity map shows. The page was then cleaned to the
///   point of coherency, and after that invalidated in the instruction caches.
/// * For the uncached way, the pages of the list were cleaned to the point of coherency.
/// * With [`Way::el2`](super::Way::el2), the vectors of EL2 handle hypervisor call 0: it installs
///   the vectors whose address is in x1.
pub unsafe fn leave(header: VirtualAddress) -> ! {
    // SAFETY: the caller keeps the conditions of `leave`.
    unsafe { granule_kexec_leave(header.0) }
}
