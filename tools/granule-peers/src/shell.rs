//! Debian's unmodified shell with a script that uses a little of everything. It must print the same
//! on our kernel as on Debian's.

use anyhow::{Context, Result, bail, ensure};
use granule_cli::Initramfs;
use object::{Object, ObjectSegment};
use xtask::graph;

use crate::machine::{self, Kernel, granules, request};
use crate::peers::Peers;

const SCRIPT: &[u8] = include_bytes!("script.sh");

/// The first and the last line that the script prints.
const BEGIN: &str = "script begins";
const END: &str = "script ends";

/// The programs that the script calls; all are names of the one busybox program.
const APPLETS: &str = "awk basename cat cksum cmp cut dd dirname env expr false find grep gunzip gzip \
    head id kill ls md5sum mount od printf readlink sed seq sh sha256sum sleep sort stat stty tail \
    timeout tr true uname uniq wc xargs yes";

/// Not a multiple of any page size, so that reads in parts cross page edges.
const LARGE: u32 = 300_001;

/// A part of our kernel's message about a missing system call.
const UNKNOWN: &str = "which is not implemented: ENOSYS";
/// Calls that a C library tries once and does not need, as on kernels before 4.18.
const DONE_WITHOUT: &[&str] = &["(RSEQ)"];

/// The largest page size that programs must be aligned for.
const LARGEST_PAGE: u64 = 64 << 10;

const MEMORY: u64 = 512 << 20;
const CPUS: [u32; 2] = [1, 4];

/// Runs Debian's shell on its own kernels, then on ours, and requires the same output. Returns its
/// output on Debian's.
pub(crate) fn shells(peers: &Peers<'_>) -> Result<Vec<String>> {
    peers.add("busybox: aligned for 64K pages", aligned(&peers.busybox));
    let initramfs = peers
        .files
        .initramfs("shell.cpio", archive(&peers.busybox))?;
    let run = |kernel: &Kernel, cpus| {
        let machine = request(MEMORY, cpus).initrd(initramfs.clone());
        let words = if kernel.is_ours {
            ""
        } else {
            "transparent_hugepage=never"
        };
        let console = kernel.run(machine, words, "")?;
        known(&console)?;
        let printed = printed(&console)?;
        let printed = printed.into_iter().map(str::to_owned);
        anyhow::Ok(printed.collect::<Vec<_>>())
    };
    let granules = granules();
    // The oldest and the newest, if there are several: one with few CPUs, the other with many.
    let others = peers.linuxes.get(1..).and_then(<[_]>::last);
    let ends = [peers.linuxes.first(), others];
    let linuxes = ends.into_iter().flatten().zip(CPUS);
    let ours = granules.iter();
    let ours = ours.flat_map(|kernel| CPUS.map(|cpus| (kernel, cpus)));
    let cases: Vec<_> = linuxes.chain(ours).collect();
    let printed = graph::map(cases.len(), |at| run(cases[at].0, cases[at].1));
    let mut there: Option<Vec<String>> = None;
    for ((kernel, cpus), here) in cases.iter().zip(printed) {
        let sizes = if kernel.is_ours {
            format!(", {}", kernel.size())
        } else {
            String::new()
        };
        let name = format!("shell, {}{sizes}, CPUs: {cpus}", kernel.name);
        let result = here.and_then(|here| {
            if !kernel.is_ours && there.is_none() {
                there = Some(here.clone());
            }
            let there = there.as_ref();
            same(&here, there.context("there is no Linux to compare with")?)
        });
        peers.add(name, result);
    }
    Ok(there.unwrap_or_default())
}

/// Makes the initramfs for every kernel.
pub(crate) fn archive(busybox: &[u8]) -> Initramfs {
    let large: Vec<u8> = (0..LARGE).map(|n| (n.wrapping_mul(n) >> 4) as u8).collect();
    machine::archive(busybox, "/bin /etc", APPLETS)
        .file("/etc/text", b"one two three\nfour five\n")
        .file("/etc/empty", b"")
        .file("/etc/large", &large)
        .link("/etc/link", "text")
        .program("/init", SCRIPT)
}

/// Checks that a program can run unchanged with every page size: its segments share no page.
fn aligned(program: &[u8]) -> Result<String> {
    let file = object::File::parse(program).context("it is not an ELF file")?;
    let mut count = 0;
    for segment in file.segments() {
        let alignment = segment.align();
        ensure!(
            alignment.is_multiple_of(LARGEST_PAGE) && alignment > 0,
            "a segment at {:#x} is aligned to {alignment:#x} only",
            segment.address()
        );
        count += 1;
    }
    ensure!(count > 0, "it has nothing to load");
    Ok(format!("{count} segments"))
}

