//! `execve` without the address space: finds the file to run, the interpreter if the file is a script,
//! and the arguments and environment. The kernel loads the program.

use crate::abi::Errno;
use crate::abi::file::PATH_MAX;
use crate::env::{Env, get, text};
use crate::files::file_tree::{NodeId, NodeKind};
use crate::files::path::Last;
use crate::owned::{Array, Frames};
use crate::processes::{ProcessPlace, Processes, TaskTable};
use crate::script::{self, Script};
use crate::start_stack::Texts;

type Known<T> = Result<T, Errno>;

/// The most bytes of arguments and environment together.
pub const MOST_TEXT_BYTES: usize = 128 << 10;

/// The arguments and the environment of a new program: strings in sequence, each with its NUL.
#[derive(Debug)]
pub struct TextList<F: Frames> {
    bytes: Array<u8, F>,
    used: usize,
    count: usize,
    arguments: usize,
}

impl<F: Frames> TextList<F> {
    /// An empty list, or `ENOMEM`.
    pub fn new() -> Known<Self> {
        let bytes = Array::new(MOST_TEXT_BYTES, |_| 0).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            bytes,
            used: 0,
            count: 0,
            arguments: 0,
        })
    }

    /// Adds a string without NUL. Errors: `E2BIG` if the list is full.
    pub fn push(&mut self, text: &[u8]) -> Known<()> {
        let room = self.bytes.get_mut(self.used..).unwrap_or_default();
        // One byte more for the NUL, which is already there.
        let to = room.get_mut(..=text.len()).ok_or(Errno::E2BIG)?;
        if let Some((_nul, to)) = to.split_last_mut() {
            to.copy_from_slice(text);
        }
        self.used += text.len() + 1;
        self.count += 1;
        Ok(())
    }

    /// Adds the interpreter of a script and its argument, which precede the script's own path. Errors: as for
    /// [`push`](Self::push).
    pub fn push_interpreter(&mut self, script: &Script<'_>) -> Known<()> {
        self.push(script.interpreter)?;
        script
            .argument
            .map_or(Ok(()), |argument| self.push(argument))
    }

    /// Ends the arguments; the strings added later are the environment.
    pub fn end_arguments(&mut self) {
        self.arguments = self.count;
    }

    /// The strings in the form for the start stack.
    pub fn texts(&self) -> Texts<'_> {
        Texts {
            bytes: self.bytes.get(..self.used).unwrap_or_default(),
            arguments: self.arguments,
            environment: self.count - self.arguments,
        }
    }

    /// Adds the strings of a pointer list in the caller's memory, without the first `skipped`.
    fn take(&mut self, env: &mut impl Env, list: u64, skipped: u64) -> Known<()> {
        if list == 0 {
            return Ok(());
        }
        for index in 0.. {
            let at = list.checked_add(8 * index).ok_or(Errno::EFAULT)?;
            let pointer: u64 = get(env, at)?;
            if pointer == 0 {
                break;
            }
            if index < skipped {
                continue;
            }
            let room = self.bytes.get_mut(self.used..).unwrap_or_default();
            let length = text(env, pointer, room, Errno::E2BIG)?.len();
            self.used += length + 1;
            self.count += 1;
        }
        Ok(())
    }
}

/// A program ready to be loaded.
#[derive(Debug)]
pub struct Prepared<'b, F: Frames> {
    /// The file of the program.
    pub node: NodeId,
    /// The path that the caller named; for a script, the path of the script.
    pub path: &'b [u8],
    /// The arguments and environment.
    pub texts: TextList<F>,
}

/// The frames of an environment's kernel.
type FramesOf<E> = <<E as Env>::Tasks as TaskTable>::Frames;

/// Finds the program at `path` and collects its strings. `buffer` holds the path. Errors: the errors of `execve`
/// before the caller's memory is replaced.
pub fn prepare<'b, E: Env>(
    env: &mut E,
    path: u64,
    arguments: u64,
    environment: u64,
    buffer: &'b mut [u8; PATH_MAX],
) -> Known<Prepared<'b, FramesOf<E>>> {
    let path = text(env, path, buffer, Errno::ENAMETOOLONG)?;
    let mut texts = TextList::new()?;
    let (node, is_script) = env.with(|processes, place| {
        let node = executable(processes, place, path)?;
        let Some(script) = script::read(processes.files.tree.content(node)) else {
            return Ok((node, false));
        };
        texts.push_interpreter(&script)?;
        texts.push(path)?;
        let interpreter = executable(processes, place, script.interpreter)?;
        Ok::<_, Errno>((interpreter, true))
    })?;
    let has_any = arguments != 0 && get::<u64>(env, arguments)? != 0;
    if has_any {
        // The interpreter and the script's path replace argument 0.
        texts.take(env, arguments, is_script.into())?;
    } else if !is_script {
        // Programs assume that argument 0 exists.
        texts.push(path)?;
    }
    texts.end_arguments();
    texts.take(env, environment, 0)?;
    Ok(Prepared { node, path, texts })
}

/// The file at a path, if it may be executed.
fn executable<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    path: &[u8],
) -> Known<NodeId> {
    let process = processes.get(place)?;
    let from = process.directory;
    let node = processes
        .files
        .find(from, path, Last::Follow, Some(process.exe))?;
    let tree = &processes.files.tree;
    if tree.kind(node) != NodeKind::File || tree.about(node).mode & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    Ok(node)
}
