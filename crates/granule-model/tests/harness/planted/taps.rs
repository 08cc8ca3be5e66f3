//! Changes that a fault makes to the events that pass: small pieces that the list combines.

use crate::machine::Tap;
use granule_model::{Barrier, Event, System, Visibility};

/// Every event that `which` names becomes what `into` makes of it.
pub(super) fn replace(
    which: fn(&Event) -> bool,
    mut into: impl FnMut(Event) -> Vec<Event> + 'static,
) -> Tap {
    Box::new(move |_, kind| if which(&kind) { into(kind) } else { vec![kind] })
}

/// The events that `which` names do not happen.
pub(super) fn drop_all(which: fn(&Event) -> bool) -> Tap {
    replace(which, |_| Vec::new())
}

/// The `nth` event that `which` names, from 0, becomes what `into` makes of it.
pub(super) fn nth(
    nth: u64,
    which: fn(&Event) -> bool,
    into: impl Fn(Event) -> Vec<Event> + 'static,
) -> Tap {
    let mut seen = 0;
    Box::new(move |_, kind| {
        if !which(&kind) {
            return vec![kind];
        }
        seen += 1;
        if seen == nth + 1 {
            into(kind)
        } else {
            vec![kind]
        }
    })
}

/// Events that `which` names happen only right after the next one that `until` names.
pub(super) fn delay(which: fn(&Event) -> bool, until: fn(&Event) -> bool) -> Tap {
    let mut held = Vec::new();
    Box::new(move |_, kind| {
        if until(&kind) {
            let mut now = vec![kind];
            now.append(&mut held);
            return now;
        }
        if which(&kind) {
            held.push(kind);
            return Vec::new();
        }
        vec![kind]
    })
}

/// A TLBI and its operand.
pub(super) type Tlbi = (System, u64);

/// Each TLBI becomes what `into` makes of it.
pub(super) fn tlbis(into: fn(Tlbi) -> Tlbi) -> Tap {
    replace(is_tlbi, move |kind| match kind {
        Event::System(op, operand) => {
            let (op, operand) = into((op, operand));
            vec![Event::System(op, operand)]
        }
        other => vec![other],
    })
}

pub(super) const fn is_tlbi(kind: &Event) -> bool {
    matches!(kind, Event::System(op, _) if op.is_tlbi())
}

pub(super) const fn is_ishst(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_ISHST))
}

pub(super) const fn is_ish(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_ISH))
}

pub(super) const fn is_isb(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::ISB))
}

/// A change of several entries in place, or a store of one valid entry.
pub(super) const fn is_update(kind: &Event) -> bool {
    matches!(kind, Event::Update { .. })
        || matches!(kind, Event::Store { count: 1, descriptor, .. } if *descriptor & 1 != 0)
}

pub(super) const fn is_fill(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 2.., .. })
}

/// A store that makes one entry invalid.
pub(super) const fn is_break(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 1, descriptor, .. } if *descriptor == 0)
}

/// A store-release: links a table.
pub(super) const fn is_link(kind: &Event) -> bool {
    matches!(kind, Event::Store { visibility, .. } if matches!(visibility, Visibility::Publish))
}

/// A store of leaves that are blocks.
pub(super) const fn is_blocks(kind: &Event) -> bool {
    matches!(kind, Event::Store { descriptor: first, .. } if *first & 0b11 == 0b01)
}

/// A fill of pages or blocks, whatever else the store does.
pub(super) const fn is_leaf_fill(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 2.., descriptor: first, step, .. } if *first & 1 != 0 && *step != 0)
}

/// A fill of valid entries with the contiguous hint.
pub(super) const fn is_group(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 2.., descriptor: first, .. } if *first & (1 << 52) != 0)
}

pub(super) const fn is_freed(kind: &Event) -> bool {
    matches!(kind, Event::Freed { .. })
}

pub(super) const fn is_obtained(kind: &Event) -> bool {
    matches!(kind, Event::Obtained { .. })
}

pub(super) const fn is_cache(kind: &Event) -> bool {
    matches!(kind, Event::Lines { .. })
}

/// One line less is maintained than should be.
pub(super) fn one_line_less(mut kind: Event) -> Vec<Event> {
    if let Event::Lines { bytes, .. } = &mut kind {
        *bytes -= 64;
    }
    vec![kind]
}

/// Stores one entry less than requested.
pub(super) fn one_less(mut kind: Event) -> Vec<Event> {
    if let Event::Update { count, .. } | Event::Store { count, .. } = &mut kind {
        *count -= 1;
    }
    vec![kind]
}

/// Changes bits of what a store stores.
pub(super) fn bits(flip: u64) -> impl Fn(Event) -> Vec<Event> {
    move |mut kind| {
        match &mut kind {
            Event::Update { change, .. } => change.set |= flip,
            Event::Store { descriptor, .. } => *descriptor ^= flip,
            Event::System(_, value) => *value ^= flip,
            _ => {}
        }
        vec![kind]
    }
}

/// The same store, but not as a release.
pub(super) fn plain(mut kind: Event) -> Vec<Event> {
    if let Event::Store { visibility, .. } = &mut kind {
        *visibility = Visibility::Live;
    }
    vec![kind]
}

/// The broadcast TLBI that an operation issues, for its own CPU only: CRm 7 in place of 3, or for
/// ranges 6 in place of 2.
pub(super) const fn local((op, operand): Tlbi) -> Tlbi {
    (System(op.0 | 4 << 3), operand)
}

pub(super) const fn with_operand((op, _): Tlbi, operand: u64) -> Tlbi {
    (op, operand)
}
