//! The clock of a child process: the time that the child would have taken on an idle host.
//!
//! A wall clock would blame the child for a busy host. This clock advances while a thread of the
//! child runs on a core (by the CPU time of the busiest thread, since a guest's CPUs run in
//! parallel) and while all its threads sleep. It stands still while a thread waits for a core or
//! the disk. So it finds each kind of hang: a child that computes for ever uses CPU time, a child
//! that sleeps for ever uses sleep time, and the clock adds both. On an idle host the clock equals
//! the wall clock.
//!
//! All time limits on processes are measured here. The caller decides what happens at a limit.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// The interval between looks at the clock: each look samples the child's threads.
pub const TICK: Duration = Duration::from_millis(50);

/// The most time that one look counts as sleep. The looking thread may have waited for a core
/// itself, and nothing was seen of the child in that time.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The unit of CPU time in `/proc`: `USER_HZ`, which Linux fixes at 100 for all programs.
const JIFFY: Duration = Duration::from_millis(10);

/// The time that a child process has run or slept.
#[derive(Debug)]
pub struct ProcessClock {
    process: u32,
    /// Whether the processes that it started count too.
    family: bool,
    /// CPU time of each thread at the last look.
    used: HashMap<String, Duration>,
    looked: Instant,
    elapsed: Duration,
}

impl ProcessClock {
    /// A clock that starts now, for the child with that process number.
    pub fn start(process: u32) -> Self {
        Self {
            process,
            family: false,
            used: HashMap::new(),
            looked: Instant::now(),
            elapsed: Duration::ZERO,
        }
    }

    /// A clock that starts now, for the child and all processes that it starts: what waits for a guest waits for a core
    /// as long as the guest does.
    pub fn start_family(process: u32) -> Self {
        Self {
            family: true,
            ..Self::start(process)
        }
    }

    /// The time at the last look.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Samples the child's threads, unless that was done a moment ago, and returns the time.
    pub fn look(&mut self) -> Duration {
        let passed = self.looked.elapsed();
        if passed >= TICK {
            self.looked = Instant::now();
            let threads = self.threads();
            self.advance(passed, &threads);
        }
        self.elapsed
    }

    /// Adds the child's time out of the wall-clock time `passed`. Where the system gives no thread
    /// data (no `/proc`, or the child has just ended), wall-clock time counts.
    fn advance(&mut self, passed: Duration, threads: &[Thread]) {
        let mut ran = Duration::ZERO;
        for thread in threads {
            let before = self.used.insert(thread.name.clone(), thread.used);
            ran = ran.max(thread.used.saturating_sub(before.unwrap_or_default()));
        }
        let waits = threads.iter().any(|thread| !thread.sleeps);
        self.elapsed += if threads.is_empty() {
            passed
        } else if waits {
            ran
        } else {
            ran.max(passed.min(LONGEST_SLEEP))
        };
    }

    fn threads(&self) -> Vec<Thread> {
        let (mut found, mut left) = (Vec::new(), vec![self.process]);
        while let Some(process) = left.pop() {
            let folder = fs::read_dir(format!("/proc/{process}/task"));
            for thread in folder.into_iter().flatten().flatten() {
                // A thread that has just ended has no file any more.
                let stat = fs::read_to_string(thread.path().join("stat")).ok();
                let name = thread.file_name().into_string().ok();
                found.extend(
                    name.zip(stat)
                        .and_then(|(name, stat)| Thread::read(name, &stat)),
                );
                if self.family {
                    let children = fs::read_to_string(thread.path().join("children"));
                    let children = children.unwrap_or_default();
                    let numbers = children.split_ascii_whitespace();
                    left.extend(numbers.filter_map(|number| number.parse::<u32>().ok()));
                }
            }
        }
        found
    }
}

/// The state of a thread in `/proc`.
struct Thread {
    name: String,
    /// CPU time so far.
    used: Duration,
    /// Whether the thread neither runs nor waits for a core or the disk.
    sleeps: bool,
}

