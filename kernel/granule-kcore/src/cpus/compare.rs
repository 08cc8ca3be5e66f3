//! The check that a CPU can use the tables of the boot CPU: a comparison of values.
//!
//! [`compare`] runs on the CPU in question with its MMU off: it has no panics, no formatting and no
//! pointers into data. The boot CPU prints the words. A CPU that lacks a feature which the tables do
//! not need (BBM level, TLBI forms) is not parked: the system uses the minimum, see
//! [`common`](super::common).

use core::fmt;
use granule::arch::{CpuFeatures, Geometry, OutputFormat, PageSize, Support};

/// The requirements of the tables, and of the registers that go with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The page size of both halves.
    pub page_size: PageSize,
    /// Whether descriptors have the format of FEAT_LPA2 (TCR.DS).
    pub lpa2: bool,
    /// The larger VA size of the two halves, in bits.
    pub most_va_bits: u32,
    /// The smaller VA size, in bits: below 25 it needs FEAT_TTST.
    pub least_va_bits: u32,
    /// TCR.IPS in bits: the physical addresses that descriptors may hold.
    pub pa_bits: u32,
    /// TCR.AS in bits.
    pub asid_bits: u32,
    /// The kernel's exception level.
    pub run_el: u32,
}

impl Needs {
    /// The requirements of the tables of both halves and the boot CPU's TCR.
    pub fn new(upper: &Geometry, lower: &Geometry, boot_cpu: &CpuFeatures, run_el: u32) -> Self {
        Self {
            page_size: upper.page_size(),
            lpa2: matches!(upper.format(), OutputFormat::Lpa2),
            most_va_bits: upper.va_bits().max(lower.va_bits()),
            least_va_bits: upper.va_bits().min(lower.va_bits()),
            pa_bits: upper.pa_bits(),
            asid_bits: boot_cpu.asid_bits(),
            run_el,
        }
    }
}

/// Why a secondary CPU is parked. The CPU leaves the number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The CPU lacks the page size.
    PageSize = 1,
    /// The CPU has the page size, but without FEAT_LPA2.
    Lpa2 = 2,
    /// The CPU has fewer virtual address bits.
    VaBits = 3,
    /// The CPU does not support so few virtual address bits (FEAT_TTST).
    LeastVaBits = 4,
    /// The CPU has fewer physical address bits.
    PaBits = 5,
    /// The CPU has fewer ASID bits.
    AsidBits = 6,
    /// The CPU cannot run at the kernel's exception level.
    RunLevel = 7,
    /// The CPU entered the image at EL3.
    EnteredAtEl3 = 8,
    /// The CPU entered the image with its MMU on.
    EnteredWithMmuOn = 9,
    /// The CPU took an exception with its MMU off.
    Exception = 10,
}

impl Reason {
    /// The reason for a number in memory.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::PageSize,
            2 => Self::Lpa2,
            3 => Self::VaBits,
            4 => Self::LeastVaBits,
            5 => Self::PaBits,
            6 => Self::AsidBits,
            7 => Self::RunLevel,
            8 => Self::EnteredAtEl3,
            9 => Self::EnteredWithMmuOn,
            10 => Self::Exception,
            _ => return None,
        })
    }
}

/// An incompatibility, with both numbers where there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The kind of incompatibility.
    pub reason: Reason,
    /// The required value: bytes of a page, bits of an address, or an exception level.
    pub needs: u64,
    /// The CPU's value; for an exception its syndrome.
    pub has: u64,
}

/// Checks whether a CPU with these features, at this exception level, can use the tables. Returns the
/// first incompatibility.
pub fn compare(needs: &Needs, cpu: &CpuFeatures, run_el: u32) -> Result<(), Mismatch> {
    let size = needs.page_size;
    let support = cpu.page_size(size);
    if matches!(support, Support::No) {
        return mismatch(Reason::PageSize, size.bytes(), 0);
    }
    if needs.lpa2 && !matches!(support, Support::With52Bits) {
        return mismatch(Reason::Lpa2, 52, 48);
    }
    at_least(Reason::VaBits, needs.most_va_bits, cpu.most_va_bits(size))?;
    let (least, has) = (needs.least_va_bits, cpu.least_va_bits(size));
    if least < has {
        return mismatch(Reason::LeastVaBits, least as u64, has as u64);
    }
    // This is required even where all RAM lies lower: with TCR.IPS above the implemented size the CPU
    // uses its own size, and an address beyond it faults on this CPU alone.
    at_least(Reason::PaBits, needs.pa_bits, cpu.pa_bits())?;
    at_least(Reason::AsidBits, needs.asid_bits, cpu.asid_bits())?;
    if run_el != needs.run_el {
        return mismatch(Reason::RunLevel, needs.run_el as u64, run_el as u64);
    }
    Ok(())
}

fn at_least(reason: Reason, needs: u32, has: u32) -> Result<(), Mismatch> {
    if has < needs {
        mismatch(reason, needs as u64, has as u64)
    } else {
        Ok(())
    }
}

