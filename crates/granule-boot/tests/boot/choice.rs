//! The choice of page size and VA size, for every combination of CPU and wishes, and the table
//! of machines.

use granule::arch::CpuFeatures;
use granule::arch::PageSize::{self, K4, K16, K64};
use granule_boot::Text;
use granule_boot::choice::{
    ChoiceNote, PageSizeInputs, Refused, Source, VA_BITS, Wish, choose_page_size, choose_va_bits,
};
use granule_boot::machines::{Identity, KnownMachine, MACHINES, Mark, find, find_in};
use granule_boot::sizes::SizeSet;

/// All subsets of the page sizes.
fn subsets() -> impl Iterator<Item = SizeSet> {
    (0..8_u32).map(|bits| {
        PageSize::ALL
            .into_iter()
            .enumerate()
            .filter(|(index, _)| bits & (1 << index) != 0)
            .map(|(_, size)| size)
            .collect()
    })
}

/// Every list of distinct page sizes, in every order.
fn preferences() -> Vec<Vec<PageSize>> {
    let mut lists = vec![vec![]];
    for _ in 0..3 {
        for list in lists.clone() {
            for size in PageSize::ALL {
                let longer: Vec<_> = list.iter().copied().chain([size]).collect();
                if !list.contains(&size) && !lists.contains(&longer) {
                    lists.push(longer);
                }
            }
        }
    }
    assert_eq!(lists.len(), 1 + 3 + 6 + 6);
    lists
}

fn machine(preferred: &[PageSize], forbidden: SizeSet) -> KnownMachine {
    let preferred = preferred.to_vec().leak();
    KnownMachine {
        name: "test machine",
        is: &[],
        preferred,
        forbidden,
        reason: "of a test",
    }
}

/// Applies the rules to a list of all wishes in the order of their weight.
fn expected(inputs: &PageSizeInputs) -> Option<(PageSize, Source, Vec<ChoiceNote>)> {
    let forbidden = inputs
        .machine
        .map_or(SizeSet::NONE, |machine| machine.forbidden);
    let mut wishes = vec![];
    match inputs.command_line {
        Wish::Absent => {}
        Wish::Wanted(size) => wishes.push((Source::CommandLine, Ok(size))),
        Wish::Garbled(text) => wishes.push((Source::CommandLine, Err(text))),
        other => panic!("a wish of a new kind: {other:?}"),
    }
    if let Some(machine) = inputs.machine {
        wishes.extend(
            machine
                .preferred
                .iter()
                .map(|size| (Source::MachineTable, Ok(*size))),
        );
    }
    wishes.extend(
        inputs
            .build_default
            .map(|size| (Source::BuildDefault, Ok(size))),
    );
    let mut notes = vec![];
    for (by, wish) in wishes {
        let wish = match wish {
            Err(text) => Refused::NotAPageSize(text),
            Ok(size) if !inputs.cpu.has(size) => Refused::PageSizeCpuLacks(size),
            Ok(size) if forbidden.has(size) && by == Source::CommandLine => {
                let wish = Refused::ForbiddenButAsked(size);
                notes.push(ChoiceNote { by, wish });
                return Some((size, by, notes));
            }
            Ok(size) if forbidden.has(size) => Refused::PageSizeForbidden(size),
            Ok(size) => return Some((size, by, notes)),
        };
        notes.push(ChoiceNote { by, wish });
    }
    let mut had = PageSize::ALL
        .into_iter()
        .filter(|size| inputs.cpu.has(*size));
    let smallest = had.clone().next()?;
    let allowed = had.find(|size| !forbidden.has(*size)).unwrap_or_else(|| {
        notes.push(ChoiceNote {
            by: Source::MachineTable,
            wish: Refused::AllForbidden(smallest),
        });
        smallest
    });
    Some((allowed, Source::Fallback, notes))
}

