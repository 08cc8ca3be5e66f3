//! Loadable modules: loads a file into the vmalloc area, calls its functions, and takes it out again.
//!
//! [`granule_kcore::module`] reads the file; [`exports`] has the functions that a module may call, [`disk`] the disk
//! that it may add, [`guard`] a few of its objects between guard pages, [`syscall`] the calls of programs.
//!
//! # Loading
//!
//! 1. The file is read and refused before any memory is taken.
//! 2. An area of the vmalloc window gets its sections, relocated for their place. It is writable and not executable.
//! 3. The code is made visible to instruction fetches. Code and constants become read-only, in the linear map too,
//!    and then the code executable. No page is ever writable and executable through its two mappings together.
//! 4. Every CPU passes a context synchronisation event, so that none has fetched from the place before.
//! 5. `module_init` runs. If it fails, all is undone.
//!
//! One module is loaded or unloaded at a time, by the holder of [`MODULES`], which calls the module's functions. A
//! module is in use while a program has its disk open; its functions run in calls of such programs only, so none runs
//! when it is unloaded. With user space the last modules go too.

#![allow(unsafe_code, reason = "memory and functions of modules")]

pub(crate) mod disk;
pub(crate) mod exports;
pub(crate) mod guard;
pub(crate) mod syscall;

use crate::arch::cpu;
use crate::cpu::ipi;
use crate::lock::{Lock, UnmaskedLock};
use crate::mm::error::LinearError;
use crate::mm::kernel_tables;
use crate::mm::pageattr::{set_memory_ro, set_memory_x};
use crate::mm::vmalloc::Area;
use crate::percpu;
use crate::task::frames::sync_instructions;
use arrayvec::{ArrayString, ArrayVec};
use core::fmt;
use core::ops::Range;
use granule::arch::VirtualAddress;
use granule_kcore::module::{Entries, Module, Part, Refused};
use granule_linux_abi::abi::Errno;
use granule_module::{BUILD, MOST_NAME_BYTES};
use thiserror::Error;

/// The most modules at a time.
const MOST_MODULES: usize = 16;

type Name = ArrayString<MOST_NAME_BYTES>;

/// A module that is loaded.
#[derive(Debug)]
struct Loaded {
    name: Name,
    area: Area,
    entries: Entries,
    has_disk: bool,
}

static MODULES: UnmaskedLock<ArrayVec<Loaded, MOST_MODULES>> =
    UnmaskedLock::new(ArrayVec::new_const());

/// The addresses and names of all modules, for lines on the console.
static NAMES: Lock<ArrayVec<(Range<u64>, Name), MOST_MODULES>> = Lock::new(ArrayVec::new_const());

/// Why a module is not loaded or unloaded.
#[derive(Clone, Copy, Debug, Error)]
enum Refusal<'a> {
    #[error("{0}")]
    File(Refused<'a>),
    #[error("{0} is loaded already; unload it first")]
    Exists(&'a str),
    #[error("{MOST_MODULES} modules are loaded; unload one")]
    TooMany,
    #[error("there is no memory for its {0:#x} bytes")]
    Memory(u64),
    #[error("its pages cannot be made read-only: {0}")]
    Permissions(LinearError),
    #[error("module_init of {0} returned {1}")]
    Init(&'a str, i32),
    #[error("no module {name} is loaded", name = .0.escape_ascii())]
    NotLoaded(&'a [u8]),
    #[error("module {name} is in use: a program has its disk open", name = .0.escape_ascii())]
    InUse(&'a [u8]),
    #[error("descriptor {0} is not a file that is open for reading")]
    Descriptor(u64),
    #[error("the program has no memory at {0:#x}")]
    Address(u64),
    #[error("modules take no parameters; expected an empty text")]
    Parameters,
    #[error("flags {0:#x} are not supported; expected 0")]
    Flags(u64),
}

impl Refusal<'_> {
    fn errno(&self) -> Errno {
        match self {
            Self::File(Refused::Missing(_)) | Self::NotLoaded(_) => Errno::ENOENT,
            Self::File(_) => Errno::ENOEXEC,
            Self::Exists(_) => Errno::EEXIST,
            Self::TooMany | Self::Memory(_) | Self::Permissions(_) => Errno::ENOMEM,
            Self::Init(_, error) => Errno::of(error.wrapping_neg()).unwrap_or(Errno::EINVAL),
            Self::InUse(_) => Errno::EAGAIN,
            Self::Descriptor(_) => Errno::EBADF,
            Self::Address(_) => Errno::EFAULT,
            Self::Parameters | Self::Flags(_) => Errno::EINVAL,
        }
    }
}

/// Loads a module.
fn load(file: &[u8]) -> Result<(), Refusal<'_>> {
    let page = kernel_tables::kernel().map_or(0, kernel_tables::Kernel::page);
    let module = Module::read(file, BUILD, page).map_err(Refusal::File)?;
    MODULES.with(|modules| {
        let name = module.name();
        if modules.iter().any(|loaded| loaded.name.as_str() == name) {
            return Err(Refusal::Exists(name));
        }
        if modules.is_full() {
            return Err(Refusal::TooMany);
        }
        let (area, entries) = place(&module, page)?;
        let mut loaded = Loaded {
            name: Name::from(name).unwrap_or_default(),
            area,
            entries,
            has_disk: false,
        };
        loaded.begin(name)?;
        modules.push(loaded);
        Ok(())
    })
}

/// Puts a module into memory with its permissions.
fn place<'a>(module: &Module<'a>, page: u64) -> Result<(Area, Entries), Refusal<'a>> {
    let bytes = module.bytes();
    let mut area = Area::new(bytes).ok_or(Refusal::Memory(bytes))?;
    let start = area.start();
    // SAFETY: the area is new, and its memory is used here alone.
    let memory = unsafe { area.memory() };
    let entries = module.load(start.0, memory, exports::find);
    let entries = entries.map_err(Refusal::File)?;
    let (code, constants) = (module.part(Part::Code), module.part(Part::Constants));
    area.each_run(code.clone(), sync_instructions);
    let pages = |range: &Range<u64>| (range.end - range.start) / page;
    let at = |range: &Range<u64>| VirtualAddress(start.0 + range.start);
    set_memory_ro(at(&code), pages(&code))
        .and_then(|()| set_memory_ro(at(&constants), pages(&constants)))
        .and_then(|()| set_memory_x(at(&code), pages(&code)))
        .map_err(Refusal::Permissions)?;
    ipi::call(percpu::online(), &|_| cpu::isb());
    Ok((area, entries))
}

