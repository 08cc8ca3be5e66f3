//! A minimal ELF file writer for tests: loadable segments, one `.text` section and
//! symbols, enough to check the image and the MMU-off code without a kernel.

#[derive(Debug, Default)]
pub struct TestElf {
    segments: Vec<(u64, u64, Vec<u8>, u64)>,
    text: (u64, Vec<u8>),
    symbols: Vec<TestSymbol>,
}

/// A symbol in `.text`.
#[derive(Debug)]
pub struct TestSymbol {
    name: String,
    address: u64,
    size: u64,
    function: bool,
}

pub fn sym(name: &str, address: u64, size: u64, function: bool) -> TestSymbol {
    TestSymbol {
        name: name.to_owned(),
        address,
        size,
        function,
    }
}

impl TestElf {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn segment(self, address: u64, data: &[u8], memory: u64) -> Self {
        self.segment_at(address, address, data, memory)
    }

    pub fn segment_at(mut self, va: u64, pa: u64, data: &[u8], memory: u64) -> Self {
        self.segments.push((va, pa, data.to_vec(), memory));
        self
    }

    pub fn text(mut self, address: u64, data: &[u8]) -> Self {
        self.text = (address, data.to_vec());
        self
    }

    pub fn symbol(mut self, symbol: TestSymbol) -> Self {
        self.symbols.push(symbol);
        self
    }

    pub fn build(self) -> Vec<u8> {
        let phnum = self.segments.len() as u16;
        let mut data_at = 64 + 56 * u64::from(phnum);
        let mut phdrs = Vec::new();
        let mut blob: Vec<u8> = Vec::new();
        for (va, pa, data, memory) in &self.segments {
            phdrs.extend(1u32.to_le_bytes()); // PT_LOAD
            phdrs.extend(5u32.to_le_bytes());
            for value in [data_at, *va, *pa, data.len() as u64, *memory, 1] {
                phdrs.extend(value.to_le_bytes());
            }
            blob.extend(data);
            data_at += data.len() as u64;
        }
        let text_at = data_at;
        blob.extend(&self.text.1);
        let symtab_at = text_at + self.text.1.len() as u64;
        let mut strtab = vec![0u8];
        let mut symtab = vec![0u8; 24];
        for symbol in &self.symbols {
            symtab.extend((strtab.len() as u32).to_le_bytes());
            symtab.push(0x10 | if symbol.function { 2 } else { 0 });
            symtab.push(0);
            symtab.extend(1u16.to_le_bytes());
            symtab.extend(symbol.address.to_le_bytes());
            symtab.extend(symbol.size.to_le_bytes());
            strtab.extend(symbol.name.as_bytes());
            strtab.push(0);
        }
        let strtab_at = symtab_at + symtab.len() as u64;
        let names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
        let names_at = strtab_at + strtab.len() as u64;
        let shoff = names_at + names.len() as u64;

        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend(2u16.to_le_bytes()); // ET_EXEC
        out.extend(183u16.to_le_bytes()); // EM_AARCH64
        out.extend(1u32.to_le_bytes());
        for value in [0u64, 64, shoff] {
            out.extend(value.to_le_bytes());
        }
        out.extend(0u32.to_le_bytes());
        for value in [64u16, 56, phnum, 64, 5, 4] {
            out.extend(value.to_le_bytes());
        }
        out.extend(phdrs);
        out.extend(blob);
        out.extend(&symtab);
        out.extend(&strtab);
        out.extend(names);
        let text = [6, self.text.0, text_at, self.text.1.len() as u64];
        let sections: [(u32, u32, [u64; 4], u32, u32, u64); 5] = [
            (0, 0, [0; 4], 0, 0, 0),
            (1, 1, text, 0, 0, 0),
            (7, 2, [0, 0, symtab_at, symtab.len() as u64], 3, 1, 24),
            (15, 3, [0, 0, strtab_at, strtab.len() as u64], 0, 0, 0),
            (23, 3, [0, 0, names_at, names.len() as u64], 0, 0, 0),
        ];
        for (name, kind, place, link, info, entry) in sections {
            out.extend([name, kind].map(u32::to_le_bytes).as_flattened());
            out.extend(place.map(u64::to_le_bytes).as_flattened());
            out.extend([link, info].map(u32::to_le_bytes).as_flattened());
            out.extend([4, entry].map(u64::to_le_bytes).as_flattened());
        }
        out
    }
}
