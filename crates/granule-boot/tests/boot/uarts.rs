//! Every kind of UART that can be the console, as trees and command lines name it.

use crate::trees::{TWO_CELLS, cells, node, peek, tree};
use granule_boot::peek::ConsoleError;
use granule_boot::tree::Tree;
use granule_boot::uart::Width::{self, Bits8, Bits16, Bits32};
use granule_boot::uart::{Family, Layout, Uart};

fn uart(family: Family, base: u64, shift: u8, width: Width) -> Uart {
    Uart {
        base,
        family,
        layout: Layout { shift, width },
    }
}

/// The console of a tree whose `stdout-path` leads to a UART with these properties.
fn described(
    compatible: &[u8],
    reg: &[u32],
    more: &[(&str, &[u32])],
) -> Result<Uart, ConsoleError> {
    let reg = cells(reg);
    let more: Vec<_> = more
        .iter()
        .map(|(name, value)| (*name, cells(value)))
        .collect();
    let mut properties = vec![("compatible", compatible), ("reg", &reg[..])];
    properties.extend(more.iter().map(|(name, value)| (*name, &value[..])));
    // A bus as on a Raspberry Pi 3, whose addresses are not the CPU's.
    let ranges = cells(&[0x7e00_0000, 0, 0x3f00_0000, 0x100_0000]);
    let one: [(&str, &[u8]); 3] = [
        ("#address-cells", &[0, 0, 0, 1]),
        ("#size-cells", &[0, 0, 0, 1]),
        ("ranges", &ranges),
    ];
    let soc = node("soc", &one, vec![node("serial@1", &properties, vec![])]);
    let chosen = node(
        "chosen",
        &[("stdout-path", b"/soc/serial@1:115200\0")],
        vec![],
    );
    let bytes = tree(&TWO_CELLS, vec![chosen, soc]);
    let consoles = peek(&bytes).consoles;
    let error = consoles.passed_over().next();
    consoles.first().ok_or_else(|| error.unwrap().1)
}

/// A value of `compatible`, the other properties, and the UART that they describe.
type Kind = (
    &'static [u8],
    &'static [(&'static str, &'static [u32])],
    Family,
    u8,
    Width,
);

