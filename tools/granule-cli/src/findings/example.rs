//! The worked example of a finding: the events that led to a violation, in their order, and what would mend
//! it. The last events are kept for that, so that a live run has them too.

use std::collections::VecDeque;

use granule_model::trace::write_event;
use granule_model::{BarrierKind, Event, Miss, Rule, System, Violation};
use schemars::JsonSchema;
use serde::Serialize;

use crate::json::{Hex, maybe_hex};

/// The events that are kept: some megabytes.
pub(super) const KEPT: usize = 1 << 16;
/// The most events of an example, of each kind that is chosen.
const MOST_OF_A_KIND: usize = 5;

/// An event of an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Step {
    /// Number, counted from 0.
    pub(crate) event: u64,
    /// CPU.
    pub(crate) cpu: u32,
    /// Virtual address of the instruction that it comes from, or null.
    #[serde(serialize_with = "maybe_hex")]
    #[schemars(with = "Option<Hex>")]
    pub(crate) address: Option<u64>,
    /// Place of the instruction, as `function+0x10 [module]`, or null.
    pub(crate) name: Option<String>,
    /// The event as a line of a trace.
    pub(crate) text: String,
    /// Its part in the violation, or empty.
    pub(crate) role: String,
}

#[derive(Clone, Copy, Debug)]
struct Past {
    number: u64,
    cpu: u32,
    address: Option<u64>,
    event: Event,
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct History {
    events: VecDeque<Past>,
    number: u64,
    /// The instruction that each CPU is at.
    at: Vec<Option<u64>>,
}

impl History {
    /// The next event.
    pub(super) fn add(&mut self, cpu: u32, event: Event) {
        let index = cpu as usize;
        if self.at.len() <= index {
            self.at.resize(index + 1, None);
        }
        let number = self.number;
        self.number += 1;
        if let (Event::At(address), Some(at)) = (event, self.at.get_mut(index)) {
            *at = Some(address);
            return;
        }
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        let address = self.at.get(index).copied().flatten();
        self.events.push_back(Past {
            number,
            cpu,
            address,
            event,
        });
    }

    /// The CPU of an event, if it is one of the last.
    pub(super) fn cpu_of(&self, number: u64) -> Option<u32> {
        let index = self
            .events
            .binary_search_by_key(&number, |past| past.number);
        Some(self.events.get(index.ok()?)?.cpu)
    }

    /// Whether what a violation conflicts with is one of the last events, or is not known at all.
    pub(super) fn has_cause(&self, violation: &Violation) -> bool {
        let first = self.events.front().map_or(0, |past| past.number);
        violation.earlier.is_none_or(|event| event >= first)
    }

