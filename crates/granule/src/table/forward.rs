//! A macro that forwards methods of [`TableEnvironment`](crate::table::TableEnvironment) to a wrapped value.
//!
//! A wrapper changes some methods and forwards the rest. The macro states each signature once, so a
//! new method or argument needs no change in the wrappers. A wrapper's own behaviour is in the
//! wrapper's file.

/// Writes methods of [`TableEnvironment`](crate::table::TableEnvironment) that call the same method of
/// another value.
///
/// Invoke it inside an `impl` of the trait, with the value and the names of the methods:
///
/// ```
/// use granule::arch::PhysicalAddress;
/// use granule::forward;
/// use granule::table::{FreedTable, TableEnvironment};
///
/// /// Counts the tables that are freed.
/// struct Frees<E>(E, u64);
///
/// // SAFETY: each call is handed on.
/// unsafe impl<E: TableEnvironment> TableEnvironment for Frees<E> {
///     forward!(self.0: reach allocate pages reserve allocate_run allocate_aligned invalidate capabilities);
///     forward!(self.0: load find_unlike store exchange fill update update_alike);
///
///     fn free(&mut self, table: FreedTable) {
///         self.1 += 1;
///         self.0.free(table);
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
/// use granule::table::{TableEnvironment, Visibility};
///
/// fn store(memory: &mut impl TableEnvironment, table: PhysicalAddress, index: usize, entry: Descriptor) {
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
        fn reserve(&mut $self, tables: usize) -> $crate::table::Reservation {
            $crate::forward!(@call $self $how reserve (tables))
        }
    };
    (@reach $self:ident $how:tt) => {
        #[inline(always)]
        fn reach(&$self, table: $crate::arch::PhysicalAddress) -> *mut u64 {
            $crate::forward!(@call $self $how reach (table))
        }
    };
    (@allocate $self:ident $how:tt) => {
        #[inline(always)]
        fn allocate(&mut $self) -> Option<$crate::arch::PhysicalAddress> {
            $crate::forward!(@call $self $how allocate ())
        }
    };
    (@allocate_run $self:ident $how:tt) => {
        #[inline(always)]
        fn allocate_run(&mut $self, most: usize) -> Option<$crate::table::TableRun> {
            $crate::forward!(@call $self $how allocate_run (most))
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
        fn capabilities(&$self) -> $crate::arch::tlbi::TlbCapabilities {
            $crate::forward!(@call $self $how capabilities ())
        }
    };
    (@invalidate $self:ident $how:tt) => {
        #[inline(always)]
        fn invalidate(&mut $self, instruction: $crate::table::Maintenance) {
            $crate::forward!(@call $self $how invalidate (instruction))
        }
    };
}
