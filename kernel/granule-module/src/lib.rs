//! The interface between the kernel and its modules: what a module declares about itself ([`module!`]), and the
//! functions that the kernel exports ([`exports`]). [`BUILD`] changes with this file, and a kernel refuses a
//! module that was built with another one.
//!
//! A module is one relocatable object file for every page size: it asks for the size by
//! [`granule_page_size`](exports::granule_page_size) where it needs it. It has no dependency but this crate.

#![no_std]

/// The first bytes of a [`Head`].
pub const MAGIC: [u8; 8] = *b"granmod\0";

/// The section with a module's [`Head`].
pub const HEAD_SECTION: &str = ".granule.module";

/// The name of the function that begins a module's work, and of the one that ends it. The first returns 0, or a
/// negative error number.
pub const INIT: &str = "module_init";
/// See [`INIT`].
pub const EXIT: &str = "module_exit";

/// The most bytes of a module's name.
pub const MOST_NAME_BYTES: usize = 24;

/// A hash of the interface: of this file and the version.
pub const BUILD: u64 = hash(
    hash(0xcbf2_9ce4_8422_2325, include_bytes!("lib.rs")),
    env!("CARGO_PKG_VERSION").as_bytes(),
);

/// FNV-1a.
const fn hash(start: u64, bytes: &[u8]) -> u64 {
    let (mut hash, mut rest) = (start, bytes);
    while let Some((byte, behind)) = rest.split_first() {
        hash = (hash ^ *byte as u64).wrapping_mul(0x100_0000_01b3);
        rest = behind;
    }
    hash
}

/// The description of a module in its file, alone in the section [`HEAD_SECTION`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`BUILD`] of the interface that the module was built with.
    pub build: u64,
    /// The name, then zeros.
    pub name: [u8; MOST_NAME_BYTES],
}

impl Head {
    /// The head of a module with this name, of which bytes beyond [`MOST_NAME_BYTES`] are cut off.
    pub const fn new(name: &str) -> Self {
        let (mut into, mut at) = ([0; MOST_NAME_BYTES], 0);
        let mut rest = name.as_bytes();
        while let Some((byte, behind)) = rest.split_first() {
            if at < MOST_NAME_BYTES {
                into[at] = *byte;
            }
            (at, rest) = (at + 1, behind);
        }
        Self {
            magic: MAGIC,
            build: BUILD,
            name: into,
        }
    }
}

/// A disk of a module: a number of bytes, and the function that moves some of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Disk {
    /// Bytes that programs read and write.
    pub bytes: u64,
    /// Copies `count` bytes between the disk's byte `at` and `memory`, which the kernel has checked to lie in the
    /// disk: to the disk if `writes` is not 0. Called by one CPU at a time.
    pub transfer: unsafe extern "C" fn(at: u64, memory: *mut u8, count: usize, writes: u32),
}

/// The functions that the kernel exports. Each can be called from [`INIT`] on until [`EXIT`] has returned.
#[allow(unsafe_code, reason = "declares what the kernel defines")]
pub mod exports {
    use super::Disk;

    unsafe extern "C" {
        /// Prints a line on the console with the module's name before it.
        ///
        /// # Safety
        ///
        /// `text` points to `bytes` bytes.
        pub fn granule_print(text: *const u8, bytes: usize);

        /// Returns the bytes of a page of the kernel.
        pub safe fn granule_page_size() -> u64;

        /// Allocates zeroed memory in whole pages from the vmalloc area; null if there is none.
        pub safe fn granule_vmalloc(bytes: usize) -> *mut u8;

        /// Frees memory of [`granule_vmalloc`].
        ///
        /// # Safety
        ///
        /// Nothing uses the memory any more, and it was not freed yet.
        pub unsafe fn granule_vfree(memory: *mut u8);

        /// Allocates a small object, zeroed and aligned to 8 bytes; null if there is no memory. One of some objects lies
        /// between guard pages (`granule.guard=`).
        pub safe fn granule_allocate(bytes: usize) -> *mut u8;

        /// Frees an object of [`granule_allocate`]; null is ignored.
        ///
        /// # Safety
        ///
        /// Nothing uses the object any more, and it was not freed yet.
        pub unsafe fn granule_free(object: *mut u8);

        /// Prints how many objects lay between guard pages.
        pub safe fn granule_guard_report();

        /// Makes a disk the one that programs find as `/dev/ram0` once the module is loaded. Returns 0, or a
        /// negative error number if there is one already. The disk goes with the module, which is in use while a
        /// program has the disk open.
        ///
        /// # Safety
        ///
        /// The disk's function can be called until [`EXIT`](super::EXIT) is.
        pub unsafe fn granule_add_disk(disk: *const Disk) -> i32;

        /// Ends the kernel with a panic that names the module.
        pub safe fn granule_panic() -> !;
    }
}

/// Names a module and its two functions: `fn() -> i32` and `fn()`.
#[macro_export]
macro_rules! module {
    ($name:literal, $init:path, $exit:path) => {
        #[allow(unsafe_code, reason = "the kernel finds these by name")]
        mod declared {
            #[used]
            #[cfg_attr(target_os = "none", unsafe(link_section = ".granule.module"))]
            static HEAD: $crate::Head = $crate::Head::new($name);

            #[unsafe(no_mangle)]
            extern "C" fn module_init() -> i32 {
                $init()
            }

            #[unsafe(no_mangle)]
            extern "C" fn module_exit() {
                $exit();
            }
        }

        #[cfg(target_os = "none")]
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            $crate::exports::granule_panic()
        }
    };
}
