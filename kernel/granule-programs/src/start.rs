//! From the first instruction to the program's `run`, and what a panic does.

#![allow(unsafe_code, reason = "the entry, and the words on the first stack")]

use crate::calls;
use core::arch::global_asm;
use core::panic::PanicInfo;

// The stack pointer is at the number of arguments, as the ABI has it.
global_asm!(
    r#"
    .section .text._start, "ax"
    .global _start
_start:
    mov     x29, xzr
    mov     x30, xzr
    mov     x0, sp
    bl      begin
    brk     #1
"#
);

/// The words on a program's initial stack.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    words: *const u64,
}

impl Start {
    fn word(self, index: usize) -> u64 {
        // SAFETY: only words are read that the ones before announce.
        unsafe { self.words.add(index).read() }
    }

    /// Returns the number of arguments, the program's name among them.
    pub fn count(self) -> usize {
        self.word(0) as usize
    }

    /// An argument, without its NUL.
    pub fn argument(self, index: usize) -> &'static [u8] {
        if index >= self.count() {
            return b"";
        }
        text(self.word(1 + index))
    }

    /// The address of the list of arguments from one on, which a null pointer ends.
    pub fn arguments_from(self, index: usize) -> u64 {
        // SAFETY: the list has as many words as there are arguments, and a null pointer.
        unsafe { self.words.add(1 + index.min(self.count())) as u64 }
    }

    /// The address of the list of the environment's strings.
    pub fn environment(self) -> u64 {
        // SAFETY: it follows the null pointer behind the arguments.
        unsafe { self.words.add(1 + self.count() + 1) as u64 }
    }

    /// The value of a kind in the auxiliary vector.
    pub fn auxiliary(self, kind: u64) -> Option<u64> {
        let mut at = 1 + self.count() + 1;
        while self.word(at) != 0 {
            at += 1;
        }
        at += 1;
        while self.word(at) != 0 {
            if self.word(at) == kind {
                return Some(self.word(at + 1));
            }
            at += 2;
        }
        None
    }
}

/// The text at an address that the kernel gave.
pub fn text(address: u64) -> &'static [u8] {
    let start = address as *const u8;
    let mut length = 0;
    // SAFETY: the kernel ends each text with a NUL.
    while unsafe { start.add(length).read() } != 0 {
        length += 1;
    }
    // SAFETY: just read.
    unsafe { core::slice::from_raw_parts(start, length) }
}

/// A decimal number; what is none of its digits is not looked at.
pub fn number(text: &[u8]) -> u64 {
    text.iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0, |number, byte| number * 10 + u64::from(byte - b'0'))
}

/// Of the auxiliary vector: the bytes of a page.
const AT_PAGESZ: u64 = 6;

/// Returns the page size that the kernel reports.
pub fn page(start: Start) -> u64 {
    start.auxiliary(AT_PAGESZ).unwrap_or(0)
}

unsafe extern "Rust" {
    /// The program, which [`program!`](crate::program) names.
    safe fn granule_programs_run(start: Start) -> i32;
}

#[unsafe(no_mangle)]
extern "C" fn begin(words: *const u64) -> ! {
    calls::exit(granule_programs_run(Start { words }))
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    calls::say(format_args!("{info}\n"));
    calls::exit(101)
}
