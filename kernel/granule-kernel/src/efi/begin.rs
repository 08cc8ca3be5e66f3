//! The start of runtime services: firmware's lists are read, its memory is mapped, and its tables are seen to lie
//! where they say.

#![allow(unsafe_code, reason = "firmware's tables through firmware's mapping")]

use super::call::{self, Functions, Runtime};
use super::tables::{self, Roots};
use crate::arch::cpu;
use crate::exception::guarded::{self, Fault};
use crate::mm::kernel_tables::{self, Kernel, pointer};
use crate::mm::walker::Tree;
use core::fmt;
use core::mem::offset_of;
use granule::arch::{CpuFeatures, GeometryError, PhysicalAddress, VaRange};
use granule::table::TableError;
use granule_boot::efi::{Map, MemoryAttributes, Physical, Supported};
use granule_boot::expand::Request;
use granule_boot::tree::Range;
use granule_kcore::efi::runtime::{Plan, Refusal};
use uefi_raw::table::Header;
use uefi_raw::table::runtime::RuntimeServices;
use uefi_raw::table::system::SystemTable;

/// The address bits of firmware's memory, whatever the kernel's own half has: each CPU has them with each page size.
/// At more, the lower half would need another format with 4K and 16K pages.
const BITS: u32 = 48;

/// What the boot knows of the firmware.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// The firmware's tables.
    pub(crate) request: Request,
    /// The memory of the memory attributes table.
    pub(crate) attributes: Option<Range>,
    /// The services that the firmware supports.
    pub(crate) supported: Supported,
    /// Whether the command line allows the services.
    pub(crate) are_wanted: bool,
    pub(crate) boot_cpu: CpuFeatures,
}

/// Why runtime services are off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Off {
    Unwanted,
    /// The memory map cannot be read.
    Map,
    Plan(Refusal),
    Geometry(GeometryError),
    Tables(TableError),
    /// A table of the firmware is not where it should be.
    Table(&'static str),
    /// A table is in the firmware's lists, and nothing is there.
    Read(Fault),
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwanted => f.write_str("efi=noruntime is in the command line"),
            Self::Map => f.write_str("the EFI memory map is not in RAM that is mapped"),
            Self::Plan(refusal) => write!(f, "{refusal}"),
            Self::Geometry(error) => write!(f, "the lower half has no shape: {error}"),
            Self::Tables(error) => write!(f, "{error}"),
            Self::Table(what) => f.write_str(what),
            Self::Read(fault) => write!(f, "the firmware's tables cannot be read: {fault}"),
        }
    }
}

impl From<Refusal> for Off {
    fn from(refusal: Refusal) -> Self {
        Self::Plan(refusal)
    }
}

impl From<TableError> for Off {
    fn from(error: TableError) -> Self {
        Self::Tables(error)
    }
}

/// RAM, through the linear map.
struct Mapped<'k>(&'k Kernel);

impl Physical for Mapped<'_> {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let page = self.0.page();
        let end = start.checked_add(bytes)?;
        let mut pages = (start & !(page - 1)..end).step_by(page as usize);
        let is_mapped = pages.all(|address| {
            let address = self.0.placement.virtual_address(PhysicalAddress(address));
            address.is_some_and(|address| cpu::translate(address.0).is_ok())
        });
        let first = pointer(PhysicalAddress(start)).filter(|_| is_mapped)?;
        // SAFETY: the range was just seen to be mapped. It is reserved, and nothing writes it.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), bytes as usize) })
    }
}

