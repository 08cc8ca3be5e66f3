//! The plugin's side of QEMU: installs itself, registers callbacks on relevant instructions, and
//! writes the tracker's events to the stream.
//!
//! QEMU calls from the threads of all CPUs at once. A store to ordinary memory and a redundant
//! barrier take no lock. Everything else takes the one lock, which protects the tracker and the
//! stream.

mod accesses;
mod api;
mod callback;
mod counts;
mod handle;
mod output;
mod ram;

use crate::decode::{self, Instruction, StoreForm};
use crate::stream::{self, Head, Seen, Totals};
use crate::track::{Marks, Origin, Store, TABLE, Tracker, UNMAPPED};
use api::{Api, Basics, CpuRegisters, Info};
use callback::{Accesses, Callbacks, Translation};
use granule_trace::Barrier;
use handle::{Access, CpuThread, TranslatedBlock};
use output::Output;
use ram::Ram;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The number of bytes that are buffered before a write.
const KEPT: usize = 1 << 16;
/// The block of DC ZVA has 64 bytes at least and 2 KiB at most.
const SMALLEST_ZERO: u64 = 64;
const LARGEST_ZERO: u64 = 2048;
/// PSCI CPU_OFF.
const CPU_OFF: u32 = 0x8400_0002;
/// The most pages of one CPY or SET that are checked: 4 GiB.
const MOST_PAGES: u64 = 1 << 20;

/// The plugin, from its installation on.
struct Plugin {
    api: Api,
    cpus: u16,
    /// The expected mapping of the RAM.
    ram_name: String,
    ram_base: u64,
    ram_bytes: u64,
    reports_exceptions: OnceLock<bool>,
    sites: Mutex<HashMap<(u64, u32), &'static Site>>,
    stream: Mutex<Option<UnixStream>>,
    machine: OnceLock<Machine>,
}

/// The machine, from its first instruction on.
struct Machine {
    marks: &'static Marks,
    output: Mutex<Output>,
    counts: Box<[Counts]>,
}

/// The counters of one CPU.
#[derive(Default)]
#[repr(align(64))]
struct Counts {
    stores: AtomicU64,
    barriers: AtomicU64,
}

/// An instruction that calls back.
struct Site {
    pc: u64,
    action: Action,
}

#[derive(Clone, Copy)]
enum Action {
    Instruction(Instruction),
    /// The first instruction of a vector.
    Vector,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Returns the plugin and its machine, once there are both.
fn running() -> Option<(&'static Plugin, &'static Machine)> {
    let plugin = PLUGIN.get()?;
    Some((plugin, plugin.machine.get()?))
}

thread_local! {
    /// This thread's CPU, and its registers.
    static THIS: OnceCell<(u16, CpuRegisters)> = const { OnceCell::new() };
}

/// Installs the plugin; called by QEMU. A result other than 0 ends QEMU.
///
/// # Safety
///
/// `info` describes the program, and `argv` has `argc` strings that end in NUL.
#[allow(unsafe_code, reason = "QEMU calls it by name, with its own pointers")]
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let mut options = HashMap::new();
    for index in 0..argc.max(0) as usize {
        // SAFETY: `argv` has `argc` strings.
        let text = unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy();
        if let Some((key, value)) = text.split_once('=') {
            options.insert(key.to_owned(), value.to_owned());
        }
    }
    let installed = match options.get("counts") {
        Some(path) => {
            // SAFETY: QEMU passes its own description.
            let basics = unsafe { Basics::new(info) };
            basics.and_then(|basics| counts::install(id, basics, path))
        }
        None => {
            // SAFETY: as above.
            let api = unsafe { Api::new(info) };
            api.and_then(|(api, cpus)| install(id, api, cpus, &options))
        }
    };
    match installed {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("granule-plugin: {why}");
            1
        }
    }
}

