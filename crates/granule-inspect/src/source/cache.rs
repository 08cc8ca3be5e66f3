//! Values that were costly to get, such as pages, up to a number of bytes. The value that came first goes first.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Enough for the tables on the way to a leaf and their neighbours.
const MOST_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Cache<T: ?Sized = [u8]> {
    /// The values, each with the bytes that it takes.
    values: HashMap<u64, (Rc<T>, usize)>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl<T: ?Sized> Default for Cache<T> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<T: ?Sized> Cache<T> {
    pub(super) fn get(&self, key: u64) -> Option<Rc<T>> {
        self.values.get(&key).map(|(value, _)| Rc::clone(value))
    }

    pub(super) fn put(&mut self, key: u64, value: &Rc<T>) {
        self.put_sized(key, value, size_of_val::<T>(value));
    }

    /// As [`put`](Self::put), of a value that takes so many bytes with all that it refers to.
    pub(super) fn put_sized(&mut self, key: u64, value: &Rc<T>, bytes: usize) {
        if self.values.contains_key(&key) {
            return;
        }
        while self.bytes + bytes > MOST_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.values.remove(&oldest).map_or(0, |(_, bytes)| bytes);
        }
        self.values.insert(key, (Rc::clone(value), bytes));
        self.order.push_back(key);
        self.bytes += bytes;
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
        assert_eq!((cache.bytes, cache.values.len()), (MOST_BYTES, 256));
        assert!(cache.get(743).is_none() && cache.get(744).is_some());
    }
}
