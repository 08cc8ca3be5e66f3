//! The model as a whole: it takes events, and hands each to the file that knows about it.

pub(crate) mod access;
mod barrier;
mod cache;
mod invalidate;
mod registers;
mod store;
mod table_memory;

use crate::arch::context::{Context, Space};
use crate::config::Config;
use crate::event::{Event, EventKind, Order};
use crate::rules::lost_update::Suspect;
use crate::state::cpu::Cpu;
use crate::state::memory::{Memory, PAGE_SHIFT};
use crate::state::stale_range::{ContextId, Run};
use crate::state::stale_tlb::Stale;
use crate::state::tables::{TableId, Tables};
use crate::violation::{Log, Miss, Rule, Violation};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Memory, CPUs, TLBs and caches, and what was found wrong.
#[derive(Debug)]
pub struct Model {
    pub(crate) config: Config,
    pub(crate) memory: Memory,
    pub(crate) tables: Tables,
    /// The contexts that trees were ever read in.
    pub(crate) contexts: Vec<Context>,
    context_ids: HashMap<Context, ContextId>,
    pub(crate) stale: Stale,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) log: Log,
    /// The event in hand, counted from 1.
    pub(crate) now: u64,
    /// Groups that must be in order when they are next relied on: first entry and table.
    pub(crate) suspect_groups: BTreeSet<(u64, TableId)>,
    /// Blocks that were stored with the nT bit, and the events.
    pub(crate) suspect_blocks: BTreeMap<u64, u64>,
    /// Entries that hardware might have been updating when a plain store made them invalid.
    pub(crate) suspect_updates: BTreeMap<u64, Suspect>,
    /// Something that decides what accesses find in caches changed since that was last checked.
    pub(crate) lines_changed: bool,
    /// Pages with tables that were stored in a way that walkers may not see.
    pub(crate) suspect_pages: BTreeSet<u64>,
    /// Pages with tables that hold stores which only the storing CPU has seen.
    pub(crate) unseen_pages: BTreeSet<u64>,
    /// Table memory was obtained at least once.
    pub(crate) tables_tracked: bool,
    /// Some context ever had walks that are not cached.
    pub(crate) uncached_walks: bool,
}

/// An event that cannot have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventError {
    /// There is no such CPU.
    NoSuchCpu {
        /// The event's.
        cpu: u32,
        /// How many there are.
        cpus: u32,
    },
    /// A descriptor's address is not a multiple of 8.
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Addresses beyond 52 bits.
    OutsideMemory {
        /// The first address.
        address: u64,
        /// The bytes from there.
        bytes: u64,
    },
    /// More descriptors in one event than a table has.
    TooManyDescriptors {
        /// How many.
        count: u64,
    },
    /// Descriptors in more pages than the model takes.
    TooMuchMemory {
        /// The first page too many.
        address: u64,
    },
    /// More TLBIs, or cache maintenance, than the model takes without a DSB.
    TooManyPending {
        /// How many.
        pending: u64,
    },
    /// The event concerns more entries than the model goes through: tables that are shared
    /// count as often as there are ways to them. The model is not as it was, and of no more use.
    TooManyEntries {
        /// Entries and ways looked at.
        visits: u64,
    },
}

/// Descriptors of one event at most: those of eight of the largest tables, of 64 KiB.
const MOST_DESCRIPTORS: u64 = 8 * 8192;
/// Pages of 4 KiB that descriptors were stored in, at most: 4 GiB of tables.
const MOST_PAGES: usize = 1 << 20;
/// TLBIs, and lines of cache maintenance, that wait for one DSB at most.
const MOST_PENDING: usize = 1 << 20;
/// Entries that one event may make the model look at: some seconds.
const MOST_VISITS: u64 = 1 << 27;
/// And all events together: so many, and so many more for each event.
const ALL_VISITS: u64 = 1 << 30;
const MORE_VISITS: u64 = 1 << 12;

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchCpu { cpu, cpus } => {
                write!(f, "CPU {cpu} does not exist, there are {cpus}")
            }
            Self::Misaligned { address } => {
                write!(
                    f,
                    "a descriptor at {address:#x}, which is not a multiple of 8"
                )
            }
            Self::OutsideMemory { address, bytes } => {
                write!(f, "{bytes:#x} bytes from {address:#x} reach beyond 52 bits")
            }
            Self::TooManyDescriptors { count } => write!(
                f,
                "{count} descriptors in one event, expected at most {MOST_DESCRIPTORS}, \
                 as in eight tables of 64 KiB: write a line for each table"
            ),
            Self::TooMuchMemory { address } => write!(
                f,
                "descriptors at {address:#x}, and in {MOST_PAGES} other pages before: \
                 more tables than can be checked"
            ),
            Self::TooManyPending { pending } => write!(
                f,
                "{pending} TLBIs and cache operations wait for a DSB, more than can be checked: \
                 a DSB is missing, or not in the trace"
            ),
            Self::TooManyEntries { visits } => write!(
                f,
                "{visits} entries to look at, more than can be checked: \
                 tables share tables in too many ways"
            ),
        }
    }
}

impl std::error::Error for EventError {}

