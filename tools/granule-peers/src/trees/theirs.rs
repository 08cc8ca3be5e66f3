//! Finds the facts of a tree by the Devicetree Specification and the bindings of Linux, with the
//! crate dtoolkit, which shares no code with this kernel's readers.

use std::collections::BTreeSet;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::NodeStandard as _;
use dtoolkit::{Node as _, Property as _};

use super::facts::{Console, Facts, Piece};

/// The affinity fields of an MPIDR, which `reg` of a CPU may have.
const AFFINITY: u64 = 0xff_00ff_ffff;

/// The unit of the register regions of interrupt controllers.
const PAGE: u64 = 4096;

const GIC_V3: &str = "arm,gic-v3";
const GIC_V2: [&str; 7] = [
    "arm,gic-400",
    "arm,cortex-a15-gic",
    "arm,cortex-a9-gic",
    "arm,cortex-a7-gic",
    "arm,pl390",
    "qcom,msm-8660-qgic",
    "qcom,msm-qgic2",
];

const BCM2836: &str = "brcm,bcm2836-l1-intc";

pub(super) fn facts(bytes: &[u8]) -> Facts {
    // dtoolkit's check refuses names of more than 31 characters, which many trees have.
    let tree = Fdt::new_unchecked(bytes);
    let root = &tree.root();
    let mut facts = Facts {
        banks: banks(root),
        console: console(root),
        ..Facts::default()
    };
    let reservations = tree.memory_reservations();
    facts.reserved = reservations
        .map(|it| piece(it.address(), it.size()))
        .collect();
    reserved_memory(root, &mut facts);
    cpus(root, &mut facts);
    let psci = root.child("psci");
    let psci = psci.and_then(|psci| string(&psci, "method"));
    facts.psci = psci.filter(|method| ["hvc", "smc"].contains(&method.as_str()));
    let mut has_gic = false;
    each(*root, &mut Vec::new(), &mut |way| {
        let node = &way[way.len() - 1];
        facts.size[0] += 1;
        for property in node.properties() {
            facts.size[1] += 1;
            facts.size[2] += property.value().len();
        }
        if node.name_without_address() == "serial" {
            facts.serial.push((path(way), address(way)));
        }
        let (mut is_gic, mut is_bcm2836) = (false, false);
        for name in node.compatible().into_iter().flatten() {
            is_gic |= name == GIC_V3 || GIC_V2.contains(&name);
            is_bcm2836 |= name == BCM2836;
        }
        is_bcm2836 &= node.property("interrupt-controller").is_some();
        // A GIC takes precedence over the other controller.
        if (is_gic && !has_gic) || (is_bcm2836 && facts.intc.is_none()) {
            has_gic |= is_gic;
            let found = if is_gic { gic(way) } else { bcm2836(way) };
            facts.intc = Some(found.ok_or_else(|| path(way)));
            facts.timer = timer(root, node, is_gic);
        }
    });
    facts
}

fn string(node: &FdtNode<'_>, name: &str) -> Option<String> {
    let property = node.property(name)?;
    let first = property.value().split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(first).into_owned())
}

fn cell(node: &FdtNode<'_>, name: &str) -> Option<u32> {
    node.property(name)?.value_as().ok()
}

/// Reads the numbers of cells of an address and of a size on a bus.
fn cells(bus: &FdtNode<'_>) -> (usize, usize) {
    let cells = bus.address_space();
    (cells.address_cells as usize, cells.size_cells as usize)
}

/// Reads the complete entries of `reg` on a bus with these numbers of cells.
fn reg(node: &FdtNode<'_>, (address, size): (usize, usize)) -> Option<Vec<(u128, u128)>> {
    let property = node.property("reg")?;
    if address == 0 || address > 4 || size > 4 {
        return None;
    }
    let entries = property.value().chunks_exact(4 * (address + size));
    let halves = entries.map(|entry| entry.split_at(4 * address));
    Some(halves.map(|(a, b)| (number(a), number(b))).collect())
}

fn may_be_used(node: &FdtNode<'_>) -> bool {
    let status = string(node, "status");
    status.is_none_or(|status| status == "okay" || status == "ok")
}

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | u128::from(*byte))
}

fn piece(start: u64, bytes: u64) -> Piece {
    Piece(start, start.saturating_add(bytes))
}

/// Finds RAM, exact to the byte; adjacent pieces are merged.
fn banks(root: &FdtNode<'_>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for node in root.children().filter(may_be_used) {
        let device = node.property("device_type");
        if device.is_some_and(|it| it.value() == b"memory\0") {
            let entries = reg(&node, cells(root)).unwrap_or_default();
            let entries = entries.into_iter().filter(|(_, bytes)| *bytes > 0);
            pieces.extend(entries.map(|(start, bytes)| piece(start as u64, bytes as u64)));
        }
    }
    pieces.sort_unstable();
    let mut merged: Vec<Piece> = Vec::new();
    for Piece(start, end) in pieces {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push(Piece(start, end)),
        }
    }
    merged
}

