//! Plans: which VMAs an operation replaces by which others, whether the space may have so many, and the nodes that
//! it takes. A plan changes nothing, and what has a plan does not fail.

use super::node::LEAF;
use super::{Position, Vmas};
use crate::arch::VirtualAddress;
use crate::space::SpaceError;
use crate::space::rights::Rights;
use crate::space::vma::{Advice, Vma};

/// The most VMAs that come in one edit: the rest of a VMA on either side of a range, and the range.
const MOST: usize = 3;

/// A change of the VMAs of a range.
#[derive(Clone, Copy, Debug)]
pub(in crate::space) enum Change {
    Rights(Rights),
    Advice(Advice),
}

impl Change {
    pub(super) const fn apply(self, vma: &mut Vma) {
        match self {
            Self::Rights(rights) => vma.rights = rights,
            Self::Advice(advice) => vma.advice = advice,
        }
    }
}

/// VMAs in ascending order, of which like neighbours become one.
#[derive(Clone, Copy, Debug)]
struct Merged {
    /// The first of them.
    first: [Vma; MOST],
    last: Vma,
    count: usize,
}

impl Merged {
    const NONE: Self = Self {
        first: [Vma::EMPTY; MOST],
        last: Vma::EMPTY,
        count: 0,
    };

    fn add(&mut self, vma: Vma) {
        if self.count > 0 && self.last.continues_in(&vma) {
            self.last.end = vma.end;
        } else {
            self.last = vma;
            self.count += 1;
        }
        let index = self.count.checked_sub(1);
        if let Some(place) = index.and_then(|index| self.first.get_mut(index)) {
            *place = self.last;
        }
    }

    /// Lets the first VMA start earlier.
    fn extend_down(&mut self, start: VirtualAddress) {
        if let Some(first) = self.first.first_mut() {
            first.start = start;
        }
        if self.count == 1 {
            self.last.start = start;
        }
    }

    /// Returns all of them; `None` if they are too many for one edit.
    fn all(&self) -> Option<&[Vma]> {
        self.first.get(..self.count)
    }
}

/// An operation on the VMAs, to be carried out.
#[derive(Clone, Copy, Debug)]
pub(in crate::space) struct Plan {
    /// The start of the first VMA that goes, or the address where the first new one comes.
    from: VirtualAddress,
    /// The number of VMAs that go.
    old: usize,
    new: Merged,
    /// Whether the VMAs are other ones afterwards.
    pub(in crate::space) changes: bool,
    /// Whether a VMA of the range is executable.
    pub(in crate::space) some_executable: bool,
    /// Whether all are.
    pub(in crate::space) all_executable: bool,
    /// A range, and the change of its VMAs one by one, if the new ones are too many for one edit.
    one_by_one: Option<(VirtualAddress, VirtualAddress, Change)>,
}

impl Plan {
    const fn nothing(from: VirtualAddress) -> Self {
        Self {
            from,
            old: 0,
            new: Merged::NONE,
            changes: false,
            some_executable: false,
            all_executable: true,
            one_by_one: None,
        }
    }
}

