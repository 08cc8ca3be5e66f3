//! Before the boot: the initramfs that holds the `kexec` program, what it is to do, and the next kernel.
//!
//! What is in the next kernel's image is not judged: the kernel that is to leave for it does that, and
//! says so.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bootrec;
use crate::image::{self, Image};
use crate::initramfs::Initramfs;
use crate::request::{Kexec, Request};
use crate::result::Payload;
use crate::sizes::show_size;

/// The program, where `cargo xtask user` leaves it.
const PROGRAM: &str = "granule-kexec";

/// Where the archive has the next kernel's files.
const IMAGE: &str = "/boot/Image";
const INITRD: &str = "/boot/initrd";

/// QEMU puts an initial RAM disk that far into RAM, or where its middle is if that is before.
const QEMU_BEFORE_INITRD: u64 = 128 << 20;

/// Bytes of a file that an archive of this kind can say.
const MOST_BYTES: u64 = u32::MAX as u64;

/// Writes the archive to `to`; `first` is the image that will leave.
///
/// # Errors
///
/// One line: a file that cannot be read, or options that do not go with it.
pub(crate) fn write(
    kexec: &Kexec,
    first: &Image,
    request: &Request,
    to: &Path,
) -> Result<Payload, String> {
    let program = program(&first.path)?;
    let (option, path) = match &kexec.image {
        Some(path) => ("--kexec", path),
        None => ("--image", &first.path),
    };
    let kernel = read(option, path)?;
    // With two records it cannot be told which one it writes: then it is watched as little as others.
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
    let mut archive = Initramfs::new()
        .program("/init", &program)
        .directory("/etc")
        .file("/etc/kexec", lines(kexec, ours, request.icount).as_bytes())
        .directory("/boot")
        .file(IMAGE, &kernel);
    let payload = Payload::new(kernel, initrd.as_deref(), boot_record);
    if let Some(initrd) = initrd {
        archive = archive.file(INITRD, &initrd);
    }
    fits(&archive, request)?;
    archive
        .write(to)
        .map_err(|error| format!("{}: {error}; set TMPDIR", to.display()))?;
    Ok(payload)
}

/// Whether the archive fits into the machine as QEMU's `-kernel` lays it there, which would say only that it
/// could not.
fn fits(archive: &Initramfs, request: &Request) -> Result<(), String> {
    let room = request.memory - (request.memory / 2).min(QEMU_BEFORE_INITRD);
    let bytes = archive.len() as u64;
    if request.is_raw() || bytes <= room {
        return Ok(());
    }
    Err(format!(
        "--kexec with --memory {}: the first kernel's initramfs has {bytes} bytes with the next one's \
         files in it, and the machine has room for {room}; give it more memory",
        show_size(request.memory)
    ))
}

/// What the program is to do.
fn lines(kexec: &Kexec, ours: bool, counted: bool) -> String {
    let mut load = format!("load {IMAGE}");
    if kexec.initrd.is_some() {
        load += &format!(" --initrd {INITRD}");
    }
    if kexec.copy {
        load += " --copy";
    }
    // Last, since its text is the rest of the line.
    format!("{load} --append {}\nexec\n", kexec.bootargs(ours, counted))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, String> {
    let complain = |what: String| format!("{option} {}: {what}", path.display());
    let metadata = fs::metadata(path).map_err(|error| complain(error.to_string()))?;
    if !metadata.is_file() {
        return Err(complain("is no regular file".into()));
    }
    if metadata.len() > MOST_BYTES {
        return Err(complain(format!(
            "has {} bytes, and a file of an initramfs at most {MOST_BYTES}",
            metadata.len()
        )));
    }
    fs::read(path).map_err(|error| complain(error.to_string()))
}

/// The program: beside the image that is booted, or where the default image is.
fn program(image: &Path) -> Result<Vec<u8>, String> {
    let beside = image.parent().map(Path::to_path_buf);
    program_in(
        &beside
            .into_iter()
            .chain(image::default_folder().ok())
            .collect::<Vec<_>>(),
    )
}

fn program_in(folders: &[PathBuf]) -> Result<Vec<u8>, String> {
    let places = folders.iter().map(|folder| folder.join(PROGRAM));
    match places.clone().find(|path| path.is_file()) {
        Some(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display())),
        None => {
            let places: Vec<_> = places.map(|path| path.display().to_string()).collect();
            Err(format!(
                "--kexec needs the `kexec` program, and there is no {}; build it with `cargo xtask user`",
                places.join(" and no ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Header;
    use crate::request::PageSize;

    fn first(path: PathBuf) -> Image {
        Image {
            path,
            sha256: String::new(),
            bytes: 0,
            header: Header {
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
        // Each file that is missing is named.
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
    fn where_the_program_is_missing_is_told_with_what_builds_it() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = dirs.each_ref().map(|dir| dir.path().to_owned());
        let line = program_in(&folders).unwrap_err();
        for folder in &folders {
            assert!(
                line.contains(&folder.join(PROGRAM).display().to_string()),
                "{line}"
            );
        }
        assert!(line.contains("cargo xtask user"), "{line}");
        fs::write(folders[1].join(PROGRAM), b"p").unwrap();
        assert_eq!(program_in(&folders), Ok(b"p".to_vec()));
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
        assert!(
            line.contains("--kexec-page-size 64k") && line.contains("boot record"),
            "{line}"
        );
        // The archive is some hundred bytes, and half of RAM is the first kernel's.
        let small = Request {
            memory: 256,
            ..Request::default()
        };
        let line = refused(&Kexec::default(), &small);
        assert!(
            line.contains("--memory") && line.contains("for 128"),
            "{line}"
        );
    }
}
