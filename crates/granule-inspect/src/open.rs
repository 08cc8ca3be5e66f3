//! From a source to its memory and its trees. This file decides which source to trust: the user's
//! options first, then registers, then Linux's VMCOREINFO, then a guess.

use crate::source::{self, Memory, OpenError, Registers, Source};
use crate::tree::{Origin, Shape, Tree};
use crate::vmcoreinfo::{self, Vmcoreinfo};
use crate::{guess, linux, registers};
use granule::arch::PageSize;
use granule::arch::registers::Mair;
use std::path::{Path, PathBuf};

/// The user's settings for a source that does not contain them itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The address of the first byte of a raw image.
    pub base: Option<u64>,
    /// The exception level of the registers below, 1 to 3; the default is 1.
    pub el: Option<u8>,
    /// Whether EL2 runs an operating system's kernel (HCR_EL2.E2H), with both halves.
    pub vhe: bool,
    /// TTBR0 of that exception level.
    pub ttbr0: Option<u64>,
    /// TTBR1 of that exception level.
    pub ttbr1: Option<u64>,
    /// TCR of that exception level.
    pub tcr: Option<u64>,
    /// MAIR of that exception level.
    pub mair: Option<u64>,
    pub vttbr: Option<u64>,
    pub vtcr: Option<u64>,
    /// HCR_EL2, of which FWB gives stage 2's memory types their meaning.
    pub hcr: Option<u64>,
    /// ID_AA64MMFR1_EL1, of which XNX gives stage 2's execute permissions their meaning.
    pub mmfr1: Option<u64>,
    /// A Linux kernel's System.map, for processes of a dump whose kernel does not list its data.
    pub symbols: Option<PathBuf>,
}

impl Options {
    /// The registers that these options are, or `None` if they name no root.
    fn registers(&self) -> Result<Option<Registers>, OpenError> {
        let missing = |what: &str, other: &str| {
            Err(OpenError(format!(
                "{what} alone does not say how its tables are read: give {other} too (--{})",
                other.to_ascii_lowercase()
            )))
        };
        let el = self.el.unwrap_or(1);
        if !(1..=3).contains(&el) {
            return Err(OpenError(format!(
                "exception level {el} has no tables of its own; give 1, 2 or 3"
            )));
        }
        let both_halves =
            el == 1 || el == 2 && (self.vhe || self.hcr.unwrap_or(0) & registers::E2H != 0);
        let vhe = if el == 2 { ", or --vhe" } else { "" };
        for (is_wrong, why) in [
            (
                self.vhe && el != 2,
                "VHE is of EL2: give --el 2 with --vhe".to_owned(),
            ),
            (
                self.ttbr1.is_some() && !both_halves,
                format!("EL{el} has no TTBR1: give --ttbr0{vhe}"),
            ),
            (
                self.tcr.is_some() && self.ttbr0.or(self.ttbr1).is_none(),
                "TCR alone names no root: give TTBR0 or TTBR1 too (--ttbr0, --ttbr1)".to_owned(),
            ),
            (
                self.vtcr.is_some() && self.vttbr.is_none(),
                "VTCR alone names no root: give VTTBR too (--vttbr)".to_owned(),
            ),
        ] {
            if is_wrong {
                return Err(OpenError(why));
            }
        }
        let mut cpu = Registers::default();
        let mut set = |name: String, value: Option<u64>| {
            value.into_iter().for_each(|value| cpu.set(&name, value));
        };
        let half = self.ttbr0.or(self.ttbr1);
        if half.is_some() {
            if self.tcr.is_none() {
                return missing("TTBR", "TCR");
            }
            set(format!("ttbr0_el{el}"), self.ttbr0);
            set(format!("ttbr1_el{el}"), self.ttbr1);
            set(format!("tcr_el{el}"), self.tcr);
            set(format!("mair_el{el}"), self.mair);
        }
        let mut hcr = self.hcr.unwrap_or(0);
        if self.vhe && el == 2 {
            hcr |= registers::E2H | registers::TGE;
        }
        if self.vttbr.is_some() {
            if self.vtcr.is_none() {
                return missing("VTTBR", "VTCR");
            }
            set("vttbr_el2".into(), self.vttbr);
            set("vtcr_el2".into(), self.vtcr);
            set("id_aa64mmfr1_el1".into(), self.mmfr1);
            hcr |= granule::arch::Stage2Geometry::HCR_VM;
        }
        set("hcr_el2".into(), Some(hcr));
        Ok(half.or(self.vttbr).map(|_| cpu))
    }
}