fn install(id: u64, api: Api, cpus: u16, options: &HashMap<String, String>) -> Result<(), String> {
    let option = |name: &str| {
        let hint = "`granule watch` passes it";
        options
            .get(name)
            .ok_or_else(|| format!("no {name}=; {hint}"))
    };
    let number = |name: &str| {
        let value = option(name)?;
        value
            .parse()
            .map_err(|_| format!("{name}={value} is not a number"))
    };
    if options.contains_key("accesses") && cpus != 1 {
        return Err(format!(
            "accesses are recorded of one CPU only, and -smp is {cpus}"
        ));
    }
    let socket = option("socket")?;
    let mut stream = UnixStream::connect(socket).map_err(|error| format!("{socket}: {error}"))?;
    let ram_name = option("ram-name")?.clone();
    let (ram_base, ram_bytes) = (number("ram-base")?, number("ram-bytes")?);
    if options.contains_key("accesses") {
        accesses::install(id, api, stream, (ram_name, ram_base, ram_bytes));
        return Ok(());
    }
    let head = Head {
        api: api.version().unsigned_abs(),
        cpus,
    };
    let head: Vec<u8> = head
        .words()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    stream
        .write_all(&head)
        .map_err(|error| format!("{socket}: {error}"))?;
    let plugin = Plugin {
        api,
        cpus,
        ram_name,
        ram_base,
        ram_bytes,
        reports_exceptions: OnceLock::new(),
        sites: Mutex::default(),
        stream: Mutex::new(Some(stream)),
        machine: OnceLock::new(),
    };
    let plugin = PLUGIN.get_or_init(|| plugin);
    let reports = plugin.api.register::<Plugin>(id);
    let _ = plugin.reports_exceptions.set(reports);
    Ok(())
}

/// Locks a mutex, also after a panic of another holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plugin {
    /// Returns the machine. Its memory exists from the first translation on.
    fn machine(&self) -> &Machine {
        self.machine.get_or_init(|| {
            let ram = Ram::find(&self.ram_name, self.ram_base, self.ram_bytes);
            let ram = ram.unwrap_or_else(|| {
                let line = c"granule-plugin: the guest's RAM was not found\n";
                self.api.print(line);
                Ram::default()
            });
            let pages = ram.bytes() >> crate::track::PAGE_SHIFT;
            // It lives as long as QEMU.
            let marks: &'static Marks =
                Box::leak(Box::new(Marks::new(ram.base(), pages, self.cpus)));
            let mut tracker = Tracker::new(ram, marks, self.cpus);
            if ram.bytes() == 0 {
                tracker.miss(Origin { cpu: 0, pc: 0 }, "all: RAM was not found");
            }
            Machine {
                marks,
                output: Mutex::new(Output {
                    tracker,
                    bytes: Vec::with_capacity(KEPT + 1024),
                    stream: lock(&self.stream).take(),
                    most_table_bytes: 0,
                }),
                counts: (0..self.cpus).map(|_| Counts::default()).collect(),
            }
        })
    }

    /// Returns the single leaked description of an instruction that calls back.
    fn site(&self, pc: u64, word: u32, action: Action) -> &'static Site {
        let mut sites = lock(&self.sites);
        sites
            .entry((pc, word))
            .or_insert_with(|| Box::leak(Box::new(Site { pc, action })))
    }

    /// Returns whether the block at an address is code of EL0, which does not store to tables.
    fn is_program(&self, machine: &Machine, pc: u64) -> bool {
        // Code in the upper half is a kernel's.
        if pc >> 55 & 1 != 0 {
            return false;
        }
        THIS.with(|this| {
            let Some((cpu, registers)) = this.get() else {
                return false;
            };
            match self.api.level(registers) {
                Some(level) => level == 0,
                None => lock(&machine.output).tracker.is_program(*cpu, pc),
            }
        })
    }

    /// Returns whether some CPU has a vector at an address.
    fn is_vector(&self, machine: &Machine, pc: u64) -> bool {
        if pc & 0x7f != 0 || self.reports_exceptions.get() == Some(&true) {
            return false;
        }
        let output = lock(&machine.output);
        let mut vectors = (0..self.cpus).flat_map(|cpu| output.tracker.vectors(cpu));
        vectors.any(|vectors| vectors.is_some_and(|base| pc.wrapping_sub(base) < 0x800))
    }
}

/// Bits in a store's callback data, beside the address of its instruction.
const RELEASE: u64 = 1;
const EXCHANGE: u64 = 2;

