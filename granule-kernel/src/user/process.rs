//! Makes processes by fork, and ends them.

use super::hook::TASKS;
use super::memory::AddressSpace;
use super::owned::Boxed;
use super::sched;
use super::switch::{FpState, load_fp, save_fp};
use super::task::builder::{NotBegun, TaskBuilder};
use super::task::{self, Current, Own, Task};
use super::{process_table, registers};
use core::sync::atomic::Ordering;
use granule::space::SpaceError;
use granule_linux_abi::abi::Errno;

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
        hook.forks(parent, builder.task());
    }
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let memory = if clone.vfork {
        space.share()
    } else {
        space.with(|tables| tables.fork()).map_err(out_of_memory)?
    };
    let pid = builder.task().pid();
    process_table::with(|processes| processes.fork(parent.place(), builder.task().place()))?;
    if let Some(address) = clone.child_tid {
        memory.write_value(address, &pid)?;
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
        memory: Some(memory),
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
    sched::enqueue(child);
    if clone.vfork {
        // Parent and child share one stack, so only the parent's own end may cut this wait short.
        let place = parent.place();
        let killed = || {
            process_table::with(|processes| {
                let process = processes.get(place);
                process.is_ok_and(|process| process.signals.is_killed())
            })
        };
        let back = || (!task::is_in_vfork(pid) || killed()).then_some(());
        let _ = sched::sleep_until(parent, back);
        // The killer may not have set this yet; without it the parent would return to EL0.
        parent.notified.store(true, Ordering::Release);
    }
    Ok(Some(pid))
}

/// The error number when an address space cannot be changed or copied.
pub(crate) fn out_of_memory(error: SpaceError) -> Errno {
    match error {
        SpaceError::NotMapped { .. } | SpaceError::OutOfFrames { .. } => Errno::ENOMEM,
        SpaceError::AreasFull { .. } => Errno::ENOMEM,
        SpaceError::Occupied { .. } => Errno::EEXIST,
        SpaceError::Denied { .. } => Errno::EACCES,
        SpaceError::Tables(granule::table::TableError::OutOfTables { .. }) => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}

/// Ends the process with this status.
pub(crate) fn end(current: &mut Current<'_>, status: u32) -> ! {
    let task = current.task;
    process_table::ended(task);
    give_up_memory(current);
    while process_table::tell_parent(&mut || task::end(task, status)) {}
    if task.pid() == task::INIT {
        end_all();
    }
    sched::end(task)
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
    super::memory::leave();
    drop(space);
    end_vfork(task);
}

/// Ends the child's use of its `vfork` parent's memory and wakes the parent.
pub(super) fn end_vfork(task: &Task) {
    if let Some(parent) = task::end_vfork(task) {
        sched::wake(parent);
    }
}

/// Kills every task.
fn end_all() {
    task::close();
    for task in task::alive() {
        task.set_killed(task::KILLED);
        sched::interrupt(task);
    }
}

/// Moves the process to another space and frees the old one.
pub(super) fn change_memory(current: &mut Current<'_>, space: AddressSpace) {
    let masked = crate::arch::cpu::mask_interrupts();
    let reference = space.reference();
    let old = current.set_memory(Some(space));
    // SAFETY: the process keeps the space, and the CPU leaves it when the process stops running.
    unsafe { super::memory::enter(reference) };
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
