//! Makes processes by fork, and ends them.

#![allow(unsafe_code, reason = "EL0's registers of the calling process")]

use super::address_space::{self, AddressSpace};
use super::hook::TASKS;
use super::owned::Boxed;
use super::process_table;
use super::task_table::builder::{NotBegun, TaskBuilder};
use super::task_table::{self, Current, Own, Task};
use crate::sched::switch::{FpState, load_fp, save_fp};
use crate::sched::{self, TaskCalls, registers};
use core::sync::atomic::{AtomicUsize, Ordering};
use granule::space::SpaceError;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::process::Status;

/// The supported parts of a `clone` request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clone {
    /// The child shares the parent's memory, and the parent waits until the child ends or runs another
    /// program.
    pub(crate) vfork: bool,
    /// The child's stack pointer; 0 keeps the parent's.
    pub(crate) stack: u64,
    /// The address, in the child's memory, that gets the child's number.
    pub(crate) child_tid: Option<u64>,
    /// The address that gets a zero when the child ends.
    pub(crate) clear_child_tid: Option<u64>,
}

/// Makes a child that continues where the parent does, with 0 as its result. Returns the child's number.
/// `None` if the parent has to handle a signal first and then repeat the call.
pub(crate) fn fork(current: &mut Current<'_>, clone: Clone) -> Result<Option<u32>, Errno> {
    let parent = current.task;
    process_table::with(|processes| processes.begin_fork(parent.place()));
    let builder = TaskBuilder::new(Some(parent)).ok_or(Errno::EAGAIN)?;
    if let Some(hook) = TASKS.get() {
        (hook.forks)(parent, builder.task());
    }
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let child_memory = if clone.vfork {
        space.share()
    } else {
        space.change(|tables| tables.fork())?
    };
    let pid = builder.task().pid();
    process_table::with(|processes| processes.fork(parent.place(), builder.task().place()))?;
    if let Some(address) = clone.child_tid {
        child_memory.write_value(address, &pid)?;
    }
    let mut frame = current.frame.clone();
    let [result, ..] = &mut frame.x;
    *result = 0;
    if clone.stack != 0 {
        frame.sp = clone.stack;
    }
    let mut fp = Boxed::new(FpState::ZERO).ok_or(Errno::ENOMEM)?;
    // SAFETY: FP does not trap, and the registers hold the parent's state.
    unsafe { save_fp(&raw mut *fp) };
    let own = Own {
        memory: Some(child_memory),
        heap: current.own.heap.clone(),
        clear_child_tid: clone.clear_child_tid.unwrap_or(0),
    };
    let vfork_parent = clone.vfork.then_some(parent);
    let child = match builder.begin(&frame, &fp, registers::thread_pointer(), own, vfork_parent) {
        Ok(child) => child,
        Err(NotBegun::NoMemory) => return Err(Errno::ENOMEM),
        Err(NotBegun::Signal) => return Ok(None),
    };
    drop(fp);
    sched::enqueue(child.place());
    if clone.vfork {
        // Parent and child share one stack, so only the parent's own end may cut this wait short.
        let place = parent.place();
        let killed = || {
            process_table::with(|processes| {
                let process = processes.get(place);
                process.is_ok_and(|process| process.signals.is_killed())
            })
        };
        let back = || (!task_table::is_in_vfork(pid) || killed()).then_some(());
        let _ = parent.sleep_until(back);
        // The killer may not have set this yet; without it the parent would return to EL0.
        parent.notified.store(true, Ordering::Release);
    }
    Ok(Some(pid))
}

