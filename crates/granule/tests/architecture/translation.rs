//! The registers of a whole regime, against values written out by hand.

use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    OutputFormat, PageSize, Regime, Sctlr, Stage2Geometry, Translation, TranslationError, VaRange,
};
use granule_testing::shape::{Cpu, LARGE, PLAIN, WIDE_INPUT};

/// Two roots for the registers.
// SAFETY: no CPU gets them.
const TTBR: Ttbr = unsafe { Ttbr::from_bits(0x4000_0000) };
// SAFETY: as above.
const OTHER: Ttbr = unsafe { Ttbr::from_bits(0x5000_0000) };

#[test]
fn sctlr_is_res1_bits_and_what_turns_translation_on() {
    // The RES1 bits of SCTLR_EL1 before Armv8.1: 11, 20, 22, 23, 28, 29.
    let el1: u64 = [11, 20, 22, 23, 28, 29].iter().map(|bit| 1 << bit).sum();
    // Those of SCTLR_EL2 and SCTLR_EL3: 4, 5, 11, 16, 18, 22, 23, 28, 29.
    let single: u64 = [4, 5, 11, 16, 18, 22, 23, 28, 29]
        .iter()
        .map(|bit| 1 << bit)
        .sum();
    for (regime, off) in [
        (Regime::El1And0, el1),
        (Regime::El2, single),
        (Regime::El3, single),
    ] {
        assert_eq!(Sctlr::off(regime).0, off, "{regime:?}");
        // M, C, SA, I.
        assert_eq!(Sctlr::on(regime).0, off | 0x100d, "{regime:?}");
    }
}

#[test]
fn a_kernel_has_both_halves_or_one() {
    let lower = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let upper = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let cpu = PLAIN.features();
    let both = Translation::new(&cpu, Some((&lower, TTBR)), Some((&upper, OTHER))).unwrap();
    assert_eq!((both.ttbr0, both.ttbr1), (TTBR, OTHER));
    assert_eq!(both.mair.0, 0xf0_0044_04ff);
    assert_eq!(both.regime, Regime::El1And0);
    assert_eq!(both.tcr & (Tcr::EPD0 | Tcr::EPD1), 0);
    let one = Translation::new(&cpu, None, Some((&upper, OTHER))).unwrap();
    assert_eq!((one.ttbr0, one.ttbr1), (Ttbr::NONE, OTHER));
    assert_eq!(one.tcr & (Tcr::EPD0 | Tcr::EPD1), Tcr::EPD0);
    let one = Translation::new(&cpu, Some((&lower, TTBR)), None).unwrap();
    assert_eq!(one.tcr & (Tcr::EPD0 | Tcr::EPD1), Tcr::EPD1);
}

#[test]
fn firmware_and_hypervisors_have_the_register_with_one_half() {
    let cpu = PLAIN.features();
    for regime in [Regime::El2, Regime::El3] {
        let geometry = PLAIN.single(PageSize::K64, 42, regime);
        let found = Translation::new(&cpu, Some((&geometry, TTBR)), None).unwrap();
        assert_eq!((found.regime, found.ttbr1), (regime, Ttbr::NONE));
        // RES1 31 and 23, PS 48 bits, TG0 64K, inner shareable write-back walks, T0SZ 22.
        assert_eq!(
            found.tcr,
            1 << 31 | 1 << 23 | 5 << 16 | 1 << 14 | 3 << 12 | 5 << 8 | 22
        );
        assert_eq!(found.sctlr, Sctlr::on(regime));
    }
}

#[test]
fn tables_that_do_not_belong_together_are_refused_with_the_reason() {
    let cpu = PLAIN.features();
    let lower = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let upper = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let el2 = PLAIN.single(PageSize::K4, 48, Regime::El2);
    let refused = |lower, upper, expected: TranslationError, words: &str| {
        let found = Translation::new(&cpu, lower, upper).unwrap_err();
        assert_eq!(found, expected);
        assert!(found.to_string().contains(words), "{found}");
    };
    refused(None, None, TranslationError::NoTables, "at least one");
    let guest = Stage2Geometry::new(&cpu, PageSize::K4, 40).unwrap();
    refused(
        Some((guest.shape(), TTBR)),
        None,
        TranslationError::WrongStage,
        "VTTBR_EL2",
    );
    refused(
        Some((&upper, TTBR)),
        None,
        TranslationError::WrongHalf,
        "other half",
    );
    refused(
        None,
        Some((&lower, TTBR)),
        TranslationError::WrongHalf,
        "other half",
    );
    refused(
        Some((&el2, TTBR)),
        Some((&upper, OTHER)),
        TranslationError::Regimes {
            lower: Regime::El2,
            upper: Regime::El1And0,
        },
        "El2",
    );
}

/// TCR.DS changes the format of the descriptors of both halves, except those of 64K pages.
#[test]
fn halves_of_one_register_have_one_format() {
    let lower = WIDE_INPUT.geometry(PageSize::K4, 48, VaRange::Lower);
    let upper = WIDE_INPUT.geometry(PageSize::K4, 52, VaRange::Upper);
    let formats = (lower.format(), upper.format());
    assert_eq!(formats, (OutputFormat::Bits48, OutputFormat::Lpa2));
    let cpu = WIDE_INPUT.features();
    let both = |lower, upper| Translation::new(&cpu, Some((lower, TTBR)), Some((upper, OTHER)));
    let refused = both(&lower, &upper).unwrap_err();
    assert_eq!(
        refused,
        TranslationError::Formats {
            lower: formats.0,
            upper: formats.1
        }
    );
    assert!(refused.to_string().contains("TCR.DS"), "{refused}");
    // 64K pages go with either.
    let wide = WIDE_INPUT.geometry(PageSize::K64, 48, VaRange::Lower);
    assert_eq!(both(&wide, &upper).unwrap().tcr & Tcr::DS, Tcr::DS);
}

/// IPS is of both halves, too, and truncates what is longer.
#[test]
fn the_larger_outputs_of_two_halves_fit_their_register() {
    let cpu = Cpu { tgran4: 0, ..LARGE };
    let wide = cpu.geometry(PageSize::K64, 48, VaRange::Lower);
    let narrow = cpu.geometry(PageSize::K4, 48, VaRange::Upper);
    assert_eq!((wide.pa_bits(), narrow.pa_bits()), (52, 48));
    let (wide, narrow) = (Some((&wide, TTBR)), Some((&narrow, OTHER)));
    let both = Translation::new(&cpu.features(), wide, narrow).unwrap();
    assert_eq!(both.tcr >> 32 & 7, 6);
}