fn reserved_memory(root: &FdtNode<'_>, facts: &mut Facts) {
    let Some(node) = root.child("reserved-memory") else {
        return;
    };
    let of = |name, otherwise| cell(&node, name).map_or(otherwise, |it| it as usize);
    let (address, size) = cells(root);
    let cells = (of("#address-cells", address), of("#size-cells", size));
    for child in node.children().filter(may_be_used) {
        for (start, bytes) in reg(&child, cells).unwrap_or_default() {
            let range = piece(start as u64, bytes as u64);
            facts.reserved.push(range);
            if child.property("no-map").is_some() {
                facts.no_map.push(range);
            }
        }
    }
}

fn cpus(root: &FdtNode<'_>, facts: &mut Facts) {
    let Some(node) = root.child("cpus") else {
        facts.cpus = 1;
        return;
    };
    let is_cpu = |cpu: &FdtNode<'_>| {
        string(cpu, "device_type").as_deref() == Some("cpu")
            && (may_be_used(cpu) || string(cpu, "status").as_deref() == Some("disabled"))
    };
    let mut seen = BTreeSet::new();
    for cpu in node.children().filter(is_cpu) {
        let entries = reg(&cpu, cells(&node)).unwrap_or_default();
        let id = entries.first().map(|entry| entry.0 as u64);
        let id = id.filter(|id| id & !AFFINITY == 0);
        let is_first = facts.cpus == 0;
        facts.cpus += 1;
        if let (Some(id), true) = (id, is_first) {
            facts.boot_cpu = id;
            seen.insert(id);
            continue;
        }
        match id.zip(release(&cpu)).filter(|(id, _)| seen.insert(*id)) {
            Some(other) => facts.others.push(other),
            None => facts.left_out.push(path(&[*root, node, cpu])),
        }
    }
    facts.cpus = facts.cpus.max(1);
}

/// Finds the release address of a CPU, which PSCI does not need. `None` if the CPU cannot be
/// started.
fn release(cpu: &FdtNode<'_>) -> Option<Option<u64>> {
    match string(cpu, "enable-method")?.as_str() {
        "psci" => Some(None),
        "spin-table" => {
            let property = cpu.property("cpu-release-addr")?;
            let value = property.value();
            let address = number(value) as u64;
            (matches!(value.len(), 4 | 8) && address != 0 && address.is_multiple_of(8))
                .then_some(Some(address))
        }
        _ => None,
    }
}

/// Finds the console of `stdout-path` of `/chosen`.
fn console(root: &FdtNode<'_>) -> Option<Result<Console, &'static str>> {
    let chosen = root.child("chosen")?;
    let named = string(&chosen, "stdout-path").or_else(|| string(&chosen, "linux,stdout-path"))?;
    let before_colon = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    let mut target = before_colon(&named);
    if !target.starts_with('/') {
        let aliases = root.child("aliases");
        let Some(alias) = aliases.and_then(|it| string(&it, &target)) else {
            return Some(Err("no alias"));
        };
        target = before_colon(&alias);
    }
    let mut way = vec![*root];
    for part in target.split('/').filter(|part| !part.is_empty()) {
        match way[way.len() - 1].child(part) {
            Some(child) => way.push(child),
            None => return Some(Err("no node")),
        }
    }
    let Some(at) = address(&way) else {
        return Some(Err("no address"));
    };
    Some(uart(&way[way.len() - 1], at).ok_or("not known"))
}

/// Finds the UART of a node, by the first of its compatible strings that is one. The most specific
/// comes first (the LX2160A's are an SBSA UART, then a PL011).
fn uart(node: &FdtNode<'_>, at: u64) -> Option<Console> {
    let or = |name, otherwise| cell(node, name).unwrap_or(otherwise);
    let of_name = |name: &str| match name {
        "arm,pl011" => Some((at, "pl011", 2, 4)),
        "arm,sbsa-uart" => Some((at, "sbsa", 2, 4)),
        "cdns,uart-r1p8" | "cdns,uart-r1p12" | "xlnx,xuartps" => Some((at, "cadence", 2, 4)),
        "fsl,imx21-uart" | "fsl,imx6q-uart" => Some((at, "imx", 2, 4)),
        "brcm,bcm2835-aux-uart"
        | "mediatek,mt6577-uart"
        | "nvidia,tegra20-uart"
        | "ti,am654-uart"
        | "ti,omap4-uart" => Some((at, "8250", 2, 4)),
        "ns16550"
        | "ns16550a"
        | "snps,dw-apb-uart"
        | "mrvl,mmp-uart"
        | "intel,xscale-uart"
        | "nuvoton,npcm750-uart" => Some((at, "8250", or("reg-shift", 0), or("reg-io-width", 1))),
        _ => None,
    };
    node.compatible()?.find_map(of_name)
}

/// Calls `work` with the way from the root to each node, each before its children.
fn each<'a>(node: FdtNode<'a>, way: &mut Vec<FdtNode<'a>>, work: &mut impl FnMut(&[FdtNode<'a>])) {
    way.push(node);
    work(way);
    for child in node.children() {
        each(child, way, work);
    }
    way.pop();
}

