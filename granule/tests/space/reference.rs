//! What a program's memory is: pages with rights and values.

use granule::space::Rights;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub rights: Rights,
    pub label: u8,
    /// What the page holds; 0 until it is written.
    pub value: u64,
    /// It was written since it was mapped, or may have been.
    pub dirty: bool,
}

/// Page numbers to pages.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    pub pages: BTreeMap<u64, Page>,
}

impl Reference {
    /// Ranges with the same rights and label, as first page and end.
    pub fn vmas(&self) -> Vec<(u64, u64, Rights, u8)> {
        let mut vmas: Vec<(u64, u64, Rights, u8)> = Vec::new();
        for (&number, page) in &self.pages {
            match vmas.last_mut() {
                Some(last) if last.1 == number && last.2 == page.rights && last.3 == page.label => {
                    last.1 += 1;
                }
                _ => vmas.push((number, number + 1, page.rights, page.label)),
            }
        }
        vmas
    }

    pub fn all_there(&self, from: u64, to: u64) -> bool {
        (from..to).all(|page| self.pages.contains_key(&page))
    }

    pub fn none_there(&self, from: u64, to: u64) -> bool {
        self.pages.range(from..to).next().is_none()
    }
}
