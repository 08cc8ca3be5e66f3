//! The system calls that load and unload modules, with Linux's numbers and errors.

#![allow(unsafe_code, reason = "the memory of a copy")]

use super::{Refusal, load, unload, unload_all};
use crate::arch::cpu;
use crate::dev::console::println;
use crate::lock::Lock;
use crate::mm::vmalloc::Area;
use crate::task::modules::Modules;
use crate::task::next_kernel::{Arguments, CallResult};
use crate::task::process_table;
use crate::task::task_table::Current;
use granule_kcore::rate_limit::RateLimit;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Env;
use granule_linux_abi::files::open::What;

/// The most bytes of the name in a call, its NUL included.
const MOST_NAME: usize = 64;

/// The functions by which user space loads modules.
pub(crate) const MODULES: Modules = Modules {
    init,
    finit,
    delete,
    forget: unload_all,
};

/// Prints why a call was refused, unless such lines come too often.
fn refuse(why: &Refusal<'_>) -> Errno {
    static LIMIT: Lock<RateLimit> = Lock::new(RateLimit::NEW);

    let now = cpu::counter_now();
    if let Some(permit) = LIMIT.with(|limit| limit.take(now, cpu::cntfrq_el0())) {
        if permit.left_out > 0 {
            println!("granule: module: {} lines were left out", permit.left_out);
        }
        println!("granule: module refused: {why}");
    }
    why.errno()
}

/// Loads what was read; `parameters` is the address of a text that must be empty.
fn load_from(current: &mut Current<'_>, file: &[u8], parameters: u64) -> CallResult {
    let mut first = [0];
    if current.read(parameters, &mut first).is_err() {
        return Err(refuse(&Refusal::Address(parameters)));
    }
    if first != [0] {
        return Err(refuse(&Refusal::Parameters));
    }
    load(file).map_err(|why| refuse(&why))?;
    Ok(0)
}

/// `init_module`: loads from the program's memory.
fn init(current: &mut Current<'_>, [at, bytes, parameters, ..]: Arguments) -> CallResult {
    let mut copy = Area::new(bytes).ok_or_else(|| refuse(&Refusal::Memory(bytes)))?;
    // SAFETY: the area is new, and its memory is used here alone.
    let memory = unsafe { copy.memory() };
    let memory = memory.get_mut(..bytes as usize).unwrap_or_default();
    if current.read(at, memory).is_err() {
        return Err(refuse(&Refusal::Address(at)));
    }
    load_from(current, memory, parameters)
}

/// `finit_module`: loads an open file of the initramfs.
fn finit(current: &mut Current<'_>, [descriptor, parameters, flags, ..]: Arguments) -> CallResult {
    if flags as u32 != 0 {
        return Err(refuse(&Refusal::Flags(flags)));
    }
    let place = current.task.place();
    let content = process_table::with(|processes| {
        let open = processes.get(place)?.descriptors.get(descriptor as u32)?;
        let file = processes.files.get(open)?;
        match file.what {
            What::File(node) if file.may_read() => Ok(processes.files.tree.content(node)),
            _ => Err(Errno::EBADF),
        }
    });
    let content = content.map_err(|_| refuse(&Refusal::Descriptor(descriptor)))?;
    load_from(current, content, parameters)
}

/// `delete_module`. The flags change nothing: a module in use is never unloaded, and nobody waits for it.
fn delete(current: &mut Current<'_>, [at, ..]: Arguments) -> CallResult {
    let mut name = [0; MOST_NAME];
    let mut length = 0;
    for byte in &mut name {
        let from = at.wrapping_add(length as u64);
        if current.read(from, core::slice::from_mut(byte)).is_err() {
            return Err(refuse(&Refusal::Address(from)));
        }
        if *byte == 0 {
            break;
        }
        length += 1;
    }
    let name = name.get(..length).unwrap_or_default();
    unload(name).map_err(|why| refuse(&why))?;
    Ok(0)
}
