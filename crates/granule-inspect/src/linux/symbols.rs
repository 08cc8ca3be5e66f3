//! The functions of a kernel and of its modules by address. Where each list comes from is in
//! [`super::kallsyms`], [`super::system_map`] and [`super::modules`].

use super::btf::Btf;
use super::kallsyms::List;
use super::space::Space;
use super::symbol::Symbol;
use super::{modules, system_map};
use crate::source::Memory;
use crate::tree::Tree;
use crate::vmcoreinfo::Vmcoreinfo;
use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// In the order of their addresses.
    all: Vec<Symbol>,
}

/// The place of an instruction: `ptep_clear_flush+0x2c`, or `ext4_sync_fs+0x10 [ext4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolPlace<'a> {
    pub function: &'a str,
    /// The module that has the function; `None` for the kernel itself.
    pub module: Option<&'a str>,
    /// The bytes from the function's begin.
    pub offset: u64,
    pub bytes: u64,
}

impl Symbols {
    /// The functions of a running Linux, with lines for what cannot be read. `info` is its
    /// VMCOREINFO and `kernel` its tree ([`Vmcoreinfo::kernel`]); `file` is the text of its
    /// System.map, without which its own list of symbols is read.
    /// An error is one line: why no symbols of the kernel itself are to be had.
    pub fn of_linux(
        memory: &dyn Memory,
        kernel: &Tree,
        info: Vmcoreinfo<'_>,
        file: Option<&str>,
    ) -> Result<(Self, Vec<String>), String> {
        let space = Space::new(memory, kernel).ok_or("the kernel's tree is not of stage 1")?;
        let wanted = ["modules", "__start_BTF", "__stop_BTF"];
        let mut symbols = Self::default();
        let [list, types, types_end] = match file {
            Some(file) => {
                let by = system_map::moved(file, info)?;
                symbols
                    .add_kernel(system_map::lines(file).map(|(address, kind, name)| {
                        (address.wrapping_add(by), kind, name.into())
                    }));
                system_map::find(file, info, wanted)?
            }
            None => {
                let list = List::read(&space, info)?;
                symbols.add_kernel(list.named());
                list.find(wanted)
            }
        };
        let mut notes = Vec::new();
        let mut modules = || -> Result<(), String> {
            let list = list.ok_or("its list of symbols has no modules")?;
            let types = Btf::read(&space, types, types_end)?;
            modules::read(&space, &types, list, &mut symbols.all, &mut notes)
        };
        if let Err(why) = modules() {
            notes.push(format!("the functions of modules are not known: {why}"));
        }
        symbols.all.sort_by_key(|symbol| symbol.start);
        Ok((symbols, notes))
    }

    /// The functions of a program that runs where it was linked: lines `ADDRESS TYPE NAME`, which
    /// `nm` prints.
    pub fn linked(file: &str) -> Self {
        let mut symbols = Self::default();
        let lines = system_map::lines(file);
        symbols.add_kernel(lines.map(|(address, kind, name)| (address, kind, name.into())));
        symbols.all.sort_by_key(|symbol| symbol.start);
        symbols
    }

    /// Functions that somebody else knew: the first address and the size, the name, and the module of each.
    pub fn of_functions(
        functions: impl Iterator<Item = (u64, u64, String, Option<String>)>,
    ) -> Self {
        let mut symbols = Self::default();
        symbols
            .all
            .extend(functions.map(|(start, bytes, name, module)| Symbol {
                start,
                end: start.saturating_add(bytes),
                name,
                module,
            }));
        symbols.all.sort_by_key(|symbol| symbol.start);
        symbols
    }

    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds functions that were read later. Those that are known already stay: their modules may be gone.
    pub fn add(&mut self, later: Self) {
        self.all.extend(later.all);
        self.all.sort_by_key(|symbol| symbol.start);
        self.all.dedup();
    }

    /// The function that has the instruction at `address`.
    pub fn place(&self, address: u64) -> Option<SymbolPlace<'_>> {
        let after = self.all.partition_point(|symbol| symbol.start <= address);
        // Of several names for one address the first counts, as the kernel's own backtraces have it.
        let start = self.all.get(after.checked_sub(1)?)?.start;
        let first = self.all.partition_point(|symbol| symbol.start < start);
        let symbol = self.all.get(first)?;
        (address < symbol.end).then_some(SymbolPlace {
            function: &symbol.name,
            module: symbol.module.as_deref(),
            offset: address - start,
            bytes: symbol.end - start,
        })
    }

    /// The functions of this name, or of this name and a compiler's ending (`name.isra.0`): the first address
    /// and the size of each. Several files may have a function of their own with one name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
        let is = move |symbol: &&Symbol| {
            let rest = symbol.name.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = self.all.iter().filter(is);
        found.map(|symbol| (symbol.start, symbol.end - symbol.start))
    }

    /// Adds the symbols of code. A symbol of data ends the function before it, and the last symbol has no
    /// end that is known, so it is left out.
    fn add_kernel(&mut self, symbols: impl Iterator<Item = (u64, char, String)>) {
        let mut sorted: Vec<_> = symbols
            // Absolute values and offsets in a CPU's own data are not addresses of the kernel.
            .filter(|(address, kind, _)| *kind != 'A' && *kind != 'a' && *address != 0)
            .collect();
        sorted.sort_by_key(|(address, ..)| *address);
        let mut ends = sorted.iter().map(|(address, ..)| *address).peekable();
        let mut found = Vec::new();
        for (address, kind, name) in &sorted {
            while ends.next_if(|end| end <= address).is_some() {}
            // $x and $d mark code and data for disassemblers; Linux puts a prefix before those of the code
            // that runs before it is relocated.
            let mark = name.trim_start_matches("__pi_").starts_with('$');
            let code = matches!(kind, 't' | 'T' | 'w' | 'W' | 'i') && !mark;
            if let (true, Some(&end)) = (code, ends.peek()) {
                found.push(Symbol {
                    start: *address,
                    end,
                    name: name.clone(),
                    module: None,
                });
            }
        }
        self.all.extend(found);
    }
}

impl fmt::Display for SymbolPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.function, self.offset)?;
        match self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}
