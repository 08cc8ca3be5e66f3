//! Description of the keys that come from the kernel's own lines, which are passed through: see
//! [`console_record`](super::console_record). Nothing is stored in these structs.

#![expect(dead_code, reason = "the fields describe keys of a map")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::json::{Hex, optional};

/// Keys of every boot, from the kernel's lines (docs/boot-record.md); null if the kernel did not print them.
/// More keys of a kernel are passed through: `@granule a.b=5` becomes `{"a":{"b":5}}`; a number becomes a
/// number, `true` and `false` booleans, everything else a string.
#[derive(JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub(crate) struct Guest {
    /// Page size chosen at boot, in bytes.
    page_size: Option<u64>,
    /// Source of the choice: `command-line`, `machine-table`, `build-default` or `fallback`.
    page_size_source: Option<String>,
    /// Bits of a virtual address.
    va_bits: Option<u64>,
    /// Bits of a physical address in use.
    pa_bits: Option<u64>,
    /// Levels of translation tables.
    levels: Option<u64>,
    /// Level at which a walk starts, -1 to 3 (-1 with 52-bit addresses in 4K pages).
    start_level: Option<i8>,
    /// Whether the 52-bit descriptor format (FEAT_LPA2) is in use.
    lpa2: Option<bool>,
    bbm_level: BbmLevel,
    /// Exception level the image was entered at.
    entry_el: Option<u64>,
    /// Exception level the kernel runs at.
    run_el: Option<u64>,
    /// Whether it runs at EL2 with the Virtualization Host Extensions.
    vhe: Option<bool>,
    /// Errata of the CPUs that are up, as far as `granule::arch::errata` lists them, and those that
    /// `arm64.errata=` forces; empty if there are none.
    errata: Option<Vec<String>>,
    /// CPUs that are up.
    cpus: Option<u64>,
    /// CPUs that the device tree names.
    cpus_expected: Option<u64>,
    /// Reasons why CPUs are not up, one line each; one line for all CPUs beyond a limit, and a count after 31 lines;
    /// empty if all are up.
    cpu_mismatch: Option<Vec<String>>,
    /// One object for each CPU that is up, ascending. Under `arm64.fake_cpu=` the values are the pretended ones.
    cpu_facts: Option<Vec<CpuFacts>>,
    /// One object for each driver that was probed.
    drivers: Option<Vec<Driver>>,
    /// Phases of the boot in order, from the image's first instruction to the first program's; their sum is the
    /// whole.
    phases: Option<Vec<Phase>>,
    /// One line for each driver that does not work with the page size, with the page sizes to boot with; empty
    /// if all do.
    drivers_left_out: Option<Vec<String>>,
    /// Whether every CPU that is up has TLB invalidation by range (FEAT_TLBIRANGE).
    tlbi_range: Option<bool>,
    /// Whether every CPU that is up takes a level hint (FEAT_TTL).
    tlbi_level_hint: Option<bool>,
    linear_map: LinearMap,
    #[schemars(flatten)]
    more: More,
}

/// Break-before-make levels.
#[derive(JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub(crate) struct BbmLevel {
    /// Level in the boot CPU's ID register.
    id: Option<u64>,
    /// Level that the kernel relies on, 0 to 3: the lowest that it trusts any CPU that is up with, and no more
    /// than `arm64.bbm=` allows. From 2 on the kernel splits live blocks, so with `rodata=on` and `full` the map
    /// has the largest leaves.
    used: Option<u64>,
    /// Lowest level in the ID registers of the CPUs that are up.
    system: Option<u64>,
    #[schemars(flatten)]
    more: BbmMore,
}

#[derive(JsonSchema)]
#[schemars(transform = optional)]
struct BbmMore {
    /// Reason for `used`: one line.
    why: String,
}

