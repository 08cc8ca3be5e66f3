//! The ranges of one tree that the options of `granule dump` select. Nothing is printed here.

use std::io;
use std::ops::ControlFlow;

use granule::arch::Level;
use granule_inspect::attributes::Decoded;
use granule_inspect::ranges::{Merger, Range};
use granule_inspect::source::Memory;
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use granule_inspect::walk::{Event, LeftOut, Tables, Why, walk};

use super::args::DumpArgs;
use super::{Failure, Progress, Step};

impl DumpArgs {
    /// The addresses, and which ranges are to be shown.
    pub(super) fn selection(&self) -> ((u64, u64), impl Fn(&Tree, &Range) -> bool) {
        ((self.first, self.last), |tree, range| {
            self.shows(tree, range)
        })
    }

    /// Whether a range has the requested words.
    fn shows(&self, tree: &Tree, range: &Range) -> bool {
        if self.with.is_empty() && self.without.is_empty() {
            return true;
        }
        let columns = Decoded::new(tree, range.attributes).columns();
        let kind = if range.level == Level::L3 {
            "page"
        } else {
            "block"
        };
        let has = |word: &String| {
            word.eq_ignore_ascii_case(kind)
                || word.eq_ignore_ascii_case("contiguous") && range.contiguous
                || columns.iter().any(|own| own.is(word))
        };
        self.with.iter().all(has) && !self.without.iter().any(has)
    }
}

/// The findings of a walk of one tree besides ranges.
pub(crate) struct Walked {
    pub(crate) totals: Totals,
    left_out: Vec<LeftOut>,
    /// The number of the others.
    more_left_out: u64,
    /// Whether even a root cannot be read.
    pub(super) no_root: bool,
}

impl Walked {
    /// The tables that are left out, in words.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let more = (self.more_left_out > 0)
            .then(|| format!("{} more tables are left out", self.more_left_out));
        self.left_out.iter().map(ToString::to_string).chain(more)
    }
}

/// The most left-out tables that are listed; a damaged dump may lack very many.
const MOST_LEFT_OUT: usize = 1000;

/// Calls `each` for every range of a tree within these addresses that is to be shown.
pub(crate) fn ranges(
    (within, shows): ((u64, u64), impl Fn(&Tree, &Range) -> bool),
    memory: &dyn Memory,
    tree: &Tree,
    progress: Progress<'_>,
    mut each: impl FnMut(&Range) -> io::Result<()>,
) -> Result<Walked, Failure> {
    let mut walked = Walked {
        totals: Totals::default(),
        left_out: Vec::new(),
        more_left_out: 0,
        no_root: false,
    };
    let mut merger = Merger::default();
    let mut read = 0;
    let totals = &mut walked.totals;
    let mut show = |range: Option<Range>| match range {
        Some(range) if shows(tree, &range) => {
            totals.add_range(tree, &range);
            each(&range)
        }
        _ => Ok(()),
    };
    let mut tables = 0;
    let ended = walk(&Tables::new(memory, tree), tree, within, |event| {
        let shown = match event {
            Event::Table(table) => {
                tables += u64::from(table.before.is_none());
                read += 1;
                progress(Step::Tables(read));
                Ok(())
            }
            Event::Leaves(leaves) => show(merger.push(Range::of(tree, leaves))),
            Event::LeftOut(table) => {
                let root = table.level == tree.geometry().start_level();
                walked.no_root |= root && matches!(table.why, Why::Unreadable(_));
                if walked.left_out.len() < MOST_LEFT_OUT {
                    walked.left_out.push(table.clone());
                } else {
                    walked.more_left_out += 1;
                }
                Ok(())
            }
        };
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    });
    if let ControlFlow::Break(error) = ended {
        return Err(error.into());
    }
    show(merger.end())?;
    (0..tables).for_each(|_| walked.totals.add_table(tree));
    Ok(walked)
}
