//! Tests of signal delivery, with the machine of [`super::super::tests`].

use super::super::tests::{BASE, Fake};
use super::*;
use crate::abi::number as n;
use crate::abi::signal::{
    SA_ONSTACK, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2, SS_DISABLE, SigAction, SigStack,
};
use crate::processes::Places;
use crate::processes::tests::child;
use crate::signals::frame::Registers;
use crate::signals::set::SignalSet;

/// A process other than the first, with distinct values in its registers.
fn machine() -> Fake {
    let mut fake = Fake::new();
    fake.place = child(&mut fake.processes, 0);
    for (number, x) in fake.registers.x.iter_mut().enumerate() {
        *x = 0x100 + number as u64;
    }
    fake.registers.pstate = 0x8000_0000;
    fake.fp.v[7] = [70, 71];
    fake.fp.fpcr = 3;
    fake
}

fn send(fake: &mut Fake, signal: u8) {
    let place = fake.place;
    fake.processes.send(place, signal, Cause::process(0, 1));
}

/// The call with these registers is made again.
#[track_caller]
fn assert_repeated(fake: &Fake, before: &Registers) {
    let found = (fake.registers.pc, fake.registers.x);
    assert_eq!(found, (before.pc - 4, before.x));
}

const fn ends(signal: u8, dump: bool) -> After {
    After::Ends { signal, dump }
}

#[test]
fn a_handler_runs_and_returns_to_where_it_came_from() {
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, 0);
    send(&mut fake, SIGUSR1);
    let (registers, fp) = (fake.registers, fake.fp);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    assert_eq!((fake.registers.pc, fake.registers.x[0]), (0x9000, 10));
    assert_eq!(fake.registers.x[30], 0x7777_0000);
    assert!(fake.registers.sp < registers.sp);
    assert!(fake.signals().blocked().has(SIGUSR1));
    // The frame record links to the interrupted code.
    let record: [u64; 2] = fake.get(fake.registers.x[29]);
    assert_eq!(record, [0x100 + 29, 0x100 + 30]);
    fake.registers.x = [0; 31];
    fake.fp.v[7] = [0; 2];
    sigreturn(&mut fake);
    assert_eq!((fake.registers, fake.fp), (registers, fp));
    assert!(fake.signals().blocked().is_empty());
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    assert_eq!(fake.registers, registers);
}

/// Every bit of PSTATE is set where the program is interrupted, and in the frame that it returns from. Of the frame's
/// N, Z, C and V, bits 31 to 28 of SPSR_EL1, remain on this CPU, and of what the CPU has saved DIT and SSBS too. The
/// others are the mode, the masks of interrupts, PAN, a step and the like.
#[test]
fn a_program_that_runs_on_has_legal_bits_of_pstate_and_no_others() {
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, 0);
    fake.act(SIGUSR2, 0xa000, 0);
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGUSR2);
    fake.registers.pstate = u64::MAX;
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    for (runs_on, expected) in [
        ("in the second handler", 0xf100_1000),
        ("in the first", 0xf000_0000),
        ("behind both", 0xf000_0000),
    ] {
        let pstate = fake.registers.pstate;
        assert_eq!(pstate, expected, "{runs_on}: {pstate:#x}");
        if runs_on != "behind both" {
            let sp = fake.registers.sp;
            let mut frame: SigFrame = fake.get(sp);
            frame.context.pstate = u64::MAX;
            fake.put(sp, frame);
            sigreturn(&mut fake);
        }
    }
}

