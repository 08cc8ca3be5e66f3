//! Tests of processes and their relations, on a table of tasks made of a vector.

use super::relatives::Reaped;
use super::*;
use crate::abi::process::Status;
use crate::abi::signal::{
    SA_NOCLDWAIT, SIG_IGN, SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SigAction,
};
use crate::owned::host::{self, HostFrames};

/// The relations, and the status of ended processes; then the place of an invisible child.
#[derive(Debug, Default)]
pub(crate) struct Kin(
    pub(crate) Vec<Option<(Relation, Option<u32>)>>,
    Option<ProcessPlace>,
);

impl TaskTable for Kin {
    type Frames = HostFrames;

    fn relation(&self, place: ProcessPlace) -> Option<Relation> {
        let slot = self.0.get(place).filter(|_| self.1 != Some(place))?;
        Some((*slot)?.0)
    }
    fn find(&self, pid: u32) -> Option<ProcessPlace> {
        (0..self.0.len()).find(|place| self.relation(*place).is_some_and(|it| it.pid == pid))
    }
    fn set_group(&mut self, place: ProcessPlace, group: u32) {
        self.0[place].as_mut().unwrap().0.group = group;
    }
    fn can_reap(&self, parent: ProcessPlace, which: Selection) -> bool {
        let pid = self.relation(parent).unwrap().pid;
        let children = self.0.iter().flatten();
        let mut children = children
            .filter(|it| it.0.parent == pid && which.has(&it.0))
            .peekable();
        children.peek().is_none() || children.any(|it| it.1.is_some())
    }
    fn reap(&mut self, parent: ProcessPlace, which: Selection) -> Reaped {
        let pid = self.relation(parent).unwrap().pid;
        let mut result = Reaped::NoChildren;
        for slot in &mut self.0 {
            let Some((child, status)) = *slot else {
                continue;
            };
            if child.parent != pid || !which.has(&child) {
                continue;
            }
            if let Some(status) = status {
                *slot = None;
                return Reaped::One {
                    pid: child.pid,
                    status,
                };
            }
            result = Reaped::None;
        }
        result
    }
}

/// Places of the process tables here.
pub(crate) const PLACES: usize = 300;

pub(crate) type HostProcesses = Processes<'static, Kin>;

/// A process table with the first process: number 1 at place 0, running `/bin/prog`.
pub(crate) fn processes() -> HostProcesses {
    host::run_out_after(usize::MAX);
    let files = crate::files::tests::files();
    let last = crate::files::path::Last::Keep;
    let exe = files.find(NodeId::ROOT, b"bin/prog", last, None);
    let (pid, parent, group) = (1, 0, 1);
    let init = Relation { pid, parent, group };
    let mut processes = Processes::new(files, Kin(vec![Some((init, None))], None), PLACES).unwrap();
    processes.begin(0, exe.unwrap()).unwrap();
    processes
}

/// Makes a child of the process at `parent`. Returns its place, which is its number minus one.
pub(crate) fn child(processes: &mut HostProcesses, parent: ProcessPlace) -> ProcessPlace {
    try_child(processes, parent).unwrap()
}

pub(crate) fn try_child(
    processes: &mut HostProcesses,
    parent: ProcessPlace,
) -> Result<ProcessPlace, Errno> {
    let place = processes.tasks.0.len();
    let from = processes.tasks.relation(parent).unwrap();
    let relation = Relation {
        pid: place as u32 + 1,
        parent: from.pid,
        ..from
    };
    processes.fork(parent, place)?;
    processes.tasks.0.push(Some((relation, None)));
    Ok(place)
}

/// Begins a fork of the process at `parent`. Returns the place of the invisible child.
fn unborn(processes: &mut HostProcesses, parent: ProcessPlace) -> ProcessPlace {
    processes.begin_fork(parent);
    let place = child(processes, parent);
    processes.tasks.1 = Some(place);
    place
}

