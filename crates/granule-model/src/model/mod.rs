//! The machine: applies events to the state, and checks the rules.
//!
//! Each file here handles one kind of event: it changes the state, and gives each rule the parts of
//! the state that the rule needs. Only the [`rules`](crate::rules) decide what is a violation.

mod access;
mod assume_visible;
mod barrier;
mod cache;
mod error;
mod invalidate;
mod link;
mod registers;
mod store;
mod table_memory;
mod unchecked;
mod user;

pub use error::EventError;
pub use unchecked::Unchecked;

use crate::arch::barrier::decode as decode_barrier;
use crate::arch::context::{self, Space};
use crate::arch::tlbi::Tlbi;
use crate::config::Config;
use crate::rules::cache_visibility::CacheVisibility;
use crate::rules::contiguous::ContiguousGroups;
use crate::rules::lost_update::LostUpdates;
use crate::rules::no_translation::NoTranslationBlocks;
use crate::rules::ordering::TableOrdering;
use crate::rules::table_memory::TableMemory;
use crate::state::cpu::Cpus;
use crate::state::ids::{PAGE_SHIFT, pages_of};
use crate::state::memory::Memory;
use crate::state::stale_tlb::StaleTlb;
use crate::state::tables::Tables;
use crate::violation::Violation;
use crate::violation::report::Report;
use granule_trace::{Event, System, Visibility};
use std::collections::BTreeSet;

use error::{MOST_DESCRIPTORS, MOST_PAGES, MOST_PENDING};
use store::Storer;

/// The model: memory, CPUs, TLBs and caches, and the violations found.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    // The state.
    memory: Memory,
    tables: Tables,
    stale: StaleTlb,
    cpus: Cpus,
    // The rules that keep something to check again later.
    groups: ContiguousGroups,
    blocks: NoTranslationBlocks,
    updates: LostUpdates,
    ordering: TableOrdering,
    table_memory: TableMemory,
    caches: CacheVisibility,
    /// The violations that the rules found.
    report: Report,
    /// The halves that go unchecked.
    unchecked: Vec<Unchecked>,
    /// Halves that a CPU cannot walk by the registers that an event wrote, until its next ISB.
    refused: Vec<(u32, Space, u64)>,
}

/// The most entries that one event may make the model look at: some seconds of work.
const MOST_VISITS: u64 = 1 << 27;
/// The bound for all events together: this many entries, and `MORE_VISITS` more for each event.
const ALL_VISITS: u64 = 1 << 30;
const MORE_VISITS: u64 = 1 << 12;

/// The visibility of an update's stores: each entry changes in one step, because hardware may
/// change it too.
const fn in_one_step(visibility: Visibility) -> Visibility {
    match visibility {
        Visibility::Publish => Visibility::Publish,
        _ => Visibility::Exchange,
    }
}

