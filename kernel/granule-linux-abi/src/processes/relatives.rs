//! The rules among parents, children and process groups: which processes a call selects, and which
//! process learns of a child's end. The kernel's table of tasks stores the relations.

use super::{ProcessPlace, Processes};
use crate::abi::Errno;
use crate::abi::process::Status;
use crate::abi::signal::{
    CLD_DUMPED, CLD_EXITED, CLD_KILLED, SA_NOCLDWAIT, SI_USER, SIG_IGN, SIGCHLD, SIGNALS,
};
use crate::files::Channel;
use crate::owned::Frames;
use crate::signals::Cause;
use crate::signals::set::SignalSet;

/// The relations of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The process number.
    pub pid: u32,
    /// The parent's number.
    pub parent: u32,
    /// The number of the process group.
    pub group: u32,
}

/// The kernel's table of tasks, as the process table sees it.
pub trait TaskTable {
    /// The source of memory for processes.
    type Frames: Frames;

    /// The relations of the process at a place. `None` unless the process runs or is a zombie.
    fn relation(&self, place: ProcessPlace) -> Option<Relation>;

    /// The place of the process with this number, if it runs or is a zombie.
    fn find(&self, pid: u32) -> Option<ProcessPlace>;

    /// Moves a process to a group.
    fn set_group(&mut self, place: ProcessPlace, group: u32);

    /// Whether [`reap`](Self::reap) would find a child, or no such child exists.
    fn can_reap(&self, parent: ProcessPlace, which: Selection) -> bool;

    /// Finds an ended child and forgets it.
    fn reap(&mut self, parent: ProcessPlace, which: Selection) -> Reaped;
}

/// A selection of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All processes.
    Any,
    /// The process with this number.
    Process(u32),
    /// The processes of this group.
    Group(u32),
}

impl Selection {
    /// Whether a process is selected.
    pub const fn has(self, relation: &Relation) -> bool {
        match self {
            Self::Any => true,
            Self::Process(pid) => relation.pid == pid,
            Self::Group(group) => relation.group == group,
        }
    }

    /// The selection that a number means in `kill` and `wait4`, for a caller in `own_group`.
    pub(crate) const fn of(number: i32, own_group: u32) -> Self {
        match number {
            1.. => Self::Process(number as u32),
            0 => Self::Group(own_group),
            -1 => Self::Any,
            _ => Self::Group(number.unsigned_abs()),
        }
    }
}

/// The result of a search for ended children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// No such child exists.
    NoChildren,
    /// No such child has ended.
    None,
    /// This child ended and is now forgotten.
    One {
        /// The child's number.
        pid: u32,
        /// The exit status, as [`Status::word`].
        status: u32,
    },
}

/// The cause in the SIGCHLD for a child's end.
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
    pub(crate) fn relation(&self, place: ProcessPlace) -> Result<Relation, Errno> {
        self.tasks.relation(place).ok_or(Errno::ESRCH)
    }

    fn relations(&self) -> impl Iterator<Item = (ProcessPlace, Relation)> {
        (0..self.slots.len()).filter_map(|place| Some((place, self.tasks.relation(place)?)))
    }

    /// The place of the process with this number.
    pub(crate) fn place_of(&self, pid: u32) -> Result<ProcessPlace, Errno> {
        self.tasks.find(pid).ok_or(Errno::ESRCH)
    }

    /// `kill`: signals a process, a group or all processes.
    pub(crate) fn kill(&mut self, from: ProcessPlace, to: i32, signal: i32) -> Result<(), Errno> {
        let signal = signal_number(signal)?;
        let caller = self.relation(from)?;
        let chosen = Selection::of(to, caller.group);
        let cause = Cause::process(SI_USER, caller.pid);
        let places = match chosen {
            Selection::Process(pid) => {
                let place = self.place_of(pid)?;
                place..place + 1
            }
            Selection::Any | Selection::Group(_) => 0..self.slots.len(),
        };
        let mut found = false;
        for place in places {
            let Some(relation) = self.tasks.relation(place) else {
                continue;
            };
            if !chosen.has(&relation) {
                continue;
            }
            // A group or "all" includes a child that is being forked.
            if !matches!(chosen, Selection::Process(_))
                && signal > 0
                && let Ok(process) = self.get_mut(place)
            {
                process.signals.send_to_child(signal);
            }
            // "All" excludes the first process and the caller.
            let all = chosen == Selection::Any;
            if all && (relation.pid == 1 || relation.pid == caller.pid) {
                continue;
            }
            found = true;
            // Signal 0 only checks that the process exists.
            if signal > 0 {
                self.send(place, signal, cause);
            }
        }
        if found { Ok(()) } else { Err(Errno::ESRCH) }
    }

    /// Starts the making of a child, which stays invisible until [`finish_fork`](Self::finish_fork).
    pub fn begin_fork(&mut self, parent: ProcessPlace) {
        if let Ok(process) = self.get_mut(parent) {
            process.signals.take_for_child();
        }
    }

    /// Makes the new child at `place` visible. False if the parent must first handle a signal, which may
    /// be meant for both. A signal that the parent blocks goes to both as well, since the child has the
    /// parent's mask.
    pub fn finish_fork(&mut self, parent: ProcessPlace, place: ProcessPlace) -> bool {
        let Ok(process) = self.get_mut(parent) else {
            return true;
        };
        if process.signals.has_work() {
            return false;
        }
        let mut missed = process.signals.take_for_child();
        while let Some(signal) = missed.first() {
            missed = missed.without(SignalSet::EMPTY.with(signal));
            let cause = self.get(parent).map(|it| it.signals.cause(signal));
            self.send(place, signal, cause.unwrap_or_default());
        }
        true
    }

    /// Notifies process `parent` that its child has ended. False if the parent does not reap, so
    /// that the child must be forgotten at once. If the parent is ending, the next parent decides.
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

    /// `wait4` without waiting: the number and the exit status, as [`Status::word`], of a child that has
    /// ended. `None` if such children exist, but none has.
    pub(crate) fn wait(
        &mut self,
        parent: ProcessPlace,
        which: Selection,
    ) -> Result<Option<(u32, u32)>, Errno> {
        match self.tasks.reap(parent, which) {
            Reaped::NoChildren => Err(Errno::ECHILD),
            Reaped::One { pid, status } => Ok(Some((pid, status))),
            Reaped::None => Ok(None),
        }
    }

    /// Makes the process the leader of its own group, whose number is the process number.
    pub(crate) fn lead_group(&mut self, caller: ProcessPlace) -> Result<u32, Errno> {
        let pid = self.relation(caller)?.pid;
        if self.relations().any(|(_, other)| other.group == pid) {
            return Err(Errno::EPERM);
        }
        self.tasks.set_group(caller, pid);
        Ok(pid)
    }
}

/// Checks a signal number of a call; 0 means no signal.
pub(crate) fn signal_number(signal: i32) -> Result<u8, Errno> {
    let signal = u8::try_from(signal).map_err(|_| Errno::EINVAL)?;
    if signal > SIGNALS {
        return Err(Errno::EINVAL);
    }
    Ok(signal)
}