/// A CPU that is up.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct CpuFacts {
    /// Number; 0 is the boot CPU. A CPU that is not up keeps its number, so there may be gaps.
    number: u64,
    /// MPIDR_EL1, the affinity of the CPU.
    mpidr: Hex,
    /// MIDR_EL1, the model of the CPU.
    midr: Hex,
    /// Exception level it was entered at.
    entry_el: u64,
    /// Exception level it runs at.
    run_el: u64,
    /// Bits of a physical address.
    pa_bits: u64,
    /// Most bits of a virtual address with the chosen page size.
    va_bits: u64,
    /// Bits of an ASID.
    asid_bits: u64,
    /// Break-before-make level.
    bbm_level: u64,
    /// Addresses that the CPU translated in the self-check.
    translations: u64,
    /// Calls by other CPUs that it had answered when the record was printed.
    calls: u64,
}

/// A driver that was probed.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Driver {
    /// Its name.
    name: String,
    /// Page sizes it works with, such as `4k,16k`.
    page_sizes: String,
    /// Whether it is in use.
    in_use: bool,
}

/// A phase of the boot.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Phase {
    /// Its name: `mmu-off`, `console`, `memory`, `linear-map`, `self-check`, `cpus`, `pages`, `record` (its lines,
    /// and what the command line asks for) or `first-program`.
    name: String,
    /// Instructions, exact to one tick of the counter; only with `--icount` and `granule.count=instructions`.
    instructions: u64,
    /// Microseconds by the guest's counter; under QEMU they have nothing to do with hardware.
    microseconds: u64,
}

/// The linear map and its making.
#[derive(JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub(crate) struct LinearMap {
    /// Strategy that made it: `direct`, or a published way: `base`, `no-cont-remap`, `batch-barriers`,
    /// `no-alloc-remap`, `lazy-unmap`.
    strategy: Option<String>,
    /// Whether a published way issues barriers for each page entry (`entry`) or each table (`table`); always
    /// `table` for `direct`.
    barriers: Option<String>,
    /// Protection: `off`, `noalias`, `on`, `full`.
    rodata: Option<String>,
    /// RAM that was described to the kernel, in bytes.
    ram_bytes: Option<u64>,
    /// RAM the map reaches, in bytes.
    mapped_bytes: Option<u64>,
    /// The final map, one object for each kind of leaf.
    leaves: Option<Vec<super::json::Leaf>>,
    /// Tables of the final map.
    tables: Option<u64>,
    /// Their memory in bytes.
    table_bytes: Option<u64>,
    /// Descriptors written to make the map.
    descriptor_stores: Option<u64>,
    /// TLB invalidations issued.
    tlbi: Option<u64>,
    /// Data synchronization barriers.
    dsb: Option<u64>,
    /// Instruction synchronization barriers.
    isb: Option<u64>,
    /// Instructions retired; null without `--icount` and where they could not be counted.
    instructions: Option<u64>,
    /// Microseconds by the guest's counter; under QEMU they have nothing to do with hardware.
    time_us: Option<u64>,
    #[schemars(flatten)]
    more: LinearMapMore,
}

#[derive(JsonSchema)]
#[schemars(transform = optional)]
struct LinearMapMore {
    /// Reason why `instructions` is null although the count was requested.
    not_counted: String,
    /// Whether the kernel split all blocks because a CPU came up that allows no live splits. `leaves`, `tables`,
    /// `table_bytes` and the `self_check` keys then describe the map of pages, the other counts the making of
    /// the first map.
    rewritten_to_pages: bool,
    /// SCTLR of the kernel's level when the counting began; bits 0 (M) and 2 (C) are set.
    sctlr: u64,
    /// Physical ranges that are mapped with the same attributes, `FIRST+BYTES` in hexadecimal with commas
    /// between them.
    pieces: String,
    /// Further such ranges, for which the line of `pieces` has no room; 0 but for RAM in hundreds of pieces.
    pieces_left_out: u64,
    /// Virtual address minus physical address, wrapping at 2^64.
    distance: u64,
    /// Whether TLBIs by range are used.
    tlbi_range: bool,
    /// Table pages that existed before any RAM was mapped.
    pool_pages: u64,
}

