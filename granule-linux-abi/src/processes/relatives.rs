//! Parents, children and process groups: which processes a call means, who is told of a child's end.
//! The relations themselves are in the kernel's table of tasks; the rules are here.

use super::{MOST_PROCESSES, Place, Processes};
use crate::abi::Errno;
use crate::abi::process::Status;
use crate::abi::signal::{
    CLD_DUMPED, CLD_EXITED, CLD_KILLED, SA_NOCLDWAIT, SI_USER, SIG_IGN, SIGCHLD, SIGNALS,
};
use crate::files::Channel;
use crate::owned::Frames;
use crate::signals::Cause;
use crate::signals::set::SignalSet;

/// How one process is related to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its number.
    pub pid: u32,
    /// Its parent's number.
    pub parent: u32,
    /// The number of its process group.
    pub group: u32,
}

/// The kernel's table of tasks, as the process table sees it.
pub trait TaskTable {
    /// Where the memory for processes comes from.
    type Frames: Frames;

    /// The relations of the process at a place, if there is one: it runs, or its parent has not asked
    /// how it ended.
    fn relation(&self, place: Place) -> Option<Relation>;

    /// Moves a process into a group.
    fn set_group(&mut self, place: Place, group: u32);

    /// Whether [`reap`](Self::reap) would find a child, or there is no such child at all.
    fn can_reap(&self, parent: Place, which: Selection) -> bool;

    /// Looks for a child that has ended, and forgets it.
    fn reap(&mut self, parent: Place, which: Selection) -> Reaped;
}

/// Which processes are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of them.
    Any,
    /// The one of this number.
    Process(u32),
    /// Those of this group.
    Group(u32),
}

impl Selection {
    /// Whether a process is meant.
    pub const fn has(self, relation: &Relation) -> bool {
        match self {
            Self::Any => true,
            Self::Process(pid) => relation.pid == pid,
            Self::Group(group) => relation.group == group,
        }
    }

    /// What `kill` and `wait4` mean by a number, for a caller of this group.
    pub(crate) const fn of(number: i32, own_group: u32) -> Self {
        match number {
            1.. => Self::Process(number as u32),
            0 => Self::Group(own_group),
            -1 => Self::Any,
            _ => Self::Group(number.unsigned_abs()),
        }
    }
}

/// What a search for children that have ended found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// There are no such children at all.
    NoChildren,
    /// No such child has ended.
    None,
    /// This child has ended and is forgotten.
    One {
        /// Its number.
        pid: u32,
        /// How it ended, as [`Status::word`].
        status: u32,
    },
}

/// What `wait4` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A child that has ended.
    Child {
        /// Its number.
        pid: u32,
        /// How it ended, as [`Status::word`].
        status: u32,
    },
    /// There are such children, and none has ended.
    NotYet,
}

/// How a child ended, as SIGCHLD tells it.
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

impl<T: TaskTable> Processes<'_, T> {
    /// How the process at a place is related to others.
    pub(crate) fn relation(&self, place: Place) -> Result<Relation, Errno> {
        self.tasks.relation(place).ok_or(Errno::ESRCH)
    }

    fn relations(&self) -> impl Iterator<Item = (Place, Relation)> {
        (0..MOST_PROCESSES).filter_map(|place| Some((place, self.tasks.relation(place)?)))
    }

    /// The place of the process of that number.
    pub(crate) fn place_of(&self, pid: u32) -> Result<Place, Errno> {
        let found = self.relations().find(|(_, relation)| relation.pid == pid);
        found.map(|(place, _)| place).ok_or(Errno::ESRCH)
    }

    /// `kill`: sends to a process, to a group, or to all processes.
    pub(crate) fn kill(&mut self, from: Place, to: i32, signal: i32) -> Result<(), Errno> {
        let signal = signal_number(signal)?;
        let caller = self.relation(from)?;
        let chosen = Selection::of(to, caller.group);
        let cause = Cause::process(SI_USER, caller.pid);
        let mut found = false;
        for place in 0..MOST_PROCESSES {
            let Some(relation) = self.tasks.relation(place) else {
                continue;
            };
            if !chosen.has(&relation) {
                continue;
            }
            // A child that the first process is making is meant by "all", too.
            if !matches!(chosen, Selection::Process(_)) && signal > 0 {
                self.send_to_forked(place, signal);
            }
            // "All" are all but the first process and the caller.
            let all = chosen == Selection::Any;
            if all && (relation.pid == 1 || relation.pid == caller.pid) {
                continue;
            }
            found = true;
            // Signal 0 only asks whether there is such a process.
            if signal > 0 {
                self.send(place, signal, cause);
            }
        }
        if found { Ok(()) } else { Err(Errno::ESRCH) }
    }

    /// The process at `parent` begins to make a child, which nobody sees before
    /// [`finish_fork`](Self::finish_fork).
    pub fn begin_fork(&mut self, parent: Place) {
        if let Ok(process) = self.get_mut(parent) {
            process.signals.take_for_child();
        }
    }

    /// A signal for a whole group reaches a process of it: a child that the process is making belongs
    /// to the group, too.
    fn send_to_forked(&mut self, parent: Place, signal: u8) {
        if let Ok(process) = self.get_mut(parent) {
            process.signals.send_to_child(signal);
        }
    }

    /// The child that the process at `parent` made becomes visible, at `place`. False if it must not yet:
    /// the parent has to handle a signal first, which may be meant for both. A signal that the parent
    /// blocks goes to both as well, since the child has the parent's mask.
    pub fn finish_fork(&mut self, parent: Place, place: Place) -> bool {
        let Ok(process) = self.get_mut(parent) else {
            return true;
        };
        if process.signals.has_work() {
            return false;
        }
        let mut missed = process.signals.take_for_child();
        while let Some(signal) = missed.first() {
            missed = missed.without(SignalSet::EMPTY.with(signal));
            let cause = self
                .get(parent)
                .map(|process| process.signals.cause(signal));
            self.send(place, signal, cause.unwrap_or_default());
        }
        true
    }

    /// Tells the process of number `parent` that its child has ended. False if the parent does not want to
    /// be asked, and the child is to be forgotten at once. A parent that is ending leaves the child to the
    /// next one.
    pub fn child_ended(&mut self, parent: u32, child: u32, status: Status) -> bool {
        let action = self.place_of(parent).and_then(|parent| self.get(parent));
        let action = action.and_then(|parent| parent.signals.action(SIGCHLD));
        let wanted = action
            .ok()
            .is_none_or(|action| action.handler != SIG_IGN && action.flags & SA_NOCLDWAIT == 0);
        if let Ok(place) = self.place_of(parent) {
            self.send(place, SIGCHLD, cause_of(child, status));
            self.wake(Channel::Children(parent));
        }
        wanted
    }

    /// `wait4` without waiting: a child that has ended, or whether there are children at all.
    pub(crate) fn wait(&mut self, parent: Place, which: Selection) -> Result<Waited, Errno> {
        match self.tasks.reap(parent, which) {
            Reaped::NoChildren => Err(Errno::ECHILD),
            Reaped::One { pid, status } => Ok(Waited::Child { pid, status }),
            Reaped::None => Ok(Waited::NotYet),
        }
    }

    /// Makes the process lead a group of its own, whose number is the process's.
    pub(crate) fn lead_group(&mut self, caller: Place) -> Result<u32, Errno> {
        let pid = self.relation(caller)?.pid;
        if self.relations().any(|(_, other)| other.group == pid) {
            return Err(Errno::EPERM);
        }
        self.tasks.set_group(caller, pid);
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
