//! A checker for code that changes page tables: a model of the arm64 MMU, TLBs and caches that
//! behaves as badly as the architecture allows.
//!
//! Emulators hide most mistakes: their TLBs drop entries early and they have no caches. [`Model`]
//! takes what CPUs do as [`Event`]s and keeps every value that the architecture (Arm ARM DDI 0487,
//! chapter D8) lets each CPU still see. A broken rule is a [`Violation`]; the possible results of
//! an access are a list of [`Outcome`]s.
//!
//! ```
//! use granule_model::{Access, Barrier, Config, Event, Model, System};
//!
//! let mut model = Model::new(Config { tlb_unknown_at_reset: false, ..Config::default() });
//! let mut event = |event| model.event(0, event);
//! // One block of 1 GiB with 4K pages and 39-bit addresses, and the MMU on.
//! event(Event::store(0x1000, 0x4000_0000 | 1 | 1 << 10))?;
//! for (register, value) in [
//!     (System::TCR_EL1, 25 | 1 << 23 | 0b101 << 32),
//!     (System::TTBR0_EL1, 0x1000),
//!     (System::SCTLR_EL1, 1),
//! ] {
//!     event(Event::Barrier(Barrier::DSB_SY))?;
//!     event(Event::System(register, value))?;
//!     event(Event::Barrier(Barrier::ISB))?;
//! }
//! // The block moves while it may be cached.
//! event(Event::store(0x1000, 0x8000_0000 | 1 | 1 << 10))?;
//! assert_eq!(model.violations()[0].rule.name(), "RWHZWS");
//! assert_eq!(model.outcomes(0, 0x1234, Access::READ).len(), 2);
//! # Ok::<(), granule_model::EventError>(())
//! ```
//!
//! # How the model keeps the machine
//!
//! Nothing is random. The model does not simulate one TLB; it keeps the *set* of entries that each
//! TLB may hold, as the difference from the tables. While an entry stands in the tables, any TLB
//! may hold it, and nothing is recorded. When the entry is replaced or becomes unreachable, the
//! entry and everything below it becomes a *range* of stale entries of the CPUs that could have
//! walked to it. The range goes when an invalidation completes that, by the architecture, must
//! remove it. A range covers any number of neighbouring entries, so for a trace that invalidates
//! what it replaces the model stays as large as the tables. A trace that never invalidates makes
//! the model grow with every entry it replaces by another and with every address space it leaves,
//! until the model returns [`EventError`]. Four counts are bounded: descriptors of one event, pages
//! of tables, TLBIs that wait for a DSB, and entries to look at.
//!
//! | | |
//! | --- | --- |
//! | walkers | may see the old or the new value of a store until the storing CPU's DSB, and a CPU may use speculated values until its next ISB. Stores to a table must be sure to be visible before a store or register write makes the table reachable |
//! | TLBs | may hold any leaf with the access flag and any table entry, for as long as described above; contiguous members one by one (RLQLSD), and a valid member for all addresses of its group |
//! | registers | the fields that TLBs hold (MAIR, SCTLR.WXN, and all of TCR but A1 and a set EPD) must not change between two walks without an invalidation of all of the regime, issued when the change is in effect, whether the MMU is off in between or not. What a TLB holds of a half is found there after EPD is set |
//! | groups | a lookup of a member may use any other member that has the contiguous bit (RJQQTC), or conflict with members that have not (RNGLXZ) |
//! | blocks with nT | may translate or fault (RMRRPW); software must not rely on them |
//! | TLBI | removes what its operand, form, scope, level and granule hints name, if walkers could no longer read the old value when it was issued; completes at a DSB of its CPU (NSH for local ones); takes effect for the CPU itself after an ISB. An entry that still stands in a table which was unlinked is found again as long as a pointer to the table is cached, and an emptied member of a contiguous group as long as another one is valid; one DSB for several TLBIs says nothing of their order |
//! | stage 2 | a guest's intermediate physical addresses are a regime of their own, by VMID. A walk of the guest may combine an entry of stage 2 with its own: the combined entry outlives a TLBI by intermediate physical address, until a later VMALLE1 that is issued after that TLBI completed, or until VMALLS12E1 or ALLE1 |
//! | changes | each entry that becomes valid is compared with every stale one for its addresses: RWHZWS, with the relaxations of the BBM level (RPVTFW) |
//! | data caches | each line of 64 bytes may be unwritten (stored through the caches, not cleaned) or outdated (stored past them, not invalidated) for any length of time |
//! | instruction caches | stored code is stale until it is cleaned, a DSB completes the clean, and then IC and DSB are done; a CPU may have fetched it before, until its ISB |
//! | CPUs that start | read data and code stored past the caches from their first event on, and receive no TLBI before it |
//!
//! A CPU may hold entries of several trees of one half at once, as long as these do not meet: leaves
//! that are not global meet those of their ASID, global ones everything. What was found of two trees
//! holds until one of them changes, so that a switch between them costs no walk.
//!
//! A stale entry alone is not a violation. The model reports a stale entry in four cases: an entry
//! that it must not coexist with becomes valid, a table that it leads to is freed or filled, the
//! memory that it leads to is taken for something else ([`Event::Reused`]), or the tables are
//! relied on (at [`Event::Settled`], [`Event::AssumeVisible`], [`Event::User`] and
//! [`Model::access`]). [`Policies`] name what a kernel leaves undone on purpose.
//!
//! # Where the model is stricter than the architecture
//!
//! * A CPU that leaves an address space may hold all of it until its ASID, or everything, is
//!   invalidated. Invalidations by address while the CPU is away do not count towards that, unless
//!   the tree has no entry left by then.
//! * Fields that TLBs hold count as held once a half was walked by them, even if its tables were
//!   empty. Software that changes T0SZ between an invalidation and another tree of the lower half
//!   must use EPD0.
//! * Entries of the upper half that are not global belong to the ASIDs that were in force while their
//!   tree was walked: only operations for all ASIDs remove them, and trees with an ASID in common meet.
//! * A TLBI removes what another CPU removed from the tables only after a DSB of that CPU. A DSB of
//!   the CPU of the TLBI may do as well, if something orders the store before it, such as a lock;
//!   no event records that ([`Miss::StoreOfAnotherCpu`]).
//! * An entry that changes to point to another table needs break-before-make, whatever the two
//!   tables hold. Read-only pages may move in place only with [`Config::equal_contents`].
//! * All CPUs have one BBM level. A change by a CPU of a higher level, made while the others do not
//!   use the tables, is still checked against the lower level.
//! * Lines stored with the MMU off are outdated in the caches even if they were invalidated before
//!   the store and nothing could have fetched them since.
//! * Widened permissions count as relied on only after an invalidation: the model does not assume
//!   that software handles spurious faults of stage 1, unless [`Policy::SpuriousFaults`] is set.
//! * A table is reported if some of its entries were never stored since it was obtained, even if
//!   its memory happens to be zero.
//!
//! # What it cannot see
//!
//! * Contents of memory other than descriptors, and locks. The model assumes that a store-release
//!   orders what other CPUs stored earlier in the trace, and that DMB orders stores for walkers.
//! * The guest's own tables as part of a guest: the trees of EL1&0 belong to one guest, whatever the
//!   VMID, and their table walks do not go through stage 2. Any entry of stage 2 counts as combined
//!   with some of the guest's, and operations of EL1&0 on one address or ASID leave it.
//! * Fields of VTCR_EL2 that TLBs hold for a guest that is not the last one to run on the CPU.
//! * Secure state, FEAT_D128, FEAT_S1PIE, FEAT_HAFT, FEAT_CnP's sharing of TLBs,
//!   tags, PAN, E0PD, TBID, PBHA. The EL2&0 regime is treated as EL1&0. [`Event::AssumeVisible`] is
//!   about the first regime of EL1&0, EL2, EL3 whose MMU the CPU has on, and about no guest:
//!   [`Event::Settled`] concerns those too.
//! * Which addresses software means to use while a CPU is parked on an empty tree of the lower half
//!   under an ASID: what it holds of that ASID's own tree stays valid, and is reported only where
//!   everything is relied on.
//! * What comes of a walk that misses that an access flag was cleared, where no barrier stands between
//!   that store and the link of its table: a TLB may then hold a page whose flag is clear in the tables.
//! * Whether the shareability of walks (TCR.SH0, SH1) includes the CPUs that store to the tables,
//!   and whether CPUs that share tables agree on MAIR and TCR.
//! * What firmware or a boot loader left in the data and instruction caches, except with
//!   [`Config::caches_unknown_at_reset`]; loads of such data with the MMU off.
//! * Data stored over a table that could be descriptors, and table memory obtained while it still is a table. A word
//!   that cannot be one (a reserved encoding, an address bit that is RES0) shows that the table is used for something else;
//!   from there on nothing that is stored to it counts, until it is linked again.
//! * Loads and stores of the guest by addresses: an entry that a CPU made valid since its last DSB and ISB is missed,
//!   unless an instruction of that CPU is there ([`Event::At`]).
//! * The time of a hardware update: with TCR.HA a leaf without the access flag may be cached and
//!   with TCR.HD a clean page is writable, but memory changes only at
//!   [`Model::update_by_hardware`], and where a trace records that software found the changed entry
//!   ([`Event::Found`]); an update that software never found is not known. A plain store that may
//!   lose an update is reported whether an update happened or not, but a plain store that empties
//!   an entry only when the possibly lost value is stored there again.
//! * The order of the stores within one bulk event, and what a walker finds halfway through it.
//! * Exceptions as context synchronisation: record an ISB where software relies on one.
//! * The mapping of a store: whether the store is cached follows from the CPU's SCTLR. Maintenance
//!   by set and way has no event: it reaches the CPU's own caches alone, so nothing that another observer
//!   relies on follows from it. DC CVAU counts as done when issued.
//! * Memory that is mapped with different memory types (Device and Write-Back): no event records
//!   which of the mappings software uses, and kernels keep an unused cacheable one of memory that a
//!   device shares.
//! * A half whose registers name no granule, or a size that the machine does not have:
//!   [`Model::unchecked`] names it.
//! * TLB conflict aborts that level 2 permits are results of accesses, and violations only with
//!   [`Config::strict`].
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod access;
mod arch;
mod config;
mod model;
mod rules;
mod state;
pub mod trace;
mod violation;

pub use access::{Access, AccessKind, FaultKind, Outcome, Translation};
pub use arch::descriptor::Rights;
pub use arch::regime::Regime;
pub use config::{Config, Lacks, Policies, Policy};
pub use granule_trace::{Barrier, BarrierKind, BitChange, Event, System, Text, Visibility};
pub use model::{EventError, Model, Unchecked};
pub use violation::{Miss, Rule, Violation};
