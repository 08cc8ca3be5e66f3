//! EFI's runtime services, with a variable of this file's own.
//!
//! `granule.test=efi-variables` counts what earlier boots stored in a variable, sets it, finds it among all
//! variables, and sets, changes and deletes another one. `granule.test=efi-reset` turns the machine off by
//! ResetSystem before the boot's end. `granule.test=efi-fault` calls broken services, of which the last turns all off.
//! `granule.test=efi-slow` has CPU 1 call this CPU while it is in a service that takes longer than calls may.

use crate::arch::cpu;
use crate::cpu::{ipi, jobs};
use crate::dev::console::{self, println};
use crate::efi::{
    self, Error, MOST_LETTERS, delete_variable, get_variable, name, next_variable, set_variable,
};
use crate::mm::kernel_tables;
use crate::percpu::PerCpu;
use crate::trace::recorder;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::parameters::Parameters;
use uefi_raw::{Guid, Status, guid};

/// The vendor of the variables.
const VENDOR: Guid = guid!("3c7d4bb2-4f33-4d2b-8f4e-0f8f1a6c2d11");
/// A number that each boot raises.
const BOOTS: [u16; 14] = name("GranuleBoots");
/// A text that is set, changed and deleted.
const GONE: [u16; 14] = name("GranuleGone");

/// Attributes of a variable: it outlives a reset, and is there before and after the boot services end. After
/// their end no others can be set (UEFI specification, SetVariable).
const ATTRIBUTES: u32 = 1 | 2 | 4;

/// Runs the tests that the command line asks for.
pub(super) fn run(parameters: &Parameters<'_>) {
    for test in parameters.test.tests() {
        match test {
            b"efi-variables" => match variables() {
                Ok(()) => {}
                Err(error) => panic!("granule.test=efi-variables: {error}"),
            },
            b"efi-reset" => reset(),
            b"efi-slow" => slow(),
            b"efi-fault" => {
                let ruins = match efi::ruins() {
                    Ok(ruins) => ruins,
                    Err(error) => panic!("granule.test=efi-fault: {error}"),
                };
                let fault = efi::fault();
                assert!(matches!(fault, Err(Error::Faulted)), "{fault:?}");
                let after = get_variable(&BOOTS, &VENDOR, &mut [0; 8]);
                assert!(matches!(after, Err(Error::Off)), "{after:?}");
                println!("@granule efi.faulted={}", ruins + 1);
            }
            _ => {}
        }
    }
}

fn variables() -> Result<(), Error> {
    let mut value = [0; 8];
    let boots = match get_variable(&BOOTS, &VENDOR, &mut value) {
        Ok((8, attributes)) => {
            assert_eq!(attributes, ATTRIBUTES);
            u64::from_le_bytes(value)
        }
        Ok(other) => panic!("the variable has another size: {other:?}"),
        Err(Error::Status(Status::NOT_FOUND)) => 0,
        Err(error) => return Err(error),
    };
    println!("@granule efi.boots_before={boots}");
    let next = (boots + 1).to_le_bytes();
    set_variable(&BOOTS, &VENDOR, ATTRIBUTES, &next)?;
    let read = get_variable(&BOOTS, &VENDOR, &mut value)?;
    assert_eq!((read, value), ((8, ATTRIBUTES), next));

    set_variable(&GONE, &VENDOR, ATTRIBUTES, b"one")?;
    set_variable(&GONE, &VENDOR, ATTRIBUTES, b"another")?;
    let mut text = [0; 16];
    let read = get_variable(&GONE, &VENDOR, &mut text)?;
    assert_eq!((read, &text[..7]), ((7, ATTRIBUTES), &b"another"[..]));
    // A place that is too small.
    let small = get_variable(&GONE, &VENDOR, &mut [0; 3]);
    let is_small = matches!(small, Err(Error::Status(Status::BUFFER_TOO_SMALL)));
    assert!(is_small, "{small:?}");
    let (all, ours) = count()?;
    assert_eq!(ours, 2, "of {all} variables");
    delete_variable(&GONE, &VENDOR)?;
    let gone = get_variable(&GONE, &VENDOR, &mut text);
    let is_gone = matches!(gone, Err(Error::Status(Status::NOT_FOUND)));
    assert!(is_gone, "{gone:?}");
    let after = count()?;
    assert_eq!(after, (all - 1, 1));
    println!("@granule efi.variables={}", after.0);
    Ok(())
}

/// The number of all variables, and of those of this file.
fn count() -> Result<(usize, usize), Error> {
    let (mut name, mut vendor) = ([0; MOST_LETTERS], Guid::ZERO);
    let (mut all, mut ours) = (0, 0);
    while next_variable(&mut name, &mut vendor)? {
        all += 1;
        let is = |own: &[u16]| name.starts_with(own);
        ours += usize::from(vendor == VENDOR && (is(&BOOTS[..13]) || is(&GONE[..12])));
        assert!(all < 10_000, "the list of variables does not end");
    }
    Ok((all, ours))
}

/// Seconds of the slow service: more than a call between CPUs may take.
const SLOW_S: u64 = 15;
/// Seconds that CPU 1 may take in all.
const PATIENCE_S: u64 = 60;

fn slow() {
    let call = |_: &'static PerCpu| {
        while !efi::has_begun() {
            cpu::relax();
        }
        ipi::call(CpuSet::one(0), &|_| ());
    };
    let answered = ipi::answered(0);
    let done = jobs::run_while(CpuSet::one(1), PATIENCE_S, &call, || efi::slow(SLOW_S));
    if let Err(error) = done {
        panic!("granule.test=efi-slow: {error}");
    }
    let answered = ipi::answered(0) - answered;
    println!("granule: test: calls answered after the slow service: {answered}");
}

fn reset() {
    println!("granule: test: ResetSystem turns the machine off");
    kernel_tables::hold(|| recorder::finish(true));
    console::flush();
    efi::shut_down();
    panic!("granule.test=efi-reset: ResetSystem returned");
}
