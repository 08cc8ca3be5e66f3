//! The notes of a Linux kernel about itself (VMCOREINFO), and the tree of its kernel half. Linux's
//! Documentation/admin-guide/kdump/vmcoreinfo.rst describes the keys. The reference kernel of this repository has the
//! same keys, and the values of its registers, `GRANULE(name)`.

use crate::scan;
use crate::source::Memory;
use crate::tree::{Origin, Owner, Shape, Tree};
use granule::arch::registers::{Mair, Tcr};
use granule::arch::{Geometry, PageSize, PhysicalAddress, VaRange};
use std::ops::ControlFlow;

/// The first key, with which the page of a running kernel begins.
const FIRST: &[u8] = b"OSRELEASE=";
/// The most bytes of the text in a kernel's memory: a page.
const MOST: usize = PageSize::MAX.bytes() as usize;

/// The most texts that a search finds, after which it ends: each kernel that ran since the memory was cleared left one.
pub(crate) const MOST_TEXTS: usize = 64;

/// The text, line by line `KEY=VALUE`.
#[derive(Clone, Copy, Debug)]
pub struct Vmcoreinfo<'a>(pub &'a str);

impl<'a> Vmcoreinfo<'a> {
    pub fn get(self, key: &str) -> Option<&'a str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    /// The value of `NUMBER(name)`, which Linux prints in either base.
    pub fn number(self, name: &str) -> Option<u64> {
        self.value(&format!("NUMBER({name})"))
    }

    fn value(self, key: &str) -> Option<u64> {
        let text = self.get(key)?.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            // A negative number is an address.
            None => text
                .parse()
                .ok()
                .or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)),
        }
    }

    pub fn symbol(self, name: &str) -> Option<u64> {
        let text = self.get(&format!("SYMBOL({name})"))?.trim();
        u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    }

    /// The shape of a process's half, which Linux makes as large as the kernel's half of the shape
    /// `kernel`.
    /// Fails if the architecture has no such shape.
    pub(crate) fn user_shape(self, kernel: &Geometry) -> Result<Geometry, String> {
        let highest = if kernel.pa_bits() > 48 { u64::MAX } else { 0 };
        let unused = 64 - u64::from(kernel.va_bits());
        shape(kernel.page_size(), unused, highest, VaRange::Lower)
    }

    /// The tree of the kernel half. `highest` is the end of the machine's memory: it decides
    /// whether 64K pages have the format with 52 bits, which the text does not contain.
    /// An error is one line: which key is missing or makes no sense.
    pub fn kernel(self, highest: u64) -> Result<Tree, String> {
        if self.is_granule() {
            return self.granule();
        }
        let missing = |key: &str| format!("VMCOREINFO has no {key}");
        let page_size = self.get("PAGESIZE").ok_or_else(|| missing("PAGESIZE"))?;
        let page_size = page_size
            .parse()
            .ok()
            .and_then(PageSize::from_bytes)
            .ok_or_else(|| {
                let value = page_size.escape_debug();
                format!("PAGESIZE={value} of VMCOREINFO is not an arm64 page size")
            })?;
        let built_for = self.number("VA_BITS");
        let unused = match self.number("TCR_EL1_T1SZ") {
            Some(unused) => unused,
            // Older kernels have one size of address space.
            None => 64_u64.wrapping_sub(built_for.ok_or_else(|| missing("NUMBER(VA_BITS)"))?),
        };
        let shape = shape(page_size, unused, highest, VaRange::Upper)?;
        let swapper = "swapper_pg_dir";
        let symbol = self
            .symbol(swapper)
            .ok_or_else(|| missing("SYMBOL(swapper_pg_dir)"))?;
        let offset = self
            .number("kimage_voffset")
            .ok_or_else(|| missing("NUMBER(kimage_voffset)"))?;
        let mut root = symbol.wrapping_sub(offset);
        // A kernel with 64K pages that is built for 52 bits has a root for 52 bits. A CPU with 48
        // bits uses its end.
        if page_size == PageSize::K64 && built_for == Some(52) && shape.va_bits() == 48 {
            root = root.wrapping_add(8 * ((1 << (52 - 42)) - (1 << (48 - 42))));
        }
        if !is_root(root) {
            return Err(format!(
                "VMCOREINFO puts {swapper} at {symbol:#x}, physical {root:#x}, which is not a table"
            ));
        }
        Ok(tree(root, shape))
    }

    /// Whether it is the reference kernel's.
    pub(crate) fn is_granule(self) -> bool {
        self.get(TABLE_ROOT).is_some()
    }

    /// The tree of the reference kernel, as its registers had it.
    fn granule(self) -> Result<Tree, String> {
        let register = |key: &str| {
            let value = self.value(key);
            value.ok_or_else(|| format!("VMCOREINFO of Granule has no {key} that is a number"))
        };
        let (root, tcr) = (register(TABLE_ROOT)?, register("GRANULE(tcr)")?);
        let shape = match Geometry::from_tcr(Tcr(tcr), VaRange::Upper) {
            Ok(Some(shape)) if is_root(root) => shape,
            _ => {
                return Err(format!(
                    "VMCOREINFO of Granule gives TCR {tcr:#x} and the root {root:#x}, which are no upper half's"
                ));
            }
        };
        let mut tree = tree(root, shape);
        tree.memory_types = Some(Mair(register("GRANULE(mair)")?));
        Ok(tree)
    }
}

