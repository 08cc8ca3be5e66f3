//! The initramfs for a boot with kexec or a crash: it holds the `kexec` program, its orders, and the next
//! kernel's files.
//!
//! The next kernel's image is not validated here: the leaving kernel does that and reports it.
//!
//! The program is `/init`, and its orders are in `/etc/kexec`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bootrec;
use crate::image::{self, Image};
use crate::initramfs::Initramfs;
use crate::request::{Crash, Kexec, Request};
use crate::result::Payload;
use crate::sizes::show_size;

/// The file of the program that `cargo xtask user` builds.
const PROGRAM: &str = "granule-kexec";

/// The paths of the next kernel's files in the archive.
const IMAGE: &str = "/boot/Image";
const INITRD: &str = "/boot/initrd";

/// QEMU puts an initial RAM disk at this offset in RAM, or at the middle of a smaller RAM.
const QEMU_BEFORE_INITRD: u64 = 128 << 20;

/// The largest file that an archive of this kind can hold, in bytes.
const MOST_BYTES: u64 = u32::MAX as u64;

/// Writes the archive to `to`; `first` is the image that will leave.
/// Fails with one line: a file cannot be read, or the options do not fit it.
pub(crate) fn write(
    kexec: &Kexec,
    first: &Image,
    request: &Request,
    to: &Path,
) -> Result<Payload, String> {
    let program = program("--kexec", &first.path)?;
    let (option, path) = match &kexec.image {
        Some(path) => ("--kexec", path),
        None => ("--image", &first.path),
    };
    let kernel = read(option, path)?;
    // With two records it is unknown which one the kernel writes, so none is watched.
    let boot_record = bootrec::find(&kernel).ok().flatten();
    let ours = boot_record.is_some();
    if let Some(size) = kexec.page_size.filter(|_| !ours) {
        return Err(format!(
            "--kexec-page-size {}: {} does not choose its page size at boot (it has no boot record, as \
             an image of this kernel has); leave the option out",
            size.word(),
            path.display()
        ));
    }
    let initrd = kexec.initrd.as_deref();
    let initrd = initrd
        .map(|path| read("--kexec-initrd", path))
        .transpose()?;
    let lines = lines(kexec, ours, request.icount);
    let mut archive = archive(&program, &lines)
        .directory("/boot")
        .file(IMAGE, &kernel);
    let payload = Payload::new(kernel, initrd.as_deref(), boot_record);
    if let Some(initrd) = initrd {
        archive = archive.file(INITRD, &initrd);
    }
    finish(archive, "--kexec", request, to)?;
    Ok(payload)
}

/// Writes the archive for a crash to `to`; `first` is the image that will crash. Returns whether the crash kernel is one
/// of ours.
/// Fails as [`write()`] does.
pub(super) fn write_for_crash(
    crash: &Crash,
    first: &Image,
    request: &Request,
    to: &Path,
) -> Result<bool, String> {
    let program = program("--crash", &first.path)?;
    let (option, path) = match &crash.kernel {
        Some(path) => ("--crash-kernel", path),
        None => ("--image", &first.path),
    };
    let kernel = read(option, path)?;
    let ours = bootrec::find(&kernel).ok().flatten().is_some();
    if let Some(size) = crash.page_size.filter(|_| !ours) {
        return Err(format!(
            "--crash-page-size {}: {} does not choose its page size at boot; leave the option out",
            size.word(),
            path.display()
        ));
    }
    let initrd = match &crash.initrd {
        Some(path) => read("--crash-initrd", path)?,
        // Linux mounts its own there.
        None => archive(&program, SAVE)
            .directory("/dev")
            .directory("/proc")
            .bytes(),
    };
    let words = crash.bootargs(ours, request.icount);
    let lines = format!("load --crash {IMAGE} --initrd {INITRD} --append {words}\ncrash\n");
    let archive = archive(&program, &lines)
        .directory("/boot")
        .file(IMAGE, &kernel)
        .file(INITRD, &initrd);
    finish(archive, "--crash", request, to)?;
    Ok(ours)
}

/// The orders for the program in a crash kernel. The disk was made for it.
const SAVE: &str = "core /proc/vmcore /dev/vda --zeroed\npoweroff\n";

/// The program and its orders.
fn archive(program: &[u8], lines: &str) -> Initramfs {
    Initramfs::new()
        .program("/init", program)
        .directory("/etc")
        .file("/etc/kexec", lines.as_bytes())
}

fn finish(archive: Initramfs, option: &str, request: &Request, to: &Path) -> Result<(), String> {
    fits(&archive, option, request)?;
    archive
        .write(to)
        .map_err(|error| format!("{}: {error}; set TMPDIR", to.display()))
}

/// Checks that the archive fits into RAM where QEMU's `-kernel` puts it; QEMU's own error would not
/// give the reason.
fn fits(archive: &Initramfs, option: &str, request: &Request) -> Result<(), String> {
    let room = request.memory - (request.memory / 2).min(QEMU_BEFORE_INITRD);
    let bytes = archive.len() as u64;
    if request.is_raw() || bytes <= room {
        return Ok(());
    }
    Err(format!(
        "{option} with --memory {}: the first kernel's initramfs has {bytes} bytes with the next one's \
         files in it, and the machine has room for {room}; give it more memory",
        show_size(request.memory)
    ))
}

