//! Writes an initramfs: an uncompressed cpio archive of the kind "newc", which the kernel reads.
//!
//! Only what tests and benchmarks need is supported: files, directories, block devices and symbolic links, all
//! owned by root.

use std::path::Path;
use std::{fs, io};

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    count: u32,
}

/// File types in the mode field.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const BLOCK_DEVICE: u32 = 0o060_000;
/// Bytes of an entry's header, before its name.
const HEADER_BYTES: usize = 110;
/// Alignment of headers and contents.
const ALIGNMENT: usize = 4;

impl Initramfs {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an executable file.
    pub fn program(self, path: &str, content: &[u8]) -> Self {
        self.entry(path, FILE | 0o755, content)
    }

    /// Adds a file.
    pub fn file(self, path: &str, content: &[u8]) -> Self {
        self.entry(path, FILE | 0o644, content)
    }

    /// Adds a directory.
    pub fn directory(self, path: &str) -> Self {
        self.entry(path, DIRECTORY | 0o755, b"")
    }

    /// Adds a symbolic link.
    pub fn link(self, path: &str, to: &str) -> Self {
        self.entry(path, LINK | 0o777, to.as_bytes())
    }

    /// Adds the node of a block device with these numbers, major and minor.
    pub fn block_device(mut self, path: &str, numbers: (u32, u32)) -> Self {
        self.count += 1;
        let name = path.trim_start_matches('/');
        self.put((self.count, BLOCK_DEVICE | 0o600, numbers), name, b"");
        self
    }

    fn entry(mut self, path: &str, mode: u32, content: &[u8]) -> Self {
        let name = path.trim_start_matches('/');
        self.count += 1;
        self.put((self.count, mode, (0, 0)), name, content);
        self
    }

    /// Writes an entry: its inode, mode and, for a device, numbers.
    fn put(&mut self, (number, mode, rdev): (u32, u32, (u32, u32)), name: &str, content: &[u8]) {
        // Reserve exactly: an archive may hold hundreds of megabytes, and doubling that is too
        // much.
        self.bytes
            .reserve_exact(HEADER_BYTES + name.len() + content.len() + 2 * ALIGNMENT);
        self.bytes.extend_from_slice(b"070701");
        // Inode, mode, owner, group, links, time, bytes, devices, bytes of the name with its NUL, sum.
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let numbers = [
            number,
            mode,
            0,
            0,
            1,
            0,
            length(content.len()),
            0,
            0,
            rdev.0,
            rdev.1,
            length(name.len() + 1),
            0,
        ];
        for number in numbers {
            self.bytes
                .extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        let bytes = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(bytes, 0);
    }

    /// Bytes of the archive so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The finished archive.
    pub fn bytes(mut self) -> Vec<u8> {
        self.put((0, 0, (0, 0)), "TRAILER!!!", b"");
        self.bytes
    }

    /// Writes the archive to a file.
    /// Fails when the file cannot be written.
    pub fn write(self, to: &Path) -> io::Result<()> {
        fs::write(to, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_the_format_has_them() {
        let bytes = Initramfs::new()
            .directory("/bin")
            .program("/bin/x", b"hello")
            .link("/init", "bin/x")
            .bytes();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        // A header of 110 bytes, "bin" and its NUL: 114, padded to 116.
        assert_eq!(&bytes[110..114], b"bin\0");
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[116 + 6 + 8..116 + 6 + 16], b"000081ed");
        assert_eq!(&bytes[116 + 6 + 48..116 + 6 + 56], b"00000005");
        assert_eq!(&bytes[116 + 110..116 + 116], b"bin/x\0");
        assert_eq!(&bytes[116 + 116..116 + 121], b"hello");
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}
