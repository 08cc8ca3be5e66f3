//! Allocates and frees small objects, and reports how many of them the guard allocator sampled.

#![cfg_attr(target_os = "none", no_std)]
#![allow(unsafe_code, reason = "calls of the kernel")]

use granule_module::exports::{granule_allocate, granule_free, granule_guard_report};
use granule_module::module;

module!("guard_report", super::init, super::exit);

const OBJECTS: usize = 1000;
const ENOMEM: i32 = -12;

fn init() -> i32 {
    for number in 0..OBJECTS {
        let bytes = 1 + number % 256;
        let object = granule_allocate(bytes);
        if object.is_null() {
            return ENOMEM;
        }
        // SAFETY: the object has so many bytes, and is freed once.
        unsafe {
            object.write_bytes(1, bytes);
            granule_free(object);
        }
    }
    granule_guard_report();
    0
}

fn exit() {}
