//! Where the initramfs comes from: the device path that boot loaders offer it at, and the words `initrd=` of
//! the command line as paths of files.

use granule_boot::words;

/// The device path of an initramfs that the boot loader offers by `LoadFile2`: the vendor media node
/// 5568e427-68fc-4f3d-ac74-ca555231cc68, and the end of the path.
pub const DEVICE_PATH: [u8; 24] = [
    4, 3, 20, 0, // media, vendor; 20 bytes
    0x27, 0xe4, 0x68, 0x55, 0xfc, 0x68, 0x3d, 0x4f, 0xac, 0x74, 0xca, 0x55, 0x52, 0x31, 0xcc, 0x68,
    0x7f, 0xff, 4, 0, // the end of all instances
];

/// Units of the longest path, with the NUL at its end.
pub const MOST_UNITS: usize = 260;

/// The files that the command line names, in order. Each holds a part of the initramfs.
pub fn files(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    words::words(line)
        .filter(|word| word.key == b"initrd")
        .filter_map(|word| word.value)
        .filter(|path| !path.is_empty())
}

/// A file's path in EFI's UTF-16 with backslashes and a NUL. `None` if it is not UTF-8, or too long.
#[must_use]
pub fn path(name: &[u8]) -> Option<[u16; MOST_UNITS]> {
    let name = core::str::from_utf8(name).ok()?;
    let mut path = [0; MOST_UNITS];
    let mut units = name.encode_utf16();
    let (_, room) = path.split_last_mut()?;
    for to in room {
        match units.next() {
            Some(unit) if unit == u16::from(b'/') => *to = u16::from(b'\\'),
            Some(unit) => *to = unit,
            None => break,
        }
    }
    units.next().is_none().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_path_is_a_vendor_media_node_and_an_end() {
        let length = |at: usize| u16::from_le_bytes([DEVICE_PATH[at + 2], DEVICE_PATH[at + 3]]);
        assert_eq!((&DEVICE_PATH[..2], length(0)), (&[4, 3][..], 20));
        assert_eq!((&DEVICE_PATH[20..22], length(20)), (&[0x7f, 0xff][..], 4));
        // The first three fields of a GUID are little endian.
        let guid = &DEVICE_PATH[4..20];
        let first = u32::from_le_bytes(*guid.first_chunk().unwrap());
        let text = guid[8..].iter().map(|byte| format!("{byte:02x}"));
        assert_eq!(first, 0x5568_e427);
        assert_eq!(guid[4..8], [0xfc, 0x68, 0x3d, 0x4f]);
        assert_eq!(text.collect::<String>(), "ac74ca555231cc68");
    }

    #[test]
    fn all_files_of_the_command_line_count() {
        let line = b"initrd=/boot/one a=b initrd=\"two words\" initrd= initrd -- initrd=mine";
        assert!(files(line).eq([&b"/boot/one"[..], b"two words"]));
    }

    #[test]
    fn a_path_has_backslashes_and_a_nul() {
        let path_of = |name: &str| {
            let path = path(name.as_bytes())?;
            let length = path.iter().position(|unit| *unit == 0)?;
            String::from_utf16(&path[..length]).ok()
        };
        assert_eq!(path_of("/boot/initrd.img").unwrap(), "\\boot\\initrd.img");
        assert_eq!(path_of("\\ü").unwrap(), "\\ü");
        let longest = "x".repeat(MOST_UNITS - 1);
        assert_eq!(path_of(&longest), Some(longest));
        assert_eq!(path_of(&"x".repeat(MOST_UNITS)), None);
        assert_eq!(path(&[0xff]), None);
    }
}