impl Thread {
    /// Reads a line of `/proc/PID/task/TID/stat` (proc(5)): the state is its third word, `utime` and
    /// `stime` are the fourteenth and fifteenth. The second word is the program's name in parentheses,
    /// which may hold anything.
    fn read(name: String, stat: &str) -> Option<Self> {
        let (_, behind_name) = stat.rsplit_once(')')?;
        let mut words = behind_name.split_ascii_whitespace();
        let sleeps = !matches!(words.next()?, "R" | "D");
        let mut time = words.skip(10).map(str::parse::<u32>);
        let (user, system) = (time.next()?.ok()?, time.next()?.ok()?);
        Some(Self {
            name,
            used: JIFFY * user.saturating_add(system),
            sleeps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str, used: u64, sleeps: bool) -> Thread {
        Thread {
            name: name.into(),
            used: Duration::from_millis(used),
            sleeps,
        }
    }

    #[test]
    fn time_on_a_core_and_asleep_counts_and_waiting_for_a_core_does_not() {
        let mut clock = ProcessClock::start(0);
        let mut after = |passed, threads: &[Thread]| {
            clock.advance(Duration::from_millis(passed), threads);
            clock.elapsed().as_millis()
        };
        // Two CPUs run beside each other: 40 ms, not 70.
        assert_eq!(
            after(50, &[thread("1", 40, false), thread("2", 30, false)]),
            40
        );
        // A minute in which the host was busy with other work.
        assert_eq!(
            after(60_000, &[thread("1", 40, false), thread("2", 30, true)]),
            40
        );
        // Asleep.
        assert_eq!(
            after(50, &[thread("1", 40, true), thread("2", 30, true)]),
            90
        );
        // Asleep now and a minute ago, with no look between.
        assert_eq!(
            after(60_000, &[thread("1", 40, true), thread("2", 30, true)]),
            190
        );
        // A host without /proc.
        assert_eq!(after(50, &[]), 240);
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_program_is_called() {
        let line = "7 (a) R (b c) S 1 7 7 0 -1 4194304 100 0 0 0 12 34 0 0 20 0 3 0 99";
        let read = Thread::read("7".into(), line).unwrap();
        assert_eq!((read.used, read.sleeps), (Duration::from_millis(460), true));
        for state in ["R", "D"] {
            let line = line.replace(") S ", &format!(") {state} "));
            assert!(!Thread::read("7".into(), &line).unwrap().sleeps);
        }
        for broken in [
            "",
            "7 (a",
            "7 (a) S 1 2",
            "7 (a) S 1 7 7 0 -1 4 1 0 0 0 x y",
        ] {
            assert!(Thread::read("7".into(), broken).is_none(), "{broken}");
        }
    }

    /// Children that run and sleep in real time.
    mod live {
        use super::*;
        use std::process::{Child, Command, Stdio};

        /// A child that is killed at the end of the test.
        struct Script(Child);

        impl Script {
            fn start(script: &str) -> Self {
                let mut shell = Command::new("sh");
                shell.args(["-c", script]).stdin(Stdio::null());
                Self(shell.spawn().unwrap())
            }

            /// The child's clock when it has reached `limit`, and the wall-clock time.
            fn reaches(&self, limit: Duration) -> Duration {
                self.reaches_by(ProcessClock::start, limit)
            }

            fn reaches_by(&self, start: fn(u32) -> ProcessClock, limit: Duration) -> Duration {
                let (mut clock, begun) = (start(self.0.id()), Instant::now());
                while clock.look() < limit {
                    std::thread::sleep(TICK);
                }
                begun.elapsed()
            }
        }

        impl Drop for Script {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }

        #[test]
        fn endless_work_and_endless_sleep_reach_the_limit() {
            let second = Duration::from_secs(1);
            for script in ["while :; do :; done", "exec sleep 1000"] {
                // Never early on any host; a jiffy and a look may be counted twice.
                let passed = Script::start(script).reaches(second);
                assert!(passed >= Duration::from_millis(800), "{script}: {passed:?}");
            }
        }

        #[test]
        fn beside_busy_loops_the_clock_goes_slower_than_the_wall_clock() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let busy: Vec<_> = (0..4 * cores)
                .map(|_| Script::start("while :; do :; done"))
                .collect();
            // The test may get only one core in five of a busy host; half of that must suffice.
            let second = Duration::from_secs(1);
            let passed = Script::start("while :; do :; done").reaches(second);
            assert!(passed > 2 * second, "{passed:?}");
            // One that sleeps until its own child ends: the child waits for a core. It ends with its parent.
            let child = "while kill -0 $PPID 2>/dev/null; do :; done";
            let parent = Script::start(&format!("sh -c '{child}'; true"));
            let passed = parent.reaches_by(ProcessClock::start_family, second);
            drop(busy);
            assert!(passed > 2 * second, "{passed:?}");
        }
    }
}
