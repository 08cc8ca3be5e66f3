//! Builds the boot tables: the identity map of the switching code in TTBR0; image, device tree and console in
//! TTBR1. The library's walker builds them from the static pool, for the chosen page size and number of
//! address bits.

use super::park;
use crate::arch::image::{self, Permission};
use crate::handover::boot_record::Reason;
use crate::handover::{BootChoice, BootRoots, EntryInfo, MmuConfig, TreeInfo};
use crate::trace::early::Early;
use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::{
    Attributes, CpuFeatures, Descriptor, Geometry, Permissions, PhysicalAddress, Regime, VaRange,
    VirtualAddress,
};
use granule::linear::Arena;
use granule::table::{
    AnyPageTables, Leaves, Maintenance, Offset, TableEnvironment, TableError, Visibility,
};
use granule::{forward, hw};
use granule_boot::kaslr::{Kaslr, Purpose};
use granule_kcore::layout;
use granule_kcore::line::Line;
use granule_kcore::trace::area::Area;
use granule_trace::recorder::Traced;

pub(super) struct BootTables {
    pub(super) mmu: MmuConfig,
    pub(super) roots: BootRoots,
    /// The first page of the static pool that is not a table.
    pub(super) pool_next: u64,
}

/// Builds the tables, or parks with the reason.
pub(super) fn build(
    entry: &EntryInfo,
    tree: &TreeInfo,
    choice: &BootChoice,
    kaslr: Kaslr,
    trace: Area,
    early: Early,
) -> BootTables {
    let cpu = entry.features();
    let page_size = choice.page.size;
    let upper = Geometry::new(
        &cpu,
        page_size,
        choice.va.bits,
        VaRange::Upper,
        Regime::El1And0,
    );
    let Ok(upper) = upper else {
        park::park(
            Reason::Tables,
            b"the chosen page size and VA size do not go together",
        );
    };
    // Only as many address bits as the image needs: one table level fewer if it lies low, and enough if it
    // lies above the range of the kernel's own VA size.
    let image_end = entry.load + image::bytes();
    let needed = 64 - image_end.leading_zeros();
    let least = cpu.least_va_bits(page_size);
    let bits = if needed < least { least } else { needed };
    let Ok(lower) = upper.with_va_range(&cpu, VaRange::Lower, bits, page_size) else {
        park::park(
            Reason::Tables,
            b"the image lies beyond the CPU's virtual addresses",
        );
    };
    let build = Build {
        entry,
        tree,
        cpu: &cpu,
        upper,
        lower,
        kimage_vaddr: kimage_vaddr(kaslr),
        trace,
        early,
    };
    match build.tables() {
        Ok(tables) => tables,
        Err(error) => {
            let mut message = Line::<224>::new();
            message.push(b"the boot tables cannot be built: ");
            message.push(text(error).as_bytes());
            park::park(Reason::Tables, message.bytes())
        }
    }
}

struct Build<'a> {
    entry: &'a EntryInfo,
    tree: &'a TreeInfo,
    cpu: &'a CpuFeatures,
    upper: Geometry,
    lower: Geometry,
    kimage_vaddr: u64,
    trace: Area,
    early: Early,
}

/// The virtual address of the image's first byte.
fn kimage_vaddr(kaslr: Kaslr) -> u64 {
    let Some(seed) = kaslr.seed() else {
        return layout::KIMAGE_VADDR;
    };
    let places = layout::kimage_places(image::bytes());
    layout::kimage_vaddr(
        seed.choose(Purpose::ImagePart, layout::KIMAGE_SPANS),
        seed.choose(Purpose::ImagePlace, places),
    )
}

/// The error as one line of constant text. Numbers cannot be formatted here.
const fn text(error: TableError) -> &'static str {
    match error {
        TableError::OutOfTables { .. } => {
            "the static table pool is too small; the image was linked wrongly"
        }
        TableError::OutputTooLarge { .. } => {
            "image, device tree, console or trace lie beyond the CPU's physical addresses"
        }
        TableError::OutsideSpace { .. } => "a range lies outside the chosen virtual address space",
        TableError::AlreadyMapped { .. } => "two boot mappings overlap",
        TableError::Misaligned { .. } => "a range is not whole pages of the chosen size",
        TableError::WrongPageSize { .. } => "geometry and tables have different page sizes",
        TableError::Unsorted { .. }
        | TableError::NotMapped { .. }
        | TableError::InsideLeaf { .. } => {
            "the table code refused a new mapping as a change of an old one"
        }
        _ => "the table code refused, for a reason unknown here",
    }
}

