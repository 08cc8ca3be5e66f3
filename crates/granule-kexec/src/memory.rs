//! The trait that accesses the words of the list.

#![allow(unsafe_code, reason = "a trait whose callers keep its rules")]

/// Access to the list's memory, a word at a time, by physical address.
///
/// Pages are found again by the words that were stored in them, so an implementation vouches for its
/// loads:
///
/// ```compile_fail,E0200
/// use granule_kexec::ListMemory;
///
/// struct Anything;
///
/// impl ListMemory for Anything {
///     fn load(&self, _address: u64) -> Option<u64> {
///         Some(0x4000_0000)
///     }
///
///     unsafe fn store(&mut self, _address: u64, _word: u64) {}
/// }
/// ```
///
/// # Safety
///
/// [`store`](Self::store) must store exactly the named word. [`load`](Self::load) must be possible at
/// any address, and must return the word of a page that this memory reaches as it was stored last.
pub unsafe trait ListMemory {
    /// The word at an address, a multiple of 8. `None` where this kernel has no memory, which only
    /// an overwritten list leads to.
    fn load(&self, address: u64) -> Option<u64>;

    /// Stores a word at an address, a multiple of 8.
    ///
    /// ```compile_fail,E0133
    /// use granule_kexec::ListMemory;
    ///
    /// fn poke(memory: &mut impl ListMemory, address: u64) {
    ///     memory.store(address, 0);
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// This memory reaches the page of the word. The caller owns the page: it came from an allocator,
    /// and nothing else uses it.
    unsafe fn store(&mut self, address: u64, word: u64);
}
