//! The functions of a system, so that findings name them: of a file of symbols, of a Linux in a guest's
//! memory, or of a trace. Nothing here depends on a rule.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::path::Path;

use granule::arch::PhysicalAddress;
use granule_inspect::linux::{self, SymbolPlace, Symbols};
use granule_inspect::running::{Described, Fit, running};
use granule_inspect::source::bytes::DumpFile;
use granule_inspect::source::{Memory, raw};
use granule_inspect::vmcoreinfo::{self, Vmcoreinfo};
use granule_model::trace::Function;

/// The most times that the guest's memory is read for the functions of modules that came later.
const MOST_READS: u32 = 16;

/// The functions of a system.
#[derive(Default)]
pub(crate) struct Names {
    /// The text of --symbols.
    file: Option<String>,
    /// The guest's memory, once it runs, and the end of it.
    memory: Option<(Box<dyn Memory>, u64)>,
    /// The VMCOREINFO of the Linux in it.
    info: Option<String>,
    symbols: Symbols,
    reads: u32,
    notes: Vec<String>,
}

/// The code of functions.
pub(crate) struct Code {
    /// The virtual and the physical address of each word, and the word.
    pub(crate) words: Vec<(u64, PhysicalAddress, u32)>,
    /// The first address of each function, in order.
    pub(crate) starts: Vec<u64>,
}

impl Names {
    /// Functions of this file of symbols, or of a Linux that will run.
    pub(crate) fn new(file: Option<&Path>) -> Result<Self, String> {
        let mut names = Self::default();
        if let Some(path) = file {
            let failed = |why: &str| format!("--symbols {}: {why}", path.display());
            let text = fs::read_to_string(path).map_err(|error| failed(&error.to_string()))?;
            names.symbols = Symbols::linked(&text);
            if names.symbols.is_empty() {
                return Err(failed(
                    "no line is `ADDRESS TYPE NAME` of a function, as System.map and nm have them",
                ));
            }
            names.file = Some(text);
        }
        Ok(names)
    }

    /// The guest's memory is in a file that this process has open.
    pub(crate) fn guest(&mut self, process: u32, name: &str, base: u64, bytes: u64) {
        let end = base.saturating_add(bytes);
        self.memory = memory_file(process, name)
            .and_then(|file| DumpFile::new(file).ok())
            .map(|file| (raw::open(file, base).0, end));
    }

    /// Adds functions that a trace names.
    pub(crate) fn add(&mut self, functions: impl IntoIterator<Item = Function>) {
        let functions = functions
            .into_iter()
            .map(|it| (it.start, it.bytes, it.name, it.module));
        self.symbols.add(Symbols::of_functions(functions));
    }

    /// The functions of these instructions, each once, at the addresses where the instructions are.
    pub(crate) fn functions(&mut self, mut places: Vec<u64>) -> Vec<Function> {
        places.sort_unstable();
        let unknown = places.iter().copied().find(|pc| self.found(*pc).is_none());
        if let Some(pc) = unknown {
            self.look_up(pc);
        }
        let of = |pc| {
            let place = self.found(pc)?;
            Some(Function {
                start: pc.checked_sub(place.offset)?,
                bytes: place.bytes,
                name: place.function.to_owned(),
                module: place.module.map(str::to_owned),
            })
        };
        let mut functions: Vec<_> = places.into_iter().filter_map(of).collect();
        functions.dedup();
        functions
    }

    /// Looks for the function of an instruction in the guest, if none is known: modules come and go.
    pub(crate) fn look_up(&mut self, pc: u64) {
        if self.place(pc).is_none() && self.reads < MOST_READS {
            self.reads += 1;
            self.read(Some(pc));
        }
    }

    /// Reads the functions of the Linux in the guest's memory whose tables map `pc`; what is known stays if there is
    /// none.
    fn read(&mut self, pc: Option<u64>) {
        if let Some(line) = self.describe(pc) {
            self.notes = vec![line];
            return;
        }
        let Some((memory, end)) = &self.memory else {
            return;
        };
        let Some(info) = self.info.as_deref().map(Vmcoreinfo) else {
            let why = "no Linux in the guest's memory describes itself yet (VMCOREINFO): --symbols FILE \
                       names functions";
            if self.file.is_none() {
                self.notes = vec![why.into()];
            }
            return;
        };
        let read = info
            .kernel(*end)
            .and_then(|kernel| Symbols::of_linux(&**memory, &kernel, info, self.file.as_deref()));
        match read {
            Ok((symbols, notes)) => {
                self.symbols.add(symbols);
                self.notes = notes;
            }
            Err(why) => self.notes = vec![why],
        }
    }