/// Keys that the kernel of this repository prints too, as far as they apply.
#[derive(JsonSchema)]
#[schemars(transform = optional)]
struct More {
    /// `efi` if the device tree names the system table of EFI firmware, which started this kernel or one before
    /// it; else `none`.
    firmware: String,
    /// Description of CPUs, interrupt controller, timer and console: `device-tree`, or `acpi` for ACPI's tables.
    described_by: String,
    efi: Efi,
    kaslr: Kaslr,
    self_check: SelfCheck,
    memory: Memory,
    /// TLB conflict aborts that all CPUs handled; 0 except on a CPU that raises them, or with
    /// `arm64.inject_conflict=`.
    tlb_conflicts: u64,
    /// Translation faults that were retried because another CPU had made the page valid; 0 under emulators
    /// except with `granule.test=spurious`.
    spurious_faults: u64,
    persist: Persist,
    user: User,
    /// Counts of the tests that `granule.test=` selects: `counts.CHANGE.STEP.{tables,stores,tlbi,dsb,isb,locks}`
    /// of a change of the linear map, `stress` of a stress of random changes.
    test: Map<String, Value>,
    /// Counts of `granule.bench=`: `copy.bytes` and `copy.instructions` for `granule bench kexec`, and
    /// `SIZE.KIND.FIGURE` for `granule bench permissions`.
    bench: Map<String, Value>,
    kexec: KexecRecord,
}

/// EFI's tables, which each kernel hands on to the next.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Efi {
    /// Physical address of the system table.
    system_table: Hex,
    /// Physical address of the memory map.
    map: Hex,
    /// Bytes of the memory map.
    map_bytes: u64,
}

/// Randomised addresses.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Kaslr {
    /// `on`, `no-seed` (`/chosen` has no `kaslr-seed`, or it is 0) or `nokaslr`.
    state: String,
    /// Virtual address of the image's first byte: what a tool adds to an address in the ELF file.
    image: Hex,
    /// First virtual address of the linear map's window.
    linear_map: Hex,
    /// Places for the image that a seed chooses from.
    image_places: u64,
    /// Places for the linear map that a seed chooses from; 1 if it has no room to move.
    linear_map_places: u64,
}

/// The kernel's check of its own tables.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct SelfCheck {
    /// Seed of its random addresses.
    seed: u64,
    /// Addresses that the CPU's own walker translated.
    translations: u64,
    /// Pages written through the linear map and read through a second mapping.
    patterns: u64,
    /// Leaf entries of the kernel's tables that were read; each entry of a contiguous group counts.
    leaves: u64,
    /// Table entries of the kernel's tables that were read.
    tables: u64,
    /// Read-only bytes of the linear map.
    read_only_bytes: u64,
}

/// The kernel's memory.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Memory {
    /// Static storage of the image that became free memory after the boot, in bytes.
    static_bytes_given_back: u64,
    /// Free memory of the page allocator, in bytes.
    free_bytes: u64,
    /// RAM reserved for metadata of each page, in bytes; little of it is touched.
    page_metadata_bytes: u64,
    /// Peak use of the boot CPU's stack, tests included, in bytes.
    boot_stack_bytes_used: u64,
    /// Size of that stack, in bytes.
    boot_stack_bytes: u64,
}

/// Memory that outlives a boot: with `granule.persist=START,BYTES`.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Persist {
    /// Boots counted there, this one included. Every page size can read the count.
    boots: u64,
    /// Page size of the previous boot, in bytes.
    last_page_size: u64,
    /// Whether the linear map equals that of the previous boot with the same page size.
    same_linear_map: bool,
    /// Reason why that is unknown: there was no previous boot, it ran with another page size, or its data is corrupted.
    linear_map_refused: String,
}

