//! The jobs that are measured.

use super::{Calls, Job, Leaf, Tables};

/// Returns the jobs by calls of some leaves, with one size of page.
fn by_call(page: Leaf) -> impl Iterator<Item = Job> {
    // The pages of the first lie close, those of the second take tables of 2 MiB.
    let close = page.bytes() << 14;
    let apart = page.span() * ((2 << 20) / page.page_bytes());
    let job = |bytes, leaf, trees, calls| Job {
        bytes,
        leaf,
        trees,
        calls,
    };
    let one = [
        job(close, page, 1, Calls::of(1, Tables::There)),
        job(close, page, 1, Calls::of(1, Tables::Made)),
        job(apart, page, 1, Calls::of(1, Tables::Own)),
    ];
    let some = [2, 4, 16].into_iter().flat_map(move |pages| {
        let ascending = Calls::of(pages, Tables::There);
        let descending = Calls {
            descending: true,
            ..ascending
        };
        [
            job(close, page, 1, ascending),
            job(close, page, 1, descending),
            job(apart, page, 1, Calls::of(pages, Tables::Crossed)),
        ]
    });
    let block = page.block(1);
    let calls = Calls::of(1, Tables::There);
    let blocks = [job(block.bytes() << 12, block, 4, calls)];
    one.into_iter().chain(some).chain(blocks)
}

/// Returns all jobs with 4K pages. Trees to each so that the fastest step is far above the clock's own time.
pub fn jobs(quick: bool) -> impl Iterator<Item = Job> {
    let large = if quick { 4 << 30 } else { 64 << 30 };
    let small = if quick { 256 << 20 } else { 1 << 30 };
    let job = |bytes, leaf, trees| Job {
        bytes,
        leaf,
        trees,
        calls: Calls::RANGE,
    };
    let single = Job {
        calls: Calls::of(1, Tables::There),
        ..job(512 << 30, Leaf::BLOCK_1G, 16)
    };
    by_call(Leaf::PAGE_4K).chain([
        single,
        job(small, Leaf::PAGE_4K, 1),
        job(large, Leaf::PAGE_4K, 1),
        job(small, Leaf::BLOCK_2M, 64),
        job(large, Leaf::BLOCK_2M, 8),
        job(64 << 30, Leaf::BLOCK_1G, 64),
    ])
}

/// Returns the jobs with larger pages, which the library alone has.
pub fn jobs_of_larger_pages() -> impl Iterator<Item = Job> {
    by_call(Leaf::PAGE_16K).chain(by_call(Leaf::PAGE_64K))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_leaf_is_named_by_one_call_or_by_none() {
        for job in jobs(true).chain(jobs_of_larger_pages()) {
            let job = Job {
                bytes: job.bytes.min(2 * job.leaf.span()),
                ..job
            };
            let leaf = job.leaf.bytes();
            let named = (0..job.bytes / leaf).filter(|at| job.is_named(at * leaf));
            assert_eq!(named.count() as u64 * job.trees, job.leaves(), "{job}");
            let kept = (0..job.bytes / leaf).filter(|at| job.is_kept(at * leaf));
            assert_eq!(kept.count(), job.kept().count(), "{job}");
            let both = (0..job.bytes / leaf).map(|at| at * leaf);
            assert!(
                both.clone()
                    .all(|at| !(job.is_kept(at) && job.is_named(at))),
                "{job}"
            );
        }
    }

    #[test]
    fn jobs_have_names_of_their_own() {
        for jobs in [
            jobs(false).collect::<Vec<_>>(),
            jobs_of_larger_pages().collect(),
        ] {
            for (at, job) in jobs.iter().enumerate() {
                let is_same = |other: &&Job| {
                    (other.bytes, other.leaf, other.calls_name())
                        == (job.bytes, job.leaf, job.calls_name())
                };
                assert_eq!(
                    jobs.iter().position(|other| is_same(&other)),
                    Some(at),
                    "{job}"
                );
            }
        }
    }
}
