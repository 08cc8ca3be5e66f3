//! Writes an event as a line.

use std::fmt;

use super::words::OPTIONS;
use granule_trace::{Barrier, BarrierKind, Event, System, Visibility};

/// Writes the line of an event of a CPU, without a line feed.
/// # Errors
///
/// The errors of `to`, and an error for an event that a trace cannot express: a barrier that waits
/// for loads only, or a register or instruction that has no part in translation.
pub fn write_event(cpu: u32, event: &Event, to: &mut dyn fmt::Write) -> fmt::Result {
    match *event {
        Event::Reset => write!(to, "reset cpu{cpu}"),
        Event::Store {
            address,
            count: 1,
            descriptor,
            visibility,
            ..
        } => write!(
            to,
            "store cpu{cpu} {address:#x} {descriptor:#x}{}",
            suffix(visibility)
        ),
        Event::Store {
            address,
            count,
            descriptor,
            step,
            visibility,
        } => write!(
            to,
            "fill cpu{cpu} {address:#x} {count} {descriptor:#x} {step:#x}{}",
            suffix(visibility)
        ),
        Event::Update {
            address,
            count,
            change,
            visibility,
        } => write!(
            to,
            "update cpu{cpu} {address:#x} {count} {:#x} {:#x} {:#x}{}",
            change.of,
            change.clear,
            change.set,
            suffix(visibility)
        ),
        Event::Data { start, bytes } => write!(to, "data cpu{cpu} {start:#x} {bytes:#x}"),
        Event::Code { start, bytes } => write!(to, "code cpu{cpu} {start:#x} {bytes:#x}"),
        Event::Barrier(barrier) => write_barrier(cpu, barrier, to),
        Event::System(system, value) => write_system(cpu, system, value, to),
        Event::Lines {
            instruction,
            start,
            bytes,
        } => {
            let name = instruction.name().filter(|_| instruction.is_data_cache());
            let name = name.ok_or(fmt::Error)?;
            write!(to, "dc cpu{cpu} {name} {start:#x} {bytes:#x}")
        }
        Event::Obtained { start, bytes } => write!(to, "obtain cpu{cpu} {start:#x} {bytes:#x}"),
        Event::Freed { start, bytes } => write!(to, "free cpu{cpu} {start:#x} {bytes:#x}"),
        Event::AssumeVisible { start, bytes, asid } => {
            write!(to, "assume-visible cpu{cpu} {start:#x} {bytes:#x}")?;
            match asid {
                Some(asid) => write!(to, " {asid:#x}"),
                None => Ok(()),
            }
        }
        Event::Found {
            address,
            descriptor,
        } => write!(to, "found cpu{cpu} {address:#x} {descriptor:#x}"),
        Event::Settled => write!(to, "sync cpu{cpu}"),
        Event::User => write!(to, "user cpu{cpu}"),
        Event::At(address) => write!(to, "at cpu{cpu} {address:#x}"),
        Event::Reused { start, bytes } => write!(to, "reused cpu{cpu} {start:#x} {bytes:#x}"),
        Event::Missing(what) => match what.as_str() {
            "" => Err(fmt::Error),
            text => write!(to, "missing cpu{cpu} {}", text.replace("tlbi", "TLBI")),
        },
        _ => Err(fmt::Error),
    }
}

fn write_barrier(cpu: u32, barrier: Barrier, to: &mut dyn fmt::Write) -> fmt::Result {
    let option = OPTIONS
        .iter()
        .find(|(option, _)| *option == barrier.option)
        .map(|(_, name)| *name);
    match (barrier.kind, option) {
        (BarrierKind::Isb, _) => write!(to, "isb cpu{cpu}"),
        (BarrierKind::Dsb, Some(option)) => write!(to, "dsb cpu{cpu} {option}"),
        (BarrierKind::Dmb, Some(option)) if !option.starts_with("nsh") => {
            write!(to, "dmb cpu{cpu} {option}")
        }
        _ => Err(fmt::Error),
    }
}

fn write_system(cpu: u32, system: System, value: u64, to: &mut dyn fmt::Write) -> fmt::Result {
    let name = system.name().ok_or(fmt::Error)?;
    if system.is_register() {
        write!(to, "msr cpu{cpu} {name} {value:#x}")
    } else if system.is_instruction_cache() {
        write!(to, "ic cpu{cpu} {name}")
    } else if !system.is_tlbi() {
        Err(fmt::Error)
    } else if system.takes_operand() {
        write!(to, "tlbi cpu{cpu} {name} {value:#x}")
    } else {
        write!(to, "tlbi cpu{cpu} {name}")
    }
}

const fn suffix(visibility: Visibility) -> &'static str {
    match visibility {
        Visibility::Publish => " release",
        Visibility::Exchange => " exchange",
        Visibility::Earlier => " earlier",
        // The other kinds of visibility order nothing.
        _ => "",
    }
}
