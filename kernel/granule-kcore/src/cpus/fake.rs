//! `arm64.fake_cpu=N:FIELD=VALUE[,FIELD=VALUE]`: makes CPU N report other ID fields than it has.
//!
//! Tests use it to imitate machines with different CPUs, which emulators do not offer: the CPU
//! replaces the fields after it read its ID registers, before it compares. Fields have their
//! architectural names and values. `absent=1` makes the CPU stop before it reports at all, `fault=1`
//! makes it take an exception there.

use crate::parameters::decimal;
use crate::parameters::test::number as number_in;
use granule::arch::CpuFeatures;
use granule_boot::words;

/// The registers that can be changed, in the order of [`Changes`].
const REGISTERS: usize = 5;

/// The fields: name, register (MIDR, MMFR0, MMFR1, MMFR2, ISAR0), lowest bit, bits.
const FIELDS: [(&[u8], usize, u32, u32); 16] = [
    (b"midr", 0, 0, 32),
    (b"parange", 1, 0, 4),
    (b"asidbits", 1, 4, 4),
    (b"tgran16", 1, 20, 4),
    (b"tgran64", 1, 24, 4),
    (b"tgran4", 1, 28, 4),
    (b"hafdbs", 2, 0, 4),
    (b"vh", 2, 8, 4),
    (b"varange", 3, 16, 4),
    (b"st", 3, 28, 4),
    (b"ttl", 3, 48, 4),
    (b"bbm", 3, 52, 4),
    (b"tlb", 4, 56, 4),
    (b"cnp", 3, 0, 4),
    (b"absent", REGISTERS, 0, 1),
    (b"fault", REGISTERS + 1, 0, 1),
];

/// The changes on one CPU: for each register the bits to clear, then the bits to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Changes {
    clear: [u64; REGISTERS],
    set: [u64; REGISTERS],
    /// 1 if the CPU stops without a report.
    pub absent: u64,
    /// 1 if the CPU takes an exception.
    pub fault: u64,
}

impl Changes {
    /// No changes.
    pub const NONE: Self = Self {
        clear: [0; REGISTERS],
        set: [0; REGISTERS],
        absent: 0,
        fault: 0,
    };

    /// The registers with the changes applied. Runs with the MMU off.
    pub fn apply(&self, registers: CpuFeatures) -> CpuFeatures {
        let [midr, mmfr0, mmfr1, mmfr2, isar0] = self.clear;
        let [set_midr, set_mmfr0, set_mmfr1, set_mmfr2, set_isar0] = self.set;
        CpuFeatures {
            midr: registers.midr & !midr | set_midr,
            mmfr0: registers.mmfr0 & !mmfr0 | set_mmfr0,
            mmfr1: registers.mmfr1 & !mmfr1 | set_mmfr1,
            mmfr2: registers.mmfr2 & !mmfr2 | set_mmfr2,
            isar0: registers.isar0 & !isar0 | set_isar0,
        }
    }

    fn change(&mut self, name: &[u8], value: u64) -> Option<()> {
        let (_, register, low, bits) = FIELDS.iter().find(|(field, ..)| *field == name)?;
        if value >> bits != 0 {
            return None;
        }
        if let (Some(clear), Some(set)) =
            (self.clear.get_mut(*register), self.set.get_mut(*register))
        {
            let mask = ((1 << bits) - 1) << low;
            *clear |= mask;
            *set = *set & !mask | value << low;
        } else if *register == REGISTERS {
            self.absent = value;
        } else {
            self.fault = value;
        }
        Some(())
    }
}

/// The changes that the command line makes on CPU `number`; `bad` is called with each value of
/// `arm64.fake_cpu=` that cannot be parsed.
pub fn of_cpu<'a>(line: &'a [u8], number: usize, mut bad: impl FnMut(&'a [u8])) -> Changes {
    let mut changes = Changes::NONE;
    for word in words::words(line).filter(|word| word.key == b"arm64.fake_cpu") {
        let value = word.value.unwrap_or_default();
        match parse(value) {
            Some((cpu, parsed)) if cpu == number => changes = parsed,
            Some(_) => {}
            None => bad(value),
        }
    }
    changes
}

