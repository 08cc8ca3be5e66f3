//! `make test-peers`: Debian's arm64 kernels and shell, fetched by apt, beside this kernel.
//!
//! The benchmark of user memory runs on each kernel, and our kernel must need fewer instructions. Debian's
//! unmodified busybox runs a script on our kernel with every page size and must print the same as on Linux.
//! Our kernel leaves for each of Debian's, which must reach its first process. Debian's page tables, as
//! `granule dump` reads them, must be those that QEMU and Debian's kernels say, and files of Debian's makedumpfile must
//! have what the core has that it was given. No file of Debian's is part of the repository.
//!
//! This file has the order of parts and the report; the parts are in the other files.

mod apt;
mod check;
mod deadline;
mod deb;
mod figures;
mod index;
mod inspect;
mod kexec;
mod machine;
mod report;
mod shell;
mod store;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, PageSize};
use serde::Serialize;
use xtask::pool;
use xtask::workspace::{cargo, image_path, run as run_command, target_dir};

use crate::check::Check;
use crate::figures::Figures;
use crate::inspect::makedumpfile;
use crate::machine::{Files, Guest, Kernel, LIMIT};
use crate::store::{Package, Store, Wanted};

/// Debian's arm64 kernels and shell beside this kernel
#[derive(Debug, Parser)]
#[command(name = "xtask-peers")]
struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Look for newer packages instead of using those that were fetched before
    #[arg(long)]
    fresh: bool,
    /// Run only this part; may be given several times
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Fetch packages only
    Packages,
    /// The benchmark of user memory
    Bench,
    /// Debian's shell
    Shell,
    /// Debian's kernels, left for
    Kexec,
    /// The page tables of Debian's kernels, read from outside
    Inspect,
    /// Files of Debian's makedumpfile; a part of inspect
    Makedumpfile,
    /// The page of `granule report` with Debian's kernels beside ours; only if it is asked for
    Report,
}

/// A Debian kernel: its package, and its page size.
struct Linux {
    from: Wanted,
    page_size: PageSize,
}

const fn linux(suite: &'static str, package: &'static str, page_size: PageSize) -> Linux {
    Linux {
        from: Wanted {
            suite,
            package,
            kernel: true,
        },
        page_size,
    }
}

/// From the oldest maintained kernel to the newest. Debian 12 has no 16K kernel, and no suite has a 64K
/// one.
const LINUXES: [Linux; 5] = [
    linux("bookworm", "linux-image-arm64", PageSize::K4),
    linux("trixie", "linux-image-arm64", PageSize::K4),
    linux("trixie-backports", "linux-image-arm64", PageSize::K4),
    linux("trixie", "linux-image-arm64-16k", PageSize::K16),
    linux("trixie-backports", "linux-image-arm64-16k", PageSize::K16),
];

const BUSYBOX: Wanted = Wanted {
    suite: "bookworm",
    package: "busybox-static",
    kernel: false,
};

const PAGE_SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// The benchmark's arguments: memory and rounds.
const BENCH_ARGUMENTS: &str = "1G 2";
const BENCH_MEMORY: u64 = 4 << 30;
const SHELL_MEMORY: u64 = 512 << 20;
const SHELL_CPUS: [u32; 2] = [1, 4];

/// The schema of the `--json` output.
const SCHEMA: u32 = 1;
/// The finding if there is nothing to compare with, which is a failure.
const NOT_RUN: &str = "not run: no package source";

/// The whole report; `--json` prints it.
#[derive(Debug, Serialize)]
struct Told {
    schema: u32,
    packages: Vec<Package>,
    rows: Vec<figures::Row>,
    checks: Vec<Check>,
    passed: usize,
    failed: usize,
}

/// The packages' contents, ready to boot.
struct Peers {
    linuxes: Vec<(Kernel, PageSize)>,
    busybox: Vec<u8>,
}

