//! The description of a UART that can be the console: its family, and how its registers are
//! reached. The names that trees and command lines have for it are here too; the search for a
//! console and the drivers are not.

use super::bytes::{after, same};
use super::tree::{Node, Range};
use granule::arch::PageSize;

/// UARTs with the same registers, so that one driver serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(
    clippy::exhaustive_enums,
    reason = "a program that drives UARTs must have a driver for each family"
)]
pub enum Family {
    /// Arm's PL011.
    Pl011,
    /// The part of a PL011 that the Server Base System Architecture guarantees: data and flags.
    Sbsa,
    /// The 8250 and all that followed it.
    Uart8250,
    /// Cadence's UART, which AMD's Zynq and Versal have.
    Cadence,
    /// The UART of NXP's i.MX.
    Imx,
}

impl Family {
    const ALL: [Self; 5] = [
        Self::Pl011,
        Self::Sbsa,
        Self::Uart8250,
        Self::Cadence,
        Self::Imx,
    ];

    /// The number of registers that a driver may access, from the first one to the last.
    #[must_use]
    pub const fn registers(self) -> usize {
        match self {
            Self::Sbsa => 7,
            Self::Uart8250 => 8,
            Self::Pl011 | Self::Cadence => 13,
            Self::Imx => 46,
        }
    }

    /// What Linux's names of such devices begin with, in a value of `console=`.
    #[must_use]
    pub(crate) const fn device(self) -> &'static [u8] {
        match self {
            Self::Pl011 | Self::Sbsa => b"ttyAMA",
            Self::Uart8250 => b"ttyS",
            Self::Cadence => b"ttyPS",
            Self::Imx => b"ttymxc",
        }
    }
}

/// The width of an access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(
    clippy::exhaustive_enums,
    reason = "registers are not accessed in any other width"
)]
pub enum Width {
    /// 8 bits.
    Bits8 = 1,
    /// 16 bits.
    Bits16 = 2,
    /// 32 bits.
    Bits32 = 4,
}

impl Width {
    /// The width in bytes.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        self as u8
    }
}

/// How far apart registers are, and how wide an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Register `n` is `n << shift` bytes after the first.
    pub shift: u8,
    /// The width of every access.
    pub width: Width,
}

impl Layout {
    /// One byte for each register.
    const BYTES: Self = Self {
        shift: 0,
        width: Width::Bits8,
    };
    /// 32 bits for each register.
    const WORDS: Self = Self {
        shift: 2,
        width: Width::Bits32,
    };

    /// The layout in a node that states it by `reg-shift` and `reg-io-width`; `None` if no UART can
    /// have it.
    fn of(node: &Node<'_>) -> Option<Self> {
        let number = |name, otherwise| match node.property(name) {
            None => Some(otherwise),
            Some(_) => node.number(name),
        };
        let shift = number(b"reg-shift", 0)?;
        let width = match number(b"reg-io-width", 1)? {
            1 => Width::Bits8,
            2 => Width::Bits16,
            4 => Width::Bits32,
            _ => return None,
        };
        // A greater shift leaves no two registers in one page of the smallest size.
        let shift = u8::try_from(shift).ok().filter(|shift| *shift <= 9)?;
        // An access must not reach into the next register, and unaligned ones fault.
        (u32::from(width.bytes()) <= 1_u32.wrapping_shl(shift.into()))
            .then_some(Self { shift, width })
    }
}

/// A UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uart {
    /// Physical address of the first register.
    pub base: u64,
    /// Its family.
    pub family: Family,
    /// How its registers are reached.
    pub layout: Layout,
}

impl Uart {
    /// The page of the smallest size with all registers; `None` if they are not in one page, or
    /// are not aligned to their accesses.
    ///
    /// Registers in one such page are in one page of any size, so one page maps them.
    #[must_use]
    pub fn page(&self) -> Option<Range> {
        let mask = PageSize::MIN.bytes().wrapping_sub(1);
        let count = self.family.registers() as u64;
        let bytes = count.wrapping_shl(self.layout.shift.into());
        let width = u64::from(self.layout.width.bytes());
        let is_aligned = self.base & width.wrapping_sub(1) == 0;
        let fits = (self.base & mask).wrapping_add(bytes) <= PageSize::MIN.bytes();
        (is_aligned && fits).then_some(Range {
            start: self.base & !mask,
            bytes: PageSize::MIN.bytes(),
        })
    }
}

/// A family, and the layout of its registers where the name of a device says it.
type Kind = (Family, Option<Layout>);

