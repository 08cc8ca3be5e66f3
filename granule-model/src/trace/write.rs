//! From an event to a line.

use std::fmt;

use crate::event::{Event, EventKind, Order, Purpose, Scope};

/// Writes the line of an event, without a line feed.
///
/// # Errors
///
/// Those of `to`.
pub fn write_event(event: &Event, to: &mut dyn fmt::Write) -> fmt::Result {
    let cpu = event.cpu;
    match event.kind {
        EventKind::Reset => write!(to, "reset cpu{cpu}"),
        EventKind::RegisterWrite { register, value } => {
            write!(to, "msr cpu{cpu} {} {value:#x}", register.name())
        }
        EventKind::StoreDescriptor {
            address,
            value,
            order,
        } => write!(
            to,
            "store cpu{cpu} {address:#x} {value:#x}{}",
            suffix(order)
        ),
        EventKind::FillDescriptors {
            address,
            count,
            first,
            step,
            order,
        } => write!(
            to,
            "fill cpu{cpu} {address:#x} {count} {first:#x} {step:#x}{}",
            suffix(order)
        ),
        EventKind::UpdateDescriptors {
            address,
            count,
            of,
            clear,
            set,
            order,
        } => write!(
            to,
            "update cpu{cpu} {address:#x} {count} {of:#x} {clear:#x} {set:#x}{}",
            suffix(order)
        ),
        EventKind::OtherStore {
            address,
            bytes,
            purpose,
        } => {
            let verb = match purpose {
                Purpose::Data => "data",
                Purpose::Code => "code",
            };
            write!(to, "{verb} cpu{cpu} {address:#x} {bytes:#x}")
        }
        EventKind::Barrier(barrier) => {
            // The CPU stands second in every line, between the two words of a barrier.
            match barrier.name().split_once(' ') {
                Some((kind, option)) => write!(to, "{kind} cpu{cpu} {option}"),
                None => write!(to, "{} cpu{cpu}", barrier.name()),
            }
        }
        EventKind::Tlbi(op) => write!(to, "tlbi cpu{cpu} {op}"),
        EventKind::Cache { op, address, bytes } => {
            write!(to, "dc cpu{cpu} {} {address:#x} {bytes:#x}", op.name())
        }
        EventKind::InstructionCache { scope } => {
            let name = match scope {
                Scope::Local => "iallu",
                Scope::Broadcast => "ialluis",
            };
            write!(to, "ic cpu{cpu} {name}")
        }
        EventKind::TableObtained { address, bytes } => {
            write!(to, "obtain cpu{cpu} {address:#x} {bytes:#x}")
        }
        EventKind::TableFreed { address, bytes } => {
            write!(to, "free cpu{cpu} {address:#x} {bytes:#x}")
        }
        EventKind::Relied { address, bytes } => {
            write!(to, "rely cpu{cpu} {address:#x} {bytes:#x}")
        }
        EventKind::Sync => write!(to, "sync cpu{cpu}"),
    }
}

const fn suffix(order: Order) -> &'static str {
    match order {
        Order::Plain => "",
        Order::Release => " release",
        Order::Exchange => " exchange",
    }
}