/// Maps what the services need, and turns them on. Returns the number of regions.
///
/// # Errors
///
/// Why they stay off.
// Not inlined: the boot's stack frame stays under every later call, so this one must not be part of it.
#[inline(never)]
pub(crate) fn begin(inputs: &Inputs) -> Result<usize, Off> {
    let kernel = kernel_tables::kernel().filter(|_| inputs.are_wanted);
    let kernel = kernel.ok_or(Off::Unwanted)?;
    let memory = Mapped(kernel);
    let request = &inputs.request;
    let list = memory.read(request.map.start, request.map.bytes);
    let map = list.and_then(|list| Map::new(list, request.descriptor, request.version).ok());
    let map = map.ok_or(Off::Map)?;
    let table = inputs.attributes;
    // It was read with the MMU off; what is not there any more counts as no table.
    let table = table.and_then(|table| MemoryAttributes::read(&memory, table.start).ok());
    let upper = &kernel.geometry;
    let lower = upper
        .with_va_range(&inputs.boot_cpu, VaRange::Lower, BITS)
        .map_err(Off::Geometry)?;
    let plan = Plan::new(map, table.map(|table| table.descriptors), &lower)?;
    let system = plan.address(request.system_table);
    let system = system.ok_or(Off::Table(
        "the EFI system table is in none of their regions",
    ))?;
    let look = |tables: &dyn Tree| {
        let is_there = is_table::<SystemTable>(tables, system);
        is_there.then_some(()).ok_or(Off::Table(
            "the EFI system table is not aligned, or reaches out of their regions",
        ))
    };
    let supported = inputs.supported;
    let functions = |tables: &dyn Tree, roots: &Roots| functions(tables, roots, system, supported);
    let (roots, functions) = tables::make(
        kernel,
        &inputs.boot_cpu,
        &lower,
        plan.pieces(),
        look,
        functions,
    )?;
    call::turn_on(Runtime { roots, functions });
    Ok(plan.regions())
}

/// Whether a table of the firmware may be read at an address.
fn is_table<T>(tables: &dyn Tree, at: u64) -> bool {
    at.is_multiple_of(align_of::<T>() as u64)
        && tables::is_mapped(tables, at, size_of::<T>() as u64, false)
}

/// The addresses of the services, which the system table at `system` leads to.
fn functions(
    tables: &dyn Tree,
    roots: &Roots,
    system: u64,
    supported: Supported,
) -> Result<Functions, Off> {
    let words = |at: u64, offsets: [usize; 4]| {
        let mut words = [0; 4];
        let read = || {
            for (word, offset) in words.iter_mut().zip(offsets) {
                // SAFETY: interrupts are masked, and the caller has seen that the table is mapped and aligned. That
                // memory is behind the mapping is the firmware's word, hence the guard.
                *word = unsafe { guarded::read(at + offset as u64) }?;
            }
            Ok(words)
        };
        roots.masked(read).map_err(Off::Read)
    };
    let [signature, services, ..] =
        words(system, [0, offset_of!(SystemTable, runtime_services), 0, 0])?;
    if signature != SystemTable::SIGNATURE {
        return Err(Off::Table(
            "the EFI system table does not begin with IBI SYST",
        ));
    }
    if !is_table::<RuntimeServices>(tables, services) {
        return Err(Off::Table(
            "the table of EFI's runtime services is not aligned, or not in their regions",
        ));
    }
    let [signature, ..] = words(services, [0; 4])?;
    if signature != SERVICES {
        return Err(Off::Table(
            "the table of EFI's runtime services does not begin with RUNTSERV",
        ));
    }
    let all = words(
        services,
        [
            offset_of!(RuntimeServices, get_variable),
            offset_of!(RuntimeServices, get_next_variable_name),
            offset_of!(RuntimeServices, set_variable),
            offset_of!(RuntimeServices, reset_system),
        ],
    )?;
    let is_code = |at: &u64| at.is_multiple_of(4) && tables::is_mapped(tables, *at, 4, true);
    if !all.iter().any(is_code) {
        return Err(Off::Table(
            "none of EFI's runtime services is code in their regions",
        ));
    }
    let [get_variable, next_variable, set_variable, reset_system] = all;
    let only = |at: u64, service: u32| Some(at).filter(|at| supported.has(service) && is_code(at));
    Ok(Functions {
        get_variable: only(get_variable, Supported::GET_VARIABLE),
        next_variable: only(next_variable, Supported::NEXT_VARIABLE),
        set_variable: only(set_variable, Supported::SET_VARIABLE),
        reset_system: only(reset_system, Supported::RESET_SYSTEM),
    })
}

/// The signature of the table of services.
const SERVICES: u64 = u64::from_le_bytes(*b"RUNTSERV");

const _: () = assert!(offset_of!(Header, signature) == 0);
