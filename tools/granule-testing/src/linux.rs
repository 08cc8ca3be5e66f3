//! The memory of a Linux kernel with two processes, a thread of its own and a module, as far as a
//! reader of processes and functions looks: tables, symbols (kallsyms), types (BTF), tasks and modules.
//! No code of the reader is used.

/// The address of the first byte of [`memory`].
pub const BASE: u64 = 0x4000_0000;
/// Where the kernel has it: the begin of the upper half with 39 bits.
pub const VIRTUAL: u64 = 0xffff_ff80_0000_0000;
/// Where the parts are: root, list of symbols, types, tasks, what a process has of memory.
pub const ROOT: usize = 0x1000;
/// The kernel's list of symbols. The offsets of its symbols begin 0x100 bytes on.
pub const SYMBOLS: usize = 0x2000;
const TYPES: usize = 0x6000;
/// The first task, which is the head of the list; the others follow in steps of [`TASK_BYTES`].
pub const TASKS: usize = 0x8000;
pub const TASK_BYTES: usize = 0x100;
const MEMORIES: usize = 0x9000;
/// The offset of the list's node in a task.
pub const NODE: usize = 0x10;
/// The physical addresses of the roots of processes 1 and 77.
pub const USER_ROOTS: [u64; 2] = [BASE + 0xa000, BASE + 0xb000];

/// The head of the list of modules, and the one module with its symbols.
const MODULES: usize = 0xc000;
pub const MODULE: usize = 0xc100;
const MODULE_SYMBOLS: usize = 0xc200;
const MODULE_TEXT: usize = 0xc300;
/// The first function of the kernel and of the module, with their bytes.
pub const FUNCTION: (u64, u64) = (VIRTUAL + 0x100, 0x80);
pub const MODULE_FUNCTION: (u64, u64) = (VIRTUAL + 0x1000_0000, 0x40);

#[must_use]
pub fn vmcoreinfo() -> String {
    let at = |offset: usize| VIRTUAL + offset as u64;
    format!(
        "OSRELEASE=6.12.0\nPAGESIZE=4096\nNUMBER(VA_BITS)=39\nNUMBER(TCR_EL1_T1SZ)=0x19\n\
         NUMBER(kimage_voffset)={:#x}\nSYMBOL(swapper_pg_dir)={:x}\nSYMBOL(_stext)={VIRTUAL:x}\n\
         KERNELOFFSET=12000\n\
         SYMBOL(kallsyms_num_syms)={:x}\nSYMBOL(kallsyms_relative_base)={:x}\n\
         SYMBOL(kallsyms_offsets)={:x}\nSYMBOL(kallsyms_token_index)={:x}\n\
         SYMBOL(kallsyms_names)={:x}\nSYMBOL(kallsyms_token_table)={:x}\n",
        VIRTUAL - BASE,
        at(ROOT),
        at(SYMBOLS),
        at(SYMBOLS + 8),
        at(SYMBOLS + 0x100),
        at(SYMBOLS + 0x400),
        at(SYMBOLS + 0x1000),
        at(SYMBOLS + 0x2000),
    )
}