impl Build<'_> {
    fn tables(&self) -> Result<BootTables, TableError> {
        let load = self.entry.load;
        let pool = image::static_pool();
        let page_size = self.upper.page_size();
        let page = page_size.bytes();
        // SAFETY: nothing else uses the static pool, and with the MMU off a physical address is the pointer.
        let arena = unsafe {
            Arena::new(
                Offset::new(0),
                PhysicalAddress(load.wrapping_add(pool.start)),
                PhysicalAddress(load.wrapping_add(pool.end)),
                page_size,
            )
        };
        let environment = Traced::new(Flat(arena), self.early);
        let mut low = AnyPageTables::new(self.lower, environment)?;
        let code = (load + image::idmap_text().start) & !(page - 1);
        let executable = Attributes::normal(Permissions::READ_EXECUTE);
        map(
            &mut low,
            VirtualAddress(code),
            PhysicalAddress(code),
            page,
            executable,
            Leaves::PAGES,
        )?;
        let (low_root, mut high) = low.begin_another(self.upper).map_err(|(error, _)| error)?;
        for segment in image::segments() {
            let permissions = match segment.permission {
                Permission::Text => Permissions::READ_EXECUTE,
                Permission::ReadOnly => Permissions::READ,
                Permission::ReadWrite => Permissions::READ_WRITE,
            };
            // Writable parts are in pages, because some of them are freed and unmapped later.
            let leaves = match segment.permission {
                Permission::ReadWrite => Leaves::PAGES,
                _ => Leaves::LARGEST,
            };
            let start = segment.range.start;
            map(
                &mut high,
                VirtualAddress(self.kimage_vaddr.wrapping_add(start)),
                PhysicalAddress(load + start),
                segment.range.end.wrapping_sub(start),
                Attributes::normal(permissions),
                leaves,
            )?;
        }
        // Rounded out to the chosen page and no further: memory beside the tree must not be mapped.
        let dtb = self.entry.dtb & !(page - 1);
        let dtb_end = (self.entry.dtb + self.tree.bytes + page - 1) & !(page - 1);
        let read_only = Attributes::normal(Permissions::READ);
        let window = VirtualAddress(layout::dtb_vaddr(dtb));
        map(
            &mut high,
            window,
            PhysicalAddress(dtb),
            dtb_end - dtb,
            read_only,
            Leaves::PAGES,
        )?;
        // The first mapping of the fixmap makes the table that all its slots share. Without a UART it is a
        // constant page of the image.
        let (first, attributes) = match self.tree.uart {
            None => (load & !(page - 1), read_only),
            Some(uart) => (uart.base & !(page - 1), Attributes::device()),
        };
        let slot = VirtualAddress(layout::in_slot(layout::UART_VADDR, first));
        map(
            &mut high,
            slot,
            PhysicalAddress(first),
            page,
            attributes,
            Leaves::PAGES,
        )?;
        if self.trace.is_wanted() {
            map(
                &mut high,
                VirtualAddress(layout::trace_vaddr(self.trace.start)),
                PhysicalAddress(self.trace.start),
                self.trace.bytes,
                Attributes::normal(Permissions::READ_WRITE),
                Leaves::LARGEST,
            )?;
        }
        // SAFETY: this CPU alone walks the trees, with the registers below, and until `mm` takes over
        // nothing changes them.
        let high = unsafe { high.make_live() };
        // SAFETY: as above; the barriers of `make_live` order the stores to both trees.
        let ttbr0 = unsafe { Ttbr::from_root(&self.lower, low_root, 0) };
        let ttbr1 = high.ttbr(0);
        let (high_root, environment) = high.into_parts();
        let (pool_next, _) = environment.inner().0.unused_pool();
        Ok(BootTables {
            mmu: MmuConfig {
                mair: Mair::STANDARD.0,
                tcr: Tcr::new(self.cpu, Some(&self.lower), Some(&self.upper)).0,
                ttbr0: ttbr0.bits(),
                ttbr1: ttbr1.bits(),
                virt_offset: self.kimage_vaddr.wrapping_sub(load),
            },
            roots: BootRoots {
                identity: low_root,
                lower: self.lower,
                kernel: high_root,
                upper: self.upper,
            },
            pool_next: pool_next.0,
        })
    }
}

/// See [`AnyPageTables::map`]. Not in line, because it has many callers.
#[inline(never)]
fn map<E: TableEnvironment>(
    tables: &mut AnyPageTables<E>,
    start: VirtualAddress,
    output: PhysicalAddress,
    bytes: u64,
    attributes: Attributes,
    leaves: Leaves,
) -> Result<(), TableError> {
    tables.map(start, output, bytes, attributes, leaves)
}

/// Tables of the arena with the MMU off: the address is the pointer. Plain stores for every visibility, since no
/// walker runs and atomics need not work on Device memory. Volatile, so that the compiler does not merge stores
/// into unaligned ones or use DC ZVA.
struct Flat(Arena<Offset>);

// SAFETY: each entry is read or written with one 64-bit access. The arena answers for the pages, and every
// instruction is issued.
unsafe impl TableEnvironment for Flat {
    const BY_POINTER: bool = false;

    forward!(self.0: reach allocate free pages reserve allocate_run allocate_aligned);

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        hw::issue(instruction);
    }

    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        let entry = self.reach(table).wrapping_add(index);
        // SAFETY: the caller names an entry of a table, which lies in the static pool.
        Descriptor(unsafe { entry.read_volatile() })
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        _visibility: Visibility,
    ) {
        let entry = self.reach(table).wrapping_add(index);
        // SAFETY: as for `load`.
        unsafe { entry.write_volatile(descriptor.0) };
    }
}
