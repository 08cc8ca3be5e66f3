//! The ends of programs, good and bad, and the kernel's reports of them; its line where there is no
//! program to run.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Outcome};

use crate::user::files;
use crate::user::machine::{does, ends, machine, machine_at, program, well};

#[test]
fn the_end_of_the_first_process_is_the_outcome() {
    let request = machine(K4, 2);
    for (words, code, signal, reason) in [
        ("exit 3", 3, 0, "the first process ended with 3"),
        // Reading address 0.
        (
            "fault 0",
            0,
            11,
            "the first process was ended by SIGSEGV (11)",
        ),
    ] {
        let ran = does(&request, words, Outcome::GuestExit);
        ran.has("user.exit_code", code);
        ran.has("user.signal", signal);
        assert_eq!(ran.reason(), reason);
    }
    does(&request, "exit 0", Outcome::Ok);
}

#[test]
fn remaining_processes_end_with_the_first_one() {
    for (size, cpus) in [(K4, 1), (K16, 4), (K64, 2)] {
        let ran = well(&machine(size, cpus), "left", "left");
        assert!(ran.number("user.processes") >= 17);
    }
}

#[test]
fn a_program_powers_the_machine_off() {
    for (size, cpus, by) in [(K4, 1, "init"), (K16, 4, "child"), (K64, 2, "child")] {
        let ran = well(&machine(size, cpus), &format!("power-off {by}"), "left");
        let refused =
            "granule: kexec refused: reboot has magic 0xfee1dead, 0x28121969 and command 0x1234567";
        assert_eq!(ran.console.matches(refused).count(), 1, "{}", ran.console);
    }
}

/// The kernel's stack of a task has a guard, whatever the page size. Where the guard is not right below a
/// stack, because the frame has another owner there, an exception catches it. A task that comes back from
/// below its stack is caught by the last word of its stack.
#[test]
fn a_task_that_leaves_its_kernel_stack_is_caught() {
    let guard = "data abort: translation fault";
    let word = "the last word of a stack changed";
    for (size, cpus, words, reason) in [
        (K4, 2, "overflow-task", guard),
        (K16, 1, "overflow-task", guard),
        (K64, 2, "overflow-task", guard),
        // With a CPU alone: another could run the owner of what is below before the interrupt comes.
        (
            K64,
            1,
            "overflow-task-slowly -- storm",
            "the stack pointer is below the stack",
        ),
        (K4, 2, "overflow-task-briefly -- storm", word),
        (K16, 2, "overflow-task-briefly -- storm", word),
        (K64, 2, "overflow-task-briefly -- storm", word),
    ] {
        let request = machine(size, cpus).append(format!("granule.test={words}"));
        let archive = Initramfs::new().program("/init", &program());
        let ran = ends(&request, archive, Outcome::Panic);
        ran.fails_with(&format!("kernel stack overflow: {reason}"));
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
        let size = [K64, K4, K16][index % 3];
        let request = machine(size, 1 + index as u32 % 2 * 3)
            .append(format!("granule.test=stacks -- {test}"));
        let used = ends(&request, files::archive(), Outcome::Ok).number("user.kernel_stack_used");
        println!("{test}, {size:?}: {used} bytes");
        assert!(used <= MOST, "{test}, {size:?}: {used} bytes");
        most = most.max(used);
    }
    assert!(most > 1024, "nothing was measured: {most}");
}

#[test]
fn a_thousand_programs_wait_at_once_and_all_is_given_back() {
    for (size, cpus) in [(K4, 2), (K16, 1), (K64, 4)] {
        let ran = well(&machine(size, cpus), "thousand", "a thousand, twice");
        ran.has("user.processes", 2001);
    }
}

#[test]
fn a_program_that_breaks_a_rule_is_ended_alone() {
    for (size, cpus, el) in [(K4, 1, 2), (K16, 2, 1), (K64, 3, 2)] {
        well(&machine_at(size, cpus, el), "faults", "survived");
    }
}

#[test]
fn bad_pointers_are_errors() {
    for size in PageSize::ALL {
        let ran = well(&machine(size, 1), "pointers", "pointed");
        let unimplemented = ran.console.matches("which is not implemented: ENOSYS");
        // Two unknown numbers, and all that are too large together.
        assert!((2..=4).contains(&unimplemented.count()), "{}", ran.console);
    }
}

#[test]
fn a_program_that_uses_all_memory_is_ended() {
    for (size, cpus) in [(K4, 2), (K64, 1)] {
        well(&machine(size, cpus), "full", "filled");
    }
}

#[test]
fn another_program_can_be_the_first() {
    let request = machine(K16, 1).append("rdinit=/bin/other -- hello");
    let archive = || {
        Initramfs::new()
            .directory("/bin")
            .program("/bin/other", &program())
    };
    let ran = ends(&request, archive(), Outcome::Ok);
    ran.prints_line("path /bin/other");
    let request = machine(K16, 1);
    let ran = ends(&request, archive(), Outcome::Ok);
    let line = "granule: the initramfs has no /init: no user space";
    ran.prints_line(line);
    assert!(ran.json.get("user").is_none());
}

#[test]
fn the_first_process_may_be_a_script() {
    let request = machine(K64, 1).append("-- more");
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
        let ran = ends(&machine(K4, 1), archive, Outcome::Refused);
        ran.mentions(why);
        assert_eq!(ran.reason(), "/init cannot be run: ENOEXEC");
    }
    let archive = Initramfs::new().program("/init", b"#!/bin/none -e\n");
    let ran = ends(&machine(K4, 1), archive, Outcome::Refused);
    let reason = "/init cannot be run: its first line names /bin/none, which is not a file in the \
                  initramfs";
    assert_eq!(ran.reason(), reason);
}
