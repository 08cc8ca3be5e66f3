//! Boots a machine whose first process is the `kexec` program: code that all rooms share.

use granule_cli::{Boot, Initramfs, Outcome, PageSize, Request};
use serde_json::Value;

use crate::hooked;
use crate::image::{built, image};

/// All page sizes.
pub(crate) const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// Where the archive of [`archive`] has the image that is to be the next kernel.
pub(crate) const NEXT: &str = "/boot/Image";

/// The `kexec` program.
pub(crate) fn program() -> Vec<u8> {
    std::fs::read(built("granule-kexec", "cargo xtask user")).unwrap()
}

/// A machine of 512 MiB with so many CPUs and pages of that size.
pub(crate) fn machine(size: PageSize, cpus: u32) -> Request {
    Request {
        image: Some(image()),
        memory: 512 << 20,
        smp: cpus,
        page_size: Some(size),
        ..Request::default()
    }
}

/// An archive whose first process does these lines of `/etc/kexec`; this kernel's own image is at
/// [`NEXT`].
pub(crate) fn archive(lines: &str) -> Initramfs {
    bare(lines)
        .directory("/boot")
        .file(NEXT, &std::fs::read(image()).unwrap())
}

/// As [`archive`], without an image.
pub(crate) fn bare(lines: &str) -> Initramfs {
    Initramfs::new()
        .program("/init", &program())
        .directory("/etc")
        .file("/etc/kexec", lines.as_bytes())
}

/// A boot that has ended as it was to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) boot: Boot,
    pub(crate) json: Value,
    pub(crate) console: String,
}

impl Ran {
    /// A number of the JSON object.
    #[track_caller]
    pub(crate) fn number(&self, path: &str) -> u64 {
        self.value(path)
            .as_u64()
            .unwrap_or_else(|| panic!("{path} is not a number in {}", self.json))
    }

    /// Returns the value at that place of the JSON object; null if there is none.
    pub(crate) fn value(&self, path: &str) -> &Value {
        path.split('.').fold(&self.json, |value, key| {
            match (value.is_array(), key.parse::<usize>()) {
                (true, Ok(index)) => &value[index],
                _ => &value[key],
            }
        })
    }

    /// Whether the console has this line.
    pub(crate) fn prints(&self, line: &str) -> bool {
        self.console
            .lines()
            .any(|printed| printed.trim_end() == line)
    }
}

/// Boots with this archive, which must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, archive: Initramfs, outcome: Outcome) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    archive.write(file.path()).unwrap();
    let request = Request {
        initrd: Some(file.path().to_owned()),
        ..request.clone()
    };
    boots(&request, outcome)
}

/// Boots as requested, which must end that way.
#[track_caller]
pub(crate) fn boots(request: &Request, outcome: Outcome) -> Ran {
    let boot = hooked::ends(request, outcome);
    Ran {
        json: boot.json(),
        console: boot.console_text(),
        boot,
    }
}
