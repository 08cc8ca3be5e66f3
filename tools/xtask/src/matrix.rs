//! The QEMU matrix: the boots, the few that cover them, and the report that each must give.
//!
//! Pure functions over tables; `boots` does the booting. CPU facts are those of QEMU's models as
//! their ID registers report them (ID_AA64MMFR0_EL1.TGRAN*, ID_AA64MMFR1_EL1.VH,
//! ID_AA64MMFR2_EL1.VARange). Boots of two kernels are in [`kexec`].

pub(crate) mod kexec;
pub(crate) mod payload;

use anyhow::Result;
use serde_json::{Value, json};

use crate::boot::{self, Expected};
use xtask::pairwise;

/// A CPU model and its features.
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) name: &'static str,
    /// Page sizes, in KiB.
    page_sizes: &'static [u32],
    /// Virtualization host extensions: a kernel entered at EL2 stays there.
    vhe: bool,
    /// 52-bit addresses with every page size (LPA2 and LVA).
    wide: bool,
    /// FEAT_BBM at a level that allows blocks to be split live: QEMU's is 2.
    splits: bool,
}

/// A CPU of which all that is newer than its page sizes and VHE is absent.
const fn cpu(name: &'static str, page_sizes: &'static [u32], vhe: bool) -> Cpu {
    Cpu {
        name,
        page_sizes,
        vhe,
        wide: false,
        splits: false,
    }
}

pub(crate) const CPUS: &[Cpu] = &[
    // Cortex-A53 and A72 have no 16K granule (TGRAN16 = 0).
    cpu("cortex-a53", &[4, 64], false),
    cpu("cortex-a72", &[4, 64], false),
    cpu("cortex-a76", &[4, 16, 64], true),
    cpu("neoverse-n1", &[4, 16, 64], true),
    Cpu {
        wide: true,
        splits: true,
        ..cpu("max", &[4, 16, 64], true)
    },
];

/// The VA sizes that all three page sizes can be built with (arm-rules: TxSZ 28 to 12).
const VA_BITS: &[u32] = &[36, 39, 42, 47, 48, 52];
const RODATA: &[&str] = &["off", "noalias", "on", "full"];
const ELS: &[u32] = &[1, 2];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MatrixBoot {
    /// Index into `CPUS`.
    cpu: usize,
    /// In KiB.
    page_size: u32,
    va_bits: u32,
    el: u32,
    rodata: &'static str,
    /// Only in random cases; `None` leaves `granule boot`'s default.
    pub(crate) memory: Option<&'static str>,
    pub(crate) linear_map: Option<&'static str>,
}

impl MatrixBoot {
    fn cpu(&self) -> &'static Cpu {
        &CPUS[self.cpu]
    }

    /// The exception level that the kernel must run at: EL2 only with VHE.
    fn run_el(&self) -> u32 {
        if self.el == 2 && self.cpu().vhe { 2 } else { 1 }
    }

    /// The value in each dimension, for pairwise covering.
    fn dimensions(&self) -> Vec<u32> {
        let rodata = RODATA.iter().position(|word| *word == self.rodata);
        let rodata = rodata.unwrap_or_default() as u32;
        let cpu = self.cpu as u32;
        vec![cpu, self.page_size, self.va_bits, self.el, rodata]
    }
}

