//! Tests of calls that wait, and of the events that end a wait.

use super::*;

#[test]
fn a_reader_of_a_pipe_waits_for_the_writer_and_for_its_end() {
    let mut fake = Fake::new();
    let [out, into] = fake.pipe(O_CLOEXEC);
    let writer = child(&mut fake.processes, 0);
    let id = fake.open_id(into);
    fake.ok(n::CLOSE, &[u64::from(into)]);
    fake.meanwhile(move |processes| {
        processes.files.write(id, b"late", 4).unwrap();
        processes.wake(Channel::Pipe(0));
    });
    fake.meanwhile(move |processes| ends(processes, writer, Status::Exited(0)));
    assert_eq!(fake.ok(n::READ, &[u64::from(out), BASE, 300]), 4);
    assert_eq!(fake.bytes(BASE, 4), b"late");
    assert_eq!(fake.ok(n::READ, &[u64::from(out), BASE, 300]), 0);
    assert!(fake.events.is_empty());
}

#[test]
fn a_writer_of_a_full_pipe_waits_for_room() {
    let mut fake = Fake::new();
    let [out, into] = fake.pipe(0);
    let id = fake.open_id(out);
    let (out, into) = (u64::from(out), u64::from(into));
    for _ in 0..2 {
        assert_eq!(fake.ok(n::WRITE, &[into, BASE, 0x7000]), 0x7000);
    }
    // 8 of 64 KiB are free; the reads make room for the rest.
    for _ in 0..5 {
        fake.meanwhile(move |processes| {
            processes.files.read(id, &mut [0; 5000]).unwrap();
            processes.wake(Channel::Pipe(0));
        });
    }
    assert_eq!(fake.ok(n::WRITE, &[into, BASE, 0x7000]), 0x7000);
    let on = fake.put(BASE, 1_u32);
    fake.ok(n::IOCTL, &[into, u64::from(FIONBIO), on]);
    let some = fake.ok(n::WRITE, &[into, BASE, 0x7000]);
    assert!(some < 0x7000, "{some}");
    fake.fails(n::WRITE, &[into, BASE, 4096], Errno::EAGAIN);
    // Without a reader the writer gets SIGPIPE, and EPIPE.
    fake.act(SIGPIPE, 0x1000, 0);
    fake.ok(n::CLOSE, &[out]);
    fake.fails(n::WRITE, &[into, BASE, 1], Errno::EPIPE);
    assert!(fake.signals().pending().has(SIGPIPE));
}

#[test]
fn a_bad_pointer_takes_nothing_out_of_a_pipe() {
    let mut fake = Fake::new();
    let [out, into] = fake.pipe(0).map(u64::from);
    fake.ok(n::WRITE, &[into, BASE, 10]);
    fake.fails(n::READ, &[out, NOWHERE, 10], Errno::EFAULT);
    fake.fails(n::READ, &[out, READ_ONLY, 10], Errno::EFAULT);
    assert_eq!(fake.ok(n::READ, &[out, BASE, 10]), 10);
    fake.fails(n::PIPE2, &[READ_ONLY, 0], Errno::EFAULT);
    assert_eq!(fake.processes.files.counts().1, 1);
}

