//! The expected memory of a program: pages with rights and values.

use granule::space::{Advice, Rights};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub rights: Rights,
    pub label: u8,
    pub advice: Advice,
    /// The page's contents; 0 until it is written.
    pub value: u64,
    /// It was written since it was mapped, or may have been.
    pub dirty: bool,
}

impl Page {
    /// A page that was just mapped.
    pub const fn new(rights: Rights, label: u8) -> Self {
        Self {
            rights,
            label,
            advice: Advice::None,
            value: 0,
            dirty: false,
        }
    }
}

/// The properties that pages of one VMA share.
pub type VmaKind = (Rights, u8, Advice);

/// Page numbers to pages.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    pub pages: BTreeMap<u64, Page>,
}

impl Reference {
    /// Ranges with the same rights, label and advice, as first page and end.
    pub fn vmas(&self) -> Vec<(u64, u64, VmaKind)> {
        let mut vmas: Vec<(u64, u64, VmaKind)> = Vec::new();
        for (&number, page) in &self.pages {
            let kind = (page.rights, page.label, page.advice);
            match vmas.last_mut() {
                Some(last) if last.1 == number && last.2 == kind => last.1 += 1,
                _ => vmas.push((number, number + 1, kind)),
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