fn main() -> ExitCode {
    match test(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the programs for the boots: the image, and the user programs.
fn build() -> Result<()> {
    run_command(cargo(&["xtask", "image"]))?;
    run_command(cargo(&["xtask", "user"]))
}

/// Runs the chosen parts. The last line is `N passed, N failed`.
fn test(options: &Options) -> Result<ExitCode> {
    let say = |line: &str| {
        if options.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    };
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let files = Files::new()?;
    let folder = target_dir().join("peers");
    let store = Store::new(folder.clone(), apt::ARM64);
    let mut wanted: Vec<Wanted> = LINUXES.iter().map(|linux| linux.from).collect();
    wanted.push(BUSYBOX);
    let packages = match store.packages(&wanted, options.fresh) {
        Ok(packages) => packages,
        Err(why) => {
            // Nothing was compared, and the result must not read like a comparison.
            say(&format!("{why:#}"));
            if options.only == [Part::Report] {
                say("without Debian's kernels");
                run_command(cargo(&["xtask", "report"]))?;
                return Ok(ExitCode::SUCCESS);
            }
            say(NOT_RUN);
            if options.json {
                let told = serde_json::json!({ "schema": SCHEMA, "not_run": format!("{why:#}") });
                println!("{}", serde_json::to_string_pretty(&told)?);
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut checks = Vec::new();
    let mut add = |check: Check| {
        say(&check.line());
        checks.push(check);
    };
    let peers = unpack(&store, &packages, &files, &mut add);
    if options.only.contains(&Part::Report) {
        let made = report::make(&peers.linuxes, &peers.busybox, &files);
        add(Check::new("report".to_owned(), made));
    }
    let mut all = Vec::new();
    if wants(Part::Inspect) {
        inspect::all(&peers.linuxes, &peers.busybox, &files, &mut add)?;
    }
    if (wants(Part::Inspect) || wants(Part::Makedumpfile))
        && let (Some((Kernel::Linux { image, .. }, _)), Some(package)) =
            (peers.linuxes.first(), packages.first())
    {
        let subject = makedumpfile::Subject {
            image,
            package: &store.bytes(package)?,
            busybox: &peers.busybox,
            packages: &folder,
            fresh: options.fresh,
        };
        makedumpfile::all(&subject).into_iter().for_each(&mut add);
    }
    if wants(Part::Bench) || wants(Part::Shell) || wants(Part::Kexec) {
        build()?;
        let image = image_path();
        let granules = PAGE_SIZES.map(|page_size| {
            let image = image.clone();
            (Kernel::Granule { image, page_size }, page_size)
        });
        if wants(Part::Shell) {
            shells(&peers, &granules, &files, &mut add)?;
        }
        if wants(Part::Kexec) {
            left_for(&peers, &image, &files, &mut add)?;
        }
        if wants(Part::Bench) {
            all = bench(&peers, &granules, &files, &mut add)?;
            figures::checks(&all).into_iter().for_each(&mut add);
            say(&format!(
                "instructions a page, `granule-user-bench {BENCH_ARGUMENTS}`, the least of the rounds\n{}",
                figures::table(&all)
            ));
        }
    }
    let failed = checks.iter().filter(|check| !check.passed()).count();
    let told = Told {
        schema: SCHEMA,
        packages,
        rows: figures::rows(&all),
        passed: checks.len() - failed,
        failed,
        checks,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&told)?);
    }
    say(&format!("{} passed, {failed} failed", told.passed));
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Unpacks kernels and shell from the packages. Each package is a check of its hash and its contents.
fn unpack(
    store: &Store,
    packages: &[Package],
    files: &Files,
    add: &mut impl FnMut(Check),
) -> Peers {
    let take = |package: &Package, wanted: fn(&str) -> bool| {
        let bytes = store.bytes(package)?;
        deb::file(&bytes[..], wanted)
    };
    let tell = |package: &Package, done: Result<()>| {
        let Package {
            package,
            version,
            suite,
            sha256,
            ..
        } = package;
        let name = format!("package {package} {version} ({suite})");
        Check::new(name, done.map(|()| format!("SHA-256 {sha256}")))
    };
    let mut peers = Peers {
        linuxes: Vec::new(),
        busybox: Vec::new(),
    };
    for (linux, package) in LINUXES.iter().zip(packages) {
        let page_size = size(linux.page_size.bytes());
        let version = package.version.split(['-', '~']).next().unwrap_or_default();
        let image = take(package, is_kernel)
            .and_then(|image| files.put(&format!("linux-{version}-{page_size}"), &image));
        let done = image.map(|image| {
            let name = format!("Linux {version}");
            peers
                .linuxes
                .push((Kernel::Linux { image, name }, linux.page_size));
        });
        add(tell(package, done));
    }
    if let Some(package) = packages.get(LINUXES.len()) {
        let done = take(package, is_busybox).map(|busybox| peers.busybox = busybox);
        add(tell(package, done));
    }
    peers
}

/// Paths of the kernel in packages: until 6.x, and since.
fn is_kernel(path: &str) -> bool {
    let modules = || {
        path.strip_prefix("usr/lib/modules/")?
            .strip_suffix("/vmlinuz")
    };
    path.starts_with("boot/vmlinuz-") || modules().is_some()
}

fn is_busybox(path: &str) -> bool {
    matches!(path, "bin/busybox" | "usr/bin/busybox")
}

/// The benchmark on every kernel, several at a time.
fn bench(
    peers: &Peers,
    granules: &[(Kernel, PageSize)],
    files: &Files,
    add: &mut impl FnMut(Check),
) -> Result<Vec<Figures>> {
    let path = target_dir().join("granule").join("granule-user-bench");
    let program =
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let initramfs = files.initramfs("bench.cpio", Initramfs::new().program("/init", &program))?;
    let kernels: Vec<_> = granules.iter().chain(&peers.linuxes).collect();
    let run = |(kernel, page_size): &(Kernel, PageSize)| {
        // Linux's first process must not end, so it gets an argument to power the machine off.
        let off = if kernel.is_ours() { "" } else { " off" };
        let console = kernel.run(&Guest {
            memory: BENCH_MEMORY,
            cpus: 1,
            icount: true,
            initramfs: &initramfs,
            arguments: &format!("{BENCH_ARGUMENTS}{off}"),
            limit: LIMIT,
        })?;
        let figures = Figures::read(&console, &kernel.name(), kernel.is_ours())?;
        anyhow::ensure!(
            figures.page_size == page_size.bytes(),
            "it has pages of {}",
            size(figures.page_size)
        );
        Ok(figures)
    };
    let mut all: Vec<Option<Figures>> = vec![None; kernels.len()];
    pool::run(
        kernels.len(),
        pool::parallel(),
        || true,
        |at| run(kernels[at]),
        |done| {
            let (kernel, page_size) = kernels[done.job];
            let name = format!("benchmark, {}, {}", kernel.name(), size(page_size.bytes()));
            let result = done.result.map(|figures| {
                let told = format!("{} in {:.0} s", figures.ops.len(), done.time.as_secs_f32());
                all[done.job] = Some(figures);
                told
            });
            add(Check::new(name, result));
            true
        },
    );
    Ok(all.into_iter().flatten().collect())
}

/// Debian's shell on its own kernels, then on ours, with the same output required.
fn shells(
    peers: &Peers,
    granules: &[(Kernel, PageSize)],
    files: &Files,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let aligned = shell::aligned(&peers.busybox);
    add(Check::new(
        "busybox: aligned for 64K pages".to_owned(),
        aligned,
    ));
    let initramfs = files.initramfs("shell.cpio", shell::archive(&peers.busybox))?;
    let run = |kernel: &Kernel, cpus| {
        let console = kernel.run(&Guest {
            memory: SHELL_MEMORY,
            cpus,
            icount: false,
            initramfs: &initramfs,
            arguments: "",
            limit: LIMIT,
        })?;
        shell::known(&console)?;
        let printed = shell::printed(&console)?;
        Ok::<Vec<String>, anyhow::Error>(printed.into_iter().map(str::to_owned).collect())
    };
    // The oldest and the newest: few CPUs with small pages, and many with larger ones.
    let ends = [peers.linuxes.first(), peers.linuxes.last()];
    let linuxes = ends.into_iter().flatten().zip(SHELL_CPUS);
    let ours = granules
        .iter()
        .flat_map(|kernel| SHELL_CPUS.map(|cpus| (kernel, cpus)));
    let cases: Vec<_> = linuxes.chain(ours).collect();
    let mut printed: Vec<Option<Result<Vec<String>>>> = Vec::new();
    printed.resize_with(cases.len(), || None);
    pool::run(
        cases.len(),
        pool::parallel(),
        || true,
        |at| run(&cases[at].0.0, cases[at].1),
        |done| {
            printed[done.job] = Some(done.result);
            true
        },
    );
    let mut there: Option<Vec<String>> = None;
    for (((kernel, _), cpus), printed) in cases.iter().zip(printed) {
        let sizes = match kernel {
            Kernel::Granule { page_size, .. } => format!(", {}", size(page_size.bytes())),
            Kernel::Linux { .. } => String::new(),
        };
        let name = format!("shell, {}{sizes}, CPUs: {cpus}", kernel.name());
        let here = printed.unwrap_or_else(|| Err(anyhow::anyhow!("it was not run")));
        let result = here.and_then(|here| {
            let lines: Vec<&str> = here.iter().map(String::as_str).collect();
            if kernel.is_ours() || there.is_some() {
                let there = there
                    .as_ref()
                    .context("there is no Linux to compare with")?;
                let there: Vec<&str> = there.iter().map(String::as_str).collect();
                return shell::same(&lines, &there);
            }
            let told = shell::same(&lines, &lines);
            there = Some(here);
            told
        });
        add(Check::new(name, result));
    }
    Ok(())
}

/// Our kernel leaves for each of Debian's.
fn left_for(peers: &Peers, ours: &Path, files: &Files, add: &mut impl FnMut(Check)) -> Result<()> {
    let initrd = files.initramfs("next.cpio", kexec::archive(&peers.busybox))?;
    let cases = kexec::cases(peers.linuxes.len());
    let next = |case: &kexec::Case| {
        let (kernel, page_size) = &peers.linuxes[case.kernel];
        (kernel, *page_size)
    };
    pool::run(
        cases.len(),
        pool::parallel(),
        || true,
        |at| {
            let case = &cases[at];
            let (kernel, page_size) = next(case);
            let Kernel::Linux { image, name } = kernel else {
                anyhow::bail!("{} is no kernel of Debian's", kernel.name());
            };
            let booted = kexec::run(ours, image, &initrd, case)?;
            // The kernel's name in this program ends with its version.
            let version = name.rsplit(' ').next().unwrap_or_default();
            kexec::judge(&booted, case, page_size, version)
        },
        |done| {
            let case = &cases[done.job];
            let (kernel, page_size) = next(case);
            let name = format!(
                "kexec from {} to {}, {}, CPUs: {}, EL{}, {}, {}",
                size(case.from.bytes()),
                kernel.name(),
                size(page_size.bytes()),
                case.cpus,
                case.el,
                case.cpu,
                case.way.word()
            );
            add(Check::new(name, done.result));
            true
        },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_in_packages() {
        assert!(is_kernel("boot/vmlinuz-6.1.0-1-arm64"));
        assert!(is_kernel("usr/lib/modules/7.3-arm64/vmlinuz"));
        assert!(!is_kernel("boot/config-6.1.0-1-arm64"));
        assert!(!is_kernel("usr/lib/modules/7.3-arm64/vmlinuz.sig"));
        assert!(is_busybox("bin/busybox") && !is_busybox("usr/share/doc/busybox"));
    }

    #[test]
    fn every_page_size_that_debian_has_is_compared() {
        for page_size in [PageSize::K4, PageSize::K16] {
            assert!(
                LINUXES
                    .iter()
                    .filter(|linux| linux.page_size == page_size)
                    .count()
                    >= 2
            );
        }
    }
}