fn mismatch(reason: Reason, needs: u64, has: u64) -> Result<(), Mismatch> {
    Err(Mismatch { reason, needs, has })
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, needs, has } = *self;
        match reason {
            Reason::PageSize => write!(
                f,
                "it has no {}K pages, which the tables are in; choose a size that all CPUs have with arm64.pagesize=",
                needs >> 10
            ),
            Reason::Lpa2 => {
                f.write_str("it has no 52-bit descriptors (FEAT_LPA2), which the tables are in")
            }
            Reason::VaBits => write!(
                f,
                "it has {has} bits of virtual address, the tables need {needs}; choose fewer with arm64.vabits="
            ),
            Reason::LeastVaBits => write!(
                f,
                "it has no fewer than {has} bits of virtual address (no FEAT_TTST), the tables have {needs}"
            ),
            Reason::PaBits => write!(
                f,
                "it has {has} bits of physical address, the tables are made for {needs}"
            ),
            Reason::AsidBits => write!(f, "it has {has}-bit ASIDs, the boot CPU uses {needs} bits"),
            Reason::RunLevel => write!(
                f,
                "it can run the kernel at EL{has} only, the boot CPU runs it at EL{needs}"
            ),
            Reason::EnteredAtEl3 => f.write_str("the firmware started it at EL3"),
            Reason::EnteredWithMmuOn => f.write_str("the firmware started it with its MMU on"),
            Reason::Exception => write!(
                f,
                "it took an exception before its MMU was on, ESR {has:#x}, at {needs:#x}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::{CpuFeatures, Regime, VaRange};

    /// QEMU's `max`: every page size with 52 bits, 52-bit PA and VA, 16-bit ASIDs.
    const MAX: CpuFeatures = CpuFeatures {
        midr: 0x000f_0510,
        mmfr0: 6 | 2 << 4 | 1 << 28 | 2 << 20,
        mmfr1: 1 << 8 | 2,
        mmfr2: 1 << 16 | 1 << 28 | 1 << 48 | 2 << 52,
        isar0: 2 << 56,
    };

    fn needs(size: PageSize, va_bits: u32) -> Needs {
        let upper = Geometry::new(&MAX, size, va_bits, VaRange::Upper, Regime::El1And0).unwrap();
        let lower = upper.with_va_range(&MAX, VaRange::Lower, 31, size).unwrap();
        Needs::new(&upper, &lower, &MAX, 2)
    }

    fn against(needs: &Needs, change: impl Fn(&mut CpuFeatures)) -> Result<(), Mismatch> {
        let mut registers = MAX;
        change(&mut registers);
        compare(needs, &registers, 2)
    }

    fn set(register: &mut u64, low: u32, value: u64) {
        *register = *register & !(0xf << low) | value << low;
    }

    #[test]
    fn a_twin_of_the_boot_cpu_fits_every_size() {
        for size in PageSize::ALL {
            for bits in [42, 48, 52] {
                assert_eq!(against(&needs(size, bits), |_| ()), Ok(()), "{size} {bits}");
            }
        }
    }

    #[test]
    fn features_that_the_tables_do_not_need_are_no_reason() {
        let all = |r: &mut CpuFeatures| {
            // No BBM, no TTL, no range TLBIs, no hardware flags, and another MIDR.
            set(&mut r.mmfr2, 52, 0);
            set(&mut r.mmfr2, 48, 0);
            r.isar0 = 0;
            r.mmfr1 = 1 << 8;
            r.midr = 0x410f_d034;
        };
        assert_eq!(against(&needs(PageSize::K4, 48), all), Ok(()));
    }

    /// LPA2 gives a shorter VA 52-bit output too.
    #[test]
    fn each_lack_is_found_with_both_numbers() {
        use PageSize::{K4, K16, K64};
        use Reason::{AsidBits, Lpa2, PaBits, VaBits};
        const SIZE: Reason = Reason::PageSize;
        type Change = fn(&mut CpuFeatures);
        let cases: [(PageSize, u32, Change, Reason, u64, u64); 9] = [
            (K4, 48, |r| set(&mut r.mmfr0, 28, 0xf), SIZE, 4096, 0),
            (K16, 48, |r| set(&mut r.mmfr0, 20, 0), SIZE, 16384, 0),
            (K64, 48, |r| set(&mut r.mmfr0, 24, 0xf), SIZE, 65536, 0),
            (K4, 52, |r| set(&mut r.mmfr0, 28, 0), Lpa2, 52, 48),
            (K16, 52, |r| set(&mut r.mmfr0, 20, 1), Lpa2, 52, 48),
            (K64, 52, |r| set(&mut r.mmfr2, 16, 0), VaBits, 52, 48),
            (K64, 48, |r| set(&mut r.mmfr0, 0, 4), PaBits, 52, 44),
            (K4, 39, |r| set(&mut r.mmfr0, 0, 2), PaBits, 52, 40),
            (K4, 48, |r| set(&mut r.mmfr0, 4, 0), AsidBits, 16, 8),
        ];
        for (size, bits, change, reason, least, has) in cases {
            let found = against(&needs(size, bits), change);
            assert_eq!(found, mismatch(reason, least, has), "{size} {bits}");
        }
        // All CPUs run at one level.
        let found = compare(&needs(K4, 48), &MAX, 1);
        assert_eq!(found, mismatch(Reason::RunLevel, 2, 1));
        // A small identity map needs small address spaces.
        let small = Needs {
            least_va_bits: 20,
            ..needs(K4, 48)
        };
        let found = against(&small, |r| set(&mut r.mmfr2, 28, 0));
        assert_eq!(found, mismatch(Reason::LeastVaBits, 20, 25));
    }

    #[test]
    fn reasons_come_back_from_memory_and_say_what_is_wrong() {
        let mut texts = Vec::new();
        for number in 0..64 {
            if let Some(reason) = Reason::from_number(number) {
                assert_eq!(reason as u32, number);
                let (needs, has) = (16384, 3);
                texts.push(Mismatch { reason, needs, has }.to_string());
            }
        }
        assert_eq!(texts.len(), 10);
        assert!(texts[0].starts_with("it has no 16K pages"));
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 10);
    }
}
