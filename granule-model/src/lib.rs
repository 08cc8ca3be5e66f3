//! The arm64 MMU, TLBs and caches at their most hostile: a checker for code that changes page
//! tables.
//!
//! Emulators forgive nearly everything: their TLBs drop entries early and they have no caches.
//! [`Model`] is told what CPUs do ([`Event`]) and keeps everything that the architecture (Arm
//! ARM DDI 0487, chapter D8) lets them still see. What is broken is a [`Violation`]; what an
//! access may result in is a list of [`Outcome`]s.
//!
//! ```
//! use granule_model::{Access, Barrier, Config, Event, Model, System, Visibility};
//!
//! let mut model = Model::new(Config { tlb_unknown_at_reset: false, ..Config::default() });
//! let mut event = |event| model.event(0, event);
//! // One block of 1 GiB with 4K pages and 39-bit addresses, and the MMU on.
//! let store = |descriptor| Event::Store {
//!     address: 0x1000,
//!     count: 1,
//!     descriptor,
//!     step: 0,
//!     visibility: Visibility::Live,
//! };
//! event(store(0x4000_0000 | 1 | 1 << 10))?;
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
//! event(store(0x8000_0000 | 1 | 1 << 10))?;
//! assert_eq!(model.violations()[0].rule.name(), "RWHZWS");
//! assert_eq!(model.outcomes(0, 0x1234, Access::READ).len(), 2);
//! # Ok::<(), granule_model::EventError>(())
//! ```
//!
//! # How it sees the machine
//!
//! Nothing is random. Instead of one TLB that may hold this or that the model keeps the *set* of
//! what each may hold, by what differs from the tables: while an entry stands, any TLB may hold
//! it and nothing is written down; when it is replaced or can no longer be reached, it (and all
//! that it led to) becomes a *range* of stale entries of those CPUs that could have walked to it,
//! and it goes when an invalidation that the architecture says must remove it is complete. A range
//! is any number of neighbouring entries, so a trace that invalidates what it replaces keeps
//! the model as large as its tables. One that never does makes it grow with every entry that it
//! replaces by another, and with every address space that it never invalidates, until
//! [`EventError`] says that it is too much: descriptors of one event, pages of tables, TLBIs that
//! wait for a DSB and entries to look at are all bounded.
//!
//! | | |
//! | --- | --- |
//! | walkers | may see the old or the new value of a store until the storing CPU's DSB; what a CPU speculated until its next ISB. Tables that a store or register write makes reachable must be sure to be seen first |
//! | TLBs | any leaf with the access flag, any table entry, for as long as above; contiguous members one by one (RLQLSD) |
//! | registers | the fields that TLBs hold (TG, TxSZ, IPS, DS, HPD, HA, HD, MAIR) must not change between two walks without an invalidation of all of the regime, whether the MMU is off in between or not |
//! | groups | a lookup of a member may take any other member that has the contiguous bit for it (RJQQTC), or conflict with those that have not (RNGLXZ) |
//! | blocks with nT | may translate or fault (RMRRPW), and are not to be relied on |
//! | TLBI | reaches what its operand, form, scope, level and granule hints say, if walkers could no longer read the old value when it was issued; complete at a DSB of its CPU (NSH for local ones); for the CPU itself after an ISB |
//! | changes | each entry that becomes valid is compared with every stale one for its addresses: RWHZWS, with the relaxations of the BBM level (RPVTFW) |
//! | data caches | each line of 64 bytes may be unwritten (stored through the caches, not cleaned) or outdated (stored past them, not invalidated) for any length of time |
//! | instruction caches | code stored is stale until it is cleaned, a DSB completed that, and then IC and DSB are done |
//! | CPUs that start | read what was stored as data or code past the caches from their first event on, and hear of no TLBI before it |
//!
//! Stale entries are no violation by themselves. They are reported where they meet what they must
//! not meet, when a table that they lead to is freed or filled, and when the tables are relied on:
//! at [`Event::Settled`], [`Event::Relied`] and [`Model::access`].
//!
//! # What it takes for worse than it is
//!
//! * A CPU that leaves an address space may hold all of it until its ASID, or everything, is
//!   invalidated; invalidations by address while it is away do not count towards that, unless the
//!   tree has no entry left by then.
//! * Fields that TLBs hold count as held once a half was walked by them, were its tables empty:
//!   who changes T0SZ between an invalidation and another tree of the lower half uses EPD0.
//! * Entries of the upper half that are not global belong to an unknown ASID: only operations for
//!   all ASIDs remove them.
//! * An entry that points to another table than before needs break-before-make, whatever the two
//!   hold. Read-only pages may move in place only with [`Config::equal_contents`].
//! * All CPUs have one BBM level. What one of a higher level changes while the others are off the
//!   tables is judged by the lower one.
//! * Lines stored with the MMU off are outdated in the caches even if they were invalidated
//!   before the store and nothing could have fetched them since.
//! * Spurious faults are not taken for granted: permissions that were widened are relied on only
//!   after an invalidation.
//! * Tables of which entries were never stored since they were obtained are reported, even if
//!   memory happens to be zero.
//!
//! # What it cannot see
//!
//! * Contents of memory other than descriptors; who holds which lock. A store-release is taken to
//!   order what other CPUs stored earlier in the trace, and DMB to order stores for walkers.
//! * Stage 2, VMIDs, Secure state, FEAT_D128, FEAT_S1PIE, FEAT_HAFT, FEAT_CnP's sharing of TLBs, tags, PAN,
//!   E0PD, TBID, PBHA. The EL2&0 regime is treated as EL1&0. [`Event::Relied`] is about the
//!   first regime of EL1&0, EL2, EL3 whose MMU the CPU has on.
//! * Whether walks are shareable with who stores (TCR.SH0, SH1), and whether CPUs that share
//!   tables agree on MAIR and TCR.
//! * What firmware or a boot loader left in the data and instruction caches, but with
//!   [`Config::caches_unknown_at_reset`]; loads with the MMU off of what it left there.
//! * Data stored over a table, and table memory obtained while it still is a table.
//! * When hardware updates an entry: with TCR.HA a leaf without the access flag may be cached and
//!   with TCR.HD a clean page is writable, but memory changes only where it is said
//!   ([`Model::update_by_hardware`]), which traces do not. A plain store that may lose an update is
//!   reported whether there was one or not, but one that empties an entry only when what may be
//!   lost is stored there again.
//! * The order of the stores within one bulk event, and what a walker makes of a half done one.
//! * Exceptions as context synchronisation: record an ISB where one is relied on.
//! * Which mapping a store went through: whether it is cached follows from the CPU's SCTLR.
//!   Maintenance by set and way is not known. DC CVAU counts as done when issued.
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
pub use config::Config;
pub use granule_trace::{Barrier, BarrierKind, BitChange, Event, System, Visibility};
pub use model::{EventError, Model};
pub use violation::{Miss, Rule, Violation};
