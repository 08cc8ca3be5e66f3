//! `cargo xtask setup`: finds the tools for building and testing, reports missing ones, and installs them
//! with the system's package manager or rustup.
//!
//! A pure function over the tools found decides the plan, so each package manager's plan is tested without
//! that manager. Linker and make are needed before xtask can run: `tools/xtask/bootstrap.sh` installs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

use granule_cli::firmware::{self, FirmwareFile};
use xtask::workspace::{KERNEL_TARGET, MUSL_TARGET, capture, program, run, show};

/// The oldest QEMU that the tests support (Debian 12's).
const QEMU_AT_LEAST: (u32, u32) = (7, 2);
const QEMU: &str = "qemu-system-aarch64";

/// The dated nightly for Miri and fuzzing; its rustc is built from the commits of the day before.
const NIGHTLY: &str = "nightly-2026-05-20";
const NIGHTLY_COMMIT_DATE: &str = "2026-05-19";

/// The targets beside the host.
const TARGETS: [&str; 2] = [KERNEL_TARGET, MUSL_TARGET];

/// The state of a machine, as far as setup needs it.
#[derive(Clone, Debug, Default)]
struct HostState {
    /// Programs found in PATH.
    programs: Vec<&'static str>,
    root: bool,
    targets: Vec<&'static str>,
    /// Firmware that is in none of its places.
    missing_firmware: Vec<FirmwareFile>,
}

/// A package manager and its way to install QEMU for arm64 and a C++ compiler.
struct Manager {
    program: &'static str,
    /// The arguments that refresh its lists, if it needs that.
    refresh: &'static str,
    install: &'static str,
    qemu: &'static str,
    cxx: &'static str,
}

/// Homebrew refuses to run as root; the others need it.
const AS_USER: &str = "brew";

#[rustfmt::skip]
const MANAGERS: &[Manager] = &[
    Manager { program: "apt-get", refresh: "update", install: "install -y --no-install-recommends",
        qemu: "qemu-system-arm", cxx: "g++" },
    Manager { program: "dnf", refresh: "", install: "install -y", qemu: "qemu-system-aarch64-core", cxx: "gcc-c++" },
    Manager { program: "pacman", refresh: "", install: "-Sy --noconfirm --needed", qemu: "qemu-system-aarch64", cxx: "gcc" },
    Manager { program: "zypper", refresh: "", install: "--non-interactive install", qemu: "qemu-arm", cxx: "gcc-c++" },
    Manager { program: AS_USER, refresh: "", install: "install", qemu: "qemu", cxx: "gcc" },
];

impl Manager {
    /// The commands that install these packages, for a user who is root or has sudo; else the command that
    /// root would run.
    fn commands(&self, machine: &HostState, packages: &[&str]) -> Result<Vec<Vec<String>>, String> {
        let install = format!("{} {}", self.install, packages.join(" "));
        let sudo = match self.program != AS_USER && !machine.root {
            true if !machine.programs.contains(&"sudo") => {
                return Err(format!("{} {install}", self.program));
            }
            true => "sudo ",
            false => "",
        };
        let commands = [self.refresh, &install].into_iter();
        let commands = commands.filter(|arguments| !arguments.is_empty());
        Ok(commands
            .map(|arguments| words(&format!("{sudo}{} {arguments}", self.program)))
            .collect())
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

/// The commands that prepare a machine, in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Commands {
    /// Nothing works without these.
    needed: Vec<Vec<String>>,
    /// Boots without firmware work without these.
    for_firmware: Vec<Vec<String>>,
}

fn manager(machine: &HostState) -> Option<&'static Manager> {
    let has = |manager: &&Manager| machine.programs.contains(&manager.program);
    MANAGERS.iter().find(has)
}

