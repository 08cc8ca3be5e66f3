//! Translation registers: barriers around their writes, fields that TLBs hold (RVNRFW), and TLBs
//! that were never invalidated.

use crate::arch::context::{Registers, Space};
use crate::arch::regime::Regime;
use crate::config::Config;
use crate::state::cpu::{Cpu, Cpus};
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

const WHOLE: (u64, u64) = (0, u64::MAX);

/// Checks a CPU that turns an MMU on, that of stage 1: registers written since the event `before` must be
/// in effect, and the CPU's TLB must have been invalidated.
pub(crate) fn check_mmu_on(
    (cpu, state): (u32, &mut Cpu),
    regime: Regime,
    before: Option<u64>,
    report: &mut Report,
) {
    if let Some(event) = before {
        let text = "may start to translate with register values from before (no ISB)";
        report.add(Violation::at(Rule::MissingIsb, cpu, WHOLE, text).because_of(event));
    }
    if std::mem::take(&mut state.unknown_tlb[regime.index()]) {
        report.add(Violation::at(
            Rule::UnknownTlb,
            cpu,
            WHOLE,
            "may use whatever its TLB held at reset: it was never invalidated",
        ));
    }
}

/// Checks a CPU that goes on in a guest: its TLB must hold nothing of the guest's VMID from before the
/// trace. A VMID is reported once. The exception return has put all registers in effect.
pub(crate) fn check_guest(cpu: u32, state: &mut Cpu, report: &mut Report) {
    let stage2 = Regime::Stage2;
    let vmid = state.registers_of(stage2).vmid();
    if state.unknown_tlb[stage2.index()] && state.known_guests.insert(vmid) {
        report.add(Violation::at(
            Rule::UnknownTlb,
            cpu,
            WHOLE,
            "may use what its TLB held of the guest's VMID at reset: neither that VMID nor all were invalidated",
        ));
    }
}

/// Checks a CPU that changes registers while it translates a half by them: the granule and the
/// format of descriptors must not change.
pub(crate) fn check_fields_in_use(
    config: &Config,
    cpu: u32,
    space: Space,
    (old, new): (&Registers, &Registers),
    report: &mut Report,
) {
    let (Some(from), Some(_)) = (old.root(space, config), new.root(space, config)) else {
        return;
    };
    let regime = space.regime();
    let moved = old.granule(space) != new.granule(space)
        || old.ds(regime) != new.ds(regime)
        || old.output_size(regime) != new.output_size(regime);
    if moved {
        report.add(Violation::at(
            Rule::FieldInUse,
            cpu,
            (from.context.base(), from.last()),
            "may read the tables with the wrong granule or descriptor format",
        ));
    }
}

/// Checks, when all tables are relied on, that no field that TLBs hold has changed since all of the
/// regime was invalidated. A change is reported once.
pub(crate) fn check_cached_fields(cpus: &mut Cpus, cpu: u32, report: &mut Report) {
    for changed in &mut cpus[cpu].field_changed {
        if let Some((event, _)) = changed.take() {
            let text = "may use register fields that its TLB holds from before (no TLBI)";
            report.add(Violation::at(Rule::CachedField, cpu, WHOLE, text).because_of(event));
        }
    }
}

/// Checks, when a range of addresses is relied on, that register writes are in effect. Returns
/// whether they are.
pub(crate) fn check_in_effect(
    (cpu, state): (u32, &Cpu),
    range: (u64, u64),
    report: &mut Report,
) -> bool {
    let Some(event) = state.unsynchronised else {
        return true;
    };
    let text = "may translate with register values from before (no ISB)";
    report.add(Violation::at(Rule::MissingIsb, cpu, range, text).because_of(event));
    false
}
