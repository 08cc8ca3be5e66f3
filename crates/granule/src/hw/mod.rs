//! The instructions of the running CPU: all assembly of the library. For arm64 only.
//!
//! - [`environment`] makes the [`TableEnvironment`](crate::table::TableEnvironment) of a kernel that starts, and
//!   [`issue`] issues the TLBIs and barriers of page tables for any other.
//! - [`cpu_features`] reads the ID registers.
//! - [`cache`] has cache maintenance, which tables that are written with the MMU off need.
//! - [`enable`] turns translation on, and [`enable_stage2`] that of a guest.
//! - [`resolve_tlb_conflict`] and [`tlb_conflict_vector!`](crate::tlb_conflict_vector) handle TLB
//!   conflict aborts.
//!
//! No other module of the library imports this one: page tables issue instructions only through a
//! trait, so a test, a model or a recorder can replace the hardware. At EL0 most of these
//! instructions trap, so this module is for code without an operating system below it.
//!
//! # From MMU off to on
//!
//! A CPU with its MMU off accesses memory past the caches. What the caches hold of the same memory
//! stays there: dirty lines that a boot loader left would be written back over new tables, and
//! lines that are fetched by speculation hide them. So each piece of memory that is written with
//! the MMU off takes two steps of maintenance, one before and one after. The steps, in order:
//!
//! 1. **Entry**, in assembly, before the first store: [`cache::clean_and_invalidate`] for all
//!    memory that will be written with the MMU off, which is `.data`, `.bss`, the stack and the
//!    pool of tables. Then set the stack pointer, and clear `.bss`. SCTLR gets a known value
//!    ([`Sctlr::off`](crate::arch::Sctlr::off)). With the MMU off code must not use atomics,
//!    unaligned accesses or SIMD registers that spill unaligned, because all memory is Device
//!    memory.
//! 2. **Page size**: [`cpu_features`] reports which sizes the CPU has; choose one, and the
//!    [`Geometry`](crate::arch::Geometry) of each half. One call of
//!    [`PageSize::dispatch`](crate::arch::PageSize::dispatch) enters the code for it.
//! 3. **Tables**: [`PageTables::new`](crate::table::PageTables::new), then `map` the code, its
//!    data, its stack and the console to their own addresses. They are private, so no TLBI is
//!    issued.
//! 4. **Registers**: [`make_live`](crate::table::PageTables::make_live) gives the value for TTBR,
//!    and with it [`enable`] computes those of all registers.
//! 5. **Maintenance**: [`cache::invalidate`] for the memory of step 1. No later than here the tables
//!    hold all that is needed; later changes are made with the MMU on.
//! 6. **Switch**: [`enable`].
//! 7. **Vectors**, if live leaves are ever split: see [below](#tlb-conflict-aborts).
//!
//! ```no_run,standalone_crate
//! use core::ops::Range;
//! use granule::arch::{
//!     Attributes, Geometry, Page, Permissions, PhysicalAddress, Regime, VaRange, VirtualAddress,
//! };
//! use granule::hw;
//! use granule::table::{Leaves, Live, PageTables, TableEnvironment};
//!
//! /// Maps a program to itself and turns the MMU on.
//! ///
//! /// # Safety
//! ///
//! /// The MMU is off. `text` has all code and constants of the program. `data` has all that is
//! /// written, the stack and the pool of tables among it, and was cleaned and invalidated before
//! /// the first store to it. The TLB operations of `environment` are the hardware's.
//! unsafe fn mmu_on<P: Page, E: TableEnvironment>(
//!     environment: E,
//!     text: Range<u64>,
//!     data: Range<u64>,
//! ) -> Result<Live<PageTables<P, E>>, Box<dyn core::error::Error>> {
//!     let cpu = hw::cpu_features();
//!     let geometry = Geometry::new(&cpu, P::SIZE, 39, VaRange::Lower, Regime::El1And0)?;
//!     let mut tables = PageTables::<P, E>::new(geometry, environment)?;
//!     for (range, permissions) in [
//!         (&text, Permissions::READ_EXECUTE),
//!         (&data, Permissions::READ_WRITE),
//!     ] {
//!         let (start, bytes) = (range.start, range.end - range.start);
//!         let attributes = Attributes::normal(permissions);
//!         let (from, to) = (VirtualAddress(start), PhysicalAddress(start));
//!         tables.map(from, to, bytes, attributes, Leaves::LARGEST)?;
//!     }
//!     // SAFETY: the hardware's TLB operations reach this CPU, which gets the registers below.
//!     let live = unsafe { tables.make_live() };
//!     // SAFETY: the MMU was off until here, so no line of the data is dirty.
//!     unsafe { hw::cache::invalidate(data) };
//!     // SAFETY: the tables map the whole program to itself, and stay.
//!     unsafe { hw::enable(&cpu, Some((&geometry, live.ttbr(0))), None)? };
//!     Ok(live)
//! }
//! ```
//!
//! `examples/bare-metal` in the repository is a whole kernel that does this, and
//! `examples/firmware` does it at EL3 and EL2.
//!
//! # TLB conflict aborts
//!
//! A CPU of FEAT_BBM level 1 or 2 may take such an abort after a live leaf changed its size, as
//! long as its TLB holds entries of both sizes (RNGLXZ, IHYQMB). The abort is synchronous and
//! nothing was accessed, so the handler removes this CPU's entries and the instruction is retried.
//! A system that has the handler may set `handles_conflicts: true` to
//! [`SystemLimits::decide`](crate::arch::bbm_policy::SystemLimits::decide).
//!
//! Whatever the handler touches before the TLB is empty must lie in memory whose mapping never
//! changes size, or the abort recurs for ever: the vectors and the handler's code, its stack, and
//! its data. Map the kernel's image apart from the memory that is split, or never split its leaves.
//!
//! - [`tlb_conflict_vector!`](crate::tlb_conflict_vector) is assembly for the vector itself. It
//!   uses no stack and no data, so only its code must be in such memory.
//! - [`resolve_tlb_conflict`] is for a handler in Rust. The vector has stored registers before it
//!   is called, so the stack must be in such memory too.

mod barriers;
pub mod cache;
mod conflict;
mod enable;
mod environment;
mod id;
mod tlb;

pub use barriers::{dsb_ishst, dsb_nsh, dsb_sy, isb};
pub use conflict::resolve_tlb_conflict;
pub use enable::{enable, enable_stage2};
pub use environment::environment;
pub use id::{cpu_features, exception_level};
pub use tlb::{invalidate_local, issue};
