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
pub(crate) struct BootHook {
    /// Called once the console works.
    pub(crate) console_is_up: fn(&Parameters<'_>),
    /// Called once instructions can be counted.
    pub(crate) counter_is_up: fn(&Parameters<'_>, &InstructionCounter),
    /// Called before the linear map is made. Names who needs it in pages, if someone does.
    pub(crate) needs_pages: fn(&Parameters<'_>) -> Option<&'static str>,
    /// Called before a stage of the self-check.
    pub(crate) before_check: fn(&Parameters<'_>, Stage, &mut Tree<'_>, &Placement),
    /// Called once the kernel's tables are complete, before the first test.
    pub(crate) tables_are_up: fn(&Parameters<'_>) -> Result<(), TableError>,
    /// Called last, before the benchmarks and the programs.
    pub(crate) boot_is_done: fn(&Request<'_>, &Parameters<'_>),
}

/// The installed hook over the boot.
pub(crate) static BOOT: Hook<BootHook> = Hook::new();
