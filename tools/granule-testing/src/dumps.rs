//! Memory dumps as files, made of pages: for tests of their readers. No page-table code is used
//! here, and nothing of the readers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The bytes of an ELF note.
#[must_use]
pub fn note(name: &str, kind: u32, text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [name.len() as u32 + 1, text.len() as u32, kind] {
        bytes.extend(word.to_le_bytes());
    }
    for part in [[name.as_bytes(), b"\0"].concat().as_slice(), text] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// Returns the note with a CPU's sp, pc and pstate.
#[must_use]
pub fn cpu_note(sp: u64, pc: u64, pstate: u64) -> Vec<u8> {
    let mut text = vec![0; 392];
    for (at, word) in [(360, sp), (368, pc), (376, pstate)] {
        text[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    note("CORE", 1, &text)
}

/// An ELF core of an arm64 machine with these pieces of memory and notes.
#[must_use]
pub fn elf_core(memory: &[(u64, Vec<u8>)], notes: &[u8]) -> Vec<u8> {
    let headers = 1 + memory.len();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // ET_CORE, EM_AARCH64
    file.extend([4, 0, 183, 0, 1, 0, 0, 0]);
    for word in [0, 64, 0_u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64, 56, headers as u16, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut offset = 64 + 56 * headers as u64;
    let mut header = |kind: u32, address: u64, bytes: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        for word in [offset, 0, address, bytes, bytes, 0] {
            file.extend(word.to_le_bytes());
        }
        offset += bytes;
    };
    header(4, 0, notes.len() as u64);
    for (address, bytes) in memory {
        header(1, *address, bytes.len() as u64);
    }
    file.extend(notes);
    for (_, bytes) in memory {
        file.extend(bytes);
    }
    file
}

/// The contents of a kdump file.
#[derive(Clone, Debug, Default)]
pub struct Kdump {
    /// The bytes of a page.
    pub page_bytes: u32,
    /// The pages that the machine has, as a number; those after are absent.
    pub pages: u64,
    /// Whether of these the machine has those in the file alone.
    pub stored_alone: bool,
    /// The pages in the file by their numbers: their stored bytes and flags.
    pub stored: BTreeMap<u64, (Vec<u8>, u32)>,
    /// The dump level.
    pub level: u32,
    /// The text of VMCOREINFO.
    pub vmcoreinfo: Vec<u8>,
    /// ELF notes.
    pub notes: Vec<u8>,
}

impl Kdump {
    /// The parts of the file, in version 6, each with its offset. Between them are zeros.
    fn parts(&self) -> Vec<(u64, Vec<u8>)> {
        let block = u64::from(self.page_bytes);
        let bitmap = self.pages.div_ceil(8).div_ceil(block).max(1) * block;
        let mut head = b"KDUMP   \x06\0\0\0".to_vec();
        head.resize(12 + 4 * 65, 0);
        head.extend(b"aarch64");
        head.resize(424, 0);
        for word in [0, block, 1, 2 * bitmap / block, self.pages] {
            head.extend((word as u32).to_le_bytes());
        }
        let mut sub = vec![0; 104];
        let descriptors = 2 * block + 2 * bitmap;
        let info = descriptors + 24 * self.stored.len() as u64;
        let notes = info + self.vmcoreinfo.len() as u64;
        for (at, word) in [
            (8, u64::from(self.level)),
            (32, info),
            (40, self.vmcoreinfo.len() as u64),
            (48, notes),
            (56, self.notes.len() as u64),
            (96, self.pages),
        ] {
            sub[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let mut bits = BTreeMap::<u64, u8>::new();
        let mut set = |start: u64, page: u64| {
            *bits.entry(start + page / 8).or_default() |= 1 << (page % 8);
        };
        let (mut table, mut pages) = (Vec::new(), Vec::new());
        let first = notes + self.notes.len() as u64;
        for (&page, (bytes, flags)) in &self.stored {
            set(2 * block, page);
            set(2 * block + bitmap, page);
            table.extend((first + pages.len() as u64).to_le_bytes());
            table.extend((bytes.len() as u32).to_le_bytes());
            table.extend(flags.to_le_bytes());
            table.extend(0_u64.to_le_bytes());
            pages.extend(bytes);
        }
        if !self.stored_alone {
            (0..self.pages).for_each(|page| set(2 * block, page));
        }
        let mut parts = vec![(0, head), (block, sub)];
        parts.extend(bits.into_iter().map(|(at, byte)| (at, vec![byte])));
        parts.extend([
            (descriptors, table),
            (info, self.vmcoreinfo.clone()),
            (notes, self.notes.clone()),
            (first, pages),
        ]);
        parts
    }

    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        let mut file = Vec::new();
        for (at, bytes) in self.parts() {
            let (at, end) = (at as usize, at as usize + bytes.len());
            file.resize(end.max(file.len()), 0);
            file[at..end].copy_from_slice(&bytes);
        }
        file
    }

    /// Writes the file with holes: its bitmaps may be larger than memory. Errors: those of the file.
    pub fn write_to(&self, file: &File) -> io::Result<()> {
        let mut parts = self.parts().into_iter();
        parts.try_for_each(|(at, bytes)| file.write_all_at(&bytes, at))
    }
}

/// The flattened form of a file, in pieces of `piece` bytes, the last first.
#[must_use]
pub fn flattened(file: &[u8], piece: usize) -> Vec<u8> {
    let mut stream = b"makedumpfile".to_vec();
    stream.resize(4096, 0);
    for (number, bytes) in file
        .chunks(piece)
        .enumerate()
        .collect::<Vec<_>>()
        .iter()
        .rev()
    {
        stream.extend(((number * piece) as u64).to_be_bytes());
        stream.extend((bytes.len() as u64).to_be_bytes());
        stream.extend(*bytes);
    }
    stream.extend([0xff; 16]);
    stream
}
