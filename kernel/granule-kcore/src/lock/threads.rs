//! The lock among real threads, which Miri runs too: it finds data races and accesses that the lock should
//! exclude. Orders of steps are in `tests`, which needs shuttle.

use super::{Cpu, Lock};
use std::cell::Cell;

const THREADS: usize = 3;
const ROUNDS: u64 = 20;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// A thread as a CPU without interrupts, which never gives up.
struct Thread;

impl Cpu for Thread {
    fn number() -> usize {
        NUMBER.get()
    }
    fn mask() -> u64 {
        0
    }
    fn restore(_: u64) {}
    fn interrupts() -> u64 {
        0
    }
    fn are_let_in(_: u64) -> bool {
        false
    }
    fn answer_calls() {}
    fn relax() {
        std::thread::yield_now();
    }
    fn now() -> u64 {
        0
    }
    fn frequency() -> u64 {
        1
    }
}

#[test]
fn no_increment_is_lost() {
    let value = Lock::<u64, Thread>::new(0);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let value = &value;
            scope.spawn(move || {
                NUMBER.set(number);
                for _ in 0..ROUNDS {
                    value.with(|value| {
                        let before = *value;
                        std::thread::yield_now();
                        *value = before + 1;
                    });
                }
            });
        }
    });
    assert_eq!(value.with(|value| *value), THREADS as u64 * ROUNDS);
}
