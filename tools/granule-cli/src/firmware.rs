//! Firmware for QEMU's board as files on the host: where distributions put them, and the packages that
//! have them. What runs the firmware is in `boot`.

use std::path::{Path, PathBuf};

/// A firmware that QEMU's board can start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirmwareFile {
    /// Its name in errors.
    name: &'static str,
    /// Its places, the first that exists is taken.
    places: &'static [&'static str],
    /// Package managers, each with the package that has it.
    packages: &'static [(&'static str, &'static str)],
}

/// UEFI: EDK2 for QEMU's board.
pub const EDK2: FirmwareFile = FirmwareFile {
    name: "EDK2 for arm64",
    places: &[
        "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
        "/usr/share/edk2/aarch64/QEMU_EFI.fd",
        "/usr/share/qemu/qemu-uefi-aarch64.bin",
        "/opt/homebrew/share/qemu/edk2-aarch64-code.fd",
        "/usr/local/share/qemu/edk2-aarch64-code.fd",
    ],
    packages: &[
        ("apt-get", "qemu-efi-aarch64"),
        ("dnf", "edk2-aarch64"),
        ("pacman", "edk2-aarch64"),
        ("zypper", "qemu-uefi-aarch64"),
    ],
};

/// U-Boot for QEMU's board.
pub const U_BOOT: FirmwareFile = FirmwareFile {
    name: "U-Boot for arm64",
    places: &[
        "/usr/lib/u-boot/qemu_arm64/u-boot.bin",
        "/usr/share/uboot/qemu_arm64/u-boot.bin",
    ],
    packages: &[("apt-get", "u-boot-qemu"), ("dnf", "uboot-images-armv8")],
};

/// Every firmware that boots are tested with.
pub const ALL: [FirmwareFile; 2] = [EDK2, U_BOOT];

impl FirmwareFile {
    /// The file in the first of its places.
    /// Fails with one line: where it was looked for, and how to install it.
    pub fn find(&self) -> Result<PathBuf, String> {
        self.find_among(self.places)
    }

    fn find_among(&self, places: &[&str]) -> Result<PathBuf, String> {
        let found = places.iter().map(Path::new).find(|path| path.is_file());
        found.map(Path::to_path_buf).ok_or_else(|| {
            let installs = self.packages.iter();
            let installs: Vec<_> = installs
                .map(|(manager, package)| format!("{manager} install {package}"))
                .collect();
            format!(
                "{} is not in {}; install it ({}), or name one with --firmware-file FILE",
                self.name,
                places.join(", "),
                installs.join("; ")
            )
        })
    }

    /// The package of that package manager which has it.
    pub fn package(&self, manager: &str) -> Option<&'static str> {
        let (_, package) = self.packages.iter().find(|(name, _)| *name == manager)?;
        Some(package)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::assert_contains;

    #[test]
    fn the_first_place_that_has_it_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).display().to_string();
        let (first, second) = (place("a"), place("b"));
        let error = EDK2.find_among(&[&first, &second]).unwrap_err();
        assert_contains(&error, &format!("is not in {first}, {second};"));
        assert_contains(&error, "apt-get install qemu-efi-aarch64; ");
        assert!(!error.contains('\n'));
        std::fs::write(&second, "").unwrap();
        assert_eq!(
            EDK2.find_among(&[&first, &second]),
            Ok(second.clone().into())
        );
        std::fs::write(&first, "").unwrap();
        assert_eq!(EDK2.find_among(&[&first, &second]), Ok(first.into()));
    }

    #[test]
    fn packages_are_named_for_their_manager() {
        assert_eq!(U_BOOT.package("apt-get"), Some("u-boot-qemu"));
        assert_eq!(U_BOOT.package("zypper"), None);
    }
}
