//! The choice of the page size and the VA size, as pure functions of the CPU's features and of
//! wishes.
//!
//! This module reads and prints nothing. A wish that cannot be granted is skipped for the next one
//! and leaves a [`ChoiceNote`], which prints as one line once a console exists. A user's wish that
//! is granted against the table of machines leaves a note too.

use super::bytes::Text;
use super::machines::KnownMachine;
use super::sizes::SizeSet;
use core::fmt;
use granule::arch::{CpuFeatures, PageSize};
use thiserror::Error;

/// A wish for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish<T> {
    /// No wish.
    Absent,
    /// This value.
    Wanted(T),
    /// A text that is not a value.
    Garbled(Text),
}

/// The origin of a decision or a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The kernel command line.
    CommandLine,
    /// The table of machines.
    MachineTable,
    /// The default that was set when the kernel was built.
    BuildDefault,
    /// No wish applied: the remaining value.
    Fallback,
}

impl Source {
    /// The name in machine-readable records: `command-line`, `machine-table`, `build-default` or
    /// `fallback`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CommandLine => "command-line",
            Self::MachineTable => "machine-table",
            Self::BuildDefault => "build-default",
            Self::Fallback => "fallback",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// All inputs to the choice of a page size.
#[derive(Clone, Copy, Debug)]
pub struct PageSizeInputs<'a> {
    /// The sizes that the CPU has, converted from [`CpuFeatures`] by [`Into`].
    pub cpu: SizeSet,
    /// The sizes that the kernel has code for: [`SizeSet::ALL`], or fewer if it was built for
    /// fewer.
    pub built: SizeSet,
    /// The wish on the command line, from [`words::page_size`](super::words::page_size).
    pub command_line: Wish<PageSize>,
    /// The machine's entry, from [`machines::find`](super::machines::find).
    pub machine: Option<&'a KnownMachine>,
    /// The default that was set when the kernel was built.
    pub build_default: Option<PageSize>,
}

/// The page size, its origin, and the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizeChoice {
    /// The size to boot with.
    pub size: PageSize,
    /// The origin of the choice.
    pub source: Source,
    /// The wishes that were not granted or need a warning.
    pub notes: Notes,
}

/// No page size can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct NoPageSize;

impl NoPageSize {
    /// The reason code for the boot record.
    pub const CODE: u32 = 0x0301;

    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        "this CPU has none of the page sizes that this kernel was built for (ID_AA64MMFR0_EL1)"
    }
}

/// Chooses the page size. The first of these that is possible wins: the command line's wish, the
/// machine's preferences, the build's default, the smallest size that the CPU and the kernel have
/// and the machine may use.
///
/// A size that the table of machines forbids is used if the command line requests it, with a note:
/// the table can be wrong, and a user who requests the size may want to find out.
///
/// The fallback is the smallest size because software and devices expect small pages, and small
/// pages waste the least memory. If a machine may use none of its CPU's sizes, it gets the CPU's
/// smallest, with a note: the table can be wrong, and a kernel that does not start cannot show
/// that.
///
/// # Errors
///
/// Fails with [`NoPageSize`] if the CPU has no page size that the kernel has code for.
pub fn choose_page_size(inputs: &PageSizeInputs<'_>) -> Result<PageSizeChoice, NoPageSize> {
    let forbidden = inputs
        .machine
        .map_or(SizeSet::NONE, |machine| machine.forbidden);
    let mut notes = Notes::EMPTY;
    let mut granted = None;

    if let Wish::Garbled(text) = inputs.command_line {
        notes.push(Source::CommandLine, Refused::NotAPageSize(text));
    }
    let mut ask = |source, size| {
        if granted.is_some() {
            return;
        }
        let refused = if !inputs.built.has(size) {
            Refused::PageSizeNotBuilt(size, inputs.built)
        } else if !inputs.cpu.has(size) {
            Refused::PageSizeCpuLacks(size)
        } else if forbidden.has(size) && source != Source::CommandLine {
            Refused::PageSizeForbidden(size)
        } else {
            granted = Some((size, source));
            if !forbidden.has(size) {
                return;
            }
            Refused::ForbiddenButAsked(size)
        };
        notes.push(source, refused);
    };
    if let Wish::Wanted(size) = inputs.command_line {
        ask(Source::CommandLine, size);
    }
    for size in inputs.machine.map_or(&[][..], |machine| machine.preferred) {
        ask(Source::MachineTable, *size);
    }
    if let Some(size) = inputs.build_default {
        ask(Source::BuildDefault, size);
    }

    let usable = inputs.cpu.and(inputs.built);
    let (size, source) = match granted {
        Some(granted) => granted,
        None => match usable.smallest_except(forbidden) {
            Some(size) => (size, Source::Fallback),
            None => {
                let size = usable.smallest_except(SizeSet::NONE).ok_or(NoPageSize)?;
                notes.push(Source::MachineTable, Refused::AllForbidden(size));
                (size, Source::Fallback)
            }
        },
    };
    Ok(PageSizeChoice {
        size,
        source,
        notes,
    })
}

/// The VA sizes that are offered with every page size. The architecture allows any size from 25 to
/// 48 bits; these sizes fill a level or are used by other kernels. 52 bits need FEAT_LPA2 (4K and
/// 16K pages) or FEAT_LVA (64K pages).
pub const VA_BITS: [u32; 6] = [36, 39, 42, 47, 48, 52];

