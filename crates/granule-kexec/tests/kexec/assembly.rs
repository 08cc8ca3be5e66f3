//! The relocation code's assembly, read as text and executed one instruction at a time.
//!
//! It supports only the instructions and directives that the text contains: any other is an error,
//! not a step. What an instruction does is from the architecture's manual.

use crate::machine::Cpu;
use granule::arch::registers::Tcr;
use granule_kexec::steps::{Begin, RelocationCpu};
use granule_kexec::{CODE_BYTES, ListHeader, START};
use granule_trace::{Barrier, System};
use std::collections::HashMap;
use std::mem::offset_of;

pub const TEXT: &str = include_str!("../../src/relocate.s");

/// Where the code before the jump to its own page is.
const TEXT_AT: u64 = 0xffff_ffff_8123_4000;

#[derive(Clone, Debug)]
pub struct Instruction {
    /// The line of the file, from 1.
    pub line: usize,
    pub text: String,
    name: String,
    operands: Vec<String>,
    /// In the page of its own, and where.
    moved: bool,
    offset: u64,
}

/// All of it, with labels.
#[derive(Clone, Debug)]
pub struct Program {
    pub instructions: Vec<Instruction>,
    /// Label to the index of what follows it; numbers more than once.
    labels: HashMap<String, Vec<usize>>,
    pub bytes: u64,
}

/// The numbers that stand in braces in the text.
const CONSTANTS: [(&str, u64); 19] = [
    ("flags", offset_of!(ListHeader, flags) as u64),
    ("distance", offset_of!(ListHeader, distance) as u64),
    ("ttbr1", offset_of!(ListHeader, ttbr1) as u64),
    ("entry", offset_of!(ListHeader, entry) as u64),
    ("code", offset_of!(ListHeader, code) as u64),
    ("tcr", offset_of!(ListHeader, tcr) as u64),
    ("sctlr_el2", offset_of!(ListHeader, sctlr_el2) as u64),
    ("epd0", Tcr::EPD0),
    ("epd1", Tcr::EPD1),
    ("uncached_bit", 0),
    ("el2_bit", 1),
    ("set_vectors", granule_kexec::SET_VECTORS),
    ("copy", 1),
    ("copy_bit", 0),
    ("clean_bit", 1),
    ("link_bit", 2),
    ("most_line", 1024),
    ("start", START),
    ("code_bytes", CODE_BYTES as u64),
];

fn with_constants(line: &str) -> String {
    CONSTANTS
        .iter()
        .fold(line.to_owned(), |line, (name, value)| {
            line.replace(&format!("{{{name}}}"), &value.to_string())
        })
}