#[must_use]
pub fn memory() -> Vec<u8> {
    let mut memory = vec![0; 0xd000];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    // One block of 1 GiB maps all of it.
    put(ROOT, &(BASE | 0x701).to_le_bytes());

    // Each letter is a piece of text of its own.
    for letter in 0..=u8::MAX {
        let place = 2 * u16::from(letter);
        put(SYMBOLS + 0x2000 + usize::from(place), &[letter, 0]);
        put(SYMBOLS + 0x400 + usize::from(place), &place.to_le_bytes());
    }
    let types = types();
    let long = "x".repeat(200);
    let symbols = [
        ('T', "_stext", 0),
        ('D', long.as_str(), 1),
        ('a', "an_absolute_value", 0x40),
        ('t', "do_fault", 0x100),
        ('T', "another_name", 0x100),
        ('d', "some_data", 0x180),
        ('D', "__start_BTF", TYPES),
        ('D', "__stop_BTF", TYPES + types.len()),
        ('D', "init_task", TASKS),
        ('d', "modules", MODULES),
        ('T', "the_last", 0xf000),
    ];
    put(SYMBOLS, &(symbols.len() as u32).to_le_bytes());
    put(SYMBOLS + 8, &VIRTUAL.to_le_bytes());
    let mut names = Vec::new();
    for (number, (kind, name, offset)) in symbols.iter().enumerate() {
        put(
            SYMBOLS + 0x100 + 4 * number,
            &(*offset as u32).to_le_bytes(),
        );
        let length = name.len() + 1;
        if length < 0x80 {
            names.push(length as u8);
        } else {
            names.extend([length as u8 | 0x80, (length >> 7) as u8]);
        }
        names.push(*kind as u8);
        names.extend(name.bytes());
    }
    put(SYMBOLS + 0x1000, &names);
    put(TYPES, &types);

    let to = |offset: usize| (VIRTUAL + offset as u64).to_le_bytes();
    put(MODULES, &to(MODULE + 8));
    put(MODULE + 8, &to(MODULES));
    put(MODULE + 0x18, b"a_module");
    put(MODULE + 0x50, &to(MODULE + 0x60));
    put(MODULE + 0x60, &to(MODULE_SYMBOLS));
    put(MODULE + 0x68, &4_u32.to_le_bytes());
    put(MODULE + 0x70, &to(MODULE_TEXT));
    put(MODULE_TEXT, b"\0act\0state\0elsewhere\0");
    // The first symbol of a list is empty. Type 2 is a function, 1 is data; section 0 is another
    // program's.
    for (number, (name, kind, section)) in [(0, 0, 0), (5, 1, 3), (1, 2, 1), (11, 2, 0)]
        .into_iter()
        .enumerate()
    {
        let head: u64 = name | kind << 32 | section << 48;
        let (start, bytes) = MODULE_FUNCTION;
        for (word, value) in [head, start, bytes].into_iter().enumerate() {
            put(
                MODULE_SYMBOLS + 24 * number + 8 * word,
                &value.to_le_bytes(),
            );
        }
    }

    for (number, (pid, name, mm)) in [
        (0_u32, "swapper/0", None),
        (1, "init", Some(0)),
        (2, "kthreadd", None),
        (77, "a\n\u{7f}b", Some(1)),
    ]
    .into_iter()
    .enumerate()
    {
        let task = TASKS + number * TASK_BYTES;
        let next = TASKS + (number + 1) % 4 * TASK_BYTES + NODE;
        put(task + NODE, &(VIRTUAL + next as u64).to_le_bytes());
        let mm: Option<usize> = mm;
        if let Some(mm) = mm {
            let place = MEMORIES + 0x40 * mm;
            put(task + 0x20, &(VIRTUAL + place as u64).to_le_bytes());
            let root = USER_ROOTS[mm] - BASE + VIRTUAL;
            put(place + 8, &root.to_le_bytes());
        }
        put(task + 0x28, &pid.to_le_bytes());
        put(task + 0x30, name.as_bytes());
    }
    memory
}

/// Makes the list of symbols in [`memory`] that of newer kernels: an address is an offset from the place of
/// the offset itself, and VMCOREINFO has no `kallsyms_relative_base`.
pub fn count_from_places(memory: &mut [u8]) {
    for at in (SYMBOLS + 0x100..SYMBOLS + 0x400).step_by(4) {
        let Some(place) = memory.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else {
            return;
        };
        let offset = u32::from_le_bytes(*place).wrapping_sub(at as u32);
        *place = offset.to_le_bytes();
    }
}

/// `struct task_struct { tasks, mm, pid, comm }`, `struct mm_struct { struct { pgd } }`, `struct module
/// { list, name, kallsyms }` and `struct mod_kallsyms { symtab, num_symtab, strtab }`.
fn types() -> Vec<u8> {
    let mut strings = vec![0];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        at
    };
    let fields = [("tasks", NODE), ("mm", 0x20), ("pid", 0x28), ("comm", 0x30)];
    let mut words = vec![name("task_struct"), 4 << 24 | fields.len() as u32, 0x100];
    for (field, offset) in fields {
        words.extend([name(field), 0, 8 * offset as u32]);
    }
    words.extend([0, 4 << 24 | 1, 16, name("pgd"), 0, 64]);
    words.extend([name("mm_struct"), 4 << 24 | 1, 16, 0, 2, 0]);
    let records: [(&str, [(&str, u32); 3]); 2] = [
        ("module", [("list", 8), ("name", 0x18), ("kallsyms", 0x50)]),
        (
            "mod_kallsyms",
            [("symtab", 0), ("num_symtab", 8), ("strtab", 0x10)],
        ),
    ];
    for (record, fields) in records {
        words.extend([name(record), 4 << 24 | fields.len() as u32, 0x100]);
        for (field, offset) in fields {
            words.extend([name(field), 0, 8 * offset]);
        }
    }
    let bytes = 4 * words.len() as u32;
    let head = [0x1_eb9f, 24, 0, bytes, bytes, strings.len() as u32];
    let words = head.into_iter().chain(words).flat_map(u32::to_le_bytes);
    words.chain(strings).collect()
}