/// Completes the fork. Returns the child's pending signals; `None` if the parent must handle one first.
fn born(
    processes: &mut HostProcesses,
    parent: ProcessPlace,
    place: ProcessPlace,
) -> Option<Vec<u8>> {
    let born = processes.finish_fork(parent, place);
    processes.tasks.1 = None;
    born.then(|| pending(processes, place))
}

/// Ends the process in the steps that the kernel takes.
pub(crate) fn ends(processes: &mut HostProcesses, place: ProcessPlace, status: Status) {
    processes.end(place);
    let (relation, _) = processes.tasks.0[place].unwrap();
    let wanted = processes.child_ended(relation.parent, relation.pid, status);
    processes.tasks.0[place] = wanted.then_some((relation, Some(status.word())));
}

fn act(processes: &mut HostProcesses, place: ProcessPlace, signal: u8, handler: u64, flags: u64) {
    let action = SigAction {
        handler,
        flags,
        ..SigAction::DEFAULT
    };
    let process = processes.get_mut(place).unwrap();
    process.signals.set_action(signal, action).unwrap();
}

fn pending(processes: &HostProcesses, place: ProcessPlace) -> Vec<u8> {
    let set = processes.get(place).unwrap().signals.pending();
    (1..=64).filter(|signal| set.has(*signal)).collect()
}

fn woken(processes: &mut HostProcesses) -> Vec<ProcessPlace> {
    core::mem::take(&mut processes.woken).iter().collect()
}

#[test]
fn a_child_shares_open_files_and_all_are_given_back() {
    let mut processes = processes();
    let held = host::held();
    let first = child(&mut processes, 0);
    let second = child(&mut processes, first);
    assert_eq!(processes.files.counts(), (1, 0));
    assert_eq!(processes.count(), 3);
    let descriptors = &processes.get(second).unwrap().descriptors;
    assert_eq!(descriptors.iter().count(), 3);
    for place in [first, second, 0] {
        processes.end(place);
    }
    // A second end does no harm.
    processes.end(0);
    assert_eq!((processes.files.counts(), processes.count()), ((0, 0), 0));
    assert_eq!(host::held(), held - 1);
}

#[test]
fn no_memory_for_a_child_leaves_nothing_of_it() {
    let mut processes = processes();
    host::run_out_after(0);
    processes.tasks.0.push(None);
    assert_eq!(processes.fork(0, 1), Err(Errno::ENOMEM));
    host::run_out_after(usize::MAX);
    assert_eq!((processes.count(), processes.files.counts()), (1, (1, 0)));
    assert!(processes.fork(0, 1).is_ok());
    assert_eq!(processes.fork(0, PLACES), Err(Errno::EAGAIN));
    assert_eq!(processes.fork(7, 2), Err(Errno::ESRCH));
}

#[test]
fn exec_closes_what_is_marked_and_takes_the_name() {
    let mut processes = processes();
    let (out, into) = processes.files.pipe(0).unwrap();
    let process = processes.get_mut(0).unwrap();
    process.descriptors.add(out, 0, false).unwrap();
    process.descriptors.add(into, 0, true).unwrap();
    processes.set_waits(0, Some(Channel::Pipe(0)));
    let path = b"/bin/a-name-that-is-long";
    processes.execute(0, NodeId(3), path).unwrap();
    let process = processes.get(0).unwrap();
    assert_eq!(&process.name, b"a-name-that-is-\0");
    assert_eq!(process.exe, NodeId(3));
    assert_eq!(process.descriptors.iter().count(), 4);
    assert_eq!(woken(&mut processes), [0]);
    assert_eq!(woken(&mut processes), [0; 0]);
}

