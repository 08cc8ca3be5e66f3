//! System calls, each by its number in the arm64 ABI.

#![allow(unsafe_code, reason = "system calls")]

use core::arch::asm;
use core::fmt::{self, Write};

/// One system call, whose arguments behind those given are 0; small negative numbers are errors.
#[inline(always)]
pub fn call<const N: usize>(number: u64, arguments: [u64; N]) -> i64 {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let result;
    // SAFETY: a call accesses the memory that its arguments name, for which its callers answer;
    // the kernel keeps all registers but x0.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") argument(0) => result,
            in("x1") argument(1),
            in("x2") argument(2),
            in("x3") argument(3),
            in("x4") argument(4),
            in("x5") argument(5),
            options(nostack)
        );
    }
    result
}

pub const GETCWD: u64 = 17;
pub const DUP3: u64 = 24;
pub const IOCTL: u64 = 29;
pub const MOUNT: u64 = 40;
pub const MKNODAT: u64 = 33;
pub const MKDIRAT: u64 = 34;
pub const CHDIR: u64 = 49;
pub const OPENAT: u64 = 56;
pub const CLOSE: u64 = 57;
pub const PIPE2: u64 = 59;
pub const GETDENTS64: u64 = 61;
pub const LSEEK: u64 = 62;
pub const READ: u64 = 63;
pub const WRITE: u64 = 64;
pub const PPOLL: u64 = 73;
pub const READLINKAT: u64 = 78;
pub const FSTAT: u64 = 80;
pub const EXIT_GROUP: u64 = 94;
pub const NANOSLEEP: u64 = 101;
pub const KEXEC_LOAD: u64 = 104;
pub const INIT_MODULE: u64 = 105;
pub const DELETE_MODULE: u64 = 106;
pub const SCHED_YIELD: u64 = 124;
pub const KILL: u64 = 129;
pub const SIGALTSTACK: u64 = 132;
pub const RT_SIGSUSPEND: u64 = 133;
pub const RT_SIGACTION: u64 = 134;
pub const RT_SIGPROCMASK: u64 = 135;
pub const RT_SIGTIMEDWAIT: u64 = 137;
pub const RT_SIGRETURN: u64 = 139;
pub const REBOOT: u64 = 142;
pub const SETSID: u64 = 157;
pub const PRCTL: u64 = 167;
pub const GETCPU: u64 = 168;
pub const GETPID: u64 = 172;
pub const GETPPID: u64 = 173;
pub const SYSINFO: u64 = 179;
pub const BRK: u64 = 214;
pub const MUNMAP: u64 = 215;
pub const MREMAP: u64 = 216;
pub const CLONE: u64 = 220;
pub const EXECVE: u64 = 221;
pub const MMAP: u64 = 222;
pub const MPROTECT: u64 = 226;
pub const MADVISE: u64 = 233;
pub const WAIT4: u64 = 260;
pub const FINIT_MODULE: u64 = 273;
pub const GETRANDOM: u64 = 278;
pub const KEXEC_FILE_LOAD: u64 = 294;
pub const CLOSE_RANGE: u64 = 436;

/// The folder of a path: the process's own (AT_FDCWD).
pub const HERE: u64 = -100_i64 as u64;
pub const PROT_READ: u64 = 1;
/// Advice of `madvise`.
pub const DONT_NEED: u64 = 4;
/// An option of `wait4`.
pub const WNOHANG: u64 = 1;

/// Granule's own `prctl`s, "GRPS" and "GRPG": the page size of the programs that are executed next, in bytes.
const PR_SET_PAGE_SIZE: u64 = 0x4752_5053;
const PR_GET_PAGE_SIZE: u64 = 0x4752_5047;

pub const ENOENT: i64 = -2;
pub const EBADF: i64 = -9;
pub const EAGAIN: i64 = -11;
pub const ENOMEM: i64 = -12;
pub const EFAULT: i64 = -14;
pub const EINVAL: i64 = -22;
/// Memory that is not there, or not free.
pub const EADDRNOTAVAIL: i64 = -99;

pub const SIGKILL: u64 = 9;
const SIGCHLD: u64 = 17;

pub fn exit(code: i32) -> ! {
    call(EXIT_GROUP, [code as u64]);
    // Not reached; if it were, this ends it.
    loop {
        // SAFETY: a breakpoint.
        unsafe { asm!("brk #2", options(nomem, nostack)) };
    }
}

pub fn write(bytes: &[u8]) -> i64 {
    call(WRITE, [1, bytes.as_ptr() as u64, bytes.len() as u64])
}

/// Standard error, to which each part of a text is written at once.
#[derive(Debug)]
pub struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        call(WRITE, [2, text.as_ptr() as u64, text.len() as u64]);
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
    call(PRCTL, [PR_SET_PAGE_SIZE, bytes])
}

/// The wish, in bytes; 0 if there is none.
pub fn page_size_wish() -> i64 {
    call(PRCTL, [PR_GET_PAGE_SIZE])
}

pub fn fork() -> i64 {
    call(CLONE, [SIGCHLD])
}

/// Waits for a child: its number and status, or the error.
pub fn wait(pid: i64) -> Result<(i64, u32), i64> {
    let mut status = 0u32;
    let found = call(WAIT4, [pid as u64, &raw mut status as u64]);
    if found < 0 {
        Err(found)
    } else {
        Ok((found, status))
    }
}

pub const READ_WRITE: u64 = 3;
pub const PRIVATE_ANONYMOUS: u64 = 0x22;
/// In place of what is there.
pub const MAP_FIXED: u64 = 0x10;

/// Anonymous memory, wherever there is room.
pub fn map(bytes: u64, protection: u64) -> Result<u64, i64> {
    let address = call(MMAP, [0, bytes, protection, PRIVATE_ANONYMOUS, u64::MAX]);
    if (-4095..0).contains(&address) {
        Err(address)
    } else {
        Ok(address as u64)
    }
}

pub fn unmap(address: u64, bytes: u64) -> i64 {
    call(MUNMAP, [address, bytes])
}

pub fn protect(address: u64, bytes: u64, protection: u64) -> i64 {
    call(MPROTECT, [address, bytes, protection])
}
