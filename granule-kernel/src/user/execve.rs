//! `execve`: which program, by whom if it is a script, and with which texts. Loading it is
//! [`exec`]'s.

use super::abi::Errno;
use super::abi::file::PATH_MAX;
use super::exec::{self, MOST_TEXT_BYTES};
use super::files::path::Last;
use super::files::tree::{Kind, NodeId};
use super::owned::Array;
use super::script;
use super::start_stack::Texts;
use super::syscall::env::{Env, get, text};
use super::task::Current;

type Known<T> = Result<T, Errno>;

/// Texts as they are collected: each with its NUL, one behind the other.
struct Collected {
    bytes: Array<u8>,
    used: usize,
    count: usize,
}

impl Collected {
    fn new() -> Known<Self> {
        let bytes = Array::new(MOST_TEXT_BYTES, |_| 0).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            bytes,
            used: 0,
            count: 0,
        })
    }

    fn push(&mut self, text: &[u8]) -> Known<()> {
        let room = self.bytes.get_mut(self.used..).unwrap_or_default();
        // One more for the NUL, which is there.
        let to = room.get_mut(..=text.len()).ok_or(Errno::E2BIG)?;
        if let Some((_nul, to)) = to.split_last_mut() {
            to.copy_from_slice(text);
        }
        self.used += text.len() + 1;
        self.count += 1;
        Ok(())
    }

    /// Those that a list of pointers leads to, but for the first `skipped`; gives how many.
    fn take(&mut self, current: &mut Current<'_>, list: u64, skipped: u64) -> Known<usize> {
        if list == 0 {
            return Ok(0);
        }
        let before = self.count;
        for index in 0.. {
            let at = list.checked_add(8 * index).ok_or(Errno::EFAULT)?;
            let pointer: u64 = get(current, at)?;
            if pointer == 0 {
                break;
            }
            if index < skipped {
                continue;
            }
            let room = self.bytes.get_mut(self.used..).unwrap_or_default();
            let length = text(current, pointer, room, Errno::E2BIG)?.len();
            self.used += length + 1;
            self.count += 1;
        }
        Ok(self.count - before)
    }

    /// Whether a list of pointers has any.
    fn has_any(current: &mut Current<'_>, list: u64) -> Known<bool> {
        Ok(list != 0 && get::<u64>(current, list)? != 0)
    }
}

/// A file that may be run, and its content.
fn program(current: &mut Current<'_>, path: &[u8]) -> Known<(NodeId, &'static [u8])> {
    super::shared::with(|world| {
        let own = world.own(current.task.place())?;
        let node = world
            .files
            .find(own.directory, path, Last::Follow, Some(own.exe))?;
        let tree = &world.files.tree;
        if tree.kind(node) != Kind::File || tree.about(node).mode & 0o111 == 0 {
            return Err(Errno::EACCES);
        }
        Ok((node, tree.content(node)))
    })
}

/// The process runs another program from here on, or the error says why not.
#[inline(never)]
pub(super) fn execve(
    current: &mut Current<'_>,
    path: u64,
    arguments: u64,
    environment: u64,
) -> Known<u64> {
    let mut buffer = [0; PATH_MAX];
    let path = text(current, path, &mut buffer, Errno::ENAMETOOLONG)?;
    let (mut node, mut content) = program(current, path)?;
    let mut texts = Collected::new()?;
    if let Some(script) = script::read(content) {
        // In the place of the script's own name comes what runs it.
        texts.push(script.interpreter)?;
        if let Some(argument) = script.argument {
            texts.push(argument)?;
        }
        texts.push(path)?;
        texts.take(current, arguments, 1)?;
        (node, content) = program(current, script.interpreter)?;
    } else if Collected::has_any(current, arguments)? {
        texts.take(current, arguments, 0)?;
    } else {
        // Programs take for granted that they have a name.
        texts.push(path)?;
    }
    let arguments = texts.count;
    let environment = texts.take(current, environment, 0)?;
    let loaded = exec::load(
        content,
        path,
        Texts {
            bytes: texts.bytes.get(..texts.used).unwrap_or_default(),
            arguments,
            environment,
        },
    )?;
    drop(texts);
    current.with(|world, place| world.execute(place, node, path))?;
    exec::execute(current, loaded);
    Ok(0)
}
