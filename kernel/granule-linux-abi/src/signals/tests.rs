//! Tests of the signals of one process, without memory or other processes.

use super::*;
use crate::abi::signal::{SA_ONSTACK, SI_USER, SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2};
use granule_testing::cases::config;
use proptest::prelude::*;

const FROM_2: Cause = Cause::process(SI_USER, 2);

fn handler(flags: u64, mask: u64) -> SigAction {
    SigAction {
        handler: 0x1000,
        flags,
        restorer: 0,
        mask,
    }
}

const IGNORE: SigAction = SigAction {
    handler: SIG_IGN,
    ..SigAction::DEFAULT
};

const fn end(signal: u8, dump: bool) -> Option<Next> {
    Some(Next::Terminate { signal, dump })
}

fn handled(next: Option<Next>) -> (u8, SignalSet) {
    match next {
        Some(Next::Handle { signal, mask, .. }) => (signal, mask),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_default_is_what_the_interface_says() {
    let of = |wanted| {
        (1..=64)
            .filter(|signal| default_of(*signal) == wanted)
            .collect::<Vec<u8>>()
    };
    assert_eq!(of(Default::Ignore), [17, 18, 19, 20, 21, 22, 23, 28]);
    assert_eq!(of(Default::Dump), [3, 4, 5, 6, 7, 8, 11, 24, 25, 31]);
}

#[test]
fn defaults_end_or_do_nothing() {
    let mut signals = Signals::new(false);
    assert!(signals.send(SIGTERM, FROM_2));
    let next = signals.take_next();
    assert_eq!(next, end(SIGTERM, false));
    assert!(signals.send(SIGQUIT, FROM_2));
    assert_eq!(signals.take_next(), end(SIGQUIT, true));
    assert!(!signals.send(SIGTSTP, FROM_2));
    assert!(!signals.send(SIGCHLD, FROM_2));
    assert_eq!(signals.take_next(), None);
}

#[test]
fn a_blocked_signal_waits_even_if_it_is_ignored_now() {
    let mut signals = Signals::new(false);
    signals.change_mask(SIG_BLOCK, SignalSet(u64::MAX)).unwrap();
    assert_eq!(signals.blocked(), SignalSet(!SignalSet::UNBLOCKABLE.0));
    assert!(!signals.send(SIGCHLD, FROM_2));
    assert!(!signals.send(SIGTERM, FROM_2));
    assert_eq!(signals.take_next(), None);
    let both = SignalSet::EMPTY.with(SIGCHLD).with(SIGTERM);
    assert_eq!(signals.pending(), both);
    assert!(signals.send(SIGKILL, FROM_2));
    assert!(signals.is_killed());
    let all = SignalSet(u64::MAX);
    signals.change_mask(SIG_UNBLOCK, all).unwrap();
    assert_eq!(signals.take_next(), end(SIGKILL, false));
    assert_eq!(signals.take_next(), end(SIGTERM, false));
    assert_eq!(signals.take_next(), None);
    assert_eq!(signals.change_mask(3, SignalSet(0)), Err(Errno::EINVAL));
}

#[test]
fn a_handler_has_its_signal_and_its_mask_blocked_until_it_returns() {
    let mut signals = Signals::new(false);
    let others = SignalSet::EMPTY.with(SIGHUP).with(SIGKILL);
    signals.set_action(SIGUSR1, handler(0, others.0)).unwrap();
    signals.set_mask(SignalSet::EMPTY.with(SIGPIPE));
    assert!(signals.send(SIGUSR1, FROM_2));
    // A second arrival merges with the first while that one is pending.
    assert!(signals.send(SIGUSR1, Cause::process(SI_USER, 3)));
    let before = SignalSet::EMPTY.with(SIGPIPE);
    match signals.take_next() {
        Some(Next::Handle { cause, mask, .. }) => assert_eq!((cause, mask), (FROM_2, before)),
        other => panic!("{other:?}"),
    }
    assert_eq!(signals.blocked(), before.with(SIGUSR1).with(SIGHUP));
    assert!(!signals.send(SIGUSR1, FROM_2));
    signals.set_mask(before);
    assert_eq!(handled(signals.take_next()).0, SIGUSR1);
    // A handler may leave its own signal unblocked, and may be reset after one use.
    signals.set_mask(SignalSet::EMPTY);
    let once = handler(SA_NODEFER | SA_RESETHAND, 0);
    signals.set_action(SIGUSR2, once).unwrap();
    signals.send(SIGUSR2, FROM_2);
    assert_eq!(handled(signals.take_next()).0, SIGUSR2);
    assert_eq!(signals.blocked(), SignalSet::EMPTY);
    assert_eq!(signals.action(SIGUSR2).unwrap().handler, SIG_DFL);
}

#[test]
fn faults_come_first_and_cannot_be_ignored() {
    let mut signals = Signals::new(false);
    for signal in [SIGHUP, SIGSEGV] {
        signals.set_action(signal, handler(0, 0)).unwrap();
    }
    signals.send(SIGHUP, FROM_2);
    signals.force(SIGSEGV, Cause::KERNEL);
    assert_eq!(handled(signals.take_next()).0, SIGSEGV);
    assert_eq!(handled(signals.take_next()).0, SIGHUP);
    // In its own handler SIGSEGV is blocked, so it ends the process.
    signals.force(SIGSEGV, Cause::KERNEL);
    assert_eq!(signals.take_next(), end(SIGSEGV, true));
    signals.set_action(SIGBUS, IGNORE).unwrap();
    signals.force(SIGBUS, Cause::KERNEL);
    assert_eq!(signals.take_next(), end(SIGBUS, true));
    let mut init = Signals::new(true);
    init.force(SIGILL, Cause::KERNEL);
    assert_eq!(init.take_next(), end(SIGILL, true));
}

#[test]
fn the_first_process_is_spared_what_it_does_not_handle() {
    let mut init = Signals::new(true);
    for signal in [SIGKILL, SIGTERM, SIGSTOP, SIGTSTP, SIGQUIT] {
        assert!(!init.send(signal, FROM_2), "{signal}");
    }
    assert_eq!(init.take_next(), None);
    init.set_action(SIGTERM, handler(0, 0)).unwrap();
    assert!(init.send(SIGTERM, FROM_2));
    assert_eq!(handled(init.take_next()).0, SIGTERM);
    let mut child = Signals::new(false);
    child.fork_from(&init);
    assert!(child.send(SIGKILL, FROM_2));
    // A signal that was blocked does not end the first process when it is unblocked, either.
    let mut init = Signals::new(true);
    init.set_mask(SignalSet(u64::MAX));
    for signal in [SIGKILL, SIGTERM, SIGSTOP, SIGTSTP, SIGQUIT, SIGSEGV] {
        init.send(signal, FROM_2);
        init.send(signal, Cause::process(-6, 2));
    }
    init.set_mask(SignalSet::EMPTY);
    assert_eq!(init.take_next(), None);
    // A blocked signal stays pending, so that the process can wait for it.
    init.set_mask(SignalSet::EMPTY.with(SIGTERM));
    assert!(!init.send(SIGTERM, FROM_2));
    assert!(init.pending().has(SIGTERM));
    init.set_mask(SignalSet::EMPTY);
    assert_eq!((init.take_next(), init.pending()), (None, SignalSet::EMPTY));
    // The first process stays protected after a fault that it handles.
    init.set_action(SIGSEGV, handler(0, 0)).unwrap();
    init.force(SIGSEGV, Cause::KERNEL);
    assert_eq!(handled(init.take_next()).0, SIGSEGV);
    assert!(!init.send(SIGTERM, FROM_2));
    assert_eq!(init.take_next(), None);
}

#[test]
fn ignored_signals_are_forgotten() {
    let mut signals = Signals::new(false);
    signals.set_mask(SignalSet::EMPTY.with(SIGINT));
    signals.send(SIGINT, FROM_2);
    signals.set_action(SIGINT, IGNORE).unwrap();
    assert_eq!(signals.pending(), SignalSet::EMPTY);
    for signal in [SIGKILL, SIGSTOP, 0, 65, 255] {
        let refused = signals.set_action(signal, IGNORE);
        assert_eq!(refused, Err(Errno::EINVAL), "{signal}");
    }
}

#[test]
fn a_mask_for_one_call_is_what_a_handler_runs_with_and_not_what_it_returns_to() {
    let mut signals = Signals::new(false);
    let usual = SignalSet::EMPTY.with(SIGUSR1);
    signals.set_mask(usual);
    signals.set_action(SIGUSR1, handler(0, 0)).unwrap();
    signals.send(SIGUSR1, FROM_2);
    signals.set_mask_for_call(SignalSet::EMPTY.with(SIGHUP));
    assert_eq!(handled(signals.take_next()), (SIGUSR1, usual));
    assert_eq!(signals.blocked(), usual.with(SIGHUP));
    // Without a handler the old mask returns at the end of the call.
    signals.set_mask(usual);
    signals.set_mask_for_call(SignalSet::EMPTY);
    signals.set_mask_for_call(SignalSet::EMPTY.with(SIGINT));
    signals.end_call();
    assert_eq!(signals.blocked(), usual);
    signals.end_call();
    assert_eq!(signals.blocked(), usual);
}

#[test]
fn exec_keeps_what_is_ignored_and_fork_what_is_handled() {
    let mut signals = Signals::new(false);
    let ignore = SigAction {
        flags: SA_ONSTACK,
        ..IGNORE
    };
    signals.set_action(SIGINT, ignore).unwrap();
    signals.set_action(SIGUSR1, handler(0, 0)).unwrap();
    signals.set_mask(SignalSet::EMPTY.with(SIGUSR1));
    signals.send(SIGUSR1, FROM_2);
    let mut child = Signals::new(false);
    child.fork_from(&signals);
    assert_eq!(child.blocked(), signals.blocked());
    assert_eq!(child.pending(), SignalSet::EMPTY);
    assert_eq!(child.action(SIGUSR1).unwrap().handler, 0x1000);
    signals.executed();
    assert_eq!(signals.action(SIGINT).unwrap().handler, SIG_IGN);
    assert_eq!(signals.action(SIGUSR1).unwrap(), SigAction::default());
    assert_eq!(signals.pending(), SignalSet::EMPTY.with(SIGUSR1));
}

#[test]
fn the_other_stack_is_taken_once() {
    let mut signals = Signals::new(false);
    let stack = SigStack {
        base: 0x10000,
        flags: 0,
        pad: 0,
        size: 0x4000,
    };
    assert_eq!(signals.handler_stack(SA_ONSTACK, 0x900), 0x900);
    signals.set_stack(stack, 0x900).unwrap();
    assert_eq!(signals.handler_stack(SA_ONSTACK, 0x900), 0x14000);
    assert_eq!(signals.handler_stack(0, 0x900), 0x900);
    assert_eq!(signals.handler_stack(SA_ONSTACK, 0x13000), 0x13000);
    assert_eq!(signals.stack(0x13000).flags, SS_ONSTACK);
    assert_eq!(signals.set_stack(stack, 0x13000), Err(Errno::EPERM));
    let small = SigStack { size: 100, ..stack };
    assert_eq!(signals.set_stack(small, 0x900), Err(Errno::ENOMEM));
    let odd = SigStack { flags: 64, ..stack };
    assert_eq!(signals.set_stack(odd, 0x900), Err(Errno::EINVAL));
    signals.set_stack(NO_STACK, 0x900).unwrap();
    assert_eq!(signals.stack(0x13000), NO_STACK);
}

proptest! {
    #![proptest_config(config(256, 16))]

    /// For any sequence of signals: a blocked signal is never delivered, an unblockable signal is never
    /// blocked, and each delivery removes its signal.
    #[test]
    fn deliveries_respect_the_mask(steps in proptest::collection::vec((0u8..5, 1u8..=64, any::<u64>()), 1..80)) {
        let mut signals = Signals::new(false);
        for (step, signal, number) in steps {
            match step {
                0 => { signals.send(signal, FROM_2); }
                1 => signals.set_mask(SignalSet(number)),
                2 => { let _ = signals.set_action(signal, handler(number & SA_NODEFER, number)); }
                3 => signals.force(signal, Cause::KERNEL),
                _ => {
                    let (pending, blocked) = (signals.pending(), signals.blocked());
                    let ready = pending.without(blocked);
                    match signals.take_next() {
                        Some(Next::Handle { signal, .. } | Next::Terminate { signal, .. }) => {
                            prop_assert!(ready.has(signal));
                            prop_assert!(!signals.pending().has(signal));
                        }
                        None => prop_assert!(!signals.has_work()),
                    }
                }
            }
            prop_assert_eq!(signals.blocked().0 & SignalSet::UNBLOCKABLE.0, 0);
        }
    }
}
