//! Loads a next kernel from files: makes its device tree, and finds each segment's place. The rest is the part
//! of [`assemble`](super::assemble). An owner holds every allocation and frees it on drop, so a refusal at any
//! point leaks nothing.

use super::Request;
use super::assemble::{Assembly, Start};
use super::hook::KEXEC;
use super::loaded::Loaded;
use super::machine::{MachineFacts, machine, only};
use super::pages::{self, Runs};
use super::refused::{Call, Refused};
use super::seeds::seeds;
use crate::mm::kernel_tables::{self, Kernel};
use crate::mm::pages::each_free_block;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use core::fmt::Write;
use granule::arch::PhysicalAddress;
use granule_boot::words;
use granule_kcore::kexec::MOST_COMMAND_LINE;
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kcore::kexec::next_tree::{self, Changes, Crash, Seeds};
use granule_kcore::line::Line;
use granule_kexec::image::IMAGE_ALIGN;
use granule_kexec::{
    ANYWHERE, Clean, ImageHeader, MemoryMap, PhysRange, Ranges, Refusal, Segment, TREE_BLOCK,
    check_boot, check_places, find_place, near,
};

/// Kernel, initramfs and device tree, and of a crash kernel the header of the core.
pub(super) type Segments<'a> = ArrayVec<Segment<'a>, { NAMES.len() + 1 }>;

/// The search for places considers free blocks of at least this size, and at most this many free
/// ranges. If memory has more ranges, a place may be found at a higher address than necessary.
const LEAST_FREE: u64 = IMAGE_ALIGN;
const MOST_FREE: usize = 256;

/// Where segments may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In free memory, so that no copy is needed.
    Free,
    /// Over this kernel and its programs too.
    Anywhere,
    /// In the memory of a crash kernel.
    Crash(PhysRange),
}

pub(super) fn load(request: &Request<'_>) -> Result<Loaded, Refused> {
    with_loader(request, |loader| match request.copy {
        // Copies take pages of their own. Free places would hold as many pages again, so the segments go
        // over memory in use.
        true => loader.run(Where::Anywhere),
        false => loader.run(Where::Free).or_else(|why| {
            if why.wants_memory() {
                loader.run(Where::Anywhere)
            } else {
                Err(why)
            }
        }),
    })
}

/// Calls `work` with what each load begins with: the image was checked, and the command line is known.
pub(super) fn with_loader<R>(
    request: &Request<'_>,
    work: impl FnOnce(&Loader<'_>) -> Result<R, Refused>,
) -> Result<R, Refused> {
    let (machine, kernel) = running()?;
    let header = ImageHeader::read(request.kernel)?;
    header.check(&machine.cpu)?;
    let line = command_line(machine, request.command_line)?;
    work(&Loader {
        machine,
        kernel,
        header: &header,
        request,
        line: &line,
    })
}

/// The machine and the kernel that runs on it.
pub(super) fn running() -> Result<(&'static MachineFacts, &'static Kernel), Refused> {
    let unnoted = "memory is in too many pieces, or the device tree cannot be read";
    let both = machine().zip(kernel_tables::kernel());
    both.ok_or(Refused::Machine(unnoted))
}

/// The next kernel's command line: the requested line, preceded by `granule.persist=` for the memory
/// handed over, unless the line has such a word itself.
fn command_line(machine: &MachineFacts, asked: &[u8]) -> Result<Array<u8>, Refused> {
    let mut word = Line::<64>::new();
    if let Some(persist) = machine.persist
        && words::find(asked, b"granule.persist=").is_none()
    {
        // Writing to a `Line` never fails, and this word fits.
        let _ = write!(
            word,
            "granule.persist={:#x},{:#x} ",
            persist.start, persist.bytes
        );
    }
    let word = word.bytes();
    let length = word.len() + asked.len();
    if length >= MOST_COMMAND_LINE || asked.contains(&0) {
        let bytes = length as u64 + 1;
        return Err(Call::Line { bytes }.into());
    }
    let what = "command line";
    let mut line = Array::new(length, |_| 0).ok_or(Refused::Memory { what })?;
    for (to, from) in line.iter_mut().zip(word.iter().chain(asked)) {
        *to = *from;
    }
    Ok(line)
}

pub(super) struct Loader<'a> {
    pub(super) machine: &'static MachineFacts,
    pub(super) kernel: &'static Kernel,
    header: &'a ImageHeader,
    pub(super) request: &'a Request<'a>,
    line: &'a [u8],
}

/// A device tree not yet copied to its place.
pub(super) struct Tree {
    bytes: Array<u8>,
    pub(super) used: usize,
}