/// The physical address of the reference kernel's root table.
const TABLE_ROOT: &str = "GRANULE(table_root)";

const fn is_root(address: u64) -> bool {
    address < 1 << 52 && address.is_multiple_of(64)
}

fn tree(root: u64, shape: Geometry) -> Tree {
    let shape = Shape::Stage1(shape);
    Tree::new(
        Owner::Kernel,
        PhysicalAddress(root),
        shape,
        Origin::Vmcoreinfo,
    )
}

/// The half with 64 - `unused` bits of input address. Linux uses the 52-bit format of 4K and
/// 16K pages for 52 bits of input address and otherwise not.
fn shape(
    page_size: PageSize,
    unused: u64,
    highest: u64,
    half: VaRange,
) -> Result<Geometry, String> {
    let (lower, upper, wide) = match page_size {
        PageSize::K4 => (0b00, 0b10, unused < 16),
        PageSize::K16 => (0b10, 0b01, unused < 16),
        _ => (0b01, 0b11, highest > 1 << 48),
    };
    let ds = if wide && page_size != PageSize::K64 {
        Tcr::DS
    } else {
        0
    };
    let size = if wide { 0b110 } else { 0b101 };
    let field = unused.min(0x3f);
    let tcr = Tcr(field | field << 16 | lower << 14 | upper << 30 | size << 32 | ds);
    match Geometry::from_tcr(tcr, half) {
        Ok(Some(shape)) => Ok(shape),
        _ => Err(format!(
            "VMCOREINFO gives {} bits of virtual address with {page_size} pages, which arm64 does not have",
            64_u64.wrapping_sub(unused).cast_signed()
        )),
    }
}

