//! The RAM reserved for a kernel's trace: its size, its address, and the word in bootargs that
//! names it. Pure.

use crate::image::RAM_BASE;
use crate::sizes::show_size;
use granule_boot::words;

/// The key of the bootargs word.
const KEY: &str = "granule.trace=";
/// The alignment: whole pages of every page size, and most blocks: 2 MiB.
const ALIGN: u64 = 2 << 20;
/// The largest area that the kernel has address space for.
const MOST: u64 = 1 << 30;

/// A range of guest-physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceArea {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl TraceArea {
    /// The end of RAM of `memory` bytes. The strategy with the most events records some 150 bytes
    /// for each 4K page of a linear map; a sixteenth of RAM holds that and the rest of the boot.
    pub fn at_end_of_ram(memory: u64, bytes: Option<u64>) -> Self {
        Self::ending_at(RAM_BASE.saturating_add(memory), memory, bytes)
    }

    /// As large, up to the middle of RAM.
    pub fn amid_ram(memory: u64, bytes: Option<u64>) -> Self {
        Self::ending_at(RAM_BASE.saturating_add(memory / 2), memory, bytes)
    }

    fn ending_at(end: u64, memory: u64, bytes: Option<u64>) -> Self {
        let usual = (memory / 16).next_multiple_of(ALIGN).clamp(8 << 20, MOST);
        let bytes = bytes.unwrap_or(usual);
        Self {
            start: (end & !(ALIGN - 1)).saturating_sub(bytes),
            bytes,
        }
    }

    /// The word in bootargs.
    pub fn word(&self) -> String {
        format!("{KEY}{:#x},{:#x}", self.start, self.bytes)
    }

    /// The last such word in bootargs, parsed as the kernel parses it.
    pub fn of_bootargs(text: &str) -> Option<Self> {
        let value = words::find(text.as_bytes(), KEY.as_bytes())?;
        let (start, bytes) = std::str::from_utf8(value).ok()?.split_once(',')?;
        Some(Self {
            start: number(start)?,
            bytes: number(bytes)?,
        })
    }

    /// Checks the area's size against the machine's RAM.
    /// Fails with one line.
    pub fn check(&self, memory: u64) -> Result<(), String> {
        let size = show_size(self.bytes);
        if self.bytes == 0 || !self.bytes.is_multiple_of(ALIGN) || self.bytes > MOST {
            return Err(format!(
                "--trace-buffer {size}: expected a multiple of 2M, at most 1G"
            ));
        }
        if self.bytes > memory / 2 {
            return Err(format!(
                "--trace: {size} of RAM are set aside for it, and the machine has {}; give it more with \
                 --memory, or less to the trace with --trace-buffer",
                show_size(memory)
            ));
        }
        Ok(())
    }
}

/// Parses a hexadecimal number: `0x` and digits only.
fn number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"))?;
    // The standard library accepts a sign; the kernel does not.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_is_at_the_end_of_ram_and_grows_with_it() {
        let area = TraceArea::at_end_of_ram(4 << 30, None);
        assert_eq!((area.start, area.bytes), (0x1_3000_0000, 256 << 20));
        assert_eq!(TraceArea::at_end_of_ram(64 << 20, None).bytes, 8 << 20);
        assert_eq!(TraceArea::at_end_of_ram(1 << 40, None).bytes, 1 << 30);
        let amid = TraceArea::amid_ram(4 << 30, None);
        assert_eq!((amid.start, amid.bytes), (0xb000_0000, 256 << 20));
        // RAM that ends in the middle of a block.
        let odd = TraceArea::at_end_of_ram((256 << 20) + 8192, Some(4 << 20));
        assert_eq!((odd.start, odd.bytes), (0x4fc0_0000, 4 << 20));
    }

    #[test]
    fn the_word_is_read_back() {
        let area = TraceArea::at_end_of_ram(1 << 30, None);
        let line = format!("granule.trace=0x1,0x2 quiet {} x", area.word());
        assert_eq!(TraceArea::of_bootargs(&line), Some(area));
        // Quotes and what follows `--`, as the kernel has them.
        let quoted = "granule.trace=\"0X1,0x2\" x -- granule.trace=0x3,0x4";
        let area = TraceArea { start: 1, bytes: 2 };
        assert_eq!(TraceArea::of_bootargs(quoted), Some(area));
        for line in [
            "",
            "granule.trace=0x+1,0x2",
            "granule.trace=1",
            "granule.trace=0x1",
            "granule.trace=0x1,2",
        ] {
            assert_eq!(TraceArea::of_bootargs(line), None, "{line}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        let check = |memory, bytes| TraceArea::at_end_of_ram(memory, bytes).check(memory);
        assert_eq!(check(16 << 20, None), Ok(()));
        assert!(check(14 << 20, None).unwrap_err().contains("--memory"));
        assert!(check(1 << 30, Some(0)).unwrap_err().contains("2M"));
        assert!(check(1 << 30, Some(3 << 20)).unwrap_err().contains("3M"));
        assert!(check(1 << 40, Some(2 << 30)).unwrap_err().contains("1G"));
    }
}