/// The commands that install the package of a program, or the reason that there are none.
fn package(
    machine: &HostState,
    program: &str,
    of: fn(&Manager) -> &'static str,
    by_hand: &str,
) -> Result<Vec<Vec<String>>> {
    let manager = manager(machine).with_context(|| {
        let known: Vec<_> = MANAGERS.iter().map(|manager| manager.program).collect();
        let known = known.join(", ");
        format!(
            "{program} is not in PATH and no known package manager was found (looked for {known}); install {by_hand} by \
             hand"
        )
    })?;
    manager.commands(machine, &[of(manager)]).map_err(|as_root| {
        anyhow!(
            "{program} is not in PATH; installing it with {} needs root, and sudo was not found: run `{as_root}` as root",
            manager.program
        )
    })
}

fn plan(machine: &HostState) -> Result<Commands> {
    let has = |name: &str| machine.programs.contains(&name);
    let mut commands = Commands::default();
    for target in TARGETS {
        if machine.targets.contains(&target) {
            continue;
        }
        ensure!(
            has("rustup"),
            "the Rust target {target} is not installed and rustup is not in PATH; install \
             rustup (https://rustup.rs) or that target's libraries"
        );
        commands
            .needed
            .push(words(&format!("rustup target add {target}")));
    }
    if !has(QEMU) {
        let (major, minor) = QEMU_AT_LEAST;
        let by_hand = format!("QEMU {major}.{minor} or later");
        let install = package(machine, QEMU, |manager| manager.qemu, &by_hand)?;
        commands.needed.extend(install);
    }
    if let Some(manager) = manager(machine) {
        let missing = machine.missing_firmware.iter();
        let packages: Vec<_> = missing
            .filter_map(|firmware| firmware.package(manager.program))
            .collect();
        if !packages.is_empty() {
            // A boot that needs the firmware names its package.
            commands.for_firmware = manager.commands(machine, &packages).unwrap_or_default();
        }
    }
    Ok(commands)
}

/// Installs missing tools, and prints them first.
pub(crate) fn setup() -> Result<()> {
    let commands = plan(&look()?)?;
    if commands != Commands::default() {
        eprintln!("granule: this machine lacks tools; about to run:");
        for words in commands.needed.iter().chain(&commands.for_firmware) {
            eprintln!("    {}", words.join(" "));
        }
    }
    for words in &commands.needed {
        install(words)?;
    }
    for words in &commands.for_firmware {
        if let Err(error) = install(words) {
            eprintln!("granule: {error:#}; boots through firmware will not work");
            break;
        }
    }
    check_qemu()
}

/// Installs a C++ compiler where there is none: libFuzzer is built with it, and nothing else.
pub(crate) fn need_cxx() -> Result<()> {
    if find_program("c++").is_some() {
        return Ok(());
    }
    for words in package(&look()?, "c++", |manager| manager.cxx, "g++ or clang")? {
        eprintln!(
            "granule: fuzzing needs a C++ compiler; about to run: {}",
            words.join(" ")
        );
        install(&words)?;
    }
    Ok(())
}

fn install(words: &[String]) -> Result<()> {
    let Some((name, arguments)) = words.split_first() else {
        return Ok(());
    };
    let mut command = program(name, &[]);
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    run(command)
}

fn look() -> Result<HostState> {
    let candidates = MANAGERS.iter().map(|manager| manager.program);
    let candidates = candidates.chain(["sudo", "rustup", QEMU]);
    let programs: Vec<_> = candidates
        .filter(|name| find_program(name).is_some())
        .collect();
    let mut targets = Vec::new();
    for target in TARGETS {
        targets.extend(is_installed(target)?.then_some(target));
    }
    let user = Command::new("id").arg("-u").output();
    let root = user.is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    Ok(HostState {
        programs,
        root,
        targets,
        missing_firmware: firmware::ALL
            .into_iter()
            .filter(|firmware| firmware.find().is_err())
            .collect(),
    })
}

/// Whether a target's libraries are in the toolchain's folder. The folder comes from rustc, so this
/// works without rustup too.
fn is_installed(target: &str) -> Result<bool> {
    let rustc = ["--print", "target-libdir", "--target", target];
    Ok(Path::new(capture(program("rustc", &rustc))?.trim()).is_dir())
}

pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn check_qemu() -> Result<()> {
    let text = capture(program(QEMU, &["--version"]))?;
    let first = text.lines().next().unwrap_or_default();
    let (major, minor) = qemu_version(&text)
        .with_context(|| format!("`{QEMU} --version` printed no version: {first}"))?;
    let least = QEMU_AT_LEAST;
    ensure!(
        (major, minor) >= least,
        "{QEMU} is version {major}.{minor}, Granule needs {}.{} or later",
        least.0,
        least.1
    );
    Ok(())
}

fn qemu_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split_once("version ")?.1;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The nightly toolchain for Miri and fuzzing, with its components: `GRANULE_NIGHTLY`, else the dated one
/// under its own name or under the name `nightly`, else a new one, installed by rustup.
pub(crate) fn nightly() -> Result<String> {
    let installed = capture(program("rustup", &["toolchain", "list"]))?;
    let wanted = std::env::var("GRANULE_NIGHTLY").ok();
    let name = choose_nightly(wanted.as_deref(), &installed, || {
        let mut rustc = program("rustc", &["+nightly", "--version"]);
        rustc.env_remove("RUSTUP_TOOLCHAIN");
        capture(rustc).unwrap_or_default()
    });
    let mut rustup = program("rustup", &[]);
    if has_toolchain(&installed, &name) {
        rustup.args(["component", "add", "--toolchain", &name, "miri", "rust-src"]);
        let components = ["component", "list", "--installed", "--toolchain", &name];
        let components = capture(program("rustup", &components))?;
        let has = |part| components.lines().any(|line| line.starts_with(part));
        if has("miri") && has("rust-src") {
            return Ok(name);
        }
    } else {
        rustup.args(["toolchain", "install", &name, "--profile", "minimal"]);
        rustup.args(["--component", "miri,rust-src"]);
    }
    eprintln!(
        "granule: Miri and fuzzing need a nightly toolchain; about to run: {}",
        show(&rustup)
    );
    run(rustup)?;
    Ok(name)
}