const PL011: Kind = (Family::Pl011, Some(Layout::WORDS));
const SBSA: Kind = (Family::Sbsa, Some(Layout::WORDS));
const CADENCE: Kind = (Family::Cadence, Some(Layout::WORDS));
const IMX: Kind = (Family::Imx, Some(Layout::WORDS));
/// An 8250 with the layout that its node or its word states.
const STATED_8250: Kind = (Family::Uart8250, None);
const WORDS_8250: Kind = (Family::Uart8250, Some(Layout::WORDS));

/// The values of `compatible`. Bindings that fix the layout of an 8250 let trees leave it out.
const COMPATIBLE: [(&[u8], Kind); 27] = [
    (b"arm,pl011", PL011),
    (b"arm,sbsa-uart", SBSA),
    (b"ns8250", STATED_8250),
    (b"ns16450", STATED_8250),
    (b"ns16550", STATED_8250),
    (b"ns16550a", STATED_8250),
    (b"ns16750", STATED_8250),
    (b"ns16850", STATED_8250),
    (b"snps,dw-apb-uart", STATED_8250),
    (b"mrvl,mmp-uart", STATED_8250),
    (b"intel,xscale-uart", STATED_8250),
    (b"nuvoton,npcm750-uart", STATED_8250),
    (b"nuvoton,npcm845-uart", STATED_8250),
    (b"nvidia,tegra20-uart", WORDS_8250),
    (b"mediatek,mt6577-uart", WORDS_8250),
    (b"ti,omap2-uart", WORDS_8250),
    (b"ti,omap3-uart", WORDS_8250),
    (b"ti,omap4-uart", WORDS_8250),
    (b"ti,am654-uart", WORDS_8250),
    // The mini UART of the Raspberry Pi.
    (b"brcm,bcm2835-aux-uart", WORDS_8250),
    (b"cdns,uart-r1p8", CADENCE),
    (b"cdns,uart-r1p12", CADENCE),
    (b"xlnx,xuartps", CADENCE),
    (b"fsl,imx21-uart", IMX),
    (b"fsl,imx53-uart", IMX),
    (b"fsl,imx6q-uart", IMX),
    (b"fsl,imx8mp-uart", IMX),
];

/// Linux's names of early consoles.
const EARLY: [(&[u8], Kind); 9] = [
    (b"pl011", PL011),
    (b"uart", STATED_8250),
    (b"uart8250", STATED_8250),
    (b"ns16550", STATED_8250),
    (b"ns16550a", STATED_8250),
    (b"bcm2835aux", WORDS_8250),
    (b"cdns", CADENCE),
    (b"ec_imx21", IMX),
    (b"ec_imx6q", IMX),
];

/// What a value of `earlycon=` may have before the address: the kind of accesses.
const ACCESSES: [(&[u8], Layout); 4] = [
    (b"mmio,", Layout::BYTES),
    (
        b"mmio16,",
        Layout {
            shift: 1,
            width: Width::Bits16,
        },
    ),
    (b"mmio32,", Layout::WORDS),
    (b"mmio32native,", Layout::WORDS),
];

/// The kind of the UART that a node describes, by the first of its names that is known: the most
/// exact one.
fn kind(node: &Node<'_>) -> Option<Kind> {
    node.strings(b"compatible")
        .find_map(|name| named(&COMPATIBLE, name))
}

fn named(table: &[(&[u8], Kind)], name: &[u8]) -> Option<Kind> {
    let row = table.iter().find(|(known, _)| same(known, name))?;
    Some(row.1)
}

/// Whether a node describes a UART.
pub(crate) fn family(node: &Node<'_>) -> Option<Family> {
    kind(node).map(|(family, _)| family)
}

/// The layout of the UART of a node, if its family is known.
pub(crate) fn layout(node: &Node<'_>) -> Option<Layout> {
    match kind(node)? {
        (_, Some(layout)) => Some(layout),
        (_, None) => Layout::of(node),
    }
}

/// The family of the early console `name`, the layout of its registers, and what follows the kind
/// of accesses in `rest`.
pub(crate) fn early<'a>(name: &[u8], rest: &'a [u8]) -> Option<(Family, Layout, &'a [u8])> {
    let (family, fixed) = named(&EARLY, name)?;
    let stated = ACCESSES
        .iter()
        .find_map(|(word, layout)| Some((*layout, after(rest, word)?)));
    let (layout, rest) = stated.unwrap_or((Layout::BYTES, rest));
    Some((family, fixed.unwrap_or(layout), rest))
}

/// The beginning of a device's name in a value of `console=`, and what follows it. Linux's other
/// devices are none: an upper-case letter makes another name, as in `ttySAC0`.
pub(crate) fn device(name: &[u8]) -> Option<(&'static [u8], &[u8])> {
    Family::ALL.iter().find_map(|family| {
        let rest = after(name, family.device())?;
        let is_another = rest.first().is_some_and(u8::is_ascii_uppercase);
        (!is_another).then_some((family.device(), rest))
    })
}
