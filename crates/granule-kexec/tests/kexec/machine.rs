//! A CPU without caches and TLBs that notes all requests, word by word: for the steps in Rust and
//! for their assembly alike.

use crate::scene::{Memory, is_ram};
use granule_kexec::LINE;
use granule_kexec::steps::RelocationCpu;
use granule_trace::{Barrier, System};

/// One thing that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    Load(u64),
    Store(u64),
    /// An access to where there is no memory.
    Fault(u64),
    ReadTcr,
    System(System, u64),
    Barrier(Barrier),
    Mask,
    Vectors(u64),
    Branch(u64),
    El2Vectors(u64, u64),
    EnterEl2,
    SctlrEl2(u64),
}

#[derive(Clone)]
pub struct Cpu {
    pub memory: Memory,
    /// Virtual less physical address, while the MMU is on.
    pub distance: u64,
    pub tcr: u64,
    /// CTR_EL0.DminLine, log2 of words of four bytes.
    pub line: u32,
    pub did: Vec<Did>,
    pub mmu_off: bool,
    /// Instructions that load or store: with the MMU on, off.
    pub accesses: [u64; 2],
}

impl Cpu {
    pub fn new(memory: Memory, distance: u64, tcr: u64) -> Self {
        Self {
            memory,
            distance,
            tcr,
            line: 4,
            did: Vec::new(),
            mmu_off: false,
            accesses: [0; 2],
        }
    }

    /// An instruction that loads or stores, whatever number of words.
    pub const fn accesses_memory(&mut self) {
        self.accesses[self.mmu_off as usize] += 1;
    }

    /// The physical address of a word, if there is memory.
    fn physical(&mut self, address: u64) -> Option<u64> {
        let physical = if self.mmu_off {
            address
        } else {
            address.wrapping_sub(self.distance)
        };
        if is_ram(physical) && physical.is_multiple_of(8) {
            Some(physical)
        } else {
            self.did.push(Did::Fault(address));
            None
        }
    }

    pub fn load(&mut self, address: u64) -> u64 {
        self.did.push(Did::Load(address));
        self.physical(address).map_or(0, |at| self.memory.read(at))
    }

    pub fn store(&mut self, address: u64, word: u64) {
        self.did.push(Did::Store(address));
        if let Some(at) = self.physical(address) {
            self.memory.write(at, word);
        }
    }

    /// Returns the number of steps of a kind.
    pub fn count(&self, what: impl Fn(&Did) -> bool) -> usize {
        self.did.iter().filter(|did| what(did)).count()
    }
}

impl RelocationCpu for Cpu {
    fn word(&mut self, address: u64) -> u64 {
        self.load(address)
    }

    fn move_line(&mut self, to: u64, from: u64) {
        let mut words = [0; LINE / 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.load(from.wrapping_add(8 * index as u64));
        }
        for (index, word) in words.into_iter().enumerate() {
            self.store(to.wrapping_add(8 * index as u64), word);
        }
    }

    fn line_bytes(&mut self) -> u64 {
        4 << self.line
    }

    fn tcr(&mut self) -> u64 {
        self.did.push(Did::ReadTcr);
        self.tcr
    }

    fn system(&mut self, system: System, operand: u64) {
        self.did.push(Did::System(system, operand));
        if system == System::SCTLR_EL1 {
            self.mmu_off = operand & 1 == 0;
        }
    }

    fn barrier(&mut self, barrier: Barrier) {
        self.did.push(Did::Barrier(barrier));
    }

    fn mask(&mut self) {
        self.did.push(Did::Mask);
    }

    fn vectors(&mut self, address: u64) {
        self.did.push(Did::Vectors(address));
    }

    fn branch(&mut self, address: u64) {
        self.did.push(Did::Branch(address));
    }

    fn set_el2_vectors(&mut self, number: u64, address: u64) {
        self.did.push(Did::El2Vectors(number, address));
    }

    fn enter_el2(&mut self) {
        self.did.push(Did::EnterEl2);
    }

    fn sctlr_el2(&mut self, value: u64) {
        self.did.push(Did::SctlrEl2(value));
    }
}
