//! The kexec request: a task asks the boot CPU to leave for the next kernel. There is one request at a
//! time. This file decides how long a killed task may withdraw its request, and which code thaws the
//! other tasks. The trait [`Requester`] stands for the tasks, so that a host test runs every order of the
//! boot CPU and a kill.
//!
//! Tasks are frozen before the request becomes visible, and until it is answered or withdrawn. If the
//! request were visible first, the boot CPU could answer and thaw before the requester freezes, and
//! nothing would thaw the tasks afterwards.

/// The state of the one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<W> {
    /// There is no request.
    Nothing,
    /// A task waits for the boot CPU.
    Asked {
        /// The counter at the call.
        call: u64,
        /// The number of the task.
        by: usize,
    },
    /// The boot CPU has accepted the request: it can no longer be withdrawn.
    Leaving,
    /// The boot CPU did not leave.
    Refused {
        /// The number of the requesting task.
        by: usize,
        /// Why the boot CPU did not leave.
        why: W,
    },
}

impl<W: Copy> Request<W> {
    /// Whether a task waits for the boot CPU.
    pub const fn is_asked(&self) -> bool {
        matches!(self, Self::Asked { .. })
    }

    /// The boot CPU accepts the request. Returns the counter at the call and the number of the task.
    pub fn accept(&mut self) -> Option<(u64, usize)> {
        let Self::Asked { call, by } = *self else {
            return None;
        };
        *self = Self::Leaving;
        Some((call, by))
    }

    /// Withdraws a request that the boot CPU has not accepted.
    fn withdraw(&mut self) -> bool {
        let waits = self.is_asked();
        if waits {
            *self = Self::Nothing;
        }
        waits
    }

    /// The boot CPU does not leave. The tasks are thawed before the answer becomes visible, because the
    /// next requester freezes them again after it sees the request free.
    pub fn refuse(&mut self, by: usize, why: W, thaw: impl FnOnce()) {
        thaw();
        *self = Self::Refused { by, why };
    }

    /// The answer to the requesting task.
    fn answer(&mut self, to: usize) -> Option<W> {
        match *self {
            Self::Refused { by, why } if by == to => {
                *self = Self::Nothing;
                Some(why)
            }
            _ => None,
        }
    }
}

/// The requesting task, and its access to all other tasks.
pub trait Requester {
    /// Why the boot CPU did not leave.
    type Why: Copy;

