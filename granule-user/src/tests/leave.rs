//! Leaving for a next kernel while other processes run, sleep and call.

use super::kexec::{GOOD, REBOOT, close, load_with, open, still_works};
use super::number;
use super::processes::{forked, status_of};
use crate::calls::{self, call, say};
use crate::check;
use crate::start::Start;

/// With so many other processes as the second argument says: some only compute, some yield, some fork,
/// some wait for a child. One that is not the first asks, wherever it runs. The third argument is the
/// error that it must get; there is none if the next kernel is to begin. Then, as before, processes
/// run on all CPUs, of which there are as many as the fourth says.
pub(super) fn busy(start: Start) {
    let kernel = open(GOOD);
    let done = load_with(kernel, None, b"quiet granule.kexec=digest\0", 0);
    check!(done == 0, "load: {done}");
    close(kernel);
    for index in 0..number(start.argument(2)) {
        forked(|| {
            loop {
                match index % 4 {
                    0 => core::hint::spin_loop(),
                    1 => drop(call(calls::SCHED_YIELD, [0; 6])),
                    2 => drop(calls::wait(forked(|| 0))),
                    // Sleeps for good.
                    _ => drop(calls::wait(forked(|| {
                        loop {
                            core::hint::spin_loop();
                        }
                    }))),
                }
            }
        });
    }
    let expected = -(number(start.argument(3)) as i64);
    for _ in 0..2 {
        let asker = forked(|| {
            let result = call(REBOOT, [0xfee1_dead, 0x2812_1969, 0x4558_4543, 0, 0, 0]);
            check!(result == expected, "reboot: {result}");
            0
        });
        let ended = calls::wait(asker);
        check!(ended == Ok((asker, 0)), "who asked: {ended:?}");
        still_works();
    }
    everywhere(number(start.argument(4)) as u32);
    say(format_args!("stayed\n"));
}

/// Children run until each CPU, by the number that there are, has run one.
fn everywhere(cpus: u32) {
    let mut seen = 0;
    for _ in 0..500 {
        let child = forked(|| {
            let mut cpu = 0u32;
            let result = call(calls::GETCPU, [&raw mut cpu as u64, 0, 0, 0, 0, 0]);
            check!(result == 0, "getcpu: {result}");
            cpu as i32
        });
        seen |= 1u64 << (status_of(child) >> 8);
        if seen.count_ones() == cpus {
            return;
        }
    }
    check!(false, "processes run on CPUs {seen:#b} only");
}
