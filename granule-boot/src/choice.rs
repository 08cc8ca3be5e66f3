//! Choosing the page size and the VA size: pure functions of what the CPU has and who wishes what.
//!
//! Nothing is read here and nothing printed. A wish that cannot be granted falls through to the
//! next one in line and leaves a [`Note`], which prints as one line once there is a console; so does a
//! wish of the user that is granted against the table of machines.

use super::bytes::Text;
use super::machines::Machine;
use super::sizes::SizeSet;
use core::fmt;
use granule::arch::{CpuFeatures, PageSize};

/// What somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish<T> {
    /// Nothing.
    Absent,
    /// This.
    Wanted(T),
    /// Something that cannot be read as a value at all.
    Garbled(Text),
}

/// Who decided, or wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The kernel command line.
    CommandLine,
    /// The table of machines.
    MachineTable,
    /// The default set when the kernel was built.
    BuildDefault,
    /// Nobody: it is what is left.
    Fallback,
}

impl Source {
    /// The name in records for programs: `command-line`, `machine-table`, `build-default` or
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

/// All that the choice of a page size depends on.
#[derive(Clone, Copy, Debug)]
pub struct PageSizeInputs<'a> {
    /// The sizes that the CPU has: [`CpuFeatures`] give them by [`Into`].
    pub cpu: SizeSet,
    /// The sizes that the kernel has code for: [`SizeSet::ALL`], or fewer where it was built for
    /// fewer.
    pub built: SizeSet,
    /// The command line, as [`words::page_size`](super::words::page_size) reads it.
    pub command_line: Wish<PageSize>,
    /// The machine's entry, as [`machines::find`](super::machines::find) finds it.
    pub machine: Option<&'a Machine>,
    /// The default set when building.
    pub build_default: Option<PageSize>,
}

/// The page size, who chose it, and which wishes fell through on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizeChoice {
    /// The size to boot with.
    pub size: PageSize,
    /// Who chose it.
    pub source: Source,
    /// The wishes that were not granted.
    pub notes: Notes,
}

/// There is no page size to boot with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPageSize;

impl NoPageSize {
    /// The reason code for the boot record.
    pub const CODE: u32 = 0x0301;

    /// What happened, as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        "this CPU has none of the page sizes that this kernel was built for (ID_AA64MMFR0_EL1)"
    }
}

impl fmt::Display for NoPageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for NoPageSize {}

/// Chooses the page size: the command line, else what the machine prefers, else the build's
/// default, else the smallest size that the CPU and the kernel have and the machine may use.
///
/// A size that the table of machines forbids is taken if the command line asks for it, with a note: the
/// table can be wrong, and a user who asks wants to find out.
///
/// The fallback is the smallest size and not the largest, because small pages are what software
/// and devices take for granted and waste the least memory. A machine that may use none of its
/// CPU's sizes gets the CPU's smallest, with a note: the table can be wrong, and a kernel that
/// does not start helps nobody to find out.
///
/// # Errors
///
/// [`NoPageSize`] if the CPU has no page size that the kernel has code for.
pub fn choose_page_size(inputs: &PageSizeInputs<'_>) -> Result<PageSizeChoice, NoPageSize> {
    let forbidden = inputs
        .machine
        .map_or(SizeSet::NONE, |machine| machine.forbidden);
    let mut notes = Notes::EMPTY;
    let mut granted = None;

    if let Wish::Garbled(text) = inputs.command_line {
        notes.push(Note {
            by: Source::CommandLine,
            wish: Refused::NotAPageSize(text),
        });
    }
    let mut ask = |source, size| {
        if granted.is_none() {
            if !inputs.built.has(size) {
                notes.push(Note {
                    by: source,
                    wish: Refused::PageSizeNotBuilt(size, inputs.built),
                });
            } else if !inputs.cpu.has(size) {
                notes.push(Note {
                    by: source,
                    wish: Refused::PageSizeCpuLacks(size),
                });
            } else if forbidden.has(size) && source != Source::CommandLine {
                notes.push(Note {
                    by: source,
                    wish: Refused::PageSizeForbidden(size),
                });
            } else {
                if forbidden.has(size) {
                    notes.push(Note {
                        by: source,
                        wish: Refused::ForbiddenButAsked(size),
                    });
                }
                granted = Some((size, source));
            }
        }
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
                notes.push(Note {
                    by: Source::MachineTable,
                    wish: Refused::AllForbidden(size),
                });
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

/// The VA sizes that are offered with every page size. Any size between 25 and 48 bits would do
/// for the architecture; these are the ones that fill a level or that other kernels use. The last
/// needs FEAT_LPA2 (4K and 16K pages) or FEAT_LVA (64K pages).
pub const VA_BITS: [u32; 6] = [36, 39, 42, 47, 48, 52];

/// The VA size, and whether it was wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaBitsChoice {
    /// The bits of a virtual address, one of [`VA_BITS`].
    pub bits: u32,
    /// [`Source::CommandLine`] or [`Source::Fallback`].
    pub source: Source,
    /// The wish that was not granted, if there was one.
    pub notes: Notes,
}

/// Chooses the VA size: the command line's if it is one of [`VA_BITS`] and the CPU has it with
/// this page size, else 48.
///
/// 48 bits and not 52 where nobody asks, because every CPU has them, the fifth level of tables
/// that 4K pages would need costs every walk a step, and 128 TiB of linear map are enough for the
/// RAM there is. What limits RAM is its distance from the lowest bank, not its address: RAM that
/// lies above 48 bits of *physical* address needs the 52-bit descriptor format, which goes with a
/// VA size of 48 as well; only RAM spread over more than half the VA size needs a wish for 52.
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
        notes.push(Note {
            by: Source::CommandLine,
            wish,
        });
    }
    VaBitsChoice {
        bits: DEFAULT,
        source: Source::Fallback,
        notes,
    }
}