#[test]
fn kill_finds_whom_it_means() {
    let mut processes = processes();
    let (a, b) = (child(&mut processes, 0), child(&mut processes, 0));
    let c = child(&mut processes, b);
    processes.lead_group(b).unwrap();
    processes.tasks.set_group(c, 3);
    let all = [a, b, c];
    for (from, to, signal, expected) in [
        (a, 3, SIGHUP, [&[][..], &[1], &[]]),
        (a, -3, SIGTERM, [&[], &[1, 15], &[15]]),
        // All processes except the first and the caller.
        (c, -1, SIGINT, [&[2], &[1, 2, 15], &[15]]),
        (b, 0, SIGUSR1, [&[2], &[1, 2, 10, 15], &[10, 15]]),
    ] {
        processes.kill(from, to, i32::from(signal)).unwrap();
        assert_eq!(all.map(|place| pending(&processes, place)), expected);
    }
    assert_eq!(woken(&mut processes), all);
    assert_eq!(processes.kill(a, 4, 0), Ok(()));
    for nobody in [77, -77, i32::MIN] {
        assert_eq!(processes.kill(a, nobody, 1), Err(Errno::ESRCH));
    }
    assert_eq!(processes.kill(a, 77, 0), Err(Errno::ESRCH));
    for signal in [-1, 65, 256, i32::MAX] {
        assert_eq!(processes.kill(a, 4, signal), Err(Errno::EINVAL), "{signal}");
    }
}

#[test]
fn a_signal_for_a_group_meets_a_child_that_one_of_it_is_making() {
    type Send = fn(&mut HostProcesses, ProcessPlace, u8);
    let group: Send = |processes, _, signal| processes.kill(0, 0, signal.into()).unwrap();
    let all: Send = |processes, _, signal| processes.kill(0, -1, signal.into()).unwrap();
    let one: Send = |processes, a, signal| processes.kill(0, a as i32 + 1, signal.into()).unwrap();
    for (send, meets) in [(group, true), (all, true), (one, false)] {
        let mut processes = processes();
        let a = child(&mut processes, 0);
        let blocked = signals_of(SIGINT);
        processes.get_mut(a).unwrap().signals.set_mask(blocked);
        let expected = |signals: &[u8]| Some(if meets { signals.to_vec() } else { vec![] });
        // A signal before the fork belongs to the parent alone.
        send(&mut processes, a, SIGINT);
        let b = unborn(&mut processes, a);
        assert_eq!(born(&mut processes, a, b), Some(vec![]));
        let b = unborn(&mut processes, a);
        send(&mut processes, a, SIGINT);
        assert_eq!(pending(&processes, b), [0; 0]);
        assert_eq!(born(&mut processes, a, b), expected(&[SIGINT]));
        let causes = [a, b].map(|place| processes.get(place).unwrap().signals.cause(SIGINT));
        assert_eq!(causes[0] == causes[1], meets);
        // The parent must handle an unblocked signal first.
        let b = unborn(&mut processes, a);
        send(&mut processes, a, SIGTERM);
        assert_eq!(born(&mut processes, a, b), None);
        assert_eq!(pending(&processes, b), [0; 0]);
        // The signal spares the first process, but not its child.
        assert_eq!(processes.get_mut(0).unwrap().signals.take_next(), None);
        woken(&mut processes);
        let b = unborn(&mut processes, 0);
        send(&mut processes, a, SIGKILL);
        assert_eq!(born(&mut processes, 0, b), expected(&[SIGKILL]));
        assert_eq!(woken(&mut processes).contains(&b), meets);
    }
}

