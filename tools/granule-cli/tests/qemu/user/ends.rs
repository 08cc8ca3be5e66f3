//! The ends of programs, good and bad, and the kernel's reports of them; its line where there is no
//! program to run.

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::user::files;
use crate::user::machine::{does, ends, machine, program, well};

#[test]
fn the_first_process_s_end_is_the_outcome() {
    let request = machine(PageSize::K4, 2);
    let ran = does(&request, "exit 3", Outcome::GuestExit);
    assert_eq!(
        (ran.number("user.exit_code"), ran.number("user.signal")),
        (3, 0)
    );
    assert_eq!(
        ran.reason.as_deref(),
        Some("the first process ended with 3")
    );
    // Reading address 0.
    let ran = does(&request, "fault 0", Outcome::GuestExit);
    assert_eq!(
        (ran.number("user.exit_code"), ran.number("user.signal")),
        (0, 11)
    );
    let reason = "the first process was ended by SIGSEGV (11)";
    assert_eq!(ran.reason.as_deref(), Some(reason));
    does(&request, "exit 0", Outcome::Ok);
}

#[test]
fn remaining_processes_end_with_the_first_one() {
    for (size, cpus) in [(PageSize::K4, 1), (PageSize::K16, 4), (PageSize::K64, 2)] {
        let ran = well(&machine(size, cpus), "left", "left");
        assert!(ran.number("user.processes") >= 17);
    }
}

/// The kernel's stack of a task has a guard, whatever the page size.
#[test]
fn a_task_that_uses_up_its_kernel_stack_is_caught_by_the_guard() {
    for (size, cpus) in [(PageSize::K4, 2), (PageSize::K16, 1), (PageSize::K64, 2)] {
        let request = Request {
            append: Some("granule.test=overflow-task".into()),
            ..machine(size, cpus)
        };
        let archive = Initramfs::new().program("/init", &program());
        let ran = ends(&request, archive, Outcome::Panic);
        let reason = ran.reason.as_deref().unwrap_or_default();
        assert!(
            reason.contains("kernel stack overflow: data abort: translation fault"),
            "{size:?}: {reason}"
        );
    }
}

/// Where the guard is not right below a stack, because the frame has another owner there, an
/// exception catches it. A task that comes back from below its stack is caught by the last word of
/// its stack, whatever the page size.
#[test]
fn a_task_that_leaves_its_kernel_stack_without_a_fault_is_caught() {
    let ends = |size, cpus, test: &str, reason: &str| {
        let request = Request {
            append: Some(format!("granule.test={test} -- storm")),
            ..machine(size, cpus)
        };
        let archive = Initramfs::new().program("/init", &program());
        let ran = ends(&request, archive, Outcome::Panic);
        let actual = ran.reason.as_deref().unwrap_or_default();
        assert!(actual.contains(reason), "{size:?}: {actual}");
    };
    // With a CPU alone: another could run the owner of what is below before the interrupt comes.
    ends(
        PageSize::K64,
        1,
        "overflow-task-slowly",
        "kernel stack overflow: the stack pointer is below the stack",
    );
    for size in [PageSize::K4, PageSize::K16, PageSize::K64] {
        ends(
            size,
            2,
            "overflow-task-briefly",
            "kernel stack overflow: the last word of a stack changed",
        );
    }
}

/// With pages of 64K what is below a kernel stack may belong to another task. So a quarter of it must be left whatever
/// programs do.
#[test]
fn tasks_leave_a_quarter_of_their_kernel_stack() {
    const MOST: u64 = 12 << 10;
    let mut most = 0;
    for (index, test) in [
        "every-pointer",
        "random 1 60",
        "signal-storm",
        "pipe-storm",
        "sizes",
        "execs",
        "memory",
        "groups",
        "crowd",
    ]
    .into_iter()
    .enumerate()
    {
        let size = [PageSize::K64, PageSize::K4, PageSize::K16][index % 3];
        let request = Request {
            append: Some(format!("granule.test=stacks -- {test}")),
            ..machine(size, 1 + index as u32 % 2 * 3)
        };
        let used = ends(&request, files::archive(), Outcome::Ok).number("user.kernel_stack_used");
        println!("{test}, {size:?}: {used} bytes");
        assert!(used <= MOST, "{test}, {size:?}: {used} bytes");
        most = most.max(used);
    }
    assert!(most > 1024, "nothing was measured: {most}");
}