/// The VA size, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaBitsChoice {
    /// The number of bits of a virtual address, one of [`VA_BITS`].
    pub bits: u32,
    /// [`Source::CommandLine`] or [`Source::Fallback`].
    pub source: Source,
    /// The wish that was not granted, if any.
    pub notes: Notes,
}

/// Chooses the VA size: the command line's wish if it is one of [`VA_BITS`] and the CPU has it with
/// this page size, else 48.
///
/// The default is 48 bits, not 52, for three reasons. Every CPU has 48 bits. The fifth level of
/// tables that 4K pages would need adds a step to every walk. And 128 TiB of linear map suffice for
/// the RAM that exists. The distance of RAM from the lowest bank is what limits it, not its
/// address: RAM above 48 bits of *physical* address needs the 52-bit descriptor format, which works
/// with a VA size of 48 as well. Only RAM spread over more than half the VA size needs a wish for
/// 52.
#[must_use]
pub fn choose_va_bits(cpu: &CpuFeatures, page_size: PageSize, wish: Wish<u32>) -> VaBitsChoice {
    const DEFAULT: u32 = 48;
    let (least, most) = (cpu.least_va_bits(page_size), cpu.most_va_bits(page_size));
    let refused = match wish {
        Wish::Absent => None,
        Wish::Garbled(text) => Some(Refused::NotAVaSize(text)),
        Wish::Wanted(bits) if !VA_BITS.contains(&bits) => Some(Refused::NoSuchVaBits(bits)),
        Wish::Wanted(bits) if bits < least || bits > most => {
            Some(Refused::VaBitsCpuLacks(bits, page_size))
        }
        Wish::Wanted(bits) => {
            return VaBitsChoice {
                bits,
                source: Source::CommandLine,
                notes: Notes::EMPTY,
            };
        }
    };
    let mut notes = Notes::EMPTY;
    if let Some(wish) = refused {
        notes.push(Source::CommandLine, wish);
    }
    VaBitsChoice {
        bits: DEFAULT,
        source: Source::Fallback,
        notes,
    }
}

/// A wish that was refused, or granted with a warning. Its [`Display`](fmt::Display) form is one
/// line: the origin of the wish, the wish, the reason, and what would work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceNote {
    /// The origin of the wish.
    pub by: Source,
    /// The wish, and the reason for the note.
    pub wish: Refused,
}

impl fmt::Display for ChoiceNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.by {
            Source::CommandLine => "command line",
            Source::MachineTable => "machine table",
            Source::BuildDefault => "build default",
            Source::Fallback => "fallback",
        };
        write!(f, "{who}: {}", self.wish)
    }
}

/// A wish, and why it was refused or needs a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The text is not a page size.
    #[error("arm64.pagesize={0} ignored: expected 4k, 16k or 64k")]
    NotAPageSize(Text),
    /// The kernel has no code for this page size, only for the sizes of the set.
    #[error("page size {0} ignored: this kernel was built for {1} only")]
    PageSizeNotBuilt(PageSize, SizeSet),
    /// The CPU does not have this page size.
    #[error("page size {0} ignored: this CPU does not have it (ID_AA64MMFR0_EL1)")]
    PageSizeCpuLacks(PageSize),
    /// The machine must not use this page size.
    #[error("page size {0} ignored: the machine table forbids it on this machine")]
    PageSizeForbidden(PageSize),
    /// The machine must not use this page size, but the command line requests it: the size is used.
    #[error("page size {0} taken, though the machine table forbids it on this machine")]
    ForbiddenButAsked(PageSize),
    /// The machine must not use any size that the CPU has: this size is used all the same.
    #[error("every page size that this CPU has is forbidden on this machine: taking {0}")]
    AllForbidden(PageSize),
    /// The text is not a number of bits.
    #[error("arm64.vabits={0} ignored: expected 36, 39, 42, 47, 48 or 52")]
    NotAVaSize(Text),
    /// This number of bits is not among [`VA_BITS`].
    #[error("arm64.vabits={0} ignored: expected 36, 39, 42, 47, 48 or 52")]
    NoSuchVaBits(u32),
    /// The CPU does not have this number of bits with this page size.
    #[error("arm64.vabits={0} ignored: this CPU does not have {feature}", feature = wide(*.1))]
    VaBitsCpuLacks(u32, PageSize),
}

/// Names the feature by which a CPU has more than 48 bits of virtual address.
const fn wide(size: PageSize) -> &'static str {
    match size {
        PageSize::K4 => "FEAT_LPA2 for 4k pages (ID_AA64MMFR0_EL1.TGRAN4)",
        PageSize::K16 => "FEAT_LPA2 for 16k pages (ID_AA64MMFR0_EL1.TGRAN16)",
        _ => "FEAT_LVA (ID_AA64MMFR2_EL1.VARange)",
    }
}

/// The notes, in the order of precedence of the wishes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Notes {
    notes: [Option<ChoiceNote>; Notes::CAPACITY],
}

impl Notes {
    /// At most: the command line, three preferences of the machine, the build's default, and the
    /// note that all sizes are forbidden.
    const CAPACITY: usize = 6;
    const EMPTY: Self = Self {
        notes: [None; Self::CAPACITY],
    };

    fn push(&mut self, by: Source, wish: Refused) {
        if let Some(free) = self.notes.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(ChoiceNote { by, wish });
        }
    }

    /// The notes in order.
    pub fn iter(&self) -> impl Iterator<Item = &ChoiceNote> {
        self.notes.iter().flatten()
    }

    /// Whether there are no notes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
