//! The numbers of the system calls known by name, passed in x8.

macro_rules! numbers {
    ($($name:ident = $number:literal,)*) => {
        $(pub const $name: u64 = $number;)*

        /// The name of a number, for the log.
        pub const fn name(number: u64) -> Option<&'static str> {
            match number {
                $($name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

numbers! {
    GETCWD = 17,
    DUP3 = 24,
    FCNTL = 25,
    IOCTL = 29,
    CHDIR = 49,
    OPENAT = 56,
    CLOSE = 57,
    PIPE2 = 59,
    GETDENTS64 = 61,
    LSEEK = 62,
    READ = 63,
    WRITE = 64,
    SENDFILE = 71,
    PPOLL = 73,
    READLINKAT = 78,
    NEWFSTATAT = 79,
    FSTAT = 80,
    EXIT = 93,
    EXIT_GROUP = 94,
    SET_TID_ADDRESS = 96,
    SET_ROBUST_LIST = 99,
    NANOSLEEP = 101,
    KEXEC_LOAD = 104,
    INIT_MODULE = 105,
    DELETE_MODULE = 106,
    CLOCK_GETTIME = 113,
    CLOCK_NANOSLEEP = 115,
    SCHED_YIELD = 124,
    KILL = 129,
    TKILL = 130,
    TGKILL = 131,
    SIGALTSTACK = 132,
    RT_SIGSUSPEND = 133,
    RT_SIGACTION = 134,
    RT_SIGPROCMASK = 135,
    RT_SIGTIMEDWAIT = 137,
    RT_SIGRETURN = 139,
    REBOOT = 142,
    SETSID = 157,
    UNAME = 160,
    UMASK = 166,
    PRCTL = 167,
    GETCPU = 168,
    GETPID = 172,
    GETPPID = 173,
    GETUID = 174,
    GETEUID = 175,
    GETGID = 176,
    GETEGID = 177,
    SYSINFO = 179,
    BRK = 214,
    MUNMAP = 215,
    MREMAP = 216,
    CLONE = 220,
    EXECVE = 221,
    MMAP = 222,
    MPROTECT = 226,
    MADVISE = 233,
    WAIT4 = 260,
    PRLIMIT64 = 261,
    FINIT_MODULE = 273,
    GETRANDOM = 278,
    RSEQ = 293,
    KEXEC_FILE_LOAD = 294,
    CLOSE_RANGE = 436,
}

/// All numbers lie below this. Larger numbers share one report.
pub const COUNT: u64 = 512;
