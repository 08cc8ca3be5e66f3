//! The boot tables: 48-bit, in pages. Identity map of the switching code in
//! TTBR0; image, device tree and UART in TTBR1.

use crate::handover::{EntryInfo, MmuConfig, TreeInfo};
use crate::image::{self, Permission};
use crate::layout;

const NORMAL: u64 = 3 << 8 | 1 << 10;
const DEVICE: u64 = 1 << 2 | 1 << 10;
const READ_ONLY: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 53 | 1 << 54;
const NO_USER_EXECUTE: u64 = 1 << 54;

struct Tables {
    next: u64,
    end: u64,
    g: u32,
}

impl Tables {
    fn table(&mut self) -> Option<u64> {
        let (table, bytes) = (self.next, 1u64 << self.g);
        self.next += bytes;
        (self.next <= self.end).then_some(())?;
        for entry in 0..bytes / 8 {
            // SAFETY: inside the static pool, which nothing else uses.
            unsafe { ((table + 8 * entry) as *mut u64).write_volatile(0) };
        }
        Some(table)
    }

    fn map(&mut self, root: u64, va: u64, pa: u64, bytes: u64, bits: u64) -> Option<()> {
        let page = 1u64 << self.g;
        let mut offset = 0;
        while offset < bytes {
            self.page(root, va.wrapping_add(offset), pa + offset, bits)?;
            offset += page;
        }
        Some(())
    }

    fn page(&mut self, root: u64, va: u64, pa: u64, bits: u64) -> Option<()> {
        let per_level = self.g - 3;
        let mut table = root;
        let mut level = if self.g == 16 { 1 } else { 0 };
        loop {
            let shift = self.g + (3 - level) * per_level;
            let index = (va & ((1 << 48) - 1)) >> shift & ((1 << per_level) - 1);
            let entry = (table + 8 * index) as *mut u64;
            if level == 3 {
                // SAFETY: an entry of a table in the static pool.
                unsafe { entry.write_volatile(pa & !((1 << self.g) - 1) | bits | 3) };
                return Some(());
            }
            // SAFETY: as above.
            let mut value = unsafe { entry.read_volatile() };
            if value == 0 {
                value = self.table()? | 3;
                // SAFETY: as above.
                unsafe { entry.write_volatile(value) };
            }
            table = value & !3;
            level += 1;
        }
    }
}

/// Builds them; `None` if the static pool is too small.
pub(super) fn build(entry: &EntryInfo, tree: &TreeInfo) -> Option<MmuConfig> {
    let pool = image::static_pool();
    let g = tree.page_shift;
    let mut tables = Tables {
        next: entry.load + pool.start,
        end: entry.load + pool.end,
        g,
    };
    let (low, high) = (tables.table()?, tables.table()?);
    let idmap = entry.load + image::idmap_text().start;
    tables.map(
        low,
        idmap,
        idmap,
        4096,
        NORMAL | READ_ONLY | NO_USER_EXECUTE,
    )?;
    for segment in image::segments() {
        let bits = match segment.permission {
            Permission::Text => NORMAL | READ_ONLY | NO_USER_EXECUTE,
            Permission::ReadOnly => NORMAL | READ_ONLY | NO_EXECUTE,
            Permission::ReadWrite => NORMAL | NO_EXECUTE,
        };
        let (start, bytes) = (segment.range.start, segment.range.end - segment.range.start);
        tables.map(
            high,
            layout::KIMAGE_VADDR + start,
            entry.load + start,
            bytes,
            bits,
        )?;
    }
    let dtb = entry.dtb & !0xffff;
    let dtb_bytes = (entry.dtb - dtb) + tree.bytes;
    tables.map(
        high,
        layout::DTB_VADDR,
        dtb,
        dtb_bytes,
        NORMAL | READ_ONLY | NO_EXECUTE,
    )?;
    if tree.uart != 0 {
        tables.map(
            high,
            layout::UART_VADDR,
            tree.uart & !0xffff,
            1 << 16,
            DEVICE | NO_EXECUTE,
        )?;
    }
    let (tg0, tg1) = match g {
        12 => (0, 2),
        14 => (2, 1),
        _ => (1, 3),
    };
    let walks = 1 << 8 | 1 << 10 | 3 << 12;
    let pa_range = (entry.mmfr[0] & 0xf).min(5);
    Some(MmuConfig {
        mair: 0x04ff,
        tcr: 16 | 16 << 16 | walks | walks << 16 | tg0 << 14 | tg1 << 30 | pa_range << 32,
        ttbr0: low,
        ttbr1: high,
        virt_offset: layout::KIMAGE_VADDR.wrapping_sub(entry.load),
    })
}
