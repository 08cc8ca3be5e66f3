//! The content of a boot disk: a boot loader, the kernel, its initramfs, and menus for the boot loaders that
//! are supported, GRUB and systemd-boot. Each finds its own menu, so one disk serves both.
//!
//! The bytes of the disk are made in `disk`.

use std::fmt::Write;
use std::path::PathBuf;

use crate::disk::DiskFile;
use crate::image::{self, ImageError};

/// The program that firmware starts from a disk (UEFI, "removable media").
pub const LOADER: &str = "/EFI/BOOT/BOOTAA64.EFI";
/// The kernel.
pub const IMAGE: &str = "/granule/Image";
/// Its initramfs.
pub const INITRAMFS: &str = "/granule/initramfs";
/// The menu of GRUB as Debian builds it: this path is in the program.
const GRUB_MENU: &str = "/EFI/debian/grub.cfg";

/// A boot loader, as a program for firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// GRUB 2.12.
    Grub,
    /// GRUB 2.06, which hands over the initramfs in another way.
    OlderGrub,
    /// systemd-boot.
    SystemdBoot,
}

impl Loader {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Grub, Self::OlderGrub, Self::SystemdBoot];

    /// Its file, below the folder of the image.
    pub fn file(self) -> &'static str {
        match self {
            Self::Grub => "loaders/grub.efi",
            Self::OlderGrub => "loaders/grub-2.06.efi",
            Self::SystemdBoot => "loaders/systemd-boot.efi",
        }
    }

    /// Its file beside the default image, if it was fetched.
    /// Fails with one line: it was not fetched, or there is no default image.
    pub fn find(self) -> Result<PathBuf, String> {
        let folder = image::default_folder().map_err(|error: ImageError| error.to_string())?;
        let path = folder.join(self.file());
        match path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{} is missing: `make disk` fetches it (by apt), or name a boot loader with --loader FILE",
                path.display()
            )),
        }
    }
}

/// A line of the menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of its file in systemd-boot's menu, without ending.
    pub name: String,
    /// Its text.
    pub title: String,
    /// The kernel's command line.
    pub bootargs: String,
}

/// The files of a boot disk; the first entry is taken when nobody chooses in `seconds`. Without a loader the
/// disk holds no menus either.
pub fn files(
    loader: Option<Vec<u8>>,
    image: Vec<u8>,
    initramfs: Option<Vec<u8>>,
    entries: &[Entry],
    seconds: u32,
) -> Vec<DiskFile> {
    let mut files: Vec<DiskFile> = Vec::new();
    let mut add = |path: &str, content: Vec<u8>| files.push((path.to_owned(), content));
    let has_initramfs = initramfs.is_some();
    if let Some(loader) = loader {
        add(LOADER, loader);
        add(
            GRUB_MENU,
            grub(entries, has_initramfs, seconds).into_bytes(),
        );
        if let Some(first) = entries.first() {
            let settings = format!("timeout {seconds}\ndefault {}.conf\n", first.name);
            add("/loader/loader.conf", settings.into_bytes());
        }
        for entry in entries {
            add(
                &format!("/loader/entries/{}.conf", entry.name),
                systemd_boot(entry, has_initramfs).into_bytes(),
            );
        }
    }
    add(IMAGE, image);
    if let Some(initramfs) = initramfs {
        add(INITRAMFS, initramfs);
    }
    files
}

/// GRUB reads its menu as a shell reads a script. It joins the words again itself, and quotes what it must.
fn grub(entries: &[Entry], initramfs: bool, seconds: u32) -> String {
    let mut menu = format!("set timeout={seconds}\nset default=0\n");
    for entry in entries {
        let mut words = String::new();
        for word in entry.bootargs.split_whitespace() {
            // Writing into a String cannot fail.
            let _ = write!(words, " '{word}'");
        }
        let _ = write!(
            menu,
            "menuentry '{}' {{\n  linux {IMAGE}{words}\n",
            entry.title
        );
        if initramfs {
            let _ = writeln!(menu, "  initrd {INITRAMFS}");
        }
        menu.push_str("}\n");
    }
    menu
}

fn systemd_boot(entry: &Entry, initramfs: bool) -> String {
    let mut text = format!("title {}\nlinux {IMAGE}\n", entry.title);
    if initramfs {
        let _ = writeln!(text, "initrd {INITRAMFS}");
    }
    if !entry.bootargs.is_empty() {
        let _ = writeln!(text, "options {}", entry.bootargs);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, bootargs: &str) -> Entry {
        Entry {
            name: name.to_owned(),
            title: format!("The {name}"),
            bootargs: bootargs.to_owned(),
        }
    }

    fn text<'a>(files: &'a [DiskFile], path: &str) -> &'a str {
        let (_, content) = files.iter().find(|(at, _)| at == path).unwrap();
        str::from_utf8(content).unwrap()
    }

    #[test]
    fn both_menus_have_every_entry() {
        let entries = [entry("a", ""), entry("b", "x=1 -- y;z")];
        let files = files(Some(vec![1]), vec![2], Some(vec![3]), &entries, 5);
        assert_eq!(
            text(&files, GRUB_MENU),
            "set timeout=5\nset default=0\nmenuentry 'The a' {\n  linux /granule/Image\n  initrd \
             /granule/initramfs\n}\nmenuentry 'The b' {\n  linux /granule/Image 'x=1' '--' 'y;z'\n  \
             initrd /granule/initramfs\n}\n"
        );
        assert_eq!(
            text(&files, "/loader/loader.conf"),
            "timeout 5\ndefault a.conf\n"
        );
        assert_eq!(
            text(&files, "/loader/entries/b.conf"),
            "title The b\nlinux /granule/Image\ninitrd /granule/initramfs\noptions x=1 -- y;z\n"
        );
        assert_eq!(text(&files, LOADER), "\u{1}");
        assert_eq!(text(&files, IMAGE), "\u{2}");
        assert_eq!(text(&files, INITRAMFS), "\u{3}");
    }

    #[test]
    fn without_a_loader_there_are_only_the_files_of_the_kernel() {
        let files = files(None, vec![2], None, &[entry("a", "")], 0);
        assert_eq!(files, [(IMAGE.to_owned(), vec![2])]);
        let bare = super::files(Some(vec![1]), vec![2], None, &[entry("a", "")], 0);
        assert!(!text(&bare, GRUB_MENU).contains("initrd"));
    }
}
