//! The last words: what happened, registers, backtrace, the record for programs,
//! power off.

use crate::console::{self, print, println};
use crate::exception::Frame;
use crate::mmu_off::record::{self, Reason};
use crate::{cpu, image, psci};
use core::arch::asm;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

/// How far a panic came: 0 none, 1 telling, 2 another one happened while telling.
static STAGE: AtomicU32 = AtomicU32::new(0);

/// Frames that a backtrace shows at most.
const MAX_FRAMES: usize = 32;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let here: u64;
    // SAFETY: reads the frame pointer, which the target always keeps.
    unsafe { asm!("mov {}, x29", out(reg) here, options(nomem, nostack, preserves_flags)) };
    match info.location() {
        Some(at) => end(
            format_args!("{}:{}: {}", at.file(), at.line(), info.message()),
            None,
            here,
        ),
        None => end(format_args!("{}", info.message()), None, here),
    }
}

/// Ends because of an exception.
pub(crate) fn exception(frame: &Frame, what: fmt::Arguments<'_>) -> ! {
    let at = image_address(frame.elr);
    let record = &raw const frame.record as u64;
    match at {
        Some(at) => end(
            format_args!("{what}, at {at:#x} in the image"),
            Some(frame),
            record,
        ),
        None => end(
            format_args!("{what}, at {:#018x}", frame.elr),
            Some(frame),
            record,
        ),
    }
}

fn end(what: fmt::Arguments<'_>, frame: Option<&Frame>, frame_pointer: u64) -> ! {
    console::break_lock();
    let again = STAGE.load(Ordering::Relaxed);
    STAGE.store(again + 1, Ordering::Relaxed);
    if again >= 2 {
        // Not even telling that telling failed works.
        cpu::halt();
    }
    let mut line = OneLine {
        bytes: [0; 200],
        used: 0,
    };
    if again == 0 {
        println!("\ngranule: panic: {what}");
        if let Some(frame) = frame {
            print!("{frame}");
        }
        backtrace(frame_pointer);
        // A text that fails to format ends early; the rest of the record stands.
        let _ = line.write_fmt(what);
    } else {
        println!("\ngranule: panic within a panic: {what}");
        let _ = write!(line, "panic within a panic: {what}");
    }
    println!(
        "@granule outcome=panic\n@granule reason={}\n@granule end",
        line.text()
    );
    record::finished(Some((Reason::Panic, line.text().as_bytes())));
    console::flush();
    psci::system_off();
    cpu::halt()
}

/// What `address` is in the ELF file, which is linked at 0, if it is in the image.
fn image_address(address: u64) -> Option<u64> {
    let offset = address.wrapping_sub(image::start());
    (offset < image::bytes()).then_some(offset)
}

/// Follows the frame records from `frame_pointer`. Each must be in memory of the
/// image that is mapped and writable, which is where the stacks are, and nothing but
/// the first may lie lower than the one before, unless the stack changed.
fn backtrace(mut frame_pointer: u64) {
    println!("backtrace (addresses in the ELF file):");
    for _ in 0..MAX_FRAMES {
        let Some(offset) = image_address(frame_pointer) else {
            break;
        };
        let mapped = image::segments().into_iter().any(|segment| {
            segment.permission == image::Permission::ReadWrite
                && segment.range.contains(&offset)
                && segment.range.contains(&(offset + 15))
        });
        if !mapped || frame_pointer % 8 != 0 {
            break;
        }
        // SAFETY: 16 mapped bytes, aligned, checked above; no one else writes stacks now.
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

/// Collects text as one line of ASCII, cut at its size.
struct OneLine {
    bytes: [u8; 200],
    used: usize,
}

impl OneLine {
    fn text(&self) -> &str {
        self.bytes
            .get(..self.used)
            .and_then(|bytes| str::from_utf8(bytes).ok())
            .unwrap_or("")
    }
}

impl Write for OneLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let Some(slot) = self.bytes.get_mut(self.used) else {
                break;
            };
            *slot = if (0x20..0x7f).contains(&byte) {
                byte
            } else {
                b' '
            };
            self.used += 1;
        }
        Ok(())
    }
}
