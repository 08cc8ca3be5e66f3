//! The whole benchmark: its arguments, and the lines that it prints.

use super::clock::{Took, frequency, pieces, print};
use super::rounds::{Failure, MOST_ROUNDS, OPS, bytes, has, round};
use super::{areas, beside, switches, turns};
use granule_programs::calls::{
    self, EBADF, HERE, IOCTL, MKDIRAT, MKNODAT, OPENAT, REBOOT, call, say,
};
use granule_programs::start::{Start, number, page};

const DEFAULT_BYTES: u64 = 1 << 30;
const DEFAULT_ROUNDS: usize = 3;

/// Request of a terminal: wait until all output is out, if the argument is not 0.
const TCSBRK: u64 = 0x5409;

/// Runs all rounds; the exit code.
pub(crate) fn run(start: Start) -> i32 {
    let partner = switches::partner(start).or_else(|| turns::worker(start));
    if let Some(code) = partner.or_else(|| beside::again(start)) {
        return code;
    }
    open_console();
    let off = has(start, b"off");
    let code = match measure(start) {
        Ok(()) => 0,
        Err((what, error)) => {
            say(format_args!("bench failed {what} {error}\n"));
            1
        }
    };
    // Linux prints the end of the machine past the output that its terminal still holds, and may
    // lose that.
    call(IOCTL, [1, TCSBRK, 1]);
    if off {
        // LINUX_REBOOT_CMD_POWER_OFF, with the two numbers that confirm it. A program that may not, or
        // is on a kernel without it, just ends.
        let order = [0xfee1_dead, 672_274_793, 0x4321_fedc, 0, 0, 0];
        call(REBOOT, order);
    }
    code
}

fn measure(start: Start) -> Result<(), Failure> {
    let bytes = bytes(start.argument(1)).unwrap_or(DEFAULT_BYTES);
    let rounds = match number(start.argument(2)) as usize {
        0 => DEFAULT_ROUNDS,
        rounds => rounds.min(MOST_ROUNDS),
    };
    let page = page(start);
    if page == 0 || !bytes.is_multiple_of(page) {
        return Err(("bytes that are not whole pages", bytes as i64));
    }
    let frequency = frequency();
    say(format_args!(
        "bench begin page={page} bytes={bytes} pages={} rounds={rounds} frequency={frequency}\n",
        bytes / page
    ));
    if let Some(sizes) = after(start, b"together=") {
        let lines = turns::measure(start, sizes, rounds)?;
        end(lines);
        return Ok(());
    }
    // The kernel's choice, which may be large pages, or pages of the base size alone.
    let large = has(start, b"large");
    let mut times = [[Took::default(); MOST_ROUNDS]; OPS.len()];
    for at in 0..rounds {
        let round = round(bytes, page, large)?;
        for (times, time) in times.iter_mut().zip(round) {
            times[at] = time;
        }
    }
    for ((_, name), times) in OPS.iter().zip(&mut times) {
        print(format_args!("op={name}"), &mut times[..rounds]);
    }
    let mut lines = OPS.len();
    if has(start, b"calls") {
        lines += beside::measure(start)?;
    }
    if has(start, b"switches") {
        lines += switches::switches(page)?;
    }
    if let Some(count) = after(start, b"programs=") {
        lines += switches::programs(page, number(count))?;
    }
    if let Some(counts) = after(start, b"areas=") {
        lines += areas::measure(counts, page, rounds)?;
    }
    end(lines);
    Ok(())
}

/// The last line: how many lines there were, and how many pieces of work were timed.
fn end(lines: usize) {
    say(format_args!("bench end ops={lines} timed={}\n", pieces()));
}

/// Returns what follows these bytes in the first argument that begins with them.
fn after(start: Start, begin: &[u8]) -> Option<&'static [u8]> {
    let mut words = (1..start.count()).map(|index| start.argument(index));
    words.find_map(|word| word.strip_prefix(begin))
}

/// A first process has no console if the initramfs has no node for it: makes one. Its descriptors
/// are the lowest there are.
fn open_console() {
    if calls::write(b"") != EBADF {
        return;
    }
    let (folder, path) = (c"/dev".as_ptr() as u64, c"/dev/console".as_ptr() as u64);
    call(MKDIRAT, [HERE, folder, 0o755]);
    // A character device, 5:1.
    call(MKNODAT, [HERE, path, 0o020_600, 5 << 8 | 1]);
    // Read and write, as 0 and as 1.
    for _ in 0..2 {
        call(OPENAT, [HERE, path, 2]);
    }
}
