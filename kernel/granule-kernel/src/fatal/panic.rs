//! The fatal report: cause, registers, backtrace and boot record, then power off.

#![allow(unsafe_code, reason = "registers and stack of a CPU that panics")]

use crate::arch::{cpu, image};
use crate::dev::console::{self, print, println};
use crate::dev::psci;
use crate::handover::boot_record::{self, Reason};
use crate::percpu::{self, stacks, stop};
use crate::trace::recorder;
use core::arch::asm;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use granule_kcore::exception_frame::Frame;
use granule_kcore::line::Line;
use granule_kcore::syndrome;

/// Explains a faulting address. The function must not wait for a lock.
pub(crate) static EXPLAIN: spin::Once<fn(u64) -> Option<&'static str>> = spin::Once::new();
/// Writes more about a faulting address behind that. The function must not wait for a lock.
pub(crate) static DETAIL: spin::Once<fn(u64, &mut fmt::Formatter<'_>) -> fmt::Result> =
    spin::Once::new();
/// Whether 16 bytes at an address may be part of a task's stack.
pub(crate) static TASK_STACKS: spin::Once<fn(u64) -> bool> = spin::Once::new();

/// The way on where a crash kernel is loaded. The functions must not wait for a lock.
#[derive(Clone, Copy)]
pub(crate) struct Crash {
    /// Stops the other CPUs, stores all registers, and checks the crash kernel; returns whether it can be entered.
    pub(crate) prepare: fn(&Frame) -> bool,
    /// Enters it.
    pub(crate) enter: fn() -> !,
    /// Stops this CPU, which was interrupted so, for another one that panics.
    pub(crate) stop: fn(&Frame) -> !,
}

pub(crate) static CRASH: spin::Once<Crash> = spin::Once::new();
static CRASH_TRIED: AtomicBool = AtomicBool::new(false);

/// State of the report: 0 none, 1 started, 2 another failure during the report.
static STAGE: AtomicU32 = AtomicU32::new(0);

/// Most frames in a backtrace.
const MAX_FRAMES: usize = 32;

/// The immediate of the panic handler's BRK: `gk`.
const PANIC_BRK: u64 = 0x676b;

/// Takes a breakpoint exception, whose frame holds the registers at the panic.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // SAFETY: the vectors, set before anything can panic, lead to `exception`, which does not return; `info`
    // lives as long as this frame.
    unsafe {
        asm!(
            "brk #{number}",
            number = const PANIC_BRK,
            in("x0") &raw const *info,
            options(noreturn)
        )
    }
}

/// Reports an exception and ends the kernel. A panic arrives here too, by its BRK.
pub(crate) fn exception(frame: &Frame, what: fmt::Arguments<'_>) -> ! {
    stop_if_asked(frame);
    if syndrome::is_brk(frame.esr, PANIC_BRK) && image_address(frame.elr).is_some() {
        // SAFETY: only the panic handler runs this BRK, with x0 = its argument, which lies further up the
        // stack.
        let info = unsafe { &*(frame.x[0] as *const PanicInfo<'static>) };
        match info.location() {
            Some(at) => end(
                format_args!("{}:{}: {}", at.file(), at.line(), info.message()),
                frame,
            ),
            None => end(format_args!("{}", info.message()), frame),
        }
    }
    let why = syndrome::own_abort(frame.esr)
        .and_then(|_| EXPLAIN.get().and_then(|explain| explain(frame.far)));
    let detail = Detail(why.map_or(0, |_| frame.far));
    let (comma, why) = why.map_or(("", ""), |why| (": ", why));
    match image_address(frame.elr) {
        Some(at) => end(
            format_args!("{what}, at {at:#x} in the image{comma}{why}{detail}"),
            frame,
        ),
        None => end(
            format_args!("{what}, at {:#018x}{comma}{why}{detail}", frame.elr),
            frame,
        ),
    }
}

/// The hook's text about an address; none about 0.
struct Detail(u64);

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DETAIL.get().filter(|_| self.0 != 0) {
            Some(detail) => detail(self.0, f),
            None => Ok(()),
        }
    }
}