#[test]
fn every_cpu_with_every_wish() {
    let mut machines = vec![None];
    for preferred in preferences() {
        machines.extend(subsets().map(|forbidden| Some(machine(&preferred, forbidden))));
    }
    let command_lines = [
        Wish::Absent,
        Wish::Wanted(K4),
        Wish::Wanted(K16),
        Wish::Wanted(K64),
        Wish::Garbled(Text::new(b"8k")),
    ];
    let mut cases = 0;
    for cpu in subsets() {
        for machine in &machines {
            for command_line in command_lines {
                for build_default in [None, Some(K4), Some(K16), Some(K64)] {
                    let machine = machine.as_ref();
                    let inputs = PageSizeInputs {
                        cpu,
                        built: SizeSet::ALL,
                        command_line,
                        machine,
                        build_default,
                    };
                    let got = choose_page_size(&inputs);
                    let got = got.ok().map(|choice| {
                        let notes: Vec<_> = choice.notes.iter().copied().collect();
                        (choice.size, choice.source, notes)
                    });
                    assert_eq!(got, expected(&inputs), "{inputs:?}");
                    if let Some((size, ..)) = got {
                        assert!(cpu.has(size), "{inputs:?}");
                    }
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 8 * (1 + 16 * 8) * 5 * 4);
}

#[test]
fn notes_are_lines() {
    use Refused::*;
    let (line, table) = (Source::CommandLine, Source::MachineTable);
    let notes = [
        (line, NotAPageSize(Text::new(b"64 KiB\n"))),
        (
            line,
            PageSizeNotBuilt(K16, SizeSet::NONE.with(K4).with(K64)),
        ),
        (table, PageSizeCpuLacks(K16)),
        (Source::BuildDefault, PageSizeForbidden(K4)),
        (line, ForbiddenButAsked(K4)),
        (table, AllForbidden(K16)),
        (line, NotAVaSize(Text::new(b""))),
        (line, NoSuchVaBits(40)),
        (line, VaBitsCpuLacks(52, K16)),
        (line, VaBitsCpuLacks(52, K64)),
    ];
    let lines = notes.map(|(by, wish)| ChoiceNote { by, wish }.to_string());
    let expected = r"command line: arm64.pagesize=64 KiB\n ignored: expected 4k, 16k or 64k
command line: page size 16k ignored: this kernel was built for 4k, 64k only
machine table: page size 16k ignored: this CPU does not have it (ID_AA64MMFR0_EL1)
build default: page size 4k ignored: the machine table forbids it on this machine
command line: page size 4k taken, though the machine table forbids it on this machine
machine table: every page size that this CPU has is forbidden on this machine: taking 16k
command line: arm64.vabits= ignored: expected 36, 39, 42, 47, 48 or 52
command line: arm64.vabits=40 ignored: expected 36, 39, 42, 47, 48 or 52
command line: arm64.vabits=52 ignored: this CPU does not have FEAT_LPA2 for 16k pages (ID_AA64MMFR0_EL1.TGRAN16)
command line: arm64.vabits=52 ignored: this CPU does not have FEAT_LVA (ID_AA64MMFR2_EL1.VARange)";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn a_cpu_without_any_size_is_an_error() {
    let inputs = PageSizeInputs {
        cpu: SizeSet::NONE,
        built: SizeSet::ALL,
        command_line: Wish::Wanted(K4),
        machine: None,
        build_default: None,
    };
    let error = choose_page_size(&inputs).unwrap_err();
    assert_eq!(error.to_string(), error.text());
}

#[test]
fn sources_have_the_names_of_the_record() {
    let names = [
        (Source::CommandLine, "command-line"),
        (Source::MachineTable, "machine-table"),
        (Source::BuildDefault, "build-default"),
        (Source::Fallback, "fallback"),
    ];
    for (source, name) in names {
        assert_eq!(source.name(), name);
    }
}

/// A CPU with these TGran4, TGran16 and TGran64 fields and this VARange.
fn cpu(tgran: [u64; 3], va_range: u64) -> CpuFeatures {
    let [tgran4, tgran16, tgran64] = tgran;
    CpuFeatures {
        mmfr0: tgran4 << 28 | tgran64 << 24 | tgran16 << 20,
        mmfr2: va_range << 16,
        ..CpuFeatures::NONE
    }
}

#[test]
fn the_sizes_of_a_cpu_come_from_its_id_registers() {
    for (tgran, sizes) in [
        ([0b0000, 0b0000, 0b0000], &[K4, K64][..]),
        ([0b0001, 0b0010, 0b0000], &[K4, K16, K64]),
        ([0b1111, 0b0001, 0b0000], &[K16, K64]),
        ([0b1111, 0b0001, 0b1111], &[K16]),
        ([0b1111, 0b0000, 0b1111], &[]),
    ] {
        let expected: SizeSet = sizes.iter().copied().collect();
        assert_eq!(SizeSet::from(&cpu(tgran, 0)), expected);
    }
}

#[test]
fn va_bits_for_every_page_size_and_wish() {
    for size in PageSize::ALL {
        for (most, cpu) in [(48, cpu([0, 1, 0], 0)), (52, cpu([1, 2, 0], 1))] {
            let absent = choose_va_bits(&cpu, size, Wish::Absent);
            assert_eq!((absent.bits, absent.source), (48, Source::Fallback));
            assert!(absent.notes.is_empty());
            let text = Text::new(b"x");
            let garbled = choose_va_bits(&cpu, size, Wish::Garbled(text));
            let notes: Vec<_> = garbled.notes.iter().map(|note| note.wish).collect();
            assert_eq!((garbled.bits, notes), (48, vec![Refused::NotAVaSize(text)]));
            for wished in 0..=64 {
                let choice = choose_va_bits(&cpu, size, Wish::Wanted(wished));
                let granted = VA_BITS.contains(&wished) && wished <= most;
                let source = if granted {
                    Source::CommandLine
                } else {
                    Source::Fallback
                };
                assert_eq!(
                    (choice.bits, choice.source),
                    (if granted { wished } else { 48 }, source)
                );
                assert_eq!(choice.notes.iter().count(), usize::from(!granted));
                let refused = choice.notes.iter().next().map(|note| note.wish);
                let expected = match wished {
                    _ if granted => None,
                    52 => Some(Refused::VaBitsCpuLacks(52, size)),
                    _ => Some(Refused::NoSuchVaBits(wished)),
                };
                assert_eq!(refused, expected);
            }
        }
    }
}

#[test]
fn texts_are_kept_short_and_printed_as_one_line() {
    assert_eq!(Text::new(b"a\0b\xff\r\n").to_string(), "a\\x00b\\xff\\r\\n");
    let long = [b'x'; 1000];
    let text = Text::new(&long).to_string();
    assert_eq!(text, format!("{}...", "x".repeat(Text::CAPACITY)));
    assert_eq!(
        Text::new(&long[..Text::CAPACITY]).to_string(),
        "x".repeat(Text::CAPACITY)
    );
}

fn identity(compatible: &[&'static str]) -> Identity<std::vec::IntoIter<&'static [u8]>> {
    let compatible: Vec<_> = compatible.iter().map(|name| name.as_bytes()).collect();
    Identity {
        compatible: compatible.into_iter(),
        midr: None,
        soc: None,
    }
}

#[test]
fn machines_are_found_by_what_they_are() {
    let name = |identity| find(&identity).map(|machine| machine.name);
    // A part of a name is not a name.
    for none in [
        &["linux,dummy-virt"][..],
        &[],
        &["apple,t81"],
        &["apple,t81030"],
    ] {
        assert_eq!(name(identity(none)), None, "{none:?}");
    }
    let m1 = name(identity(&["apple,j274", "apple,t8103"]));
    assert_eq!(m1, Some("Apple M1, M2 or M3"));
    let grace = Identity {
        soc: Some(0x036b_0241),
        ..identity(&["x"])
    };
    assert_eq!(name(grace), Some("NVIDIA Grace"));

    let mark = |implementer, part| KnownMachine {
        is: Vec::leak(vec![Mark::Midr { implementer, part }]),
        ..machine(&[], SizeSet::NONE)
    };
    // A Cortex-A72 r0p3.
    let cpu = Identity {
        midr: Some(0x410f_d083),
        ..identity(&[])
    };
    for (implementer, part, expected) in [
        (0x41, Some(0xd08), true),
        (0x41, None, true),
        (0x41, Some(0xd07), false),
        (0x42, Some(0xd08), false),
        (0x42, None, false),
    ] {
        let table = [mark(implementer, part)];
        assert_eq!(
            find_in(&table, &cpu).is_some(),
            expected,
            "{implementer:#x} {part:x?}"
        );
        assert!(
            find_in(&table, &identity(&[])).is_none(),
            "no MIDR is known"
        );
    }
}

#[test]
fn the_table_of_machines_holds_together() {
    for (index, machine) in MACHINES.iter().enumerate() {
        let line = machine.to_string();
        assert!(!line.contains('\n') && line.is_ascii(), "{line:?}");
        assert!(
            !machine.is.is_empty(),
            "{line}: nothing is recognised by nothing"
        );
        for size in machine.preferred {
            assert!(!machine.forbidden.has(*size), "{line}");
        }
        assert!(
            PageSize::ALL
                .into_iter()
                .any(|size| !machine.forbidden.has(size)),
            "{line}"
        );
        // Nothing that an earlier entry catches is in a later one.
        for earlier in &MACHINES[..index] {
            for mark in machine.is {
                let caught = earlier.is.iter().any(|own| match (own, mark) {
                    (
                        Mark::Midr {
                            implementer: a,
                            part: None,
                        },
                        Mark::Midr { implementer: b, .. },
                    ) => a == b,
                    (own, mark) => own == mark,
                });
                assert!(!caught, "{line}: hidden by {earlier}");
            }
        }
    }
}

#[test]
fn apple_machines_get_a_size_that_their_iommu_can_work_with() {
    let (wanted, default) = (Source::CommandLine, Source::MachineTable);
    for (compatible, cpu, wish, expected, notes) in [
        // The M1's CPU has 4K and 16K; its IOMMU has 16K.
        ("apple,t8103", [K4, K16], Wish::Wanted(K4), (K4, wanted), 1),
        ("apple,t8103", [K4, K16], Wish::Absent, (K16, default), 0),
        // Their IOMMU has 4K, which every larger page is a multiple of: a wish is granted.
        (
            "apple,t7000",
            [K4, K64],
            Wish::Wanted(K64),
            (K64, wanted),
            0,
        ),
        ("apple,t7000", [K4, K64], Wish::Absent, (K4, default), 0),
        (
            "apple,t8010",
            [K16, K64],
            Wish::Wanted(K64),
            (K64, wanted),
            0,
        ),
        ("apple,t8010", [K16, K64], Wish::Absent, (K16, default), 0),
    ] {
        let choice = choose_page_size(&PageSizeInputs {
            cpu: cpu.into_iter().collect(),
            built: SizeSet::ALL,
            command_line: wish,
            machine: find(&identity(&[compatible])),
            build_default: Some(cpu[1]),
        });
        let choice = choice.unwrap();
        assert_eq!((choice.size, choice.source), expected, "{compatible}");
        assert_eq!(choice.notes.iter().count(), notes, "{compatible}");
    }
}
