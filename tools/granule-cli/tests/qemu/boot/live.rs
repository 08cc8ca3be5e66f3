//! Ends that are the host's affair: time limits, busy hosts and signals.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use granule_cli::Outcome;
use granule_cli::boot::clock::ProcessClock;
use tempfile::TempDir;

use crate::boot::command::{granule, last_line, with_image};
use crate::boot::guests;
use crate::boot::kexec::{LEAVING, leaves};
use crate::boot::outcomes::boot_guest;

#[test]
fn a_guest_that_spins_is_ended_in_time_with_its_last_line() {
    let image = guests::prints_and_spins("here\n@granule reason=stuck\n");
    let done = boot_guest(&image, |r| r.timeout = Duration::from_secs(5));
    assert_eq!(
        done.last_line(),
        "granule: timeout: no end after 5 s; the kernel had reported: stuck"
    );
    assert_eq!(done.console, "here\n");
}

#[test]
fn a_guest_that_sleeps_for_ever_is_ended_too() {
    let done = boot_guest(&guests::prints_and_sleeps("here\n"), |r| {
        r.timeout = Duration::from_secs(3);
    });
    assert_eq!(done.last_line(), "granule: timeout: no end after 3 s");
    assert_eq!(done.console, "here\n");
}

#[test]
fn a_slow_guest_beside_busy_loops_is_not_hung() {
    let slow = guests::prints_the_time_of_a_loop(1 << 13, 2);
    let quiet = Instant::now();
    let done = boot_guest(&slow, |_| ());
    let quiet = quiet.elapsed();
    assert_eq!(done.boot.console.len(), 8, "{}", done.last_line());
    // A wall clock would run out: the guest has a core for a fifth of the time.
    let _busy = Busy::loops();
    let done = boot_guest(&slow, |r| r.timeout = 2 * quiet);
    assert_eq!(done.boot.console.len(), 8, "{}", done.last_line());
    assert_ne!(done.boot.outcome, Outcome::Timeout, "{}", done.last_line());
}

/// Without a record of the place of the next kernel, its end cannot be found.
#[test]
fn a_next_kernel_that_prints_nothing_is_ended() {
    let message = "device tree: bad magic 0x0";
    let (guest, _) = guests::prints_and_parks_elsewhere(|_| LEAVING.into(), message);
    let done = leaves(&guest, &guests::parks(message), |r| {
        r.timeout = Duration::from_secs(5);
    });
    done.ended(Outcome::Timeout);
    done.fails_with("printed no record");
}

/// Four processes a core that do nothing but use it.
struct Busy(Vec<Child>);

impl Busy {
    fn loops() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        Self((0..4 * cores).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The processes whose parent is `pid`, as Linux lists them.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Starts a guest that never ends and waits until it has printed.
fn running(dir: &TempDir) -> (Child, u32) {
    let mut child = granule(dir.path(), &["--memory", "256M"])
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let [qemu] = children(child.id())[..] else {
        panic!("one QEMU")
    };
    (child, qemu)
}

fn wait_until_gone(pid: u32) {
    let mut clock = ProcessClock::start(pid);
    let running = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            // A zombie has ended; who reaps an orphan is the system's affair.
            !stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('Z'))
        })
    };
    while running() {
        assert!(
            clock.look() < Duration::from_secs(30),
            "QEMU {pid} was left behind"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ctrl_c_ends_qemu_and_leaves_nothing_behind() {
    let (dir, _) = with_image(&guests::prints_and_spins("x\n"));
    let (child, qemu) = running(&dir);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(last_line(&output).starts_with("granule: guest-exit: interrupted"));
    wait_until_gone(qemu);
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["target"]);
}

#[test]
fn not_even_a_killed_granule_leaves_a_qemu_behind() {
    let (dir, _) = with_image(&guests::prints_and_spins("x\n"));
    let (mut child, qemu) = running(&dir);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(qemu);
}
