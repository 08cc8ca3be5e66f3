//! Programs whose page size is another than the kernel's: chosen by the file, the command line, a note and
//! `prctl`; alone, and of every size at once. In each boot the kernel counts that every frame came back.

use std::collections::BTreeMap;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Outcome, Request};

use crate::booted::Booted;
use crate::user::machine::{bench, ends, machine, machine_at, pagesize, program, well};

/// The sizes of kernel and program that differ.
fn pairs() -> impl Iterator<Item = (PageSize, PageSize)> {
    let all = PageSize::ALL.into_iter();
    all.flat_map(|kernel| PageSize::ALL.map(|size| (kernel, size)))
        .filter(|(kernel, size)| kernel != size)
}

/// The test program as a linker makes it for pages of this size at most: the largest alignment of its segments
/// is in each PT_LOAD, at a fixed place of the file.
fn linked_for(bytes: u64) -> Vec<u8> {
    let mut file = program();
    let word = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let first = word(&file, 32) as usize;
    for index in 0..usize::from(file[56]) {
        let at = first + index * 56;
        if file[at..at + 4] == 1_u32.to_le_bytes() {
            file[at + 48..at + 56].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    file
}

/// As [`linked_for`] 64K, with the note that requests `bytes` in the place of a segment that is not
/// loaded.
fn noting(bytes: u64) -> Vec<u8> {
    let mut file = program();
    let offset = file.len().next_multiple_of(8);
    file.resize(offset, 0);
    for word in [8_u32, 8, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(b"Granule\0");
    file.extend_from_slice(&bytes.to_le_bytes());
    let length = (file.len() - offset) as u64;
    let first = u64::from_le_bytes(file[32..40].try_into().unwrap()) as usize;
    let mut headers = (0..usize::from(file[56])).map(|index| first + index * 56);
    // GNU_STACK has no meaning to this kernel.
    let at = headers
        .find(|at| file[*at..at + 4] == 0x6474_e551_u32.to_le_bytes())
        .expect("a segment to spare");
    file[at..at + 4].copy_from_slice(&4_u32.to_le_bytes());
    for (field, value) in [(8, offset as u64), (32, length), (40, length), (48, 4)] {
        file[at + field..at + field + 8].copy_from_slice(&value.to_le_bytes());
    }
    file
}

#[track_caller]
fn says_pages(request: &Request, file: &[u8], bytes: u64) -> Booted {
    let append = request.append.clone().unwrap_or_default();
    let request = request.clone().append(format!("{append} -- hello"));
    let ran = ends(
        &request,
        Initramfs::new().program("/init", file),
        Outcome::Ok,
    );
    ran.prints_line(&format!("page size {bytes}"));
    ran
}

#[test]
fn a_program_linked_for_4k_runs_on_every_kernel() {
    for (kernel, cpu, cpus) in [
        (K4, "max", 1),
        (K16, "max", 2),
        (K64, "max", 1),
        (K64, "cortex-a53", 2),
        (K16, "neoverse-n1", 1),
    ] {
        let request = machine(kernel, cpus).cpu(cpu);
        says_pages(&request, &linked_for(4096), 4096);
    }
    says_pages(&machine(K64, 1), &linked_for(16384), 16384);
    says_pages(&machine(K4, 1), &linked_for(16384), 4096);
}

#[test]
fn a_program_for_which_no_size_is_left_gets_an_error() {
    // CPU 1 reports that it has no 4K pages.
    let request = machine(K64, 2).append("arm64.fake_cpu=1:tgran4=15");
    let archive = Initramfs::new().program("/init", &linked_for(4096));
    let ran = ends(&request, archive, Outcome::Refused);
    let line = "granule: /init cannot be run: no page size is left: programs have 16k, 64k on this \
                boot, and the file allows 4k; link it for pages of 64K (-z max-page-size=65536)";
    ran.prints_line(line);
    assert_eq!(ran.reason(), "/init cannot be run: ENOEXEC");
    says_pages(&request, &linked_for(16384), 16384);
}

#[test]
fn a_wish_that_cannot_be_granted_leaves_a_line() {
    let asks = machine(K64, 1).append("user_pagesize=64k");
    let ran = says_pages(&asks, &linked_for(4096), 4096);
    let line = "granule: /init runs with 4k pages: user_pagesize= requests pages of 65536 bytes: \
                its segments are aligned to 4096 bytes, too few for pages of 65536 bytes";
    ran.prints_line(line);
}

#[test]
fn a_note_the_command_line_and_the_process_choose() {
    for (kernel, size) in pairs() {
        let request = machine(kernel, 1);
        says_pages(&request, &noting(size.bytes()), size.bytes());
        let line = request
            .clone()
            .append(format!("user_pagesize={}", size.word()));
        says_pages(&line, &program(), size.bytes());
        // A note is before the command line, and the process's wish before both.
        says_pages(&line, &noting(kernel.bytes()), kernel.bytes());
        let archive = Initramfs::new()
            .program("/init", &pagesize())
            .program("/hello", &noting(kernel.bytes()));
        let request = request.append(format!("-- {} /hello hello you", size.word()));
        let ran = ends(&request, archive, Outcome::Ok);
        let page = format!("page size {}", size.bytes());
        for line in [&page, "argument you", "path /hello"] {
            ran.prints_line(line);
        }
    }
}

#[test]
fn pagesize_reports_what_it_cannot_do() {
    let runs = |cpu: &str, words: &str, status: u64, line: &str| {
        let request = machine(K64, 1).append(format!("-- {words}")).cpu(cpu);
        let archive = Initramfs::new().program("/init", &pagesize());
        let ran = ends(&request, archive, Outcome::GuestExit);
        ran.prints_line(line);
        ran.has("user.exit_code", status);
    };
    let none = "pagesize: programs cannot have 16k pages on this boot";
    runs("cortex-a72", "16k /init", 125, none);
    let line = "pagesize: 8k is not a page size: 4k, 16k, 64k or default";
    runs("max", "8k /init", 125, line);
    runs("max", "4k /none", 127, "pagesize: there is no /none");
}

#[test]
fn programs_of_every_size_make_speak_with_and_end_each_other() {
    for (kernel, cpu, cpus, el, pairs) in [
        (K4, "max", 4, 1, 9),
        (K16, "max", 2, 2, 9),
        (K64, "max", 4, 2, 9),
        (K64, "neoverse-n1", 1, 1, 9),
        (K4, "cortex-a72", 4, 2, 4),
    ] {
        let request = machine_at(kernel, cpus, el).cpu(cpu);
        well(&request, "sizes", &format!("{pairs} pairs of sizes"));
    }
}

/// The smallest and an odd number of address bits, where root tables are largest.
#[test]
fn the_empty_root_serves_every_size() {
    for (kernel, va_bits) in [(K4, 42), (K4, 36), (K16, 47), (K64, 52)] {
        let request = machine(kernel, 2).va_bits(va_bits);
        let ran = well(&request, "sizes", "9 pairs of sizes");
        ran.has("user.va_bits", va_bits.min(48));
    }
}

/// Runs tests of memory, hostile programs, programs that fork and end each other, and the
/// benchmark.
const TOGETHER: &str = "memory areas copies registers heap groups vfork pelted preempt sizes instructions \
    every-pointer signal-storm frames random,1,6 /bench,1048576,1";

/// The lines of programs, counted, without what depends on time.
fn lines(ran: &Booted) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for line in ran.console.lines().map(str::trim_end) {
        let line = match line.split_once(' ') {
            _ if line.is_empty() || line.contains("granule") => continue,
            // The cost of the kernel's map, how many children of the random test waited too long,
            // and the count of tests.
            Some(("map_mem:" | "seed", _)) => continue,
            Some((_, "tests side by side")) => continue,
            Some(("bench", rest)) => rest.split(' ').next().unwrap_or(rest),
            _ => line,
        };
        *found.entry(line.to_owned()).or_default() += 1;
    }
    found
}

/// Programs of all three sizes at once on four CPUs print what each prints alone, on the kernel of
/// each size.
#[test]
fn programs_of_every_size_run_side_by_side_as_alone() {
    let request = |kernel| machine(kernel, 4).memory(512 << 20);
    let runs = |kernel, words: &str| {
        let archive = Initramfs::new()
            .program("/init", &program())
            .program("/bench", &bench());
        let request = request(kernel).append(format!("-- {words}"));
        let ran = ends(&request, archive, Outcome::Ok);
        ran.frames_came_back();
        ran
    };
    let mut alone: BTreeMap<String, u32> = BTreeMap::new();
    for what in TOGETHER.split_whitespace() {
        for (line, times) in lines(&runs(K4, &format!("only {what}"))) {
            *alone.entry(line).or_default() += 3 * times;
        }
    }
    let count = 3 * TOGETHER.split_whitespace().count();
    for kernel in PageSize::ALL {
        let together = runs(kernel, &format!("beside {TOGETHER}"));
        let line = format!("{count} tests side by side");
        together.prints_line(&line);
        assert_eq!(lines(&together), alone, "{kernel:?}: {}", together.console);
        for page in PageSize::ALL.map(PageSize::bytes) {
            let begins = format!("bench begin page={page} ");
            together.mentions(&begins);
        }
    }
}

/// Eight programs that run a file at once get one copy of it, and it goes when memory is short.
#[test]
fn a_file_is_copied_once_and_kept_until_memory_is_short() {
    for (kernel, size, cpus) in [(K4, K4, 4), (K4, K64, 1), (K16, K16, 2), (K64, K4, 4)] {
        let other = pagesize();
        let archive = Initramfs::new()
            .program("/init", &program())
            .program("/other", &other);
        // The exit codes of `pagesize` for requests that it cannot serve.
        let words = format!("-- cached {} 125", other.len());
        let words = format!("user_pagesize={} {words}", size.word());
        let ran = ends(&machine(kernel, cpus).append(&words), archive, Outcome::Ok);
        ran.prints_line("cached");
    }
}

/// A program whose pages are larger than the pieces in which memory is free is refused its request,
/// and nothing else happens.
#[test]
fn larger_pages_are_refused_where_memory_is_in_pieces() {
    for (kernel, larger, cpus) in [(K4, K64, 1), (K4, K16, 4), (K16, K64, 2)] {
        let request = machine(kernel, cpus);
        let words = format!("fragmented {}", larger.bytes());
        well(&request, &words, "fragmented");
    }
}

/// Every test of memory and processes on each pair of sizes.
#[test]
fn tests_pass_with_another_size_than_that_of_the_kernel() {
    for (index, (kernel, size)) in pairs().enumerate() {
        for (words, line) in [
            ("memory", "mapped"),
            ("groups", "grouped"),
            ("copies", "copied"),
            ("heap", "grown"),
            ("storm", "stormed"),
            ("pelted", "pelted"),
        ] {
            let cpus = [1, 4][index % 2];
            let request = machine(kernel, cpus).append(format!("user_pagesize={}", size.word()));
            well(&request, words, line);
        }
    }
}
