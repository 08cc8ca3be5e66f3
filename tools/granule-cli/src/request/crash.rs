//! The part of a request for a crash: the crash kernel, and the file for the memory of the kernel that crashes. Plain
//! data, its options on the command line, the words that it puts into both kernels' command lines, and the
//! combinations that are refused.

use std::path::PathBuf;

use clap::Args;

use super::{COUNT_INSTRUCTIONS, Firmware, PageSize, Request};

const HEADING: &str = "Crashing into a crash kernel (kdump)";

/// The crash kernel, and what it is to do. By default the running image is loaded once more for that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Crash {
    /// Once up, load a crash kernel, crash, and have the crash kernel save the memory of the one that crashed
    #[arg(long = "crash", id = "crash", help_heading = HEADING)]
    pub crash: bool,

    /// Page size to request of the crash kernel
    #[arg(long = "crash-page-size", id = "crash_page_size", help_heading = HEADING, value_name = "SIZE",
          value_enum, ignore_case = true, requires = "crash", conflicts_with = "crash_kernel")]
    pub page_size: Option<PageSize>,

    /// The crash kernel, an arm64 Image; default: the same image again
    #[arg(long = "crash-kernel", id = "crash_kernel", help_heading = HEADING, value_name = "IMAGE",
          requires = "crash")]
    pub kernel: Option<PathBuf>,

    /// The crash kernel's initial RAM disk, which writes /proc/vmcore to the beginning of /dev/vda and powers off;
    /// default: the program `kexec` does
    #[arg(long = "crash-initrd", id = "crash_initrd", help_heading = HEADING, value_name = "FILE",
          requires = "crash")]
    pub initrd: Option<PathBuf>,

    /// More words for the crash kernel's command line
    #[arg(long = "crash-append", id = "crash_append", help_heading = HEADING, value_name = "TEXT",
          allow_hyphen_values = true, requires = "crash")]
    pub append: Option<String>,

    /// File for the core, replaced once the core is whole; default: a new one in target/granule
    #[arg(long = "crash-output", id = "crash_output", help_heading = HEADING, value_name = "FILE",
          requires = "crash")]
    pub output: Option<PathBuf>,
}

/// The key of the memory that is set aside for a crash kernel, and its default.
const RESERVED: &str = "crashkernel=";
const RESERVED_DEFAULT: &str = "crashkernel=256M";
/// The word by which our kernel looks for the disk.
const DISK: &str = "granule.disk=on";

impl Crash {
    /// The word for the first kernel's bootargs, unless the user's own words have it.
    pub(crate) fn word(append: Option<&str>) -> Option<String> {
        let mut words = append.unwrap_or_default().split_ascii_whitespace();
        let has = words.any(|word| word.starts_with(RESERVED));
        (!has).then(|| RESERVED_DEFAULT.into())
    }

    /// The crash kernel's command line. Words that only our kernels parse are left out for others (`ours`).
    pub(crate) fn bootargs(&self, ours: bool, counted: bool) -> String {
        let mut words = Vec::new();
        if let Some(size) = self.page_size {
            words.push(format!("arm64.pagesize={}", size.word()));
        }
        if ours {
            words.push(DISK.to_owned());
            words.extend(counted.then(|| COUNT_INSTRUCTIONS.to_owned()));
        }
        words.extend(self.append.clone());
        words.join(" ")
    }

    /// Checks the request without looking at any file.
    pub(crate) fn check(&self, request: &Request) -> Result<(), String> {
        let append = request.append.as_deref().unwrap_or_default();
        let first = |word: &str| word == "--" || word.starts_with("rdinit=");
        let first = append.split_ascii_whitespace().find(|word| first(word));
        let bad = |text: &String| text.contains(['\0', '\n', '\r']);
        let wrong = [
            (
                request.kexec.is_some(),
                "--kexec with --crash: the kernel leaves either way once; give one of both",
            ),
            (
                request.initrd.is_some(),
                "--initrd with --crash: the first kernel's initramfs is made to hold the crash kernel; the \
                 crash kernel's own is --crash-initrd FILE",
            ),
            (
                request.dtb.is_some(),
                "--dtb with --crash: the initramfs that is made for it would alter the tree; leave --dtb out",
            ),
            (
                request.trace.is_some(),
                "--trace with --crash: a kernel that crashes does not end its trace; leave --trace out",
            ),
            (
                request.firmware != Firmware::Direct,
                "--firmware with --crash: firmware would boot from the disk that is for the core; leave \
                 --firmware out",
            ),
            // A line of /etc/kexec carries it, and a NUL ends it in the tree.
            (
                self.append.as_ref().is_some_and(bad),
                "--crash-append holds a NUL byte or a line's end: it is one line",
            ),
        ];
        if let Some((_, line)) = wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            return Err((*line).into());
        }
        match first {
            None => Ok(()),
            Some(word) => Err(format!(
                "--append {word} with --crash: the first process is the `kexec` program; leave the word out"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_command_lines_have_what_the_kernels_know() {
        let crash = Crash {
            crash: true,
            page_size: Some(PageSize::K64),
            append: Some("a b".into()),
            ..Crash::default()
        };
        assert_eq!(
            crash.bootargs(true, true),
            "arm64.pagesize=64k granule.disk=on granule.count=instructions a b"
        );
        let other = Crash {
            page_size: None,
            ..crash.clone()
        };
        assert_eq!(other.bootargs(false, true), "a b");
        let mut request = Request {
            append: Some("x".into()),
            crash: Some(crash),
            ..Request::default()
        };
        assert_eq!(request.bootargs(), "crashkernel=256M x");
        request.append = Some("x crashkernel=64M".into());
        assert_eq!(request.bootargs(), "x crashkernel=64M");
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn contradicting_options_are_named() {
        type Change = fn(&mut Request);
        let cases: [(Change, &str); 7] = [
            (|r| r.kexec = Some(crate::Kexec::default()), "--kexec with"),
            (|r| r.initrd = Some("i".into()), "--crash-initrd FILE"),
            (|r| r.dtb = Some("t".into()), "--dtb with --crash"),
            (|r| r.trace = Some("t".into()), "--trace with --crash"),
            (|r| r.firmware = Firmware::Uefi, "--firmware with --crash"),
            (|r| r.append = Some("a -- b".into()), "first process"),
            (
                |r| {
                    let append = Some("a\ncrash".into());
                    r.crash = Some(Crash {
                        append,
                        ..Crash::default()
                    });
                },
                "--crash-append holds",
            ),
        ];
        for (change, words) in cases {
            let mut request = Request {
                crash: Some(Crash::default()),
                ..Request::default()
            };
            assert_eq!(request.check(), Ok(()));
            change(&mut request);
            let line = request.check().unwrap_err();
            assert!(line.contains(words), "{line}");
        }
    }
}