    /// The steps to a violation of the last event.
    pub(super) fn steps(&self, violation: &Violation) -> Vec<Step> {
        let first = self.events.front().map_or(0, |past| past.number);
        let earlier = violation.earlier.filter(|event| *event != violation.event);
        let mut steps: Vec<Step> = Vec::new();
        let (mut orders, mut stores) = (0, 0);
        for past in self.events.iter().rev() {
            let Past { number, event, .. } = *past;
            let missed = violation.missed.filter(|(missed, _)| *missed == number);
            let role = if number == violation.event {
                format!("breaks {}", violation.rule.name())
            } else if let Some((_, miss)) = missed {
                miss.verdict()
            } else if earlier == Some(number) {
                "conflicts with this".into()
            } else if orders < MOST_OF_A_KIND
                && earlier.is_none_or(|earlier| number > earlier)
                && orders_of(past, violation)
            {
                orders += 1;
                String::new()
            } else if stores < MOST_OF_A_KIND && stores_to(&event, violation) {
                stores += 1;
                before(&event).into()
            } else {
                continue;
            };
            steps.extend(past.step(role));
            let begun = match earlier {
                Some(earlier) => number <= earlier,
                None => orders == MOST_OF_A_KIND,
            };
            if begun && stores == MOST_OF_A_KIND {
                break;
            }
        }
        if let Some(earlier) = earlier.filter(|event| *event < first) {
            steps.push(Step {
                event: earlier,
                cpu: violation.cpu,
                address: None,
                name: None,
                text: String::new(),
                role: format!("conflicts with this, more than {KEPT} events before"),
            });
        }
        steps.reverse();
        steps
    }
}

impl Step {
    /// The line for people.
    pub(super) fn line(&self) -> String {
        let Self {
            event, text, role, ..
        } = self;
        let place = match (&self.name, self.address) {
            (Some(name), _) => format!(" in {name}"),
            (None, Some(address)) => format!(" at {address:#x}"),
            (None, None) => String::new(),
        };
        let role = match role.as_str() {
            "" => String::new(),
            role => format!(" <- {role}"),
        };
        format!("event {event}: {text}{place}{role}")
    }
}

impl Past {
    fn step(&self, role: String) -> Option<Step> {
        let mut text = String::new();
        write_event(self.cpu, &self.event, &mut text).ok()?;
        Some(Step {
            event: self.number,
            cpu: self.cpu,
            address: self.address,
            name: None,
            text,
            role,
        })
    }
}

/// Returns the effect of an event on the place of a violation.
const fn before(event: &Event) -> &'static str {
    match event {
        Event::Obtained { .. } => "allocated as a table",
        Event::Freed { .. } => "freed",
        Event::Reused { .. } => "reused for something else",
        Event::Found { .. } => "changed by hardware",
        _ => "earlier store",
    }
}

/// Whether the event orders what its CPU did, or removes what TLBs hold, shortly before the violation.
fn orders_of(past: &Past, violation: &Violation) -> bool {
    match past.event {
        Event::Barrier(barrier) => {
            past.cpu == violation.cpu
                && (barrier.kind != BarrierKind::Isb || violation.rule == Rule::MissingIsb)
        }
        Event::System(System::SP_EL0, _) => false,
        Event::System(system, _) => system.is_tlbi() || past.cpu == violation.cpu,
        _ => false,
    }
}

/// Whether the event stores the descriptor that is concerned, or within the physical addresses that are.
fn stores_to(event: &Event, violation: &Violation) -> bool {
    let (first, bytes) = match *event {
        Event::Store { address, count, .. } | Event::Update { address, count, .. } => {
            (address, u64::from(count) * 8)
        }
        Event::Found { address, .. } => (address, 8),
        Event::Obtained { start, bytes }
        | Event::Freed { start, bytes }
        | Event::Reused { start, bytes } => (start, bytes),
        _ => return false,
    };
    let last = first.saturating_add(bytes.saturating_sub(1));
    let meets = |(from, to): (u64, u64)| first <= to && from <= last;
    let location = violation.location.map(|at| (at, at.saturating_add(7)));
    location.is_some_and(meets) || (!violation.is_virtual && meets(violation.range))
}

