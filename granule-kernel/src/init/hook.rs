//! The hook of the boot: failures and tests at certain steps of it.

use crate::arch::counter::InstructionCounter;
use crate::hook::Hook;
use crate::mm::map::Request;
use crate::mm::selfcheck::Stage;
use crate::mm::walker::Tree;
use granule::linear::Placement;
use granule::table::TableError;
use granule_kcore::parameters::Parameters;

/// Does something at steps of the boot.
pub(crate) trait BootHook: Sync {
    /// Comes once the console is there.
    fn console_is_up(&self, parameters: &Parameters<'_>);

    /// Comes once instructions can be counted.
    fn counter_is_up(&self, parameters: &Parameters<'_>, counter: &InstructionCounter);

    /// Comes before a stage of the self-check.
    fn before_check(
        &self,
        parameters: &Parameters<'_>,
        stage: Stage,
        tables: &mut dyn Tree,
        placement: &Placement,
    );

    /// Comes once the kernel's tables are complete, before the first test.
    fn tables_are_up(&self, parameters: &Parameters<'_>) -> Result<(), TableError>;

    /// Comes last, before the benchmarks and the programs.
    fn boot_is_done(&self, request: &Request<'_>, parameters: &Parameters<'_>);
}

/// The hook of the boot.
pub(crate) static BOOT: Hook<dyn BootHook> = Hook::new();