/// A wish that was not granted. Its [`Display`](fmt::Display) form is one line that says who
/// wished what, why it cannot be, and what would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who wished it.
    pub by: Source,
    /// What was wished, and why it was refused.
    pub wish: Refused,
}

/// What was wished, and why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// This text is not a page size.
    NotAPageSize(Text),
    /// The kernel was built without code for this page size, for these only.
    PageSizeNotBuilt(PageSize, SizeSet),
    /// The CPU does not have this page size.
    PageSizeCpuLacks(PageSize),
    /// The machine must not use this page size.
    PageSizeForbidden(PageSize),
    /// The machine must not use this page size, and the command line asks for it: it is taken.
    ForbiddenButAsked(PageSize),
    /// The machine must not use any size that the CPU has; this one was taken all the same.
    AllForbidden(PageSize),
    /// This text is not a number of bits.
    NotAVaSize(Text),
    /// This number of bits is not among [`VA_BITS`].
    NoSuchVaBits(u32),
    /// The CPU does not have this number of bits with this page size.
    VaBitsCpuLacks(u32, PageSize),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.by {
            Source::CommandLine => "command line",
            Source::MachineTable => "machine table",
            Source::BuildDefault => "build default",
            Source::Fallback => "fallback",
        };
        write!(f, "{who}: ")?;
        match self.wish {
            Refused::NotAPageSize(text) => {
                write!(f, "arm64.pagesize={text} ignored: expected 4k, 16k or 64k")
            }
            Refused::PageSizeNotBuilt(size, built) => {
                write!(
                    f,
                    "page size {size} ignored: this kernel was built for {built} only"
                )
            }
            Refused::PageSizeCpuLacks(size) => {
                write!(
                    f,
                    "page size {size} ignored: this CPU does not have it (ID_AA64MMFR0_EL1)"
                )
            }
            Refused::PageSizeForbidden(size) => {
                write!(
                    f,
                    "page size {size} ignored: the machine table forbids it on this machine"
                )
            }
            Refused::ForbiddenButAsked(size) => {
                write!(
                    f,
                    "page size {size} taken, though the machine table forbids it on this machine"
                )
            }
            Refused::AllForbidden(size) => write!(
                f,
                "every page size that this CPU has is forbidden on this machine: taking {size}"
            ),
            Refused::NotAVaSize(text) => {
                write!(
                    f,
                    "arm64.vabits={text} ignored: expected 36, 39, 42, 47, 48 or 52"
                )
            }
            Refused::NoSuchVaBits(bits) => {
                write!(
                    f,
                    "arm64.vabits={bits} ignored: expected 36, 39, 42, 47, 48 or 52"
                )
            }
            Refused::VaBitsCpuLacks(bits, size) => {
                let feature = match size {
                    PageSize::K4 => "FEAT_LPA2 for 4k pages (ID_AA64MMFR0_EL1.TGRAN4)",
                    PageSize::K16 => "FEAT_LPA2 for 16k pages (ID_AA64MMFR0_EL1.TGRAN16)",
                    _ => "FEAT_LVA (ID_AA64MMFR2_EL1.VARange)",
                };
                write!(
                    f,
                    "arm64.vabits={bits} ignored: this CPU does not have {feature}"
                )
            }
        }
    }
}

/// The wishes that were not granted, in the order of their weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Notes {
    notes: [Option<Note>; Notes::CAPACITY],
}

impl Notes {
    /// The command line, three preferences of the machine, the build's default, and the line that
    /// all sizes are forbidden: there cannot be more.
    const CAPACITY: usize = 6;
    const EMPTY: Self = Self {
        notes: [None; Self::CAPACITY],
    };

    fn push(&mut self, note: Note) {
        if let Some(free) = self.notes.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(note);
        }
    }

    /// The notes, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().flatten()
    }

    /// Whether every wish was granted.
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
