//! Faults that are planted in the kernel of a watched guest: single instructions of its functions become
//! NOPs in the guest's memory, so that a user sees what a forgotten one looks like, and whether it is noticed.
//!
//! The kernel is there when its first program runs: by then it has patched itself, and its list of
//! symbols has the addresses of its functions, wherever it was loaded. QEMU must translate what it executed
//! before anew, so the words are stored through its gdb server, while the machine stands still.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread::JoinHandle;

use granule_inspect::source::{Endpoint, qemu};
use granule_model::BarrierKind;
use granule_plugin::decode::{Instruction, decode};
use schemars::JsonSchema;
use serde::Serialize;

use super::command::Ram;
use crate::boot::qemu::option_with_path;
use crate::findings::Names;
use crate::json::{Hex, hex};

const NOP: u32 = 0xd503_201f;
/// The names of the options of DSB, by their numbers.
const DSB_OPTIONS: [&str; 16] = [
    "#0", "oshld", "oshst", "osh", "#4", "nshld", "nshst", "nsh", "#8", "ishld", "ishst", "ish",
    "#12", "ld", "st", "sy",
];

/// `FUNCTION:INSTRUCTION[:NUMBER]`: the NUMBERth such instruction in the functions of the name, or all of
/// them. INSTRUCTION is `tlbi`, `dsb`, `isb`, or one of them with its operation or option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    function: String,
    instruction: String,
    number: Option<usize>,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            "it is FUNCTION:tlbi, FUNCTION:dsb or FUNCTION:isb, also with an operation, and of several one by \
             its number, as in 'ptep_clear_flush:dsb ishst:1'"
                .to_owned()
        };
        let mut words = text.split(':');
        let function = words.next().unwrap_or_default();
        let instruction = words.next().unwrap_or_default();
        let number = words.next().map(str::parse::<usize>).transpose();
        let number = number.map_err(|_| refused())?;
        let kind = instruction.split(' ').next().unwrap_or_default();
        let is_known = matches!(kind, "tlbi" | "dsb" | "isb") && !function.is_empty();
        if !is_known || number == Some(0) || words.next().is_some() {
            return Err(refused());
        }
        Ok(Self {
            function: function.into(),
            instruction: instruction.into(),
            number,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.function, self.instruction)?;
        match self.number {
            Some(number) => write!(f, ":{number}"),
            None => Ok(()),
        }
    }
}

impl Fault {
    /// Whether an instruction is one of those that it leaves out.
    fn is(&self, instruction: &str) -> bool {
        let rest = instruction.strip_prefix(&self.instruction);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    }
}

/// An instruction that became a NOP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Planted {
    /// Place, as in `ptep_clear_flush+0x2c`.
    #[serde(rename = "name")]
    pub(super) place: String,
    /// Virtual address.
    #[serde(serialize_with = "hex")]
    #[schemars(with = "Hex")]
    pub(super) address: u64,
    /// The address without the kernel's randomisation.
    #[serde(serialize_with = "hex")]
    #[schemars(with = "Hex")]
    pub(super) linked: u64,
    /// The instruction in words.
    pub(super) instruction: String,
}

/// A TLBI, DSB or ISB in words.
fn instruction(word: u32) -> Option<String> {
    match decode(word)? {
        Instruction::Tlbi { op, .. } => Some(format!("tlbi {}", op.name()?)),
        Instruction::Barrier(one) => match one.kind {
            BarrierKind::Dsb => {
                let option = DSB_OPTIONS.get(usize::from(one.option))?;
                Some(format!("dsb {option}"))
            }
            BarrierKind::Isb => Some("isb".into()),
            _ => None,
        },
        _ => None,
    }
}

/// The places of a fault among the words of its function.
fn places(fault: &Fault, words: &[u32]) -> Result<Vec<(usize, String)>, String> {
    let all = words.iter().enumerate();
    let all = all.filter_map(|(at, word)| Some((at, instruction(*word)?)));
    let mut found: Vec<_> = all.filter(|(_, text)| fault.is(text)).collect();
    let count = found.len();
    if let Some(number) = fault.number {
        found = found.into_iter().skip(number - 1).take(1).collect();
    }
    if found.is_empty() {
        return Err(format!(
            "{fault}: the function has {count} of these instructions; a compiler may have put it into its \
             callers"
        ));
    }
    Ok(found)
}

/// The faults of a run, until they are planted.
pub(super) struct Planting {
    faults: Vec<Fault>,
    socket: Endpoint,
    thread: Option<JoinHandle<Result<Vec<Planted>, String>>>,
}

impl Planting {
    /// `folder` is where the socket of QEMU's gdb server will be.
    pub(super) fn new(faults: &[Fault], folder: &Path) -> Self {
        Self {
            faults: faults.to_vec(),
            socket: Endpoint::Unix(folder.join("gdb")),
            thread: None,
        }
    }

    /// The options of QEMU that it takes beside the user's.
    /// Fails with one line: the user has an option for the same.
    pub(super) fn options(&self, own: &[OsString]) -> Result<Vec<OsString>, String> {
        let Endpoint::Unix(path) = &self.socket else {
            return Ok(Vec::new());
        };
        if self.faults.is_empty() {
            return Ok(Vec::new());
        }
        let taken = |word: &&OsString| ["-s", "-gdb", "--gdb"].iter().any(|it| *word == it);
        if let Some(word) = own.iter().find(taken) {
            return Err(format!(
                "{}: --plant takes QEMU's gdb server for itself",
                word.display()
            ));
        }
        let mut value = option_with_path("unix:path=", path, ",");
        value.push("server=on,wait=off");
        Ok(vec!["-gdb".into(), value])
    }

