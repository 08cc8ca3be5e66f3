//! Every kind of UART that can be the console, as trees and command lines name it.

use crate::trees::{TWO_CELLS, cells, leaf, node, peek, tree};
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
    let soc = node("soc", &one, vec![leaf("serial@1", &properties)]);
    let chosen = leaf("chosen", &[("stdout-path", b"/soc/serial@1:115200\0")]);
    let bytes = tree(&TWO_CELLS, vec![chosen, soc]);
    let consoles = peek(&bytes).consoles;
    let error = consoles.passed_over().next();
    consoles.first().ok_or_else(|| error.unwrap().1)
}

#[test]
fn a_node_says_the_family_and_how_its_registers_are_reached() {
    use Family::{Cadence, Imx, Pl011, Sbsa, Uart8250};
    let plain: &[(&str, &[u32])] = &[];
    let shift: &[(&str, &[u32])] = &[("reg-shift", &[2])];
    let words: &[(&str, &[u32])] = &[("reg-shift", &[2]), ("reg-io-width", &[4])];
    let halves: &[(&str, &[u32])] = &[("reg-shift", &[0, 1]), ("reg-io-width", &[2])];
    // The most exact of the names counts.
    for (names, more, (family, shift, width)) in [
        ("arm,pl011 arm,primecell", plain, (Pl011, 2, Bits32)),
        ("arm,pl011 arm,sbsa-uart", plain, (Pl011, 2, Bits32)),
        ("arm,sbsa-uart", plain, (Sbsa, 2, Bits32)),
        ("arm,sbsa-uart arm,pl011", plain, (Sbsa, 2, Bits32)),
        ("ns8250", plain, (Uart8250, 0, Bits8)),
        ("ns16450", plain, (Uart8250, 0, Bits8)),
        ("ns16550", plain, (Uart8250, 0, Bits8)),
        ("fsl,ns16550 ns16550a", plain, (Uart8250, 0, Bits8)),
        ("ns16550a", halves, (Uart8250, 1, Bits16)),
        ("ns16750", plain, (Uart8250, 0, Bits8)),
        ("ns16850", shift, (Uart8250, 2, Bits8)),
        ("snps,dw-apb-uart", words, (Uart8250, 2, Bits32)),
        ("x snps,dw-apb-uart", shift, (Uart8250, 2, Bits8)),
        ("mrvl,mmp-uart", shift, (Uart8250, 2, Bits8)),
        ("intel,xscale-uart", shift, (Uart8250, 2, Bits8)),
        ("nuvoton,npcm750-uart", shift, (Uart8250, 2, Bits8)),
        ("nuvoton,npcm845-uart", shift, (Uart8250, 2, Bits8)),
        ("x nvidia,tegra20-uart", shift, (Uart8250, 2, Bits32)),
        ("x mediatek,mt6577-uart", plain, (Uart8250, 2, Bits32)),
        ("x ti,am654-uart", plain, (Uart8250, 2, Bits32)),
        ("brcm,bcm2835-aux-uart", plain, (Uart8250, 2, Bits32)),
        ("x cdns,uart-r1p12", plain, (Cadence, 2, Bits32)),
        ("cdns,uart-r1p8", plain, (Cadence, 2, Bits32)),
        ("xlnx,xuartps", plain, (Cadence, 2, Bits32)),
        ("fsl,imx21-uart", plain, (Imx, 2, Bits32)),
        ("fsl,imx53-uart fsl,imx21-uart", plain, (Imx, 2, Bits32)),
        ("x fsl,imx6q-uart", plain, (Imx, 2, Bits32)),
        ("fsl,imx8mp-uart", plain, (Imx, 2, Bits32)),
    ] {
        let compatible = names.replace(' ', "\0") + "\0";
        let found = described(compatible.as_bytes(), &[0x7e21_5040, 0x40], more);
        assert_eq!(
            found,
            Ok(uart(family, 0x3f21_5040, shift, width)),
            "{names}"
        );
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
    let chosen = leaf("chosen", &[("bootargs", bootargs.as_bytes())]);
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
    let chosen = leaf("chosen", &[("bootargs", bootargs.as_bytes())]);
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
