//! The part of a request for leaving for another kernel: plain data, the words that it puts into
//! both command lines, and the combinations that are refused.

use std::path::PathBuf;

use super::{COUNT_INSTRUCTIONS, PageSize, Request};

/// The next kernel, and how to leave for it. By default the running image loads itself again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kexec {
    /// The next kernel's image; `None` for the running image.
    pub image: Option<PathBuf>,
    /// An initial RAM disk for it.
    pub initrd: Option<PathBuf>,
    /// The next kernel's command line, appended to the words made from the other fields.
    pub append: Option<String>,
    /// The page size to request of the next kernel.
    pub page_size: Option<PageSize>,
    /// Whether to load no segment at its destination, so that everything is copied.
    pub copy: bool,
    /// Whether to copy with MMU and caches off.
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