impl Loaded {
    /// Calls `module_init`, and shows the disk that it added.
    fn begin<'a>(&mut self, name: &'a str) -> Result<(), Refusal<'a>> {
        let range = self.area.start().0..self.area.start().0 + self.area.bytes();
        NAMES.with(|names| drop(names.try_push((range, self.name))));
        // SAFETY: the loader has seen that the address is in the module's code, which is mapped; the function has
        // this type by the interface, whose hash the module's equals.
        let init: extern "C" fn() -> i32 =
            unsafe { core::mem::transmute(self.entries.init as *const ()) };
        let (result, has_disk) = disk::while_adding(|| init());
        self.has_disk = has_disk;
        if result != 0 {
            self.hide();
            return Err(Refusal::Init(name, result));
        }
        disk::show();
        Ok(())
    }

    /// Takes the disk away, which no program has open, and the name.
    fn hide(&mut self) {
        if core::mem::take(&mut self.has_disk) {
            disk::remove();
        }
        let start = self.area.start().0;
        NAMES.with(|names| names.retain(|(range, _)| range.start != start));
    }

    /// Calls `module_exit`. The memory goes with the value.
    fn end(&mut self) {
        if core::mem::take(&mut self.has_disk) {
            disk::remove();
        }
        // SAFETY: as for `init`.
        let exit: extern "C" fn() = unsafe { core::mem::transmute(self.entries.exit as *const ()) };
        exit();
        self.hide();
    }
}

/// Unloads a module.
fn unload(name: &[u8]) -> Result<(), Refusal<'_>> {
    MODULES.with(|modules| {
        let mut all = modules.iter();
        let number = all.position(|loaded| loaded.name.as_bytes() == name);
        let number = number.ok_or(Refusal::NotLoaded(name))?;
        let in_use = |loaded: &Loaded| loaded.has_disk && !disk::close();
        if modules.get(number).is_some_and(in_use) {
            return Err(Refusal::InUse(name));
        }
        modules.remove(number).end();
        Ok(())
    })
}

/// Unloads all modules, the last one first. No program is left that could use one.
fn unload_all() {
    MODULES.with(|modules| {
        while let Some(mut loaded) = modules.pop() {
            loaded.end();
        }
    });
}

/// An address in a module, as the module's name and an offset.
struct Place(u64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A panic must not wait.
        let found = NAMES.try_with(|names| {
            let found = names.iter().find(|(range, _)| range.contains(&self.0))?;
            Some((found.1, self.0 - found.0.start))
        });
        match found.flatten() {
            Some((name, offset)) => write!(f, "{name}+{offset:#x}"),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Calls `what` with the name of the module that has `address`, and the offset in it.
fn with_name<R>(address: u64, what: impl FnOnce(&str, u64) -> R) -> Option<R> {
    let found = NAMES.with(|names| {
        let found = names.iter().find(|(range, _)| range.contains(&address))?;
        Some((found.1, address - found.0.start))
    });
    found.map(|(name, offset)| what(&name, offset))
}
