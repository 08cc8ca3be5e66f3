//! Takes all other CPUs offline: the order, and the way back when one of them does not go. The trait
//! [`Others`] stands for CPUs, firmware and time, so that host tests can use faulty firmware.
//!
//! After a failure everything is as before: no CPU is asked to go any more, the CPUs that went offline
//! are started again, and a CPU that never left is not started a second time.

use super::MOST_CPUS;
use super::set::CpuSet;
use crate::timeout::Timeout;

/// All other CPUs, as the leaving CPU sees and controls them.
pub trait Others {
    /// An error that firmware returns.
    type Error;

    /// The other CPUs that run.
    fn online(&self) -> CpuSet;
    /// Whether the CPU was ever started: it may still be in this kernel's memory.
    fn was_started(&self, cpu: usize) -> bool;
    /// Whether the CPU can be switched off at all.
    fn can_go_off(&self, cpu: usize) -> bool;
    /// Whether firmware reports the CPU as off.
    fn is_off(&self, cpu: usize) -> Result<bool, Self::Error>;
    /// Asks the CPU to go offline.
    fn ask(&self, cpu: usize);
    /// Withdraws that; false if the CPU has already accepted it, and goes.
    fn take_back(&self, cpu: usize) -> bool;
    /// Whether firmware refused to switch the CPU off, so that it runs as before.
    fn stays(&self, cpu: usize) -> bool;
    /// Abandons the CPU: if firmware refuses from now on, the CPU must not run. False if firmware
    /// refused earlier, so that the CPU [stays](Self::stays).
    fn give_up(&self, cpu: usize) -> bool;
    /// Records that the CPU stays: it counts as running.
    fn goes_on(&self, cpu: usize);
    /// Records that the CPU no longer runs.
    fn is_gone(&self, cpu: usize);
    /// Starts the CPUs again.
    fn bring_back(&self, gone: CpuSet);
    /// Returns the time limit of a CPU that is requested to go now.
    fn timeout(&self) -> Timeout;
    /// Whether that time is over; once in each round of the wait.
    fn is_late(&self, timeout: &mut Timeout) -> bool;
}

/// Why a CPU is not off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why<E> {
    /// It was requested to go off, and firmware refused.
    Stays,
    /// Firmware has not reported it as off in time.
    Late,
    /// Firmware returned an error.
    Firmware(E),
    /// Firmware reports it as off although it runs: its end could not be detected.
    Runs,
    /// It waits in this kernel's memory and does not respond.
    Parked,
    /// Nothing can switch it off.
    ForGood,
}

/// A CPU that does not go off, and the reason.
pub type StillOn<E> = (usize, Why<E>);

/// Switches all others off, one after the other. Returns those that were on.
pub fn all<O: Others>(others: &O) -> Result<CpuSet, StillOn<O::Error>> {
    let online = others.online();
    // A CPU that did not come up may still be in the image, which is about to be overwritten.
    for cpu in 1..MOST_CPUS {
        if !others.was_started(cpu) {
            continue;
        }
        if !others.can_go_off(cpu) {
            return Err((cpu, Why::ForGood));
        }
        if !online.contains(cpu) {
            match others.is_off(cpu) {
                Ok(true) => {}
                Ok(false) => return Err((cpu, Why::Parked)),
                Err(error) => return Err((cpu, Why::Firmware(error))),
            }
        }
    }
    let mut gone = CpuSet::default();
    for cpu in online.iter() {
        let went = one(others, cpu);
        if !matches!(went, Err((_, true))) {
            others.is_gone(cpu);
            gone = gone.with(cpu);
        }
        if let Err((why, _)) = went {
            others.bring_back(gone);
            return Err((cpu, why));
        }
    }
    Ok(gone)
}

/// Switches a CPU off. The error is the reason, and whether the CPU counts as running from now on.
fn one<O: Others>(others: &O, cpu: usize) -> Result<(), (Why<O::Error>, bool)> {
    // If firmware has no record of the CPU, its end cannot be detected.
    match others.is_off(cpu) {
        Ok(false) => {}
        Ok(true) => return Err((Why::Runs, true)),
        Err(error) => return Err((Why::Firmware(error), true)),
    }
    others.ask(cpu);
    let mut timeout = others.timeout();
    let mut silent = None;
    let why = loop {
        match others.is_off(cpu) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // A CPU that has accepted can be started again only once it is off, so its time limit
            // applies all the same.
            Err(error) if others.take_back(cpu) => return Err((Why::Firmware(error), true)),
            Err(error) => silent = Some(error),
        }
        if others.stays(cpu) {
            break Why::Stays;
        }
        if others.is_late(&mut timeout) {
            break silent.map_or(Why::Late, Why::Firmware);
        }
    };
    if others.take_back(cpu) {
        return Err((why, true));
    }
    // The CPU has accepted: it goes off, or firmware has refused or will refuse.
    let given_up = others.give_up(cpu);
    if !given_up {
        others.goes_on(cpu);
    }
    Err((why, !given_up))
}

#[cfg(test)]
mod tests;