    /// Whether there are faults, and the kernel was not there yet.
    pub(super) fn waits(&self) -> bool {
        !self.faults.is_empty() && self.thread.is_none()
    }

    /// Starts to plant: the kernel in the memory of `process` is there. Its events must be read meanwhile,
    /// since a machine does not stop while one of its CPUs waits for its reader.
    pub(super) fn begin(&mut self, process: u32, ram: &Ram, symbols: Option<&Path>) {
        let (faults, socket) = (self.faults.clone(), self.socket.clone());
        let (ram, symbols) = (ram.clone(), symbols.map(Path::to_path_buf));
        self.thread = Some(std::thread::spawn(move || {
            let mut names = Names::new(symbols.as_deref())?;
            names.guest(process, &ram.name, ram.base, ram.bytes);
            plant(&faults, &mut names, &socket)
        }));
    }

    /// The planted faults, once, or the line with the reason why there are none; `ended`: the guest has ended, and
    /// they are waited for.
    pub(super) fn done(&mut self, ended: bool) -> Option<Result<Vec<Planted>, String>> {
        if self.faults.is_empty() {
            return None;
        }
        let ready = |thread: &mut JoinHandle<_>| ended || thread.is_finished();
        match self.thread.take_if(ready) {
            Some(thread) => {
                self.faults.clear();
                let planted = thread.join();
                Some(planted.unwrap_or_else(|_| Err("--plant: it failed".into())))
            }
            None if ended => Some(Err(
                "--plant: the guest ran no program, so that nothing was planted".into(),
            )),
            None => None,
        }
    }
}

fn plant(faults: &[Fault], names: &mut Names, socket: &Endpoint) -> Result<Vec<Planted>, String> {
    let mut planted = Vec::new();
    let stores = || {
        let offset = names.kernel_offset()?;
        let mut stores = Vec::new();
        for fault in faults {
            let code = names
                .code(&fault.function)
                .map_err(|why| format!("{fault}: {why}"))?;
            let words: Vec<_> = code.words.iter().map(|(.., word)| *word).collect();
            for (at, instruction) in places(fault, &words)? {
                let Some(&(address, place, _)) = code.words.get(at) else {
                    continue;
                };
                let before = code.starts.iter().rev().find(|start| **start <= address);
                let bytes = address - before.unwrap_or(&address);
                planted.push(Planted {
                    place: format!("{}+{bytes:#x}", fault.function),
                    address,
                    linked: address.wrapping_sub(offset),
                    instruction,
                });
                stores.push((place, NOP));
            }
        }
        Ok(stores)
    };
    qemu::store(socket, stores).map_err(|why| format!("--plant: {why}"))?;
    Ok(planted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_function_a_kind_and_a_number() {
        for text in [
            "ptep_clear_flush:tlbi",
            "a.isra.0:dsb:2",
            "b:isb:1",
            "c:tlbi vale1is",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in [
            "",
            ":tlbi",
            "a",
            "a:dmb",
            "a:tlbi:0",
            "a:tlbi:x",
            "a:tlbi:1:1",
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains("ptep_clear_flush:dsb ishst:1"), "{error}");
        }
    }

    #[test]
    fn instructions_are_found_by_kind_and_number() {
        // NOP; DSB ISHST; TLBI VALE1IS, X0; DSB ISH; ISB; RET; TLBI VALE1IS, X1.
        let words = [
            NOP,
            0xd503_3a9f,
            0xd508_83a0,
            0xd503_3b9f,
            0xd503_3fdf,
            0xd65f_03c0,
            0xd508_83a1,
        ];
        let found = |text: &str| places(&text.parse().unwrap(), &words);
        let of = |at: usize, text: &str| (at, text.to_owned());
        assert_eq!(
            found("f:tlbi").unwrap(),
            [of(2, "tlbi vale1is"), of(6, "tlbi vale1is")]
        );
        assert_eq!(found("f:tlbi:2").unwrap(), [of(6, "tlbi vale1is")]);
        assert_eq!(found("f:dsb:1").unwrap(), [of(1, "dsb ishst")]);
        assert_eq!(found("f:dsb ish").unwrap(), [of(3, "dsb ish")]);
        assert_eq!(found("f:tlbi vale1is:1").unwrap(), [of(2, "tlbi vale1is")]);
        assert!(found("f:tlbi vale1").is_err());
        assert_eq!(found("f:isb").unwrap(), [of(4, "isb")]);
        let error = found("f:dsb:3").unwrap_err();
        assert!(error.contains("f:dsb:3: the function has 2"), "{error}");
    }

    #[test]
    fn a_run_without_a_program_is_reported() {
        let folder = Path::new("/f");
        let mut none = Planting::new(&[], folder);
        assert!(!none.waits() && none.options(&["-s".into()]).unwrap().is_empty());
        assert_eq!(none.done(true), None);
        let mut some = Planting::new(&["f:tlbi".parse().unwrap()], folder);
        assert!(some.waits());
        assert_eq!(
            some.options(&["-smp".into()]).unwrap(),
            ["-gdb", "unix:path=/f/gdb,server=on,wait=off"]
        );
        let error = some.options(&["-s".into()]).unwrap_err();
        assert!(error.starts_with("-s: --plant"), "{error}");
        assert_eq!(some.done(false), None);
        let error = some.done(true).unwrap().unwrap_err();
        assert!(error.contains("no program"), "{error}");
    }
}