/// The error number when an address space cannot be changed or copied.
pub(crate) fn out_of_memory(error: SpaceError) -> Errno {
    match error {
        SpaceError::NotMapped { .. } | SpaceError::OutOfFrames { .. } => Errno::ENOMEM,
        SpaceError::TooManyVmas { .. } | SpaceError::OutOfVmaNodes { .. } => Errno::ENOMEM,
        SpaceError::Occupied { .. } => Errno::EEXIST,
        SpaceError::Denied { .. } => Errno::EACCES,
        SpaceError::Tables(granule::table::TableError::OutOfTables { .. }) => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}

pub(crate) fn end(current: &mut Current<'_>, status: u32) -> ! {
    let task = current.task;
    process_table::ended(task);
    give_up_memory(current);
    while process_table::notify_parent(&mut || task_table::end(task, status)) {}
    if task.pid() == task_table::INIT {
        end_all();
    }
    sched::end(task.place())
}

/// Ends all processes, the first one as if it had exited with 0. The kernel then powers off.
pub(crate) fn power_off(current: &mut Current<'_>) -> ! {
    let status = Status::Exited(0).word();
    if let Some(init) = task_table::place_of(task_table::INIT).and_then(task_table::at) {
        init.set_killed(status);
        sched::interrupt(init.place());
    }
    end(current, status)
}

/// Frees the memory of the process, or returns it to the `vfork` parent that lent it.
fn give_up_memory(current: &mut Current<'_>) {
    let task = current.task;
    if let Some(space) = current.memory()
        && current.own.clear_child_tid != 0
    {
        // The process is ending, so a failure to write is ignored.
        let _ = space.write_value(current.own.clear_child_tid, &0u32);
    }
    current.own.clear_child_tid = 0;
    let space = current.set_memory(None);
    // This CPU must stop walking the tables before they are freed.
    address_space::leave();
    drop(space);
    end_vfork(task);
}

/// Ends the child's use of its `vfork` parent's memory and wakes the parent.
pub(super) fn end_vfork(task: &Task) {
    if let Some(parent) = task_table::end_vfork(task) {
        sched::wake(parent.place());
    }
}

/// Kills every task.
fn end_all() {
    task_table::close();
    for task in task_table::alive() {
        task.set_killed(task_table::KILLED);
        sched::interrupt(task.place());
    }
}

/// Moves the process to another space and frees the old one.
///
/// The old space may have another page size than TCR gives the lower half by now. A TLBI by address without a level
/// does not name the granule, and the low bits of its address count by the granule in use. But a
/// space is freed as a whole, by a TLBI of its ASID, or by range, which names the granule of its tables.
pub(super) fn change_memory(current: &mut Current<'_>, space: AddressSpace) {
    let masked = crate::arch::cpu::mask_interrupts();
    let reference = space.reference();
    let old = current.set_memory(Some(space));
    // SAFETY: the process keeps the space, and the CPU leaves it when the process stops running.
    unsafe { address_space::enter(reference) };
    crate::arch::cpu::restore_interrupts(masked);
    drop(old);
    end_vfork(current.task);
}

/// Sets the registers outside the frame to a program's initial values: FP, SIMD and the thread pointer.
pub(super) fn clear_registers() {
    static ZERO: FpState = FpState::ZERO;
    // SAFETY: FP does not trap, and the registers belong to the process that runs here.
    unsafe { load_fp(&raw const ZERO) };
    registers::set_thread_pointer(0);
}

/// Tasks that are being buried and reported to their parents.
static BURYING: AtomicUsize = AtomicUsize::new(0);

/// The scheduler's calls.
pub(super) const CALLS: TaskCalls = TaskCalls { enter_space, bury };

/// See [`TaskCalls::enter_space`].
unsafe fn enter_space(place: usize) {
    let Some(task) = task_table::at(place) else {
        return;
    };
    task_table::take_up(task);
    // SAFETY: the caller has taken the task from the queue. The task keeps the space, and the caller
    // leaves it before the task is handed on.
    unsafe {
        if let Some(space) = task.space() {
            address_space::enter(space);
        }
    }
}

/// Frees the rest of an ended task and notifies its parent, in one step under the process
/// table's lock.
fn bury(place: usize) {
    let Some(task) = task_table::at(place) else {
        return;
    };
    // Once the parent can reap, all processes may be gone. User space must not be closed while this
    // code still uses shared state.
    BURYING.fetch_add(1, Ordering::SeqCst);
    task_table::free_body(task);
    process_table::notify_parent(&mut || task_table::bury(task));
    BURYING.fetch_sub(1, Ordering::SeqCst);
    if none_left() {
        // The boot CPU waits for the last task.
        sched::wake_boot_cpu();
    }
}

/// Whether no task is left, not even a zombie, and no CPU is burying one.
pub(super) fn none_left() -> bool {
    // The order matters: a task counts as buried before its place is free.
    task_table::none_left() && BURYING.load(Ordering::SeqCst) == 0
}
