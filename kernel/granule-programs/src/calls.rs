//! System calls, each by its number in the arm64 ABI.

#![allow(unsafe_code, reason = "system calls")]

use core::arch::asm;
use core::fmt::{self, Write};

/// One system call; small negative numbers are errors.
pub fn call(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: a call accesses the memory that its arguments name, for which its callers answer;
    // the kernel keeps all registers but x0.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack)
        );
    }
    result
}

pub const WRITE: u64 = 64;
pub const EXIT_GROUP: u64 = 94;
pub const SCHED_YIELD: u64 = 124;
pub const GETCPU: u64 = 168;
pub const GETPID: u64 = 172;
pub const GETPPID: u64 = 173;
pub const BRK: u64 = 214;
pub const MUNMAP: u64 = 215;
pub const CLONE: u64 = 220;
pub const MMAP: u64 = 222;
pub const MPROTECT: u64 = 226;
pub const MADVISE: u64 = 233;
pub const WAIT4: u64 = 260;
pub const PRCTL: u64 = 167;
pub const EXECVE: u64 = 221;

/// Granule's own `prctl`s, "GRPS" and "GRPG": the page size of the programs that are executed next, in bytes.
const PR_SET_PAGE_SIZE: u64 = 0x4752_5053;
const PR_GET_PAGE_SIZE: u64 = 0x4752_5047;

pub const ENOENT: i64 = -2;
pub const EFAULT: i64 = -14;

const SIGCHLD: u64 = 17;

pub fn exit(code: i32) -> ! {
    call(EXIT_GROUP, [code as u64, 0, 0, 0, 0, 0]);
    // Not reached; if it were, this ends it.
    loop {
        // SAFETY: a breakpoint.
        unsafe { asm!("brk #2", options(nomem, nostack)) };
    }
}

pub fn write(bytes: &[u8]) -> i64 {
    call(
        WRITE,
        [1, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0],
    )
}

/// Standard error, to which each part of a text is written at once.
#[derive(Debug)]
pub struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let bytes = [2, text.as_ptr() as u64, text.len() as u64, 0, 0, 0];
        call(WRITE, bytes);
        Ok(())
    }
}

/// The part of a text that is kept until it is written.
struct Console {
    kept: [u8; 200],
    used: usize,
}

impl Console {
    fn flush(&mut self) {
        write(self.kept.get(..self.used).unwrap_or_default());
        self.used = 0;
    }
}

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.used == self.kept.len() {
                self.flush();
            }
            if let Some(to) = self.kept.get_mut(self.used) {
                *to = byte;
                self.used += 1;
            }
        }
        Ok(())
    }
}

/// Writes a text by one call if it is short, so that no other process writes in the middle of it.
pub fn say(what: fmt::Arguments<'_>) {
    let mut console = Console {
        kept: [0; 200],
        used: 0,
    };
    // Never fails.
    let _ = console.write_fmt(what);
    console.flush();
}

/// Wishes for pages of so many bytes for the next programs; 0 takes the wish back.
pub fn wish_page_size(bytes: u64) -> i64 {
    call(PRCTL, [PR_SET_PAGE_SIZE, bytes, 0, 0, 0, 0])
}

/// The wish, in bytes; 0 if there is none.
pub fn page_size_wish() -> i64 {
    call(PRCTL, [PR_GET_PAGE_SIZE, 0, 0, 0, 0, 0])
}

pub fn fork() -> i64 {
    call(CLONE, [SIGCHLD, 0, 0, 0, 0, 0])
}

/// Waits for a child: its number and status, or the error.
pub fn wait(pid: i64) -> Result<(i64, u32), i64> {
    let mut status = 0u32;
    let found = call(WAIT4, [pid as u64, &raw mut status as u64, 0, 0, 0, 0]);
    if found < 0 {
        Err(found)
    } else {
        Ok((found, status))
    }
}

pub const READ_WRITE: u64 = 3;
const PRIVATE_ANONYMOUS: u64 = 0x22;

/// Anonymous memory, wherever there is room.
pub fn map(bytes: u64, protection: u64) -> Result<u64, i64> {
    let address = call(MMAP, [0, bytes, protection, PRIVATE_ANONYMOUS, u64::MAX, 0]);
    if (-4095..0).contains(&address) {
        Err(address)
    } else {
        Ok(address as u64)
    }
}

pub fn unmap(address: u64, bytes: u64) -> i64 {
    call(MUNMAP, [address, bytes, 0, 0, 0, 0])
}

pub fn protect(address: u64, bytes: u64, protection: u64) -> i64 {
    call(MPROTECT, [address, bytes, protection, 0, 0, 0])
}
