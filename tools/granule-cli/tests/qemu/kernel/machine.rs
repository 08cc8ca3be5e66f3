//! Boots the kernel and reads its record: code that all rooms share.

use std::path::PathBuf;

use granule_cli::{Outcome, PageSize, Request};

use crate::booted::Booted;
pub(crate) use crate::hooked::ends;
use crate::image::{built, image};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;
/// Where `virt` has its RAM, and where images lie by default.
pub(crate) const RAM: u64 = 0x4000_0000;
pub(crate) const IMAGE: u64 = 0x4020_0000;

/// The image that has code for one page size only.
pub(crate) fn fixed_image(size: PageSize) -> PathBuf {
    let size = size.word();
    built(
        &format!("Image-{size}"),
        &format!("cargo xtask image --fixed {size}"),
    )
}

/// The part of the boot CPU's stack that no boot may use.
const BOOT_STACK_ROOM: u64 = 12 << 10;

/// A machine like most here: 4 GiB, neoverse-n1 (all page sizes, 48 bits, VHE), at EL2.
pub(crate) fn request() -> Request {
    Request::default().image(image()).cpu("neoverse-n1")
}

/// The same with a requested page size.
pub(crate) fn sized(size: PageSize) -> Request {
    request().page_size(size)
}

/// Boots what must end well, having looked at all that holds for any such boot.
#[track_caller]
pub(crate) fn ok(request: &Request) -> Booted {
    let kernel = ends(request, Outcome::Ok);
    kernel.check_itself();
    kernel
}

/// Leaves of one size: bytes of the leaf or group, whether it is a group, how many.
pub(crate) type Leaves = Vec<(u64, bool, u64)>;

impl Booted {
    pub(crate) fn mapped(&self) -> u64 {
        self.number("linear_map.mapped_bytes")
    }

    /// The leaves as the kernel records them, largest first, a group before a block of its size.
    pub(crate) fn leaves(&self) -> Leaves {
        let leaves = self.value("linear_map.leaves").as_array().unwrap();
        let mut leaves: Leaves = leaves
            .iter()
            .map(|leaf| {
                let number = |key: &str| leaf[key].as_u64().unwrap();
                let contiguous = leaf["contiguous"].as_bool().unwrap();
                (number("size"), contiguous, number("count"))
            })
            .collect();
        leaves.sort_unstable_by(|a, b| b.cmp(a));
        leaves
    }

    /// Everything counted, as one value that two boots of one request must agree in.
    pub(crate) fn counts(&self) -> [u64; 7] {
        [
            "tables",
            "table_bytes",
            "descriptor_stores",
            "tlbi",
            "dsb",
            "isb",
            "mapped_bytes",
        ]
        .map(|key| self.number(&format!("linear_map.{key}")))
    }

    /// Checks what holds for any boot that ended well: the parts of the record agree, and the
    /// self-check has looked at everything it is to look at.
    fn check_itself(&self) {
        let page = self.number("page_size");
        let leaves = self.leaves();
        let bytes: u64 = leaves.iter().map(|(size, _, count)| size * count).sum();
        assert_eq!(bytes, self.mapped(), "the leaves are what is mapped");
        let tables = self.number("linear_map.tables");
        assert_eq!(self.number("linear_map.table_bytes"), tables * page);
        // 4096 random addresses, and both ends of at least one run.
        assert!(self.number("self_check.translations") >= 4096 + 2);
        // All pages that were free then, or each so many of them: those that are free in the end
        // but for what was given back, and those that the page allocator's own data took. Pages
        // that are free in part do not count, of which there are two a reserved range.
        let patterns = self.number("self_check.patterns");
        let given_back = self.number("memory.static_bytes_given_back");
        let free = self.number("memory.free_bytes");
        let metadata = self.number("memory.page_metadata_bytes");
        assert!(free + metadata < self.mapped() && metadata > 0 && free.is_multiple_of(page));
        let pages = (free - given_back) / page;
        let stride = (pages + metadata.div_ceil(page) + 2 * 128).div_ceil(4096);
        assert!(
            patterns <= 4096 && patterns + 2 * 128 >= pages / stride,
            "{patterns} patterns, {pages} free pages"
        );
        // The walk meets each entry of a group, so it sees at least as many as are recorded, or its share of them in
        // the map of a large machine.
        let recorded: u64 = leaves.iter().map(|(_, _, count)| count).sum();
        let share = if self.mapped() < 64 * GIB { 1 } else { 64 };
        assert!(self.number("self_check.leaves") > recorded / share);
        assert!(self.number("self_check.tables") > tables);
        assert_eq!(
            self.number("linear_map.tlbi") == 0,
            self.text("linear_map.strategy") == "direct"
        );
        // All of a boot's frames, whatever it did, and room for an interrupt's at the deepest place.
        let (used, stack) = (
            self.number("memory.boot_stack_bytes_used"),
            self.number("memory.boot_stack_bytes"),
        );
        assert!(
            used > 4096 && used + BOOT_STACK_ROOM <= stack,
            "{used} of the boot stack's {stack} bytes were used"
        );
        // M and C: both on, or the numbers are of another machine.
        assert_eq!(self.number("linear_map.sctlr") & 0b101, 0b101);
    }
}
