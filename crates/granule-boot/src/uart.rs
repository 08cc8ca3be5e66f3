//! The description of a UART that can be the console: its family, and how its registers are
//! reached. The names that trees and command lines have for it are here too; the search for a
//! console and the drivers are not.

use super::bytes::after;
use super::tree::{Node, Range};
use granule::arch::PageSize;

/// UARTs with the same registers, so that one driver serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(clippy::exhaustive_enums, reason = "each family needs a driver")]
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

    /// Linux's name of such devices.
    #[must_use]
    pub(crate) const fn device(self) -> Device {
        match self {
            Self::Pl011 | Self::Sbsa => Device::TtyAma,
            Self::Uart8250 => Device::TtyS,
            Self::Cadence => Device::TtyPs,
            Self::Imx => Device::TtyMxc,
        }
    }
}

/// Linux's name of a UART in a value of `console=`, without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// `ttyAMA`: a PL011 or its part by the Server Base System Architecture.
    TtyAma,
    /// `ttyS`: an 8250.
    TtyS,
    /// `ttyPS`: Cadence's.
    TtyPs,
    /// `ttymxc`: that of an i.MX.
    TtyMxc,
}

/// The width of an access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(clippy::exhaustive_enums, reason = "registers have no other width")]
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

/// The distance of the registers, and the width of an access.
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
    /// The layout of its registers.
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
        (is_aligned && fits).then_some(Range::new(self.base & !mask, PageSize::MIN.bytes()))
    }
}

/// A family, and the layout of its registers where the name of a device determines it.
type UartKind = (Family, Option<Layout>);

const PL011: UartKind = (Family::Pl011, Some(Layout::WORDS));
const SBSA: UartKind = (Family::Sbsa, Some(Layout::WORDS));
const CADENCE: UartKind = (Family::Cadence, Some(Layout::WORDS));
const IMX: UartKind = (Family::Imx, Some(Layout::WORDS));
/// An 8250 with the layout that its node or its word states.
const STATED_8250: UartKind = (Family::Uart8250, None);
const WORDS_8250: UartKind = (Family::Uart8250, Some(Layout::WORDS));

/// The kind of the UART with this `compatible`. Bindings that fix the layout of an 8250 let trees leave it
/// out.
///
/// The names here and below are patterns, not rows of tables: a table would have pointers, which code that
/// runs before its relocation cannot read.
const fn compatible(name: &[u8]) -> Option<UartKind> {
    Some(match name {
        b"arm,pl011" => PL011,
        b"arm,sbsa-uart" => SBSA,
        b"ns8250"
        | b"ns16450"
        | b"ns16550"
        | b"ns16550a"
        | b"ns16750"
        | b"ns16850"
        | b"snps,dw-apb-uart"
        | b"mrvl,mmp-uart"
        | b"intel,xscale-uart"
        | b"nuvoton,npcm750-uart"
        | b"nuvoton,npcm845-uart" => STATED_8250,
        b"nvidia,tegra20-uart"
        | b"mediatek,mt6577-uart"
        | b"ti,omap2-uart"
        | b"ti,omap3-uart"
        | b"ti,omap4-uart"
        | b"ti,am654-uart"
        // The mini UART of the Raspberry Pi.
        | b"brcm,bcm2835-aux-uart" => WORDS_8250,
        b"cdns,uart-r1p8" | b"cdns,uart-r1p12" | b"xlnx,xuartps" => CADENCE,
        b"fsl,imx21-uart" | b"fsl,imx53-uart" | b"fsl,imx6q-uart" | b"fsl,imx8mp-uart" => IMX,
        _ => return None,
    })
}

/// The kind of the UART with this name of Linux's early consoles.
const fn early_console(name: &[u8]) -> Option<UartKind> {
    Some(match name {
        b"pl011" => PL011,
        b"uart" | b"uart8250" | b"ns16550" | b"ns16550a" => STATED_8250,
        b"bcm2835aux" => WORDS_8250,
        b"cdns" => CADENCE,
        b"ec_imx21" | b"ec_imx6q" => IMX,
        _ => return None,
    })
}

/// The kind of accesses that a value of `earlycon=` may have before the address, and what follows it.
fn accesses(text: &[u8]) -> Option<(Layout, &[u8])> {
    let halves = Layout {
        shift: 1,
        width: Width::Bits16,
    };
    let named = |word, layout| Some((layout, after(text, word)?));
    named(b"mmio,".as_slice(), Layout::BYTES)
        .or_else(|| named(b"mmio16,", halves))
        .or_else(|| named(b"mmio32,", Layout::WORDS))
        .or_else(|| named(b"mmio32native,", Layout::WORDS))
}

/// The kind of the UART that a node describes, by the first of its names that is known: the most
/// exact one.
fn kind(node: &Node<'_>) -> Option<UartKind> {
    node.strings(b"compatible").find_map(compatible)
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
    let (family, fixed) = early_console(name)?;
    let (layout, rest) = accesses(rest).unwrap_or((Layout::BYTES, rest));
    Some((family, fixed.unwrap_or(layout), rest))
}

/// The device in a value of `console=`, and what follows its name. Linux's other devices are none: an
/// upper-case letter makes another name, as in `ttySAC0`.
pub(crate) fn device(name: &[u8]) -> Option<(Device, &[u8])> {
    let named = |word, device| {
        let rest = after(name, word)?;
        let is_another = rest.first().is_some_and(u8::is_ascii_uppercase);
        (!is_another).then_some((device, rest))
    };
    named(b"ttyAMA".as_slice(), Device::TtyAma)
        .or_else(|| named(b"ttyS", Device::TtyS))
        .or_else(|| named(b"ttyPS", Device::TtyPs))
        .or_else(|| named(b"ttymxc", Device::TtyMxc))
}
