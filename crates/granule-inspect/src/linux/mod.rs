//! The processes of a Linux kernel and its functions, out of its own data: VMCOREINFO has the place of
//! the kernel's symbols (`kallsyms`), these have the place of its types (`btf`), and these the place of
//! each process's root in the list of tasks, and of each module's symbols (`modules`).
//!
//! Nothing of this is trusted; the list ends where it makes no sense.

mod btf;
mod kallsyms;
mod modules;
mod space;
mod symbol;
mod symbols;
mod system_map;

use crate::source::Memory;
use crate::tree::{Origin, Owner, Shape, Tree};
use crate::vmcoreinfo::Vmcoreinfo;
use btf::Btf;
use granule::arch::PhysicalAddress;
use kallsyms::List;
pub(crate) use space::Space;
pub use symbols::{SymbolPlace, Symbols};

/// The most bytes of a function that is read. Linux's largest have a tenth.
const MOST_CODE: u64 = 1 << 20;

/// The most processes that are read: Linux has room for 4 million.
const MOST: usize = 1 << 22;
/// The most unreadable tasks that are reported one by one; a damaged dump may have very many.
const MOST_UNREADABLE: usize = 10;
/// The bytes of a process's name.
const NAME: usize = 16;
/// The most bytes of the name of a function or a module. Linux itself has 512.
const MOST_NAME: usize = 1 << 10;

/// The trees of all processes, and lines for what cannot be read. `kernel` is the tree that
/// `info` gives ([`Vmcoreinfo::kernel`]). `symbols` is the text of the kernel's System.map; without
/// it the kernel's own list of symbols is read.
/// An error is one line: why there are no processes to be had.
pub fn processes(
    memory: &dyn Memory,
    kernel: &Tree,
    info: Vmcoreinfo<'_>,
    symbols: Option<&str>,
) -> Result<(Vec<Tree>, Vec<String>), String> {
    let space = Space::new(memory, kernel).ok_or("the kernel's tree is not of stage 1")?;
    let user = Shape::Stage1(info.user_shape(&space.shape)?);
    let wanted = ["init_task", "__start_BTF", "__stop_BTF"];
    let [init, types, types_end] = match symbols {
        Some(file) => system_map::find(file, info, wanted)?,
        None => List::read(&space, info)?.find(wanted),
    };
    let init = init.ok_or(
        "its list of symbols has no init_task (it is built without KALLSYMS_ALL); give its System.map",
    )?;
    let types = Btf::read(&space, types, types_end)?;
    let task = |name| types.offset("task_struct", name);
    let (next, mm, pid, name) = (task("tasks")?, task("mm")?, task("pid")?, task("comm")?);
    let pgd = types.offset("mm_struct", "pgd")?;

    let (mut trees, mut notes) = (Vec::new(), Vec::new());
    let mut unreadable = 0;
    space.list(
        "processes",
        init.wrapping_add(next),
        MOST,
        &mut notes,
        |at, notes| {
            let task = at.wrapping_sub(next);
            let read = || -> Result<Option<Tree>, String> {
                let mm = space.word(task.wrapping_add(mm))?;
                if mm == 0 {
                    // A thread of the kernel has no memory of its own.
                    return Ok(None);
                }
                let root = space.physical(space.word(mm.wrapping_add(pgd))?)?;
                let owner = Owner::Process {
                    pid: space.word(task.wrapping_add(pid))? as u32,
                    name: space.text(task.wrapping_add(name), NAME)?,
                };
                Ok(Some(Tree {
                    memory_types: kernel.memory_types,
                    ..Tree::new(owner, root, user, Origin::KernelData)
                }))
            };
            match read() {
                Ok(tree) => trees.extend(tree),
                Err(why) => {
                    unreadable += 1;
                    if unreadable <= MOST_UNREADABLE {
                        notes.push(format!("the task at {task:#x} cannot be read: {why}"));
                    }
                }
            }
        },
    );
    if let Some(more @ 1..) = unreadable.checked_sub(MOST_UNREADABLE) {
        notes.push(format!("{more} more tasks cannot be read"));
    }
    Ok((trees, notes))
}

/// The words of code from `start` on, which `kernel` maps, each with its physical address.
/// An error is one line: the code is not whole words, or too large, or cannot be read.
pub fn code(
    memory: &dyn Memory,
    kernel: &Tree,
    start: u64,
    bytes: u64,
) -> Result<Vec<(PhysicalAddress, u32)>, String> {
    let space = Space::new(memory, kernel).ok_or("the kernel's tree is not of stage 1")?;
    if !start.is_multiple_of(4) {
        return Err(format!("{start:#x} is not where an instruction begins"));
    }
    if bytes > MOST_CODE {
        return Err(format!(
            "the function at {start:#x} has {bytes} bytes, and at most {MOST_CODE} are read"
        ));
    }
    let words = space.bytes(start, bytes)?;
    let words = words.as_chunks::<4>().0.iter().zip((start..).step_by(4));
    words
        .map(|(word, at)| Ok((space.physical(at)?, u32::from_le_bytes(*word))))
        .collect()
}

#[cfg(test)]
mod tests;
