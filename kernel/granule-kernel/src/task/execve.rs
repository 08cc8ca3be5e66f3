//! `execve`: replaces the program of the calling process. [`granule_linux_abi::execve`] chooses the
//! file, the arguments and the environment; [`exec`] loads the program.

use super::task_table::Current;
use super::{exec, process_table};
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::file::PATH_MAX;
use granule_linux_abi::execve::prepare;

/// Replaces the program of the calling process, or returns the reason against it.
#[inline(never)]
pub(super) fn execve(
    current: &mut Current<'_>,
    path: u64,
    arguments: u64,
    environment: u64,
) -> Result<u64, Errno> {
    let mut buffer = [0; PATH_MAX];
    let prepared = prepare(current, path, arguments, environment, &mut buffer)?;
    let node = prepared.node;
    let place = current.task.place();
    let (content, wish) = process_table::with(|processes| {
        let process = processes.get(place)?;
        Ok::<_, Errno>((processes.files.tree.content(node), process.page_size))
    })?;
    let loaded = exec::load(content, prepared.path, prepared.texts.texts(), wish)?;
    drop(prepared.texts);
    process_table::with(|processes| processes.execute(place, node, prepared.path))?;
    exec::execute(current, loaded);
    Ok(0)
}
