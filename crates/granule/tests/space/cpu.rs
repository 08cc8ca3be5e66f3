//! A CPU that runs a program: walks, checks permissions, and updates entries as TCR.HA and TCR.HD
//! say. Bit positions are those of the architecture's descriptor table.

use granule::space::Access;
use granule_testing::host::Host;
use granule_testing::walk::Arch;

/// The outcome of a program's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The frame that is accessed.
    Frame(u64),
    Fault,
}

#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    pub access: bool,
    pub dirty: bool,
}

const ACCESS_FLAG: u64 = 1 << 10;
const READ_ONLY: u64 = 1 << 7;
const MODIFIER: u64 = 1 << 51;

/// The entry of the page or block for an address: its table and index, and its level.
pub fn entry(arch: &Arch, host: &Host, root: u64, address: u64) -> Option<(u64, usize, i32)> {
    let (mut table, mut level) = (root, arch.start_level());
    loop {
        let index = (address >> arch.shift(level)) as usize & (arch.entries() - 1);
        if level == 3 {
            return Some((table, index, level));
        }
        let word = host.word(table, index);
        if word & 0b11 != 0b11 {
            return (word & 0b11 == 0b01).then_some((table, index, level));
        }
        table = arch.table_address(word);
        level += 1;
    }
}

/// An access by EL0.
pub fn access(
    arch: &Arch,
    host: &Host,
    root: u64,
    address: u64,
    access: Access,
    hardware: Hardware,
) -> Outcome {
    let Some((table, index, level)) = entry(arch, host, root, address) else {
        return Outcome::Fault;
    };
    let mut word = host.word(table, index);
    let valid = if level == 3 { 0b11 } else { 0b01 };
    if word & 0b11 != valid || word & 1 << 6 == 0 {
        return Outcome::Fault;
    }
    if access == Access::Execute && word & 1 << 54 != 0 {
        return Outcome::Fault;
    }
    // With the contiguous bit any member may serve for all, and hardware need not update one where
    // another has what it would set (RXDPXQ): this CPU never does.
    let members = if word & 1 << 52 != 0 {
        assert_eq!(level, 3, "a group of blocks");
        let count = arch.contiguous(3) as usize;
        let first = index & !(count - 1);
        first..first + count
    } else {
        index..index + 1
    };
    let any = |test: &dyn Fn(u64) -> bool| members.clone().any(|at| test(host.word(table, at)));
    if !any(&|word| word & ACCESS_FLAG != 0) {
        if !hardware.access {
            return Outcome::Fault;
        }
        word |= ACCESS_FLAG;
    }
    if access == Access::Write && !any(&|word| word & READ_ONLY == 0) {
        if !hardware.dirty || word & MODIFIER == 0 {
            return Outcome::Fault;
        }
        word &= !READ_ONLY;
    }
    if word != host.word(table, index) {
        host.set_word(table, index, word);
    }
    let inside = address & ((1 << arch.shift(level)) - 1) & !(arch.page() - 1);
    Outcome::Frame(arch.leaf(0, level, word).output + inside)
}
