//! Translates addresses by the tables that are in memory now.

use super::geometry::{Entry, TablePlace};
use super::registers::Registers;
use super::{Memory, PAGE_SHIFT, Tracker};
use granule_trace::System;

/// The leaf at the end of a walk.
struct Walked {
    address: u64,
    descriptor: u64,
    /// The table with the leaf.
    place: TablePlace,
}

fn walk(memory: &impl Memory, mut place: TablePlace, va: u64) -> Option<Walked> {
    loop {
        let shift = place.form.shift(place.level);
        let index = va >> shift & (u64::from(place.entries) - 1);
        let mut word = [0];
        if !memory.load(place.base + index * 8, &mut word) {
            return None;
        }
        match place.form.entry(word[0], place.level) {
            Entry::Invalid => return None,
            Entry::Leaf(base) => {
                return Some(Walked {
                    address: base | va & ((1 << shift) - 1),
                    descriptor: word[0],
                    place,
                });
            }
            Entry::Table(base) => place = place.below(base),
        }
    }
}

impl<M: Memory> Tracker<'_, M> {
    /// Translates a virtual address to a physical one, for a CPU at an exception level.
    pub fn translate(&mut self, cpu: u16, el: u8, va: u64) -> Option<u64> {
        let offset = va & ((1 << PAGE_SHIFT) - 1);
        let state = self.cpus.get(usize::from(cpu))?;
        if let Some((page, to)) = state.translated
            && page == va >> PAGE_SHIFT
        {
            return Some(to | offset);
        }
        let Some(slot) = state.registers.slot(el, va).ok()? else {
            return Some(va);
        };
        let place = state.registers.roots()[slot]?;
        let address = walk(&self.memory, place, va)?.address;
        let page = address & !((1 << PAGE_SHIFT) - 1);
        self.cpus.get_mut(usize::from(cpu))?.translated = Some((va >> PAGE_SHIFT, page));
        Some(address)
    }

    /// Returns whether EL0 may execute code at an address of the lower half, so that the code is a
    /// program's.
    pub fn is_program(&mut self, cpu: u16, va: u64) -> bool {
        let state = self.cpus.get(usize::from(cpu));
        let place = state.and_then(|cpu| cpu.registers.roots()[0]);
        let leaf = place.and_then(|place| walk(&self.memory, place, va));
        // UXN.
        leaf.is_some_and(|leaf| leaf.descriptor >> 54 & 1 == 0)
    }
}

/// The contiguous bit of a descriptor.
const CONTIGUOUS: u64 = 1 << 52;

/// The translation of EL1 and EL0 on one CPU, by tables in memory, of which no copy is kept.
#[derive(Debug, Default)]
pub struct Translation {
    registers: Registers,
}

impl Translation {
    /// Writes a register.
    pub fn set(&mut self, register: System, value: u64) {
        self.registers.set(register, value);
    }

    /// Returns whether an access at an exception level is translated by EL1&0.
    #[must_use]
    pub fn is_on(&self, el: u8, va: u64) -> bool {
        matches!(self.registers.slot(el, va), Ok(Some(0 | 1)))
    }

    /// Returns the current ASID.
    #[must_use]
    pub const fn asid(&self) -> u16 {
        self.registers.asid()
    }

    /// Returns the bits of the page size of the half that contains an address.
    #[must_use]
    pub fn granule(&self, va: u64) -> Option<u8> {
        let place = self.registers.roots()[(va >> 55 & 1) as usize]?;
        Some(place.form.granule)
    }

    /// Returns whether an address is in the lower part of the upper half, where kernels have their
    /// linear map.
    #[must_use]
    pub const fn is_linear(&self, va: u64) -> bool {
        va >> 55 & 1 != 0 && va >> (self.registers.upper_bits() - 1) & 1 == 0
    }

    /// Returns the number of address bits that the leaf, or its contiguous group, leaves
    /// untranslated.
    pub fn leaf_bits(&self, memory: &impl Memory, va: u64) -> Option<u8> {
        let place = self.registers.roots()[(va >> 55 & 1) as usize]?;
        let leaf = walk(memory, place, va)?;
        let (form, level) = (leaf.place.form, leaf.place.level);
        let group = match (form.granule, level) {
            _ if leaf.descriptor & CONTIGUOUS == 0 => 0,
            (12, 1..=3) => 4,
            (14, 2) | (16, 2 | 3) => 5,
            (14, 3) => 7,
            _ => 0,
        };
        Some(form.shift(level) as u8 + group)
    }
}
