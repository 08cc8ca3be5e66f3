//! The facts of a tree as its text says them, by the Devicetree Specification and the bindings of Linux. This shares no
//! code with this kernel's readers.

use std::collections::BTreeSet;

use super::facts::{Console, Facts, Piece};
use super::text::{Node, Source};

/// The fields of an MPIDR that `reg` of a CPU may have.
const AFFINITY: u64 = 0xff_00ff_ffff;

/// RAM is used by whole pages of this size here.
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

/// The facts.
pub(super) fn facts(source: &Source) -> Facts {
    let root = &source.root;
    let mut facts = Facts {
        banks: banks(root),
        console: console(root),
        ..Facts::default()
    };
    count(root, &mut facts.size);
    let all = source.reservations.iter();
    facts.reserved = all.map(|(start, bytes)| piece(*start, *bytes)).collect();
    reserved_memory(root, &mut facts);
    cpus(root, &mut facts);
    let psci = root.child("psci").and_then(|psci| psci.string("method"));
    facts.psci = psci.filter(|method| ["hvc", "smc"].contains(&method.as_str()));
    let mut way = Vec::new();
    let mut has_gic = false;
    each(root, &mut way, &mut |way| {
        let node = way[way.len() - 1];
        if node.base() == "serial" {
            let first = node
                .entries("reg", above(way))
                .and_then(|it| it.first().copied());
            let at = first.and_then(|(start, _)| to_cpu(way, start));
            let at = at.and_then(|at| u64::try_from(at).ok());
            facts.serial.push((path(way), at));
        }
        let is_gic = node.is(GIC_V3) || GIC_V2.iter().any(|name| node.is(name));
        let is_bcm2836 = node.is(BCM2836) && node.property("interrupt-controller").is_some();
        // A GIC comes before the other one, wherever both are.
        if (is_gic && !has_gic) || (is_bcm2836 && facts.intc.is_none()) {
            has_gic |= is_gic;
            let found = if is_gic { gic(way) } else { bcm2836(way) };
            facts.intc = Some(found.ok_or_else(|| path(way)));
            facts.timer = timer(root, node, is_gic);
        }
    });
    facts
}

impl Node {
    fn property(&self, name: &str) -> Option<&[u8]> {
        let found = self.properties.iter().find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// The first string of a property.
    fn string(&self, name: &str) -> Option<String> {
        let first = self.property(name)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(first).into_owned())
    }

    fn strings(&self, name: &str) -> Vec<String> {
        let value = self.property(name).unwrap_or_default();
        let value = value.strip_suffix(&[0]).unwrap_or(value);
        let parts = value.split(|byte| *byte == 0);
        parts
            .map(|it| String::from_utf8_lossy(it).into_owned())
            .collect()
    }

    fn is(&self, compatible: &str) -> bool {
        self.strings("compatible").iter().any(|it| it == compatible)
    }

    /// The name without the unit address.
    fn base(&self) -> &str {
        self.name.split('@').next().unwrap_or_default()
    }

    fn child(&self, name: &str) -> Option<&Self> {
        let is_it = |it: &&Self| it.name == name || it.base() == name;
        self.children.iter().find(is_it)
    }

    fn cell(&self, name: &str) -> Option<u32> {
        Some(u32::from_be_bytes(self.property(name)?.try_into().ok()?))
    }

    /// The cells of an address and of a size on the bus that this node is.
    fn cells(&self) -> (usize, usize) {
        let of = |name, otherwise| self.cell(name).map_or(otherwise, |it| it as usize);
        (of("#address-cells", 2), of("#size-cells", 1))
    }

    /// The whole entries of a property on a bus with these cells.
    fn entries(&self, name: &str, (address, size): (usize, usize)) -> Option<Vec<(u128, u128)>> {
        let value = self.property(name)?;
        let chunk = 4 * (address + size);
        if address == 0 || address > 4 || size > 4 {
            return None;
        }
        let entries = value.chunks_exact(chunk);
        Some(
            entries
                .map(|entry| (number(&entry[..4 * address]), number(&entry[4 * address..])))
                .collect(),
        )
    }

    fn may_be_used(&self) -> bool {
        let status = self.string("status");
        status.is_none_or(|status| status == "okay" || status == "ok")
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | u128::from(*byte))
}

fn piece(start: u64, bytes: u64) -> Piece {
    Piece(start, start.saturating_add(bytes))
}

