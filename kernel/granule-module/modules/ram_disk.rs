//! A disk of 1 MiB in memory of the vmalloc area, which programs read and write as `/dev/ram0`.

#![cfg_attr(target_os = "none", no_std)]
#![allow(unsafe_code, reason = "calls of the kernel, and its calls")]

use core::sync::atomic::{AtomicPtr, Ordering};
use granule_module::exports::{granule_add_disk, granule_print, granule_vfree, granule_vmalloc};
use granule_module::{Disk, module};

module!("ram_disk", super::init, super::exit);

const BYTES: usize = 1 << 20;
const ENOMEM: i32 = -12;

/// The disk's content, from `init` to `exit`.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

static DISK: Disk = Disk {
    bytes: BYTES as u64,
    transfer,
};

fn init() -> i32 {
    let memory = granule_vmalloc(BYTES);
    if memory.is_null() {
        return ENOMEM;
    }
    MEMORY.store(memory, Ordering::Relaxed);
    // SAFETY: the function is part of the module, and uses memory that `exit` frees.
    let added = unsafe { granule_add_disk(&raw const DISK) };
    if added != 0 {
        exit();
        return added;
    }
    let text = "a disk of 1 MiB is /dev/ram0";
    // SAFETY: the text's bytes.
    unsafe { granule_print(text.as_ptr(), text.len()) };
    0
}

fn exit() {
    let memory = MEMORY.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: `init` allocated it, and no call of `transfer` is left.
    unsafe { granule_vfree(memory) };
}

/// See [`Disk::transfer`].
unsafe extern "C" fn transfer(at: u64, memory: *mut u8, count: usize, writes: u32) {
    let disk = MEMORY.load(Ordering::Relaxed);
    // SAFETY: the kernel calls this with a range of the disk, and memory of its own for as many bytes.
    unsafe {
        let place = disk.add(at as usize);
        if writes == 0 {
            memory.copy_from_nonoverlapping(place, count);
        } else {
            place.copy_from_nonoverlapping(memory, count);
        }
    }
}
