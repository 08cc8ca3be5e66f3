//! The core of a dead kernel, in its crash kernel: found by the device tree's `linux,elfcorehdr`, or by `elfcorehdr=`.

use crate::dev::console::println;
use crate::handover::Handover;
use crate::lock::Lock;
use crate::mm::firmware::with_tree;
use crate::mm::kernel_tables::{Kernel, kernel};
use crate::mm::vmalloc;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use granule::arch::PhysicalAddress;
use granule_kcore::crash::core_file::{self, CoreError, CoreFile, FilePiece};
use granule_kcore::devicetree::memory::{self as tree, MOST_RANGES, Memory};
use granule_kcore::parameters::Parameters;
use granule_kexec::PhysRange;

/// Bytes of a header whose word does not state them.
const HEADER_BYTES: u64 = 64 << 10;

static CORE: spin::Once<CoreFile<Array<u8>, Array<FilePiece>>> = spin::Once::new();

/// The RAM of the machine.
static RAM: Lock<ArrayVec<PhysRange, MOST_RANGES>> = Lock::new(ArrayVec::new_const());

/// The header that the last kernel left, reserved in early memory.
#[derive(Clone, Copy)]
pub(crate) struct Left(PhysRange);

/// Finds the header, and reserves its memory before anything is allocated. Prints why if it cannot be used.
#[inline(never)]
pub(crate) fn find(
    handover: &Handover,
    parameters: &Parameters<'_>,
    memory: &mut Memory,
) -> Option<Left> {
    let named = parameters
        .core_header
        .map(|(start, bytes)| PhysRange::new(start, bytes.unwrap_or(HEADER_BYTES)));
    let header = named.or_else(|| {
        let range = with_tree(handover, tree::core_header)?;
        Some(PhysRange::new(range.start, range.end - range.start))
    })?;
    let bank = memory
        .banks()
        .iter()
        .any(|bank| PhysRange::new(bank.start(), bank.len()).holds(&header));
    if !bank || memory.reserve(header.start, header.bytes).is_err() {
        println!(
            "granule: the header of the dead kernel's core, {header}, is not in RAM that is used; no /proc/vmcore"
        );
        return None;
    }
    with_tree(handover, |bytes| {
        tree::each_bank(bytes, |range| {
            let bank = PhysRange::new(range.start, range.end - range.start);
            RAM.with(|ram| match ram.last_mut() {
                Some(last) if last.end() == Some(bank.start) => last.bytes += bank.bytes,
                // What does not fit cannot be read.
                _ => drop(ram.try_push(bank)),
            });
        });
    });
    Some(Left(header))
}

/// Reads the header, once the page allocator has taken over.
#[inline(never)]
pub(crate) fn begin(left: Left) {
    let Left(header) = left;
    let made = core_file::segments(&header, read_memory).and_then(|count| {
        let headers = Array::new(core_file::header_bytes(count), |_| 0);
        let pieces = Array::new(count, |_| FilePiece::default());
        let (headers, pieces) = headers.zip(pieces).ok_or(CoreError::NoRoom)?;
        CoreFile::new(&header, headers, pieces, read_memory)
    });
    match made {
        Ok(file) => {
            println!(
                "granule: /proc/vmcore has the {} bytes of the kernel that crashed",
                file.bytes()
            );
            println!("@granule crash.core_bytes={}", file.bytes());
            CORE.call_once(|| file);
        }
        Err(error) => println!(
            "granule: the header of the dead kernel's core at {header}: {error}; no /proc/vmcore"
        ),
    }
}

/// The bytes of the core as a file, if there is one.
pub(crate) fn bytes() -> Option<u64> {
    CORE.get().map(CoreFile::bytes)
}

/// Reads a part of the core. Returns whether all of its memory could be read; what could not is zero.
pub(crate) fn read(at: u64, into: &mut [u8]) -> bool {
    CORE.get()
        .is_some_and(|core| core.read(at, into, read_memory))
}

/// Reads RAM of the machine, which this kernel need not map.
fn read_memory(at: u64, into: &mut [u8]) -> bool {
    let range = PhysRange::new(at, into.len() as u64);
    if !RAM.with(|ram| ram.iter().any(|bank| bank.holds(&range))) {
        return false;
    }
    let page = kernel().map_or(0, Kernel::page);
    let first = at & !(page - 1);
    let bytes = (at + range.bytes).next_multiple_of(page) - first;
    vmalloc::with_mapped(PhysicalAddress(first), bytes, |memory| {
        let part = memory.get((at - first) as usize..).unwrap_or_default();
        let part = part.get(..into.len());
        part.map(|part| into.copy_from_slice(part)).is_some()
    })
    .unwrap_or(false)
}
