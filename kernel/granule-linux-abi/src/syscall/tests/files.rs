//! Tests of files, descriptors, and reads and writes that do not wait.

use super::*;
use crate::signals::set::SignalSet;

#[test]
fn a_file_is_opened_read_described_and_closed() {
    let mut fake = Fake::new();
    let fd = fake.open("etc/text", 0);
    assert_eq!(fd, 3);
    assert_eq!(fake.ok(n::READ, &[fd, BASE, 4]), 4);
    assert_eq!(fake.bytes(BASE, 5), b"0123\0");
    assert_eq!(fake.ok(n::LSEEK, &[fd, -3_i64 as u64, 2]), 7);
    assert_eq!(fake.ok(n::READ, &[fd, BASE, 5000]), 3);
    assert_eq!(fake.ok(n::FSTAT, &[fd, BASE]), 0);
    let stat: Stat = fake.get(BASE);
    assert_eq!((stat.size, stat.mode), (10, 0o100644));
    let path = fake.path("link");
    assert_eq!(fake.ok(n::NEWFSTATAT, &[HERE, path, BASE, 0x100]), 0);
    assert_eq!(fake.get::<Stat>(BASE).mode, 0o120777);
    let empty = fake.path("");
    assert_eq!(fake.ok(n::NEWFSTATAT, &[fd, empty, BASE, 0x1000]), 0);
    assert_eq!(fake.get::<Stat>(BASE).ino, stat.ino);
    fake.fails(n::NEWFSTATAT, &[fd, empty, BASE, 0], Errno::ENOENT);
    fake.fails(n::NEWFSTATAT, &[fd, empty, BASE, 1], Errno::EINVAL);
    assert_eq!(fake.ok(n::CLOSE, &[fd]), 0);
    fake.fails(n::CLOSE, &[fd], Errno::EBADF);
    fake.fails(n::READ, &[fd, BASE, 1], Errno::EBADF);
}

#[test]
fn where_one_is_and_what_links_say() {
    let mut fake = Fake::new();
    assert_eq!(fake.ok(n::GETCWD, &[BASE, 100]), 2);
    assert_eq!(fake.bytes(BASE, 2), b"/\0");
    let path = fake.path("etc");
    assert_eq!(fake.ok(n::CHDIR, &[path]), 0);
    assert_eq!(fake.ok(n::GETCWD, &[BASE, 5]), 5);
    assert_eq!(fake.bytes(BASE, 5), b"/etc\0");
    fake.fails(n::GETCWD, &[BASE, 4], Errno::ERANGE);
    let path = fake.path("text");
    fake.fails(n::CHDIR, &[path], Errno::ENOTDIR);
    let path = fake.path("..");
    assert_eq!(fake.ok(n::CHDIR, &[path]), 0);
    let path = fake.path("link");
    assert_eq!(fake.ok(n::READLINKAT, &[HERE, path, BASE, 100]), 8);
    assert_eq!(fake.bytes(BASE, 8), b"etc/text");
    assert_eq!(fake.ok(n::READLINKAT, &[HERE, path, BASE, 3]), 3);
    let path = fake.path("/proc/self/exe");
    assert_eq!(fake.ok(n::READLINKAT, &[HERE, path, BASE, 100]), 9);
    assert_eq!(fake.bytes(BASE, 9), b"/bin/prog");
    let path = fake.path("etc");
    fake.fails(n::READLINKAT, &[HERE, path, BASE, 100], Errno::EINVAL);
}