#[test]
fn a_parent_is_notified_and_waits_for_whom_it_names() {
    let mut processes = processes();
    let (a, b) = (child(&mut processes, 0), child(&mut processes, 0));
    act(&mut processes, 0, SIGCHLD, 0x1000, 0);
    let wait = |processes: &mut HostProcesses, which| processes.wait(0, which);
    assert_eq!(wait(&mut processes, Selection::Any), Ok(None));
    assert!(!processes.tasks.can_reap(0, Selection::Any));
    processes.set_waits(0, Some(Channel::Children(1)));
    let status = Status::Killed {
        signal: 11,
        core: true,
    };
    ends(&mut processes, b, status);
    assert_eq!(woken(&mut processes), [0]);
    let signals = &mut processes.get_mut(0).unwrap().signals;
    let (_, cause) = signals.take(signals_of(SIGCHLD)).unwrap();
    assert_eq!((cause.code, cause.status, cause.value), (3, 11, 3));
    let of_a = Selection::Process(2);
    assert_eq!(wait(&mut processes, of_a), Ok(None));
    assert!(processes.tasks.can_reap(0, Selection::Any));
    assert_eq!(wait(&mut processes, Selection::Any), Ok(Some((3, 11))));
    ends(&mut processes, a, Status::Exited(7));
    let ended = wait(&mut processes, Selection::Group(1));
    assert_eq!(ended, Ok(Some((2, 0x700))));
    assert_eq!(wait(&mut processes, Selection::Any), Err(Errno::ECHILD));
    assert!(processes.tasks.can_reap(0, Selection::Any));
}

fn signals_of(signal: u8) -> crate::signals::set::SignalSet {
    crate::signals::set::SignalSet::EMPTY.with(signal)
}

#[test]
fn ignored_children_are_not_waited_for() {
    for (handler, flags) in [(SIG_IGN, 0), (0x1000, SA_NOCLDWAIT)] {
        let mut processes = processes();
        let a = child(&mut processes, 0);
        act(&mut processes, 0, SIGCHLD, handler, flags);
        ends(&mut processes, a, Status::Exited(0));
        let waited = processes.wait(0, Selection::Any);
        assert_eq!(waited, Err(Errno::ECHILD));
    }
    // If the parent has already ended, the first process inherits the child and may reap it.
    let mut processes = processes();
    let a = child(&mut processes, 0);
    act(&mut processes, a, SIGCHLD, SIG_IGN, 0);
    processes.end(a);
    assert!(processes.child_ended(2, 3, Status::Exited(0)));
}

#[test]
fn a_group_leader_leads_no_other_group() {
    let mut processes = processes();
    let a = child(&mut processes, 0);
    let b = child(&mut processes, a);
    assert_eq!(processes.lead_group(0), Err(Errno::EPERM));
    assert_eq!(processes.lead_group(a), Ok(2));
    assert_eq!(processes.lead_group(a), Err(Errno::EPERM));
    let groups = [0, a, b].map(|place| processes.relation(place).unwrap().group);
    assert_eq!(groups, [1, 2, 1]);
    assert_eq!(processes.lead_group(77), Err(Errno::ESRCH));
}

#[test]
fn those_who_wait_for_anything_wake_for_everything() {
    let mut processes = processes();
    let (a, b) = (child(&mut processes, 0), child(&mut processes, 0));
    processes.set_waits(a, Some(Channel::Any));
    processes.set_waits(b, Some(Channel::Pipe(1)));
    processes.wake(Channel::Pipe(2));
    assert_eq!(woken(&mut processes), [a]);
    processes.wake(Channel::Pipe(1));
    assert_eq!(woken(&mut processes), [a, b]);
    // Another pipe whose number gives the same list.
    processes.wake(Channel::Pipe(65));
    assert_eq!(woken(&mut processes), [a]);
    // One that has ended waits for nothing, and neither does one that goes on.
    processes.end(a);
    processes.set_waits(b, None);
    processes.wake(Channel::Pipe(1));
    assert_eq!(woken(&mut processes), [0; 0]);
}

#[test]
fn places_follow_from_memory() {
    for (mib, places) in [
        (0, 64),
        (8, 64),
        (9, 64),
        (16, 128),
        (250, 1984),
        (512, 4096),
    ] {
        assert_eq!(places_for(mib << 20), places, "{mib} MiB");
    }
    assert_eq!(places_for(u64::MAX), MOST_PROCESSES);
}
