//! Hooks: places where the test image changes what the kernel does.
//!
//! The owner of the place defines a structure of functions and one static [`Hook`] of it. `selftest` fills and installs
//! it, in the test image only. In every other image a hook is a zero-sized value whose [`Hook::get`]
//! is the constant `None`, so the compiler removes the branch. The hooks themselves do not live here.
//!
//! There are two images. `Image` is shipped and measured. `Image-test` (cargo feature `test-image`) is the
//! same kernel with self-tests, deliberate failures and fault injection. One image with all of it would have
//! unused code in every shipped kernel, a command line that could break it, and imports from the lowest parts
//! of the kernel to its tests. That the tested code is the shipped code is shown otherwise: the boot matrix
//! runs on both images, the checks of MMU-off code and of entry code read both ELF files, and tests without
//! words of the test image boot `Image`.
//!
//! Entry points that only self-tests call stand beside the private parts that they need, under `cfg(feature =
//! "test-image")`. A CPU with its MMU off can call no hook: the request of `arm64.fake_cpu=` is data in its
//! command (`handover::mailbox::Disguise`), of size zero in `Image`.

/// A place for one `T`: a structure of functions, or an implementation of a trait.
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

    /// The installed value, if any.
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