#[test]
fn a_thousand_programs_wait_at_once_and_all_is_given_back() {
    for (size, cpus) in [(PageSize::K4, 2), (PageSize::K16, 1), (PageSize::K64, 4)] {
        let ran = well(&machine(size, cpus), "thousand", "a thousand, twice");
        assert_eq!(ran.number("user.processes"), 2001);
    }
}

#[test]
fn a_program_that_breaks_a_rule_is_ended_alone() {
    for (size, cpus, el) in [
        (PageSize::K4, 1, 2),
        (PageSize::K16, 2, 1),
        (PageSize::K64, 3, 2),
    ] {
        let request = Request {
            el,
            ..machine(size, cpus)
        };
        well(&request, "faults", "survived");
    }
}

#[test]
fn bad_pointers_are_errors() {
    for size in [PageSize::K4, PageSize::K16, PageSize::K64] {
        let ran = well(&machine(size, 1), "pointers", "pointed");
        let unimplemented = ran
            .console
            .matches("which is not implemented: ENOSYS")
            .count();
        // Two unknown numbers, and all that are too large together.
        assert!(
            (2..=4).contains(&unimplemented),
            "{unimplemented} in:\n{}",
            ran.console
        );
    }
}

#[test]
fn a_program_that_uses_all_memory_is_ended() {
    for (size, cpus) in [(PageSize::K4, 2), (PageSize::K64, 1)] {
        well(&machine(size, cpus), "full", "filled");
    }
}

#[test]
fn another_program_can_be_the_first() {
    let request = Request {
        append: Some("rdinit=/bin/other -- hello".into()),
        ..machine(PageSize::K16, 1)
    };
    let archive = || {
        Initramfs::new()
            .directory("/bin")
            .program("/bin/other", &program())
    };
    let ran = ends(&request, archive(), Outcome::Ok);
    assert!(ran.prints("path /bin/other"), "{}", ran.console);
    let request = machine(PageSize::K16, 1);
    let ran = ends(&request, archive(), Outcome::Ok);
    let line = "granule: the initramfs has no /init: no user space";
    assert!(ran.prints(line), "{}", ran.console);
    assert!(ran.json.get("user").is_none());
}

#[test]
fn the_first_process_may_be_a_script() {
    let request = Request {
        append: Some("-- more".into()),
        ..machine(PageSize::K64, 1)
    };
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &program())
        .program("/init", b"#!/bin/prog hello\nnot read\n");
    let ran = ends(&request, archive, Outcome::Ok);
    let printed: Vec<_> = ran.console.lines().map(str::trim_end).collect();
    let arguments = ["/bin/prog", "hello", "/init", "more"];
    let arguments = arguments.map(|argument| format!("argument {argument}"));
    assert!(
        printed
            .windows(arguments.len())
            .any(|lines| lines == arguments),
        "{}",
        ran.console
    );
}

#[test]
fn a_file_that_is_not_a_program_is_refused_with_the_reason() {
    let good = program();
    let mut other_machine = good.clone();
    other_machine[18] = 62;
    for (content, why) in [
        (
            &b"#!/init\n"[..],
            "it is not a 64-bit little-endian ELF file",
        ),
        (&good[..good.len() / 2], "cut off"),
        (&other_machine, "it is not for AArch64"),
    ] {
        let archive = Initramfs::new().program("/init", content);
        let ran = ends(&machine(PageSize::K4, 1), archive, Outcome::Refused);
        assert!(ran.console.contains(why), "no {why:?} in:\n{}", ran.console);
        assert_eq!(ran.reason.as_deref(), Some("/init cannot be run: ENOEXEC"));
    }
    let archive = Initramfs::new().program("/init", b"#!/bin/none -e\n");
    let ran = ends(&machine(PageSize::K4, 1), archive, Outcome::Refused);
    let reason = "/init cannot be run: its first line names /bin/none, which is not a file in the \
                  initramfs";
    assert_eq!(ran.reason.as_deref(), Some(reason));
}