    /// Looks for the VMCOREINFO of the Linux in the guest's memory whose tables map `pc`: a kernel that left by kexec
    /// is another one than that which came. Returns why none is known.
    fn describe(&mut self, pc: Option<u64>) -> Option<String> {
        let (memory, end) = self.memory.as_ref()?;
        let pcs: Vec<u64> = pc.into_iter().filter(|pc| pc >> 63 != 0).collect();
        let kernel = |(place, text): (PhysicalAddress, String)| {
            let tree = Vmcoreinfo(&text).kernel(*end).ok()?;
            Some(Described {
                place: Some(place),
                text,
                tree,
            })
        };
        let known = self
            .info
            .clone()
            .and_then(|text| kernel((PhysicalAddress(0), text)));
        let refuted = |kernel: Described| matches!(kernel.fit(&**memory, &pcs), Fit::Refuted(_));
        if !known.is_none_or(refuted) {
            return None;
        }
        let kernels = vmcoreinfo::find(&**memory, &mut |_| ());
        let kernels = kernels.into_iter().filter_map(kernel).collect();
        let (kernel, line) = running(&**memory, kernels, &pcs);
        self.info = kernel.map(|kernel| kernel.text).or(self.info.take());
        line.filter(|_| self.info.is_none())
    }

    /// The addresses that the Linux in the guest's memory has for vmalloc and modules, if it names them.
    pub(crate) fn vmalloc(&mut self) -> Option<(u64, u64)> {
        let _ = self.describe(None);
        let info = Vmcoreinfo(self.info.as_deref()?);
        let (start, end) = (info.number("VMALLOC_START")?, info.number("VMALLOC_END")?);
        let first = info
            .number("MODULES_VADDR")
            .map_or(start, |modules| modules.min(start));
        (first < end).then(|| (first, end - 1))
    }

    /// The code of the functions of a name in the Linux in the guest's memory, those at low addresses first.
    pub(crate) fn code(&mut self, function: &str) -> Result<Code, String> {
        if self.symbols.named(function).next().is_none() {
            self.read(None);
        }
        let (Some((memory, end)), Some(info)) = (&self.memory, &self.info) else {
            return Err("there is no Linux in the guest's memory".into());
        };
        let kernel = Vmcoreinfo(info).kernel(*end)?;
        let mut code = Code {
            words: Vec::new(),
            starts: Vec::new(),
        };
        for (start, bytes) in self.symbols.named(function) {
            let words = linux::code(&**memory, &kernel, start, bytes)?;
            let places = (start..).step_by(4);
            code.words.extend(
                places
                    .zip(words)
                    .map(|(va, (place, word))| (va, place, word)),
            );
            code.starts.push(start);
        }
        if code.starts.is_empty() {
            let notes = self.notes.join("; ");
            return Err(format!("the kernel has no function {function}; {notes}"));
        }
        Ok(code)
    }

    /// Returns the distance of the Linux in the guest's memory from the addresses that it was linked for.
    pub(crate) fn kernel_offset(&mut self) -> Result<u64, String> {
        if self.info.is_none() {
            self.read(None);
        }
        let info = self.info.as_deref().map(Vmcoreinfo);
        let offset = info.and_then(|info| info.get("KERNELOFFSET"));
        offset
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .ok_or_else(|| "there is no Linux with a KERNELOFFSET in the guest's memory".into())
    }

    /// The function and the place in it.
    pub(crate) fn place(&self, pc: u64) -> Option<(&str, String)> {
        let place = self.found(pc)?;
        Some((place.function, place.to_string()))
    }

    fn found(&self, pc: u64) -> Option<SymbolPlace<'_>> {
        // Before the MMU is on, and in the identity map, code runs at its physical address.
        self.symbols.place(pc).or_else(|| {
            let offset = Vmcoreinfo(self.info.as_deref()?).number("kimage_voffset")?;
            self.symbols.place(pc.wrapping_add(offset))
        })
    }

    /// Why functions are not named, a line each.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The file that a process has open under this name or a part of it, which is not a path of its own if
