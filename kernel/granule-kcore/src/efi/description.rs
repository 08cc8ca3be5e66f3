//! The device tree that the stub hands to the kernel: the firmware's, or an empty one, with other
//! properties in `/chosen`. It follows the boot protocol of arm64 Linux for a boot by EFI.

use granule_boot::chosen::{
    INITRD_END, INITRD_START, UEFI_DESCRIPTOR_BYTES, UEFI_DESCRIPTOR_VERSION, UEFI_MAP_BYTES,
    UEFI_MAP_START, UEFI_SYSTEM_TABLE,
};
use granule_boot::peek::KASLR_SEED;
use granule_boot::tree::{Edit, EditPlace, Name, Range, Tree, WriteError, Writer, rewrite};

const BOOTARGS: &[u8] = b"bootargs";
const SECURE_BOOT: &[u8] = b"linux,uefi-secure-boot";
/// All but the first five, which the description writes only if it has them.
const ALWAYS: [&[u8]; 6] = [
    UEFI_SYSTEM_TABLE,
    UEFI_MAP_START,
    UEFI_MAP_BYTES,
    UEFI_DESCRIPTOR_BYTES,
    UEFI_DESCRIPTOR_VERSION,
    SECURE_BOOT,
];

/// The firmware's memory map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Physical address of its descriptors.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// From one descriptor to the next, in bytes.
    pub descriptor_bytes: u32,
    /// The version of the descriptors.
    pub descriptor_version: u32,
}

/// Whether the firmware starts signed programs only. Linux as distributions build it does not find EFI's tables
/// without this; ours has no use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureBoot {
    /// A variable is missing or cannot be read.
    Unknown = 1,
    /// It starts others too.
    Disabled = 2,
    /// It does.
    Enabled = 3,
}

/// A variable of the firmware that is a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// Its value.
    Is(u8),
    /// There is none.
    Missing,
    /// It cannot be read.
    Unread,
}

impl SecureBoot {
    /// Returns the state by the variables `SecureBoot` and `SetupMode`: keys can be replaced in
    /// setup mode, so nothing is secure there.
    #[must_use]
    pub const fn of(secure: Variable, setup: Variable) -> Self {
        match (secure, setup) {
            (Variable::Missing, _) => Self::Disabled,
            (Variable::Unread, _) | (_, Variable::Missing | Variable::Unread) => Self::Unknown,
            (Variable::Is(0), _) | (_, Variable::Is(1)) => Self::Disabled,
            _ => Self::Enabled,
        }
    }
}

/// The properties that the kernel is given. The old tree's value of what is `None` stays.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// The command line, without a NUL.
    pub command_line: Option<&'a [u8]>,
    /// The memory of the initramfs.
    pub initrd: Option<Range>,
    /// The seed of the kernel's addresses (`kaslr-seed`), if the firmware makes one.
    pub seed: Option<[u8; 8]>,
    /// Physical address of the system table.
    pub system_table: u64,
    /// The memory map.
    pub map: Map,
    /// Whether only signed programs are started.
    pub secure_boot: SecureBoot,
}

/// An upper bound for the bytes of the new tree.
#[must_use]
pub fn most_bytes(old: &Tree<'_>, description: &Description<'_>) -> usize {
    let reservations = old.reservations().map_or(0, Iterator::count);
    let line = description.command_line.unwrap_or_default();
    // Ten properties with their names, a node, the header and the end of the reservations.
    let new = 816_usize.saturating_add(line.len());
    let kept = old.structure_bytes().saturating_add(old.strings().len());
    new.saturating_add(kept)
        .saturating_add(reservations.saturating_mul(16))
}

/// Writes the new tree to `into` and returns its length, which depends on no address or number. Errors: the error
/// in the old tree, or `into` is too small.
pub fn write<'t>(
    old: &Tree<'t>,
    description: &Description<'_>,
    into: &'t mut [u8],
) -> Result<usize, WriteError> {
    let reservations = old.reservations()?;
    rewrite(old, reservations, &mut Chosen(description), into)
}

/// Room for a tree of an empty root.
pub const EMPTY_BYTES: usize = 160;

/// Writes a tree of an empty root to `into` and returns its length. Errors: `into` is too small.
pub fn empty(into: &mut [u8]) -> Result<usize, WriteError> {
    let mut tree = Writer::new(into, [])?;
    tree.begin(b"")?;
    tree.cells(b"#address-cells", &[2])?;
    tree.cells(b"#size-cells", &[2])?;
    tree.end()?;
    tree.finish(0)
}

