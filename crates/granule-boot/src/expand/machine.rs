//! The machine by ACPI's tables, and the nodes that describe it: CPUs, interrupt controller, timer,
//! PSCI and console, in the bindings that the readers of device trees support.

use super::super::acpi::{
    AcpiError, Console, ConsoleKind, Cpu, Domains, Fault, Madt, Psci, Srat, Tables, Timer, timers,
};
use super::super::efi::Physical;
use super::super::memblock::{Region, Regions};
use super::super::tree::{WriteError, Writer};
use super::{FROM_ACPI, Note, Notes};

/// The most CPUs that are described: more than the kernel starts, and their nodes take half the room of a tree.
pub(super) const MOST_CPUS: u32 = 2048;
/// The most separate regions of redistributors.
const MOST_REGIONS: usize = 32;
/// Bytes of a distributor and of the redistributor of a CPU, by version 3 of the controller, and of a
/// redistributor by version 4.
const DISTRIBUTOR_BYTES: u64 = 64 << 10;
const REDISTRIBUTOR_BYTES: u64 = 128 << 10;
const REDISTRIBUTOR_BYTES_4: u64 = 256 << 10;
/// Bytes of a distributor and of a CPU interface, by version 2.
const DISTRIBUTOR_BYTES_2: u64 = 4 << 10;
const INTERFACE_BYTES: u64 = 8 << 10;

/// The name of the console's node.
const SERIAL: &[u8] = b"serial";

type Done<T = ()> = Result<T, WriteError>;

/// ACPI's tables that are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'p> {
    madt: Madt<'p>,
    timers: Option<[Timer; 4]>,
    psci: Psci,
    pub(super) srat: Option<Srat<'p>>,
    pub(super) console: Option<Console>,
}

impl<'p> Machine<'p> {
    /// Reads the tables below the root pointer.
    pub(super) fn read<P: Physical>(
        memory: &'p P,
        rsdp: Option<u64>,
        notes: &mut Notes,
    ) -> Result<Self, AcpiError> {
        let missing = AcpiError {
            table: *b"RSDP",
            fault: Fault::Missing,
        };
        let tables = Tables::new(memory, rsdp.ok_or(missing)?)?;
        let madt = Madt::new(tables.find(*b"APIC")?);
        let mut report = |error: AcpiError| notes.add(Note::Acpi(error));
        let found = tables.find(*b"GTDT").and_then(timers);
        let timers = found.map_err(&mut report).ok();
        let psci = tables.psci().map_err(&mut report).unwrap_or(Psci::None);
        // Machines without a console or with one node have no such table.
        let mut optional = |signature| match tables.find(signature) {
            Ok(table) => Some(table),
            Err(error) => {
                if !matches!(error.fault, Fault::Missing) {
                    report(error);
                }
                None
            }
        };
        let srat = optional(*b"SRAT").map(Srat::new);
        let spcr = optional(*b"SPCR");
        let console = spcr.and_then(Console::read);
        if spcr.is_some() && console.is_none() {
            notes.add(Note::Console);
        }
        let lists = [
            (Some(madt.entries()), *b"APIC"),
            (srat.map(Srat::entries), *b"SRAT"),
        ];
        for (entries, table) in lists {
            if let Some(mut entries) = entries {
                entries.by_ref().for_each(drop);
                if entries.is_cut() {
                    let fault = Fault::Entry;
                    notes.add(Note::Acpi(AcpiError { table, fault }));
                }
            }
        }
        if matches!(psci, Psci::None) {
            notes.add(Note::NoPsci);
        }
        Ok(Self {
            madt,
            timers,
            psci,
            srat,
            console,
        })
    }