fn path(way: &[FdtNode<'_>]) -> String {
    let names = way.iter().skip(1).map(|node| format!("/{}", node.name()));
    names.collect()
}

/// Reads the entries of `reg` of the node at the way's end.
fn own_reg(way: &[FdtNode<'_>]) -> Option<Vec<(u128, u128)>> {
    let [.., bus, node] = way else { return None };
    reg(node, cells(bus))
}

/// Finds the CPU's address of the node at the way's end.
fn address(way: &[FdtNode<'_>]) -> Option<u64> {
    to_cpu(way, own_reg(way)?.first()?.0)
}

/// Translates an address in the node at the way's end to the CPU's.
fn to_cpu(way: &[FdtNode<'_>], mut address: u128) -> Option<u64> {
    // The root's own children have the CPU's addresses.
    for at in (1..way.len().saturating_sub(1)).rev() {
        let (bus, (parent, _)) = (way[at], cells(&way[at - 1]));
        let ranges = bus.property("ranges")?;
        if ranges.value().is_empty() {
            continue;
        }
        let (child, size) = cells(&bus);
        let mut entries = ranges.value().chunks_exact(4 * (child + parent + size));
        address = entries.find_map(|entry| {
            let from = number(&entry[..4 * child]);
            let to = number(&entry[4 * child..4 * (child + parent)]);
            let bytes = number(&entry[4 * (child + parent)..]);
            let offset = address.checked_sub(from)?;
            (offset < bytes).then(|| to + offset)
        })?;
    }
    u64::try_from(address).ok()
}

/// Finds kind and regions of a GIC: distributor, then CPU interface or redistributors.
fn gic(way: &[FdtNode<'_>]) -> Option<(&'static str, Vec<Piece>)> {
    let node = &way[way.len() - 1];
    let (kind, count) = if node.is_compatible(GIC_V3) {
        ("GICv3", cell(node, "#redistributor-regions").unwrap_or(1))
    } else {
        ("GICv2", 1)
    };
    let mut regions = Vec::new();
    for (start, bytes) in own_reg(way)?.into_iter().take(1 + count as usize) {
        let start = to_cpu(way, start)?;
        let bytes = u64::try_from(bytes).ok()?;
        if bytes < PAGE || start % PAGE != 0 {
            return None;
        }
        regions.push(piece(start, bytes));
    }
    let whole = regions.len() == 1 + count as usize;
    if let Some(stride) = node
        .property("redistributor-stride")
        .filter(|_| kind == "GICv3")
    {
        regions.push(piece(0, u64::try_from(number(stride.value())).ok()?));
    }
    whole.then_some((kind, regions))
}

/// Finds the registers of the Raspberry Pi 3's interrupt controller.
fn bcm2836(way: &[FdtNode<'_>]) -> Option<(&'static str, Vec<Piece>)> {
    let (start, bytes) = *own_reg(way)?.first()?;
    let (start, bytes) = (to_cpu(way, start)?, u64::try_from(bytes).ok()?);
    (bytes >= 256 && start % 256 == 0).then(|| ("BCM2836", vec![piece(start, bytes)]))
}

/// Finds the second and the fourth interrupt of the timer, if they are private ones of this
/// controller: by kind and number for a GIC, by number only for the other.
fn timer(root: &FdtNode<'_>, controller: &FdtNode<'_>, is_gic: bool) -> [Option<u32>; 2] {
    let find = |which: usize| {
        let is_timer = |it: &FdtNode<'_>| {
            it.is_compatible("arm,armv8-timer") || it.is_compatible("arm,armv7-timer")
        };
        let timer = root.children().find(is_timer)?;
        let cells = cell(controller, "#interrupt-cells")? as usize;
        let value = timer.property("interrupts")?;
        let words: Vec<_> = value.value().chunks_exact(4).map(number).collect();
        match words.get(which * cells..)? {
            [number @ 1..=3, ..] if !is_gic => Some(*number as u32),
            _ if !is_gic => None,
            [1, number, ..] if *number < 16 => Some(16 + *number as u32),
            _ => None,
        }
    };
    [find(1), find(3)]
}
