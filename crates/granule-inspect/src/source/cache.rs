//! Pages that were costly to get, up to a number of bytes. The page that came first goes first.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Enough for the tables on the way to a leaf and their neighbours.
const MOST_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Cache {
    pages: HashMap<u64, Rc<[u8]>>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Cache {
    pub(super) fn get(&self, page: u64) -> Option<Rc<[u8]>> {
        self.pages.get(&page).cloned()
    }

    pub(super) fn put(&mut self, page: u64, bytes: &Rc<[u8]>) {
        if self.pages.contains_key(&page) {
            return;
        }
        while self.bytes + bytes.len() > MOST_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.pages.remove(&oldest).map_or(0, |page| page.len());
        }
        self.pages.insert(page, Rc::clone(bytes));
        self.order.push_back(page);
        self.bytes += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_no_more_than_its_bound() {
        let mut cache = Cache::default();
        let page: Rc<[u8]> = vec![7; 1 << 16].into();
        for number in 0..1000 {
            cache.put(number, &page);
            cache.put(number, &page);
            assert!(cache.get(number).is_some());
        }
        assert_eq!((cache.bytes, cache.pages.len()), (MOST_BYTES, 256));
        assert!(cache.get(743).is_none() && cache.get(744).is_some());
    }
}
