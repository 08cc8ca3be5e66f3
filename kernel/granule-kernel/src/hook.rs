//! Hooks: places where the test image changes what the kernel does.
//!
//! The owner of the place defines a trait and one static [`Hook`] of it. `selftest` implements the trait and
//! installs it, in the test image only. In every other image a hook is a zero-sized value whose [`Hook::get`]
//! is the constant `None`, so the compiler removes the branch. Nothing else lives here.

/// A place for one implementation of the trait `T`.
pub(crate) struct Hook<T: ?Sized + Sync + 'static> {
    #[cfg(feature = "test-image")]
    installed: spin::Once<&'static T>,
    #[cfg(not(feature = "test-image"))]
    installed: core::marker::PhantomData<fn() -> &'static T>,
}

impl<T: ?Sized + Sync + 'static> Hook<T> {
    pub(crate) const fn new() -> Self {
        Self {
            #[cfg(feature = "test-image")]
            installed: spin::Once::new(),
            #[cfg(not(feature = "test-image"))]
            installed: core::marker::PhantomData,
        }
    }

    /// The installed implementation, if any.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        #[cfg(feature = "test-image")]
        let installed = self.installed.get().copied();
        #[cfg(not(feature = "test-image"))]
        let installed = None;
        installed
    }

    /// Installs `hook`. Only the first call has an effect.
    #[cfg(feature = "test-image")]
    pub(crate) fn install(&self, hook: &'static T) {
        self.installed.call_once(|| hook);
    }
}
