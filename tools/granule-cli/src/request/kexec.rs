//! The part of a request for leaving for another kernel: plain data, its options on the
//! command line, the words that it puts into both kernels' command lines, and the combinations that are refused.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::{COUNT_INSTRUCTIONS, PageSize, Request};

const HEADING: &str = "Leaving for another kernel (kexec)";

/// The next kernel, and how to leave for it. By default the running image loads itself again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(group(ArgGroup::new("next").args(["kexec", "kexec_page_size"]).multiple(true)))]
pub struct Kexec {
    /// Once up, load this arm64 Image and leave for it: of any page size, or another kernel's
    #[arg(long = "kexec", id = "kexec", help_heading = HEADING, value_name = "IMAGE")]
    pub image: Option<PathBuf>,

    /// Page size to request of the next kernel; without --kexec that is the same image again
    #[arg(long = "kexec-page-size", id = "kexec_page_size", help_heading = HEADING, value_name = "SIZE",
          value_enum, ignore_case = true)]
    pub page_size: Option<PageSize>,

    /// The next kernel's initial RAM disk
    #[arg(long = "kexec-initrd", id = "kexec_initrd", help_heading = HEADING, value_name = "FILE",
          requires = "next")]
    pub initrd: Option<PathBuf>,

    /// The next kernel's command line
    #[arg(long = "kexec-append", id = "kexec_append", help_heading = HEADING, value_name = "TEXT",
          allow_hyphen_values = true, requires = "next")]
    pub append: Option<String>,

    /// Copy every segment, even one that could be loaded at its destination
    #[arg(long = "kexec-copy", id = "kexec_copy", help_heading = HEADING, requires = "next")]
    pub copy: bool,

    /// Copy with MMU and caches off (granule.kexec=uncached), to compare
    #[arg(long = "kexec-uncached", id = "kexec_uncached", help_heading = HEADING, requires = "next")]
    pub uncached: bool,
}

/// The bootargs word that makes the leaving kernel copy with its MMU off.
const UNCACHED: &str = "granule.kexec=uncached";
/// The bootargs word that makes the next kernel digest the segments it received.
const DIGEST: &str = "granule.kexec=digest";

impl Kexec {
    /// The word for the leaving kernel's bootargs, if it needs one.
    pub(crate) fn word(&self) -> Option<String> {
        self.uncached.then(|| UNCACHED.into())
    }

    /// The next kernel's command line. Words that only our kernels parse are left out for others
    /// (`ours`).
    pub(crate) fn bootargs(&self, ours: bool, counted: bool) -> String {
        let mut words = Vec::new();
        if let Some(size) = self.page_size {
            words.push(format!("arm64.pagesize={}", size.word()));
        }
        if ours {
            words.push(DIGEST.into());
            words.extend(counted.then(|| COUNT_INSTRUCTIONS.to_owned()));
        }
        words.extend(self.append.clone());
        words.join(" ")
    }

    /// Checks the request without looking at any file.
    pub(crate) fn check(&self, request: &Request) -> Result<(), String> {
        if request.initrd.is_some() {
            return Err(
                "--initrd with --kexec: the first kernel's initramfs is made to hold the next one; \
                 the next one's own is --kexec-initrd FILE"
                    .into(),
            );
        }
        if request.dtb.is_some() {
            return Err(
                "--dtb with --kexec: the initramfs that is made for it would alter the tree; put \
                 the `kexec` program, its files and /etc/kexec into an --initrd of your own"
                    .into(),
            );
        }
        let append = request.append.as_deref().unwrap_or_default();
        let first = |word: &str| word == "--" || word.starts_with("rdinit=");
        if let Some(word) = append.split_ascii_whitespace().find(|word| first(word)) {
            return Err(format!(
                "--append {word} with --kexec: the first process is the `kexec` program; leave the \
                 word out"
            ));
        }
        // A line of /etc/kexec carries it, and a NUL ends it in the tree.
        let bad = |text: &String| text.contains(['\0', '\n', '\r']);
        if self.append.as_ref().is_some_and(bad) {
            return Err("--kexec-append holds a NUL byte or a line's end: it is one line".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_line_has_what_that_kernel_knows() {
        let kexec = Kexec {
            page_size: Some(PageSize::K64),
            append: Some("a b".into()),
            uncached: true,
            ..Kexec::default()
        };
        assert_eq!(
            kexec.bootargs(true, true),
            "arm64.pagesize=64k granule.kexec=digest granule.count=instructions a b"
        );
        assert_eq!(
            kexec.bootargs(true, false),
            "arm64.pagesize=64k granule.kexec=digest a b"
        );
        let other = Kexec {
            page_size: None,
            ..kexec.clone()
        };
        assert_eq!(other.bootargs(false, true), "a b");
        let request = Request {
            append: Some("x".into()),
            kexec: Some(kexec),
            ..Request::default()
        };
        assert_eq!(request.bootargs(), "granule.kexec=uncached x");
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn contradicting_options_are_named() {
        let refused = |change: &dyn Fn(&mut Request)| {
            let mut request = Request {
                kexec: Some(Kexec::default()),
                ..Request::default()
            };
            change(&mut request);
            request.check().unwrap_err()
        };
        assert!(refused(&|r| r.initrd = Some("i".into())).contains("--kexec-initrd"));
        assert!(refused(&|r| r.dtb = Some("t".into())).contains("--dtb with --kexec"));
        for words in ["a -- b", "rdinit=/x", "--"] {
            let line = refused(&|r| r.append = Some(words.into()));
            assert!(line.contains("first process"), "{line}");
        }
        for text in ["a\0b", "a\nexec", "a\r"] {
            let kexec = Kexec {
                append: Some(text.into()),
                ..Kexec::default()
            };
            let line = refused(&|r| r.kexec = Some(kexec.clone()));
            assert!(line.contains("--kexec-append"), "{line}");
        }
    }
}