#[test]
fn poll_tells_what_is_ready_and_waits_for_the_rest() {
    let mut fake = Fake::new();
    let [out, into] = fake.pipe(0);
    let id = fake.open_id(into);
    let asks = |fd: u32, events| PollFd {
        fd: fd as i32,
        events,
        revents: 0xffff,
    };
    let all = [asks(out, 1), asks(63, 1), asks(into, 4), asks(u32::MAX, 1)];
    let at = fake.put(BASE, all);
    assert_eq!(fake.ok(n::PPOLL, &[at, 4]), 2);
    let answered: [PollFd; 4] = fake.get(at);
    assert_eq!(answered.map(|fd| fd.revents), [0, 0x20, 4, 0]);
    // No event within the timeout: the remaining time is written.
    let time = fake.put(BASE + 0x100, TimeSpec::from_ns(5_000));
    let before = fake.clock;
    assert_eq!(fake.ok(n::PPOLL, &[at, 1, time]), 0);
    assert_eq!(fake.clock, before + 5_000);
    assert_eq!(fake.get::<TimeSpec>(time), TimeSpec::default());
    // The console is always ready: its input is at its end.
    let console = fake.put(BASE + 0x200, asks(0, 5));
    assert_eq!(fake.ok(n::PPOLL, &[console, 1]), 1);
    assert_eq!(fake.get::<PollFd>(console).revents, 5);
    // Two different pipes to wait for.
    let [other, _] = fake.pipe(0);
    let at = fake.put(BASE, [asks(out, 1), asks(other, 1)]);
    fake.meanwhile(move |processes| {
        processes.files.write(id, b"x", 1).unwrap();
        processes.wake(Channel::Pipe(0));
    });
    assert_eq!(fake.ok(n::PPOLL, &[at, 2]), 1);
    fake.fails(n::PPOLL, &[at, 65], Errno::EINVAL);
}

#[test]
fn a_signal_ends_a_wait_but_not_one_that_nobody_minds() {
    let mut fake = Fake::new();
    fake.place = child(&mut fake.processes, 0);
    // An ignored signal never wakes the process, so the timeout ends the sleep.
    fake.act(SIGUSR1, SIG_IGN, 0);
    let three = TimeSpec { sec: 3, nsec: 0 };
    let time = fake.put(BASE, three);
    assert_eq!(fake.ok(n::NANOSLEEP, &[time, 0]), 0);
    fake.act(SIGALRM, 0x1000, SA_RESTART);
    fake.kill_self_later(SIGALRM);
    let restart = Err(Fail::Interrupted(Restart::IfNoHandler));
    assert_eq!(fake.call(n::NANOSLEEP, &[time, BASE + 16]), restart);
    assert_eq!(fake.get::<TimeSpec>(BASE + 16), three);
    // The repeated call keeps its first deadline.
    fake.signals().take_next();
    let until = fake.clock + 3_000_000_000;
    fake.clock += 1_000_000_000;
    assert_eq!(fake.ok(n::NANOSLEEP, &[time, 0]), 0);
    assert_eq!(fake.clock, until);
    fake.kill_self_later(SIGINT);
    let out = u64::from(fake.pipe(0)[0]);
    let call = fake.call(n::READ, &[out, BASE, 10]);
    assert_eq!(call, Err(Fail::Interrupted(Restart::IfAsked)));
    let bad = fake.put(BASE, TimeSpec { sec: 0, nsec: -1 });
    fake.fails(n::NANOSLEEP, &[bad, 0], Errno::EINVAL);
}

#[test]
fn a_mask_for_the_wait_lets_a_signal_in_that_is_blocked_otherwise() {
    let mut fake = Fake::new();
    fake.act(SIGCHLD, 0x1000, 0);
    let all = fake.put(BASE, u64::MAX);
    fake.ok(n::RT_SIGPROCMASK, &[2, all, BASE + 8, 8]);
    assert_eq!(fake.get::<u64>(BASE + 8), 0);
    let a = child(&mut fake.processes, 0);
    ends(&mut fake.processes, a, Status::Exited(1));
    assert!(fake.signals().pending().has(SIGCHLD));
    let none = fake.put(BASE + 8, 0_u64);
    let restart = Err(Fail::Interrupted(Restart::IfNoHandler));
    assert_eq!(fake.call(n::RT_SIGSUSPEND, &[none, 8]), restart);
    fake.fails(n::RT_SIGPROCMASK, &[2, all, 0, 4], Errno::EINVAL);
    fake.fails(n::RT_SIGACTION, &[9, all, 0, 8], Errno::EINVAL);
    fake.fails(n::RT_SIGACTION, &[65, 0, 0, 8], Errno::EINVAL);
}

