//! Barriers, one function for each. They decide nothing: `table::flush` has their order.

#![allow(unsafe_code, reason = "barrier instructions")]

use core::arch::asm;

/// Defines a function that issues one instruction without operand.
macro_rules! bare {
    ($(#[$doc:meta])* $vis:vis $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name() {
            // SAFETY: a barrier only orders the accesses around it. Without the `nomem` option the
            // compiler moves no memory access across it either.
            unsafe { asm!($text, options(nostack, preserves_flags)) }
        }
    };
}

bare!(
    /// DSB ISHST: all CPUs and their walkers see the stores before it.
    pub dsb_ishst, "dsb ishst"
);
bare!(
    /// DSB ISH: completes TLBIs and accesses before it for all CPUs.
    pub(super) dsb_ish, "dsb ish"
);
bare!(
    /// DSB NSH: completes local TLBIs.
    pub dsb_nsh, "dsb nsh"
);
bare!(
    /// DSB SY: completes cache maintenance to the point of coherency.
    pub dsb_sy, "dsb sy"
);
bare!(
    /// ISB: later instructions are fetched and translated again.
    pub isb, "isb"
);