impl Expected for MatrixBoot {
    fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--cpu={}", self.cpu().name),
            format!("--page-size={}k", self.page_size),
            format!("--va-bits={}", self.va_bits),
            format!("--el={}", self.el),
            format!("--rodata={}", self.rodata),
        ];
        words.extend(self.memory.map(|m| format!("--memory={m}")));
        words.extend(self.linear_map.map(|s| format!("--linear-map={s}")));
        words
    }

    fn values(&self) -> Vec<(String, Value)> {
        let mut values = vec![
            ("page_size", json!(u64::from(self.page_size) << 10)),
            ("va_bits", json!(self.va_bits)),
            ("entry_el", json!(self.el)),
            ("run_el", json!(self.run_el())),
            ("page_size_source", json!("command-line")),
            ("linear_map.rodata", json!(self.rodata)),
        ];
        values.extend(
            self.linear_map
                .map(|name| ("linear_map.strategy", json!(name))),
        );
        boot::owned(values)
    }

    /// The map must be consistent. Its leaves add up to the mapped memory that the record states, which is
    /// more than nothing and no more than RAM. The map is in pages if `rodata` requires that any page may
    /// change and the CPU cannot split blocks live; otherwise it has larger leaves.
    fn faults(&self, record: &Value) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let ram = boot::number(record, "linear_map.ram_bytes")?;
        let mapped = boot::number(record, "linear_map.mapped_bytes")?;
        if mapped == 0 || mapped > ram {
            let line = format!("linear_map.mapped_bytes is {mapped} of {ram} bytes of RAM");
            wrong.push(line);
        }
        let rodata = self.rodata;
        let pages_only = matches!(rodata, "on" | "full") && !self.cpu().splits;
        let (mut sum, mut larger) = (0_u64, false);
        let leaves = boot::at(record, "linear_map.leaves")?.as_array();
        for leaf in leaves.into_iter().flatten() {
            let (size, count) = (boot::number(leaf, "size")?, boot::number(leaf, "count")?);
            sum = sum.saturating_add(size.saturating_mul(count));
            let is_larger = size != u64::from(self.page_size) << 10 && count > 0;
            if pages_only && is_larger {
                let size = granule_cli::sizes::show_size(size);
                wrong.push(format!("rodata={rodata} but {count} leaves of {size}"));
            }
            larger |= is_larger;
        }
        if !pages_only && !larger {
            let line = format!("rodata={rodata} but no leaf is larger than a page");
            wrong.push(line);
        }
        if sum != mapped {
            let line = format!("leaves add up to {sum} bytes, mapped_bytes is {mapped}");
            wrong.push(line);
        }
        Ok(wrong)
    }
}

impl std::fmt::Display for MatrixBoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.arguments().join(" "))
    }
}

pub(crate) fn full() -> Vec<MatrixBoot> {
    let mut cases = Vec::new();
    for (cpu, model) in CPUS.iter().enumerate() {
        for &page_size in model.page_sizes {
            for &va_bits in VA_BITS.iter().filter(|bits| **bits < 52 || model.wide) {
                for &el in ELS {
                    cases.extend(RODATA.iter().map(|&rodata| MatrixBoot {
                        cpu,
                        page_size,
                        va_bits,
                        el,
                        rodata,
                        memory: None,
                        linear_map: None,
                    }));
                }
            }
        }
    }
    cases
}

/// A few boots that contain every pair of values that occurs in any case, the image's kind among the values: true is
/// the image with hooks for tests.
pub(crate) fn covering() -> Vec<(MatrixBoot, bool)> {
    let each = |case: MatrixBoot| [(case.clone(), false), (case, true)];
    let all: Vec<_> = full().into_iter().flat_map(each).collect();
    pairwise::covering(&all, values)
}

fn values((case, test): &(MatrixBoot, bool)) -> Vec<u32> {
    let mut values = case.dimensions();
    values.push(u32::from(*test));
    values
}

