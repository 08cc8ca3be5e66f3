//! One boot in which programs of every page size run at once, Debian's shell among them. Each must
//! print the same as alone, the shell the same as on Debian's kernel, and a recording of the boot
//! must not violate a rule.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use granule_cli::check::{self, CheckOptions};
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, PageSize, Request, boot};
use xtask::workspace::image_path;

use crate::machine::{ending, program, request};
use crate::peers::Peers;
use crate::shell;

const SCRIPT: &[u8] = include_bytes!("together.sh");
/// The script's path in the initramfs, whose `/init` is the shell's script.
const PATH: &str = "/together/all";

/// Words of our kernel's command line that start the script.
pub(crate) const WORDS: &str = "rdinit=/together/all";
/// The last line of a boot in which all programs ended.
pub(crate) const END: &str = "together: ends";

/// The memory, without the space for a recording.
const MEMORY: u64 = 2 << 30;
const TRACE: u64 = 1 << 30;

pub(crate) fn archive(busybox: &[u8]) -> Result<Initramfs> {
    Ok(shell::archive(busybox)
        .directory("/together")
        .program("/together/tests", &program("granule-user")?)
        .program("/together/bench", &program("granule-user-bench")?)
        .program("/together/pagesize", &program("granule-pagesize")?)
        .program(PATH, SCRIPT))
}

/// The lines of each program.
type Printed = BTreeMap<String, Vec<String>>;

/// Boots the kernel of each page size, one of them with a recording. `linux` is the shell's output
/// on Debian's kernel.
pub(crate) fn all(peers: &Peers<'_>, linux: &[String]) -> Result<()> {
    let archive = archive(&peers.busybox)?;
    let request = request(MEMORY, 4)
        .image(image_path())
        .initrd(peers.files.initramfs("together.cpio", archive)?);
    let alone = match run(&request, PageSize::K4, "alone") {
        Ok(alone) => alone,
        Err(error) => {
            peers.add("together: alone", Err(error));
            return Ok(());
        }
    };
    for page_size in PageSize::ALL {
        let traced = page_size == PageSize::K16;
        let with = if traced { ", recorded" } else { "" };
        let name = format!("together, {}{with}", size(page_size.bytes()));
        let result = if traced {
            recorded(peers, &request, page_size, &alone, linux)
        } else {
            run(&request, page_size, "").and_then(|here| compare(&here, &alone, linux))
        };
        peers.add(name, result);
    }
    Ok(())
}

/// Boots, and reads the output of the programs.
fn run(request: &Request, page_size: PageSize, argument: &str) -> Result<Printed> {
    let booted = boot::run(
        &request
            .clone()
            .page_size(page_size)
            .append(format!("{WORDS} -- {argument}")),
    );
    // The kernel has counted its frames.
    ensure!(booted.is_ok(), "{}", ending(&booted));
    printed(&booted.console_text())
}

fn recorded(
    peers: &Peers<'_>,
    request: &Request,
    page_size: PageSize,
    alone: &Printed,
    linux: &[String],
) -> Result<String> {
    let trace = peers.files.folder("together")?.join("boot.trace");
    let recorded = Request {
        trace: Some(trace.clone()),
        trace_buffer: Some(TRACE),
        memory: MEMORY + TRACE,
        ..request.clone()
    };
    let compared = compare(&run(&recorded, page_size, "")?, alone, linux)?;
    let trace = std::fs::File::open(&trace).context("there is no trace")?;
    let options = CheckOptions::default();
    let checked = check::check(std::io::BufReader::new(trace), &options, &mut |_| ())?;
    ensure!(checked.header.complete, "the recording is not complete");
    ensure!(checked.is_clean(), "{}", checked.text());
    Ok(format!("{compared}, {} events", checked.tally.events))
}

/// Splits a console's output by program.
fn printed(console: &str) -> Result<Printed> {
    let mut all = Printed::new();
    for line in console.lines().map(|line| line.trim_end_matches('\r')) {
        if let Some((name, line)) = line.split_once(": ")
            && !name.starts_with("granule")
            && name != "map_mem"
        {
            all.entry(name.to_owned())
                .or_default()
                .push(line.to_owned());
        }
    }
    ensure!(all.remove("together").is_some(), "the programs did not end");
    Ok(all)
}

/// Returns the part of a line that does not depend on time or the page size.
fn lasting(line: &str) -> &str {
    match line.strip_prefix("bench ") {
        Some(bench) => bench.split(' ').next().unwrap_or(bench),
        None => line,
    }
}

/// Checks that programs of each page size printed the same as alone, and the shell the same as on
/// Linux.
fn compare(together: &Printed, alone: &Printed, linux: &[String]) -> Result<String> {
    for name in PageSize::ALL.map(PageSize::word) {
        for (program, alone) in alone {
            let name = format!("{name} {program}");
            let here = together
                .get(&name)
                .with_context(|| format!("{name} printed nothing"))?;
            let here: Vec<&str> = here.iter().map(|line| lasting(line)).collect();
            let ended = here.last() == Some(&"status 0");
            ensure!(
                ended,
                "{name} ended with {:?}",
                here.get(here.len().saturating_sub(2)..)
            );
            if program == "shell" {
                shell::same(&shell::printed(&here.join("\n"))?, linux)
                    .with_context(|| name.clone())?;
            }
            let alone: Vec<&str> = alone.iter().map(|line| lasting(line)).collect();
            let differs = here.iter().zip(&alone).find(|(here, alone)| here != alone);
            ensure!(
                here == alone,
                "{name} printed {} lines, alone {}, the first that differs is {differs:?}",
                here.len(),
                alone.len()
            );
        }
    }
    Ok(format!("{} programs", together.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "tests: mapped\ntests: status 0\nbench: bench op=touch best=7\nbench: status 0\n\
                         together: ends\n";

    fn together(change: impl Fn(String) -> String) -> String {
        let mut all = String::new();
        for line in ALONE.lines().filter(|line| *line != END) {
            for size in ["4k", "16k", "64k"] {
                all += &format!("granule: something\r\n{size} {line}\r\n");
            }
        }
        change(all) + END
    }

    fn judge(console: &str) -> Result<String> {
        compare(&printed(console)?, &printed(ALONE).unwrap(), &[])
    }

    #[test]
    fn a_difference_from_alone_is_reported() {
        assert_eq!(judge(&together(|all| all)).unwrap(), "6 programs");
        // A time may differ.
        judge(&together(|all| all.replacen("best=7", "best=8", 1))).unwrap();
        for (from, to, part) in [
            (
                "16k tests: mapped",
                "16k tests: lost",
                "16k tests printed 2",
            ),
            (
                "64k tests: status 0",
                "64k tests: status 9",
                "64k tests ended with",
            ),
            ("4k bench: ", "4k other: ", "4k bench printed nothing"),
            ("op=touch", "op=fork\r\n4k bench: x", "4k bench"),
        ] {
            let console = together(|all| all.replace(from, to));
            let error = judge(&console).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(printed("4k tests: mapped\n").is_err());
    }
}