    /// Writes the nodes. The root has two cells for an address and two for a size.
    pub(super) fn nodes<'t>(&self, to: &mut Writer<'t>, notes: &mut Notes) -> Done {
        self.cpus(to, notes)?;
        self.gic(to, notes)?;
        if let Some(timers) = self.timers {
            to.begin(b"timer")?;
            to.text(b"compatible", b"arm,armv8-timer")?;
            to.list(b"interrupts", timers.into_iter().flat_map(interrupt))?;
            mark(to)?;
        }
        let method: &[u8] = match self.psci {
            Psci::Smc => b"smc",
            Psci::Hvc => b"hvc",
            Psci::None => &[],
        };
        if !method.is_empty() {
            to.begin(b"psci")?;
            to.text(b"compatible", b"arm,psci-1.0\0arm,psci-0.2")?;
            to.text(b"method", method)?;
            mark(to)?;
        }
        self.console.map_or(Ok(()), |console| serial(to, console))
    }

    fn cpus<'t>(&self, to: &mut Writer<'t>, notes: &mut Notes) -> Done {
        let mut domains = Domains::new(self.srat);
        let mut count = 0_u32;
        to.begin(b"cpus")?;
        to.cells(b"#address-cells", &[2])?;
        to.cells(b"#size-cells", &[0])?;
        to.property(FROM_ACPI, &[])?;
        for cpu in self.cpus_in_use() {
            count = count.saturating_add(1);
            if count > MOST_CPUS {
                continue;
            }
            to.begin_at(b"cpu", cpu.mpidr)?;
            to.text(b"device_type", b"cpu")?;
            to.text(b"compatible", b"arm,armv8")?;
            to.numbers(b"reg", [cpu.mpidr])?;
            if !matches!(self.psci, Psci::None) {
                to.text(b"enable-method", b"psci")?;
            }
            if let Some(domain) = domains.of(cpu.uid) {
                to.cells(b"numa-node-id", &[domain])?;
            }
            to.end()?;
        }
        if count > MOST_CPUS {
            notes.add(Note::Cpus(count));
        }
        if domains.is_cut() {
            notes.add(Note::Near);
        }
        to.end()
    }

    fn cpus_in_use(&self) -> impl Iterator<Item = Cpu> {
        self.madt.cpus().filter(|cpu| cpu.is_enabled)
    }

    fn gic<'t>(&self, to: &mut Writer<'t>, notes: &mut Notes) -> Done {
        let Some(distributor) = self.madt.distributor() else {
            notes.add(Note::NoGic);
            return Ok(());
        };
        let redistributors = self.redistributors(distributor.version, notes);
        let regions = redistributors.as_slice();
        let is_2 = match distributor.version {
            0 => regions.is_empty(),
            version => version < 3,
        };
        let mut cpus = self.cpus_in_use();
        let interface = cpus.find_map(|cpu| (cpu.interface != 0).then_some(cpu.interface));
        let (compatible, bytes): (&[u8], _) = if is_2 {
            (b"arm,gic-400", DISTRIBUTOR_BYTES_2)
        } else {
            (b"arm,gic-v3", DISTRIBUTOR_BYTES)
        };
        let interface = interface.filter(|_| is_2);
        if (is_2 && interface.is_none()) || (!is_2 && regions.is_empty()) {
            notes.add(Note::NoGic);
            return Ok(());
        }
        to.begin_at(b"interrupt-controller", distributor.address)?;
        to.text(b"compatible", compatible)?;
        to.property(b"interrupt-controller", &[])?;
        to.cells(b"#interrupt-cells", &[3])?;
        let first = [distributor.address, bytes].into_iter();
        if let Some(interface) = interface {
            to.numbers(b"reg", first.chain([interface, INTERFACE_BYTES]))?;
        } else {
            to.cells(b"#redistributor-regions", &[regions.len() as u32])?;
            let regions = regions.iter().flat_map(|it| [it.start(), it.len()]);
            to.numbers(b"reg", first.chain(regions))?;
        }
        mark(to)
    }

    /// The regions of redistributors: those that the table lists, else those of the CPUs.
    fn redistributors(&self, version: u8, notes: &mut Notes) -> Regions<MOST_REGIONS> {
        let mut all = Regions::EMPTY;
        let mut add = |start: u64, bytes: u64| {
            let region = start.checked_add(bytes);
            let region = region.and_then(|end| Region::new(start, end));
            if region.is_none_or(|region| all.insert(region).is_err()) {
                notes.add(Note::Redistributors(start));
            }
        };
        let mut has_some = false;
        for region in self.madt.redistributors() {
            has_some = true;
            add(region.start, region.bytes);
        }
        if !has_some {
            let bytes = if version < 4 {
                REDISTRIBUTOR_BYTES
            } else {
                REDISTRIBUTOR_BYTES_4
            };
            for cpu in self.cpus_in_use().filter(|cpu| cpu.redistributor != 0) {
                add(cpu.redistributor, bytes);
            }
        }
        all
    }
}

/// Ends a node with the mark of ACPI. The mark is a property, so the node has no children.
fn mark(to: &mut Writer<'_>) -> Done {
    to.property(FROM_ACPI, &[])?;
    to.end()
}

/// The cells of a timer's interrupt: kind (1 is private), number among its kind, flags. A timer without
/// a private interrupt has zeros, because the position in the list identifies the timer.
fn interrupt(timer: Timer) -> [[u8; 4]; 3] {
    let number = timer.number.checked_sub(16).filter(|number| *number < 16);
    let flags = match (timer.is_edge, timer.is_low) {
        (true, false) => 1,
        (true, true) => 2,
        (false, false) => 4,
        (false, true) => 8,
    };
    let cells = number.map_or([0; 3], |number| [1, number, flags]);
    cells.map(u32::to_be_bytes)
}

fn serial(to: &mut Writer<'_>, console: Console) -> Done {
    to.begin_at(SERIAL, console.address)?;
    let (compatible, bytes): (&[u8], u64) = match console.kind {
        ConsoleKind::Pl011 => (b"arm,pl011\0arm,primecell", 4 << 10),
        ConsoleKind::Sbsa => (b"arm,sbsa-uart", 4 << 10),
        ConsoleKind::Ns16550 => (b"ns16550a\0ns16550", 8_u64.wrapping_shl(console.shift)),
        ConsoleKind::Bcm2835 => (b"brcm,bcm2835-aux-uart", 64),
    };
    to.text(b"compatible", compatible)?;
    to.numbers(b"reg", [console.address, bytes])?;
    if matches!(console.kind, ConsoleKind::Ns16550) {
        to.cells(b"reg-shift", &[console.shift])?;
        to.cells(b"reg-io-width", &[console.width])?;
    }
    mark(to)
}

/// Writes `stdout-path` of the console.
pub(super) fn stdout(to: &mut Writer<'_>, console: Console) -> Done {
    let mut digits = [0; 16];
    let address = super::super::tree::hexadecimal(console.address, &mut digits);
    to.pieces(b"stdout-path", &[b"/", SERIAL, b"@", address, &[0]])?;
    to.property(FROM_ACPI, &[])
}
