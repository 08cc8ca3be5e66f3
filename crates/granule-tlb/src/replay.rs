//! Replays the stream of accesses through the TLBs of every CPU with every map, all at once.
//!
//! The maps that are compared are rules on addresses, so one run serves all page sizes. All models go along
//! with the guest, in constant memory: a CPU with a map each. TTBR writes that change the ASID and TLBIs
//! apply to every model. Slow models make the guest wait.

use granule::arch::PageSize;
use granule_plugin::accesses::{AccessKind, AccessRecord, KEPT, Page, What};

use super::cpus::{CPUS, Cpu};
use super::maps::{Map, Shape};
use super::model::{Address, Invalidation, Misses, Tlbs};

/// One CPU with one map.
#[derive(Debug)]
struct ReplayCase {
    cpu: &'static Cpu,
    map: Map,
    tlbs: Tlbs,
}

impl ReplayCase {
    fn access(&mut self, kind: AccessKind, asid: u16, page: &Page) {
        let va = page.address;
        let leaf_bits = self.map.leaf_bits(page);
        self.tlbs.access(kind, Address { va, asid }, leaf_bits);
    }
}

/// The misses of one CPU with one map.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The CPU.
    pub cpu: &'static Cpu,
    /// The map.
    pub map: Map,
    /// The misses.
    pub misses: Misses,
}

/// All counts of a replay.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The instructions of the workload.
    pub instructions: u64,
    /// The guest's page size, once a program ran.
    pub page_size: Option<PageSize>,
    /// Whether the stream has its end.
    pub ended: bool,
    /// Whether instructions ran whose accesses the plugin does not see.
    pub unseen: bool,
    /// By CPU, then by page size, then by shape.
    pub rows: Vec<Row>,
}

/// The models, and the state of the stream.
#[derive(Debug)]
pub struct Replay {
    cases: Vec<ReplayCase>,
    asid: u16,
    page_bits: u8,
    /// The pages that the stream keeps, of fetches and of data.
    recent: [[Option<Page>; KEPT]; 2],
    counted: Counted,
}

const KINDS: [AccessKind; 2] = [AccessKind::Fetch, AccessKind::Data];

fn cases(maps: &[Shape], page_sizes: &[PageSize]) -> Vec<ReplayCase> {
    let mut cases = Vec::new();
    for cpu in CPUS {
        for &page_size in page_sizes {
            if cpu.second.sizes_with(page_size).is_empty() {
                continue;
            }
            cases.extend(maps.iter().map(|&shape| ReplayCase {
                cpu,
                map: Map { page_size, shape },
                tlbs: Tlbs::new(cpu, page_size),
            }));
        }
    }
    cases
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            cases: cases(&Shape::RULES, &PageSize::ALL),
            asid: 0,
            page_bits: 0,
            recent: [[None; KEPT]; 2],
            counted: Counted::default(),
        }
    }
}

impl Replay {
    /// The instructions so far.
    #[must_use]
    pub const fn instructions(&self) -> u64 {
        self.counted.instructions
    }

    /// Replays a record.
    pub fn add(&mut self, record: &AccessRecord) {
        self.counted.instructions += u64::from(record.instructions);
        for (kind, order) in KINDS.into_iter().zip(record.order) {
            self.use_again(kind, order);
        }
        match record.what {
            // A second one changes nothing, as only a broken plugin sends it.
            What::Begin(_) if self.page_bits != 0 => (),
            What::Begin(page_bits) => {
                let mut sizes = PageSize::ALL.into_iter();
                let page_size = sizes.find(|it| it.shift() == u32::from(page_bits));
                self.counted.page_size = page_size;
                self.page_bits = page_bits;
                self.cases
                    .extend(cases(&[Shape::Guest], page_size.as_slice()));
            }
            What::Access(kind, page) => {
                let recent = &mut self.recent[kind as usize];
                recent.rotate_right(1);
                recent[0] = Some(page);
                for case in &mut self.cases {
                    case.access(kind, self.asid, &page);
                }
            }
            What::Asid(asid) => {
                self.asid = asid;
                self.recent = [[None; KEPT]; 2];
            }
            What::Tlbi(op, operand) => {
                self.recent = [[None; KEPT]; 2];
                // Those of other regimes have no entries here.
                if let Some(what) = Invalidation::of(op, operand, self.page_bits.clamp(12, 16)) {
                    for case in &mut self.cases {
                        case.tlbs.invalidate(&what);
                    }
                }
            }
            What::Pass => (),
            What::End { unseen } => {
                self.counted.ended = true;
                self.counted.unseen = unseen;
            }
        }
    }

