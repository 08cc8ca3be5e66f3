//! Parents, children, groups and sessions: who may be told, who waits for whom, who is told of a
//! change. The relations themselves are the table's of tasks; the rules are here.

use super::{Place, World};
use crate::user::MOST_TASKS;
use crate::user::abi::Errno;
use crate::user::abi::process::Status;
use crate::user::abi::signal::{
    CLD_DUMPED, CLD_EXITED, CLD_KILLED, SA_NOCLDWAIT, SI_USER, SIG_IGN, SIGCHLD, SIGNALS,
};
use crate::user::files::Channel;
use crate::user::signals::Cause;
use crate::user::signals::set::SignalSet;

/// How one process is related to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) group: u32,
}

/// The relations of all processes.
pub(crate) trait Family {
    /// Those of the one at a place, if there is one: it runs, or nobody has asked how it ended.
    fn relation(&self, place: Place) -> Option<Relation>;
    /// Moves one into a group.
    fn set_group(&mut self, place: Place, group: u32);
    /// Whether a child has ended that could be [reaped](Self::reap), or there is none at all.
    fn can_reap(&self, parent: Place, which: Selection) -> bool;
    /// Looks for a child that has ended, and forgets it.
    fn reap(&mut self, parent: Place, which: Selection) -> Reaped;
}

/// Which processes are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Any,
    Process(u32),
    Group(u32),
}

impl Selection {
    /// Whether it means this one.
    pub(crate) const fn has(self, relation: &Relation) -> bool {
        match self {
            Self::Any => true,
            Self::Process(pid) => relation.pid == pid,
            Self::Group(group) => relation.group == group,
        }
    }

    /// What `kill` and `wait4` mean by a number, called by one of this group.
    pub(crate) const fn of(number: i32, own_group: u32) -> Self {
        match number {
            1.. => Self::Process(number as u32),
            0 => Self::Group(own_group),
            -1 => Self::Any,
            _ => Self::Group(number.unsigned_abs()),
        }
    }
}

/// What there is of children that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// There are no such children at all.
    NoChildren,
    /// None has ended.
    None,
    /// This one has, with the word that tells how, and is forgotten.
    One { pid: u32, status: u32 },
}

/// What `wait4` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// This child changed; the word that tells how.
    Child { pid: u32, status: u32 },
    /// None did yet, but there are children.
    NotYet,
}

/// How a child changed, as SIGCHLD tells it.
const fn cause_of(pid: u32, status: Status) -> Cause {
    let (code, status) = match status {
        Status::Exited(code) => (CLD_EXITED, code),
        Status::Killed { signal, core: true } => (CLD_DUMPED, signal),
        Status::Killed { signal, .. } => (CLD_KILLED, signal),
    };
    Cause {
        code,
        status: status as i32,
        value: pid as u64,
    }
}

