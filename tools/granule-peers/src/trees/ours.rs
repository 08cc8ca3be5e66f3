//! Finds the facts of a tree with this kernel's readers.

use granule::arch::PageSize;
use granule_boot::peek::{ConsoleError, ConsoleSource};
use granule_boot::tree::{Node, Token, Tree};
use granule_boot::uart::{Family, Uart};
use granule_kcore::devicetree::cpus::{self, EnableMethod, NotStarted, Other};
use granule_kcore::devicetree::intc::{self, Controller, ControllerError};
use granule_kcore::devicetree::memory::{self, Memory, MemoryNodeError};

use super::facts::{Console, Facts, Piece};

/// Reads an undamaged tree, or returns the reason why it is refused.
pub(super) fn sound(bytes: &[u8]) -> Result<Tree<'_>, String> {
    let tree = Tree::new(bytes).map_err(|error| error.to_string())?;
    match tree.damage() {
        Some(error) => Err(format!("{error}, in {}", tree.damaged_node())),
        None => Ok(tree),
    }
}

/// Finds the facts, given the CPU that boots, or returns the reason why the tree is refused.
pub(super) fn facts(bytes: &[u8], boot_cpu: u64) -> Result<Facts, String> {
    let tree = sound(bytes)?;
    let seen = tree.peek();
    let mut facts = Facts {
        boot_cpu,
        ..Facts::default()
    };
    count(&tree, &mut facts.size);
    memory(bytes, &mut facts)?;
    let piece = |start: u64, bytes: u64| Piece(start, start.saturating_add(bytes));
    facts.no_map = tree.no_map().map(|it| piece(it.start, it.bytes)).collect();
    facts.cpus = cpus::cpus(&tree, boot_cpu, &mut facts);
    let method = seen.psci.and_then(|psci| psci.method);
    facts.psci = method.map(|method| format!("{method:?}").to_ascii_lowercase());
    let console = seen.consoles.of(ConsoleSource::StdoutPath);
    facts.console = console.map(|console| console.map(uart).map_err(reason));
    let is_serial = |node: &Node<'_>| node.is_named(b"serial");
    for node in tree.nodes().filter(is_serial) {
        let first = node.reg().and_then(|mut reg| reg.next().flatten());
        let at = first.and_then(|first| node.to_cpu(first.start));
        facts.serial.push((node.path().to_string(), at));
    }
    facts.intc = match intc::controller(&tree) {
        Ok(controller) => Some(Ok(regions(&controller))),
        Err(ControllerError::None) => None,
        Err(ControllerError::Node(node, _)) => Some(Err(node.text().to_string())),
    };
    if facts.intc.is_some() {
        facts.timer = [false, true].map(|at_el2| intc::timer(&tree, at_el2));
    }
    Ok(facts)
}

impl<'a> cpus::Found<'a> for Facts {
    fn is_known(&self, affinity: u64) -> bool {
        self.others.iter().any(|other| other.0 == affinity)
    }

    fn found(&mut self, other: Other) {
        let release = match other.by {
            EnableMethod::Psci => None,
            EnableMethod::SpinTable { release } => Some(release),
        };
        self.others.push((other.affinity, release));
    }

    fn left_out(&mut self, cpu: NotStarted<'a>) {
        self.left_out.push(cpu.node.to_string());
    }
}

fn count(tree: &Tree<'_>, size: &mut [usize; 3]) {
    let mut walk = tree.walk();
    while let Ok(Some(token)) = walk.next() {
        match token {
            Token::Begin { .. } => size[0] += 1,
            Token::Property { value, .. } => {
                size[1] += 1;
                size[2] += value.len();
            }
            _ => {}
        }
    }
}

/// Finds banks and reservations. A tree without memory is accepted, because firmware fills it in.
fn memory(bytes: &[u8], facts: &mut Facts) -> Result<(), String> {
    let mut early = Box::new(Memory::new(PageSize::K4));
    match memory::memory(bytes, None, &mut early, |_| ()) {
        Ok(()) | Err(MemoryNodeError::NoMemory) => {}
        Err(error) => return Err(error.to_string()),
    }
    let banks = early.banks().iter();
    facts.banks = banks.map(|it| Piece(it.start(), it.end())).collect();
    let reserved = &mut facts.reserved;
    memory::each_reserved(bytes, None, |start, bytes| {
        reserved.push(Piece(start, start.saturating_add(bytes)));
    })
    .map_err(|error| error.to_string())
}

fn uart(uart: Uart) -> Console {
    let family = match uart.family {
        Family::Pl011 => "pl011",
        Family::Sbsa => "sbsa",
        Family::Uart8250 => "8250",
        Family::Cadence => "cadence",
        Family::Imx => "imx",
    };
    let layout = uart.layout;
    let (shift, width) = (layout.shift.into(), layout.width.bytes().into());
    (uart.base, family, shift, width)
}

fn reason(error: ConsoleError) -> &'static str {
    match error {
        ConsoleError::NoSuchAlias => "no alias",
        ConsoleError::NoSuchNode => "no node",
        ConsoleError::NoAddress => "no address",
        ConsoleError::NotKnown => "not known",
        other => other.text(),
    }
}

fn regions(controller: &Controller) -> (&'static str, Vec<Piece>) {
    let mut stride = None;
    let (kind, first, others) = match controller {
        Controller::GicV2 {
            distributor,
            cpu_interface,
        } => ("GICv2", distributor, std::slice::from_ref(cpu_interface)),
        Controller::GicV3 {
            distributor,
            redistributors,
            stride: own,
        } => {
            stride = own.map(|stride| Piece(0, stride));
            ("GICv3", distributor, redistributors.as_slice())
        }
        Controller::Bcm2836 { registers, .. } => ("BCM2836", registers, &[][..]),
    };
    let all = std::iter::once(first).chain(others);
    let all = all.map(|it| Piece(it.start, it.end)).chain(stride);
    (kind, all.collect())
}