struct Chosen<'a>(&'a Description<'a>);

impl Chosen<'_> {
    /// Whether the description has a value of its own for the property.
    fn replaces(&self, name: Name<'_>) -> bool {
        let any = |names: &[&[u8]]| names.iter().any(|one| name.is(one));
        any(&ALWAYS)
            || self.0.command_line.is_some() && any(&[BOOTARGS])
            || self.0.initrd.is_some() && any(&[INITRD_START, INITRD_END])
            || self.0.seed.is_some() && any(&[KASLR_SEED])
    }
}

impl<'t> Edit<'t> for Chosen<'_> {
    fn keeps_property(&mut self, place: &EditPlace<'t>, name: Name<'t>) -> bool {
        !matches!(place, EditPlace::Chosen) || !self.replaces(name)
    }

    fn begins(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Result<(), WriteError> {
        if !matches!(place, EditPlace::Chosen) {
            return Ok(());
        }
        let description = self.0;
        if let Some(line) = description.command_line {
            to.text(BOOTARGS, line)?;
        }
        if let Some(initrd) = description.initrd {
            to.numbers(INITRD_START, [initrd.start])?;
            to.numbers(INITRD_END, [initrd.start.saturating_add(initrd.bytes)])?;
        }
        if let Some(seed) = &description.seed {
            to.property(KASLR_SEED, seed)?;
        }
        let map = &description.map;
        to.numbers(UEFI_SYSTEM_TABLE, [description.system_table])?;
        to.numbers(UEFI_MAP_START, [map.start])?;
        to.cells(UEFI_MAP_BYTES, &[map.bytes])?;
        to.cells(UEFI_DESCRIPTOR_BYTES, &[map.descriptor_bytes])?;
        to.cells(UEFI_DESCRIPTOR_VERSION, &[map.descriptor_version])?;
        to.cells(SECURE_BOOT, &[description.secure_boot as u32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_trees::{node, tree};
    use dtoolkit::fdt::Fdt;
    use dtoolkit::{Node, Property};
    use granule_boot::expand::Request;

    const MAP: Map = Map {
        start: 0x1_4000_1000,
        bytes: 48 * 300,
        descriptor_bytes: 48,
        descriptor_version: 1,
    };

    fn everything() -> Description<'static> {
        Description {
            command_line: Some(b"arm64.pagesize=16k"),
            initrd: Some(Range {
                start: 0x4800_0000,
                bytes: 0x777,
            }),
            seed: Some([7; 8]),
            system_table: 0x5_0000_0018,
            map: MAP,
            secure_boot: SecureBoot::Disabled,
        }
    }

    fn nothing() -> Description<'static> {
        Description {
            command_line: None,
            initrd: None,
            seed: None,
            ..everything()
        }
    }

    /// A machine's tree whose firmware has filled `/chosen` as GRUB does.
    fn machine() -> Vec<u8> {
        let memory = [
            ("device_type", &b"memory\0"[..]),
            ("bootargs", b"not these\0"),
        ];
        let chosen = [
            ("stdout-path", &b"/pl011@9000000\0"[..]),
            ("bootargs", b"old words\0"),
            ("linux,initrd-start", &[1; 8]),
            ("linux,initrd-end", &[2; 8]),
            ("kaslr-seed", &[3; 8]),
            ("linux,uefi-mmap-size", &[4; 4]),
        ];
        let children = [
            node("memory@40000000", &memory, []),
            node("chosen", &chosen, []),
        ];
        tree(node("", &[], children), &[(0x1000, 0x2000)])
    }

    fn written(old: &[u8], description: &Description<'_>) -> Vec<u8> {
        let tree = Tree::new(old).unwrap();
        let mut into = vec![0xa5; most_bytes(&tree, description)];
        let used = write(&tree, description, &mut into).unwrap();
        into.truncate(used);
        into
    }

    fn chosen(tree: &[u8]) -> Vec<(String, Vec<u8>)> {
        let tree = Fdt::new(tree).unwrap();
        let node = tree.find_node("/chosen").unwrap();
        let all = node.properties();
        all.map(|it| (it.name().to_owned(), it.value().to_vec()))
            .collect()
    }

    fn owned(name: &str, value: &[u8]) -> (String, Vec<u8>) {
        (name.to_owned(), value.to_vec())
    }

    fn of_the_firmware() -> Vec<(String, Vec<u8>)> {
        vec![
            owned("linux,uefi-system-table", &0x5_0000_0018_u64.to_be_bytes()),
            owned("linux,uefi-mmap-start", &MAP.start.to_be_bytes()),
            owned("linux,uefi-mmap-size", &MAP.bytes.to_be_bytes()),
            owned("linux,uefi-mmap-desc-size", &48_u32.to_be_bytes()),
            owned("linux,uefi-mmap-desc-ver", &1_u32.to_be_bytes()),
            owned("linux,uefi-secure-boot", &2_u32.to_be_bytes()),
        ]
    }

    #[test]
    fn what_the_description_has_replaces_the_old_values() {
        let new = written(&machine(), &everything());
        let mut expected = vec![
            owned("bootargs", b"arm64.pagesize=16k\0"),
            owned("linux,initrd-start", &0x4800_0000_u64.to_be_bytes()),
            owned("linux,initrd-end", &0x4800_0777_u64.to_be_bytes()),
            owned("kaslr-seed", &[7; 8]),
        ];
        expected.extend(of_the_firmware());
        expected.push(owned("stdout-path", b"/pl011@9000000\0"));
        assert_eq!(chosen(&new), expected);
        let read = Fdt::new(&new).unwrap();
        let memory = read.find_node("/memory@40000000").unwrap();
        assert_eq!(memory.property("bootargs").unwrap().value(), b"not these\0");
        let reserved: Vec<_> = read.memory_reservations().map(|it| it.address()).collect();
        assert_eq!(reserved, [0x1000]);
        let request = |tree| Request::of(&Tree::new(tree).unwrap()).unwrap();
        let read = request(&new).unwrap();
        assert_eq!(read.system_table, 0x5_0000_0018);
        assert_eq!(read.map.start, MAP.start);
        assert_eq!(read.map.bytes, u64::from(MAP.bytes));
    }

    #[test]
    fn only_keys_that_nobody_can_replace_are_secure() {
        use Variable::{Is, Missing, Unread};
        for (secure, setup, expected) in [
            (Is(1), Is(0), SecureBoot::Enabled),
            (Is(1), Is(1), SecureBoot::Disabled),
            (Is(0), Is(0), SecureBoot::Disabled),
            (Is(0), Is(1), SecureBoot::Disabled),
            (Missing, Unread, SecureBoot::Disabled),
            (Unread, Is(0), SecureBoot::Unknown),
            (Is(1), Missing, SecureBoot::Unknown),
            (Is(0), Unread, SecureBoot::Unknown),
        ] {
            let found = SecureBoot::of(secure, setup);
            assert_eq!(found, expected, "{secure:?} {setup:?}");
        }
    }

    #[test]
    fn what_it_does_not_have_stays() {
        let mut expected = of_the_firmware();
        expected.extend([
            owned("stdout-path", b"/pl011@9000000\0"),
            owned("bootargs", b"old words\0"),
            owned("linux,initrd-start", &[1; 8]),
            owned("linux,initrd-end", &[2; 8]),
            owned("kaslr-seed", &[3; 8]),
        ]);
        assert_eq!(chosen(&written(&machine(), &nothing())), expected);
    }

    #[test]
    fn without_a_tree_there_is_one_of_nothing_but_chosen() {
        let mut old = [0; EMPTY_BYTES];
        let used = empty(&mut old).unwrap();
        let new = written(&old[..used], &everything());
        let read = Fdt::new(&new).unwrap();
        let root = read.root();
        assert!(root.children().map(|it| it.name()).eq(["chosen"]));
        assert_eq!(chosen(&new).len(), 10);
        assert!(empty(&mut [0; 100]).is_err());
    }

    /// The tree is measured and written before the memory map is final, and once more in the same memory.
    #[test]
    fn it_is_as_long_with_any_numbers() {
        let other = Description {
            map: Map::default(),
            system_table: 0,
            ..everything()
        };
        let old = machine();
        let length = written(&old, &everything()).len();
        assert_eq!(written(&old, &other).len(), length);
        let tree = Tree::new(&old).unwrap();
        let short = write(&tree, &other, &mut vec![0; length - 1]);
        assert_eq!(short, Err(WriteError::Full { room: length - 1 }));
    }

    #[test]
    fn a_damaged_tree_is_refused() {
        let old = machine();
        let damaged = |at: usize| {
            let mut old = old.clone();
            old[at] ^= 0x40;
            let tree = Tree::new(&old).ok()?;
            write(&tree, &nothing(), &mut [0; 4096]).ok()
        };
        let structure = u32::from_be_bytes(*old[8..].first_chunk().unwrap()) as usize;
        assert_eq!(damaged(structure), None);
        assert_eq!(damaged(0), None);
        assert!(damaged(old.len() - 1).is_some());
    }
}