impl Program {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines: Vec<(usize, String)> = Vec::new();
        let mut repeated: Option<(usize, Vec<(usize, String)>)> = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default().trim();
            let line = with_constants(line);
            if line.contains('{') {
                return Err(format!("no such constant: {line}"));
            }
            if line.is_empty() {
                continue;
            }
            if let Some(times) = line.strip_prefix(".rept") {
                let times = times.trim().parse().map_err(|_| line.clone())?;
                repeated = Some((times, Vec::new()));
            } else if line == ".endr" {
                let (times, body) = repeated.take().ok_or("endr")?;
                (0..times).for_each(|_| lines.extend(body.iter().cloned()));
            } else if let Some((_, body)) = &mut repeated {
                body.push((number + 1, line));
            } else {
                lines.push((number + 1, line));
            }
        }
        let mut program = Self {
            instructions: Vec::new(),
            labels: HashMap::new(),
            bytes: 0,
        };
        let (mut moved, mut offset) = (false, 0u64);
        for (number, mut line) in lines {
            if let Some((label, rest)) = line.split_once(':') {
                let next = program.instructions.len();
                if label == "granule_kexec_code" && offset != 0 {
                    return Err("the moved code does not begin its section".into());
                }
                let known = program.labels.entry(label.to_owned()).or_default();
                known.push(next);
                line = rest.trim().to_owned();
                if line.is_empty() {
                    continue;
                }
            }
            let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
            let rest = rest.trim();
            match name {
                ".section" => {
                    moved = rest.contains("granule_kexec_code");
                    offset = 0;
                }
                ".global" => {}
                ".balign" => {
                    let to = rest.parse().map_err(|_| line.clone())?;
                    offset = offset.next_multiple_of(to);
                }
                ".org" => {
                    let to = rest.strip_prefix("granule_kexec_code +").ok_or(rest)?;
                    let to: u64 = to.trim().parse().map_err(|_| line.clone())?;
                    if to < offset {
                        return Err(format!("line {number}: {offset} bytes already"));
                    }
                    offset = to;
                }
                _ if name.starts_with('.') => return Err(format!("line {number}: {line}")),
                _ => {
                    program.instructions.push(Instruction {
                        line: number,
                        text: line.clone(),
                        name: name.to_owned(),
                        operands: operands(rest),
                        moved,
                        offset,
                    });
                    offset += 4;
                }
            }
            if moved {
                program.bytes = offset;
            }
        }
        Ok(program)
    }

    /// The same without one instruction.
    pub fn without(&self, index: usize) -> Self {
        let mut program = self.clone();
        // In its place one that does nothing, so that nothing moves.
        program.instructions[index].name = "nop".into();
        program
    }

    /// The instruction that a label means where it stands as an operand at `from`.
    fn target(&self, label: &str, from: usize) -> Result<usize, String> {
        let digits = label.trim_end_matches(['f', 'b']);
        let all = if label.starts_with(|first: char| first.is_ascii_digit()) {
            &self.labels[digits]
        } else {
            self.labels.get(label).ok_or_else(|| label.to_owned())?
        };
        let found = if label.ends_with('f') && digits != label && digits.parse::<u64>().is_ok() {
            all.iter().find(|at| **at > from)
        } else if digits != label && digits.parse::<u64>().is_ok() {
            all.iter().rev().find(|at| **at <= from)
        } else {
            all.first()
        };
        found.copied().ok_or_else(|| label.to_owned())
    }
}

/// Split at commas, but not within brackets.
fn operands(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let (mut depth, mut one) = (0, String::new());
    for letter in text.chars() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(std::mem::take(&mut one).trim().to_owned());
                continue;
            }
            _ => {}
        }
        one.push(letter);
    }
    if !one.trim().is_empty() {
        all.push(one.trim().to_owned());
    }
    all
}

/// One execution.
pub struct Run<'a> {
    program: &'a Program,
    cpu: &'a mut Cpu,
    x: [u64; 31],
    /// Z and C.
    zero: bool,
    carry: bool,
    /// Where the moved code is.
    page: u64,
    vectors_set: bool,
    el2: bool,
    /// Instructions executed, with those before the jump.
    pub executed: u64,
    /// More are not: it does not end.
    pub most: u64,
}

impl<'a> Run<'a> {
    pub fn new(program: &'a Program, cpu: &'a mut Cpu, page: u64) -> Self {
        Self {
            program,
            cpu,
            // Garbage, so that nothing relies on what registers hold.
            x: std::array::from_fn(|index| (index as u64 + 3).wrapping_mul(0xdead_0000_0000_0001)),
            zero: false,
            carry: true,
            page,
            vectors_set: false,
            el2: false,
            executed: 0,
            most: 2_000_000,
        }
    }

    fn get(&self, name: &str) -> Result<u64, String> {
        if name == "xzr" {
            return Ok(0);
        }
        if let Some(number) = name.strip_prefix('#') {
            return match number.strip_prefix('-') {
                Some(number) => number.parse::<u64>().map(u64::wrapping_neg),
                None => number.parse(),
            }
            .map_err(|_| name.to_owned());
        }
        Ok(self.x[register(name)?])
    }

    fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        self.x[register(name)?] = value;
        Ok(())
    }

    /// The address of an operand in brackets, with what is done to the base before or after.
    fn address(&mut self, operands: &[String]) -> Result<u64, String> {
        let inside = &operands[0];
        let before = inside.ends_with('!');
        let inside = inside.trim_start_matches('[').trim_end_matches(['!', ']']);
        let (base, offset) = inside.split_once(',').unwrap_or((inside, "#0"));
        let offset = self.get(offset.trim())?;
        let from = self.get(base)?;
        let address = from.wrapping_add(offset);
        if before {
            self.set(base, address)?;
        }
        if let Some(after) = operands.get(1) {
            let after = self.get(after)?;
            self.set(base, from.wrapping_add(after))?;
        }
        Ok(address)
    }

    fn place(&self, index: usize) -> u64 {
        let one = &self.program.instructions[index];
        let base = if one.moved { self.page } else { TEXT_AT };
        base + one.offset
    }

    /// The instruction at an address in the moved code.
    fn at(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.page)?;
        let all = &self.program.instructions;
        all.iter().position(|one| one.moved && one.offset == offset)
    }

    /// From the first instruction to the jump out of it.
    pub fn execute(&mut self, header: u64) -> Result<Begin, String> {
        self.x[0] = header;
        let mut pc = self.program.target("granule_kexec_leave", 0)?;
        while self.executed < self.most {
            self.executed += 1;
            let one = self.program.instructions.get(pc).ok_or("ran off the end")?;
            let next = self.step(pc, one);
            match next.map_err(|why| format!("line {}: {}: {why}", one.line, one.text))? {
                Next::Following => pc += 1,
                Next::At(index) => pc = index,
                Next::Begin(begin) => return Ok(begin),
            }
        }
        Err("does not end".into())
    }

    fn step(&mut self, pc: usize, one: &Instruction) -> Result<Next, String> {
        let o: Vec<&str> = one.operands.iter().map(String::as_str).collect();
        let jump = |yes: bool, to: usize| if yes { Next::At(to) } else { Next::Following };
        // Whatever it is called: a load or store of another kind would be counted too.
        if o.iter().any(|operand| operand.starts_with('[')) {
            self.cpu.accesses_memory();
        }
        match one.name.as_str() {
            "nop" => {}
            "ldp" => {
                let at = self.address(&one.operands[2..])?;
                let first = self.cpu.load(at);
                let second = self.cpu.load(at.wrapping_add(8));
                self.set(o[0], first)?;
                self.set(o[1], second)?;
            }
            "ldr" => {
                let at = self.address(&one.operands[1..])?;
                let value = self.cpu.load(at);
                self.set(o[0], value)?;
            }
            "stp" => {
                let (first, second) = (self.get(o[0])?, self.get(o[1])?);
                let at = self.address(&one.operands[2..])?;
                self.cpu.store(at, first);
                self.cpu.store(at.wrapping_add(8), second);
            }
            "mrs" => {
                let value = match o[1] {
                    "tcr_el1" => self.cpu.tcr(),
                    // Bits 19:16, among others that are set.
                    "ctr_el0" => 0x8444_c004 & !(15 << 16) | u64::from(self.cpu.line) << 16,
                    other => return Err(other.to_owned()),
                };
                self.set(o[0], value)?;
            }
            "msr" => {
                let value = self.get(o[1])?;
                match o[0] {
                    "daifset" if value == 15 => self.cpu.mask(),
                    "vbar_el1" => self.cpu.vectors(value),
                    "sctlr_el2" => self.cpu.sctlr_el2(value),
                    name => {
                        let known = System::NAMED
                            .iter()
                            .find(|(it, text)| *text == name && it.op0() == 3);
                        let (system, _) = known.ok_or(name)?;
                        self.cpu.system(*system, value);
                    }
                }
            }
            "tlbi" | "dc" | "ic" => {
                let known = System::NAMED
                    .iter()
                    .find(|(it, text)| *text == o[0] && it.op0() == 1);
                let (system, _) = known.ok_or(o[0])?;
                let operand = o.get(1).map_or(Ok(0), |name| self.get(name))?;
                self.cpu.system(*system, operand);
            }
            "dsb" => self.cpu.barrier(match o[0] {
                "sy" => Barrier::DSB_SY,
                "nsh" => Barrier::DSB_NSH,
                other => return Err(other.to_owned()),
            }),
            "dmb" if o[0] == "sy" => self.cpu.barrier(Barrier::DMB_SY),
            "isb" => self.cpu.barrier(Barrier::ISB),
            "adr" => {
                let to = self.program.target(o[1], pc)?;
                let to = self.place(to);
                self.set(o[0], to)?;
            }
            "mov" => {
                let value = self.get(o[1])?;
                self.set(o[0], value)?;
            }
            "orr" | "add" | "sub" | "subs" | "lsl" => {
                let (a, b) = (self.get(o[1])?, self.get(o[2])?);
                let value = match one.name.as_str() {
                    "orr" => a | b,
                    "add" => a.wrapping_add(b),
                    "lsl" => a << (b & 63),
                    _ => a.wrapping_sub(b),
                };
                if one.name == "subs" {
                    (self.zero, self.carry) = (value == 0, a >= b);
                }
                self.set(o[0], value)?;
            }
            "cmp" => {
                let (a, b) = (self.get(o[0])?, self.get(o[1])?);
                (self.zero, self.carry) = (a == b, a >= b);
            }
            "csel" if o[3] == "lo" => {
                let value = self.get(if self.carry { o[2] } else { o[1] })?;
                self.set(o[0], value)?;
            }
            "ubfx" => {
                let (low, bits) = (self.get(o[2])?, self.get(o[3])?);
                let value = self.get(o[1])? >> low & ((1 << bits) - 1);
                self.set(o[0], value)?;
            }
            "b" => return Ok(Next::At(self.program.target(o[0], pc)?)),
            "b.ne" => return Ok(jump(!self.zero, self.program.target(o[0], pc)?)),
            "b.lo" => return Ok(jump(!self.carry, self.program.target(o[0], pc)?)),
            "cbz" => return Ok(jump(self.get(o[0])? == 0, self.program.target(o[1], pc)?)),
            "tbz" | "tbnz" => {
                let set = self.get(o[0])? >> self.get(o[1])? & 1 == 1;
                let to = self.program.target(o[2], pc)?;
                return Ok(jump(set == (one.name == "tbnz"), to));
            }
            "bl" => {
                self.x[30] = self.place(pc) + 4;
                return Ok(Next::At(self.program.target(o[0], pc)?));
            }
            "ret" => return Ok(Next::At(self.at(self.x[30]).ok_or("ret")?)),
            "br" => {
                let to = self.get(o[0])?;
                let inside = self.at(to);
                if one.moved
                    && let Some(index) = inside
                {
                    return Ok(Next::At(index));
                }
                self.cpu.branch(to);
                let begin = Begin {
                    address: to,
                    arguments: [self.x[0], self.x[1], self.x[2], self.x[3]],
                    el2: self.el2,
                };
                return Ok(inside.map_or(Next::Begin(begin), Next::At));
            }
            "hvc" if !self.vectors_set => {
                self.cpu.set_el2_vectors(self.x[0], self.x[1]);
                self.vectors_set = self.x[0] == 0 && self.x[1] == self.page;
                // All other registers are kept.
                self.x[0] = 0;
            }
            "hvc" => {
                self.cpu.enter_el2();
                self.el2 = true;
                // A synchronous exception from a lower level.
                return Ok(Next::At(self.at(self.page + 0x400).ok_or("no vector")?));
            }
            "wfi" => return Err("stopped".into()),
            other => return Err(format!("{other} is not known")),
        }
        Ok(Next::Following)
    }
}

enum Next {
    Following,
    At(usize),
    Begin(Begin),
}

/// x0 to x30.
fn register(name: &str) -> Result<usize, String> {
    let number = name
        .strip_prefix('x')
        .and_then(|number| number.parse().ok());
    number
        .filter(|number| *number < 31)
        .ok_or_else(|| name.to_owned())
}
