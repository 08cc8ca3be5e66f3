//! A boot through firmware: the firmware's file, the disk that it boots from, and the lines to type at
//! its prompt. Where firmware is on the host is in [`crate::firmware`].

use std::fs;
use std::path::{Path, PathBuf};

use super::prompt::{self, Way};
use super::qemu::Bus;
use super::{Stop, environment, qemu, usage};
use crate::image::Image;
use crate::loader::{self, Entry, Loader};
use crate::request::{Firmware, Request};
use crate::{disk, firmware};

/// The files and lines of a boot through firmware, beside the machine.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The firmware, which QEMU starts.
    pub(super) file: PathBuf,
    /// The disk, and how it is attached; without one QEMU hands the kernel to the firmware.
    pub(super) disk: Option<(PathBuf, Bus)>,
    /// The lines to type at the prompt.
    pub(super) lines: Vec<String>,
}

/// Finds the firmware and makes the disk in `folder`; nothing for a direct boot.
pub(super) fn prepare(
    request: &Request,
    image: &Image,
    folder: &Path,
) -> Result<Option<Prepared>, Stop> {
    let usual = match request.firmware {
        Firmware::Direct => return Ok(None),
        Firmware::UBoot | Firmware::UBootEfi => firmware::U_BOOT,
        Firmware::Uefi | Firmware::Grub | Firmware::SystemdBoot => firmware::EDK2,
    };
    let file = match &request.firmware_file {
        Some(path) => {
            super::length(path, "--firmware-file")?;
            qemu::plain_path(path)
        }
        None => usual.find().map_err(environment)?,
    };
    if let Some(path) = &request.disk {
        super::length(path, "--disk")?;
        return Ok(Some(Prepared {
            file,
            disk: Some((qemu::plain_path(path), Bus::Usb)),
            lines: Vec::new(),
        }));
    }
    if request.firmware == Firmware::Uefi {
        return Ok(Some(Prepared {
            file,
            disk: None,
            lines: Vec::new(),
        }));
    }
    let bootargs = request.bootargs();
    let initramfs = request
        .initrd
        .as_deref()
        .map(|path| read("--initrd", path))
        .transpose()?;
    let lines = match request.firmware {
        Firmware::UBoot => prompt::commands(Way::Booti, &bootargs, initramfs.is_some()),
        Firmware::UBootEfi => prompt::commands(Way::Bootefi, &bootargs, initramfs.is_some()),
        _ => Vec::new(),
    };
    let entry = Entry {
        name: "granule".to_owned(),
        title: "Granule".to_owned(),
        bootargs,
    };
    let files = loader::files(
        boot_loader(request)?,
        read("--image", &image.path)?,
        initramfs,
        &[entry],
        0,
    );
    let disk = folder.join("disk");
    disk::write(&disk, &files).map_err(environment)?;
    Ok(Some(Prepared {
        file,
        disk: Some((disk, Bus::Virtio)),
        lines,
    }))
}

/// The boot loader's program, if one runs.
fn boot_loader(request: &Request) -> Result<Option<Vec<u8>>, Stop> {
    let usual = match request.firmware {
        Firmware::Grub => Loader::Grub,
        Firmware::SystemdBoot => Loader::SystemdBoot,
        _ => return Ok(None),
    };
    let path = match &request.loader {
        Some(path) => path.clone(),
        None => usual.find().map_err(environment)?,
    };
    read("--loader", &path).map(Some)
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, Stop> {
    fs::read(path).map_err(|error| usage(format!("{option} {}: {error}", path.display())))
}
