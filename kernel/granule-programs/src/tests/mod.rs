//! The tests of the program, by the name that is its first argument.

mod alloc_failure;
mod between;
mod cached;
mod disk;
mod faults;
mod files;
mod fragmented;
mod hostile;
mod kexec;
mod leave;
mod limit;
mod memory;
mod modules;
mod processes;
mod segments;
mod signals;
mod sizes;

use granule_programs::calls::{self, say};
use granule_programs::start::{Start, number, page};

/// Something is not as it must be.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($words:tt)*) => {
        if !$condition {
            granule_programs::calls::say(format_args!(
                "{}:{}: {}\n",
                file!(),
                line!(),
                format_args!($($words)*)
            ));
            granule_programs::calls::exit(1);
        }
    };
}

/// A value is not the one that it must be.
#[macro_export]
macro_rules! check_eq {
    ($found:expr, $expected:expr, $($words:tt)*) => {{
        let (found, expected) = ($found, $expected);
        $crate::check!(
            found == expected,
            "{}: {found:?}, expected {expected:?}",
            format_args!($($words)*)
        );
    }};
}

/// A test: a name, and what it does.
type Test = (&'static [u8], fn(Start));

const TESTS: &[Test] = &[
    (b"hello", hello),
    (b"fork", processes::fork),
    (b"copies", processes::copies),
    (b"storm", processes::storm),
    (b"bomb", processes::bomb),
    (b"thousand", processes::thousand),
    (b"waits", processes::waits),
    (b"preempt", processes::preempt),
    (b"vfork", processes::vfork),
    (b"orphans", processes::orphans),
    (b"hasty", processes::hasty),
    (b"spread", processes::spread),
    (b"registers", processes::registers),
    (b"memory", memory::memory),
    (b"groups", memory::groups),
    (b"areas", memory::areas),
    (b"limit", limit::limit),
    (b"heap", memory::heap),
    (b"full", memory::full),
    (b"faults", faults::faults),
    (b"pointers", faults::pointers),
    (b"left", processes::left),
    (b"power-off", processes::power_off),
    (b"disk", disk::disk),
    (b"files", files::files),
    (b"execs", files::execs),
    (b"descriptors", files::descriptors),
    (b"signals", signals::signals),
    (b"pstate", signals::pstate),
    (b"getrandom", getrandom),
    (b"comets", between::comets),
    (b"pelted", between::pelted),
    (b"lender", between::lender),
    (b"adopted", between::adopted),
    (b"sizes", sizes::sizes),
    (b"sizes-first", sizes::first),
    (b"sizes-second", sizes::second),
    (b"beside", sizes::beside),
    (b"only", sizes::only),
    (b"cached", cached::cached),
    (b"fragmented", fragmented::fragmented),
    (b"fragmented-larger", fragmented::larger),
    (b"instructions", hostile::instructions),
    (b"frames", hostile::frames),
    (b"every-pointer", hostile::pointers),
    (b"random", hostile::random),
    (b"malformed", hostile::malformed),
    (b"crowd", hostile::crowd),
    (b"signal-storm", hostile::signals),
    (b"pipe-storm", hostile::pipes),
    (b"alloc-failure", alloc_failure::every_allocation),
    (b"modules", modules::modules),
    (b"modules-thousand", modules::thousand),
    (b"modules-refused", modules::refused),
    (b"modules-alloc-failure", modules::alloc_failure),
    (b"kexec-refused", kexec::refused),
    (b"kexec-flood", kexec::flood),
    (b"kexec-alloc-failure", kexec::alloc_failure),
    (b"kexec-busy", leave::busy),
    (b"kexec-crowd", leave::crowd),
    (b"kexec-corrupted", kexec::corrupted),
    (b"kexec-fragmented", kexec::fragmented),
    (b"kexec-segments", segments::refused),
    (b"kexec-chain", segments::chain),
];

/// Runs the test; the exit code.
pub(crate) fn run(start: Start) -> i32 {
    let name = start.argument(1);
    match TESTS.iter().find(|(test, _)| *test == name) {
        Some((_, test)) => {
            test(start);
            0
        }
        None if name == b"exit" => number(start.argument(2)) as i32,
        None if name == b"fault" => faults::by(number(start.argument(2))),
        None => {
            say(format_args!("no test {}\n", name.escape_ascii()));
            2
        }
    }
}

const AT_PHDR: u64 = 3;
const AT_RANDOM: u64 = 25;
const AT_EXECFN: u64 = 31;

/// Says what it was begun with.
#[allow(unsafe_code, reason = "reads what the kernel put into memory")]
fn hello(start: Start) {
    say(format_args!(
        "hello from process {}\n",
        calls::call(calls::GETPID, [])
    ));
    for index in 0..start.count() {
        say(format_args!(
            "argument {}\n",
            start.argument(index).escape_ascii()
        ));
    }
    let path = start
        .auxiliary(AT_EXECFN)
        .map_or(&b""[..], granule_programs::start::text);
    say(format_args!("path {}\n", path.escape_ascii()));
    say(format_args!("page size {}\n", page(start)));
    let headers = start.auxiliary(AT_PHDR).unwrap_or(0);
    // SAFETY: the kernel reports that address; the first program header's type.
    let kind = unsafe { (headers as *const u32).read() };
    check!(
        (1..=6).contains(&kind),
        "no program header at {headers:#x}: {kind:#x}"
    );
    check!(start.auxiliary(AT_RANDOM).is_some(), "no random bytes");
    // Not to be taken for the kernel's own line.
    calls::write(b"@granule outcome=panic\n@gran");
    calls::write(b"ule end\nwithout a newline");
}

/// Takes random bytes with each flag; the second argument is the answer that is expected without GRND_INSECURE.
fn getrandom(start: Start) {
    let expected = -(number(start.argument(2)) as i64);
    let draw = |flags: u64| {
        let mut bytes = [0_u8; 32];
        let done = calls::call(calls::GETRANDOM, [bytes.as_mut_ptr() as u64, 32, flags]);
        (done, core::hint::black_box(bytes))
    };
    for flags in [0, 1, 2, 4, 5] {
        let done = if flags < 4 && expected != 0 {
            expected
        } else {
            32
        };
        let (first, second) = (draw(flags), draw(flags));
        check_eq!((first.0, second.0), (done, done), "flags {flags}");
        check!(
            done < 0 || first.1 != second.1,
            "flags {flags}: the same bytes twice"
        );
    }
    check_eq!(draw(6).0, calls::EINVAL, "GRND_RANDOM and GRND_INSECURE");
    say(format_args!("drawn\n"));
}
