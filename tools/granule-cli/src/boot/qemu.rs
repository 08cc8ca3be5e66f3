//! QEMU's command line for a request, and the version that QEMU reports.
//!
//! Pure, except for [`version`], which runs QEMU briefly. `guest` runs the guest.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::clock::ProcessClock;
use super::raw::Layout;
use crate::request::{KaslrSeed, Request};

/// The advice to install QEMU, for errors about a missing one.
const INSTALL: &str = "install it (Debian, Ubuntu: apt install qemu-system-arm; Fedora: dnf install \
                       qemu-system-aarch64; macOS: brew install qemu) or name one with --qemu PATH";

/// The bus that a disk is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bus {
    /// As a virtio disk.
    Virtio,
    /// As a USB stick.
    Usb,
}

/// The way in which the image gets into the machine.
#[derive(Debug)]
pub(crate) enum Start<'a> {
    /// QEMU's own loader for arm64 Images, or the one of firmware.
    Kernel {
        image: &'a Path,
        /// The tree that QEMU completes; `None` for QEMU's own.
        tree: Option<&'a Path>,
        /// The initial RAM disk.
        initrd: Option<&'a Path>,
        /// The bootargs, empty for none.
        bootargs: &'a str,
        /// Firmware that takes them from QEMU, instead of QEMU's own loader.
        firmware: Option<&'a Path>,
    },
    /// Firmware with a disk.
    Disk {
        firmware: &'a Path,
        /// The disk, which is not written to.
        disk: &'a Path,
        /// The bus that it is attached to.
        bus: Bus,
    },
    /// Files placed in RAM, entered from flash.
    Raw {
        /// The instructions for flash.
        flash: &'a Path,
        image: &'a Path,
        /// The tree; `None` for an empty file, which QEMU's loader refuses.
        tree: Option<&'a Path>,
        /// The initial RAM disk.
        initrd: Option<&'a Path>,
        /// The address of each.
        layout: Layout,
    },
}

/// The options that describe the machine, shared by a dumped tree and a boot. `machine_extra` is
/// appended to `-machine`.
pub(crate) fn machine_options(request: &Request, machine_extra: &str) -> Vec<OsString> {
    let virtualization = if request.el == 2 { "on" } else { "off" };
    let (bytes, gic) = (request.memory, request.gic);
    let acpi = if request.acpi { "on" } else { "off" };
    let randomness = match request.kaslr_seed {
        KaslrSeed::Random => "on",
        KaslrSeed::Off | KaslrSeed::Number(_) => "off",
    };
    // acpi=off: ACPI would be a second description of the machine; EDK2 hands over one of both.
    // dtb-randomness=off: two boots of one request see the same tree, unless it requests random addresses.
    let machine = format!(
        "virt,gic-version={gic},virtualization={virtualization},acpi={acpi},\
         dtb-randomness={randomness},memory-backend=ram{machine_extra}"
    );
    // reserve=off: half a terabyte of RAM costs only what the guest touches. A shared file keeps
    // what the guest stored after QEMU has ended.
    let ram = match &request.ram_file {
        None => format!("memory-backend-ram,id=ram,size={bytes},reserve=off").into(),
        Some(path) => option_with_path(
            "memory-backend-file,id=ram,mem-path=",
            &plain_path(path),
            &format!(",share=on,size={bytes},reserve=off"),
        ),
    };
    let mut options = words("-no-user-config -nodefaults -display none -nic none");
    options.extend(["-machine".into(), machine.into(), "-object".into(), ram]);
    let (memory, cpus) = (format!("{bytes}B"), request.smp.to_string());
    options.extend(["-m", &memory, "-cpu", &request.cpu, "-smp", &cpus].map(OsString::from));
    options
}

/// Options without a space in any of them.
fn words(text: &str) -> Vec<OsString> {
    text.split(' ').map(OsString::from).collect()
}