/// The texts in the memory, each once with the address of its first copy: for dumps that do not have one in their
/// own notes. The kernel before one that was started by kexec may have left its own. `progress` is called with the
/// bytes that were looked at since.
pub fn find(memory: &dyn Memory, progress: &mut dyn FnMut(u64)) -> Vec<(PhysicalAddress, String)> {
    let mut found: Vec<(PhysicalAddress, String)> = Vec::new();
    scan::pages(memory, PageSize::MIN, progress, &mut |address, page| {
        if page.starts_with(FIRST) {
            let mut text = vec![0; MOST];
            // The text may be longer than the smallest page, and the memory may end before.
            if memory.read(address, &mut text).is_err() {
                text = page.to_vec();
            }
            let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text).into_owned();
            if Vmcoreinfo(&text).kernel(0).is_ok() && found.iter().all(|(_, other)| *other != text)
            {
                found.push((address, text));
            }
        }
        match found.len() {
            MOST_TEXTS => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::raw;
    use granule::arch::OutputFormat;

    const DEBIAN: &str = "OSRELEASE=6.1.0-18-arm64\nBUILD-ID=66\nPAGESIZE=4096\n\
        SYMBOL(init_uts_ns)=ffffcafb1e9ff200\nSYMBOL(swapper_pg_dir)=ffffcafb1e1d1000\n\
        NUMBER(VA_BITS)=48\nNUMBER(kimage_voffset)=0xffffcafada600000\n\
        NUMBER(PHYS_OFFSET)=0x40000000\nNUMBER(TCR_EL1_T1SZ)=0x10\nKERNELOFFSET=4afb14c00000\n";

    fn root(text: &str) -> Result<(u64, u32, OutputFormat), String> {
        let tree = Vmcoreinfo(text).kernel(1 << 49)?;
        let Shape::Stage1(shape) = tree.shape else {
            return Err("stage 2".into());
        };
        Ok((tree.root.0, shape.va_bits(), shape.format()))
    }

    #[test]
    fn the_root_is_where_the_kernel_says() {
        assert_eq!(root(DEBIAN), Ok((0x43bd_1000, 48, OutputFormat::Bits48)));
        let older = DEBIAN.replace("NUMBER(TCR_EL1_T1SZ)=0x10\n", "");
        assert_eq!(root(&older), root(DEBIAN));
        let wide = DEBIAN.replace("T1SZ)=0x10", "T1SZ)=0xc");
        assert_eq!(root(&wide), Ok((0x43bd_1000, 52, OutputFormat::Lpa2)));
        // 64K pages for 52 bits on a CPU with 48: the last 64 of 1024 entries.
        let large = DEBIAN
            .replace("=4096", "=65536")
            .replace("VA_BITS)=48", "VA_BITS)=52");
        assert_eq!(
            root(&large),
            Ok((0x43bd_1000 + 7680, 48, OutputFormat::Lpa))
        );
    }

    #[test]
    fn an_incomplete_text_is_refused_in_one_line() {
        for (from, to, words) in [
            ("PAGESIZE=4096", "X=1", "VMCOREINFO has no PAGESIZE"),
            (
                "PAGESIZE=4096",
                "PAGESIZE=8192",
                "PAGESIZE=8192 of VMCOREINFO is not",
            ),
            // A dump cannot send control sequences to the terminal.
            ("=4096", "=\u{1b}[2J", "PAGESIZE=\\u{1b}[2J of"),
            (
                "T1SZ)=0x10",
                "T1SZ)=0x3f",
                "gives 1 bits of virtual address",
            ),
            ("T1SZ)=0x10", "T1SZ)=-1", "gives 65 bits of virtual address"),
            ("swapper_pg_dir", "other", "no SYMBOL(swapper_pg_dir)"),
            ("kimage_voffset", "other", "no NUMBER(kimage_voffset)"),
            (
                "e1d1000",
                "e1d1001",
                "physical 0x43bd1001, which is not a table",
            ),
            (
                "kimage_voffset)=0x",
                "kimage_voffset)=",
                "no NUMBER(kimage_voffset)",
            ),
        ] {
            let error = root(&DEBIAN.replace(from, to)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_reference_kernel_gives_its_registers() {
        let granule = DEBIAN.replace("6.1.0-18-arm64", "granule")
            + "GRANULE(table_root)=0x43200000\nGRANULE(mair)=0xff\nGRANULE(tcr)=0x480100010\n";
        let text = granule.replace("0x480100010", "0x5c0100010");
        let tree = Vmcoreinfo(&text).kernel(0).unwrap();
        assert_eq!(tree.geometry().page_size(), PageSize::K64);
        let tree = Vmcoreinfo(&granule.replace("0x480100010", "0x580190010"))
            .kernel(0)
            .unwrap();
        // The root of the symbol is another, and the size of pages too.
        assert_eq!(
            (tree.root.0, tree.memory_types),
            (0x4320_0000, Some(Mair(0xff)))
        );
        assert_eq!(tree.geometry().page_size(), PageSize::K4);
        assert_eq!(tree.geometry().va_bits(), 39);
        for (from, to, words) in [
            ("(tcr)=0x", "(x)=0x", "has no GRANULE(tcr) that is a number"),
            ("(mair)=0x", "(mair)=", "has no GRANULE(mair) that"),
            (
                "(table_root)=0x",
                "(table_root)=?",
                "no GRANULE(table_root)",
            ),
            ("=0x43200000", "=0x43200001", "the root 0x43200001, which"),
            ("(tcr)=0x48", "(tcr)=0x40", "gives TCR 0x400100010"),
        ] {
            let error = root(&granule.replace(from, to)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_text_is_found_in_memory() {
        let mut memory = vec![0; 64 << 10];
        // A page that begins like it but has no contents, and text that begins in the middle of a page.
        memory[0x2000..0x2000 + FIRST.len()].copy_from_slice(FIRST);
        memory[0x3100..0x3100 + DEBIAN.len()].copy_from_slice(DEBIAN.as_bytes());
        memory[0x5000..0x5000 + DEBIAN.len()].copy_from_slice(DEBIAN.as_bytes());
        let (memory, _) = raw::open(memory, 0x4000_0000);
        let found = find(&*memory, &mut |_| {});
        assert_eq!(found, [(PhysicalAddress(0x4000_5000), DEBIAN.into())]);
    }
}