/// The text of a file that a user names.
fn text(path: &Path) -> Result<String, OpenError> {
    let bytes = std::fs::read(path);
    let bytes = bytes.map_err(|error| OpenError(format!("{}: {error}", path.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A source whose trees are known.
#[expect(missing_debug_implementations, reason = "the memory has none")]
pub struct Opened {
    /// Its physical memory.
    pub memory: Box<dyn Memory>,
    /// Its trees, the kernel's first.
    pub trees: Vec<Tree>,
    /// Notes for the user about both, a line each.
    pub notes: Vec<String>,
}

/// Opens a source and finds its trees.
/// Fails if it cannot be read, or no tree is found in it.
pub fn open(source: &Source, options: &Options) -> Result<Opened, OpenError> {
    open_telling(source, options, &mut |_, _| {})
}

/// The looks at all of a source's memory: for VMCOREINFO, and for a root table of each page size.
const LOOKS: u64 = 1 + PageSize::ALL.len() as u64;

/// As [`open`]. While the memory is searched, `progress` is called with the bytes that were looked at, and
/// with the most that will be.
pub fn open_telling(
    source: &Source,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Opened, OpenError> {
    let given = options.registers()?;
    let symbols = options.symbols.as_deref().map(text).transpose()?;
    let (memory, facts) = source::open(source, options.base)?;
    let mut notes = facts.notes;
    let mut done = 0_u64;
    let all = memory
        .searchable()
        .iter()
        .fold(0_u64, |all, range| {
            all.saturating_add(range.end - range.start)
        })
        .saturating_mul(LOOKS);
    let mut looked = |bytes: u64| {
        done = done.saturating_add(bytes);
        progress(done, all);
    };
    let mut trees = Vec::new();
    if let Some(given) = given {
        let (found, said) = registers::trees(&[given], Origin::Options);
        if let (true, Some(why)) = (found.is_empty(), said.first()) {
            return Err(OpenError(why.clone()));
        }
        trees = found;
        notes.extend(said);
    }
    if trees.is_empty() {
        let (found, said) = registers::trees(&facts.cpus, Origin::Registers);
        trees = found;
        notes.extend(said);
    }
    if trees.is_empty() {
        let text = facts.vmcoreinfo.or_else(|| {
            let (address, text) = vmcoreinfo::find(&*memory, &mut looked)?;
            notes.push(format!("VMCOREINFO was found in the memory at {address}"));
            Some(text)
        });
        if let Some(text) = text {
            let highest = memory.ranges().last().map_or(0, |last| last.end);
            match Vmcoreinfo(&text).kernel(highest) {
                Ok(tree) => {
                    match linux::processes(&*memory, &tree, Vmcoreinfo(&text), symbols.as_deref()) {
                        Ok((processes, said)) => {
                            trees = processes;
                            notes.extend(said);
                        }
                        Err(why) => notes.push(format!("processes are not read: {why}")),
                    }
                    trees.insert(0, tree);
                }
                Err(why) => notes.push(why),
            }
        }
    }
    if trees.is_empty()
        && let Some((tree, why)) = guess::kernel(&*memory, &facts.cpus, &mut looked)
    {
        trees.push(tree);
        notes.push(why);
    }
    if trees.is_empty() {
        let why = notes
            .last()
            .map(|note| format!(" ({note})"))
            .unwrap_or_default();
        return Err(OpenError(format!(
            "no page tables were found{why}; give TTBR1 or TTBR0, and TCR (--ttbr1, --ttbr0, --tcr)"
        )));
    }
    if let Some(mair) = options.mair {
        for tree in &mut trees {
            if matches!(tree.shape, Shape::Stage1(_)) {
                tree.memory_types = tree.memory_types.or(Some(Mair(mair)));
            }
        }
    }
    Ok(Opened {
        memory,
        trees,
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::dumps::{elf_core, note};
    use std::io::Write;

    const LINUX: &[u8] =
        b"OSRELEASE=6.1.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffff800081000000\n\
        NUMBER(VA_BITS)=48\nNUMBER(kimage_voffset)=0xffff800040000000\n";

    fn opened(core: &[u8], options: &Options) -> Result<Opened, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(core).unwrap();
        open(&Source::File(file.path().into()), options).map_err(|error| error.to_string())
    }

    #[test]
    fn options_come_before_what_linux_says_and_that_before_a_guess() {
        let core = elf_core(
            &[(0x4000_0000, vec![0; 8192])],
            &note("VMCOREINFO", 0, LINUX),
        );
        let found = opened(&core, &Options::default()).unwrap();
        assert_eq!(found.trees[0].root.0, 0x4100_0000);
        assert_eq!(found.trees[0].origin, Origin::Vmcoreinfo);
        assert_eq!(found.trees[0].memory_types, None);
        let unread = |note: &String| note.starts_with("processes are not read");
        assert!(found.notes.iter().any(unread));

        let mair = Options {
            mair: Some(0xff),
            ..Options::default()
        };
        let found = opened(&core, &mair).unwrap();
        assert_eq!(found.trees[0].memory_types, Some(Mair(0xff)));

        let options = Options {
            ttbr1: Some(0x4000_1000),
            tcr: Some(25 << 16 | 0b10 << 30 | 1 << 7),
            ..Options::default()
        };
        let found = opened(&core, &options).unwrap();
        assert_eq!((found.trees.len(), found.trees[0].root.0), (1, 0x4000_1000));
        assert_eq!(found.trees[0].origin, Origin::Options);
    }

    #[test]
    fn a_base_address_is_of_raw_images_alone() {
        let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
        let options = Options {
            base: Some(0x8000_0000),
            ttbr1: Some(0x4000_1000),
            tcr: Some(25 << 16 | 0b10 << 30 | 1 << 7),
            ..Options::default()
        };
        let found = opened(&core, &options).unwrap();
        assert_eq!(
            found.memory.ranges().first(),
            Some(&(0x4000_0000..0x4000_2000))
        );
        assert!(found.notes[0].contains("ignoring the base address"));
        // Memory that begins with a program.
        let mut program = core;
        program[16] = 2;
        let found = opened(&program, &options).unwrap();
        assert_eq!(found.memory.ranges()[0].start, 0x8000_0000);
        assert!(found.notes.is_empty(), "{:?}", found.notes);
    }

    #[test]
    fn a_search_tells_how_far_it_is() {
        let core = elf_core(&[(0x4000_0000, vec![0; 3 << 20])], &[]);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&core).unwrap();
        let mut steps_seen = Vec::new();
        let source = Source::File(file.path().into());
        let found = open_telling(&source, &Options::default(), &mut |done, all| {
            steps_seen.push((done, all));
        });
        assert!(found.is_err());
        // Nothing is found, so everything is looked at.
        let all = 4 * (3 << 20);
        let steps = (1..=12).map(|step| (step << 20, all));
        assert!(steps_seen.iter().copied().eq(steps), "{steps_seen:?}");
    }

    #[test]
    fn options_of_each_exception_level() {
        let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
        let both = Options {
            ttbr0: Some(0x4000_0000),
            ttbr1: Some(0x4000_1000),
            tcr: Some(16 | 16 << 16 | 0b10 << 30),
            ..Options::default()
        };
        let roots = |options: &Options| -> Vec<u64> {
            let found = opened(&core, options).unwrap();
            found.trees.iter().map(|tree| tree.root.0).collect()
        };
        assert_eq!(roots(&both), [0x4000_1000, 0x4000_0000]);
        let vhe = Options {
            el: Some(2),
            vhe: true,
            ..both.clone()
        };
        assert_eq!(roots(&vhe), [0x4000_1000, 0x4000_0000]);
        for el in [2, 3] {
            let one = Options {
                el: Some(el),
                ttbr1: None,
                ..both.clone()
            };
            assert_eq!(roots(&one), [0x4000_0000]);
        }
        let guest = Options {
            vttbr: Some(0x4000_0000),
            vtcr: Some(24 | 1 << 6),
            ..Options::default()
        };
        assert_eq!(roots(&guest), [0x4000_0000]);
        for (mmfr1, by_privilege) in [(None, false), (Some(1 << 28), true)] {
            let options = Options {
                mmfr1,
                ..guest.clone()
            };
            let found = opened(&core, &options).unwrap();
            let Shape::Stage2(shape) = found.trees[0].shape else {
                panic!("{:?}", found.trees);
            };
            assert_eq!(shape.shape().execute_by_privilege(), by_privilege);
        }
    }

    #[test]
    fn a_missing_register_is_reported_in_one_line() {
        let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
        const ROOT: Option<u64> = Some(0x4000_0000);
        type Case = (fn(&mut Options), &'static str);
        let cases: [Case; 11] = [
            (
                |_| {},
                "no page tables were found; give TTBR1 or TTBR0, and TCR (--ttbr1",
            ),
            (|it| it.ttbr0 = ROOT, "give TCR too (--tcr)"),
            (|it| it.vttbr = ROOT, "give VTCR too"),
            (|it| it.el = Some(0), "give 1, 2 or 3"),
            // Options that would be ignored silently.
            (|it| it.vhe = true, "VHE is of EL2: give --el 2"),
            (
                |it| (it.el, it.ttbr1, it.tcr) = (Some(2), ROOT, Some(25 << 16 | 0b10 << 30)),
                "EL2 has no TTBR1: give --ttbr0, or --vhe",
            ),
            (
                |it| (it.el, it.ttbr1, it.tcr) = (Some(3), ROOT, Some(25)),
                "EL3 has no TTBR1: give --ttbr0",
            ),
            (
                |it| it.tcr = Some(25),
                "TCR alone names no root: give TTBR0 or TTBR1 too",
            ),
            (
                |it| it.vtcr = Some(25),
                "VTCR alone names no root: give VTTBR too",
            ),
            (
                |it| (it.ttbr1, it.tcr) = (ROOT, Some(0)),
                "TCR_EL1 of CPU 0 cannot be used: TCR.TG1 is 0x0",
            ),
            (
                |it| (it.ttbr1, it.tcr) = (ROOT, Some(25 << 16 | 0b10 << 30 | 1 << 23 | 1 << 7)),
                "TTBR1_EL1 is not read: TCR_EL1 is 0x80990080, and with its EPD1 no CPU walks \
                 there; to read it all the same give the TCR 0x80190080",
            ),
        ];
        for (set, words) in cases {
            let mut options = Options::default();
            set(&mut options);
            let error = opened(&core, &options).err().unwrap();
            assert!(
                error.contains(words) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