#[test]
fn an_interrupted_call_fails_or_is_made_again() {
    for (restart, flags, again) in [
        (Restart::IfAsked, SA_RESTART, true),
        (Restart::IfAsked, 0, false),
        (Restart::IfNoHandler, SA_RESTART, false),
    ] {
        let mut fake = machine();
        fake.act(SIGUSR1, 0x9000, flags);
        send(&mut fake, SIGUSR1);
        let before = fake.registers;
        let interrupted = finish(&mut fake.registers.x[0], Err(Fail::Interrupted(restart)));
        assert_eq!(deliver(&mut fake, interrupted), After::GoesOn);
        sigreturn(&mut fake);
        let expected = if again {
            (before.pc - 4, before.x[0])
        } else {
            (before.pc, Errno::EINTR.as_result())
        };
        let found = (fake.registers.pc, fake.registers.x[0]);
        assert_eq!(found, expected, "{restart:?}");
    }
    // Without a handler the call is always repeated: the first process ignores a signal that would end
    // it.
    for restart in [Restart::IfAsked, Restart::IfNoHandler] {
        let mut fake = machine();
        let before = fake.registers;
        let interrupted = finish(&mut fake.registers.x[0], Err(Fail::Interrupted(restart)));
        fake.place = 0;
        fake.signals().set_mask(SignalSet::EMPTY.with(SIGTERM));
        send(&mut fake, SIGTERM);
        fake.signals().set_mask(SignalSet::EMPTY);
        assert_eq!(deliver(&mut fake, interrupted), After::GoesOn);
        assert_repeated(&fake, &before);
    }
}

#[test]
fn of_signals_that_come_at_once_none_waits_for_anothers_handler() {
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, SA_RESTART);
    fake.act(SIGUSR2, 0xa000, 0);
    let before = fake.registers;
    let call = Err(Fail::Interrupted(Restart::IfAsked));
    let interrupted = finish(&mut fake.registers.x[0], call);
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGUSR2);
    assert_eq!(deliver(&mut fake, interrupted), After::GoesOn);
    // The second handler runs on top of the first, with both masks.
    assert_eq!((fake.registers.pc, fake.registers.x[0]), (0xa000, 12));
    let both = 1 << (SIGUSR1 - 1) | 1 << (SIGUSR2 - 1);
    assert_eq!(fake.signals().blocked().0, both);
    sigreturn(&mut fake);
    assert_eq!((fake.registers.pc, fake.registers.x[0]), (0x9000, 10));
    assert_eq!(fake.signals().blocked().0, 1 << (SIGUSR1 - 1));
    // The call is repeated once, as decided by the handler that interrupted it.
    sigreturn(&mut fake);
    assert_repeated(&fake, &before);
    assert!(fake.signals().blocked().is_empty());
}

#[test]
fn behind_a_handler_that_begins_others_are_kept_out_or_end_the_process() {
    // The first handler's mask blocks the second signal.
    let mut fake = machine();
    fake.act(SIGUSR2, 0xa000, 0);
    let keeps_out = SigAction {
        handler: 0x9000,
        mask: 1 << (SIGUSR2 - 1),
        ..SigAction::default()
    };
    fake.signals().set_action(SIGUSR1, keeps_out).unwrap();
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGUSR2);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    assert_eq!(fake.registers.pc, 0x9000);
    sigreturn(&mut fake);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    assert_eq!(fake.registers.pc, 0xa000);

    // A signal without a handler ends the process, even after another handler has started.
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, 0);
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGTERM);
    assert_eq!(deliver(&mut fake, None), ends(SIGTERM, false));

    // A second frame without room on the stack ends the process, too.
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, 0);
    fake.act(SIGUSR2, 0xa000, 0);
    fake.registers.sp = BASE + 0x1800;
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGUSR2);
    assert_eq!(deliver(&mut fake, None), ends(SIGSEGV, true));
}

fn other_stack(size: u64) -> SigStack {
    SigStack {
        base: BASE + 0x1000,
        size,
        ..SigStack::default()
    }
}

#[test]
fn a_second_handler_goes_below_the_first_on_the_other_stack() {
    let mut fake = machine();
    let other = fake.put(BASE, other_stack(0x3000));
    assert_eq!(sigaltstack(&mut fake, other, 0), Ok(0));
    fake.act(SIGUSR1, 0x9000, SA_ONSTACK);
    fake.act(SIGUSR2, 0xa000, SA_ONSTACK);
    let sp = fake.registers.sp;
    send(&mut fake, SIGUSR1);
    send(&mut fake, SIGUSR2);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    let second = fake.registers.sp;
    sigreturn(&mut fake);
    let first = fake.registers.sp;
    assert_eq!(fake.registers.pc, 0x9000);
    assert!(BASE + 0x1000 < second && second < first && first < BASE + 0x4000);
    sigreturn(&mut fake);
    assert_eq!(fake.registers.sp, sp);
}