fn count(node: &Node, size: &mut [usize; 3]) {
    size[0] += 1;
    size[1] += node.properties.len();
    size[2] += node
        .properties
        .iter()
        .map(|(_, value)| value.len())
        .sum::<usize>();
    for child in &node.children {
        count(child, size);
    }
}

/// RAM: pieces that touch are one, and parts of pages at their edges are left out.
fn banks(root: &Node) -> Vec<Piece> {
    let is_memory = |node: &&Node| node.strings("device_type") == ["memory"];
    let nodes = root.children.iter().filter(is_memory);
    let mut pieces: Vec<Piece> = Vec::new();
    for node in nodes.filter(|node| node.may_be_used()) {
        for (start, bytes) in node.entries("reg", root.cells()).unwrap_or_default() {
            let (start, bytes) = (start as u64, bytes as u64);
            if bytes > 0 {
                pieces.push(piece(start, bytes));
            }
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
    let whole = |Piece(start, end)| Piece(start.next_multiple_of(PAGE), end / PAGE * PAGE);
    let whole = merged.into_iter().map(whole);
    whole.filter(|Piece(start, end)| start < end).collect()
}

fn reserved_memory(root: &Node, facts: &mut Facts) {
    let Some(node) = root.child("reserved-memory") else {
        return;
    };
    let of = |name, otherwise| node.cell(name).map_or(otherwise, |it| it as usize);
    let cells = (
        of("#address-cells", root.cells().0),
        of("#size-cells", root.cells().1),
    );
    for child in node.children.iter().filter(|child| child.may_be_used()) {
        for (start, bytes) in child.entries("reg", cells).unwrap_or_default() {
            let range = piece(start as u64, bytes as u64);
            facts.reserved.push(range);
            if child.property("no-map").is_some() {
                facts.no_map.push(range);
            }
        }
    }
}

fn cpus(root: &Node, facts: &mut Facts) {
    let Some(node) = root.child("cpus") else {
        facts.cpus = 1;
        return;
    };
    let is_cpu = |cpu: &&Node| {
        let state = cpu.string("status");
        cpu.string("device_type").as_deref() == Some("cpu")
            && (cpu.may_be_used() || state.as_deref() == Some("disabled"))
    };
    let mut seen = BTreeSet::new();
    for cpu in node.children.iter().filter(is_cpu) {
        let entries = cpu.entries("reg", node.cells()).unwrap_or_default();
        let id = entries.first().map(|entry| entry.0 as u64);
        let id = id.filter(|id| id & !AFFINITY == 0);
        let is_first = facts.cpus == 0;
        facts.cpus += 1;
        if let (Some(id), true) = (id, is_first) {
            facts.boot_cpu = id;
            seen.insert(id);
            continue;
        }
        match id.zip(release(cpu)).filter(|(id, _)| seen.insert(*id)) {
            Some(other) => facts.others.push(other),
            None => facts.left_out.push(format!("/{}/{}", node.name, cpu.name)),
        }
    }
    facts.cpus = facts.cpus.max(1);
}

/// The address that starts a CPU; none is needed where PSCI does. `None` if the CPU cannot be started.
fn release(cpu: &Node) -> Option<Option<u64>> {
    match cpu.string("enable-method")?.as_str() {
        "psci" => Some(None),
        "spin-table" => {
            let value = cpu.property("cpu-release-addr")?;
            let address = number(value) as u64;
            (matches!(value.len(), 4 | 8) && address != 0 && address.is_multiple_of(8))
                .then_some(Some(address))
        }
        _ => None,
    }
}

/// What `stdout-path` of `/chosen` leads to.
fn console(root: &Node) -> Option<Result<Console, &'static str>> {
    let chosen = root.child("chosen")?;
    let named = chosen
        .string("stdout-path")
        .or_else(|| chosen.string("linux,stdout-path"))?;
    let before_colon = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    let mut target = before_colon(&named);
    if !target.starts_with('/') {
        let alias = root.child("aliases").and_then(|it| it.string(&target));
        let Some(alias) = alias else {
            return Some(Err("no alias"));
        };
        target = before_colon(&alias);
    }
    let mut way = vec![root];
    for part in target.split('/').filter(|part| !part.is_empty()) {
        match way[way.len() - 1].child(part) {
            Some(child) => way.push(child),
            None => return Some(Err("no node")),
        }
    }
    let node = way[way.len() - 1];
    let first = node
        .entries("reg", above(&way))
        .and_then(|it| it.first().copied());
    let at = first.and_then(|(start, _)| to_cpu(&way, start));
    let Some(at) = at.and_then(|at| u64::try_from(at).ok()) else {
        return Some(Err("no address"));
    };
    Some(uart(node, at).ok_or("not known"))
}

/// The UART of a node, by the first of its names that says which: a node names what it is before what that resembles
/// (the LX2160A's are an SBSA UART, then a PL011).
fn uart(node: &Node, at: u64) -> Option<Console> {
    let or = |name, otherwise| node.cell(name).unwrap_or(otherwise);
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
    node.strings("compatible")
        .iter()
        .find_map(|name| of_name(name))
}

/// Calls `work` with the way from the root to each node, each before its children.
fn each<'a>(node: &'a Node, way: &mut Vec<&'a Node>, work: &mut impl FnMut(&[&'a Node])) {
    way.push(node);
    work(way);
    for child in &node.children {
        each(child, way, work);
    }
    way.pop();
}

