//! The machine's virtio disk, which programs read and write as `/dev/vda`: the first block device on an MMIO
//! transport of the device tree. It is looked for with `granule.disk=on` only.
//!
//! The crate `virtio-drivers` has the driver. Here are the mapping of the registers, the memory that the device
//! accesses, and transfers of any offset and length. One CPU at a time has a request, and waits for its end, so a
//! device at rest accesses no memory, and the next kernel resets it before it does.

#![allow(unsafe_code, reason = "registers, and memory that a device accesses")]

use crate::dev::console::println;
use crate::dev::registry::{self, VIRTIO_DISK};
use crate::kexec::machine;
use crate::lock::{Lock, UnmaskedLock};
use crate::mm::kernel_tables::{self, Flush, pointer};
use crate::mm::{pages, walker};
use core::ptr::NonNull;
use granule::arch::{Attributes, PageSize, PhysicalAddress, VirtualAddress};
use granule::table::Leaves;
use granule_boot::tree::Tree;
use granule_kcore::devicetree::virtio;
use granule_kcore::frames::Frame;
use granule_kcore::layout;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Transfer;
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

type Disk = VirtIOBlk<Memory, MmioTransport<'static>>;

static DISK: UnmaskedLock<Option<Disk>> = UnmaskedLock::new(None);

/// Bytes of the memory through which requests go: a page of every size.
const BOUNCE: usize = PageSize::MAX.bytes() as usize;
/// The most bytes of a request. Its head and its status also take room.
const MOST: usize = BOUNCE - SECTOR_SIZE;

/// Looks for a disk, and keeps the first.
// A call of its own: the boot's frame would have this one's in it.
#[inline(never)]
pub(crate) fn probe(running: PageSize) {
    if !registry::probe(&VIRTIO_DISK, running) {
        return;
    }
    let tree = machine::machine().and_then(|machine| Tree::new(machine.tree()?.1).ok());
    let found = tree.and_then(|tree| {
        let mut transports = virtio::transports(&tree);
        transports.find_map(|registers| open(registers.start))
    });
    match &found {
        Some(disk) => println!(
            "granule: /dev/vda: virtio disk of {} sectors",
            disk.capacity()
        ),
        None => println!(
            "granule: granule.disk=on: no virtio,mmio node of the device tree has a disk that can be used: no /dev/vda"
        ),
    }
    DISK.with(|disk| *disk = found);
}

/// Opens the device behind these registers, if it is a disk.
fn open(registers: u64) -> Option<Disk> {
    let address = layout::in_slot(layout::DISK_VADDR, registers);
    let page = VirtualAddress(address & !(kernel_tables::kernel()?.page() - 1));
    let mapped = kernel_tables::change(Flush::Now, |kernel, _, tree| {
        let output = PhysicalAddress(registers & !(kernel.page() - 1));
        tree.map(
            page,
            output,
            kernel.page(),
            Attributes::device(),
            Leaves::PAGES,
        )?;
        walker::assume_visible(tree, page, kernel.page());
        Ok::<(), granule::table::TableError>(())
    });
    mapped?.ok()?;
    let header = NonNull::new(core::ptr::with_exposed_provenance_mut::<VirtIOHeader>(
        address as usize,
    ))?;
    // SAFETY: the registers, aligned to their size and so in one page, were just mapped as Device memory. They stay
    // mapped as long as the value lives: for good, or until it was dropped below.
    let transport = unsafe { MmioTransport::new(header, virtio::REGISTERS as usize) };
    let disk = transport
        .ok()
        .filter(|transport| transport.device_type() == DeviceType::Block)
        .and_then(|transport| Disk::new(transport).ok());
    if disk.is_none() || !set_up_bounce() {
        drop(disk);
        kernel_tables::change(Flush::Now, |kernel, _, tree| {
            walker::unmap(tree, page, kernel.page())
        })?
        .ok()?;
        return None;
    }
    disk
}

/// Bytes of the disk, if there is one.
pub(crate) fn bytes() -> Option<u64> {
    DISK.with(|disk| Some(disk.as_ref()?.capacity().saturating_mul(SECTOR_SIZE as u64)))
}

/// Moves bytes that lie in the disk.
pub(crate) fn transfer(at: u64, bytes: Transfer<'_>) -> Result<(), Errno> {
    DISK.with(|disk| {
        let disk = disk.as_mut().ok_or(Errno::ENXIO)?;
        if disk.readonly() && matches!(bytes, Transfer::Write(_)) {
            return Err(Errno::EROFS);
        }
        move_all(disk, at, bytes).map_err(|_| Errno::EIO)
    })
}