/// Stops this CPU if another one that panics asks for it: by an interrupt, or by what this CPU finds while it waits.
/// Whatever brought it here is then in its registers.
fn stop_if_asked(frame: &Frame) {
    if let Some(crash) = CRASH.get().filter(|_| stop::is_asked()) {
        (crash.stop)(frame);
    }
}

fn end(what: fmt::Arguments<'_>, frame: &Frame) -> ! {
    if !console::take_over() {
        // Another CPU reports its own panic.
        loop {
            stop_if_asked(frame);
            cpu::relax();
        }
    }
    let again = STAGE.load(Ordering::Relaxed);
    STAGE.store(again + 1, Ordering::Relaxed);
    if again >= 2 {
        // Even the report of the failed report failed.
        cpu::halt();
    }
    let mut line = Line::<200>::new();
    // A text that fails to format is cut off; the rest of the report is kept.
    let _ = match again {
        0 => line.write_fmt(what),
        _ => write!(line, "panic within a panic: {what}"),
    };
    // Before the first access to the console, which may be the cause.
    boot_record::finished(Some((Reason::Panic, line.bytes())));
    if again == 0 {
        println!("\ngranule: panic: {what}");
        if percpu::online().len() > 1 {
            println!("on CPU {}", percpu::this().number());
        }
        print!("{frame}");
        backtrace(&raw const frame.record as u64);
    } else {
        println!("\ngranule: panic within a panic: {what}");
    }
    // Once: a failure on the way is reported, and ends the machine.
    let crash = CRASH
        .get()
        .filter(|_| !CRASH_TRIED.swap(true, Ordering::Relaxed));
    let crash = crash.filter(|crash| (crash.prepare)(frame));
    println!(
        "@granule outcome=panic\n@granule reason={}\n@granule end",
        line.text()
    );
    recorder::finish(false);
    console::flush();
    if let Some(crash) = crash {
        (crash.enter)();
    }
    psci::system_off();
    cpu::halt()
}

/// The offset of `address` in the ELF file, which is linked at 0, if it is in the image.
fn image_address(address: u64) -> Option<u64> {
    let offset = address.wrapping_sub(image::start());
    (offset < image::bytes()).then_some(offset)
}

/// Whether 16 bytes at `address` are mapped and may belong to a stack: in the image's writable part, or in a
/// stack of this CPU.
fn is_stack(address: u64) -> bool {
    let Some(offset) = image_address(address) else {
        let holds = |of: &fn(u64) -> bool| of(address);
        let stack = stacks::holds(address) || TASK_STACKS.get().is_some_and(holds);
        return stack && cpu::translate(address).is_ok();
    };
    image::segments().into_iter().any(|segment| {
        segment.permission == image::Permission::ReadWrite
            && segment.range.contains(&offset)
            && segment.range.contains(&(offset + 15))
    })
}

/// Prints the frame records from `frame_pointer` on. Each must lie where a stack can be. Each record but the
/// first must lie higher than the one before, unless the stack changed.
fn backtrace(mut frame_pointer: u64) {
    println!("backtrace (addresses in the ELF file):");
    for _ in 0..MAX_FRAMES {
        if !frame_pointer.is_multiple_of(8) || !is_stack(frame_pointer) {
            break;
        }
        // SAFETY: 16 mapped bytes, aligned, checked above. No other code writes stacks now.
        let [next, return_address] =
            unsafe { core::ptr::read_volatile(frame_pointer as *const [u64; 2]) };
        match image_address(return_address) {
            Some(address) => println!("  {address:#010x}"),
            None if return_address == 0 => break,
            None => println!("  {return_address:#018x} (not in the image)"),
        }
        frame_pointer = next;
    }
}