/// A violation as the checks see it, before the event is added.
pub(crate) struct Found {
    pub(crate) rule: Rule,
    pub(crate) earlier: Option<u64>,
    pub(crate) missed: Option<(u64, Miss)>,
    pub(crate) cpu: u32,
    pub(crate) range: (u64, u64),
    pub(crate) is_virtual: bool,
    pub(crate) location: Option<u64>,
    pub(crate) observation: String,
}

impl Found {
    /// Something about virtual addresses.
    pub(crate) fn at(rule: Rule, cpu: u32, range: (u64, u64), text: impl Into<String>) -> Self {
        Self {
            rule,
            earlier: None,
            missed: None,
            cpu,
            range,
            is_virtual: true,
            location: None,
            observation: text.into(),
        }
    }

    /// Something about physical addresses.
    pub(crate) fn in_memory(
        rule: Rule,
        cpu: u32,
        range: (u64, u64),
        text: impl Into<String>,
    ) -> Self {
        Self {
            is_virtual: false,
            ..Self::at(rule, cpu, range, text)
        }
    }

    /// Something about a stale run.
    pub(crate) fn of_run(rule: Rule, run: &Run, text: impl Into<String>) -> Self {
        Self {
            earlier: Some(run.event),
            missed: run.missed,
            location: Some(run.location),
            ..Self::at(rule, run.cpus.trailing_zeros(), (run.va, run.last()), text)
        }
    }

    pub(crate) const fn because_of(mut self, event: u64) -> Self {
        self.earlier = if event == 0 { None } else { Some(event) };
        self
    }

    pub(crate) const fn located(mut self, address: u64) -> Self {
        self.location = Some(address);
        self
    }
}

/// Each entry that an update changes is changed in one step, where hardware may change it too.
const fn in_one_step(order: Order) -> Order {
    match order {
        Order::Plain => Order::Exchange,
        other => other,
    }
}