#[test]
fn a_node_says_the_family_and_how_its_registers_are_reached() {
    let shift: &[(&str, &[u32])] = &[("reg-shift", &[2])];
    let words: &[(&str, &[u32])] = &[("reg-shift", &[2]), ("reg-io-width", &[4])];
    let kinds: [Kind; 27] = [
        (b"arm,pl011\0arm,primecell\0", &[], Family::Pl011, 2, Bits32),
        (b"arm,sbsa-uart\0", &[], Family::Sbsa, 2, Bits32),
        // The most exact name counts.
        (b"arm,sbsa-uart\0arm,pl011\0", &[], Family::Sbsa, 2, Bits32),
        (b"arm,pl011\0arm,sbsa-uart\0", &[], Family::Pl011, 2, Bits32),
        (b"ns8250\0", &[], Family::Uart8250, 0, Bits8),
        (b"ns16450\0", &[], Family::Uart8250, 0, Bits8),
        (b"ns16550\0", &[], Family::Uart8250, 0, Bits8),
        (b"fsl,ns16550\0ns16550a\0", &[], Family::Uart8250, 0, Bits8),
        (
            b"ns16550a\0",
            &[("reg-shift", &[0, 1]), ("reg-io-width", &[2])],
            Family::Uart8250,
            1,
            Bits16,
        ),
        (b"ns16750\0", &[], Family::Uart8250, 0, Bits8),
        (b"ns16850\0", shift, Family::Uart8250, 2, Bits8),
        (b"snps,dw-apb-uart\0", words, Family::Uart8250, 2, Bits32),
        (
            b"rockchip,rk3399-uart\0snps,dw-apb-uart\0",
            words,
            Family::Uart8250,
            2,
            Bits32,
        ),
        (
            b"marvell,armada-38x-uart\0snps,dw-apb-uart\0",
            shift,
            Family::Uart8250,
            2,
            Bits8,
        ),
        (
            b"mrvl,mmp-uart\0intel,xscale-uart\0",
            shift,
            Family::Uart8250,
            2,
            Bits8,
        ),
        (b"nuvoton,npcm750-uart\0", shift, Family::Uart8250, 2, Bits8),
        (
            b"nuvoton,npcm845-uart\0nuvoton,npcm750-uart\0",
            shift,
            Family::Uart8250,
            2,
            Bits8,
        ),
        (
            b"nvidia,tegra186-uart\0nvidia,tegra20-uart\0",
            shift,
            Family::Uart8250,
            2,
            Bits32,
        ),
        (
            b"mediatek,mt8183-uart\0mediatek,mt6577-uart\0",
            &[],
            Family::Uart8250,
            2,
            Bits32,
        ),
        (
            b"ti,am64-uart\0ti,am654-uart\0",
            &[],
            Family::Uart8250,
            2,
            Bits32,
        ),
        (b"brcm,bcm2835-aux-uart\0", &[], Family::Uart8250, 2, Bits32),
        (
            b"xlnx,zynqmp-uart\0cdns,uart-r1p12\0",
            &[],
            Family::Cadence,
            2,
            Bits32,
        ),
        (b"cdns,uart-r1p8\0", &[], Family::Cadence, 2, Bits32),
        (b"xlnx,xuartps\0", &[], Family::Cadence, 2, Bits32),
        (b"fsl,imx21-uart\0", &[], Family::Imx, 2, Bits32),
        (
            b"fsl,imx53-uart\0fsl,imx21-uart\0",
            &[],
            Family::Imx,
            2,
            Bits32,
        ),
        (
            b"fsl,imx8mp-uart\0fsl,imx6q-uart\0",
            &[],
            Family::Imx,
            2,
            Bits32,
        ),
    ];
    for (compatible, more, family, shift, width) in kinds {
        let found = described(compatible, &[0x7e21_5040, 0x40], more);
        let expected = uart(family, 0x3f21_5040, shift, width);
        assert_eq!(found, Ok(expected), "{}", compatible.escape_ascii());
    }
    for other in [
        &b"vendor,uart\0"[..],
        b"ns1655\0",
        b"ns16550ax\0",
        b"\0",
        b"",
    ] {
        let found = described(other, &[0x7e21_5040, 0x40], &[]);
        assert_eq!(found, Err(ConsoleError::NotKnown));
    }
}

#[test]
fn registers_may_begin_behind_the_address() {
    let offset: &[(&str, &[u32])] = &[("reg-offset", &[0x100])];
    let found = described(b"ns16550a\0", &[0x7e00_0000, 0x1000], offset);
    assert_eq!(found, Ok(uart(Family::Uart8250, 0x3f00_0100, 0, Bits8)));
    let beyond: &[(&str, &[u32])] = &[("reg-offset", &[u32::MAX, u32::MAX])];
    let found = described(b"ns16550a\0", &[0x7e00_0000, 0x1000], beyond);
    assert_eq!(found, Err(ConsoleError::NoAddress));
}

#[test]
fn a_layout_that_cannot_be_is_an_error() {
    let wrong: [&[(&str, &[u32])]; 8] = [
        &[("reg-io-width", &[2])],
        &[("reg-io-width", &[4]), ("reg-shift", &[1])],
        &[("reg-io-width", &[0])],
        &[("reg-io-width", &[3]), ("reg-shift", &[2])],
        &[("reg-io-width", &[8]), ("reg-shift", &[3])],
        &[("reg-shift", &[10])],
        &[("reg-shift", &[u32::MAX, 2])],
        &[("reg-shift", &[])],
    ];
    for properties in wrong {
        let found = described(b"ns16550a\0", &[0x7e00_0000, 0x1000], properties);
        assert_eq!(found, Err(ConsoleError::NoLayout), "{properties:?}");
        // The name of the device determines the layout, whatever else the node contains.
        let found = described(b"ti,am654-uart\0", &[0x7e00_0000, 0x1000], properties);
        assert_eq!(found, Ok(uart(Family::Uart8250, 0x3f00_0000, 2, Bits32)));
    }
}

/// The console that a word names.
fn by_word(word: &str) -> Option<Uart> {
    let bootargs = format!("{word}\0");
    let chosen = node("chosen", &[("bootargs", bootargs.as_bytes())], vec![]);
    let bytes = tree(&TWO_CELLS, vec![chosen]);
    let consoles = peek(&bytes).consoles;
    let error = (consoles.passed_over().next()).map(|(_, error)| error);
    assert!(consoles.first().is_some() || error == Some(ConsoleError::NotUnderstood));
    consoles.first()
}