/// Returns the change that would mend a violation.
pub(super) fn mend(violation: &Violation) -> &'static str {
    if let Some((_, miss)) = violation.missed {
        return of_miss(miss);
    }
    match violation.rule {
        Rule::BreakBeforeMake | Rule::SizeWithOtherChange | Rule::MixedContiguous => {
            "store invalid descriptors, DSB ISHST, TLBI of every entry that they had, DSB ISH, and only then \
             the new descriptors"
        }
        Rule::UnequalContiguous | Rule::ContiguousOutside => {
            "leave the contiguous bit out of the descriptors, or make all of the group alike"
        }
        Rule::StaleTranslation | Rule::StaleReuse | Rule::ConflictPossible | Rule::Revalidated => {
            "DSB ISHST after the store, TLBI of the addresses, DSB ISH, before the change is relied on"
        }
        Rule::StoreNotVisible => "a DSB ISHST after the store, before it is relied on",
        Rule::UnorderedLink => {
            "a DMB ISHST or DSB ISHST, or a store-release for the link, between the stores to the table and the store \
             that links it"
        }
        Rule::MissingIsb => "an ISB after the DSB, or after the register write",
        Rule::UninitialisedTable => "store all entries of the table before it is linked",
        Rule::AddressSize => {
            "the largest size of the CPU (ID_AA64MMFR0_EL1.PARange) in TCR.IPS, or another address"
        }
        Rule::NotTableMemory | Rule::FreedInUse | Rule::UnlinkedInUse => {
            "unlink the table, DSB ISHST, TLBI of all levels, DSB ISH, and only then use its memory for \
             something else"
        }
        Rule::RangeOperand => "align the base of the TLBI to the level that its hint names",
        Rule::UnknownTlb => {
            "TLBI VMALLE1 and DSB NSH before the MMU is turned on, or for a guest TLBI VMALLS12E1 with its VTTBR_EL2 in \
             effect before it is entered"
        }
        Rule::CachedField => {
            "an ISB after the register write, then a TLBI of the regime, DSB and ISB"
        }
        Rule::FieldInUse => {
            "change the field with the MMU off, or with the half disabled by EPD and an ISB after that"
        }
        Rule::AsidOfTwoSizes => {
            "a TLBI of the ASID, DSB ISH and an ISB on every CPU before the ASID serves another granule"
        }
        Rule::TablesOfTwoSizes => {
            "write TCR.TG0 and T0SZ together with TTBR0, while walks are disabled by EPD0"
        }
        Rule::NotCleaned | Rule::DirtyLineBehind | Rule::StoreLost => {
            "DC CVAC of the lines, then DSB SY"
        }
        Rule::NotInvalidated => "DC IVAC of the lines after the stores, then DSB SY",
        Rule::InstructionCache => "DC CVAU, DSB ISH, IC IVAU, DSB ISH, ISB",
        Rule::LostUpdate => "replace the descriptor by an atomic exchange or a compare-and-swap",
        Rule::NoTranslation => "clear the bit nT before the block is relied on",
        Rule::NotRecorded => "nothing in the system: the trace lacks a store",
        // A rule that the model gained since.
        _ => "the change that docs/rules.md describes for the rule",
    }
}

const fn of_miss(miss: Miss) -> &'static str {
    match miss {
        Miss::StoreNotVisible => "a DSB ISHST between the store and the TLBI",
        Miss::StoreOfAnotherCpu => {
            "a DSB ISHST after the store, on the CPU that stored; nothing, if a lock orders the store before the DSB \
             that the TLBI's CPU executed"
        }
        Miss::RegisterNotInEffect => "an ISB between the register write and the TLBI",
        Miss::LastLevelOnly => {
            "a TLBI of all levels: VAE1IS or VAAE1IS in place of VALE1IS or VAALE1IS"
        }
        Miss::WrongLevel => "a TLBI without the level hint, or with that of the old entry",
        Miss::WrongGranule => "a TLBI with the granule of the tables",
        Miss::WrongAsid => "a TLBI of the entry's ASID, or of all: VAAE1IS, VMALLE1IS",
        Miss::WrongVmid => "a TLBI while VTTBR_EL2 has the entry's VMID",
        Miss::Stage2Only => "a TLBI VMALLE1IS after the one by intermediate physical address",
        Miss::Stage2Cached => "the TLBI by intermediate physical address and its DSB first",
        Miss::FoundAgain => {
            "a TLBI of all levels, or one after the table's pointer is gone from TLBs"
        }
        Miss::GroupServes => {
            "clear all members of the group, or the hint of all, before one invalidation of the whole group"
        }
        Miss::NotRepeated => "another broadcast TLBI after the DSB, and another DSB",
        Miss::LocalOnly => "the form of the TLBI that reaches all CPUs (IS)",
        _ => "a DSB after the TLBI: NSH for one of this CPU alone, ISH for one that is broadcast",
    }
}
