//! Memory dumps as files, made of pages: for tests of their readers. No page-table code is used
//! here, and nothing of the readers.

use std::collections::BTreeMap;

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
    /// The file, in version 6.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        let block = self.page_bytes as usize;
        let bitmap = (self.pages as usize).div_ceil(8).div_ceil(block).max(1) * block;
        let mut file = b"KDUMP   \x06\0\0\0".to_vec();
        file.resize(12 + 4 * 65, 0);
        file.extend(b"aarch64");
        file.resize(424, 0);
        let bitmap_blocks = (2 * bitmap / block) as u32;
        for word in [0, self.page_bytes, 1, bitmap_blocks, self.pages as u32] {
            file.extend(word.to_le_bytes());
        }
        file.resize(2 * block, 0);
        let mut put = |at: usize, word: u64| {
            file[block + at..block + at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(8, u64::from(self.level));
        let descriptors = 2 * block + 2 * bitmap;
        let info = descriptors + 24 * self.stored.len();
        let notes = info + self.vmcoreinfo.len();
        for (at, word) in [
            (32, info),
            (40, self.vmcoreinfo.len()),
            (48, notes),
            (56, self.notes.len()),
            (96, self.pages as usize),
        ] {
            put(at, word as u64);
        }
        file.resize(descriptors, 0);
        for page in 0..self.pages as usize {
            file[2 * block + page / 8] |= 1 << (page % 8);
        }
        let mut offset = (notes + self.notes.len()) as u64;
        for (&page, (bytes, flags)) in &self.stored {
            file[2 * block + bitmap + page as usize / 8] |= 1 << (page % 8);
            file.extend(offset.to_le_bytes());
            file.extend((bytes.len() as u32).to_le_bytes());
            file.extend(flags.to_le_bytes());
            file.extend(0_u64.to_le_bytes());
            offset += bytes.len() as u64;
        }
        file.extend(&self.vmcoreinfo);
        file.extend(&self.notes);
        for (bytes, _) in self.stored.values() {
            file.extend(bytes);
        }
        file
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