    /// The task's number.
    fn place(&self) -> usize;
    /// Reads or changes the request; `work` must not sleep.
    fn with<R>(&self, work: impl FnOnce(&mut Request<Self::Why>) -> R) -> R;
    /// Stops the scheduling of tasks.
    fn freeze(&self);
    /// Resumes the scheduling of tasks.
    fn thaw(&self);
    /// Wakes the boot CPU, and makes all other tasks leave their CPUs.
    fn wake_boot_cpu(&self);
    /// Sleeps until `ready` returns a value; `None` if the task is killed before.
    fn sleep_until<R>(&self, ready: impl FnMut() -> Option<R>) -> Option<R>;
    /// Leaves the CPU for as long as tasks are frozen.
    fn yield_now(&self);
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<W> {
    /// The boot CPU did not leave, for this reason.
    Refused(W),
    /// Another task's request is pending.
    Busy,
    /// The task was killed, and withdrew its request.
    Withdrawn,
}

/// Asks the boot CPU to leave, and waits for the outcome.
pub fn ask<A: Requester>(requester: &A, call: u64) -> Outcome<A::Why> {
    let by = requester.place();
    let asked = requester.with(|request| {
        let free = matches!(request, Request::Nothing);
        if free {
            requester.freeze();
            *request = Request::Asked { call, by };
        }
        free
    });
    if !asked {
        return Outcome::Busy;
    }
    requester.wake_boot_cpu();
    let answer = || requester.with(|request| request.answer(by));
    if let Some(why) = requester.sleep_until(answer) {
        return Outcome::Refused(why);
    }
    // The task was killed: it withdraws its request unless the boot CPU has accepted it.
    if requester.with(Request::withdraw) {
        requester.thaw();
        return Outcome::Withdrawn;
    }
    loop {
        if let Some(why) = answer() {
            return Outcome::Refused(why);
        }
        requester.yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const REQUESTER: usize = 3;
    const CALL: u64 = 77;
    const WHY: u8 = 9;
    /// More points than the requester passes.
    const POINTS: u32 = 10;

    /// The boot CPU comes at point `comes`, and answers as soon as it may. The kill comes at `kills`.
    #[derive(Clone, Copy, Debug)]
    struct Order {
        comes: u32,
        kills: u32,
        /// Nothing is loaded: the answer does not wait until the requester has left its CPU.
        at_once: bool,
    }

    struct Fake {
        order: Order,
        request: RefCell<Request<u8>>,
        point: Cell<u32>,
        frozen: Cell<bool>,
        killed: Cell<bool>,
        accepted: Cell<bool>,
    }

    impl Fake {
        fn new(order: Order) -> Self {
            Self {
                order,
                request: RefCell::new(Request::Nothing),
                point: Cell::new(0),
                frozen: Cell::new(false),
                killed: Cell::new(false),
                accepted: Cell::new(false),
            }
        }

        /// The actions of others between two steps of the requester, which is on its CPU or not.
        fn passes(&self, off_its_cpu: bool) {
            let point = self.point.get() + 1;
            self.point.set(point);
            assert!(point < 100, "the boot CPU never comes: {:?}", self.order);
            if point >= self.order.kills {
                self.killed.set(true);
            }
            if point >= self.order.comes
                && let Some((call, by)) = self.request.borrow_mut().accept()
            {
                assert_eq!((call, by), (CALL, REQUESTER));
                assert!(self.frozen.get(), "seen before it was frozen");
                self.accepted.set(true);
            }
            let may = self.order.at_once || off_its_cpu;
            if may && *self.request.borrow() == Request::Leaving {
                let thaw = || self.frozen.set(false);
                self.request.borrow_mut().refuse(REQUESTER, WHY, thaw);
            }
        }

        /// The requester is off its CPU and is not scheduled while tasks are frozen.
        fn leaves_its_cpu(&self) {
            self.passes(true);
            while self.frozen.get() {
                self.passes(true);
            }
        }
    }

    impl Requester for Fake {
        type Why = u8;

        fn place(&self) -> usize {
            REQUESTER
        }

        fn with<R>(&self, work: impl FnOnce(&mut Request<u8>) -> R) -> R {
            self.passes(false);
            let result = work(&mut self.request.borrow_mut());
            self.passes(false);
            result
        }

        fn freeze(&self) {
            self.frozen.set(true);
        }

        fn thaw(&self) {
            self.frozen.set(false);
        }

        fn wake_boot_cpu(&self) {
            self.passes(false);
        }

        fn sleep_until<R>(&self, mut ready: impl FnMut() -> Option<R>) -> Option<R> {
            loop {
                if let Some(result) = ready() {
                    return Some(result);
                }
                if self.killed.get() {
                    return None;
                }
                self.leaves_its_cpu();
            }
        }

        fn yield_now(&self) {
            self.leaves_its_cpu();
        }
    }

    /// In every order the request is answered if the boot CPU accepted it, and withdrawn otherwise.
    /// Then the next task can request, and no task is frozen.
    #[test]
    fn in_every_order_it_is_answered_or_withdrawn() {
        let (mut answered, mut withdrawn, mut killed_in_between) = (0, 0, 0);
        for comes in 1..=POINTS {
            for kills in 1..=2 * POINTS {
                for at_once in [false, true] {
                    let order = Order {
                        comes,
                        kills,
                        at_once,
                    };
                    let fake = Fake::new(order);
                    let outcome = ask(&fake, CALL);
                    if fake.accepted.get() {
                        assert_eq!(outcome, Outcome::Refused(WHY), "{order:?}");
                        answered += 1;
                        killed_in_between += u32::from(fake.killed.get());
                    } else {
                        assert_eq!(outcome, Outcome::Withdrawn, "{order:?}");
                        assert!(fake.killed.get());
                        withdrawn += 1;
                    }
                    assert!(!fake.frozen.get(), "{order:?}");
                    assert_eq!(*fake.request.borrow(), Request::Nothing, "{order:?}");
                }
            }
        }
        assert!(answered > 100 && withdrawn > 10 && killed_in_between > 50);
    }

    #[test]
    fn a_second_request_changes_nothing() {
        let order = Order {
            comes: u32::MAX,
            kills: u32::MAX,
            at_once: false,
        };
        for there in [
            Request::Asked { call: 5, by: 2 },
            Request::Leaving,
            Request::Refused { by: 2, why: WHY },
        ] {
            let fake = Fake::new(order);
            fake.frozen.set(true);
            *fake.request.borrow_mut() = there;
            assert_eq!(ask(&fake, CALL), Outcome::Busy);
            assert_eq!(*fake.request.borrow(), there);
            assert!(fake.frozen.get());
        }
    }
}
