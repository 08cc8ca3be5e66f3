//! The plugin for `granule bench tlb`: every executed block, load and store calls back, and goes to
//! a [`Collector`].
//!
//! It supports machines with one CPU, so the lock is never contended.

use super::api::{Api, LOADS_AND_STORES};
use super::callback::{self, Callbacks, Translation};
use super::handle::{Access, CpuThread, TranslatedBlock};
use super::ram::Ram;
use super::{KEPT, SMALLEST_ZERO, THIS, lock};
use crate::accesses::{AccessKind, Block, Collector};
use crate::decode::{self, Instruction};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};

struct Accesses {
    api: Api,
    ram: (String, u64, u64),
    stream: Mutex<Option<UnixStream>>,
    collector: OnceLock<Mutex<Collector<Ram>>>,
    sites: Mutex<Sites>,
}

/// The data of callbacks, one for each block or instruction, as QEMU may translate code repeatedly.
#[derive(Default)]
struct Sites {
    blocks: HashMap<Block, &'static Block>,
    instructions: HashMap<(u32, u8), &'static Site>,
}

/// An instruction that calls back, and its exception level.
struct Site {
    instruction: Instruction,
    el: u8,
}

static ACCESSES: OnceLock<Accesses> = OnceLock::new();

pub(super) fn install(id: u64, api: Api, stream: UnixStream, ram: (String, u64, u64)) {
    let accesses = Accesses {
        api,
        ram,
        stream: Mutex::new(Some(stream)),
        collector: OnceLock::new(),
        sites: Mutex::default(),
    };
    let accesses = ACCESSES.get_or_init(|| accesses);
    accesses.api.register::<Accesses>(id);
}

impl Accesses {
    fn change(&self, change: impl FnOnce(&mut Collector<Ram>)) {
        // Its memory exists from the first translation on.
        let collector = self.collector.get_or_init(|| {
            let (name, base, bytes) = &self.ram;
            // Without RAM only the sizes of the guest's own leaves are unknown.
            let ram = Ram::find(name, *base, *bytes).unwrap_or_default();
            Mutex::new(Collector::new(ram))
        });
        let mut collector = lock(collector);
        change(&mut collector);
        if collector.out().len() >= KEPT {
            self.write(collector.out());
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let mut stream = lock(&self.stream);
        // The reader has ended, and will end QEMU.
        if let Some(open) = &mut *stream
            && open.write_all(bytes).is_err()
        {
            *stream = None;
        }
        bytes.clear();
    }
}

impl Translation for Accesses {
    fn translated(block: &TranslatedBlock<'_>) {
        let Some(accesses) = ACCESSES.get() else {
            return;
        };
        let api = &accesses.api;
        let level = THIS.with(|this| this.get().and_then(|(_, registers)| api.level(registers)));
        let mut whole: Option<Block> = None;
        let mut sites = lock(&accesses.sites);
        for (insn, pc, word) in api.instructions(block) {
            let whole = whole.get_or_insert(Block {
                first: pc,
                last: pc,
                instructions: 0,
                // Code in the upper half is a kernel's.
                el: level.unwrap_or((pc >> 55 & 1) as u8),
            });
            whole.last = pc;
            whole.instructions += 1;
            let el = whole.el;
            let instruction = decode::decode(word).filter(|it| {
                matches!(
                    it,
                    Instruction::Msr { .. }
                        | Instruction::Tlbi { .. }
                        | Instruction::Zero { .. }
                        | Instruction::Bulk { .. }
                )
            });
            if let Some(instruction) = instruction {
                let site = sites
                    .instructions
                    .entry((word, el))
                    .or_insert_with(|| Box::leak(Box::new(Site { instruction, el })));
                api.call_before(&insn, true, *site);
            }
            // The group of loads and stores.
            if word >> 25 & 0b101 == 0b100 {
                api.call_at_memory::<Self>(&insn, LOADS_AND_STORES, u64::from(el));
            }
        }
        if let Some(whole) = whole {
            let kept = sites
                .blocks
                .entry(whole)
                .or_insert_with(|| Box::leak(Box::new(whole)));
            api.call_before_block(block, *kept);
        }
    }
}

impl Callbacks for Accesses {
    fn init(thread: &CpuThread<'_>) {
        if let Some(accesses) = ACCESSES.get() {
            THIS.with(|this| {
                let _ = this.set((thread.cpu() as u16, accesses.api.registers(thread)));
            });
        }
    }

    fn exit() {
        let Some(accesses) = ACCESSES.get() else {
            return;
        };
        accesses.change(|collector| {
            collector.finish();
            accesses.write(collector.out());
        });
        // Closing it ends the stream for the reader.
        *lock(&accesses.stream) = None;
    }

    fn trapped(_cpu: c_uint, _from: u64) {}
}

/// A block is about to run.
impl callback::Site for Block {
    fn executed(&'static self, _cpu: c_uint) {
        if let Some(accesses) = ACCESSES.get() {
            accesses.change(|collector| collector.block(self));
        }
    }
}

/// A load or store; the data is its exception level.
impl callback::Accesses for Accesses {
    fn accessed(_cpu: c_uint, access: &Access<'_>, el: u64) {
        if let Some(accesses) = ACCESSES.get() {
            let address = access.address();
            accesses.change(|collector| collector.access(AccessKind::Data, el as u8, address));
        }
    }
}

/// An instruction is about to run that changes translation, or accesses memory unseen.
impl callback::Site for Site {
    fn executed(&'static self, _cpu: c_uint) {
        let Some(accesses) = ACCESSES.get() else {
            return;
        };
        let general = |number| {
            THIS.with(|this| {
                let (_, registers) = this.get()?;
                accesses.api.general(registers, number)
            })
        };
        let value = match self.instruction {
            Instruction::Msr { rt, .. }
            | Instruction::Tlbi { rt, .. }
            | Instruction::Zero { rt } => general(rt),
            _ => None,
        };
        accesses.change(|collector| match (self.instruction, value) {
            (Instruction::Msr { register, .. }, Some(value)) => collector.register(register, value),
            (Instruction::Tlbi { op, .. }, Some(operand)) => collector.invalidated(op, operand),
            (Instruction::Zero { .. }, Some(address)) => {
                collector.access(AccessKind::Data, self.el, address & !(SMALLEST_ZERO - 1));
            }
            _ => collector.unseen(),
        });
    }
}