/// A command of a toolchain, with the toolchain's own compiler: cargo reports its own to its children.
pub(crate) fn on(toolchain: &str, words: &[&str]) -> Command {
    let mut command = program("rustup", &["run", toolchain]);
    command
        .args(words)
        .stdin(Stdio::null())
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

fn choose_nightly(wanted: Option<&str>, installed: &str, plain: impl FnOnce() -> String) -> String {
    if let Some(name) = wanted {
        return name.to_owned();
    }
    let undated = !has_toolchain(installed, NIGHTLY) && has_toolchain(installed, "nightly");
    if undated && plain().contains(NIGHTLY_COMMIT_DATE) {
        return "nightly".to_owned();
    }
    NIGHTLY.to_owned()
}

/// `rustup toolchain list` names toolchains with their host: `nightly-x86_64-…`.
fn has_toolchain(installed: &str, name: &str) -> bool {
    installed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .any(|toolchain| {
            toolchain == name
                || toolchain
                    .strip_prefix(name)
                    .and_then(|rest| rest.strip_prefix('-'))
                    .is_some_and(|host| !host.starts_with(|c: char| c.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(programs: &[&'static str], root: bool) -> HostState {
        HostState {
            programs: programs.to_vec(),
            root,
            targets: TARGETS.to_vec(),
            missing_firmware: Vec::new(),
        }
    }

    /// The commands for a machine, or the error.
    fn planned(machine: &HostState) -> String {
        let Commands {
            needed,
            for_firmware,
        } = match plan(machine) {
            Ok(commands) => commands,
            Err(error) => return format!("error: {error}"),
        };
        let all = needed.iter().chain(&for_firmware);
        let lines: Vec<_> = all.map(|words| words.join(" ")).collect();
        lines.join("; ")
    }

    #[test]
    fn each_machine_has_its_commands() {
        const ROOT: bool = true;
        let apt = "apt-get install -y --no-install-recommends";
        let qemu = format!("apt-get update; {apt} qemu-system-arm");
        let as_user = format!("sudo apt-get update; sudo {apt} qemu-system-arm");
        let firmware = format!("apt-get update; {apt} qemu-efi-aarch64 u-boot-qemu");
        let (all, u_boot) = (&firmware::ALL[..], &[firmware::U_BOOT][..]);
        #[rustfmt::skip]
        let cases: [(&[&'static str], bool, &[FirmwareFile], &str); 15] = [
            (&[QEMU], !ROOT, &[], ""),
            (&["apt-get"], ROOT, &[], &qemu),
            (&["apt-get", "sudo"], !ROOT, &[], &as_user),
            (&["dnf", "sudo"], !ROOT, &[], "sudo dnf install -y qemu-system-aarch64-core"),
            (&["pacman", "sudo"], !ROOT, &[], "sudo pacman -Sy --noconfirm --needed qemu-system-aarch64"),
            (&["zypper", "sudo"], !ROOT, &[], "sudo zypper --non-interactive install qemu-arm"),
            (&["brew", "sudo"], !ROOT, &[], "brew install qemu"),
            // Firmware, where a package has it. All but boots through firmware works without.
            (&[QEMU, "apt-get"], ROOT, all, &firmware),
            (&[QEMU, "zypper", "sudo"], !ROOT, all, "sudo zypper --non-interactive install qemu-uefi-aarch64"),
            (&["dnf"], ROOT, u_boot,
                "dnf install -y qemu-system-aarch64-core; dnf install -y uboot-images-armv8"),
            (&[QEMU], ROOT, all, ""),
            (&[QEMU, "apt-get"], !ROOT, all, ""),
            (&[QEMU, "brew"], !ROOT, all, ""),
            // A tool that cannot be installed is named.
            (&[], ROOT, &[], "error: qemu-system-aarch64 is not in PATH and no known package manager"),
            (&["dnf"], !ROOT, &[],
                "error: qemu-system-aarch64 is not in PATH; installing it with dnf needs root, and sudo was not found"),
        ];
        for (programs, root, missing, expected) in cases {
            let machine = HostState {
                missing_firmware: missing.to_vec(),
                ..machine(programs, root)
            };
            let planned = planned(&machine);
            let is_right = match expected.strip_prefix("error: ") {
                Some(_) => planned.starts_with(expected),
                None => planned == expected,
            };
            assert!(is_right, "{machine:?}: {planned}, expected {expected}");
        }
        let cxx = package(&machine(&["dnf"], ROOT), "c++", |manager| manager.cxx, "");
        assert_eq!(cxx.unwrap().concat(), words("dnf install -y gcc-c++"));
        let bare = |programs: &[&'static str]| HostState {
            targets: Vec::new(),
            ..machine(programs, ROOT)
        };
        assert!(planned(&bare(&[QEMU])).contains("rustup is not in PATH"));
        let targets = TARGETS.map(|target| format!("rustup target add {target}"));
        assert_eq!(planned(&bare(&[QEMU, "rustup"])), targets.join("; "));
    }

    #[test]
    fn qemu_versions_are_read() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright";
        assert_eq!(qemu_version(debian), Some((7, 2)));
        assert_eq!(qemu_version("QEMU emulator version 10.1.0"), Some((10, 1)));
        assert_eq!(qemu_version("QEMU emulator version 9.0-rc1"), Some((9, 0)));
        assert_eq!(qemu_version("nothing"), None);
    }

    #[test]
    fn the_nightly_is_the_dated_one() {
        let stock = "stable-x86_64-unknown-linux-gnu (default)\nnightly-x86_64-unknown-linux-gnu\n";
        let same = || format!("rustc 1.97.0-nightly (e50aa6fba {NIGHTLY_COMMIT_DATE})");
        assert_eq!(choose_nightly(None, stock, same), "nightly");
        assert_eq!(
            choose_nightly(None, stock, || "rustc (x 2020-01-01)".into()),
            NIGHTLY
        );
        assert_eq!(
            choose_nightly(Some("nightly-2026-01-01"), stock, same),
            "nightly-2026-01-01"
        );
        let dated = format!("{stock}{NIGHTLY}-x86_64-unknown-linux-gnu\n");
        assert_eq!(choose_nightly(None, &dated, same), NIGHTLY);
        assert_eq!(choose_nightly(None, "", same), NIGHTLY);
        assert!(!has_toolchain(&dated.replace(stock, ""), "nightly"));
    }
}