impl Translation for Plugin {
    fn translated(block: &TranslatedBlock<'_>) {
        let Some(plugin) = PLUGIN.get() else { return };
        let machine = plugin.machine();
        let api = &plugin.api;
        for (index, (insn, pc, word)) in api.instructions(block).enumerate() {
            if index == 0 {
                if plugin.is_program(machine, pc) {
                    return;
                }
                if plugin.is_vector(machine, pc) {
                    // No instruction has this word, so the site is separate.
                    let site = plugin.site(pc, 0, Action::Vector);
                    api.call_before(&insn, false, site);
                }
            }
            if let Some(instruction) = decode::decode(word) {
                let reads = !matches!(
                    instruction,
                    Instruction::Barrier(_) | Instruction::DropOwn | Instruction::Unmodelled(_)
                );
                let site = plugin.site(pc, word, Action::Instruction(instruction));
                api.call_before(&insn, reads, site);
            }
            // The group of loads and stores.
            if word >> 25 & 0b101 == 0b100 {
                let form = decode::store_form(word);
                let bits = u64::from(form.release) * RELEASE + u64::from(form.exchange) * EXCHANGE;
                api.call_at_memory::<Self>(&insn, api::STORES, pc | bits);
            }
        }
    }
}

impl Callbacks for Plugin {
    fn init(thread: &CpuThread<'_>) {
        if let Some(plugin) = PLUGIN.get() {
            THIS.with(|this| {
                let _ = this.set((thread.cpu() as u16, plugin.api.registers(thread)));
            });
        }
    }

    // Written now, because QEMU may be killed while its guest waits.
    fn idle() {
        if let Some(machine) = PLUGIN.get().and_then(|plugin| plugin.machine.get()) {
            let mut output = lock(&machine.output);
            if !output.bytes.is_empty() {
                output.write();
            }
        }
    }

    fn exit() {
        let machine = PLUGIN.get().and_then(|plugin| plugin.machine.get());
        let Some(machine) = machine else { return };
        let mut output = lock(&machine.output);
        output.tracker.finish();
        let sum = |count: fn(&Counts) -> &AtomicU64| {
            machine
                .counts
                .iter()
                .map(|one| count(one).load(Relaxed))
                .sum()
        };
        let totals = Totals {
            stores: sum(|one| &one.stores),
            barriers: sum(|one| &one.barriers),
            table_bytes: output.most_table_bytes,
        };
        output.collect();
        let end = stream::encode(0, 0, &Seen::End(totals));
        output.push(end);
        output.write();
        // Closing it ends the stream for the reader.
        output.stream = None;
    }

    fn trapped(cpu: c_uint, from: u64) {
        if let Some(machine) = PLUGIN.get().and_then(|plugin| plugin.machine.get()) {
            let cpu = cpu as u16;
            machine.synchronised(Origin { cpu, pc: from });
        }
    }
}

impl Machine {
    /// Records an exception or the return from one.
    fn synchronised(&self, by: Origin) {
        let left = self.marks.leave_user(by.cpu);
        if self.marks.barrier(by.cpu, Barrier::ISB) || left {
            self.track(|tracker| tracker.synchronised(by));
        }
    }

