//! The hook of the boot: failures and tests at certain steps of it.

use crate::arch::counter::InstructionCounter;
use crate::hook::Hook;
use crate::mm::map::Request;
use crate::mm::selfcheck::Stage;
use crate::mm::walker::Tree;
use granule::linear::Placement;
use granule::table::TableError;

/// Does something at steps of the boot. `bootargs` is the command line.
pub(crate) trait BootHook: Sync {
    /// Comes once the console is there.
    fn console_is_up(&self, bootargs: &[u8]);

    /// Comes once instructions can be counted.
    fn counter_is_up(&self, bootargs: &[u8], counter: &InstructionCounter);

    /// Comes before a stage of the self-check.
    fn before_check(
        &self,
        bootargs: &[u8],
        stage: Stage,
        tables: &mut dyn Tree,
        placement: &Placement,
    );

    /// Comes once the kernel's tables are complete, before the first test.
    fn tables_are_up(&self, bootargs: &[u8]) -> Result<(), TableError>;

    /// Comes last, before the benchmarks and the programs.
    fn boot_is_done(&self, request: &Request<'_>, bootargs: &[u8]);
}

/// The hook of the boot.
pub(crate) static BOOT: Hook<dyn BootHook> = Hook::new();
