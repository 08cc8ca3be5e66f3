//! Frees an object and then writes the byte behind it, for the guard allocator to trap with `granule.guard=PAGES,1`.

#![cfg_attr(target_os = "none", no_std)]
#![allow(
    unsafe_code,
    reason = "calls of the kernel, and the write that is wrong on purpose"
)]

use granule_module::exports::{granule_allocate, granule_free};
use granule_module::module;

module!("out_of_bounds", super::init, super::exit);

const BYTES: usize = 24;
const ENOMEM: i32 = -12;

fn init() -> i32 {
    let object = granule_allocate(BYTES);
    if object.is_null() {
        return ENOMEM;
    }
    // SAFETY: not sound, on purpose: nothing owns the byte behind the object. The guard page there traps the write; this
    // module is loaded in tests of that alone.
    unsafe {
        granule_free(object);
        object.add(BYTES).write_volatile(1);
    }
    0
}

fn exit() {}
