//! The benchmark of building the linear map: every strategy, with every page size, memory and
//! protection.

pub(crate) mod args;
pub mod report;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use self::args::Bench;
use super::args::RunArgs;
use super::series::{self, Benchmark};
use crate::request::{Barriers, LinearMap, PageSize, Request, Rodata};
use crate::result::Boot;
use crate::sizes::show_size;

/// A strategy for building the map, with its barriers where they are not the strategy's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    pub strategy: LinearMap,
    /// The barriers to request.
    pub barriers: Option<Barriers>,
}

impl Form {
    /// The barriers in effect.
    pub fn barriers(self) -> &'static str {
        self.barriers
            .unwrap_or_else(|| self.strategy.barriers())
            .word()
    }
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub page_size: PageSize,
    /// Bytes of RAM.
    pub memory: u64,
    /// The protection.
    pub rodata: Rodata,
    /// The strategy for building the map.
    pub form: Form,
}

/// A finished boot.
pub type Row = series::Row<Cell, ()>;
/// All finished boots.
pub type Done = series::Done<Cell, ()>;

impl Row {
    /// A number of the boot's linear map, such as `tlbi`.
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.boot
            .record
            .get(&format!("linear_map.{name}"))
            .and_then(Value::as_u64)
    }
}

impl Bench {
    /// Every strategy with each of the barriers that were requested. `direct` has no choice of barriers.
    fn forms(&self) -> Vec<Form> {
        let strategies = match self.strategy.as_slice() {
            [] => &LinearMap::ALL[..],
            some => some,
        };
        let mut forms = Vec::new();
        for &strategy in strategies {
            let own = Form {
                strategy,
                barriers: None,
            };
            if self.barriers.is_empty() || strategy == LinearMap::Direct {
                forms.push(own);
                continue;
            }
            forms.extend(self.barriers.iter().map(|&barriers| Form {
                barriers: Some(barriers),
                ..own
            }));
        }
        forms
    }
}

impl Benchmark for Bench {
    type Cell = Cell;
    type Files = ();
    type Figures = ();

    fn run_args(&self) -> &RunArgs {
        &self.on.run
    }

    fn cells(&self) -> Vec<Cell> {
        let forms = self.forms();
        let mut cells = Vec::new();
        for &page_size in &self.page_size {
            for &rodata in &self.rodata {
                for &memory in &self.memory {
                    cells.extend(forms.iter().map(|&form| Cell {
                        page_size,
                        memory,
                        rodata,
                        form,
                    }));
                }
            }
        }
        cells
    }

    fn check(&self) -> Result<(), String> {
        for cell in self.cells() {
            self.request(&cell).check()?;
        }
        self.on.open().map(drop)
    }

    fn name(cell: &Cell) -> String {
        format!(
            "{} pages, {}, {}",
            cell.page_size.word(),
            show_size(cell.memory),
            cell.form.strategy.word()
        )
    }

    /// About the number of instructions.
    fn weight(&self, cell: &Cell) -> u64 {
        // A boot by itself takes about as long as a few hundred thousand pages.
        const BOOT: u64 = 1 << 26;
        let each = match (cell.rodata, cell.form.strategy) {
            (Rodata::Off | Rodata::Noalias, _) => return BOOT,
            (_, LinearMap::Base) => 40,
            (_, LinearMap::Direct) => 2,
            _ => 14,
        };
        // The self-check's work for each leaf.
        const CHECKED: u64 = 40;
        BOOT + cell.memory / cell.page_size.bytes() * (each + CHECKED)
    }

    fn request(&self, cell: &Cell) -> Request {
        Request {
            page_size: Some(cell.page_size),
            va_bits: self.va_bits,
            memory: cell.memory,
            cpu: self.cpu.clone(),
            rodata: Some(cell.rodata),
            linear_map: Some(cell.form.strategy),
            linear_map_barriers: cell.form.barriers,
            ..self.on.request()
        }
    }

    fn figures(&self, cell: &Cell, (): &(), boot: &Boot) -> Result<(), String> {
        let requested = [
            ("page_size", cell.page_size.bytes().to_string()),
            ("linear_map.strategy", cell.form.strategy.word().to_owned()),
            ("linear_map.barriers", cell.form.barriers().to_owned()),
            ("linear_map.rodata", cell.rodata.word().to_owned()),
        ];
        let va_bits = self.va_bits.map(|bits| ("va_bits", bits.to_string()));
        for (key, expected) in requested.into_iter().chain(va_bits) {
            let took = match boot.record.get(key) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => "nothing".into(),
            };
            if took != expected {
                return Err(format!(
                    "{key}: {expected} was requested, the kernel took {took}"
                ));
            }
        }
        Ok(())
    }

    fn tables(&self, done: &Done) -> String {
        report::table(done)
    }

    fn remark(row: &Row) -> Option<String> {
        let why = row.boot.record.get("linear_map.not_counted")?;
        let why = why.as_str().unwrap_or_default();
        Some(format!("instructions not counted: {why}"))
    }

    fn json(&self, done: &Done) -> Value {
        report::json(self, done)
    }
}
