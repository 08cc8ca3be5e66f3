//! Targets for what `granule-inspect` reads of a machine that somebody else ran: dumps, a gdb server's
//! answers, a kernel's description of itself, and translation registers.

use crate::bytes::Bytes;
use granule::arch::{PageSize, PhysicalAddress};
use granule_inspect::linux::processes;
use granule_inspect::memory_map::MemoryMap;
use granule_inspect::source::{Facts, Memory, Registers, elf_core, kdump, qemu, raw};
use granule_inspect::tree::{Origin, Shape};
use granule_inspect::vmcoreinfo::{self, Vmcoreinfo};
use granule_inspect::{guess, registers};
use granule_testing::dumps::{self, Kdump};
use granule_testing::linux;

/// The page size of dumps that are made here.
const PAGE: u64 = PageSize::MIN.bytes();

/// Checks what holds for every source.
fn look(memory: &dyn Memory, facts: &Facts) {
    assert!(facts.notes.iter().all(|note| note.lines().count() == 1));
    let ranges = memory.ranges();
    assert!(ranges.iter().all(|range| range.start < range.end));
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
    for range in ranges.iter().take(16) {
        for address in [
            range.start,
            range.end - 1,
            range.end,
            range.start.wrapping_sub(1),
        ] {
            if let Err(error) = memory.read(PhysicalAddress(address), &mut [0; 24]) {
                assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}

/// Changes some words of `file` to small and to large numbers.
fn damage(file: &mut [u8], bytes: &mut Bytes<'_>) {
    for _ in 0..bytes.below(5) {
        let at = bytes.word() as usize % file.len().max(1);
        let word = match bytes.below(3) {
            0 => u64::from(bytes.byte()),
            1 => u64::MAX - u64::from(bytes.byte()),
            _ => bytes.word(),
        };
        for (to, byte) in file.iter_mut().skip(at & !3).zip(word.to_le_bytes()) {
            *to = byte;
        }
    }
}

pub(crate) fn elf_core(bytes: &[u8]) {
    if let Ok((memory, facts)) = elf_core::open(bytes.to_vec()) {
        look(&*memory, &facts);
    }
    let mut rest = Bytes(bytes);
    let note = dumps::note("VMCOREINFO", 0, &bytes[..bytes.len().min(20)]);
    let notes = [dumps::cpu_note(1, rest.word(), 3), note].concat();
    let pages: Vec<_> = (0..rest.below(4))
        .map(|_| {
            (
                rest.word() >> rest.below(64),
                vec![rest.byte(); 1 + rest.below(99)],
            )
        })
        .collect();
    let mut file = dumps::elf_core(&pages, &notes);
    let (memory, facts) = elf_core::open(file.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(facts.cpus.len(), 1);
    // The last piece replaces what it covers of the others.
    if let Some((address, piece)) = pages.last()
        && address.checked_add(piece.len() as u64).is_some()
    {
        let mut read = vec![0; piece.len()];
        let found = memory.read(PhysicalAddress(*address), &mut read);
        assert!(found.is_ok() && read == *piece, "{address:#x}: {found:?}");
    }
    damage(&mut file, &mut rest);
    file.truncate(file.len() - rest.word() as usize % file.len() * rest.below(2));
    if let Ok((memory, facts)) = elf_core::open(file) {
        look(&*memory, &facts);
    }
}

pub(crate) fn kdump(bytes: &[u8]) {
    if let Ok((memory, facts)) = kdump::open(bytes.to_vec()) {
        look(&*memory, &facts);
    }
    let mut rest = Bytes(bytes);
    let mut dump = Kdump {
        page_bytes: PAGE as u32,
        pages: 1 + rest.below(200) as u64,
        level: rest.below(2) as u32,
        ..Kdump::default()
    };
    let whole = rest.word() % dump.pages;
    for _ in 0..rest.below(4) {
        let flags = [0, 1, 2, 4, 0x20, 3][rest.below(6)];
        let stored = rest.0[..rest.0.len().min(rest.below(100))].to_vec();
        let page = rest.word() % dump.pages;
        dump.stored.insert(page, (stored, flags));
    }
    dump.stored
        .insert(whole, (vec![rest.byte(); PAGE as usize], 0));
    let mut file = dump.file();
    if rest.below(2) == 0 {
        file = dumps::flattened(&file, 100 + rest.below(200) * 100);
    }
    let (memory, facts) = kdump::open(file.clone()).unwrap_or_else(|error| panic!("{error}"));
    look(&*memory, &facts);
    for page in 0..dump.pages {
        let mut read = vec![0; PAGE as usize];
        let found = memory.read(PhysicalAddress(page * PAGE), &mut read);
        match dump.stored.get(&page) {
            Some((stored, 0)) if stored.len() == read.len() => {
                assert!(found.is_ok() && read == *stored, "{page}: {found:?}");
            }
            Some(_) => {}
            None => assert!(found.is_err(), "{page}"),
        }
    }
    damage(&mut file, &mut rest);
    file.truncate(file.len() - rest.word() as usize % file.len() * rest.below(2));
    if let Ok((memory, facts)) = kdump::open(file) {
        look(&*memory, &facts);
    }
}

/// A gdb server that answers anything, in right packets or not.
pub(crate) fn gdb_answers(bytes: &[u8]) {
    let _ = qemu::read_scripted(bytes);
    let good = [
        "OK",
        "l<xi:include href=\"a.xml\"/>",
        "l<reg name=\"TCR_EL1\" bitsize=\"64\" regnum=\"7\"/><reg name=\"pc\"/>",
        "m1,2",
        "l",
        "OK",
        "00ff00ff00ff00ff",
        "OK",
        "0011",
        "00",
        "OK",
    ];
    let mut rest = Bytes(bytes);
    let mut stream = Vec::new();
    for answer in good {
        let answer = match rest.below(8) {
            0 => {
                let part = rest.0.len().min(1 + rest.below(40));
                let (part, others) = rest.0.split_at(part.min(rest.0.len()));
                rest.0 = others;
                part
            }
            _ => answer.as_bytes(),
        };
        let sum = answer
            .iter()
            .fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        stream.push(b'$');
        stream.extend(answer);
        stream.extend(format!("#{sum:02x}").bytes());
    }
    stream.extend(rest.0);
    let _ = qemu::read_scripted(&stream);
}

/// Reads a kernel's description of itself, and searches a memory for it and for a root.
pub(crate) fn kernel_in_memory(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Vmcoreinfo(&text).kernel(u64::MAX) {
        assert_eq!(error.lines().count(), 1);
    }
    let mut rest = Bytes(bytes);
    let number = rest.word();
    let text = format!(
        "OSRELEASE=6\nPAGESIZE={}\nSYMBOL(swapper_pg_dir)={:x}\nNUMBER(VA_BITS)={}\n\
         NUMBER(kimage_voffset)=0x{:x}\nNUMBER(TCR_EL1_T1SZ)={}\n",
        PAGE << (2 * rest.below(3)),
        number & !0xfff,
        rest.byte(),
        rest.word() & !0xfff,
        rest.byte(),
    );
    let tree_of_text = Vmcoreinfo(&text).kernel(0);
    if let Ok(tree) = &tree_of_text {
        assert!(tree.root.0 < 1 << 52 && tree.origin == Origin::Vmcoreinfo);
    }

    // Pages of words that look like descriptors, with the text in one of them.
    let base = u64::from(rest.byte()) << rest.below(40);
    let mut memory = vec![0; 8 * PAGE as usize];
    while !rest.is_empty() {
        let at = rest.word() as usize % (memory.len() / 8) * 8;
        let target = base.wrapping_add(PAGE * rest.below(9) as u64);
        let word = target | [3, 1, 0x703, 0x701][rest.below(4)] | u64::from(rest.byte()) << 48;
        memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let page = PAGE as usize;
    memory[page..page + text.len()].copy_from_slice(text.as_bytes());
    memory[page + text.len()] = 0;
    let (memory, _) = raw::open(memory, base & !(PAGE - 1));
    let found = vmcoreinfo::find(&*memory, &mut |_| {});
    assert_eq!(found.is_empty(), tree_of_text.is_err(), "{text}");
    if let Ok(map) = MemoryMap::find(&*memory, &mut |_| {}) {
        assert!(map.no_map.is_sorted_by_key(|range| range.start));
    }
    if let Err(error) = MemoryMap::of_lines(&String::from_utf8_lossy(bytes)) {
        assert_eq!(error.lines().count(), 1);
    }
    let mut cpu = Registers::default();
    cpu.set("pc", number);
    if let Some((tree, why)) = guess::kernel(&*memory, &[cpu], &mut |_| {}) {
        let there = memory.read(tree.root, &mut [0; 8]);
        assert!(there.is_ok() && why.lines().count() == 1, "{why}");
    }
}

/// A Linux kernel's memory with processes, damaged.
pub(crate) fn linux_processes(bytes: &[u8]) {
    let mut rest = Bytes(bytes);
    let (mut memory, mut text) = (linux::memory(), linux::vmcoreinfo());
    if rest.below(2) == 0 {
        linux::count_from_places(&mut memory);
        text = text.replace("SYMBOL(kallsyms_relative_base)", "OLDER");
    }
    damage(&mut memory, &mut rest);
    // Words that lead somewhere are the hostile ones.
    for _ in 0..rest.below(4) {
        let at = rest.word() as usize % (memory.len() / 8) * 8;
        let word = linux::VIRTUAL + rest.word() % memory.len() as u64;
        memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let (memory, _) = raw::open(memory, linux::BASE);
    let info = Vmcoreinfo(&text);
    let Ok(kernel) = info.kernel(0) else {
        panic!("{text}");
    };
    let map = String::from_utf8_lossy(bytes);
    let map = (rest.below(4) == 0).then_some(&*map);
    match processes(&*memory, &kernel, info, map) {
        Ok((trees, notes)) => {
            assert!(
                notes.iter().all(|note| note.lines().count() == 1),
                "{notes:?}"
            );
            assert!(trees.iter().all(|tree| tree.origin == Origin::KernelData));
        }
        Err(why) => assert_eq!(why.lines().count(), 1, "{why}"),
    }
}

/// Registers with any values.
pub(crate) fn translation_registers(bytes: &[u8]) {
    let mut rest = Bytes(bytes);
    let mut cpus = vec![Registers::default(); 2];
    for cpu in &mut cpus {
        for name in ["ttbr0", "ttbr1", "tcr", "mair", "sctlr"] {
            for el in 1..4 {
                cpu.set(&format!("{name}_el{el}"), rest.word());
            }
        }
        for name in ["hcr_el2", "vtcr_el2", "vttbr_el2", "id_aa64mmfr1_el1"] {
            cpu.set(name, rest.word());
        }
    }
    let (trees, notes) = registers::trees(&cpus, Origin::Registers);
    assert!(notes.iter().all(|note| note.lines().count() == 1));
    for tree in trees {
        let shape = match tree.shape {
            Shape::Stage1(shape) => shape,
            Shape::Stage2(shape) => *shape.shape(),
        };
        let table = shape.root_entries() as u64 * 8;
        assert!(tree.root.0 < 1 << 52 && tree.root.0.is_multiple_of(table));
        assert!((16..=52).contains(&shape.va_bits()) && shape.root_tables() <= 16);
        assert!(shape.leaf_sizes().all(|leaf| leaf.bytes <= 1 << 42));
    }
}