#[test]
fn descriptors_are_copied_marked_and_limited() {
    let mut fake = Fake::new();
    let fd = fake.open("etc/text", O_CLOEXEC);
    assert_eq!(fake.ok(n::FCNTL, &[fd, 1030, 10]), 10);
    assert_eq!(fake.ok(n::DUP3, &[fd, 20, 0]), 20);
    let closes = |fake: &Fake, fd| {
        let descriptors = &fake.processes.get(0).unwrap().descriptors;
        descriptors.closes_on_exec(fd).unwrap()
    };
    assert_eq!([3, 10, 20].map(|fd| closes(&fake, fd)), [true, true, false]);
    assert_eq!(fake.ok(n::FCNTL, &[20, 2, 1]), 0);
    assert_eq!(fake.ok(n::FCNTL, &[10, 2, 0]), 0);
    assert_eq!([10, 20].map(|fd| closes(&fake, fd)), [false, true]);
    fake.fails(n::DUP3, &[fd, fd, 0], Errno::EINVAL);
    fake.fails(n::DUP3, &[fd, 64, 0], Errno::EBADF);
    fake.fails(n::FCNTL, &[fd, 1030, 64], Errno::EINVAL);
    fake.fails(n::FCNTL, &[50, 1030, 64], Errno::EBADF);
    fake.fails(n::FCNTL, &[fd, 4, 0], Errno::EINVAL);
    // All descriptors share one open file.
    fake.ok(n::READ, &[20, BASE, 4]);
    assert_eq!(fake.ok(n::LSEEK, &[10, 0, 1]), 4);
    let on = fake.put(BASE, 1_u32);
    assert_eq!(fake.ok(n::IOCTL, &[fd, u64::from(FIONBIO), on]), 0);
    assert_eq!(fake.ok(n::FCNTL, &[20, 3]) as u32 & O_NONBLOCK, O_NONBLOCK);
    fake.fails(n::CLOSE_RANGE, &[3, u64::from(u32::MAX), 4], Errno::EINVAL);
    assert_eq!(fake.ok(n::CLOSE_RANGE, &[3, u64::from(u32::MAX), 0]), 0);
    assert_eq!(fake.processes.files.counts(), (1, 0));
    for _ in 3..MOST {
        fake.open("etc/text", 0);
    }
    let path = fake.path("etc/text");
    fake.fails(n::OPENAT, &[HERE, path], Errno::EMFILE);
    fake.fails(n::PIPE2, &[BASE, 0], Errno::EMFILE);
    // Failed calls leave nothing behind.
    assert_eq!(fake.processes.files.counts(), (62, 0));
}

#[test]
fn the_console_is_written_to_and_has_no_input() {
    let mut fake = Fake::new();
    fake.put(BASE, *b"line\nsecond");
    assert_eq!(fake.ok(n::WRITE, &[1, BASE, 5]), 5);
    assert_eq!(fake.ok(n::WRITE, &[2, BASE + 5, 6]), 6);
    assert_eq!(fake.console, b"line\nsecond");
    fake.fails(n::WRITE, &[1, NOWHERE, 5], Errno::EFAULT);
    assert_eq!(fake.ok(n::READ, &[0, BASE, 100]), 0);
    // TCGETS fails: the console is not a terminal.
    fake.fails(n::IOCTL, &[1, 0x5401, BASE], Errno::ENOTTY);
    fake.fails(n::IOCTL, &[60, 0x5401, BASE], Errno::EBADF);
}

/// A signal ends a long transfer after the current part.
#[test]
fn a_signal_ends_what_is_read_and_written_at_the_next_part() {
    let mut fake = Fake::new();
    let zero = fake.open("/dev/zero", 0);
    let null = fake.open("/dev/null", 2);
    let all = PATH - BASE;
    for (number, fd) in [(n::READ, zero), (n::WRITE, null)] {
        assert_eq!(fake.ok(number, &[fd, BASE, all]), all);
        fake.act(SIGUSR1, 0x1234, 0);
        for signal in [0, SIGUSR1] {
            let event = fake.kill_self(signal);
            fake.at_pauses.push_back(event);
        }
        assert_eq!(fake.ok(number, &[fd, BASE, all]), 2 * 4096);
        let set = SignalSet::EMPTY.with(SIGUSR1);
        assert!(fake.signals().take(set).is_some());
    }
    let event = fake.kill_self(SIGUSR1);
    fake.at_pauses.push_back(event);
    assert_eq!(fake.ok(n::GETRANDOM, &[BASE, all]), 4096);
}

/// A disk, which has one and a half times as many bytes as one transfer.
#[test]
fn a_disk_of_a_module_or_the_machine_is_read_and_written_to_its_end() {
    let mut fake = Fake::new();
    let path = fake.path("dev/vda");
    fake.fails(n::OPENAT, &[HERE, path, 2], Errno::ENOENT);
    fake.processes
        .files
        .add_source(Source::Disk, 0x1800)
        .unwrap();
    let path = fake.path("bin/ram0");
    fake.fails(n::OPENAT, &[HERE, path, 2], Errno::ENXIO);
    use_disk(&mut fake, "dev/vda", 0xfe00, 0o060660);
    fake.disk.fill(0);
    fake.processes
        .files
        .add_source(Source::RamDisk, 0x1800)
        .unwrap();
    let fd = use_disk(&mut fake, "bin/ram0", 0x100, 0o060600);
    assert!(!fake.processes.files.remove_source(Source::RamDisk));
    assert_eq!(fake.ok(n::CLOSE, &[fd]), 0);
    assert!(fake.processes.files.remove_source(Source::RamDisk));
    let path = fake.path("bin/ram0");
    fake.fails(n::OPENAT, &[HERE, path, 2], Errno::ENXIO);
}