/// The orders for the program.
fn lines(kexec: &Kexec, ours: bool, counted: bool) -> String {
    let mut load = format!("load {IMAGE}");
    if kexec.initrd.is_some() {
        load += &format!(" --initrd {INITRD}");
    }
    if kexec.copy {
        load += " --copy";
    }
    // `--append` comes last, since its text is the rest of the line.
    format!("{load} --append {}\nexec\n", kexec.bootargs(ours, counted))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, String> {
    let complain = |what: String| format!("{option} {}: {what}", path.display());
    let metadata = fs::metadata(path).map_err(|error| complain(error.to_string()))?;
    if !metadata.is_file() {
        return Err(complain("is not a regular file".into()));
    }
    if metadata.len() > MOST_BYTES {
        return Err(complain(format!(
            "has {} bytes, and a file of an initramfs at most {MOST_BYTES}",
            metadata.len()
        )));
    }
    fs::read(path).map_err(|error| complain(error.to_string()))
}

/// The program: beside the booted image, or in the default image's folder.
fn program(option: &str, image: &Path) -> Result<Vec<u8>, String> {
    let beside = image.parent().map(Path::to_path_buf);
    program_in(
        option,
        &beside
            .into_iter()
            .chain(image::default_folder().ok())
            .collect::<Vec<_>>(),
    )
}

fn program_in(option: &str, folders: &[PathBuf]) -> Result<Vec<u8>, String> {
    let places = folders.iter().map(|folder| folder.join(PROGRAM));
    match places.clone().find(|path| path.is_file()) {
        Some(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display())),
        None => {
            let places: Vec<_> = places.map(|path| path.display().to_string()).collect();
            Err(format!(
                "{option} needs the `kexec` program, and there is no {}; build it with `cargo xtask user`",
                places.join(" and no ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::HeaderFields;
    use crate::request::PageSize;
    use granule_testing::text::assert_contains;

    fn first(path: PathBuf) -> Image {
        Image {
            path,
            sha256: String::new(),
            bytes: 0,
            header: HeaderFields {
                text_offset: 0,
                image_size: 0,
            },
            boot_record: None,
        }
    }

    #[test]
    fn the_archive_has_the_program_what_to_do_and_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let kexec = Kexec {
            image: Some(at("next")),
            initrd: Some(at("disk")),
            append: Some("quiet --x".into()),
            copy: true,
            ..Kexec::default()
        };
        let to = at("initramfs");
        let machine = Request::default();
        let prepared = || write(&kexec, &first(at("Image")), &machine, &to);
        // The error names each missing file.
        fs::write(at(PROGRAM), b"a program").unwrap();
        assert!(prepared().unwrap_err().starts_with("--kexec "));
        fs::write(at("next"), b"a kernel").unwrap();
        assert!(prepared().unwrap_err().starts_with("--kexec-initrd "));
        fs::write(at("disk"), b"a disk").unwrap();
        let payload = prepared().unwrap();
        assert!(!payload.is_ours());
        let archive = fs::read(&to).unwrap();
        let text = String::from_utf8_lossy(&archive);
        for part in [
            "a program",
            "load /boot/Image --initrd /boot/initrd --copy --append quiet --x\nexec\n",
            "a kernel",
            "a disk",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn the_archive_for_a_crash_has_one_for_the_crash_kernel_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let to = at("initramfs");
        fs::write(at(PROGRAM), b"a program").unwrap();
        fs::write(at("Image"), b"a kernel").unwrap();
        fs::write(at("disk"), b"a disk").unwrap();
        let written = |crash: &Crash| {
            let ours = write_for_crash(crash, &first(at("Image")), &Request::default(), &to);
            ours.map(|ours| {
                (
                    ours,
                    String::from_utf8_lossy(&fs::read(&to).unwrap()).into_owned(),
                )
            })
        };
        let mut crash = Crash {
            append: Some("quiet --x".into()),
            ..Crash::default()
        };
        let (ours, text) = written(&crash).unwrap();
        assert!(!ours);
        let lines = "load --crash /boot/Image --initrd /boot/initrd --append quiet --x\ncrash\n";
        assert!(text.contains(lines) && text.contains(SAVE));
        assert_eq!(text.matches("a program").count(), 2);
        crash.initrd = Some(at("disk"));
        let (_, text) = written(&crash).unwrap();
        assert!(text.contains("a disk") && !text.contains(SAVE));
        crash.page_size = Some(PageSize::K4);
        let line = written(&crash).unwrap_err();
        assert!(line.starts_with("--crash-page-size 4k: "), "{line}");
        crash.kernel = Some(at("none"));
        let line = written(&crash).unwrap_err();
        assert!(line.starts_with("--crash-kernel "), "{line}");
    }

    #[test]
    fn a_missing_program_is_named_with_what_builds_it() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = dirs.each_ref().map(|dir| dir.path().to_owned());
        let line = program_in("--kexec", &folders).unwrap_err();
        for folder in &folders {
            assert_contains(&line, &folder.join(PROGRAM).display().to_string());
        }
        assert!(line.contains("cargo xtask user"), "{line}");
        fs::write(folders[1].join(PROGRAM), b"p").unwrap();
        assert_eq!(program_in("--kexec", &folders), Ok(b"p".to_vec()));
    }

    #[test]
    fn a_page_size_is_for_kernels_that_choose_one() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("Image");
        fs::write(dir.path().join(PROGRAM), b"p").unwrap();
        fs::write(&image, b"another kernel").unwrap();
        let kexec = Kexec {
            page_size: Some(PageSize::K64),
            ..Kexec::default()
        };
        let to = dir.path().join("initramfs");
        let refused = |kexec: &Kexec, machine: &Request| {
            write(kexec, &first(image.clone()), machine, &to).unwrap_err()
        };
        let line = refused(&kexec, &Request::default());
        assert_contains(&line, "--kexec-page-size 64k");
        assert_contains(&line, "boot record");
        // The archive has some hundred bytes, and the first kernel takes half of RAM.
        let small = Request::default().memory(256);
        let line = refused(&Kexec::default(), &small);
        assert_contains(&line, "--memory");
        assert_contains(&line, "for 128");
    }
}
