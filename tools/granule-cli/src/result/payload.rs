//! The payload: the host's copy of the files that start the next kernel, and the check that both
//! kernels report the same bytes and digests.
//!
//! The digests are taken of the files before any kernel saw them, because agreement of the two kernels alone
//! would prove little.

use granule_kexec::Digest;

use super::hop::Hop;

/// The files as the host has them, before any kernel reads them.
#[derive(Debug)]
pub(crate) struct Payload {
    kernel: Vec<u8>,
    initrd: Option<Fingerprint>,
    /// Offset of the boot record in the image: only our kernels have one.
    pub(crate) boot_record: Option<u64>,
}

/// A length and a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    bytes: u64,
    digest: u64,
}

impl Fingerprint {
    fn of(bytes: &[u8]) -> Self {
        let mut digest = Digest::new();
        digest.bytes(bytes);
        Self {
            bytes: bytes.len() as u64,
            digest: digest.value(),
        }
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Compared {
    /// Both kernels reported every value, and all agree.
    Same,
    /// A reported value differs: which, and from what.
    Differs(String),
    /// The reported values agree, but some are missing.
    Incomplete,
}

impl Payload {
    pub(crate) fn new(kernel: Vec<u8>, initrd: Option<&[u8]>, boot_record: Option<u64>) -> Self {
        Self {
            kernel,
            initrd: initrd.map(Fingerprint::of),
            boot_record,
        }
    }

    /// Whether the next kernel is one of ours, which reports what it is and what it received.
    pub(crate) fn is_ours(&self) -> bool {
        self.boot_record.is_some()
    }

    /// Compares the payload with both kernels' reports: the whole image and the initial RAM disk as
    /// they were loaded; after arrival the part of the image that no boot step writes, the disk and
    /// the tree.
    pub(super) fn compare(&self, hop: &Hop<'_>) -> Compared {
        let kernel = Fingerprint::of(&self.kernel);
        let mut checks = vec![
            (
                "the image as it was loaded",
                hop.fingerprint("segment.kernel"),
                Some(kernel),
            ),
            (
                "the tree as it arrived",
                hop.arrived_digest("tree"),
                hop.fingerprint("segment.tree"),
            ),
        ];
        let arrived = hop.fingerprint("arrived.kernel");
        let prefix = arrived.map(|arrived| {
            let length = usize::try_from(arrived.bytes).unwrap_or(usize::MAX);
            // An empty prefix would prove nothing, and one longer than the file is not a prefix of it.
            let prefix = self.kernel.get(..length).filter(|it| !it.is_empty());
            prefix.map_or(kernel, Fingerprint::of)
        });
        checks.push(("the image as it arrived", arrived, prefix));
        if self.initrd.is_some() {
            checks.extend([
                (
                    "the initial RAM disk as it was loaded",
                    hop.fingerprint("segment.initrd"),
                    self.initrd,
                ),
                (
                    "the initial RAM disk as it arrived",
                    hop.arrived_digest("initrd"),
                    self.initrd,
                ),
            ]);
        }
        let mut all = true;
        for (what, reported, expected) in checks {
            match (reported, expected) {
                (Some(reported), Some(expected)) if reported == expected => (),
                (Some(reported), Some(expected)) => {
                    return Compared::Differs(format!(
                        "{what} has {} bytes with digest {:#018x}, expected {} with {:#018x}",
                        reported.bytes, reported.digest, expected.bytes, expected.digest
                    ));
                }
                _ => all = false,
            }
        }
        if all {
            Compared::Same
        } else {
            Compared::Incomplete
        }
    }
}

impl Hop<'_> {
    /// The bytes and the digest that the next kernel reported.
    fn fingerprint(&self, of: &str) -> Option<Fingerprint> {
        Some(Fingerprint {
            bytes: self.arrived(&format!("{of}.bytes"))?,
            digest: self.arrived(&format!("{of}.digest"))?,
        })
    }

    /// The digest of a segment after arrival, over as many bytes as were given.
    fn arrived_digest(&self, of: &str) -> Option<Fingerprint> {
        Some(Fingerprint {
            bytes: self.arrived(&format!("segment.{of}.bytes"))?,
            digest: self.arrived(&format!("arrived.{of}.digest"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::console_record::RecordLines;

    fn digest(bytes: &[u8]) -> u64 {
        Fingerprint::of(bytes).digest
    }

    /// The lines that kernels print when all is well, with numbers in each of their forms.
    fn reported(kernel: &[u8], prefix: usize, disk: &[u8]) -> Vec<String> {
        let line = |key: &str, bytes: usize, digest: u64| {
            vec![
                format!("kexec.{key}.bytes={bytes}"),
                format!("kexec.{key}.digest={digest:#018x}"),
            ]
        };
        [
            line("segment.kernel", kernel.len(), digest(kernel)),
            line("arrived.kernel", prefix, digest(&kernel[..prefix])),
            line("segment.initrd", disk.len(), digest(disk)),
            line("segment.tree", 900, 7),
            vec![
                format!("kexec.arrived.initrd.digest={}", digest(disk)),
                "kexec.arrived.tree.digest=0x7".into(),
            ],
        ]
        .concat()
    }

    fn compare(given: &Payload, lines: &[String]) -> Compared {
        let mut leaving = RecordLines::default();
        leaving.line("kexec.leaving.dsb=1");
        let mut next = RecordLines::default();
        for line in lines {
            next.line(line);
        }
        assert_eq!(next.faults(), [""; 0]);
        let records = [leaving, next];
        given.compare(&Hop::last(&records).unwrap())
    }

    #[test]
    fn every_digest_is_held_against_the_file() {
        let kernel: Vec<u8> = (0..=255).collect();
        let disk = b"a disk";
        let given = Payload::new(kernel.clone(), Some(disk), Some(0));
        let lines = reported(&kernel, 160, disk);
        assert_eq!(compare(&given, &lines), Compared::Same);
        // Each changed line is found, and each missing line is missed.
        for at in 0..lines.len() {
            let mut less = lines.clone();
            less.remove(at);
            assert_eq!(
                compare(&given, &less),
                Compared::Incomplete,
                "{}",
                lines[at]
            );
            let mut other = lines.clone();
            let key = other[at].split_once('=').unwrap().0.to_owned();
            if key == "kexec.segment.tree.bytes" {
                // The host has no copy of the tree.
                continue;
            }
            other[at] = format!("{key}=3");
            let Compared::Differs(line) = compare(&given, &other) else {
                panic!("{key} was not seen");
            };
            assert!(line.contains("0x") && line.contains("expected"), "{line}");
        }
        // Prefixes that are longer than the file or empty, and an image with one changed byte.
        for (bytes, value) in [(257, 3), (0, digest(b""))] {
            let mut bad = lines.clone();
            bad[2] = format!("kexec.arrived.kernel.bytes={bytes}");
            bad[3] = format!("kexec.arrived.kernel.digest={value}");
            assert!(matches!(compare(&given, &bad), Compared::Differs(_)));
        }
        let mut decayed = kernel.clone();
        decayed[100] ^= 1;
        let given = Payload::new(decayed, Some(disk), Some(0));
        assert!(matches!(compare(&given, &lines), Compared::Differs(_)));
    }

    #[test]
    fn without_a_disk_none_is_expected() {
        let kernel = vec![1; 99];
        let given = Payload::new(kernel.clone(), None, Some(0));
        let mut lines = reported(&kernel, 99, b"");
        lines.retain(|line| !line.contains("initrd"));
        assert_eq!(compare(&given, &lines), Compared::Same);
        assert_eq!(compare(&given, &[]), Compared::Incomplete);
    }
}