#[test]
fn earlycon_has_linuxs_spellings() {
    for (value, family, shift, width) in [
        ("pl011,0x1000", Family::Pl011, 2, Bits32),
        ("pl011,mmio32,0x1000,115200n8", Family::Pl011, 2, Bits32),
        ("uart8250,0x1000", Family::Uart8250, 0, Bits8),
        ("uart8250,mmio,0x1000", Family::Uart8250, 0, Bits8),
        ("uart8250,mmio16,0x1000", Family::Uart8250, 1, Bits16),
        (
            "uart8250,mmio32,0x1000,1500000n8",
            Family::Uart8250,
            2,
            Bits32,
        ),
        ("uart8250,mmio32native,0x1000", Family::Uart8250, 2, Bits32),
        ("uart,mmio32,0x1000", Family::Uart8250, 2, Bits32),
        ("ns16550,mmio,0x1000", Family::Uart8250, 0, Bits8),
        ("ns16550a,mmio32,0x1000", Family::Uart8250, 2, Bits32),
        ("bcm2835aux,0x1000", Family::Uart8250, 2, Bits32),
        ("cdns,0x1000,115200n8", Family::Cadence, 2, Bits32),
        ("cdns,mmio,0x1000", Family::Cadence, 2, Bits32),
        ("ec_imx21,0x1000", Family::Imx, 2, Bits32),
        ("ec_imx6q,0x1000,115200", Family::Imx, 2, Bits32),
    ] {
        let found = by_word(&format!("earlycon={value}"));
        assert_eq!(found, Some(uart(family, 0x1000, shift, width)), "{value}");
    }
    for value in [
        "uart8250",
        "uart8250,",
        "uart8250,io,0x3f8",
        "uart8250,mmio32be,0x1000",
        "uart8250,mmio32",
        "uart8250,mmio64,0x1000",
        "uart8250,mmio,mmio32,0x1000",
        "uart8250 ,0x1000",
        "ec_imx,0x1000",
        "cdns0x1000",
        ",0x1000",
    ] {
        assert_eq!(by_word(&format!("earlycon={value}")), None, "{value}");
    }
}

/// Checks `earlycon=` with this value.
fn checked(value: &str) -> Result<Uart, ConsoleError> {
    let bootargs = format!("earlycon={value}\0");
    let chosen = node("chosen", &[("bootargs", bootargs.as_bytes())], vec![]);
    let bytes = tree(&TWO_CELLS, vec![chosen]);
    let tree = Tree::new(&bytes).unwrap();
    let mut consoles = tree.peek().consoles;
    consoles.check(&tree, 1 << 40, &[]);
    let error = consoles.passed_over().next();
    consoles.first().ok_or_else(|| error.unwrap().1)
}

/// The edge is where the last register that a driver accesses ends.
#[test]
fn registers_lie_in_one_page_of_the_smallest_size() {
    for (last, after) in [
        ("pl011,0x1fcc", "pl011,0x1fd0"),
        ("uart8250,mmio,0x1ff8", "uart8250,mmio,0x1ff9"),
        ("uart8250,mmio16,0x1ff0", "uart8250,mmio16,0x1ff2"),
        ("uart8250,mmio32,0x1fe0", "uart8250,mmio32,0x1fe4"),
        ("cdns,0x1fcc", "cdns,0x1fd0"),
        ("ec_imx6q,0x1f48", "ec_imx6q,0x1f4c"),
        ("uart8250,mmio,0x1001", "uart8250,mmio,0x0"),
        ("uart8250,mmio16,0x1002", "uart8250,mmio16,0x1001"),
        ("bcm2835aux,0x3f215040", "bcm2835aux,0x3f215042"),
    ] {
        let found = checked(last);
        assert!(found.is_ok(), "{last}: {found:?}");
        let page = found.unwrap().page().unwrap();
        assert_eq!((page.start % 4096, page.bytes), (0, 4096));
        assert!((page.start..page.start + 4096).contains(&found.unwrap().base));
        assert_eq!(checked(after), Err(ConsoleError::Misaligned), "{after}");
    }
    // A description that no tree and no word gives.
    assert_eq!(uart(Family::Sbsa, 0x1000, 10, Bits8).page(), None);
}