impl<F: Family> World<'_, F> {
    /// How the process at a place is related to others.
    pub(crate) fn relation(&self, place: Place) -> Result<Relation, Errno> {
        self.family.relation(place).ok_or(Errno::ESRCH)
    }

    fn relations(&self) -> impl Iterator<Item = (Place, Relation)> {
        (0..MOST_TASKS).filter_map(|place| Some((place, self.family.relation(place)?)))
    }

    /// The place of the process of that number.
    pub(crate) fn place_of(&self, pid: u32) -> Result<Place, Errno> {
        let found = self.relations().find(|(_, relation)| relation.pid == pid);
        found.map(|(place, _)| place).ok_or(Errno::ESRCH)
    }

    /// `kill`: a process, a group, or all that the caller may send to.
    pub(crate) fn kill(&mut self, from: Place, to: i32, signal: i32) -> Result<(), Errno> {
        let signal = signal_number(signal)?;
        let caller = self.relation(from)?;
        let chosen = Selection::of(to, caller.group);
        let cause = Cause::process(SI_USER, caller.pid);
        let mut found = false;
        for place in 0..MOST_TASKS {
            let Some(relation) = self.family.relation(place) else {
                continue;
            };
            if !chosen.has(&relation) {
                continue;
            }
            // The first process's child, too, is among all.
            if !matches!(chosen, Selection::Process(_)) && signal > 0 {
                self.send_to_unborn(place, signal);
            }
            // All means all others but the first.
            let all = chosen == Selection::Any;
            if all && (relation.pid == 1 || relation.pid == caller.pid) {
                continue;
            }
            found = true;
            // 0 only asks.
            if signal > 0 {
                self.send(place, signal, cause);
            }
        }
        if found { Ok(()) } else { Err(Errno::ESRCH) }
    }

    /// The process at `parent` begins to make a child, which nobody sees before it is
    /// [born](Self::born).
    pub(crate) fn begin_fork(&mut self, parent: Place) {
        if let Ok(own) = self.own_mut(parent) {
            own.signals.take_for_child();
        }
    }

    /// A signal for all of a group comes upon a process of it: a child that it is making is one, too.
    pub(super) fn send_to_unborn(&mut self, parent: Place, signal: u8) {
        if let Ok(own) = self.own_mut(parent) {
            own.signals.send_to_child(signal);
        }
    }

    /// The child that the process at `parent` made is seen at `place` from here on. False if there is
    /// to be none yet: there is a signal for the parent to be dealt with first, which may be meant for
    /// both. One that the parent blocks is for both as well, and the child has the parent's mask.
    pub(crate) fn born(&mut self, parent: Place, place: Place) -> bool {
        let Ok(own) = self.own_mut(parent) else {
            return true;
        };
        if own.signals.has_work() {
            return false;
        }
        let mut missed = own.signals.take_for_child();
        while let Some(signal) = missed.first() {
            missed = missed.without(SignalSet::EMPTY.with(signal));
            let cause = self.own(parent).map(|own| own.signals.cause(signal));
            self.send(place, signal, cause.unwrap_or_default());
        }
        true
    }

    /// A child of `parent` has ended: tells that one. Whether it wants to be asked how; else the
    /// child is to be forgotten at once. A parent that is at its end leaves it to who comes next.
    pub(crate) fn child_ended(&mut self, parent: u32, child: u32, status: Status) -> bool {
        let action = self.place_of(parent).and_then(|parent| self.own(parent));
        let action = action.and_then(|parent| parent.signals.action(SIGCHLD));
        let wanted = action
            .ok()
            .is_none_or(|action| action.handler != SIG_IGN && action.flags & SA_NOCLDWAIT == 0);
        self.tell_parent(parent, cause_of(child, status));
        wanted
    }

    fn tell_parent(&mut self, parent: u32, cause: Cause) {
        if let Ok(place) = self.place_of(parent) {
            self.send(place, SIGCHLD, cause);
            self.wake(Channel::Children(parent));
        }
    }

    /// `wait4`, without waiting: a child that has ended, or whether there are children at all.
    pub(crate) fn wait(&mut self, parent: Place, which: Selection) -> Result<Waited, Errno> {
        match self.family.reap(parent, which) {
            Reaped::NoChildren => Err(Errno::ECHILD),
            Reaped::One { pid, status } => Ok(Waited::Child { pid, status }),
            Reaped::None => Ok(Waited::NotYet),
        }
    }

    /// The process leads a group of its own, whose number is the process's.
    pub(crate) fn lead_group(&mut self, caller: Place) -> Result<u32, Errno> {
        let pid = self.relation(caller)?.pid;
        if self.relations().any(|(_, other)| other.group == pid) {
            return Err(Errno::EPERM);
        }
        self.family.set_group(caller, pid);
        Ok(pid)
    }
}

/// A signal's number as calls give it; 0 for none.
pub(crate) fn signal_number(signal: i32) -> Result<u8, Errno> {
    let signal = u8::try_from(signal).ok();
    signal
        .filter(|signal| *signal <= SIGNALS)
        .ok_or(Errno::EINVAL)
}
