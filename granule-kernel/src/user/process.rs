//! Processes: made by a copy of another one, ended, and asked how they ended.

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

/// What `clone` is asked for, of what there is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clone {
    /// The child has the parent's memory, not a copy, and the parent waits until it ends or runs
    /// another program.
    pub(crate) vfork: bool,
    /// The child's stack pointer; 0 for the same.
    pub(crate) stack: u64,
    /// Where the child's number goes, in the child's memory.
    pub(crate) child_tid: Option<u64>,
    /// Where a zero goes when the child ends.
    pub(crate) clear_child_tid: Option<u64>,
}

/// Makes a child that goes on where the parent does, with 0; gives its number. `None` if there is none
/// before the parent has dealt with a signal: the call is to be made again.
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
    // SAFETY: FP does not trap; the registers hold what the parent came with.
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
        // Nothing but its own end ends this: both have one stack.
        let place = parent.place();
        let killed = || {
            process_table::with(|processes| {
                let process = processes.get(place);
                process.is_ok_and(|process| process.signals.is_killed())
            })
        };
        let back = || (!task::is_in_vfork(pid) || killed()).then_some(());
        let _ = sched::sleep_until(parent, back);
        // Whoever kills it may not have said so yet, and then it would go on at EL0.
        parent.notified.store(true, Ordering::Release);
    }
    Ok(Some(pid))
}

/// What a program is told when its address space cannot be changed or copied.
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

/// The process ends with this status and never comes back.
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

/// The process has no memory any more: what it had is given back, to whom lent it too.
fn give_up_memory(current: &mut Current<'_>) {
    let task = current.task;
    if let Some(space) = current.memory()
        && current.own.clear_child_tid != 0
    {
        // Nobody is told whether it could be written.
        let _ = space.write_value(current.own.clear_child_tid, &0u32);
    }
    current.own.clear_child_tid = 0;
    let space = current.set_memory(None);
    // This CPU must not walk the tables when they go.
    super::memory::leave();
    drop(space);
    end_vfork(task);
}

/// The child of a `vfork` no longer has its parent's memory, and the parent goes on.
pub(super) fn end_vfork(task: &Task) {
    if let Some(parent) = task::end_vfork(task) {
        sched::wake(parent);
    }
}

/// Everyone ends.
fn end_all() {
    task::close();
    for task in task::alive() {
        task.set_killed(task::KILLED);
        sched::interrupt(task);
    }
}

/// Runs the process in another space from here on; what it had before is given back.
pub(super) fn change_memory(current: &mut Current<'_>, space: AddressSpace) {
    let masked = crate::arch::cpu::mask_interrupts();
    let reference = space.reference();
    let old = current.set_memory(Some(space));
    // SAFETY: the process keeps it, and leaves it when it is not run.
    unsafe { super::memory::enter(reference) };
    crate::arch::cpu::restore_interrupts(masked);
    drop(old);
    end_vfork(current.task);
}

/// No register that a program does not begin with: FP and SIMD, and the thread pointer.
pub(super) fn clear_registers() {
    static ZERO: FpState = FpState::ZERO;
    // SAFETY: FP does not trap; the registers are the process's that runs here.
    unsafe { load_fp(&raw const ZERO) };
    registers::set_thread_pointer(0);
}
