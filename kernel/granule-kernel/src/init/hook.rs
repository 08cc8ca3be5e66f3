//! The hook over the boot: failures and tests at certain steps.

use crate::arch::counter::InstructionCounter;
use crate::hook::Hook;
use crate::mm::map::Request;
use crate::mm::selfcheck::Stage;
use crate::mm::walker::Tree;
use granule::linear::Placement;
use granule::table::TableError;
use granule_kcore::parameters::Parameters;

/// Acts at steps of the boot.
pub(crate) trait BootHook: Sync {
    /// Called once the console works.
    fn console_is_up(&self, parameters: &Parameters<'_>);

    /// Called once instructions can be counted.
    fn counter_is_up(&self, parameters: &Parameters<'_>, counter: &InstructionCounter);

    /// Called before a stage of the self-check.
    fn before_check(
        &self,
        parameters: &Parameters<'_>,
        stage: Stage,
        tables: &mut dyn Tree,
        placement: &Placement,
    );

    /// Called once the kernel's tables are complete, before the first test.
    fn tables_are_up(&self, parameters: &Parameters<'_>) -> Result<(), TableError>;

    /// Called last, before the benchmarks and the programs.
    fn boot_is_done(&self, request: &Request<'_>, parameters: &Parameters<'_>);
}

/// The installed hook over the boot.
pub(crate) static BOOT: Hook<dyn BootHook> = Hook::new();