/// Moves whole sectors as they are, and the parts of others by way of a copy of the sector.
fn move_all(disk: &mut Disk, mut at: u64, mut bytes: Transfer<'_>) -> virtio_drivers::Result {
    loop {
        let left = match &bytes {
            Transfer::Read(into) => into.len(),
            Transfer::Write(from) => from.len(),
        };
        if left == 0 {
            return Ok(());
        }
        let sector = (at / SECTOR_SIZE as u64) as usize;
        let skip = (at % SECTOR_SIZE as u64) as usize;
        let whole = skip == 0 && left >= SECTOR_SIZE;
        let count = if whole {
            left.min(MOST) / SECTOR_SIZE * SECTOR_SIZE
        } else {
            left.min(SECTOR_SIZE - skip)
        };
        let mut copy = [0; SECTOR_SIZE];
        if !whole {
            disk.read_blocks(sector, &mut copy)?;
        }
        let part = copy.iter_mut().skip(skip);
        bytes = match bytes {
            Transfer::Read(into) => {
                let (now, rest) = into.split_at_mut(count);
                if whole {
                    disk.read_blocks(sector, now)?;
                } else {
                    now.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                }
                Transfer::Read(rest)
            }
            Transfer::Write(from) => {
                let (now, rest) = from.split_at(count);
                if whole {
                    disk.write_blocks(sector, now)?;
                } else {
                    part.zip(now).for_each(|(to, from)| *to = *from);
                    disk.write_blocks(sector, &copy)?;
                }
                Transfer::Write(rest)
            }
        };
        at += count as u64;
    }
}

/// Memory of the page allocator that the device accesses.
#[derive(Debug)]
struct Memory;

/// The memory through which the buffers of a request go, which may lie anywhere: its address, or 0 before it is
/// allocated, and the bytes and the number of buffers in it.
struct Bounce {
    start: u64,
    used: usize,
    buffers: usize,
}

static SHARED: Lock<Bounce> = Lock::new(Bounce {
    start: 0,
    used: 0,
    buffers: 0,
});

/// Allocates the memory for requests, if there is none.
fn set_up_bounce() -> bool {
    SHARED.with(|shared| {
        if shared.start == 0 {
            shared.start = allocate(BOUNCE).map_or(0, |(start, _)| start);
        }
        shared.start != 0
    })
}

/// The order of a block of so many bytes.
fn order(bytes: usize) -> Option<u32> {
    let pages = (bytes as u64).div_ceil(kernel_tables::kernel()?.page());
    Some(pages.next_power_of_two().ilog2())
}

/// Allocates zeroed memory.
fn allocate(bytes: usize) -> Option<(PhysAddr, NonNull<u8>)> {
    let kernel = kernel_tables::kernel()?;
    let start = pages::allocate(order(bytes)?)?.address(kernel.geometry.page_size());
    let memory = pointer(start)?;
    // SAFETY: the block was just allocated, and the linear map shows it writable.
    unsafe { memory.write_bytes(0, bytes) };
    Some((start.0, memory))
}

// SAFETY: the memory of `dma_alloc` is a block of the page allocator until `dma_dealloc`, aligned to a page of the
// kernel, of which none is smaller than the crate's. The device accesses memory coherently (the binding's
// `dma-coherent` of virtual machines), through no IOMMU.
unsafe impl Hal for Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        allocate(pages * PAGE_SIZE).unwrap_or((0, NonNull::dangling()))
    }

    unsafe fn dma_dealloc(start: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        let freed = kernel_tables::kernel().and_then(|kernel| {
            let frame = Frame::containing(PhysicalAddress(start), kernel.geometry.page_size());
            pages::free(frame, order(pages * PAGE_SIZE)?).ok()
        });
        freed.map_or(-1, |()| 0)
    }

    /// For PCI only.
    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::dangling()
    }

    unsafe fn share(buffer: NonNull<[u8]>, direction: BufferDirection) -> PhysAddr {
        let start = SHARED.with(|shared| {
            let start = shared.start + shared.used as u64;
            shared.used += buffer.len();
            shared.buffers += 1;
            start
        });
        if let Some(to) = pointer(PhysicalAddress(start))
            && direction != BufferDirection::DeviceToDriver
        {
            // SAFETY: the crate promises the buffer. Those of a request fit the memory, as `move_all` keeps to `MOST`,
            // and the holder of `DISK` has the only request.
            unsafe { buffer.cast().copy_to_nonoverlapping(to, buffer.len()) };
        }
        start
    }

    unsafe fn unshare(start: PhysAddr, buffer: NonNull<[u8]>, direction: BufferDirection) {
        if let Some(from) = pointer(PhysicalAddress(start))
            && direction != BufferDirection::DriverToDevice
        {
            // SAFETY: as in `share`, which gave out `start` for this buffer. The device is done with it.
            unsafe { from.copy_to_nonoverlapping(buffer.cast(), buffer.len()) };
        }
        SHARED.with(|shared| {
            shared.buffers -= 1;
            if shared.buffers == 0 {
                shared.used = 0;
            }
        });
    }
}