fn parse(value: &[u8]) -> Option<(usize, Changes)> {
    let colon = value.iter().position(|byte| *byte == b':')?;
    let (number, fields) = value.split_at_checked(colon)?;
    let number = decimal(number)?;
    let mut changes = Changes::NONE;
    // The boot CPU has already chosen by its real features, so only the others can be changed.
    if number == 0 {
        return None;
    }
    for field in fields.get(1..)?.split(|byte| *byte == b',') {
        let equals = field.iter().position(|byte| *byte == b'=')?;
        let (name, value) = field.split_at_checked(equals)?;
        changes.change(name, number_in(value.get(1..)?)?)?;
    }
    Some((usize::try_from(number).ok()?, changes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::tlbi::TlbCapabilities;
    use granule::arch::{PageSize, Support};

    fn changes(line: &str, cpu: usize) -> (Changes, usize) {
        let mut bad = 0;
        let changes = of_cpu(line.as_bytes(), cpu, |_| bad += 1);
        (changes, bad)
    }

    const ALL_ONES: CpuFeatures = CpuFeatures {
        midr: u64::MAX,
        mmfr0: u64::MAX,
        mmfr1: u64::MAX,
        mmfr2: u64::MAX,
        isar0: u64::MAX,
    };

    #[test]
    fn only_the_named_fields_of_the_named_cpu_change() {
        let line = "quiet arm64.fake_cpu=2:parange=0,tgran16=0,bbm=1,tlb=1 arm64.fake_cpu=3:midr=0x410fd034";
        let (two, bad) = changes(line, 2);
        assert_eq!(bad, 0);
        let faked = two.apply(ALL_ONES);
        assert_eq!(faked.mmfr0, !0xf0_000f);
        assert_eq!(faked.mmfr2, !(0xf << 52) | 1 << 52);
        assert_eq!(faked.isar0, !(0xf << 56) | 1 << 56);
        assert_eq!((faked.midr, faked.mmfr1), (u64::MAX, u64::MAX));
        assert_eq!((faked.pa_bits(), faked.bbm_level()), (32, 1));
        assert_eq!(faked.page_size(PageSize::K16), Support::No);
        assert_eq!(changes(line, 1), (Changes::NONE, 0));
        let three = changes(line, 3).0.apply(ALL_ONES);
        assert_eq!(three.midr, 0xffff_ffff_410f_d034);
        for (field, expected) in [("absent", (1, 0)), ("fault", (0, 1))] {
            let made = changes(&format!("arm64.fake_cpu=1:{field}=1"), 1).0;
            assert_eq!((made.absent, made.fault), expected);
        }
    }

    #[test]
    fn every_field_is_where_the_features_look() {
        let zero = CpuFeatures::NONE;
        for (name, ..) in FIELDS {
            let name = str::from_utf8(name).unwrap();
            let (made, bad) = changes(&format!("arm64.fake_cpu=1:{name}=1"), 1);
            assert_eq!(bad, 0);
            let cpu = made.apply(zero);
            match name {
                "midr" => assert_eq!(cpu.midr, 1),
                "parange" => assert_eq!(cpu.pa_bits(), 36),
                "asidbits" => assert_eq!(cpu.asid_bits(), 8),
                "tgran4" => assert_eq!(cpu.page_size(PageSize::K4), Support::With52Bits),
                "tgran16" => assert_eq!(cpu.page_size(PageSize::K16), Support::Yes),
                "tgran64" => assert_eq!(cpu.page_size(PageSize::K64), Support::Yes),
                "hafdbs" => assert_eq!(cpu.hardware_dirty(), 1),
                "vh" => assert!(cpu.vhe()),
                "varange" => assert_eq!(cpu.most_va_bits(PageSize::K64), 52),
                "st" => assert_eq!(cpu.least_va_bits(PageSize::K4), 16),
                "ttl" => assert!(TlbCapabilities::of(&cpu).level_hint),
                "bbm" => assert_eq!(cpu.bbm_level(), 1),
                _ => {}
            }
        }
    }

    #[test]
    fn an_unknown_request_is_reported() {
        let wrong = " = =1 =1: =1:bbm =1:bbm= =1:bbm=16 =1:bbm=0xg =1:magic=1 =x:bbm=1 =0:bbm=1 =1:absent=2";
        for value in wrong.split(' ') {
            let line = format!("arm64.fake_cpu{value}");
            assert_eq!(changes(&line, 1), (Changes::NONE, 1), "{line}");
        }
    }
}
