//! Leaving for a next kernel while other processes run, sleep and call; several that request it at
//! once.

use super::kexec::{GOOD, close, leave, load_with, open, still_works};
use super::number;
use super::processes::{counter, cpu, forked, frequency, status_of};
use crate::{check, check_eq};
use granule_programs::calls::{self, call, say};
use granule_programs::start::Start;

/// With as many other processes as the second argument gives: some only compute, some yield, some fork,
/// some wait for a child. One that is not the first calls `reboot`, wherever it runs. The third
/// argument is the error that it must get; there is none if the next kernel is to begin. Then, as
/// before, processes run on all CPUs, of which there are as many as the fourth gives.
pub(super) fn busy(start: Start) {
    load();
    for index in 0..number(start.argument(2)) {
        forked(|| {
            loop {
                match index % 4 {
                    0 => core::hint::spin_loop(),
                    1 => drop(call(calls::SCHED_YIELD, [])),
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
            check_eq!(leave(), expected, "reboot");
            0
        });
        check_eq!(calls::wait(asker), Ok((asker, 0)), "who asked");
        still_works();
    }
    everywhere(number(start.argument(4)) as u32);
    say(format_args!("stayed\n"));
}

fn load() {
    let kernel = open(GOOD);
    check_eq!(
        load_with(kernel, None, b"quiet granule.kexec=digest\0", 0),
        0,
        "load"
    );
    close(kernel);
}

const EBUSY: i64 = -16;
/// The result of a call where the last check finds something (`granule.test=kexec:loosen@1`).
const LOOKED_AT: i64 = -22;

/// Spins until the counter is there: who does so on several CPUs goes on at once.
fn until(count: u64) {
    while counter() < count {
        core::hint::spin_loop();
    }
}

/// The exit code of each caller: its request was checked, or another's.
const SERVED: i32 = 1;
const REFUSED_BUSY: i32 = 2;

/// As many as the second argument gives call at the same time, as often as the third gives: one is
/// checked, and each other is either refused at once or checked after that one. Prints the number
/// of both.
pub(super) fn crowd(start: Start) {
    load();
    let askers = number(start.argument(2)) as usize;
    let (mut served, mut busy) = (0, 0);
    for _ in 0..number(start.argument(3)) {
        let at = counter() + frequency() / 100;
        for _ in 0..askers {
            forked(|| {
                until(at);
                match leave() {
                    LOOKED_AT => SERVED,
                    EBUSY => REFUSED_BUSY,
                    result => {
                        check!(false, "leave: {result}");
                        0
                    }
                }
            });
        }
        let mut one_served = false;
        for _ in 0..askers {
            match calls::wait(-1) {
                Ok((_, status)) if status == (SERVED as u32) << 8 => {
                    served += 1;
                    one_served = true;
                }
                Ok((_, status)) if status == (REFUSED_BUSY as u32) << 8 => busy += 1,
                other => check!(false, "who asked: {other:?}"),
            }
        }
        check!(one_served, "all were refused because of another");
    }
    still_works();
    check_eq!(leave(), LOOKED_AT, "leave");
    say(format_args!("served {} busy {busy}\n", served + 1));
}

/// Children run until each CPU, by the number that there are, has run one.
fn everywhere(cpus: u32) {
    let mut seen = 0;
    for _ in 0..500 {
        let child = forked(|| cpu() as i32);
        seen |= 1u64 << (status_of(child) >> 8);
        if seen.count_ones() == cpus {
            return;
        }
    }
    check!(false, "processes run on CPUs {seen:#b} only");
}
