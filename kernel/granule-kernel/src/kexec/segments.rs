//! `kexec_load`: a next kernel in segments that a program has laid out, code of its own among them that runs first.
//!
//! Only the program knows which segment is what, so the next kernel gets no tree in x0, no handoff note and no
//! digests. All memory of a segment is written: the program's bytes, and zeros behind them.

use super::assemble::{Assembly, Segments, Start};
use super::crash::CrashKernel;
use super::loaded::Loaded;
use super::pages::{self, MOST_SEGMENTS};
use super::refused::{Call, Refused};
use super::syscall::{publish, refuse};
use super::{Busy, crash, keep, load, unload};
use crate::task::next_kernel::{Arguments, CallResult};
use crate::task::owned::Array;
use crate::task::task_table::Current;
use granule::arch::PhysicalAddress;
use granule_kcore::kexec::segments::{UserSegment, check_call, check_segments};
use granule_kexec::{Clean, PhysRange, Segment, check_places};
use granule_linux_abi::env::Env;
use zerocopy::IntoBytes;

const NAMES: [&str; MOST_SEGMENTS] = [
    "segment0",
    "segment1",
    "segment2",
    "segment3",
    "segment4",
    "segment5",
    "segment6",
    "segment7",
    "segment8",
    "segment9",
    "segment10",
    "segment11",
    "segment12",
    "segment13",
    "segment14",
    "segment15",
];

pub(super) fn kexec_load(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    let done = perform(current, arguments);
    done.map(|()| 0).map_err(|why| refuse(&why))
}

fn perform(
    current: &mut Current<'_>,
    [entry, count, at, flags, ..]: Arguments,
) -> Result<(), Refused> {
    let (count, on_crash) = check_call(flags, count)?;
    if count == 0 {
        let busy = Busy::take().ok_or(Refused::Busy)?;
        if on_crash {
            crash::unload(&busy);
        } else {
            unload(&busy);
            publish(current);
        }
        return Ok(());
    }
    let what = "list of segments";
    let list = Array::new(count, |_| [0; 4]);
    let mut list = list.ok_or(Refused::Memory { what })?;
    read(current, what, at, list.as_mut_bytes())?;
    let busy = Busy::take().ok_or(Refused::Busy)?;
    if on_crash {
        return crash::load(&busy, || for_crash(current, entry, &list));
    }
    keep(&busy, assemble(current, entry, &list)?);
    publish(current);
    Ok(())
}

fn assemble(current: &mut Current<'_>, entry: u64, list: &[[u64; 4]]) -> Result<Loaded, Refused> {
    let (machine, kernel) = load::running()?;
    let memory_map = machine.memory_map(kernel.geometry.page_size(), machine.kept());
    let mut placed = placed(list, entry)?;
    let mut assembly = Assembly::new(machine, kernel, false, list.len())?;
    check_places(&placed, &memory_map)?;
    assembly.take(&mut placed)?;
    let start = Start {
        entry: PhysicalAddress(entry),
        tree: PhysicalAddress(0),
        note: None,
    };
    assembly.finish(&placed, &start, &mut |segment, pages| {
        fill(current, list, segment, pages)
    })
}

fn for_crash(
    current: &mut Current<'_>,
    entry: u64,
    list: &[[u64; 4]],
) -> Result<CrashKernel, Refused> {
    let (machine, _) = load::running()?;
    let placed = placed(list, entry)?;
    crash::load::of_program(
        machine,
        &placed,
        PhysicalAddress(entry),
        |segment, pages| fill(current, list, segment, pages),
    )
}

/// Checks the segments. Returns those that have memory.
fn placed(list: &[[u64; 4]], entry: u64) -> Result<Segments<'static>, Refused> {
    let (machine, kernel) = load::running()?;
    let page = kernel.geometry.page_size();
    let memory_map = machine.memory_map(page, machine.kept());
    let ram = memory_map.ram.iter().map(|bank| bank.bytes).sum();
    let segments = list.iter().copied().map(UserSegment::from_words);
    check_segments(segments.clone(), entry, page, ram)?;
    let with_memory = NAMES
        .into_iter()
        .zip(segments)
        .filter(|(_, it)| it.place.bytes > 0);
    let all = with_memory.map(|(name, UserSegment { place, .. })| Segment {
        name,
        destination: place.start,
        bytes: place.bytes,
        memory: place.bytes,
        pages: &[],
        clean: Clean::Moved,
    });
    let mut placed = Segments::new();
    placed.extend(all);
    Ok(placed)
}

/// Reads a segment's bytes from the program to `pages`.
fn fill(
    current: &mut Current<'_>,
    list: &[[u64; 4]],
    segment: &Segment<'_>,
    pages: &[PhysRange],
) -> Result<u64, Refused> {
    let mut segments = list.iter().copied().map(UserSegment::from_words);
    let user = segments.find(|it| it.place == segment.place());
    let UserSegment { from, bytes, .. } = user.unwrap_or_default();
    let mut at = from;
    pages::fill_with(pages, bytes, &mut |to| {
        read(current, segment.name, at, to)?;
        at = at.saturating_add(to.len() as u64);
        Ok(())
    })?;
    Ok(0)
}

fn read(
    current: &mut Current<'_>,
    what: &'static str,
    at: u64,
    into: &mut [u8],
) -> Result<(), Refused> {
    let bytes = into.len() as u64;
    current.read(at, into).map_err(|error| {
        let why = Call::Address {
            what,
            at,
            bytes,
            error,
        };
        why.into()
    })
}
