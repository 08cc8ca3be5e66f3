//! Tests of the calls that C libraries make at start, and of every call with invalid arguments.

use super::*;
use granule_testing::cases::config;

#[test]
fn calls_of_starting_libraries_are_answered() {
    let mut fake = Fake::new();
    assert_eq!(fake.ok(n::PRLIMIT64, &[0, 3, 0, BASE]), 0);
    assert_eq!(fake.get::<[u64; 2]>(BASE), [8 << 20; 2]);
    fake.fails(n::PRLIMIT64, &[0, 3, BASE, 0], Errno::EPERM);
    fake.fails(n::PRLIMIT64, &[0, 16, 0, BASE], Errno::EINVAL);
    assert_eq!(fake.ok(n::GETRANDOM, &[BASE, 300, 0]), 300);
    assert_eq!((fake.bytes(BASE + 299, 2)), [0x5a, 0]);
    for (seeded, answers) in [(true, [Ok(8); 4]), (false, [Err(Errno::EAGAIN); 4])] {
        fake.seeded = seeded;
        for (flags, answer) in [0, 1, 2, 3].into_iter().zip(answers) {
            match answer {
                Ok(bytes) => assert_eq!(fake.ok(n::GETRANDOM, &[BASE, 8, flags]), bytes),
                Err(error) => fake.fails(n::GETRANDOM, &[BASE, 8, flags], error),
            }
        }
        // GRND_INSECURE, which GRND_RANDOM contradicts.
        for flags in [4, 5] {
            assert_eq!(fake.ok(n::GETRANDOM, &[BASE, 8, flags]), 8);
        }
        for flags in [6, 7, 8] {
            fake.fails(n::GETRANDOM, &[BASE, 8, flags], Errno::EINVAL);
        }
    }
    assert_eq!(fake.ok(n::SET_ROBUST_LIST, &[BASE, 24]), 0);
    assert_eq!(fake.ok(n::UNAME, &[BASE]), 0);
    assert_eq!(fake.bytes(BASE, 6), b"Linux\0");
    assert_eq!(fake.bytes(BASE + 65 * 4, 8), b"aarch64\0");
    assert_eq!(fake.ok(n::SYSINFO, &[BASE]), 0);
    assert_eq!(fake.get::<[u64; 6]>(BASE)[4..], [1 << 30, 1 << 29]);
    assert_eq!(fake.ok(n::GETCPU, &[BASE, 0]), 0);
    assert_eq!(fake.get::<u32>(BASE), 1);
    assert_eq!(fake.ok(n::CLOCK_GETTIME, &[1, BASE]), 0);
    assert_eq!(fake.get::<TimeSpec>(BASE), TimeSpec { sec: 1, nsec: 0 });
    fake.fails(n::CLOCK_GETTIME, &[99, BASE], Errno::EINVAL);
    assert_eq!(fake.ok(n::UMASK, &[0o77]), 0o22);
    assert_eq!(fake.ok(n::UMASK, &[0]), 0o77);
    let name = fake.put(BASE, *b"a-much-too-long-name\0");
    assert_eq!(fake.ok(n::PRCTL, &[15, name]), 0);
    assert_eq!(fake.ok(n::PRCTL, &[16, BASE + 64]), 0);
    assert_eq!(fake.bytes(BASE + 64, 16), b"a-much-too-long\0");
    fake.fails(n::PRCTL, &[3, 0], Errno::EINVAL);
}

