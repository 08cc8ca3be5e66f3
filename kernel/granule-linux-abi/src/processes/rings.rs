//! Lists of the places in a table: each place is in one list at most, and leaves it without a search.

use crate::owned::{Array, Frames};

/// The neighbours of a node.
#[derive(Clone, Copy, Debug)]
struct Links {
    next: u16,
    previous: u16,
}

/// Lists of places, in the order in which the places were added. A list is a ring of nodes: its places, and a
/// node of its own behind those of all places, where it begins and ends. A node in no ring is a ring by itself.
#[derive(Debug)]
pub struct Rings<F: Frames> {
    nodes: Array<Links, F>,
    places: usize,
}

impl<F: Frames> Rings<F> {
    /// `rings` empty lists for `places` places. `None` for too many, or if memory is exhausted.
    #[must_use]
    pub fn new(places: usize, rings: usize) -> Option<Self> {
        let count = places.checked_add(rings)?;
        u16::try_from(count).ok()?;
        let alone = |node| Links {
            next: node as u16,
            previous: node as u16,
        };
        Some(Self {
            nodes: Array::new(count, alone)?,
            places,
        })
    }

    /// Puts a place at the end of a list, out of the one that it is in.
    pub fn append(&mut self, ring: usize, place: usize) {
        let end = self.places + ring;
        if place >= self.places || end >= self.nodes.len() {
            return;
        }
        self.remove(place);
        let last = self.links(end).previous;
        self.link(usize::from(last), place);
        self.link(place, end);
    }

    /// Takes a place out of the list that it is in, if any.
    pub fn remove(&mut self, place: usize) {
        if place < self.places {
            let Links { next, previous } = self.links(place);
            self.link(usize::from(previous), usize::from(next));
            self.link(place, place);
        }
    }

    /// The first place of a list.
    #[must_use]
    pub fn first(&self, ring: usize) -> Option<usize> {
        self.iter(ring).next()
    }

    /// Iterates over the places of a list.
    pub fn iter(&self, ring: usize) -> impl Iterator<Item = usize> {
        let mut node = self.places + ring;
        core::iter::from_fn(move || {
            node = usize::from(self.links(node).next);
            (node < self.places).then_some(node)
        })
    }

    /// The neighbours of a node; of one that there is not, ends of lists.
    fn links(&self, node: usize) -> Links {
        let end = Links {
            next: u16::MAX,
            previous: u16::MAX,
        };
        self.nodes.get(node).copied().unwrap_or(end)
    }

    /// Makes two nodes neighbours.
    fn link(&mut self, node: usize, next: usize) {
        if let Some(links) = self.nodes.get_mut(node) {
            links.next = next as u16;
        }
        if let Some(links) = self.nodes.get_mut(next) {
            links.previous = node as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::owned::host::{self, HostFrames};

    type Rings = super::Rings<HostFrames>;

    #[test]
    fn lists_keep_their_order() {
        const PLACES: usize = 50;
        let mut rings = Rings::new(PLACES, 3).unwrap();
        let mut model: [Vec<usize>; 3] = Default::default();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (place, ring) = ((state >> 33) as usize % PLACES, (state >> 50) as usize % 4);
            for list in &mut model {
                list.retain(|it| *it != place);
            }
            match model.get_mut(ring) {
                Some(list) => {
                    list.push(place);
                    rings.append(ring, place);
                }
                None => rings.remove(place),
            }
            for (ring, list) in model.iter().enumerate() {
                assert_eq!(rings.first(ring), list.first().copied());
                assert!(rings.iter(ring).eq(list.iter().copied()));
            }
        }
    }

    #[test]
    fn places_and_lists_that_there_are_not_do_no_harm() {
        let mut rings = Rings::new(2, 1).unwrap();
        rings.append(0, 1);
        rings.append(0, 2);
        rings.append(1, 0);
        rings.remove(2);
        assert!(rings.iter(0).eq([1]));
        assert_eq!(rings.iter(1).count(), 0);
        assert!(Rings::new(1 << 16, 0).is_none());
        host::run_out_after(0);
        assert!(Rings::new(2, 1).is_none());
        host::run_out_after(usize::MAX);
    }
}