/// Programs; only if a process ran.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct User {
    /// Argument of the first process's `exit`.
    exit_code: u64,
    /// Signal that ended the first process.
    signal: u64,
    /// Processes, the first included.
    processes: u64,
    /// Most processes that the machine's memory allows at once; `fork` beyond it is EAGAIN.
    most_processes: u64,
    /// Times that a CPU switched to a process.
    switches: u64,
    /// Page faults of programs that the kernel handled.
    faults: u64,
    pages: Pages,
    blocks: Blocks,
    groups: Groups,
    /// Bits of a program's virtual address.
    va_bits: u64,
    /// Page frames allocated before the first process began.
    frames_before: u64,
    /// Page frames allocated after the last process was gone. If they differ from those before the outcome is
    /// `self-check-failed`.
    frames_after: u64,
    /// Most bytes that a task used of its kernel stack; only with `granule.test=stacks`.
    kernel_stack_used: u64,
}

/// Pages of programs.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Pages {
    /// Allocated at the first touch.
    mapped: u64,
    /// Copied at a write after a fork.
    copied: u64,
    /// Shared by no other process any more, so that a write needed no copy.
    reused: u64,
}

/// Blocks of programs' memory.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Blocks {
    /// Mapped by a first touch.
    mapped: u64,
    /// Became pages and groups because a part was unmapped, protected or copied.
    split: u64,
    /// Became blocks again once all of their pages were alike.
    merged: u64,
}

/// Contiguous groups of programs' pages.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct Groups {
    /// Mapped at once by a first touch.
    mapped: u64,
    /// Got the contiguous hint later.
    folded: u64,
    /// Lost it except by unmapping the whole group.
    unfolded: u64,
}

/// The last departure for another kernel. Counts are those that the next kernel was handed; if that is not ours
/// and prints no record, those that the leaving kernel printed.
#[derive(JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub(crate) struct Kexec {
    #[schemars(flatten)]
    figures: super::Figures,
    #[schemars(flatten)]
    printed: KexecPrinted,
}

/// The kernel that crashed with `--crash`, and the keys of a crash that the last kernel printed.
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
pub(crate) struct Crash {
    #[schemars(flatten)]
    crashed: super::crash::Crashed,
    /// CPUs that did not stop for a panic with a crash kernel loaded.
    silent: u64,
    /// Whether the crash kernel was as it was loaded, and was entered.
    entered: bool,
    /// Bytes of `/proc/vmcore`.
    core_bytes: u64,
}

/// The keys of kexec that a kernel printed, if it left or was started by another kernel (docs/boot-record.md).
#[derive(JsonSchema)]
#[schemars(transform = optional, extend("additionalProperties" = true))]
struct KexecRecord {
    /// Page size of the kernel before, in bytes.
    from_page_size: u64,
    /// Page size of this kernel, in bytes.
    to_page_size: u64,
    /// Bytes of all segments.
    bytes_total: u64,
    /// Bytes of these that the relocation copied.
    bytes_copied: u64,
    /// Operations of the relocation on cache lines.
    lines_cleaned: u64,
    /// DSBs of the relocation.
    dsb: u64,
    #[schemars(flatten)]
    printed: KexecPrinted,
}

#[derive(JsonSchema)]
#[schemars(transform = optional)]
struct KexecPrinted {
    /// TLBIs of the relocation.
    tlbi: u64,
    /// Whether the MMU was off while bytes were copied.
    uncached: bool,
    /// Readings of the counter: `call` when leaving was requested, `leave` just before the relocation code, `entry`
    /// at this kernel's entry, `console` just before its first line, `up` before its first process; and `hz`, its
    /// ticks a second.
    count: BTreeMap<String, u64>,
    /// Segments `kernel`, `initrd` and `tree`: `start`, where each is, its `bytes`, and their `digest` when it was
    /// loaded.
    segment: Map<String, Value>,
    /// Segments after arrival: `bytes` and `digest`, with `granule.kexec=digest`.
    arrived: Map<String, Value>,
    /// Plan of the relocation, of a kernel that leaves.
    leaving: Map<String, Value>,
    /// Reason why a next kernel was not loaded or not started.
    refused: String,
}
