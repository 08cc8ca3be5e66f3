//! A macro that forwards methods of the three traits to a wrapped value.
//!
//! A wrapper changes some methods and forwards the rest. The macro states each signature once, so a new
//! method or argument needs no change in the wrappers. A wrapper's own behaviour is in the wrapper's file.

/// Writes methods of [`TableMemory`](crate::table::TableMemory),
/// [`TableAllocator`](crate::table::TableAllocator) and
/// [`TlbOps`](crate::table::TlbOps) that call the same method of a field.
///
/// Invoke it inside an `impl` of one of these traits, with the field and the names of the methods:
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
///     forward!(self.0: reserve free);
///
///     fn allocate(&mut self, _most: usize) -> Option<TableRun> {
///         self.0.allocate(1)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($self:ident.$field:tt: $($method:ident)+) => {
        $($crate::forward!(@$method $self $field);)+
    };
    (@load $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn load(
            &$self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
        ) -> $crate::arch::Descriptor {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.load(table, index) }
        }
    };
    (@find_mapped $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn find_mapped(
            &$self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
        ) -> Option<usize> {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.find_mapped(table, first, count) }
        }
    };
    (@store $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn store(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
            descriptor: $crate::arch::Descriptor,
            visibility: $crate::table::Visibility,
        ) {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.store(table, index, descriptor, visibility) }
        }
    };
    (@fill $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn fill(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            descriptor: $crate::arch::Descriptor,
            step: u64,
            visibility: $crate::table::Visibility,
        ) {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.fill(table, first, count, descriptor, step, visibility) }
        }
    };
    (@exchange $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn exchange(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            index: usize,
            descriptor: $crate::arch::Descriptor,
            visibility: $crate::table::Visibility,
        ) -> $crate::arch::Descriptor {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.exchange(table, index, descriptor, visibility) }
        }
    };
    (@update $self:ident $field:tt) => {
        #[inline(always)]
        unsafe fn update(
            &mut $self,
            table: $crate::arch::PhysicalAddress,
            first: usize,
            count: usize,
            change: $crate::table::BitChange,
            visibility: $crate::table::Visibility,
        ) -> usize {
            // SAFETY: the caller promises what the wrapped method requires.
            unsafe { $self.$field.update(table, first, count, change, visibility) }
        }
    };
    (@reserve $self:ident $field:tt) => {
        #[inline(always)]
        fn reserve(&mut $self, tables: usize) -> bool {
            $self.$field.reserve(tables)
        }
    };
    (@allocate $self:ident $field:tt) => {
        #[inline(always)]
        fn allocate(&mut $self, most: usize) -> Option<$crate::table::TableRun> {
            $self.$field.allocate(most)
        }
    };
    (@free $self:ident $field:tt) => {
        #[inline(always)]
        fn free(&mut $self, table: $crate::table::FreedTable) {
            $self.$field.free(table);
        }
    };
    (@capabilities $self:ident $field:tt) => {
        #[inline(always)]
        fn capabilities(&$self) -> &$crate::arch::tlbi::TlbCapabilities {
            $self.$field.capabilities()
        }
    };
    (@tlbi $self:ident $field:tt) => {
        #[inline(always)]
        fn tlbi(&mut $self, op: $crate::arch::tlbi::TlbiOp) {
            $self.$field.tlbi(op);
        }
    };
    // DSB ISHST, DSB ISH and ISB.
    (@$barrier:ident $self:ident $field:tt) => {
        #[inline(always)]
        fn $barrier(&mut $self) {
            $self.$field.$barrier();
        }
    };
}