/// Whether the model has rules for an event.
const fn is_known(event: &Event) -> bool {
    match *event {
        Event::Barrier(barrier) => decode_barrier(barrier).is_some(),
        Event::System(system, operand) => {
            context::regime_of(system).is_some()
                || matches!(system, System::SP_EL0)
                || Tlbi::of(system, operand).is_some()
                || system.is_instruction_cache()
        }
        Event::Lines { instruction, .. } => instruction.is_data_cache(),
        Event::Store { .. }
        | Event::Update { .. }
        | Event::Obtained { .. }
        | Event::Freed { .. }
        | Event::AssumeVisible { .. }
        | Event::Found { .. }
        | Event::Settled
        | Event::Data { .. }
        | Event::Code { .. }
        | Event::Reset
        | Event::At(_)
        | Event::Reused { .. }
        | Event::Missing(_)
        | Event::User => true,
        _ => false,
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
            stale: StaleTlb::default(),
            cpus: Cpus::new(config.cpus, config.tlb_unknown_at_reset),
            groups: ContiguousGroups::default(),
            blocks: NoTranslationBlocks::default(),
            updates: LostUpdates::default(),
            ordering: TableOrdering::new(config.policies),
            table_memory: TableMemory {
                tracked: config.track_tables == Some(true),
                ..TableMemory::default()
            },
            caches: CacheVisibility::default(),
            report: Report::new(config.most_violations),
            unchecked: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// The configuration of the machine.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the addresses for which lazy unmapping holds from here on ([`Config::lazy`]): a kernel may name them
    /// only once it runs.
    pub const fn bound_lazy_unmap(&mut self, range: Option<(u64, u64)>) {
        self.config.lazy = range;
    }

    /// Applies the next event of a CPU. Violations are added to [`violations`](Self::violations),
    /// and the model goes on as if the event had been correct.
    ///
    /// # Errors
    ///
    /// An [`EventError`] for an event that no machine of this configuration can produce; the
    /// model is as it was.
    pub fn event(&mut self, cpu: u32, event: Event) -> Result<(), EventError> {
        self.admit(cpu, &event)?;
        // At the end of a trace everything is relied on, and by no instruction.
        let by = (event != Event::Settled).then_some(cpu);
        self.report.next_event(by);
        let before = self.memory.visits();
        let all = ALL_VISITS.saturating_add(MORE_VISITS.saturating_mul(self.report.now()));
        self.memory.most_visits = all.min(before.saturating_add(MOST_VISITS));
        self.perform(cpu, event);
        if self.memory.visit(0) {
            Ok(())
        } else {
            let visits = self.memory.visits() - before;
            Err(EventError::TooManyEntries { visits })
        }
    }

    fn perform(&mut self, cpu: u32, event: Event) {
        // These events only mark points of the trace: the CPU itself does nothing.
        let acts = !matches!(
            event,
            Event::Reset
                | Event::Settled
                | Event::AssumeVisible { .. }
                | Event::At(_)
                | Event::Missing(_)
        );
        if acts && !self.cpus[cpu].started {
            self.start(cpu);
        }
        if acts {
            self.cpus[cpu].in_user = false;
        }
        match event {
            Event::Reset => self.reset(cpu),
            Event::Store {
                address,
                count,
                descriptor,
                step,
                visibility,
            } => {
                let by = Storer { cpu, visibility };
                self.store_descriptors(by, address, count.into(), |index, _| {
                    descriptor.wrapping_add(step.wrapping_mul(index))
                });
            }
            Event::Update {
                address,
                count,
                change,
                visibility,
            } => {
                let visibility = in_one_step(visibility);
                let by = Storer { cpu, visibility };
                self.store_descriptors(by, address, count.into(), |_, old| {
                    if old & change.of != 0 {
                        (old & !change.clear) | change.set
                    } else {
                        old
                    }
                });
            }
            Event::Data { start, bytes } => self.other_store(cpu, start, bytes, false),
            Event::Code { start, bytes } => self.other_store(cpu, start, bytes, true),
            Event::Barrier(barrier) => self.barrier(cpu, barrier),
            Event::System(system, value) => self.system(cpu, system, value),
            Event::Lines {
                instruction,
                start,
                bytes,
            } => self.cache_maintenance(cpu, instruction, start, bytes),
            Event::Obtained { start, bytes } => self.obtained(start, bytes),
            Event::Freed { start, bytes } => self.freed(cpu, start, bytes),
            Event::AssumeVisible { start, bytes, asid } => {
                self.assume_visible(cpu, start, bytes, asid);
            }
            Event::Found {
                address,
                descriptor,
            } => self.found(cpu, address, descriptor),
            Event::Settled => self.sync(cpu),
            Event::Reused { start, bytes } => self.reused(start, bytes),
            Event::User => self.enter_user(cpu),
            Event::At(address) => self.execute(cpu, address),
            // `is_known` has refused all other events.
            _ => {}
        }
    }

    /// A register write, a TLBI, or an invalidation of instruction caches.
    fn system(&mut self, cpu: u32, system: System, value: u64) {
        if system.is_instruction_cache() {
            self.invalidate_instructions(cpu, system);
        } else if let Some(op) = Tlbi::of(system, value) {
            self.tlbi(cpu, system, op);
        } else if system == System::SP_EL0 {
            self.cpus[cpu].task = value;
        } else if let Some(regime) = context::regime_of(system) {
            self.write_register(cpu, regime, system, value);
        }
    }

    fn admit(&self, cpu: u32, event: &Event) -> Result<(), EventError> {
        if cpu >= self.config.cpus {
            let cpus = self.config.cpus;
            return Err(EventError::NoSuchCpu { cpu, cpus });
        }
        if !is_known(event) {
            return Err(EventError::Unknown { event: *event });
        }
        let waits = match event {
            Event::System(system, _) => !system.is_register(),
            Event::Lines { .. } => true,
            _ => false,
        };
        let pending = self.cpus[cpu].waiting();
        if waits && pending >= MOST_PENDING {
            let pending = pending as u64;
            return Err(EventError::TooManyPending { pending });
        }
        let (address, bytes, descriptors) = match *event {
            Event::Store { address, count, .. } | Event::Update { address, count, .. } => {
                (address, u64::from(count) * 8, Some(count))
            }
            Event::Found { address, .. } => (address, 8, Some(1)),
            Event::Data { start, bytes }
            | Event::Code { start, bytes }
            | Event::Lines { start, bytes, .. }
            | Event::Reused { start, bytes }
            | Event::Obtained { start, bytes }
            | Event::Freed { start, bytes } => (start, bytes, None),
            _ => return Ok(()),
        };
        if descriptors.is_some() && address % 8 != 0 {
            return Err(EventError::Misaligned { address });
        }
        if address.checked_add(bytes).is_none_or(|end| end > 1 << 52) {
            return Err(EventError::OutsideMemory { address, bytes });
        }
        if let Some(count) = descriptors {
            if count > MOST_DESCRIPTORS {
                return Err(EventError::TooManyDescriptors { count });
            }
            if self.memory.pages() >= MOST_PAGES
                && let Some(number) =
                    pages_of(address, bytes).find(|number| self.memory.page(*number).is_none())
            {
                let address = address.max(number << PAGE_SHIFT);
                return Err(EventError::TooMuchMemory { address });
            }
        }
        Ok(())
    }

    /// The violations found so far, at most [`Config::most_violations`] of them.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.report.kept()
    }

    /// The halves that no rule was applied to, since their registers name no tables that the machine
    /// can walk.
    #[must_use]
    pub fn unchecked(&self) -> &[Unchecked] {
        &self.unchecked
    }

    /// The number of violations, kept or only counted.
    #[must_use]
    pub const fn violation_count(&self) -> u64 {
        self.report.count()
    }

    /// Forgets the violations found so far; the state of the machine stays.
    pub fn clear_violations(&mut self) {
        self.report.clear();
    }

    /// The page sizes in bytes of all trees walked so far, in order and each once.
    #[must_use]
    pub fn page_sizes(&self) -> Vec<u64> {
        let granules = self.tables.contexts().iter().map(|one| one.format.granule);
        let sizes: BTreeSet<u64> = granules.map(|granule| 1 << granule.shift()).collect();
        sizes.into_iter().collect()
    }

    /// The page size in bytes of the first tree that a kernel, a hypervisor or firmware walked; of
    /// the first tree of all if none did.
    #[must_use]
    pub fn page_size(&self) -> Option<u64> {
        let contexts = self.tables.contexts();
        let privileged = contexts.iter().find(|one| one.space.is_privileged());
        let first = privileged.or_else(|| contexts.first())?;
        Some(1 << first.format.granule.shift())
    }

    /// The number of entries looked at so far: the cost of the events.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.memory.visits()
    }

    /// The number of TLBIs and pieces of cache maintenance that wait for a DSB.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.cpus.waiting()
    }

    /// The number of pages of 4 KiB, stale ranges and trees kept: the model's memory grows with it.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.memory.pages() + self.stale.len() + self.tables.roots().count()
    }

    /// The number of events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.report.now()
    }

    /// The descriptor in memory now at a physical address.
    #[must_use]
    pub fn descriptor(&self, address: u64) -> u64 {
        self.memory.load(address)
    }
}
