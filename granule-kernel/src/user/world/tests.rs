//! What processes have, and how they are related; with a table of tasks that is a vector.

use super::family::Reaped;
use super::*;
use crate::user::MOST_TASKS;
use crate::user::abi::process::Status;
use crate::user::abi::signal::{
    SA_NOCLDWAIT, SIG_IGN, SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SigAction,
};
use crate::user::owned::host;

/// Relations, and how those ended that did; who is being made, and is nobody to others.
#[derive(Debug, Default)]
pub(crate) struct Kin(
    pub(crate) Vec<Option<(Relation, Option<u32>)>>,
    Option<Place>,
);

impl Family for Kin {
    fn relation(&self, place: Place) -> Option<Relation> {
        let slot = self.0.get(place).filter(|_| self.1 != Some(place))?;
        Some((*slot)?.0)
    }
    fn set_group(&mut self, place: Place, group: u32) {
        self.0[place].as_mut().unwrap().0.group = group;
    }
    fn can_reap(&self, parent: Place, which: Selection) -> bool {
        let pid = self.relation(parent).unwrap().pid;
        let children = self.0.iter().flatten();
        let mut children = children
            .filter(|it| it.0.parent == pid && which.has(&it.0))
            .peekable();
        children.peek().is_none() || children.any(|it| it.1.is_some())
    }
    fn reap(&mut self, parent: Place, which: Selection) -> Reaped {
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

pub(crate) type HostWorld = World<'static, Kin>;

/// The first process, 1 at place 0, which runs `/bin/prog`.
pub(crate) fn world() -> HostWorld {
    host::run_out_after(usize::MAX);
    let files = super::super::files::tests::files();
    let exe = files.find(
        NodeId::ROOT,
        b"bin/prog",
        crate::user::files::path::Last::Keep,
        None,
    );
    let init = Relation {
        pid: 1,
        parent: 0,
        group: 1,
    };
    let mut world = World::new(files, Kin(vec![Some((init, None))], None)).unwrap();
    world.begin(0, exe.unwrap()).unwrap();
    world
}

/// A child of the process at `parent`; its place, one less than its number.
pub(crate) fn child(world: &mut HostWorld, parent: Place) -> Place {
    let place = world.family.0.len();
    let from = world.family.relation(parent).unwrap();
    let relation = Relation {
        pid: place as u32 + 1,
        parent: from.pid,
        ..from
    };
    world.family.0.push(Some((relation, None)));
    world.fork(parent, place).unwrap();
    place
}

/// The process at `parent` is making a child; its place.
fn unborn(world: &mut HostWorld, parent: Place) -> Place {
    world.begin_fork(parent);
    let place = child(world, parent);
    world.family.1 = Some(place);
    place
}

/// What has come for the child when it is there, unless there is something to be done before.
fn born(world: &mut HostWorld, parent: Place, place: Place) -> Option<Vec<u8>> {
    let born = world.born(parent, place);
    world.family.1 = None;
    born.then(|| pending(world, place))
}

/// The process ends, as the kernel does it.
pub(crate) fn ends(world: &mut HostWorld, place: Place, status: Status) {
    world.end(place);
    let (relation, _) = world.family.0[place].unwrap();
    let wanted = world.child_ended(relation.parent, relation.pid, status);
    world.family.0[place] = wanted.then_some((relation, Some(status.word())));
}

fn act(world: &mut HostWorld, place: Place, signal: u8, handler: u64, flags: u64) {
    let action = SigAction {
        handler,
        flags,
        ..SigAction::default()
    };
    let own = world.own_mut(place).unwrap();
    own.signals.set_action(signal, action).unwrap();
}

fn pending(world: &HostWorld, place: Place) -> Vec<u8> {
    let set = world.own(place).unwrap().signals.pending();
    (1..=64).filter(|signal| set.has(*signal)).collect()
}

fn woken(world: &mut HostWorld) -> Vec<Place> {
    world.take_woken().places().collect()
}

#[test]
fn a_child_shares_open_files_and_all_are_given_back() {
    let mut world = world();
    let held = host::held();
    let first = child(&mut world, 0);
    let second = child(&mut world, first);
    assert_eq!(world.files.counts(), (1, 0));
    assert_eq!(world.count(), 3);
    let descriptors = &world.own(second).unwrap().descriptors;
    assert_eq!(descriptors.iter().count(), 3);
    for place in [first, second, 0] {
        world.end(place);
    }
    // Twice does no harm.
    world.end(0);
    assert_eq!((world.files.counts(), world.count()), ((0, 0), 0));
    assert_eq!(host::held(), held - 1);
}

#[test]
fn no_memory_for_a_child_leaves_nothing_of_it() {
    let mut world = world();
    host::run_out_after(0);
    world.family.0.push(None);
    assert_eq!(world.fork(0, 1), Err(Errno::ENOMEM));
    host::run_out_after(usize::MAX);
    assert_eq!((world.count(), world.files.counts()), (1, (1, 0)));
    assert!(world.fork(0, 1).is_ok());
    assert_eq!(world.fork(0, MOST_TASKS), Err(Errno::EAGAIN));
    assert_eq!(world.fork(7, 2), Err(Errno::ESRCH));
}

#[test]
fn exec_closes_what_is_marked_and_takes_the_name() {
    let mut world = world();
    let (out, into) = world.files.pipe(0).unwrap();
    let own = world.own_mut(0).unwrap();
    own.descriptors.add(out, 0, false).unwrap();
    own.descriptors.add(into, 0, true).unwrap();
    own.waits = Some(Channel::Pipe(0));
    world
        .execute(0, NodeId(3), b"/bin/a-name-that-is-long")
        .unwrap();
    let own = world.own(0).unwrap();
    assert_eq!(&own.name, b"a-name-that-is-\0");
    assert_eq!((own.exe, own.descriptors.iter().count()), (NodeId(3), 4));
    assert_eq!(woken(&mut world), [0]);
    assert_eq!(woken(&mut world), [0; 0]);
}

#[test]
fn kill_finds_whom_it_means() {
    let mut world = world();
    let (a, b) = (child(&mut world, 0), child(&mut world, 0));
    let c = child(&mut world, b);
    world.lead_group(b).unwrap();
    world.family.set_group(c, 3);
    world.kill(a, 3, i32::from(SIGHUP)).unwrap();
    assert_eq!(pending(&world, b), [SIGHUP]);
    assert_eq!(woken(&mut world), [b]);
    world.kill(a, -3, i32::from(SIGTERM)).unwrap();
    assert_eq!(
        (pending(&world, b), pending(&world, c)),
        (vec![1, 15], vec![15])
    );
    // All but the first and the caller.
    world.kill(c, -1, i32::from(SIGINT)).unwrap();
    assert_eq!(
        (pending(&world, a), pending(&world, c)),
        (vec![2], vec![15])
    );
    world.kill(b, 0, i32::from(SIGUSR1)).unwrap();
    assert_eq!(
        (pending(&world, a), pending(&world, c)),
        (vec![2], vec![10, 15])
    );
    assert_eq!(world.kill(a, 4, 0), Ok(()));
    assert_eq!(world.kill(a, 77, 0), Err(Errno::ESRCH));
    assert_eq!(world.kill(a, -77, 1), Err(Errno::ESRCH));
    assert_eq!(world.kill(a, i32::MIN, 1), Err(Errno::ESRCH));
    for signal in [-1, 65, 256, i32::MAX] {
        assert_eq!(world.kill(a, 4, signal), Err(Errno::EINVAL), "{signal}");
    }
}

#[test]
fn a_signal_for_a_group_meets_a_child_that_one_of_it_is_making() {
    type Send = fn(&mut HostWorld, Place, u8);
    let group: Send = |world, _, signal| world.kill(0, 0, signal.into()).unwrap();
    let all: Send = |world, _, signal| world.kill(0, -1, signal.into()).unwrap();
    let one: Send = |world, a, signal| world.kill(0, a as i32 + 1, signal.into()).unwrap();
    for (send, meets) in [(group, true), (all, true), (one, false)] {
        let mut world = world();
        let a = child(&mut world, 0);
        let blocked = signals_of(SIGINT);
        world.own_mut(a).unwrap().signals.set_mask(blocked);
        let expected = |signals: &[u8]| Some(if meets { signals.to_vec() } else { vec![] });
        // What came before it began to is its own.
        send(&mut world, a, SIGINT);
        let b = unborn(&mut world, a);
        assert_eq!(born(&mut world, a, b), Some(vec![]));
        let b = unborn(&mut world, a);
        send(&mut world, a, SIGINT);
        assert_eq!(pending(&world, b), [0; 0]);
        assert_eq!(born(&mut world, a, b), expected(&[SIGINT]));
        let causes = [a, b].map(|place| world.own(place).unwrap().signals.cause(SIGINT));
        assert_eq!(causes[0] == causes[1], meets);
        // The parent does something about it first.
        let b = unborn(&mut world, a);
        send(&mut world, a, SIGTERM);
        assert_eq!(born(&mut world, a, b), None);
        assert_eq!(pending(&world, b), [0; 0]);
        // The first process is spared what its child is not.
        assert_eq!(world.own_mut(0).unwrap().signals.next(), None);
        woken(&mut world);
        let b = unborn(&mut world, 0);
        send(&mut world, a, SIGKILL);
        assert_eq!(born(&mut world, 0, b), expected(&[SIGKILL]));
        assert_eq!(woken(&mut world).contains(&b), meets);
    }
}

#[test]
fn a_parent_is_told_and_waits_for_whom_it_names() {
    let mut world = world();
    let (a, b) = (child(&mut world, 0), child(&mut world, 0));
    act(&mut world, 0, SIGCHLD, 0x1000, 0);
    let wait = |world: &mut HostWorld, which| world.wait(0, which);
    assert_eq!(wait(&mut world, Selection::Any), Ok(Waited::NotYet));
    assert!(!world.family.can_reap(0, Selection::Any));
    world.own_mut(0).unwrap().waits = Some(Channel::Children(1));
    let status = Status::Killed {
        signal: 11,
        core: true,
    };
    ends(&mut world, b, status);
    assert_eq!(woken(&mut world), [0]);
    let (_, cause) = world
        .own_mut(0)
        .unwrap()
        .signals
        .take(signals_of(SIGCHLD))
        .unwrap();
    assert_eq!((cause.code, cause.status, cause.value), (3, 11, 3));
    let of_a = Selection::Process(2);
    assert_eq!(wait(&mut world, of_a), Ok(Waited::NotYet));
    let found = Waited::Child { pid: 3, status: 11 };
    assert!(world.family.can_reap(0, Selection::Any));
    assert_eq!(wait(&mut world, Selection::Any), Ok(found));
    ends(&mut world, a, Status::Exited(7));
    let found = Waited::Child {
        pid: 2,
        status: 0x700,
    };
    assert_eq!(wait(&mut world, Selection::Group(1)), Ok(found));
    assert_eq!(wait(&mut world, Selection::Any), Err(Errno::ECHILD));
    assert!(world.family.can_reap(0, Selection::Any));
}

fn signals_of(signal: u8) -> crate::user::signals::set::SignalSet {
    crate::user::signals::set::SignalSet::EMPTY.with(signal)
}

#[test]
fn who_ignores_its_children_is_not_asked() {
    for (handler, flags) in [(SIG_IGN, 0), (0x1000, SA_NOCLDWAIT)] {
        let mut world = world();
        let a = child(&mut world, 0);
        act(&mut world, 0, SIGCHLD, handler, flags);
        ends(&mut world, a, Status::Exited(0));
        let waited = world.wait(0, Selection::Any);
        assert_eq!(waited, Err(Errno::ECHILD));
    }
    // Its parent ends in the same moment: the first process has it next, and may ask.
    let mut world = world();
    let a = child(&mut world, 0);
    act(&mut world, a, SIGCHLD, SIG_IGN, 0);
    world.end(a);
    assert!(world.child_ended(2, 3, Status::Exited(0)));
}

#[test]
fn who_leads_a_group_leads_no_other() {
    let mut world = world();
    let a = child(&mut world, 0);
    let b = child(&mut world, a);
    assert_eq!(world.lead_group(0), Err(Errno::EPERM));
    assert_eq!(world.lead_group(a), Ok(2));
    assert_eq!(world.lead_group(a), Err(Errno::EPERM));
    let groups = [0, a, b].map(|place| world.relation(place).unwrap().group);
    assert_eq!(groups, [1, 2, 1]);
    assert_eq!(world.lead_group(77), Err(Errno::ESRCH));
}

#[test]
fn those_who_wait_for_anything_wake_for_everything() {
    let mut world = world();
    let (a, b) = (child(&mut world, 0), child(&mut world, 0));
    world.own_mut(a).unwrap().waits = Some(Channel::Any);
    world.own_mut(b).unwrap().waits = Some(Channel::Pipe(1));
    world.wake(Channel::Pipe(2));
    assert_eq!(woken(&mut world), [a]);
    world.wake(Channel::Pipe(1));
    assert_eq!(woken(&mut world), [a, b]);
}
