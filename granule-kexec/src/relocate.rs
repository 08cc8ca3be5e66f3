//! The relocation code: an assembly island, for arm64 without an operating system only.
//!
//! The text is in `relocate.s`, a file of its own so that a test reads it too: it is executed there
//! one instruction at a time, on memory and registers of the test's, and compared with
//! [`steps`](super::steps) step by step. Nothing here decides; what must be true before is said at
//! [`leave`].

use super::{header, layout};
use core::arch::global_asm;
use core::mem::offset_of;
use granule::arch::VirtualAddress;
use header::Header;

global_asm!(
    include_str!("relocate.s"),
    flags = const offset_of!(Header, flags),
    distance = const offset_of!(Header, distance),
    ttbr1 = const offset_of!(Header, ttbr1),
    entry = const offset_of!(Header, entry),
    code = const offset_of!(Header, code),
    tcr = const offset_of!(Header, tcr),
    sctlr_el2 = const offset_of!(Header, sctlr_el2),
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

/// The code that is to be copied to a page of its own, from the page's first byte on. It is a copy
/// that runs; here it is data.
#[must_use]
pub fn code() -> &'static [u8; layout::CODE_BYTES] {
    // SAFETY: the assembly above defines exactly so many bytes, which nobody writes.
    unsafe { &granule_kexec_code }
}

/// Leaves this kernel: what the list at `header` says is done, and the next one runs.
///
/// # Safety
///
/// * No other CPU runs, no device writes to memory, no interrupt and no debug exception is to come:
///   exceptions are masked here, and stay so.
/// * `header` is where the linear map shows the list's first page, and the list was
///   [sealed](super::List::seal) and [verified](fn@super::verify) since.
/// * Its TTBR0 and TTBR1 are those of a [`Transition`](super::Transition) whose linear map has the
///   same distance, TCR is [`Transition::tcr`](super::Transition::tcr) of what TCR is now, and this
///   CPU runs at EL1, or at EL2 with E2H and TGE.
/// * [`code`] is copied to the page that the identity map shows, which was cleaned to the point of
///   coherency and invalidated in the instruction caches after that.
/// * For the uncached way the pages of the list were cleaned to the point of coherency.
/// * With [`Way::el2`](super::Way::el2) the vectors of EL2 take hypervisor call 0 with the address
///   of others in x1.
pub unsafe fn leave(header: VirtualAddress) -> ! {
    // SAFETY: the caller's promise.
    unsafe { granule_kexec_leave(header.0) }
}
