//! Taking all other CPUs offline: the order, and the way back when one of them does not go. CPUs,
//! firmware and time are behind the trait [`Others`], so that tests on the host can use firmware that
//! errs.
//!
//! After a failure everything is as before: no CPU is asked any more, the CPUs that went offline are
//! back, and a CPU that never left is not started a second time.

use super::MOST_CPUS;
use super::set::CpuSet;

/// All CPUs but the one that leaves, as far as it can see and do.
pub trait Others {
    /// What firmware says instead of an answer.
    type Error;

    /// Those that run.
    fn online(&self) -> CpuSet;
    /// Whether it was ever started: it may still be in this kernel's memory.
    fn was_started(&self, cpu: usize) -> bool;
    /// Whether firmware says that it is off.
    fn is_off(&self, cpu: usize) -> Result<bool, Self::Error>;
    /// Tells it to go off.
    fn ask(&self, cpu: usize);
    /// Takes that back; false if the CPU has taken it up already, and goes.
    fn take_back(&self, cpu: usize) -> bool;
    /// Whether firmware refused to switch it off, so that it runs as before.
    fn stays(&self, cpu: usize) -> bool;
    /// Nobody waits for it any more: should firmware refuse now, it must not run. False if that was
    /// before, so that it [stays](Self::stays).
    fn give_up(&self, cpu: usize) -> bool;
    /// It is known that it stays: it counts as one that runs.
    fn goes_on(&self, cpu: usize);
    /// It runs no more.
    fn is_gone(&self, cpu: usize);
    /// Starts them again.
    fn bring_back(&self, gone: CpuSet);
    /// Whether one that was asked at `since` has had its time.
    fn is_late(&self, since: u64) -> bool;
    /// The time.
    fn now(&self) -> u64;
}

/// Why not all others are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why<E> {
    /// It was told to, and is still there.
    Stays,
    /// Firmware has not said that it is off.
    Late,
    /// Firmware does not say.
    Firmware(E),
    /// Firmware says that it is off, and it runs: that it has gone could not be seen.
    Runs,
    /// It is in this kernel's memory and does not listen.
    Parked,
}

/// One that does not go, and why.
pub type StillOn<E> = (usize, Why<E>);

/// Switches all others off, one after the other; gives those that were on.
pub fn all<O: Others>(others: &O) -> Result<CpuSet, StillOn<O::Error>> {
    let online = others.online();
    // One that did not come up may still be in the image, which is about to be written over.
    for cpu in 1..MOST_CPUS {
        if others.was_started(cpu) && !online.contains(cpu) {
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
            gone.0 |= CpuSet::one(cpu).0;
        }
        if let Err((why, _)) = went {
            others.bring_back(gone);
            return Err((cpu, why));
        }
    }
    Ok(gone)
}

/// Why it did not go off in time, and whether it is one of those that run, now and later.
fn one<O: Others>(others: &O, cpu: usize) -> Result<(), (Why<O::Error>, bool)> {
    // Firmware that does not know of it is not to be found when it has gone.
    match others.is_off(cpu) {
        Ok(false) => {}
        Ok(true) => return Err((Why::Runs, true)),
        Err(error) => return Err((Why::Firmware(error), true)),
    }
    others.ask(cpu);
    let start = others.now();
    let mut silent = None;
    let why = loop {
        match others.is_off(cpu) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // A CPU on its way is started again only once it is off, so it has its time all the same.
            Err(error) if others.take_back(cpu) => return Err((Why::Firmware(error), true)),
            Err(error) => silent = Some(error),
        }
        if others.stays(cpu) {
            break Why::Stays;
        }
        if others.is_late(start) {
            break silent.map_or(Why::Late, Why::Firmware);
        }
    };
    if others.take_back(cpu) {
        return Err((why, true));
    }
    // It has taken it up: it goes, or firmware has refused, or will.
    let given_up = others.give_up(cpu);
    if !given_up {
        others.goes_on(cpu);
    }
    Err((why, !given_up))
}

#[cfg(test)]
mod tests;