impl Vmas<'_> {
    /// Makes a plan to add a VMA.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Occupied`], [`SpaceError::TooManyVmas`], [`SpaceError::OutOfVmaNodes`].
    pub(super) fn plan_insertion(&self, vma: Vma) -> Result<Plan, SpaceError> {
        let place = self.place(vma.start);
        if let Some(there) = place.vma().filter(|there| there.start < vma.end) {
            return Err(SpaceError::Occupied {
                address: there.start.max(vma.start),
            });
        }
        let mut plan = Plan::nothing(vma.start);
        plan.new.add(vma);
        plan.changes = true;
        self.finish(&mut plan, place, vma.start, vma.end)?;
        Ok(plan)
    }

    /// Makes a plan to remove all VMAs, and parts of VMAs, from `start` to `end`, and perhaps to put one there instead.
    ///
    /// # Errors
    ///
    /// [`SpaceError::TooManyVmas`], [`SpaceError::OutOfVmaNodes`].
    pub(in crate::space) fn plan_replacement(
        &self,
        start: VirtualAddress,
        end: VirtualAddress,
        new: Option<Vma>,
    ) -> Result<Plan, SpaceError> {
        let mut plan = Plan::nothing(start);
        if start >= end {
            return Ok(plan);
        }
        let place = self.place(start);
        let mut behind = None;
        if let Some(first) = place.vma().filter(|vma| vma.start < end) {
            plan.from = first.start;
            if first.start < start {
                plan.new.add(Vma {
                    end: start,
                    ..*first
                });
            }
            let mut last = *first;
            plan.old = 1;
            if last.end < end {
                (plan.old, last) = self.count_to(place, end);
            }
            behind = (last.end > end).then_some(Vma { start: end, ..last });
        }
        plan.changes = plan.old > 0 || new.is_some();
        for vma in [new, behind].into_iter().flatten() {
            plan.new.add(vma);
        }
        self.finish(&mut plan, place, start, end)?;
        Ok(plan)
    }

    /// Makes a plan to change all VMAs from `start` to `end`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::TooManyVmas`], [`SpaceError::OutOfVmaNodes`].
    pub(in crate::space) fn plan_change(
        &self,
        start: VirtualAddress,
        end: VirtualAddress,
        change: Change,
    ) -> Result<Plan, SpaceError> {
        let mut plan = Plan::nothing(start);
        if start >= end {
            return Ok(plan);
        }
        let place = self.place(start);
        let mut at = start;
        for vma in self.walk(place, end) {
            if vma.start > at {
                break;
            }
            if plan.old == 0 {
                plan.from = vma.start;
                if vma.start < start {
                    plan.new.add(Vma { end: start, ..*vma });
                }
            }
            plan.old += 1;
            let there = Vma {
                start: at,
                end: vma.end.min(end),
                ..*vma
            };
            let mut part = there;
            change.apply(&mut part);
            plan.new.add(part);
            plan.changes |= part != there;
            plan.some_executable |= there.rights.execute;
            plan.all_executable &= there.rights.execute;
            at = vma.end;
            if vma.end > end {
                plan.new.add(Vma { start: end, ..*vma });
            }
        }
        if at < end {
            return Err(SpaceError::NotMapped { address: at });
        }
        if !plan.changes {
            return Ok(plan);
        }
        if plan.new.all().is_none() {
            plan.one_by_one = Some((start, end, change));
        }
        self.finish(&mut plan, place, start, end)?;
        Ok(plan)
    }

    /// Merges the neighbours of the range into a plan that begins at a place, and checks the plan.
    fn finish<'v>(
        &'v self,
        plan: &mut Plan,
        mut place: Position<'v>,
        start: VirtualAddress,
        end: VirtualAddress,
    ) -> Result<(), SpaceError> {
        // What is cut at an edge of the range has no like neighbour outside of it.
        if plan.new.count > 0 && plan.new.last.end == end {
            let behind = match place.vmas.get(place.at + plan.old) {
                Some(behind) => Some(behind),
                None => self.place(end).vma(),
            };
            if let Some(behind) = behind.filter(|behind| plan.new.last.continues_in(behind)) {
                plan.new.add(*behind);
                plan.old += 1;
            }
        }
        let [first, ..] = plan.new.first;
        if plan.new.count > 0 && first.start == start {
            let before = self.before(&place, start);
            if let Some(before) = before.filter(|before| before.continues_in(&first)) {
                place = match place.at.checked_sub(1) {
                    Some(at) => Position { at, ..place },
                    None => self.place(before.start),
                };
                plan.from = before.start;
                plan.new.extend_down(before.start);
                plan.old += 1;
            }
        }
        let (count, new) = (self.len() - plan.old, plan.new.count);
        if new > plan.old && count + new > self.most {
            return Err(SpaceError::TooManyVmas { most: self.most });
        }
        match self
            .nodes_for(plan, &place)
            .saturating_sub(self.spare.count)
        {
            0 => Ok(()),
            missing => Err(SpaceError::OutOfVmaNodes { missing }),
        }
    }

    /// Returns the most nodes that a plan takes which begins at a place.
    fn nodes_for(&self, plan: &Plan, place: &Position<'_>) -> usize {
        let new = plan.new.count;
        if plan.one_by_one.is_some() {
            // Two edits that each split a VMA. The tree may be higher before the second.
            return 2 * self.height + 3;
        }
        if new == 0 || (new == 1 && plan.old > 0) {
            return 0;
        }
        let here = place.vmas.len();
        if self.height == 0 {
            1
        } else if place.at + plan.old > here {
            // The edit comes to another leaf, after the removal of what is in this one.
            self.height + 1
        } else if here - plan.old + new <= LEAF {
            0
        } else {
            let root = usize::from(place.full + 1 == self.height);
            1 + place.full + root
        }
    }

    /// Does what a plan says. The VMAs must be those that it was made for.
    pub(in crate::space) fn carry_out(&mut self, plan: &Plan) {
        if !plan.changes {
            return;
        }
        self.recent = Vma::EMPTY;
        if let Some(new) = plan.new.all() {
            self.replace(plan.from, plan.old, new);
        } else if let Some((start, end, change)) = plan.one_by_one {
            self.split(start);
            self.split(end);
            if let Some(root) = self.root.as_deref_mut() {
                root.update(start, end, &|vma| change.apply(vma));
            }
            self.merge(start, end);
        }
    }

    /// Lets a VMA end at an address in it, and another one follow.
    fn split(&mut self, at: VirtualAddress) {
        let there = self.find(at).copied().filter(|vma| vma.start < at);
        if let Some(vma) = there {
            let parts = [Vma { end: at, ..vma }, Vma { start: at, ..vma }];
            self.replace(vma.start, 1, &parts);
        }
    }

    /// Merges like neighbours that touch a range.
    fn merge(&mut self, start: VirtualAddress, end: VirtualAddress) {
        let before = self.before(&self.place(start), start);
        let mut at = before.map_or(start, |vma| vma.start);
        while let Some((merged, count)) = self.like_neighbours(at, end) {
            self.replace(merged.start, count, &[merged]);
            at = merged.start;
        }
    }

    /// Finds the first VMAs from an address on, up to the one behind `end`, that can become one. Returns that one, and
    /// how many they are.
    fn like_neighbours(&self, at: VirtualAddress, end: VirtualAddress) -> Option<(Vma, usize)> {
        let mut vmas = self.walk(self.place(at), VirtualAddress(end.0.saturating_add(1)));
        let mut merged = *vmas.next()?;
        let mut count = 1;
        for vma in vmas {
            if merged.continues_in(vma) {
                merged.end = vma.end;
                count += 1;
            } else if count > 1 {
                break;
            } else {
                merged = *vma;
            }
        }
        (count > 1).then_some((merged, count))
    }
}
