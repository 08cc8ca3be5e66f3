//! A macro that forwards methods of the three traits to a wrapped value.
//!
//! A wrapper changes some methods and forwards the rest. The macro states each signature once, so a
//! new method or argument needs no change in the wrappers. A wrapper's own behaviour is in the
//! wrapper's file.

/// Writes methods of [`TableMemory`](crate::table::TableMemory),
/// [`TableAllocator`](crate::table::TableAllocator) and
/// [`TlbOps`](crate::table::TlbOps) that call the same method of another value.
///
/// Invoke it inside an `impl` of one of these traits, with the value and the names of the methods:
///
/// ```
/// use granule::arch::PhysicalAddress;
/// use granule::forward;
/// use granule::table::{TableAllocator, TableRun};
///
/// /// Tables one at a time.
/// struct OneByOne<A>(A);
///
/// // SAFETY: each call is handed on.
/// unsafe impl<A: TableAllocator> TableAllocator for OneByOne<A> {
///     forward!(self.0: pages reserve free);
///
///     fn allocate(&mut self, _most: usize) -> Option<TableRun> {
///         self.0.allocate(1)
///     }
/// }
/// ```
///
/// `forward!(*self: …)` forwards to the value behind a reference. Two more forms do something before
/// the call:
///
/// - `forward!(self.0 after { … }: store)` runs the block first. In
///   `after |(_, _, count, ..)| { … }` the pattern names some of the arguments, if all of them are
///   [`Copy`].
/// - `forward!(self.0 unless condition, then self.1: store)` calls the method of `self.1` if the
///   condition is true.
///
/// Its inner rules make no unsafe call in safe code:
///
/// ```compile_fail,E0133
/// use granule::arch::{Descriptor, PhysicalAddress};
/// use granule::table::{TableMemory, Visibility};
///
/// fn store(memory: &mut impl TableMemory, table: PhysicalAddress, index: usize, entry: Descriptor) {
///     let how = Visibility::Live;
///     granule::forward!(@to (memory) store (table, index, entry, how) unsafe)
/// }
/// ```
#[macro_export]
macro_rules! forward {
    (*$self:ident: $($method:ident)+) => {
        $crate::forward!(@each $self (deref) $($method)+);
    };
    ($self:ident $(. $field:tt)+: $($method:ident)+) => {
        $crate::forward!(@each $self (($($field)+)) $($method)+);
    };
    ($self:ident $(. $field:tt)+ after $first:block: $($method:ident)+) => {
        $crate::forward!(@each $self (($($field)+) after $first) $($method)+);
    };
    ($self:ident $(. $field:tt)+ after |$arguments:tt| $first:block: $($method:ident)+) => {
        $crate::forward!(@each $self (($($field)+) after $arguments $first) $($method)+);
    };
    (
        $self:ident $(. $field:tt)+
        unless $condition:expr, then $_self:ident $(. $other:tt)+: $($method:ident)+
    ) => {
        $crate::forward!(@each $self (($($field)+) unless ($condition) ($($other)+)) $($method)+);
    };
    (@each $self:ident $how:tt $($method:ident)+) => {
        $($crate::forward!(@$method $self $how);)+
    };
    (@call $self:ident (($($field:tt)+)) $method:ident $arguments:tt $($unsafe:tt)?) => {
        $crate::forward!(@to ($self $(. $field)+) $method $arguments $($unsafe)?)
    };
    (@call $self:ident (deref) $method:ident $arguments:tt $($unsafe:tt)?) => {
        $crate::forward!(@to ((**$self)) $method $arguments $($unsafe)?)
    };
    (
        @call $self:ident (($($field:tt)+) after $first:block)
        $method:ident $arguments:tt $($unsafe:tt)?
    ) => {{
        $first
        $crate::forward!(@to ($self $(. $field)+) $method $arguments $($unsafe)?)
    }};
    (
        @call $self:ident (($($field:tt)+) after $pattern:tt $first:block)
        $method:ident ($($argument:ident),*) $($unsafe:tt)?
    ) => {{
        let $pattern = ($($argument,)*);
        $first
        $crate::forward!(@to ($self $(. $field)+) $method ($($argument),*) $($unsafe)?)
    }};
    (
        @call $self:ident (($($field:tt)+) unless $condition:tt ($($other:tt)+))
        $method:ident $arguments:tt $($unsafe:tt)?
    ) => {
        if $condition {
            $crate::forward!(@to ($self $(. $other)+) $method $arguments $($unsafe)?)
        } else {
            $crate::forward!(@to ($self $(. $field)+) $method $arguments $($unsafe)?)
        }
    };
    (@to ($($inner:tt)+) $method:ident ($($argument:ident),*)) => {
        $($inner)+.$method($($argument),*)
    };
    // No `unsafe` block: only an unsafe method, whose caller promises what the other value's method
    // requires, may expand this.
    (@to ($($inner:tt)+) $method:ident ($($argument:ident),*) unsafe) => {
        $($inner)+.$method($($argument),*)
    };
    (@load $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn load(
            &$self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
        ) -> $crate::arch::Descriptor {
            $crate::forward!(@call $self $how load (table, index) unsafe)
        }
    };
    (@find_unlike $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn find_unlike(
            &$self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            pattern: $crate::table::BitPattern,
            visibility: $crate::table::Visibility,
        ) -> Option<usize> {
            $crate::forward!(@call $self $how find_unlike (table, first, count, pattern, visibility) unsafe)
        }
    };
    (@store $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn store(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
            descriptor: $crate::arch::Descriptor,
            visibility: $crate::table::Visibility,
        ) {
            $crate::forward!(@call $self $how store (table, index, descriptor, visibility) unsafe)
        }
    };
    (@fill $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn fill(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            descriptor: $crate::arch::Descriptor,
            step: u64,
            visibility: $crate::table::Visibility,
        ) {
            $crate::forward!(@call $self $how fill (table, first, count, descriptor, step, visibility) unsafe)
        }
    };
    (@exchange $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn exchange(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
            descriptor: $crate::arch::Descriptor,
            visibility: $crate::table::Visibility,
        ) -> $crate::arch::Descriptor {
            $crate::forward!(@call $self $how exchange (table, index, descriptor, visibility) unsafe)
        }
    };
    (@update $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn update(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            change: $crate::table::BitChange,
            visibility: $crate::table::Visibility,
        ) -> usize {
            $crate::forward!(@call $self $how update (table, first, count, change, visibility) unsafe)
        }
    };
    (@update_alike $self:ident $how:tt) => {
        #[inline(always)]
        #[allow(unsafe_op_in_unsafe_fn, reason = "hands on what its caller promises")]
        unsafe fn update_alike(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            pattern: $crate::table::BitPattern,
            change: $crate::table::BitChange,
            visibility: $crate::table::Visibility,
        ) -> usize {
            $crate::forward!(
                @call $self $how
                update_alike (table, first, count, pattern, change, visibility) unsafe
            )
        }
    };
    (@pages $self:ident $how:tt) => {
        #[inline(always)]
        fn pages(&$self) -> Option<$crate::table::TablePages> {
            $crate::forward!(@call $self $how pages ())
        }
    };
    (@reserve $self:ident $how:tt) => {
        #[inline(always)]
        fn reserve(&mut $self, tables: usize) -> bool {
            $crate::forward!(@call $self $how reserve (tables))
        }
    };
    (@allocate $self:ident $how:tt) => {
        #[inline(always)]
        fn allocate(&mut $self, most: usize) -> Option<$crate::table::TableRun> {
            $crate::forward!(@call $self $how allocate (most))
        }
    };
    (@allocate_aligned $self:ident $how:tt) => {
        #[inline(always)]
        fn allocate_aligned(&mut $self, count: usize) -> Option<$crate::arch::PhysicalAddress> {
            $crate::forward!(@call $self $how allocate_aligned (count))
        }
    };
    (@free $self:ident $how:tt) => {
        #[inline(always)]
        fn free(&mut $self, table: $crate::table::FreedTable) {
            $crate::forward!(@call $self $how free (table))
        }
    };
    (@capabilities $self:ident $how:tt) => {
        #[inline(always)]
        fn capabilities(&$self) -> &$crate::arch::tlbi::TlbCapabilities {
            $crate::forward!(@call $self $how capabilities ())
        }
    };
    (@tlbi $self:ident $how:tt) => {
        #[inline(always)]
        fn tlbi(&mut $self, regime: $crate::arch::Regime, op: $crate::arch::tlbi::TlbiOp) {
            $crate::forward!(@call $self $how tlbi (regime, op))
        }
    };
    // DSB ISHST, DSB ISH and ISB.
    (@$barrier:ident $self:ident $how:tt) => {
        #[inline(always)]
        fn $barrier(&mut $self) {
            $crate::forward!(@call $self $how $barrier ())
        }
    };
}