#[test]
fn a_blocked_signal_is_taken_by_who_asks_for_it() {
    let mut fake = Fake::new();
    let set = fake.put(BASE, 1_u64 << (SIGUSR1 - 1));
    fake.ok(n::RT_SIGPROCMASK, &[0, set, 0, 8]);
    fake.act(SIGUSR1, 0x1000, 0);
    fake.ok(n::TGKILL, &[1, 1, u64::from(SIGUSR1)]);
    let taken = fake.ok(n::RT_SIGTIMEDWAIT, &[set, BASE + 64, 0, 8]);
    assert_eq!(taken, u64::from(SIGUSR1));
    assert_eq!(fake.get::<[i32; 3]>(BASE + 64), [10, 0, -6]);
    let time = fake.put(BASE + 16, TimeSpec { sec: 1, nsec: 0 });
    fake.fails(n::RT_SIGTIMEDWAIT, &[set, 0, time, 8], Errno::EAGAIN);
    fake.fails(n::TGKILL, &[2, 1, 1], Errno::ESRCH);
    fake.fails(n::TGKILL, &[0, 1, 1], Errno::EINVAL);
    fake.fails(n::TKILL, &[99, 1], Errno::ESRCH);
}

#[test]
fn a_blocked_signal_wakes_who_sleeps_for_it_and_nobody_else() {
    let mut fake = Fake::new();
    fake.place = child(&mut fake.processes, 0);
    let both = 1_u64 << (SIGUSR1 - 1) | 1 << (SIGALRM - 1);
    let both = fake.put(BASE, both);
    fake.ok(n::RT_SIGPROCMASK, &[0, both, 0, 8]);
    let set = fake.put(BASE, 1_u64 << (SIGUSR1 - 1));
    fake.kill_self_later(SIGUSR1);
    let taken = fake.ok(n::RT_SIGTIMEDWAIT, &[set, 0, 0, 8]);
    assert_eq!(taken, u64::from(SIGUSR1));
    // No wait remains registered, whatever ended it: a signal taken, the timeout, or another signal.
    let time = fake.put(BASE + 16, TimeSpec { sec: 1, nsec: 0 });
    for ended in [None, Some(Errno::EAGAIN), Some(Errno::EINTR)] {
        if ended == Some(Errno::EINTR) {
            fake.kill_self_later(SIGINT);
        }
        if let Some(error) = ended {
            fake.fails(n::RT_SIGTIMEDWAIT, &[set, 0, time, 8], error);
        }
        fake.processes.woken = Places::new();
        fake.kill_self(SIGUSR1)(&mut fake.processes);
        assert_eq!(fake.processes.woken.first(), None, "{ended:?}");
        let taken = fake.ok(n::RT_SIGTIMEDWAIT, &[set, 0, 0, 8]);
        assert_eq!(taken, u64::from(SIGUSR1));
    }
    // A signal outside the awaited set does not wake the process.
    fake.signals().set_awaited(SignalSet::EMPTY.with(SIGUSR1));
    fake.kill_self(SIGALRM)(&mut fake.processes);
    assert_eq!(fake.processes.woken.first(), None);
}

#[test]
fn a_parent_waits_for_its_children() {
    let mut fake = Fake::new();
    let minus_one = u64::from(u32::MAX);
    fake.fails(n::WAIT4, &[minus_one, 0, 0, 0], Errno::ECHILD);
    let a = child(&mut fake.processes, 0);
    assert_eq!(fake.ok(n::WAIT4, &[minus_one, BASE, 1, 0]), 0);
    fake.meanwhile(move |processes| ends(processes, a, Status::Exited(5)));
    assert_eq!(fake.ok(n::WAIT4, &[minus_one, BASE, 0, BASE + 8]), 2);
    assert_eq!(fake.get::<u32>(BASE), 0x500);
    fake.fails(n::WAIT4, &[minus_one, 0, 0x100, 0], Errno::EINVAL);
    fake.fails(n::WAIT4, &[1 << 31, 0, 0, 0], Errno::ESRCH);
    assert_eq!(fake.ok(n::GETPID, &[]), 1);
    assert_eq!(fake.ok(n::GETPPID, &[]), 0);
    fake.fails(n::SETSID, &[], Errno::EPERM);
    fake.place = child(&mut fake.processes, 0);
    let process = fake.ok(n::GETPID, &[]);
    assert_eq!(fake.ok(n::SETSID, &[]), process);
}
