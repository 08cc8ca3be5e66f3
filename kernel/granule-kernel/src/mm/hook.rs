//! Two hooks for tests and traces: one over the entries of live tables, one over allocations.
//!
//! [`Hooked`] lies under every operation on the kernel's tables. With no hook installed it only
//! forwards to the environment inside it.

#![allow(unsafe_code, reason = "hands on the promises of the trait")]

use super::environment::BareEnvironment;
use crate::hook::Hook;
use granule::arch::{Descriptor, PhysicalAddress};
use granule::forward;
use granule::table::{BitChange, TableEnvironment, Visibility};

/// Intercepts reads and writes of the entries of live tables. Private tables do not reach the hook.
pub(crate) trait TableHook: Sync {
    /// Whether the hook watches entries now. The other functions are called only while it does.
    fn is_on(&self) -> bool;

    /// The descriptor to report for an entry that was read as `stored`.
    fn as_meant(&self, table: PhysicalAddress, index: usize, stored: Descriptor) -> Descriptor;

    /// Called before `count` entries are read at once.
    fn before_read(&self, table: PhysicalAddress, first: usize, count: usize);

    /// Called before `count` entries are written by `fill` or `exchange`.
    fn before_write(&self, table: PhysicalAddress, first: usize, count: usize);

    /// Replaces [`TableEnvironment::store`].
    ///
    /// # Safety
    ///
    /// As for that function.
    unsafe fn store(
        &self,
        memory: &mut BareEnvironment<'_>,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    );

    /// Replaces [`TableEnvironment::update`].
    ///
    /// # Safety
    ///
    /// As for that function.
    unsafe fn update(
        &self,
        memory: &mut BareEnvironment<'_>,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize;
}

/// The installed hook over table entries.
pub(crate) static TABLES: Hook<dyn TableHook> = Hook::new();

/// The installed hook that makes allocations of frames, of blocks of frames and of reserved tables fail as if memory had
/// run out: whether the next one must.
pub(crate) static ALLOCATIONS: Hook<fn() -> bool> = Hook::new();

/// Whether the hook makes the next allocation fail.
#[inline(always)]
pub(crate) fn refuses_allocation() -> bool {
    ALLOCATIONS.get().is_some_and(|refuses| refuses())
}

/// The environment of the kernel's tables with the hook over table entries in front.
pub(crate) struct Hooked<'a>(pub(super) BareEnvironment<'a>);

#[inline(always)]
fn watching() -> Option<&'static dyn TableHook> {
    TABLES.get().filter(|hook| hook.is_on())
}

#[inline(always)]
fn watching_live(visibility: Visibility) -> Option<&'static dyn TableHook> {
    watching().filter(|_| visibility != Visibility::Private)
}

// SAFETY: every call goes to the inner environment, whose implementer keeps the invariant. The
// caller's promise is passed to the hook with each call, and the hook answers for the entries that
// it changes on purpose.
unsafe impl TableEnvironment for Hooked<'_> {
    // `update_alike` is a search and an update.
    const BY_POINTER: bool = false;

    forward!(self.0: reach allocate free invalidate capabilities reserve allocate_run);
    forward!(self.0 after |(table, first, count, ..)| {
        if let Some(hook) = watching() {
            hook.before_read(table, first, count);
        }
    }: find_unlike);
    forward!(self.0 after |(table, index, _, visibility)| {
        if let Some(hook) = watching_live(visibility) {
            hook.before_write(table, index, 1);
        }
    }: exchange);
    forward!(self.0 after |(table, first, count, _, _, visibility)| {
        if let Some(hook) = watching_live(visibility) {
            hook.before_write(table, first, count);
        }
    }: fill);

    #[inline(always)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: the caller keeps the rules of the inner call.
        let stored = unsafe { self.0.load(table, index) };
        match watching() {
            Some(hook) => hook.as_meant(table, index, stored),
            None => stored,
        }
    }

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe {
            match watching_live(visibility) {
                Some(hook) => hook.store(&mut self.0, table, index, descriptor, visibility),
                None => self.0.store(table, index, descriptor, visibility),
            }
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe {
            match watching_live(visibility) {
                Some(hook) if count > 0 => {
                    hook.update(&mut self.0, table, first, count, change, visibility)
                }
                _ => self.0.update(table, first, count, change, visibility),
            }
        }
    }
}