    fn track(&self, change: impl FnOnce(&mut Tracker<'static, Ram>)) {
        let mut output = lock(&self.output);
        change(&mut output.tracker);
        output.collect();
    }
}

/// A store of the guest; the data is the address of its instruction, with bits.
impl Accesses for Plugin {
    fn accessed(cpu: c_uint, access: &Access<'_>, data: u64) {
        let Some((plugin, machine)) = running() else {
            return;
        };
        let Some(address) = plugin.api.physical(access) else {
            return;
        };
        let cpu = cpu as u16;
        if let Some(counts) = machine.counts.get(usize::from(cpu)) {
            let stores = counts.stores.load(Relaxed);
            counts.stores.store(stores + 1, Relaxed);
        }
        let flags = machine.marks.store(cpu, address);
        if flags & (TABLE | UNMAPPED) == 0 && !machine.marks.is_uncached(cpu) {
            return;
        }
        let (bytes, words) = plugin.api.value(access);
        let store = Store {
            address,
            bytes,
            // Of an atomic instruction QEMU passes the operand, even if a comparison failed.
            words: (bytes >= 8 && data & EXCHANGE == 0).then_some(words),
            form: StoreForm {
                release: data & RELEASE != 0,
                exchange: data & EXCHANGE != 0,
            },
        };
        let by = Origin { cpu, pc: data & !3 };
        machine.track(|tracker| tracker.store(by, store));
    }
}

/// An instruction that concerns translation is about to execute.
impl callback::Site for Site {
    fn executed(&'static self, cpu: c_uint) {
        let Some((plugin, machine)) = running() else {
            return;
        };
        let cpu = cpu as u16;
        let by = Origin { cpu, pc: self.pc };
        match self.action {
            Action::Vector => machine.synchronised(by),
            Action::Instruction(Instruction::Barrier(barrier)) => {
                if let Some(counts) = machine.counts.get(usize::from(cpu)) {
                    let barriers = counts.barriers.load(Relaxed);
                    counts.barriers.store(barriers + 1, Relaxed);
                }
                if machine.marks.barrier(cpu, barrier) {
                    machine.track(|tracker| tracker.barrier(by, barrier));
                }
            }
            Action::Instruction(Instruction::DropOwn) => {
                machine.track(|tracker| tracker.dropped(by));
            }
            Action::Instruction(Instruction::Unmodelled(what)) => {
                machine.track(|tracker| tracker.miss(by, what));
            }
            Action::Instruction(instruction) => {
                let done = THIS.with(|this| {
                    let (_, registers) = this.get()?;
                    with_registers(plugin, machine, by, instruction, registers)
                });
                if done.is_none() {
                    machine.track(|tracker| tracker.miss(by, "unread registers"));
                }
            }
        }
    }
}

/// Handles an instruction that reads registers. Returns `None` if one cannot be read.
fn with_registers(
    plugin: &Plugin,
    machine: &Machine,
    by: Origin,
    instruction: Instruction,
    registers: &CpuRegisters,
) -> Option<()> {
    let api = &plugin.api;
    let general = |number| api.general(registers, number);
    let level = api.level(registers)?;
    match instruction {
        Instruction::Eret
            if machine.marks.goes_to_user(by.cpu)
                || level == 2 && machine.marks.goes_to_guest(by.cpu) =>
        {
            if machine.marks.enter_user(by.cpu) {
                machine.track(|tracker| tracker.returned(by, level));
            }
        }
        Instruction::Eret => machine.synchronised(by),
        Instruction::Msr { register, rt } => {
            let value = general(rt)?;
            if !machine.marks.keep(by.cpu, level, register, value) {
                machine.track(|tracker| tracker.register(by, level, register, value));
            }
        }
        Instruction::Tlbi { op, rt } => {
            let operand = general(rt)?;
            machine.track(|tracker| tracker.invalidated(by, level, op, operand));
        }
        Instruction::InstructionCache(op) => {
            machine.track(|tracker| tracker.invalidated(by, level, op, 0));
        }
        Instruction::DataCache { op, rt } => {
            let address = general(rt)?;
            machine.track(|tracker| tracker.maintained(by, level, op, address));
        }
        Instruction::Zero { rt } => {
            let start = general(rt)? & !(SMALLEST_ZERO - 1);
            machine.will_store(by, level, (start, SMALLEST_ZERO), LARGEST_ZERO, true);
        }
        Instruction::Bulk { rd, rn, zeros } => {
            let range = (general(rd)?, general(rn)?);
            machine.will_store(by, level, range, 1, zeros);
        }
        Instruction::FirmwareCall => {
            if general(0)? as u32 == CPU_OFF {
                machine.track(|tracker| {
                    // If EL2 or EL3 has vectors, the guest itself handles the call.
                    if tracker.vectors(by.cpu)[1..].iter().all(Option::is_none) {
                        tracker.reset(by);
                    }
                });
            }
        }
        Instruction::Barrier(_) | Instruction::DropOwn | Instruction::Unmodelled(_) => (),
    }
    Some(())
}

impl Machine {
    /// Handles an instruction that is about to store to a range of virtual addresses, without
    /// callbacks for its stores.
    fn will_store(
        &self,
        by: Origin,
        level: u8,
        (address, bytes): (u64, u64),
        block: u64,
        zeros: bool,
    ) {
        const PAGE: u64 = 1 << crate::track::PAGE_SHIFT;
        let end = address.saturating_add(bytes.min(MOST_PAGES * PAGE));
        let mut output = lock(&self.output);
        let mut at = address;
        while at < end {
            let next = (at & !(PAGE - 1)).saturating_add(PAGE).min(end);
            if let Some(physical) = output.tracker.translate(by.cpu, level, at) {
                let flags = self.marks.store(by.cpu, physical);
                if zeros {
                    self.marks.zero(by.cpu, physical);
                }
                if flags & (TABLE | UNMAPPED) != 0 || self.marks.is_uncached(by.cpu) {
                    output.tracker.will_store(by, physical, next - at, block);
                }
            }
            at = next;
        }
        output.collect();
    }
}