#[test]
fn results_are_what_c_libraries_expect() {
    let mut fake = machine();
    assert_eq!(finish(&mut fake.registers.x[0], Ok(77)), None);
    assert_eq!(fake.registers.x[0], 77);
    let failed = finish(&mut fake.registers.x[0], Err(Errno::ENOENT.into()));
    assert_eq!(failed, None);
    assert_eq!(fake.registers.x[0] as i64, -2);
}

#[test]
fn a_signal_without_a_handler_ends_the_process() {
    let mut fake = machine();
    send(&mut fake, SIGTERM);
    assert_eq!(deliver(&mut fake, None), ends(SIGTERM, false));
    // There is no job control, so SIGSTOP does nothing.
    send(&mut fake, SIGSTOP);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    send(&mut fake, SIGKILL);
    assert_eq!(deliver(&mut fake, None), ends(SIGKILL, false));
}

#[test]
fn a_handler_without_a_stack_ends_the_process() {
    // A SIGSEGV handler does not help: its frame has no stack either.
    for handles_faults in [false, true] {
        let mut fake = machine();
        fake.act(SIGUSR1, 0x9000, 0);
        if handles_faults {
            fake.act(SIGSEGV, 0x9000, 0);
        }
        fake.registers.sp = 0xdead_0000;
        send(&mut fake, SIGUSR1);
        let after = deliver(&mut fake, None);
        assert_eq!(after, ends(SIGSEGV, true), "{handles_faults}");
    }
}

#[test]
fn a_stack_overflow_is_handled_on_another_stack() {
    let mut fake = machine();
    let other = fake.put(BASE, other_stack(0x2000));
    assert_eq!(sigaltstack(&mut fake, other, BASE + 64), Ok(0));
    assert_eq!(fake.get::<SigStack>(BASE + 64).flags, SS_DISABLE);
    fake.act(SIGSEGV, 0x9000, SA_ONSTACK);
    fake.registers.sp = 0xdead_0000;
    fake.signals().force(SIGSEGV, Cause::KERNEL);
    assert_eq!(deliver(&mut fake, None), After::GoesOn);
    assert!((BASE + 0x1000..BASE + 0x3000).contains(&fake.registers.sp));
    assert_eq!(sigaltstack(&mut fake, other, 0), Err(Errno::EPERM.into()));
    sigreturn(&mut fake);
    assert_eq!(fake.registers.sp, 0xdead_0000);
    assert_eq!(fake.signals().stack(0).size, 0x2000);
}

#[test]
fn a_return_without_a_frame_is_a_fault() {
    for sp in [0xdead_0000, BASE + 8, BASE] {
        let mut fake = machine();
        fake.registers.sp = sp;
        fake.processes.woken = Places::new();
        sigreturn(&mut fake);
        // Without this wake-up the process would not handle the signal before its next instruction.
        assert_eq!(fake.processes.woken.first(), Some(fake.place), "{sp:#x}");
        assert_eq!(deliver(&mut fake, None), ends(SIGSEGV, true), "{sp:#x}");
    }
}

#[test]
fn suspending_returns_to_the_mask_of_before() {
    let mut fake = machine();
    fake.act(SIGUSR1, 0x9000, 0);
    let mask = fake.put(BASE, 1_u64 << (SIGUSR1 - 1));
    fake.call(n::RT_SIGPROCMASK, &[2, mask, 0, 8]).unwrap();
    let none = fake.put(BASE + 8, 0_u64);
    fake.kill_self_later(SIGUSR1);
    let result = fake.call(n::RT_SIGSUSPEND, &[none, 8]);
    let interrupted = finish(&mut fake.registers.x[0], result);
    assert_eq!(deliver(&mut fake, interrupted), After::GoesOn);
    assert_eq!(fake.registers.pc, 0x9000);
    sigreturn(&mut fake);
    assert_eq!(fake.registers.x[0], Errno::EINTR.as_result());
    assert_eq!(fake.signals().blocked().0, 1 << (SIGUSR1 - 1));
}