/// The whole command line for a boot, without the program's name. QEMU connects to `qmp_socket` for
/// commands.
pub(crate) fn boot_options(
    request: &Request,
    start: &Start<'_>,
    qmp_socket: Option<&Path>,
) -> Vec<OsString> {
    let mut options = machine_options(request, "");
    // Counting instructions requires the CPUs to take turns in one thread.
    options.extend(words(match request.icount {
        true => "-accel tcg,thread=single -icount shift=0",
        false => "-accel tcg",
    }));
    let mut option = |name: &str, value: &OsStr| options.extend([name.into(), value.to_owned()]);
    if let Some(value) = &request.plugin {
        option("-plugin", value);
    }
    option("-serial", OsStr::new("stdio"));
    if let Some(socket) = qmp_socket {
        option(
            "-chardev",
            &option_with_path("socket,id=qmp,path=", socket, ""),
        );
        option("-mon", OsStr::new("chardev=qmp,mode=control"));
    }
    if let Some(file) = &request.virtio_disk {
        // What is written need not outlive this host.
        let drive = "if=none,id=vda,format=raw,cache=unsafe,file=";
        option("-drive", &option_with_path(drive, &plain_path(file), ""));
        option("-device", OsStr::new("virtio-blk-device,drive=vda"));
        option("-global", OsStr::new("virtio-mmio.force-legacy=false"));
    }
    match start {
        Start::Kernel {
            image,
            tree,
            initrd,
            bootargs,
            firmware,
        } => {
            let bootargs = (!bootargs.is_empty()).then_some(OsStr::new(bootargs));
            for (name, value) in [
                ("-bios", firmware.map(Path::as_os_str)),
                ("-kernel", Some(image.as_os_str())),
                ("-dtb", tree.map(Path::as_os_str)),
                ("-append", bootargs),
                ("-initrd", initrd.map(Path::as_os_str)),
            ] {
                if let Some(value) = value {
                    option(name, value);
                }
            }
        }
        Start::Disk {
            firmware,
            disk,
            bus,
        } => {
            option("-bios", firmware.as_os_str());
            option(
                "-drive",
                &option_with_path("if=none,id=disk,format=raw,snapshot=on,file=", disk, ""),
            );
            let devices: &[&str] = match bus {
                Bus::Virtio => &["virtio-blk-pci,drive=disk"],
                Bus::Usb => &["qemu-xhci", "usb-storage,drive=disk"],
            };
            for device in devices {
                option("-device", OsStr::new(device));
            }
        }
        Start::Raw {
            flash,
            image,
            tree,
            initrd,
            layout,
        } => {
            option("-bios", flash.as_os_str());
            option("-device", &loader(image, layout.image));
            if let Some(tree) = tree {
                option("-device", &loader(tree, layout.tree));
            }
            if let Some(initrd) = initrd {
                option("-device", &loader(initrd, layout.initrd));
            }
        }
    }
    // A guest that resets instead of ending must not boot again for ever.
    options.push("-no-reboot".into());
    if qmp_socket.is_some() {
        // The machine that is switched off keeps its memory until its boot record and its trace are
        // read.
        options.push("-no-shutdown".into());
    }
    options
}

/// `force-raw`: a tree or disk that looks like an executable is still loaded as bytes.
fn loader(file: &Path, address: u64) -> OsString {
    option_with_path(
        "loader,file=",
        file,
        &format!(",addr={address:#x},force-raw=on"),
    )
}

/// QEMU's option values are separated by commas; one inside a value is doubled.
pub(crate) fn option_with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut option = before.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        option.push(byte);
        if byte == b',' {
            option.push(b',');
        }
    }
    option.extend(after.as_bytes());
    OsString::from_vec(option)
}

/// QEMU's first line that is not a warning, without the program's name.
pub(crate) fn first_error(stderr: &str) -> Option<String> {
    stderr
        .lines()
        .map(|line| {
            line.split_once("qemu-system-aarch64: ")
                .map_or(line, |(_, rest)| rest)
                .trim()
        })
        .find(|line| {
            !line.is_empty() && !line.starts_with("warning:") && !line.starts_with("info:")
        })
        .map(str::to_owned)
}