/// The numbers are "GRPS" and "GRPG". The machine has no 16K pages.
#[test]
fn a_page_size_is_wished_for_inherited_and_read_back() {
    const SET: u64 = 0x4752_5053;
    const GET: u64 = 0x4752_5047;
    let mut fake = Fake::new();
    assert_eq!(fake.ok(n::PRCTL, &[GET]), 0);
    assert_eq!(fake.ok(n::PRCTL, &[SET, 0x1_0000]), 0);
    assert_eq!(fake.ok(n::PRCTL, &[GET]), 0x1_0000);
    for none in [0x4000, 1, 0x2000, 0x1001, u64::MAX, 1 << 32 | 0x1000] {
        fake.fails(n::PRCTL, &[SET, none], Errno::EINVAL);
    }
    assert_eq!(fake.ok(n::PRCTL, &[GET]), 0x1_0000);
    // A child has the wish, and it outlives the program.
    fake.processes.fork(fake.place, 7).unwrap();
    let child = fake.processes.get(7).unwrap();
    assert_eq!(child.page_size, Some(PageSize::K64));
    let exe = child.exe;
    fake.processes.execute(7, exe, b"/x").unwrap();
    let child = fake.processes.get(7).unwrap();
    assert_eq!(child.page_size, Some(PageSize::K64));
    fake.processes.end(7);
    assert_eq!(fake.ok(n::PRCTL, &[SET, 0]), 0);
    assert_eq!(fake.ok(n::PRCTL, &[GET]), 0);
}

#[test]
fn unknown_system_calls_are_reported() {
    let mut fake = Fake::new();
    assert!(call(&mut fake, 1000, Args([0; 6])).is_none());
    assert_eq!(unknown(&mut fake, 1000), Err(Fail::Error(Errno::ENOSYS)));
    assert_eq!(fake.unknown, [1000]);
}

#[test]
fn a_path_may_end_where_memory_does_and_no_later() {
    let mut fake = Fake::new();
    let end = BASE + BYTES;
    fake.memory[BYTES as usize - 9..].copy_from_slice(b"etc/text\0");
    assert_eq!(fake.ok(n::OPENAT, &[HERE, end - 9, 0]), 3);
    fake.memory[BYTES as usize - 1] = b'x';
    fake.fails(n::OPENAT, &[HERE, end - 9, 0], Errno::EFAULT);
    let range = fake.range(BASE, 0x3000).unwrap();
    fake.memory[range].fill(b'/');
    fake.fails(n::OPENAT, &[HERE, BASE, 0], Errno::ENAMETOOLONG);
    fake.fails(n::OPENAT, &[HERE, u64::MAX - 2, 0], Errno::EFAULT);
}

/// All numbers except those of calls that would wait for ever.
fn numbers() -> Vec<u64> {
    // These calls end only by events that a test must provide.
    let waits = [n::RT_SIGSUSPEND, n::RT_SIGTIMEDWAIT, n::PPOLL];
    (0..n::COUNT)
        .filter(|number| !waits.contains(number))
        .collect()
}

proptest! {
    #![proptest_config(config(64, 1))]

    /// Every call with bad pointers, small numbers or arbitrary arguments: each returns, and the end of
    /// the process frees everything.
    #[test]
    fn no_argument_does_harm(seeds in proptest::collection::vec((any::<u64>(), 0u8..6), 6 * 40), start in 0usize..300) {
        let mut fake = Fake::new();
        let numbers = numbers();
        let mut seeds = seeds.chunks_exact(6).cycle();
        for index in 0..300 {
            let number = numbers[(start + index) % numbers.len()];
            let args: Vec<u64> = seeds.next().unwrap().iter().map(|(seed, kind)| match kind {
                0 => *seed,
                1 => BASE + seed % BYTES,
                2 => seed % 70,
                3 => BASE + BYTES - seed % 20,
                4 => READ_ONLY - seed % 20,
                _ => u64::MAX - seed % 200,
            }).collect();
            let args: [u64; 6] = args.try_into().unwrap();
            for number in [number, numbers[index]] {
                fake.events.clear();
                for _ in 0..3 {
                    fake.meanwhile(|processes| {
                        // Interrupts any wait.
                        let process = processes.get_mut(0).unwrap();
                        process.signals.force(SIGUSR1, crate::signals::Cause::KERNEL);
                        processes.woken.insert(0);
                    });
                }
                if call(&mut fake, number, Args(args)).is_none() {
                    prop_assert_eq!(unknown(&mut fake, number), Err(Fail::Error(Errno::ENOSYS)));
                }
                while fake.signals().take_next().is_some() {}
                fake.signals().set_mask(Default::default());
            }
        }
        fake.processes.end(0);
        prop_assert_eq!(fake.processes.files.counts(), (0, 0));
    }
}
