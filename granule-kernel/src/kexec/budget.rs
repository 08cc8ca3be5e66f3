//! How often the log and the record are told of what programs ask for. Any program may ask, as often as
//! it likes: so of each kind of line there are [`BURST`] at once and then one a second, and the next one
//! that is said tells how many were left out. What the program itself is told does not change.

/// Lines of a kind that are said at once.
const BURST: u32 = 64;

/// What a line is about: each has a budget of its own, so that one that is asked for without end does
/// not hide the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A next kernel is loaded.
    Loaded,
    /// The call itself: descriptors, flags, numbers, the command line.
    Call,
    /// The image is none.
    Image,
    /// A segment's place.
    Place,
    /// No memory for what is to be known.
    Memory,
    /// No pages for the segments.
    Pages,
    /// No pages for what leads over.
    Over,
    /// The machine's tree or the machine itself.
    Machine,
    /// Somebody else is at it.
    Busy,
    /// It is loaded, and not left for.
    Stays,
}

const KINDS: usize = Kind::Stays as usize + 1;

/// What is left for one kind.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: u32,
    /// The counter when a line was added last.
    at: u64,
    left_out: u64,
}

/// One line may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    /// So many of its kind were not, since the last one.
    left_out: u64,
    /// The next one has to wait.
    last: bool,
}

impl Budget {
    const FULL: Self = Self {
        left: BURST,
        at: 0,
        left_out: 0,
    };

    /// Takes a line, with the counter at `now` and so many ticks a second.
    fn take(&mut self, now: u64, hz: u64) -> Option<Said> {
        let hz = hz.max(1);
        let new = now.wrapping_sub(self.at) / hz;
        self.left =
            u32::try_from(new).map_or(BURST, |new| self.left.saturating_add(new).min(BURST));
        self.at = if self.left == BURST {
            now
        } else {
            self.at.wrapping_add(new.wrapping_mul(hz))
        };
        if self.left == 0 {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.left -= 1;
        Some(Said {
            left_out: core::mem::take(&mut self.left_out),
            last: self.left == 0,
        })
    }
}

/// Says something of a kind, if there is something left of its budget.
#[cfg(target_os = "none")]
pub(crate) fn say(kind: Kind, say: impl FnOnce()) {
    use crate::console::println;
    use crate::cpu;
    use crate::lock::Lock;

    static LEFT: Lock<[Budget; KINDS]> = Lock::new([Budget::FULL; KINDS]);

    let now = cpu::counter_now();
    let said = LEFT.with(|left| left.get_mut(kind as usize)?.take(now, cpu::cntfrq_el0()));
    let Some(said) = said else { return };
    if said.left_out > 0 {
        println!(
            "granule: kexec: {} lines as the next one were left out",
            said.left_out
        );
    }
    say();
    if said.last {
        println!("granule: kexec: more lines as this one come once a second at most");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_said_at_once_and_then_one_a_second() {
        const HZ: u64 = 1000;
        // Whatever the counter begins with, and also where it wraps.
        for start in [0, 1 << 40, u64::MAX - 3 * HZ] {
            let mut budget = Budget::FULL;
            let mut at = |ticks: u64| budget.take(start.wrapping_add(ticks), HZ);
            for index in 1..=BURST {
                let last = index == BURST;
                assert_eq!(
                    at(index.into()),
                    Some(Said { left_out: 0, last }),
                    "{index}"
                );
            }
            for tick in 0..900 {
                assert_eq!(at(100 + tick), None);
            }
            let some = |left_out| {
                Some(Said {
                    left_out,
                    last: true,
                })
            };
            assert_eq!(at(1001), some(900));
            assert_eq!(at(1002), None);
            // Not one for each time that somebody asks in vain.
            assert_eq!(at(1999), None);
            assert_eq!(at(2002), some(2));
            assert_eq!(at(9500).map(|it| it.last), Some(false));
            // As many as at first, and no more, however long nothing was said.
            let long = 1_000_000_000;
            let said = (0..1000).filter(|_| at(long).is_some()).count();
            assert_eq!(said, BURST as usize);
        }
    }
}