impl Model {
    /// A machine just after reset: all MMUs off, memory zero.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Config {
            cpus: config.cpus.clamp(1, 64),
            bbm_level: config.bbm_level.min(3),
            pa_bits: config.pa_bits.clamp(32, 52),
            ..config
        };
        Self {
            config,
            memory: Memory::default(),
            tables: Tables::default(),
            contexts: Vec::new(),
            context_ids: HashMap::new(),
            stale: Stale::default(),
            cpus: (0..config.cpus)
                .map(|_| Cpu::new(config.cpus, config.tlb_unknown_at_reset))
                .collect(),
            log: Log::new(config.most_violations),
            now: 0,
            suspect_groups: BTreeSet::new(),
            suspect_blocks: BTreeMap::new(),
            suspect_updates: BTreeMap::new(),
            lines_changed: false,
            suspect_pages: BTreeSet::new(),
            unseen_pages: BTreeSet::new(),
            tables_tracked: config.track_tables == Some(true),
            uncached_walks: false,
        }
    }

    /// What the machine is.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Takes the next event. What it breaks is added to [`violations`](Self::violations), and
    /// the model goes on as if it had been right.
    ///
    /// # Errors
    ///
    /// An [`EventError`] for an event that no machine of this configuration can produce; the
    /// model is as it was.
    pub fn event(&mut self, event: Event) -> Result<(), EventError> {
        self.admit(&event)?;
        self.now += 1;
        let before = self.memory.visits();
        let all = ALL_VISITS.saturating_add(MORE_VISITS.saturating_mul(self.now));
        self.memory.most_visits = all.min(before.saturating_add(MOST_VISITS));
        self.perform(event);
        if self.memory.visit(0) {
            Ok(())
        } else {
            let visits = self.memory.visits() - before;
            Err(EventError::TooManyEntries { visits })
        }
    }

    fn perform(&mut self, event: Event) {
        let cpu = event.cpu;
        // Who relies is asked by the reader of a trace, and does nothing by that.
        let acts = !matches!(
            event.kind,
            EventKind::Reset | EventKind::Sync | EventKind::Relied { .. }
        );
        if acts && !self.cpus[cpu as usize].started {
            self.start(cpu);
        }
        match event.kind {
            EventKind::Reset => self.reset(cpu),
            EventKind::RegisterWrite { register, value } => {
                self.write_register(cpu, register, value);
            }
            EventKind::StoreDescriptor {
                address,
                value,
                order,
            } => self.store_run(cpu, address, 1, order, |_, _| value),
            EventKind::FillDescriptors {
                address,
                count,
                first,
                step,
                order,
            } => self.store_run(cpu, address, count, order, |index, _| {
                first.wrapping_add(step.wrapping_mul(index))
            }),
            EventKind::UpdateDescriptors {
                address,
                count,
                of,
                clear,
                set,
                order,
            } => self.store_run(cpu, address, count, in_one_step(order), |_, old| {
                if old & of != 0 {
                    (old & !clear) | set
                } else {
                    old
                }
            }),
            EventKind::OtherStore {
                address,
                bytes,
                purpose,
            } => self.other_store(cpu, address, bytes, purpose),
            EventKind::Barrier(barrier) => self.barrier(cpu, barrier),
            EventKind::Tlbi(op) => self.tlbi(cpu, op),
            EventKind::Cache { op, address, bytes } => {
                self.cache_maintenance(cpu, op, address, bytes);
            }
            EventKind::InstructionCache { scope } => self.invalidate_instructions(cpu, scope),
            EventKind::TableObtained { address, bytes } => self.obtained(address, bytes),
            EventKind::TableFreed { address, bytes } => self.freed(cpu, address, bytes),
            EventKind::Relied { address, bytes } => self.relied(cpu, address, bytes),
            EventKind::Sync => self.sync(cpu),
        }
    }

    fn admit(&self, event: &Event) -> Result<(), EventError> {
        if event.cpu >= self.config.cpus {
            return Err(EventError::NoSuchCpu {
                cpu: event.cpu,
                cpus: self.config.cpus,
            });
        }
        if let EventKind::Tlbi(_) | EventKind::Cache { .. } | EventKind::InstructionCache { .. } =
            event.kind
        {
            let state = &self.cpus[event.cpu as usize];
            let pending = state.tlbis.len() + state.lines.len();
            if pending >= MOST_PENDING {
                let pending = pending as u64;
                return Err(EventError::TooManyPending { pending });
            }
        }
        let (address, bytes) = match event.kind {
            EventKind::StoreDescriptor { address, .. } => (address, 8),
            EventKind::FillDescriptors { address, count, .. }
            | EventKind::UpdateDescriptors { address, count, .. } => {
                (address, count.saturating_mul(8))
            }
            EventKind::OtherStore { address, bytes, .. }
            | EventKind::Cache { address, bytes, .. }
            | EventKind::TableObtained { address, bytes }
            | EventKind::TableFreed { address, bytes } => (address, bytes),
            _ => return Ok(()),
        };
        let descriptors = matches!(
            event.kind,
            EventKind::StoreDescriptor { .. }
                | EventKind::FillDescriptors { .. }
                | EventKind::UpdateDescriptors { .. }
        );
        if descriptors && address % 8 != 0 {
            return Err(EventError::Misaligned { address });
        }
        if address.checked_add(bytes).is_none_or(|end| end > 1 << 52) {
            return Err(EventError::OutsideMemory { address, bytes });
        }
        if descriptors {
            if bytes > MOST_DESCRIPTORS * 8 {
                return Err(EventError::TooManyDescriptors { count: bytes / 8 });
            }
            if self.memory.pages() >= MOST_PAGES
                && let Some(number) = Memory::numbers(address, bytes)
                    .find(|number| self.memory.page(*number).is_none())
            {
                let address = address.max(number << PAGE_SHIFT);
                return Err(EventError::TooMuchMemory { address });
            }
        }
        Ok(())
    }

    /// What was found so far, the first [`Config::most_violations`] of it.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.log.kept()
    }

    /// How many violations there were, kept or not.
    #[must_use]
    pub const fn violation_count(&self) -> u64 {
        self.log.count()
    }

    /// Forgets the violations found so far; the state of the machine stays.
    pub fn clear_violations(&mut self) {
        self.log.clear();
    }

    /// The sizes in bytes of the pages that some tree walked so far is made of, in order and
    /// each once.
    #[must_use]
    pub fn page_sizes(&self) -> Vec<u64> {
        let granules = self.contexts.iter().map(|one| one.format.granule);
        let sizes: BTreeSet<u64> = granules.map(|granule| 1 << granule.shift()).collect();
        sizes.into_iter().collect()
    }

    /// How many entries were looked at so far, which is what an event costs.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.memory.visits()
    }

    /// How many TLBIs and pieces of cache maintenance wait for a DSB.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let of = |cpu: &Cpu| cpu.tlbis.len() + cpu.lines.len();
        self.cpus.iter().map(of).sum()
    }

    /// How many pages of 4 KiB, stale runs and trees are kept: what the model's memory grows with.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.memory.pages() + self.stale.len() + self.tables.roots().count()
    }

    /// How many events there were.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.now
    }

    /// The descriptor at a physical address, as memory has it now.
    #[must_use]
    pub fn descriptor(&self, address: u64) -> u64 {
        self.memory.load(address)
    }

    pub(crate) fn report(&mut self, found: Found) {
        self.log.add(Violation {
            rule: found.rule,
            event: self.now.saturating_sub(1),
            earlier: found.earlier.map(|event| event.saturating_sub(1)),
            missed: found
                .missed
                .map(|(event, miss)| (event.saturating_sub(1), miss)),
            cpu: found.cpu,
            range: found.range,
            is_virtual: found.is_virtual,
            location: found.location,
            observation: found.observation,
            times: 1,
        });
    }

    /// The number of a context.
    pub(crate) fn context_id(&mut self, context: &Context) -> ContextId {
        let next = self.contexts.len() as ContextId;
        let id = *self.context_ids.entry(*context).or_insert(next);
        if id == next {
            self.contexts.push(*context);
            self.uncached_walks |= !context.cached_walks;
        }
        id
    }

    pub(crate) fn space_of(&self, run: &Run) -> Space {
        self.contexts[run.context as usize].space
    }
}
