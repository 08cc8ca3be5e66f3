//! A kernel that is wrong on purpose, with the model under it.
//!
//! Nothing of Granule's library is used: whatever stores descriptors, issues TLBIs and barriers
//! can pass them to the model as events, here through one `emit` in each of three tiny functions.
//! The kernel takes the write permission from a page, and forgets the TLBI. The model reports what
//! CPU 1 can still do, and which rule was broken when the page is then given away.
//!
//!     cargo run -p granule-model --example wrong_kernel

use granule_model::{Access, Barrier, Config, Event, EventError, Model, Outcome, System};

const ROOT: u64 = 0x1000;
/// Valid, inner shareable, accessed.
const LEAF: u64 = 1 | 0b11 << 8 | 1 << 10;
const READ_ONLY: u64 = 1 << 7;

/// A kernel's lowest layer: three instructions, each passed to the model as an event.
struct Kernel {
    model: Model,
    forgets_the_tlbi: bool,
}

impl Kernel {
    fn emit(&mut self, cpu: u32, kind: Event) -> Result<(), EventError> {
        self.model.event(cpu, kind)
    }

    fn store(&mut self, index: u64, value: u64) -> Result<(), EventError> {
        let address = ROOT + 8 * index;
        self.emit(0, Event::store(address, value))
    }

    fn barrier(&mut self, cpu: u32, barrier: Barrier) -> Result<(), EventError> {
        self.emit(cpu, Event::Barrier(barrier))
    }

    /// Two CPUs with the MMU on: 4K pages, 39 bits, a root of blocks of 1 GiB.
    fn start(&mut self) -> Result<(), EventError> {
        self.store(0, 0x4000_0000 | LEAF)?;
        // Stored past the caches, which may hold an older copy of the line: walks are cacheable.
        // Without these two the model objects as well.
        let (address, bytes) = (ROOT, 64);
        self.emit(0, Event::lines(System::DC_IVAC, address, bytes))?;
        self.barrier(0, Barrier::DSB_SY)?;
        for cpu in 0..2 {
            for (register, value) in [
                (
                    System::TCR_EL1,
                    25 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 1 << 23 | 0b101 << 32,
                ),
                (System::TTBR0_EL1, ROOT),
                (System::SCTLR_EL1, 1 | 1 << 2),
            ] {
                self.barrier(cpu, Barrier::DSB_SY)?;
                self.emit(cpu, Event::System(register, value))?;
                self.barrier(cpu, Barrier::ISB)?;
            }
        }
        Ok(())
    }

    /// Makes the first block read-only, for all CPUs.
    fn write_protect(&mut self) -> Result<(), EventError> {
        self.store(0, 0x4000_0000 | LEAF | READ_ONLY)?;
        self.barrier(0, Barrier::DSB_ISHST)?;
        if !self.forgets_the_tlbi {
            self.emit(0, Event::System(System::VAAE1IS, 0))?;
        }
        self.barrier(0, Barrier::DSB_ISH)?;
        self.barrier(0, Barrier::ISB)?;
        // Everyone goes on as if it were so.
        self.barrier(1, Barrier::ISB)?;
        self.emit(1, Event::Settled)
    }
}

fn main() -> Result<(), EventError> {
    for line in run()? {
        println!("{line}");
    }
    Ok(())
}

/// Runs both kernels and returns a line on each.
fn run() -> Result<Vec<String>, EventError> {
    let mut lines = Vec::new();
    for forgets_the_tlbi in [false, true] {
        let config = Config {
            cpus: 2,
            tlb_unknown_at_reset: false,
            ..Config::default()
        };
        let mut kernel = Kernel {
            model: Model::new(config),
            forgets_the_tlbi,
        };
        kernel.start()?;
        kernel.write_protect()?;
        lines.push(format!("forgets the TLBI: {forgets_the_tlbi}"));
        let outcomes = kernel.model.outcomes(1, 0x1234, Access::WRITE);
        let may_write = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Outcome::Memory(_)));
        lines.push(format!("  CPU 1 writes to the page: {outcomes:?}"));
        for violation in kernel.model.violations() {
            lines.push(format!("  {violation}"));
        }
        // The right kernel is clean, the wrong one is found out.
        assert_eq!(may_write, forgets_the_tlbi);
        assert_eq!(!kernel.model.violations().is_empty(), forgets_the_tlbi);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_wrong_kernel_is_found_out_and_the_right_one_is_not() {
        let lines = match super::run() {
            Ok(lines) => lines,
            Err(error) => panic!("{error}"),
        };
        let [right, right_writes, wrong, wrong_writes, violation] = &lines[..] else {
            panic!("{lines:#?}");
        };
        assert_eq!(right, "forgets the TLBI: false");
        assert_eq!(
            right_writes,
            "  CPU 1 writes to the page: [Fault(Permission)]"
        );
        assert_eq!(wrong, "forgets the TLBI: true");
        assert!(wrong_writes.contains("Memory(") && wrong_writes.contains("Fault(Permission)"));
        assert!(
            violation.contains(": stale-translation: CPU "),
            "{violation}"
        );
        assert!(
            violation.contains("may still use the old translation"),
            "{violation}"
        );
    }
}