/// Extracts the script's output, without our kernel's messages in between.
pub(crate) fn printed(console: &str) -> Result<Vec<&str>> {
    let mut lines = console.lines().map(|line| line.trim_end_matches('\r'));
    ensure!(lines.any(|line| line == BEGIN), "the script did not begin");
    let mut printed = Vec::new();
    for line in lines {
        if line == END {
            return Ok(printed);
        }
        if !line.starts_with("granule: ") {
            printed.push(line);
        }
    }
    let last = printed.last().copied().unwrap_or(BEGIN);
    bail!("the script did not end: its last line is {last:?}");
}

/// Checks that both outputs are equal.
pub(crate) fn same<T: AsRef<str>>(here: &[impl AsRef<str>], there: &[T]) -> Result<String> {
    for (at, line) in there.iter().enumerate() {
        let (found, line) = (here.get(at).map(AsRef::as_ref), line.as_ref());
        ensure!(
            found == Some(line),
            "line {} is {}, and on Linux {line:?}",
            at + 1,
            found.map_or("missing".to_owned(), |found| format!("{found:?}"))
        );
    }
    ensure!(
        here.len() == there.len(),
        "there are {} lines, and on Linux {}",
        here.len(),
        there.len()
    );
    // A script without output would agree as well.
    ensure!(
        there.len() > 100,
        "the script printed {} lines",
        there.len()
    );
    Ok(format!("{} lines", there.len()))
}

/// Checks that programs do not need any of the missing calls.
fn known(console: &str) -> Result<()> {
    let missed = console.lines().find(|line| {
        line.contains(UNKNOWN) && !DONE_WITHOUT.iter().any(|call| line.contains(call))
    });
    match missed {
        Some(line) => bail!("{}", line.trim()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_script_is_between_its_edges() {
        let console = "boot\r\nscript begins\r\na\r\ngranule: process 2 has a word\r\n\r\nb\r\n\
                       script ends\r\n[ 1.0] Kernel panic\r\n";
        assert_eq!(printed(console).unwrap(), ["a", "", "b"]);
        let error = |console: &str| printed(console).unwrap_err().to_string();
        assert_eq!(error("boot\n"), "the script did not begin");
        assert!(error("script begins\na\n").ends_with("its last line is \"a\""));
        let script = str::from_utf8(SCRIPT).unwrap();
        for line in [BEGIN, END] {
            assert_eq!(script.matches(&format!("echo \"{line}\"")).count(), 1);
        }
    }

    #[test]
    fn the_first_line_that_differs_is_reported() {
        let there: Vec<String> = (0..120).map(|n| format!("line {n}")).collect();
        let mut here = there.clone();
        assert_eq!(same(&here, &there).unwrap(), "120 lines");
        here[7] = "other".into();
        // Two empty outputs do not count as equal.
        for (here, there, expected) in [
            (
                &here[..],
                &there[..],
                "line 8 is \"other\", and on Linux \"line 7\"",
            ),
            (&there[..119], &there, "line 120 is missing"),
            (&there, &there[..119], "there are 120 lines"),
            (&[], &[], "the script printed 0 lines"),
        ] {
            let error = same(here, there).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_missing_call_is_reported() {
        let line = |call| format!("granule: process 1 calls 9 ({call}), {UNKNOWN}; reported once");
        known("all well\n").unwrap();
        known(&line("RSEQ")).unwrap();
        let error = known(&line("MREMAP")).unwrap_err().to_string();
        assert!(error.contains("MREMAP"), "{error}");
    }

    #[test]
    fn alignment_is_read_from_the_program_headers() {
        let judged = |alignment: u64, length: usize| {
            let mut program = xtask::test_elf::TestElf::new()
                .segment(0x40_0000, b"x", 1)
                .build();
            // The last field of the first program header, which follows the file header.
            program[64 + 48..64 + 56].copy_from_slice(&alignment.to_le_bytes());
            program.truncate(length);
            aligned(&program).map_err(|error| error.to_string())
        };
        assert_eq!(judged(0x10000, 9999), Ok("1 segments".to_owned()));
        assert!(judged(0, 9999).is_err());
        assert!(judged(0x1000, 9999).unwrap_err().contains("0x1000 only"));
        for length in [0, 10, 70] {
            assert!(judged(0x10000, length).is_err());
        }
    }
}
