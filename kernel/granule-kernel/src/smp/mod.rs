//! Starts the other CPUs and switches them off.
//!
//! [`start`] starts them, one after the other, from its [`inputs`]: each gets its [`place`], and is
//! switched on by firmware, or by a write to its [`release`] address. [`interrupts`] maps the
//! interrupt controller. [`identity`] makes the map that a CPU runs on while its MMU is turned on.
//! [`secondary`] is the CPU's first code at a virtual address, and [`check`] its part of the
//! self-check. [`off`] switches CPUs off. `granule_kcore::cpus` compares CPUs and orders the steps
//! of going offline. Code that runs with the MMU off is in `early`.
//!
//! The linear map is built before any other CPU runs, so its counts do not depend on other CPUs. Then CPUs
//! are started one after the other at `early::head::secondary`: by PSCI CPU_ON, or, if `enable-method` is
//! `spin-table`, by a write of the entry's address to `cpu-release-addr`. Firmware passes no argument to a
//! released CPU, and several CPUs may watch one address. So every CPU that comes in reads the *doorbell*
//! (`handover::mailbox`), one line of memory with the MPIDR of the CPU that is being started and the address
//! of its command, and waits with WFE until it is named. A released CPU cannot go back to firmware: kexec is
//! refused then, in one line, and `maxcpus=1` at boot leaves such CPUs where they are.
//!
//! The number of CPUs is that of the device tree, up to `granule_kcore::cpus::MOST_CPUS`. What a CPU needs,
//! some 140 KiB with 4K pages, comes from early memory when its turn is; when memory ends, the boot goes on
//! with the CPUs that are up, and one line reports it. A GICv2 has eight CPU interfaces. A trace that the
//! model checks has 64 CPUs at most.
//!
//! With its MMU off each CPU compares itself with the requirements of the tables
//! (`granule_kcore::cpus::compare`): page size, descriptor format, VA, PA and ASID bits, exception level. An
//! incompatible CPU parks permanently, and the boot CPU prints the reason. Features that the tables do not
//! depend on (BBM level, TLBI by range, level hints) lower the level that the system relies on; errata add
//! up.

pub(crate) mod check;
pub(crate) mod hook;
mod identity;
pub(crate) mod inputs;
mod interrupts;
pub(crate) mod off;
mod place;
mod release;
mod secondary;
pub(crate) mod start;
mod state;
