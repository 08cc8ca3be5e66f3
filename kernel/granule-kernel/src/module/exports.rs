//! The functions that modules may call, as [`granule_module::exports`] declares them. [`find`] is the whole list.

#![allow(unsafe_code, reason = "functions that modules call")]

use super::{disk, guard, with_name};
use crate::dev::console::println;
use crate::lock::Lock;
use crate::mm::kernel_tables;
use crate::mm::vmalloc::Area;
use crate::task::owned::PageFrames;
use arrayvec::ArrayVec;
use core::arch::asm;
use core::ptr::NonNull;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::owned::Frames;
use granule_module::Disk;

/// The most areas of all modules.
const MOST_AREAS: usize = 16;

/// The areas that modules allocated.
static AREAS: Lock<ArrayVec<Area, MOST_AREAS>> = Lock::new(ArrayVec::new_const());

unsafe extern "C" {
    // The compiler's own, which modules call as any code does.
    fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8;
    fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32;
}

/// Makes the list of the exported functions: those of this file, which must have the types of the interface's.
macro_rules! exported {
    ($name:ident: $($export:ident)*; $($own:ident)*) => {{
        // Never called: only the types matter.
        const _: () = { $(let _ = || [granule_module::exports::$export, $export];)* };

        match $name {
            $(name if name == stringify!($export).as_bytes() => $export as *const (),)*
            $(name if name == stringify!($own).as_bytes() => $own as *const (),)*
            _ => return None,
        }
    }};
}

/// The address of an exported function.
pub(super) fn find(name: &[u8]) -> Option<u64> {
    let function = exported!(name:
        granule_print
        granule_page_size
        granule_vmalloc
        granule_vfree
        granule_allocate
        granule_free
        granule_guard_report
        granule_add_disk
        granule_panic;
        memcpy memmove memset memcmp
    );
    Some(function.addr() as u64)
}

unsafe extern "C" fn granule_print(text: *const u8, bytes: usize) {
    // SAFETY: the module promises so many bytes.
    let text = unsafe { core::slice::from_raw_parts(text, bytes) };
    // A module's texts lie in the module.
    with_name(text.as_ptr().addr() as u64, |name, _| {
        println!("granule: {name}: {}", text.escape_ascii());
    });
}

extern "C" fn granule_page_size() -> u64 {
    kernel_tables::kernel().map_or(0, kernel_tables::Kernel::page)
}

extern "C" fn granule_vmalloc(bytes: usize) -> *mut u8 {
    let area = Area::new(bytes as u64);
    let start = area.and_then(|area| {
        let start = area.start();
        // Dropped outside of the lock.
        let left = AREAS.with(|areas| areas.try_push(area));
        left.ok().map(|()| start.0)
    });
    core::ptr::with_exposed_provenance_mut(start.unwrap_or(0) as usize)
}

unsafe extern "C" fn granule_vfree(memory: *mut u8) {
    let area = AREAS.with(|areas| {
        let mut all = areas.iter();
        let number = all.position(|area| area.start().0 == memory.addr() as u64)?;
        Some(areas.remove(number))
    });
    drop(area);
}

/// The address in the module to which an exported function returns: of the frame record that each function of the
/// kernel has, as the target's flags force.
macro_rules! caller {
    () => {{
        let caller: u64;
        // SAFETY: x29 points to the frame record of the function that this is part of.
        unsafe { asm!("ldr {}, [x29, #8]", out(reg) caller, options(nostack, readonly)) };
        caller
    }};
}

/// Bytes before an object that is not sampled; the first eight have the size of the whole.
const HEAD: usize = 16;

#[inline(never)]
extern "C" fn granule_allocate(bytes: usize) -> *mut u8 {
    if let Some(object) = guard::allocate(bytes as u64, caller!()) {
        return core::ptr::with_exposed_provenance_mut(object as usize);
    }
    let whole = bytes.saturating_add(HEAD);
    let Some(memory) = PageFrames::allocate(whole) else {
        return core::ptr::null_mut();
    };
    // SAFETY: the memory was just allocated, has so many bytes and is aligned to more than a word.
    unsafe {
        memory.write_bytes(0, whole);
        memory.cast::<usize>().write(whole);
        memory.as_ptr().add(HEAD)
    }
}

#[inline(never)]
unsafe extern "C" fn granule_free(object: *mut u8) {
    if object.is_null() || guard::free(object.addr() as u64, caller!()) {
        return;
    }
    // SAFETY: the module gives back what `granule_allocate` returned, which has its size before it.
    unsafe {
        let memory = object.sub(HEAD);
        let whole = memory.cast::<usize>().read();
        if let Some(memory) = NonNull::new(memory) {
            PageFrames::free(memory, whole);
        }
    }
}

extern "C" fn granule_guard_report() {
    guard::report();
}

unsafe extern "C" fn granule_add_disk(disk: *const Disk) -> i32 {
    // SAFETY: the module promises a disk there.
    let added = disk::add(unsafe { *disk });
    if added {
        0
    } else {
        Errno::EBUSY.as_result() as i32
    }
}

extern "C" fn granule_panic() -> ! {
    panic!("a module panicked");
}