/// `count` cases drawn from the matrix, with a memory size and a strategy added; the same for the same
/// seed.
pub(crate) fn random(seed: u64, count: usize) -> Vec<MatrixBoot> {
    const MEMORY: &[&str] = &["256M", "384M", "1G", "1539M", "3G", "4G", "6G", "16G"];
    const STRATEGIES: &[&str] = &["base", "direct"];
    let all = full();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = || {
        let mut case = random.choice(&all).cloned()?;
        case.memory = random.choice(MEMORY).copied();
        case.linear_map = random.choice(STRATEGIES).copied();
        Some(case)
    };
    (0..count).filter_map(|_| draw()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_matrix_is_what_the_cpus_allow() {
        let all = full();
        // a53 and a72: 2 sizes × 5 VA × 2 EL × 4 rodata; a76, n1: 3 × 5 × 8; max: 3 × 6 × 8.
        assert_eq!(all.len(), 2 * 80 + 2 * 120 + 144);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let old = |c: &&MatrixBoot| c.cpu().name == "cortex-a72";
        assert!(
            all.iter()
                .filter(old)
                .all(|c| c.page_size != 16 && c.va_bits != 52)
        );
        for kib in [4, 16, 64] {
            assert!(all.iter().any(|c| c.page_size == kib && c.va_bits == 52));
        }
    }

    #[test]
    fn the_sample_covers_every_pair_and_is_small() {
        let sample = covering();
        let each = sample.iter().map(|case| pairwise::pairs(&values(case)));
        let pairs = each.flatten().collect::<BTreeSet<_>>();
        for case in full() {
            for test in [false, true] {
                let wanted = pairwise::pairs(&values(&(case.clone(), test)));
                assert!(
                    wanted.iter().all(|pair| pairs.contains(pair)),
                    "{case} {test}"
                );
            }
        }
        // 52-bit VA exists for one CPU only, so 26 pairs of CPU and VA size are the least.
        assert!((26..=40).contains(&sample.len()), "{}", sample.len());
        assert_eq!(sample, covering());
    }

    #[test]
    fn random_cases_follow_the_seed() {
        assert_eq!(random(7, 50), random(7, 50));
        assert_ne!(random(7, 50), random(8, 50));
        assert!(
            random(7, 50)
                .iter()
                .all(|c| c.memory.is_some() && c.linear_map.is_some())
        );
    }

    fn case(cpu: &str, rodata: &'static str) -> MatrixBoot {
        let mut all = full().into_iter();
        let is_it = |c: &MatrixBoot| c.cpu().name == cpu && c.el == 2 && c.rodata == rodata;
        all.find(is_it).unwrap()
    }

    fn record(case: &MatrixBoot) -> Value {
        json!({
            "page_size": u64::from(case.page_size) << 10, "page_size_source": "command-line",
            "va_bits": case.va_bits, "entry_el": case.el, "run_el": case.run_el(),
            "image": {"sha256": "aa"},
            "linear_map": {
                "rodata": case.rodata, "strategy": "direct", "ram_bytes": 1 << 20,
                "mapped_bytes": 1 << 16,
                "leaves": [{"size": 4096, "contiguous": false, "count": 16}],
            },
        })
    }

    #[test]
    fn a_true_record_passes_and_each_lie_is_found() {
        let mut case = case("neoverse-n1", "full");
        case.linear_map = Some("direct");
        let good = record(&case);
        assert_eq!(case.mismatches(&good, "aa"), [""; 0]);
        let is_right = |record: &Value| case.mismatches(record, "aa").is_empty();
        assert_eq!(
            boot::unjudged(&good, is_right),
            ["/linear_map/leaves/0/contiguous"]
        );
        for (pointer, lie) in [
            ("/run_el", json!(1)),
            ("/linear_map/mapped_bytes", json!(0)),
            ("/linear_map/ram_bytes", json!(4096)),
            ("/linear_map/leaves/0/count", json!(15)),
            ("/linear_map/leaves/0/size", json!(2 << 20)),
        ] {
            assert!(!is_right(&boot::changed(&good, pointer, lie)), "{pointer}");
        }
    }

    #[test]
    fn without_vhe_the_kernel_drops_to_el1() {
        assert_eq!(case("cortex-a53", "on").run_el(), 1);
        assert_eq!(case("neoverse-n1", "on").run_el(), 2);
    }

    #[test]
    fn blocks_are_wanted_where_rodata_and_the_cpu_allow_them() {
        for (cpu, rodata, wanted) in [
            ("neoverse-n1", "off", true),
            ("neoverse-n1", "on", false),
            ("max", "noalias", true),
            ("max", "full", true),
        ] {
            let case = case(cpu, rodata);
            let pages = record(&case);
            let leaf = json!([{"size": 65536, "contiguous": true, "count": 1}]);
            let blocks = boot::changed(&pages, "/linear_map/leaves", leaf);
            for (record, fine) in [(pages, !wanted), (blocks, wanted)] {
                let wrong = case.mismatches(&record, "aa");
                assert_eq!(wrong.is_empty(), fine, "{cpu} {rodata}: {wrong:?}");
            }
        }
    }
}
