//! EFI's and ACPI's tables as firmware leaves them in memory, built from the specifications alone. Nothing
//! here reads a table.

/// Write-back cacheable.
pub const WB: u64 = 8;
/// Soft-reserved.
pub const SP: u64 = 1 << 18;
/// Read-only.
pub const RO: u64 = 1 << 17;
/// Used by firmware at run time.
pub const RUNTIME: u64 = 1 << 63;

/// The GUID of ACPI 2.0's root.
pub const ACPI_20: [u8; 16] = guid(0x8868_e871_e4f1_11d3_bc22_0080_c73c_8881);
/// The GUID of Linux's list of memory to keep.
pub const MEMRESERVE: [u8; 16] = guid(0x888e_b0c6_8ede_4ff5_a8f0_9aee_5cb9_77c2);
/// The GUID of the system resource table.
pub const RESOURCES: [u8; 16] = guid(0xb122_a263_3661_4f68_9929_78f8_b0d6_2180);
/// The GUID of the memory attributes table.
pub const ATTRIBUTES: [u8; 16] = guid(0xdcfa_911d_26eb_469f_a220_38b7_dc46_1220);

/// The bytes of a GUID with these digits: its first three fields are little-endian.
const fn guid(digits: u128) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = digits.to_be_bytes();
    let [i, j, k, l, m, n, o, p] = rest;
    [d, c, b, a, f, e, h, g, i, j, k, l, m, n, o, p]
}

/// Memory with tables.
#[derive(Clone)]
pub struct Memory {
    /// The address of its first byte.
    pub start: u64,
    /// The bytes there.
    pub bytes: Vec<u8>,
}

impl Memory {
    /// Memory with nothing in it.
    pub fn new(start: u64) -> Self {
        let bytes = Vec::new();
        Self { start, bytes }
    }

    /// Puts a table behind the others, and returns its address, a multiple of 16.
    pub fn put(&mut self, table: &[u8]) -> u64 {
        let at = self.bytes.len().next_multiple_of(16);
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(table);
        self.start + at as u64
    }

    /// The bytes from an address on, if all of them lie here.
    pub fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let at = usize::try_from(start.checked_sub(self.start)?).ok()?;
        let end = at.checked_add(usize::try_from(bytes).ok()?)?;
        self.bytes.get(at..end)
    }
}

/// A table's bytes, field by field.
#[derive(Clone, Default)]
pub struct Fields(pub Vec<u8>);

impl Fields {
    /// Puts a field at an offset.
    pub fn at<const BYTES: usize>(mut self, at: usize, field: [u8; BYTES]) -> Self {
        let end = at + BYTES;
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[at..end].copy_from_slice(&field);
        self
    }

    /// Makes it this long at least.
    pub fn long(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len().max(bytes), 0);
        self
    }
}

/// A descriptor of the EFI memory map, of this many bytes.
pub fn descriptor(kind: u32, start: u64, pages: u64, attributes: u64, bytes: usize) -> Vec<u8> {
    Fields::default()
        .at(0, kind.to_le_bytes())
        .at(8, start.to_le_bytes())
        .at(24, pages.to_le_bytes())
        .at(32, attributes.to_le_bytes())
        .long(bytes)
        .0
}

/// The memory attributes table with these descriptors, each of this many bytes.
pub fn attributes(descriptors: &[Vec<u8>], bytes: u32) -> Vec<u8> {
    let mut table = Fields::default()
        .at(0, 1_u32.to_le_bytes())
        .at(4, (descriptors.len() as u32).to_le_bytes())
        .at(8, bytes.to_le_bytes())
        .long(16)
        .0;
    table.extend(descriptors.concat());
    table
}

/// The system table with these configuration tables.
pub fn system(memory: &mut Memory, tables: &[([u8; 16], u64)]) -> u64 {
    let entries: Vec<u8> = tables
        .iter()
        .flat_map(|(guid, at)| [&guid[..], &at.to_le_bytes()].concat())
        .collect();
    let at = memory.put(&entries);
    let table = Fields::default()
        .at(0, *b"IBI SYST")
        .at(104, (tables.len() as u64).to_le_bytes())
        .at(112, at.to_le_bytes());
    memory.put(&table.0)
}

/// Makes the sum of the bytes 0, by the byte at an offset.
pub fn sum_up(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[at] = sum.wrapping_neg();
}