/// Uses a disk of zeros, and returns its descriptor.
fn use_disk(fake: &mut Fake, path: &str, rdev: u64, mode: u32) -> u64 {
    let fd = fake.open(path, 2);
    fake.memory[..0x1000].fill(7);
    assert_eq!(fake.ok(n::LSEEK, &[fd, -0x400_i64 as u64, 2]), 0x1400);
    assert_eq!(fake.ok(n::WRITE, &[fd, BASE, 0x1000]), 0x400);
    fake.fails(n::WRITE, &[fd, BASE, 1], Errno::ENOSPC);
    assert_eq!(fake.ok(n::READ, &[fd, BASE, 1]), 0);
    assert_eq!(fake.ok(n::LSEEK, &[fd, 0x13ff, 0]), 0x13ff);
    assert_eq!(fake.ok(n::READ, &[fd, BASE + 0x2000, 0x5000]), 0x401);
    assert_eq!(fake.bytes(BASE + 0x2000, 3), [0, 7, 7]);
    assert_eq!(fake.ok(n::LSEEK, &[fd, 0, 0]), 0);
    assert_eq!(fake.ok(n::READ, &[fd, BASE + 0x2000, 0x5000]), 0x1800);
    assert_eq!(fake.ok(n::FSTAT, &[fd, BASE]), 0);
    let stat: Stat = fake.get(BASE);
    assert_eq!((stat.size, stat.mode, stat.rdev), (0, mode, rdev));
    // A device that fails moves no offset.
    fake.breaks = true;
    assert_eq!(fake.ok(n::LSEEK, &[fd, 0x10, 0]), 0x10);
    fake.fails(n::READ, &[fd, BASE, 0x2000], Errno::EIO);
    fake.fails(n::WRITE, &[fd, BASE, 1], Errno::EIO);
    assert_eq!(fake.ok(n::LSEEK, &[fd, 0, 1]), 0x10);
    fake.breaks = false;
    fd
}

#[test]
fn a_core_is_there_with_its_bytes_and_is_only_read() {
    let mut fake = Fake::new();
    let path = fake.path("/proc/vmcore");
    fake.fails(n::OPENAT, &[HERE, path, 0], Errno::ENOENT);
    // Larger than any memory of a program.
    let bytes = 5 << 30;
    fake.processes
        .files
        .add_source(Source::Vmcore, bytes)
        .unwrap();
    let path = fake.path("/proc/vmcore");
    for flags in [1, 2] {
        fake.fails(n::OPENAT, &[HERE, path, flags], Errno::EACCES);
    }
    let fd = fake.open("/proc/vmcore", 0);
    assert_eq!(fake.ok(n::FSTAT, &[fd, BASE]), 0);
    let stat: Stat = fake.get(BASE);
    assert_eq!((stat.size, stat.mode), (5 << 30, 0o100400));
    assert_eq!(fake.ok(n::LSEEK, &[fd, -3_i64 as u64, 2]), bytes - 3);
    assert_eq!(fake.ok(n::READ, &[fd, BASE, 100]), 3);
    assert_eq!(fake.bytes(BASE, 3), [0xc0; 3]);
    assert_eq!(fake.ok(n::READ, &[fd, BASE, 100]), 0);
    fake.fails(n::WRITE, &[fd, BASE, 1], Errno::EBADF);
}

#[test]
fn only_the_letter_c_crashes() {
    let mut fake = Fake::new();
    let path = fake.path("/proc/sysrq-trigger");
    for flags in [0, 2] {
        fake.fails(n::OPENAT, &[HERE, path, flags], Errno::EACCES);
    }
    // As a shell opens what it writes to.
    let fd = fake.open("/proc/sysrq-trigger", 0o1101);
    assert_eq!(fake.ok(n::WRITE, &[fd, BASE, 0]), 0);
    fake.memory[..2].copy_from_slice(b"bc");
    fake.fails(n::WRITE, &[fd, BASE, 2], Errno::EINVAL);
    assert_eq!(fake.crashes, 0);
    assert_eq!(fake.ok(n::WRITE, &[fd, BASE + 1, 2]), 2);
    assert_eq!(fake.crashes, 1);
}