/// it is a memory file.
fn memory_file(process: u32, name: &str) -> Option<File> {
    let folder = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let named = |link: &Path| {
        let target = fs::read_link(link).unwrap_or_default();
        target.to_string_lossy().contains(name)
    };
    let links = folder.filter_map(|entry| Some(entry.ok()?.path()));
    links
        .filter(|link| link.file_name() != Some(OsStr::new("")) && named(link))
        .find_map(|link| OpenOptions::new().read(true).open(link).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::linux::{BASE, FUNCTION, MODULE_FUNCTION, VIRTUAL, memory, vmcoreinfo};
    use std::io::Write as _;

    /// The memory of a Linux, with its VMCOREINFO in a page of its own, in a file.
    fn guest() -> (tempfile::NamedTempFile, u64) {
        let mut bytes = memory();
        bytes.extend(vmcoreinfo().bytes());
        bytes.resize(bytes.len().next_multiple_of(0x1000), 0);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        (file, bytes.len() as u64)
    }

    #[test]
    fn functions_are_found_in_the_memory_of_a_process() {
        let (file, bytes) = guest();
        let mut names = Names::new(None).unwrap();
        names.look_up(FUNCTION.0);
        assert_eq!(names.place(FUNCTION.0), None);
        // The process has the file open: it is this one.
        let name = file.path().to_str().unwrap();
        names.guest(std::process::id(), name, BASE, bytes);
        names.look_up(MODULE_FUNCTION.0);
        let place = |pc| names.place(pc).map(|(_, place)| place);
        assert_eq!(place(FUNCTION.0 + 4).as_deref(), Some("do_fault+0x4"));
        assert_eq!(
            place(MODULE_FUNCTION.0).as_deref(),
            Some("act+0x0 [a_module]")
        );
        // At its physical address.
        let physical = FUNCTION.0 + 4 - VIRTUAL + BASE;
        assert_eq!(place(physical).as_deref(), Some("do_fault+0x4"));
        assert_eq!(place(0x10), None);
        assert!(names.notes().is_empty(), "{:?}", names.notes());
        // And a trace has them, at both addresses, for whoever has no such memory.
        let functions = names.functions(vec![0x10, FUNCTION.0 + 4, physical, FUNCTION.0 + 8]);
        assert_eq!(functions.len(), 2, "{functions:?}");
        let mut others = Names::default();
        others.add(functions);
        for pc in [FUNCTION.0 + 4, physical, 0x10] {
            assert_eq!(others.place(pc), names.place(pc), "{pc:#x}");
        }
    }

    #[test]
    fn a_function_that_begins_below_all_memory_is_none() {
        let mut names = Names {
            info: Some("NUMBER(kimage_voffset)=0x1800\n".into()),
            ..Names::default()
        };
        names.add([Function {
            start: 0x1000,
            bytes: 0x2000,
            name: "long".into(),
            module: None,
        }]);
        assert_eq!(names.functions(vec![0x10]), []);
    }

    #[test]
    fn code_is_read_by_the_name_of_its_function() {
        let (file, bytes) = guest();
        let mut names = Names::new(None).unwrap();
        assert!(names.code("do_fault").is_err());
        let name = file.path().to_str().unwrap();
        names.guest(std::process::id(), name, BASE, bytes);
        let code = names.code("do_fault").unwrap();
        assert_eq!(code.starts, [FUNCTION.0]);
        let memory = memory();
        let at = (FUNCTION.0 - VIRTUAL) as usize;
        let expected = memory[at..at + FUNCTION.1 as usize]
            .as_chunks::<4>()
            .0
            .iter()
            .zip((0..).step_by(4))
            .map(|(word, by)| {
                let place = PhysicalAddress(BASE + at as u64 + by);
                (FUNCTION.0 + by, place, u32::from_le_bytes(*word))
            });
        assert!(code.words.into_iter().eq(expected));
        // The module's code is not in this memory.
        let error = names.code("act").err().unwrap();
        assert!(error.contains("no memory at"), "{error}");
        let error = names.code("no_such").err().unwrap();
        assert!(error.contains("no function no_such"), "{error}");
        assert_eq!(names.kernel_offset(), Ok(0x1_2000));
    }

    #[test]
    fn a_guest_without_vmcoreinfo_is_a_note() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 0x3000]).unwrap();
        let mut names = Names::new(None).unwrap();
        names.guest(
            std::process::id(),
            file.path().to_str().unwrap(),
            BASE,
            0x3000,
        );
        names.look_up(FUNCTION.0);
        assert_eq!(names.notes().len(), 1);
        assert!(
            names.notes()[0].contains("--symbols"),
            "{:?}",
            names.notes()
        );
    }

    #[test]
    fn a_file_of_symbols_serves_a_guest_without_linux() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0000000000001000 T start\n0000000000001040 T after\n")
            .unwrap();
        let names = Names::new(Some(file.path())).unwrap();
        assert_eq!(names.place(0x1004), Some(("start", "start+0x4".into())));
        let empty = tempfile::NamedTempFile::new().unwrap();
        let error = Names::new(Some(empty.path())).err().unwrap();
        assert!(
            error.contains("no line is") && !error.contains('\n'),
            "{error}"
        );
        assert!(Names::new(Some(Path::new("/nowhere"))).is_err());
    }
}
