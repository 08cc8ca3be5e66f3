//! The rules `no-map`, `hypervisor-memory` and `kept-shareability`: what the memory is to which trees translate.

use super::finding::Findings;
use super::rule::{Rule, Severity};
use crate::attributes::Decoded;
use crate::memory_map::MemoryMap;
use crate::memory_type::MemoryType;
use crate::ranges::Range;
use crate::tree::{Owner, Shape, Tree};
use granule::arch::{OutputFormat, PageSize};
use std::ops;

/// Calls `with` with the address, the first output and the bytes of each part of `range` whose output is in `memory`,
/// which is sorted.
fn parts(range: &Range, memory: &[ops::Range<u64>], mut with: impl FnMut(u64, u64, u64)) {
    let end = range.output.saturating_add(range.bytes);
    for other in memory.iter().take_while(|other| other.start < end) {
        let (first, end) = (other.start.max(range.output), other.end.min(end));
        if first < end {
            with(
                range.start.wrapping_add(first - range.output),
                first,
                end - first,
            );
        }
    }
}

/// Memory that must not be mapped and is, by a kernel or a program of its own addresses.
pub(super) fn no_map(tree: &Tree, ranges: &[Range], map: &MemoryMap, findings: &mut Findings) {
    if !matches!(
        tree.owner,
        Owner::Kernel | Owner::User(_) | Owner::Process { .. }
    ) {
        return;
    }
    for range in ranges {
        parts(range, &map.no_map, |address, output, bytes| {
            let memory = Decoded::new(tree, range.attributes).memory;
            // Of a device the CPU reads nothing by itself.
            let severity = match memory {
                MemoryType::Device(_) => Severity::Info,
                _ => Severity::Warning,
            };
            findings.add(
                (Rule::NoMap, severity),
                &tree.owner,
                (address, bytes),
                || {
                    let last = output + (bytes - 1);
                    format!(
                        "{output:#x} to {last:#x} is no-map memory of {}, and {memory} here",
                        map.origin
                    )
                },
            );
        });
    }
}

/// Outputs whose bits 51:50 are where a descriptor without TCR.DS has its shareability.
pub(super) fn kept_shareability(
    tree: &Tree,
    ranges: &[Range],
    memory: &[ops::Range<u64>],
    findings: &mut Findings,
) {
    let geometry = tree.geometry();
    if geometry.format() != OutputFormat::Lpa2 || geometry.page_size() == PageSize::K64 {
        return;
    }
    let there = |address| memory.iter().any(|range| range.contains(&address));
    let below = |range: &Range| range.output & ((1 << 50) - 1);
    let found = ranges
        .iter()
        .filter(|range| below(range) != range.output)
        .filter(|range| there(below(range)) && !there(range.output));
    for range in found {
        let rule = (Rule::KeptShareability, Severity::Info);
        findings.add(rule, &tree.owner, (range.start, range.bytes), || {
            let (bits, output, below) = (range.output >> 50, range.output, below(range));
            format!(
                "bits 9:8 are {bits:#04b}, which with TCR.DS are bits 51:50 of the output {output:#x}; memory is at \
                 {below:#x} and not there"
            )
        });
    }
}

/// Tables and code of the levels above that stage 2 maps for a guest, or for the host below it. `tables` has the
/// tables of each tree by their physical addresses.
pub(super) fn hypervisor(
    mapped: &[(&Tree, Vec<Range>)],
    tables: &[(&Tree, Vec<u64>)],
    findings: &mut Findings,
) {
    let above = |tree: &Tree| {
        let level = matches!(
            tree.owner,
            Owner::Kernel | Owner::Hypervisor | Owner::Firmware
        );
        level && tree.through.is_none()
    };
    let is_stage2 = |tree: &Tree| matches!(tree.shape, Shape::Stage2(_));
    if !mapped.iter().any(|(tree, _)| is_stage2(tree)) {
        return;
    }
    let mut kept: Vec<(ops::Range<u64>, &str, &Owner)> = Vec::new();
    for (tree, tables) in tables
        .iter()
        .filter(|(tree, _)| above(tree) || is_stage2(tree))
    {
        let bytes = tree.geometry().page_size().bytes();
        kept.extend(
            tables
                .iter()
                .map(|&at| (at..at.saturating_add(bytes), "a table", &tree.owner)),
        );
    }
    for (tree, ranges) in mapped.iter().filter(|(tree, _)| above(tree)) {
        let code = ranges
            .iter()
            .filter(|range| Decoded::new(tree, range.attributes).privileged_execute);
        kept.extend(code.map(|it| {
            (
                it.output..it.output.saturating_add(it.bytes),
                "code",
                &tree.owner,
            )
        }));
    }
    for (tree, ranges) in mapped.iter().filter(|(tree, _)| is_stage2(tree)) {
        for range in ranges {
            let decoded = Decoded::new(tree, range.attributes);
            let severity = match decoded.writable {
                true => Severity::Error,
                false => Severity::Warning,
            };
            for (memory, what, owner) in &kept {
                parts(
                    range,
                    std::slice::from_ref(memory),
                    |address, output, bytes| {
                        findings.add(
                            (Rule::HypervisorMemory, severity),
                            &tree.owner,
                            (address, bytes),
                            || format!("{output:#x} is {what} of {owner}, and {decoded} here"),
                        );
                    },
                );
            }
        }
    }
}