    /// Applies a new order of use of the kept pages: those before the last that moved, the latest
    /// last. The last one only fell back. They hit in every first level.
    fn use_again(&mut self, kind: AccessKind, order: [u8; KEPT]) {
        let before = self.recent[kind as usize];
        let moved = |at: &usize| order.get(*at).is_some_and(|from| usize::from(*from) != *at);
        let Some(last) = (0..KEPT).rev().find(moved) else {
            return;
        };
        let now = order.map(|from| before.get(usize::from(from)).copied().flatten());
        self.recent[kind as usize] = now;
        for page in now.iter().take(last).rev().flatten() {
            for case in &mut self.cases {
                case.access(kind, self.asid, page);
            }
        }
    }

    /// The counts.
    #[must_use]
    pub fn finish(self) -> Counted {
        let place = |cpu: &Cpu| CPUS.iter().position(|other| other.name == cpu.name);
        let mut rows: Vec<Row> = self
            .cases
            .iter()
            .map(|case| Row {
                cpu: case.cpu,
                map: case.map,
                misses: case.tlbs.misses(),
            })
            .collect();
        rows.sort_by_key(|row| (place(row.cpu), row.map.page_size.bytes()));
        Counted {
            rows,
            ..self.counted
        }
    }
}

impl Counted {
    /// Returns the misses of a CPU with a map.
    #[must_use]
    pub fn row(&self, cpu: &Cpu, page_size: PageSize, shape: Shape) -> Option<&Row> {
        let map = Map { page_size, shape };
        let mut rows = self.rows.iter();
        rows.find(|row| row.cpu.name == cpu.name && row.map == map)
    }

    /// Returns the change of misses of kernel addresses when the linear map has blocks in place of
    /// pages, in percent.
    #[must_use]
    pub fn linear_change(&self, cpu: &Cpu, page_size: PageSize) -> Option<f64> {
        let kernel = |shape| Some(self.row(cpu, page_size, shape)?.misses.kernel as f64);
        let pages = kernel(Shape::Pages)?;
        let blocks = kernel(Shape::LinearBlocks)?;
        (pages > 0.0).then(|| 100.0 * (blocks / pages - 1.0))
    }

    /// Returns misses of both levels per thousand instructions.
    #[must_use]
    pub fn per_thousand(&self, misses: u64) -> f64 {
        1000.0 * misses as f64 / self.instructions.max(1) as f64
    }

    /// Checks that larger leaves never missed more often, and finds the first place where they did:
    /// contiguous groups more than pages, blocks more than groups, the linear map in blocks more
    /// than pages, larger pages more than smaller ones.
    ///
    /// # Errors
    ///
    /// One line that names it.
    pub fn check_order(&self) -> Result<(), String> {
        const SHAPES: [(Shape, Shape); 4] = [
            (Shape::Pages, Shape::Contiguous),
            (Shape::Contiguous, Shape::Blocks),
            (Shape::Pages, Shape::LinearBlocks),
            (Shape::LinearBlocks, Shape::Blocks),
        ];
        let mut pairs = Vec::new();
        for cpu in CPUS {
            for size in PageSize::ALL {
                let of = |shape| self.row(cpu, size, shape);
                pairs.extend(SHAPES.map(|(small, large)| (of(small), of(large))));
            }
            let pages = PageSize::ALL.map(|size| self.row(cpu, size, Shape::Pages));
            let there: Vec<_> = pages.into_iter().flatten().collect();
            pairs.extend(there.windows(2).filter_map(|pair| match pair {
                [small, large] => Some((Some(*small), Some(*large))),
                _ => None,
            }));
        }
        let mut compared = 0;
        for (small, large) in pairs {
            let (Some(small), Some(large)) = (small, large) else {
                continue;
            };
            compared += 1;
            if large.misses.all() > small.misses.all() {
                let name = |row: &Row| {
                    let size = row.map.page_size.name();
                    format!(
                        "{} misses with {size} {}",
                        row.misses.all(),
                        row.map.shape.word()
                    )
                };
                let (cpu, less, more) = (small.cpu.name, name(small), name(large));
                return Err(format!("{cpu}: {more}, and {less}"));
            }
        }
        if compared == 0 {
            return Err("there is nothing to compare".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
