//! What a fault does to the events that pass: small pieces that the list puts together.

use crate::machine::Tap;
use granule_model::{Barrier, EventKind, Tlbi, TlbiScope};

/// Every event that `which` names becomes what `into` makes of it.
pub(super) fn replace(
    which: fn(&EventKind) -> bool,
    into: impl Fn(EventKind) -> Vec<EventKind> + 'static,
) -> Tap {
    Box::new(move |_, kind| if which(&kind) { into(kind) } else { vec![kind] })
}

/// As [`replace`], by something that changes as it goes.
pub(super) fn replace_state(
    which: fn(&EventKind) -> bool,
    mut into: impl FnMut(EventKind) -> Vec<EventKind> + 'static,
) -> Tap {
    Box::new(move |_, kind| if which(&kind) { into(kind) } else { vec![kind] })
}

/// The events that `which` names do not happen.
pub(super) fn drop_all(which: fn(&EventKind) -> bool) -> Tap {
    replace(which, |_| Vec::new())
}

/// The `nth` event that `which` names, from 0, becomes what `into` makes of it.
pub(super) fn nth(
    nth: u64,
    which: fn(&EventKind) -> bool,
    into: impl Fn(EventKind) -> Vec<EventKind> + 'static,
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
pub(super) fn delay(which: fn(&EventKind) -> bool, until: fn(&EventKind) -> bool) -> Tap {
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

/// Each TLBI becomes what `into` makes of it.
pub(super) fn tlbis(into: fn(Tlbi) -> Tlbi) -> Tap {
    replace(is_tlbi, move |kind| match kind {
        EventKind::Tlbi(op) => vec![EventKind::Tlbi(into(op))],
        other => vec![other],
    })
}

pub(super) const fn is_tlbi(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Tlbi(_))
}

pub(super) const fn is_ishst(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Barrier(Barrier::DsbIshst))
}

pub(super) const fn is_ish(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Barrier(Barrier::DsbIsh))
}

pub(super) const fn is_isb(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Barrier(Barrier::Isb))
}

pub(super) const fn is_update(kind: &EventKind) -> bool {
    matches!(kind, EventKind::UpdateDescriptors { .. })
}

pub(super) const fn is_fill(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FillDescriptors { .. })
}

/// A store that makes one entry invalid.
pub(super) const fn is_break(kind: &EventKind) -> bool {
    matches!(kind, EventKind::StoreDescriptor { value: 0, .. })
}

/// A store-release: links a table.
pub(super) const fn is_link(kind: &EventKind) -> bool {
    use granule_model::Order::Release;
    matches!(
        kind,
        EventKind::StoreDescriptor { order: Release, .. }
            | EventKind::FillDescriptors { order: Release, .. }
    )
}

/// A fill of leaves that are blocks.
pub(super) const fn is_blocks(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FillDescriptors { first, .. } if *first & 0b11 == 0b01)
}

/// A fill of pages or blocks, whatever else the store does.
pub(super) const fn is_leaf_fill(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FillDescriptors { first, step, .. } if *first & 1 != 0 && *step != 0)
}

/// A fill of valid entries with the contiguous hint.
pub(super) const fn is_group(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FillDescriptors { first, .. } if *first & (1 << 52) != 0)
}

pub(super) const fn is_freed(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TableFreed { .. })
}

pub(super) const fn is_obtained(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TableObtained { .. })
}

pub(super) const fn is_cache(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Cache { .. })
}

/// One line less is maintained than should be.
pub(super) fn one_line_less(kind: EventKind) -> Vec<EventKind> {
    match kind {
        EventKind::Cache { op, address, bytes } => vec![EventKind::Cache {
            op,
            address,
            bytes: bytes - 64,
        }],
        other => vec![other],
    }
}

/// Stores one entry less than was asked for.
pub(super) fn one_less(kind: EventKind) -> Vec<EventKind> {
    vec![match kind {
        EventKind::UpdateDescriptors {
            address,
            count,
            of,
            clear,
            set,
            order,
        } => EventKind::UpdateDescriptors {
            address,
            count: count - 1,
            of,
            clear,
            set,
            order,
        },
        EventKind::FillDescriptors {
            address,
            count,
            first,
            step,
            order,
        } => EventKind::FillDescriptors {
            address,
            count: count - 1,
            first,
            step,
            order,
        },
        other => other,
    }]
}

/// Changes bits of what a store stores.
pub(super) fn bits(flip: u64) -> impl Fn(EventKind) -> Vec<EventKind> {
    move |mut kind| {
        match &mut kind {
            EventKind::UpdateDescriptors { set, .. } => *set |= flip,
            EventKind::FillDescriptors { first, .. } => *first ^= flip,
            EventKind::StoreDescriptor { value, .. } => *value ^= flip,
            EventKind::RegisterWrite { value, .. } => *value ^= flip,
            _ => {}
        }
        vec![kind]
    }
}

/// The same store, but not as a release.
pub(super) fn plain(mut kind: EventKind) -> Vec<EventKind> {
    if let EventKind::StoreDescriptor { order, .. } | EventKind::FillDescriptors { order, .. } =
        &mut kind
    {
        *order = granule_model::Order::Plain;
    }
    vec![kind]
}

pub(super) const fn local(op: Tlbi) -> Tlbi {
    Tlbi {
        scope: TlbiScope::Local,
        ..op
    }
}

pub(super) const fn with_operand(op: Tlbi, operand: u64) -> Tlbi {
    Tlbi { operand, ..op }
}