/// The version that the program at `qemu` reports.
/// Fails with one line: missing (and how to install it), or not QEMU.
pub(crate) fn version(qemu: &Path) -> Result<String, String> {
    let mut command = Command::new(qemu);
    command.arg("--version");
    let output = run_briefly(command).map_err(|error| cannot_start(qemu, &error))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    stdout
        .strip_prefix("QEMU emulator version ")
        .and_then(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .ok_or_else(|| {
            format!(
                "{} does not answer --version as QEMU does; {INSTALL}",
                qemu.display()
            )
        })
}

/// The error line for a QEMU that could not be started.
pub(crate) fn cannot_start(qemu: &Path, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        format!(
            "QEMU is missing: {} was not found; {INSTALL}",
            qemu.display()
        )
    } else {
        format!(
            "QEMU cannot be started: {}: {error}; {INSTALL}",
            qemu.display()
        )
    }
}

/// Runs a program that should end by itself, and kills it at a time limit.
pub(crate) fn run_briefly(mut command: Command) -> io::Result<Output> {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut clock = ProcessClock::start(child.id());
    while child.try_wait()?.is_none() {
        if clock.look() >= LIMIT {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no answer within 30 s",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output()
}

/// A file name that QEMU cannot mistake for an option or a protocol.
pub(crate) fn plain_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::assert_contains;

    fn texts(options: &[OsString]) -> Vec<&str> {
        options.iter().map(|o| o.to_str().unwrap()).collect()
    }

    fn value<'a>(options: &'a [OsString], name: &str) -> Vec<&'a str> {
        let words = texts(options);
        words
            .windows(2)
            .filter(|w| w[0] == name)
            .map(|w| w[1])
            .collect()
    }

    fn kernel(request: &Request) -> Vec<OsString> {
        let bootargs = request.bootargs();
        let start = Start::Kernel {
            image: Path::new("/i/Image"),
            tree: None,
            initrd: None,
            bootargs: &bootargs,
            firmware: None,
        };
        boot_options(request, &start, None)
    }

    #[test]
    fn a_plain_boot_at_el2() {
        let request = Request::default()
            .memory(512 << 30)
            .cpu("max,lpa2=off")
            .smp(3);
        let options = kernel(&request);
        assert_eq!(
            value(&options, "-machine"),
            ["virt,gic-version=3,virtualization=on,acpi=off,dtb-randomness=off,memory-backend=ram"]
        );
        assert_eq!(
            value(&options, "-object"),
            ["memory-backend-ram,id=ram,size=549755813888,reserve=off"]
        );
        assert_eq!(value(&options, "-m"), ["549755813888B"]);
        assert_eq!(value(&options, "-cpu"), ["max,lpa2=off"]);
        assert_eq!(value(&options, "-smp"), ["3"]);
        assert_eq!(value(&options, "-accel"), ["tcg"]);
        assert_eq!(value(&options, "-kernel"), ["/i/Image"]);
        assert!(value(&options, "-append").is_empty() && value(&options, "-icount").is_empty());
        assert!(texts(&options).contains(&"-no-reboot"));
    }

    #[test]
    fn firmware_starts_from_a_disk_or_with_the_kernel_of_qemu() {
        let request = Request {
            acpi: true,
            ..Request::default()
        };
        let (firmware, disk) = (Path::new("/f"), Path::new("/d,isk"));
        let options = boot_options(
            &request,
            &Start::Disk {
                firmware,
                disk,
                bus: Bus::Usb,
            },
            None,
        );
        assert_eq!(value(&options, "-bios"), ["/f"]);
        assert_eq!(
            value(&options, "-drive"),
            ["if=none,id=disk,format=raw,snapshot=on,file=/d,,isk"]
        );
        assert_eq!(
            value(&options, "-device"),
            ["qemu-xhci", "usb-storage,drive=disk"]
        );
        assert!(value(&options, "-machine")[0].contains(",acpi=on,"));
        assert!(value(&options, "-kernel").is_empty());
        let start = Start::Kernel {
            image: Path::new("/i/Image"),
            tree: None,
            initrd: None,
            bootargs: "a b",
            firmware: Some(firmware),
        };
        let options = boot_options(&request, &start, None);
        assert_eq!(value(&options, "-bios"), ["/f"]);
        assert_eq!(value(&options, "-kernel"), ["/i/Image"]);
        assert_eq!(value(&options, "-append"), ["a b"]);
    }

    #[test]
    fn a_random_seed_is_qemus_and_another_lies_in_a_tree() {
        let random = Request::default().kaslr_seed(KaslrSeed::Random);
        assert!(value(&kernel(&random), "-machine")[0].contains("dtb-randomness=on"));
        let start = Start::Kernel {
            image: Path::new("/i/Image"),
            tree: Some(Path::new("/t,1/dtb")),
            initrd: None,
            bootargs: "",
            firmware: None,
        };
        let options = boot_options(&Request::default(), &start, None);
        assert!(value(&options, "-machine")[0].contains("dtb-randomness=off"));
        assert_eq!(value(&options, "-dtb"), ["/t,1/dtb"]);
    }

    #[test]
    fn ram_in_a_file_is_shared_with_it() {
        let request = Request {
            memory: 256 << 20,
            ram_file: Some("/r,am".into()),
            ..Request::default()
        };
        assert_eq!(
            value(&kernel(&request), "-object"),
            ["memory-backend-file,id=ram,mem-path=/r,,am,share=on,size=268435456,reserve=off"]
        );
    }

    #[test]
    fn el1_icount_and_bootargs() {
        let request = Request::default().el(1).counted().gic(2).append("a,b c");
        let options = kernel(&request);
        assert!(value(&options, "-machine")[0].contains("gic-version=2,"));
        assert!(value(&options, "-machine")[0].contains("virtualization=off"));
        assert_eq!(value(&options, "-accel"), ["tcg,thread=single"]);
        assert_eq!(value(&options, "-icount"), ["shift=0"]);
        assert_eq!(
            value(&options, "-append"),
            ["granule.count=instructions a,b c"]
        );
    }

    #[test]
    fn raw_mode_lays_files_and_doubles_commas() {
        let layout = Layout {
            image: 0x4020_0000,
            tree: 0x4040_0000,
            initrd: 0x4060_0000,
        };
        let start = Start::Raw {
            flash: Path::new("/t/flash"),
            image: Path::new("/a,b/Image"),
            tree: Some(Path::new("/t/dtb")),
            initrd: Some(Path::new("disk")),
            layout,
        };
        let options = boot_options(&Request::default(), &start, Some(Path::new("/t,/qmp")));
        assert_eq!(value(&options, "-bios"), ["/t/flash"]);
        assert_eq!(
            value(&options, "-device"),
            [
                "loader,file=/a,,b/Image,addr=0x40200000,force-raw=on",
                "loader,file=/t/dtb,addr=0x40400000,force-raw=on",
                "loader,file=disk,addr=0x40600000,force-raw=on",
            ]
        );
        assert_eq!(value(&options, "-chardev"), ["socket,id=qmp,path=/t,,/qmp"]);
        for absent in ["-kernel", "-append", "-initrd", "-dtb"] {
            assert!(!texts(&options).contains(&absent));
        }
    }

    #[test]
    fn the_first_error_is_qemus_own() {
        let stderr = "qemu-system-aarch64: warning: hm\n\n\
                      /usr/bin/qemu-system-aarch64: unable to find CPU model 'z80'\nmore\n";
        assert_eq!(
            first_error(stderr).unwrap(),
            "unable to find CPU model 'z80'"
        );
        assert_eq!(first_error("qemu-system-aarch64: info: dumped\n"), None);
    }

    #[test]
    fn a_missing_qemu_gives_the_advice_to_install_it_and_an_impostor_is_found_out() {
        let line = version(Path::new("/nonexistent/qemu")).unwrap_err();
        assert_contains(&line, "/nonexistent/qemu");
        assert_contains(&line, "apt install");
        let line = version(Path::new("/bin/echo")).unwrap_err();
        assert_contains(&line, "--version");
        assert_contains(&line, "--qemu");
    }
}