impl Loader<'_> {
    fn run(&self, at: Where) -> Result<Loaded, Refused> {
        let seeds = seeds(self.machine.seed);
        // Measures the tree before any place is known: its length does not depend on the places.
        let nowhere = self.request.initrd.map(|_| PhysRange::default());
        let mut tree = self.tree(nowhere, Some(PhysRange::default()), None, seeds)?;
        let copy = self.request.copy;
        let mut assembly = Assembly::new(self.machine, self.kernel, copy, NAMES.len())?;
        let mut segments = self.places(tree.used as u64, at)?;
        assembly.take(&mut segments)?;
        let note = assembly.held.take_page()?;
        let note = PhysRange::new(note.0, self.kernel.page());
        let segment = |name| segments.iter().find(|it| it.name == name);
        let initrd = segment(INITRD).map(|it| PhysRange::new(it.destination, it.bytes));
        // Drop the measured tree last: its storage may lie in a segment's place, and another allocation
        // would take that memory.
        let measured = core::mem::replace(&mut tree, self.tree(initrd, Some(note), None, seeds)?);
        next_tree::same_length(measured.used, tree.used)?;
        pages::fill(&[note], &[]);
        let address = |name| PhysicalAddress(segment(name).map_or(0, |it| it.destination));
        let start = Start {
            entry: address(KERNEL),
            tree: address(TREE),
            note: Some(note),
        };
        assembly.finish(&segments, &start, &mut |segment, pages| {
            Ok(pages::fill(pages, self.bytes_of(segment.name, &tree)))
        })
    }

    pub(super) fn bytes_of<'s>(&'s self, name: &str, tree: &'s Tree) -> &'s [u8] {
        match name {
            KERNEL => self.request.kernel,
            INITRD => self.request.initrd.unwrap_or_default(),
            _ => tree.bytes.get(..tree.used).unwrap_or_default(),
        }
    }

    /// The device tree for the next kernel, which names the initramfs and the note.
    pub(super) fn tree(
        &self,
        initrd: Option<PhysRange>,
        note: Option<PhysRange>,
        crash: Option<Crash>,
        seeds: Seeds,
    ) -> Result<Tree, Refused> {
        let why = "its device tree is not in RAM that is mapped";
        let (old, bytes) = self.machine.tree().ok_or(Refused::Machine(why))?;
        let changes = Changes {
            command_line: self.line,
            initrd,
            note,
            crash,
            // A crash kernel's memory has none of it.
            kept: crash.map_or(self.machine.kept(), |_| &[]),
            old,
            seeds,
        };
        let what = "device tree";
        let room = next_tree::most_bytes(bytes, &changes)?;
        let mut into = Array::new(room, |_| 0).ok_or(Refused::Memory { what })?;
        let used = next_tree::write(bytes, &changes, &mut into)?;
        Ok(Tree { bytes: into, used })
    }

    /// The place of each segment. No segment has pages yet.
    pub(super) fn places(&self, tree_bytes: u64, at: Where) -> Result<Segments<'static>, Refused> {
        let page = self.kernel.geometry.page_size();
        let mut free = Runs::with_room(MOST_FREE)?;
        let mut free = Ranges::new(free.slots());
        if at == Where::Free {
            // A range that does not fit into the storage counts as in use.
            each_free_block(LEAST_FREE, |start, bytes| {
                let _ = free.insert(PhysRange::new(start.0, bytes));
            });
        }
        let crash;
        let all = match at {
            Where::Crash(memory) => {
                crash = memory;
                only(page, &crash)
            }
            _ => self.machine.memory_map(page, self.machine.kept()),
        };
        let memory_map = match at {
            Where::Free => MemoryMap {
                ram: free.all(),
                ..all
            },
            Where::Anywhere | Where::Crash(_) => all,
        };
        let mut segments = Segments::new();
        for name in NAMES {
            let forced = KEXEC.get().and_then(|hook| (hook.place)(name));
            let bytes = match name {
                KERNEL => self.request.kernel.len() as u64,
                INITRD => match self.request.initrd {
                    Some(initrd) => initrd.len() as u64,
                    None => continue,
                },
                _ => tree_bytes,
            };
            let kernel = name == KERNEL;
            let memory = if kernel {
                self.header.memory(bytes, page)
            } else {
                bytes.checked_next_multiple_of(page.bytes())
            };
            let segment = name;
            let memory = memory.ok_or(Refusal::Memory {
                segment,
                bytes,
                memory: self.header.image_size,
            })?;
            let free = match forced {
                Some(_) => &all,
                // Such an image may be unable to use memory below itself. So it goes as close to the
                // start of RAM as possible, even over memory in use.
                None if kernel && !self.header.anywhere => &all,
                None => &memory_map,
            };
            let align = (IMAGE_ALIGN, self.header.text_offset);
            let destination = match (forced, name) {
                (Some(forced), _) => forced,
                (None, KERNEL) => find_place(name, memory, align, &ANYWHERE, &[], free)?,
                (None, INITRD) => {
                    let within = self.usable(&segments, true);
                    find_place(name, memory, (page.bytes(), 0), &within, &segments, free)?
                }
                // Take the whole block that maps the tree, so that the block holds nothing which must
                // not be mapped. Without such a block, any place that passes the checks will do.
                (None, _) => {
                    let within = self.usable(&segments, false);
                    let find = |memory, align| {
                        find_place(name, memory, (align, 0), &within, &segments, free)
                    };
                    find(memory.max(TREE_BLOCK), TREE_BLOCK)
                        .or_else(|_| find(memory, page.bytes()))?
                }
            };
            segments.extend([Segment {
                name,
                destination,
                bytes,
                memory,
                pages: &[],
                clean: match name {
                    // The reader of the initramfs has the caches on.
                    INITRD => Clean::Nothing,
                    // Segments in place are cleaned here.
                    _ => Clean::Moved,
                },
            }]);
        }
        check_places(&segments, &all)?;
        if let [kernel, initrd @ .., tree] = &segments[..] {
            let unmapped = &self.machine.unmapped;
            check_boot(kernel, initrd.first(), tree, &all, unmapped)?;
        }
        Ok(segments)
    }

    /// The memory that the next kernel can use, given the kernel's place.
    fn usable(&self, segments: &Segments<'_>, initrd: bool) -> PhysRange {
        let Some(kernel) = segments.first().map(Segment::place) else {
            return ANYWHERE;
        };
        let mut within = if initrd { near(&kernel) } else { ANYWHERE };
        if !self.header.anywhere {
            let below = kernel.start.saturating_sub(within.start);
            within.start += below;
            within.bytes = within.bytes.saturating_sub(below);
        }
        within
    }
}

const KERNEL: &str = NAMES[0];
pub(super) const INITRD: &str = NAMES[1];
const TREE: &str = NAMES[2];
