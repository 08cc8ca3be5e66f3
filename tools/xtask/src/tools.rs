//! `cargo xtask setup`: finds the tools for building and testing, reports missing ones, and installs them
//! with the system's package manager or rustup.
//!
//! A pure function over the tools found decides the plan, so each package manager's plan is tested without
//! that manager. Linker and make are needed before xtask can run: `tools/xtask/bootstrap.sh` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

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
    targets: Vec<String>,
    /// Firmware that is in none of its places.
    missing_firmware: Vec<FirmwareFile>,
}

/// A package manager and its way to install QEMU for arm64.
struct Manager {
    program: &'static str,
    /// The arguments that refresh its lists, if it needs that.
    refresh: &'static str,
    install: &'static str,
    qemu: &'static str,
}

const fn manager(
    program: &'static str,
    refresh: &'static str,
    install: &'static str,
    qemu: &'static str,
) -> Manager {
    Manager {
        program,
        refresh,
        install,
        qemu,
    }
}

/// Homebrew refuses to run as root; the others need it.
const AS_USER: &str = "brew";

const MANAGERS: &[Manager] = &[
    manager(
        "apt-get",
        "update",
        "install -y --no-install-recommends",
        "qemu-system-arm",
    ),
    manager("dnf", "", "install -y", "qemu-system-aarch64-core"),
    manager(
        "pacman",
        "",
        "-Sy --noconfirm --needed",
        "qemu-system-aarch64",
    ),
    manager("zypper", "", "--non-interactive install", "qemu-arm"),
    manager(AS_USER, "", "install", "qemu"),
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

fn plan(machine: &HostState) -> Result<Commands> {
    let has = |name: &str| machine.programs.contains(&name);
    let mut commands = Commands::default();
    for target in TARGETS {
        if machine.targets.iter().any(|t| t == target) {
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
    let manager = MANAGERS.iter().find(|manager| has(manager.program));
    if !has(QEMU) {
        let Some(manager) = manager else {
            bail!(
                "{QEMU} is not in PATH and no known package manager was found (looked for \
                 apt-get, dnf, pacman, zypper, brew); install QEMU {}.{} or later by hand",
                QEMU_AT_LEAST.0,
                QEMU_AT_LEAST.1
            );
        };
        match manager.commands(machine, &[manager.qemu]) {
            Ok(words) => commands.needed.extend(words),
            Err(as_root) => bail!(
                "{QEMU} is not in PATH; installing it with {} needs root, and sudo was not \
                 found: run `{as_root}` as root",
                manager.program
            ),
        }
    }
    if let Some(manager) = manager {
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

fn install(words: &[String]) -> Result<()> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let [name, arguments @ ..] = &words[..] else {
        return Ok(());
    };
    let mut command = program(name, arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    run(command)
}

fn look() -> Result<HostState> {
    let candidates = MANAGERS.iter().map(|manager| manager.program);
    let candidates = candidates.chain(["sudo", "rustup", QEMU]);
    let programs: Vec<_> = candidates
        .filter(|name| find_program(name).is_some())
        .collect();
    let targets = installed_targets()?;
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

/// The targets whose libraries are in the toolchain's folder. The folder comes from rustc, so this
/// works without rustup too.
fn installed_targets() -> Result<Vec<String>> {
    let mut installed = Vec::new();
    for target in TARGETS {
        let rustc = ["--print", "target-libdir", "--target", target];
        let folder = capture(program("rustc", &rustc))?;
        if Path::new(folder.trim()).is_dir() {
            installed.push(target.to_owned());
        }
    }
    Ok(installed)
}

/// A program in PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn check_qemu() -> Result<()> {
    let text = capture(program(QEMU, &["--version"]))?;
    let version = qemu_version(&text).with_context(|| {
        format!(
            "`{QEMU} --version` printed no version: {}",
            text.lines().next().unwrap_or("")
        )
    })?;
    ensure!(
        version >= QEMU_AT_LEAST,
        "{QEMU} is version {}.{}, Granule needs {}.{} or later",
        version.0,
        version.1,
        QEMU_AT_LEAST.0,
        QEMU_AT_LEAST.1
    );
    Ok(())
}

fn qemu_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?;
    let digits = minor
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
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
            targets: TARGETS.map(str::to_owned).to_vec(),
            missing_firmware: Vec::new(),
        }
    }

    fn lines(machine: &HostState) -> Vec<String> {
        let commands = plan(machine).unwrap();
        let all = commands.needed.iter().chain(&commands.for_firmware);
        all.map(|words| words.join(" ")).collect()
    }

    #[test]
    fn nothing_is_done_to_a_ready_machine() {
        assert!(lines(&machine(&[QEMU], false)).is_empty());
    }

    #[test]
    fn each_package_manager_has_its_command() {
        assert_eq!(
            lines(&machine(&["apt-get"], true)),
            [
                "apt-get update",
                "apt-get install -y --no-install-recommends qemu-system-arm"
            ]
        );
        assert_eq!(
            lines(&machine(&["apt-get", "sudo"], false))[1],
            "sudo apt-get install -y --no-install-recommends qemu-system-arm"
        );
        for (manager, package) in [
            ("dnf", "qemu-system-aarch64-core"),
            ("pacman", "qemu-system-aarch64"),
            ("zypper", "qemu-arm"),
        ] {
            let commands = lines(&machine(&[manager, "sudo"], false));
            assert_eq!(commands.len(), 1);
            assert!(
                commands[0].starts_with(&format!("sudo {manager} ")),
                "{commands:?}"
            );
            assert!(commands[0].ends_with(package), "{commands:?}");
        }
        // Homebrew refuses to run as root.
        assert_eq!(
            lines(&machine(&["brew", "sudo"], false)),
            ["brew install qemu"]
        );
    }

    #[test]
    fn missing_firmware_is_installed_where_a_package_has_it() {
        let without = |missing: &[FirmwareFile], programs: &[&'static str], root| HostState {
            missing_firmware: missing.to_vec(),
            ..machine(programs, root)
        };
        assert_eq!(
            lines(&without(&firmware::ALL, &[QEMU, "apt-get"], true)),
            [
                "apt-get update",
                "apt-get install -y --no-install-recommends qemu-efi-aarch64 u-boot-qemu"
            ]
        );
        assert_eq!(
            lines(&without(&firmware::ALL, &[QEMU, "zypper", "sudo"], false)),
            ["sudo zypper --non-interactive install qemu-uefi-aarch64"]
        );
        assert_eq!(
            lines(&without(&[firmware::U_BOOT], &["dnf"], true)),
            [
                "dnf install -y qemu-system-aarch64-core",
                "dnf install -y uboot-images-armv8"
            ]
        );
        // All but boots through firmware works without.
        assert!(lines(&without(&firmware::ALL, &[QEMU], true)).is_empty());
        assert!(lines(&without(&firmware::ALL, &[QEMU, "apt-get"], false)).is_empty());
        assert!(lines(&without(&firmware::ALL, &[QEMU, "brew"], false)).is_empty());
    }

    #[test]
    fn a_tool_that_cannot_be_installed_is_named() {
        let error = |m: &HostState| plan(m).unwrap_err().to_string();
        assert!(error(&machine(&[], true)).contains("no known package manager"));
        assert!(error(&machine(&["dnf"], false)).contains("sudo was not found"));
        let bare = HostState {
            targets: Vec::new(),
            ..machine(&[QEMU], true)
        };
        assert!(error(&bare).contains("rustup is not in PATH"));
        let with_rustup = HostState {
            targets: Vec::new(),
            ..machine(&[QEMU, "rustup"], true)
        };
        assert_eq!(
            lines(&with_rustup),
            TARGETS.map(|target| format!("rustup target add {target}"))
        );
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