/// ACPI's root pointer.
pub fn rsdp(xsdt: u64) -> Vec<u8> {
    let mut table = Fields::default()
        .at(0, *b"RSD PTR ")
        .at(15, [2])
        .at(20, 36_u32.to_le_bytes())
        .at(24, xsdt.to_le_bytes())
        .long(36)
        .0;
    sum_up(&mut table[..20], 8);
    sum_up(&mut table, 32);
    table
}

/// A table with its header: length and checksum are right.
pub fn table(signature: [u8; 4], fields: Fields) -> Vec<u8> {
    let mut table = fields.at(0, signature).long(36).0;
    let length = table.len() as u32;
    table[4..8].copy_from_slice(&length.to_le_bytes());
    sum_up(&mut table, 9);
    table
}

/// The list of tables.
pub fn xsdt(tables: &[u64]) -> Vec<u8> {
    let mut fields = Fields::default().long(36);
    for at in tables {
        fields.0.extend(at.to_le_bytes());
    }
    table(*b"XSDT", fields)
}

/// A CPU of the MADT.
pub fn gicc(uid: u32, mpidr: u64, flags: u32, interface: u64, redistributor: u64) -> Vec<u8> {
    Fields::default()
        .at(0, [0xb, 80])
        .at(8, uid.to_le_bytes())
        .at(12, flags.to_le_bytes())
        .at(32, interface.to_le_bytes())
        .at(60, redistributor.to_le_bytes())
        .at(68, mpidr.to_le_bytes())
        .long(80)
        .0
}

/// The distributor of the MADT.
pub fn gicd(address: u64, version: u8) -> Vec<u8> {
    Fields::default()
        .at(0, [0xc, 24])
        .at(8, address.to_le_bytes())
        .at(20, [version])
        .long(24)
        .0
}

/// A region of redistributors of the MADT.
pub fn gicr(address: u64, bytes: u32) -> Vec<u8> {
    Fields::default()
        .at(0, [0xe, 16])
        .at(4, address.to_le_bytes())
        .at(12, bytes.to_le_bytes())
        .0
}

/// The MADT with these entries.
pub fn madt(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut fields = Fields::default().long(44);
    fields.0.extend(entries.concat());
    table(*b"APIC", fields)
}

/// The GTDT: number and flags of the secure, non-secure, virtual and EL2 timers.
pub fn gtdt(timers: [(u32, u32); 4]) -> Vec<u8> {
    let mut fields = Fields::default().long(104);
    for (place, (number, flags)) in timers.into_iter().enumerate() {
        fields = fields
            .at(48 + 8 * place, number.to_le_bytes())
            .at(52 + 8 * place, flags.to_le_bytes());
    }
    table(*b"GTDT", fields)
}

/// The FADT with ARM_BOOT_ARCH.
pub fn fadt(boot_arch: u16) -> Vec<u8> {
    let fields = Fields::default()
        .at(8, [6])
        .at(129, boot_arch.to_le_bytes());
    table(*b"FACP", fields.long(276))
}

/// The SPCR: the interface's type, width of a register in bits, size of an access, address.
pub fn spcr(kind: u8, width: u8, access: u8, address: u64) -> Vec<u8> {
    let fields = Fields::default()
        .at(36, [kind])
        .at(40, [0, width, 0, access])
        .at(44, address.to_le_bytes());
    table(*b"SPCR", fields.long(80))
}

/// A CPU of the SRAT.
pub fn near_cpu(uid: u32, domain: u32) -> Vec<u8> {
    Fields::default()
        .at(0, [3, 18])
        .at(2, domain.to_le_bytes())
        .at(6, uid.to_le_bytes())
        .at(10, 1_u32.to_le_bytes())
        .long(18)
        .0
}

/// Memory of the SRAT.
pub fn near_memory(start: u64, bytes: u64, domain: u32) -> Vec<u8> {
    Fields::default()
        .at(0, [1, 40])
        .at(2, domain.to_le_bytes())
        .at(8, start.to_le_bytes())
        .at(16, bytes.to_le_bytes())
        .at(28, 1_u32.to_le_bytes())
        .long(40)
        .0
}

/// The SRAT with these entries.
pub fn srat(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut fields = Fields::default().long(48);
    fields.0.extend(entries.concat());
    table(*b"SRAT", fields)
}