fn path(way: &[&Node]) -> String {
    let names = way.iter().skip(1).map(|node| format!("/{}", node.name));
    names.collect()
}

/// The cells of the bus above the node at the way's end.
fn above(way: &[&Node]) -> (usize, usize) {
    way.len()
        .checked_sub(2)
        .map_or((0, 0), |at| way[at].cells())
}

/// The CPU's address of an address in the node at the way's end.
fn to_cpu(way: &[&Node], address: u128) -> Option<u128> {
    let mut address = address;
    // The root's own children have the CPU's addresses.
    for at in (1..way.len().saturating_sub(1)).rev() {
        let (bus, (parent, _)) = (way[at], way[at - 1].cells());
        let ranges = bus.property("ranges")?;
        if ranges.is_empty() {
            continue;
        }
        let (child, size) = bus.cells();
        let mut entries = ranges.chunks_exact(4 * (child + parent + size));
        address = entries.find_map(|entry| {
            let from = number(&entry[..4 * child]);
            let to = number(&entry[4 * child..4 * (child + parent)]);
            let bytes = number(&entry[4 * (child + parent)..]);
            let offset = address.checked_sub(from)?;
            (offset < bytes).then(|| to + offset)
        })?;
    }
    Some(address)
}

/// Kind and regions of a GIC: distributor, then CPU interface or redistributors.
fn gic(way: &[&Node]) -> Option<(&'static str, Vec<Piece>)> {
    let node = way[way.len() - 1];
    let (kind, count) = if node.is(GIC_V3) {
        ("GICv3", node.cell("#redistributor-regions").unwrap_or(1))
    } else {
        ("GICv2", 1)
    };
    if node.property("redistributor-stride").is_some() {
        return None;
    }
    let entries = node.entries("reg", above(way))?;
    let mut regions = Vec::new();
    for (start, bytes) in entries.into_iter().take(1 + count as usize) {
        let start = u64::try_from(to_cpu(way, start)?).ok()?;
        let bytes = u64::try_from(bytes).ok()?;
        if bytes < PAGE || start % PAGE != 0 {
            return None;
        }
        regions.push(piece(start, bytes));
    }
    (regions.len() == 1 + count as usize).then_some((kind, regions))
}

/// The registers of the Raspberry Pi 3's interrupt controller.
fn bcm2836(way: &[&Node]) -> Option<(&'static str, Vec<Piece>)> {
    let entries = way[way.len() - 1].entries("reg", above(way))?;
    let (start, bytes) = *entries.first()?;
    let start = u64::try_from(to_cpu(way, start)?).ok()?;
    let bytes = u64::try_from(bytes).ok()?;
    (bytes >= 256 && start % 256 == 0).then(|| ("BCM2836", vec![piece(start, bytes)]))
}

/// The second and the fourth interrupt of the timer, if they are private ones of this controller: of a GIC by kind and
/// number, of the other by number alone.
fn timer(root: &Node, controller: &Node, is_gic: bool) -> [Option<u32>; 2] {
    let find = |which: usize| {
        let timer = root
            .children
            .iter()
            .find(|node| node.is("arm,armv8-timer") || node.is("arm,armv7-timer"))?;
        let cells = controller.cell("#interrupt-cells")? as usize;
        let value = timer.property("interrupts")?;
        let words: Vec<_> = value.chunks_exact(4).map(number).collect();
        match words.get(which * cells..)? {
            [number @ 1..=3, ..] if !is_gic => Some(*number as u32),
            _ if !is_gic => None,
            [1, number, ..] if *number < 16 => Some(16 + *number as u32),
            _ => None,
        }
    };
    [find(1), find(3)]
}
