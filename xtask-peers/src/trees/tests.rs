use super::facts::difference;
use super::*;

/// Everything that `dtc` writes in a value, and buses above a serial line.
const TEXT: &str = r#"/dts-v1/;

/memreserve/	0x0000000000000000 0x0000000000001000;
/ {
	#address-cells = <0x01>;
	#size-cells = <0x01>;
	compatible = "a,b\0c";
	odd = [01 02 ff], "x\"\\\x80", <0x01 0xfffffffe>;
	empty;

	aliases {
		serial0 = "/soc/bus@10/serial@5";
	};

	chosen {
		stdout-path = "serial0:115200n8";
	};

	memory@80000000 {
		device_type = "memory";
		reg = <0x80000000 0x1000 0x80001000 0x1800>;
	};

	soc {
		#address-cells = <0x01>;
		#size-cells = <0x01>;
		ranges = <0x00 0x40000000 0x1000 0x2000 0x50000000 0x1000>;

		bus@10 {
			#address-cells = <0x02>;
			#size-cells = <0x01>;
			ranges = <0x01 0x00 0x2000 0x100>;

			serial@5 {
				compatible = "arm,pl011";
				reg = <0x01 0x05 0x10>;
			};

			serial@6 {
				reg = <0x00 0x05 0x10>;
			};
		};
	};
};
"#;

#[test]
fn the_text_of_a_tree_is_read() {
    let source = text::read(TEXT).unwrap();
    assert_eq!(source.reservations, [(0, 0x1000)]);
    let value = |name: &str| {
        let found = source.root.properties.iter().find(|it| it.0 == name);
        found.map(|it| it.1.as_slice())
    };
    assert_eq!(value("compatible"), Some(&b"a,b\0c\0"[..]));
    let odd = b"\x01\x02\xffx\"\\\x80\0\0\0\0\x01\xff\xff\xff\xfe";
    assert_eq!(value("odd"), Some(&odd[..]));
    assert_eq!(value("empty"), Some(&[][..]));
    let facts = theirs::facts(&source);
    assert_eq!(facts.size[0], 8);
    assert_eq!(facts.banks, [facts::Piece(0x8000_0000, 0x8000_2000)]);
    assert_eq!(facts.console, Some(Ok((0x5000_0005, "pl011", 2, 4))));
    let serial = [
        ("/soc/bus@10/serial@5".to_owned(), Some(0x5000_0005)),
        ("/soc/bus@10/serial@6".to_owned(), None),
    ];
    assert_eq!(facts.serial, serial);
    assert_eq!(facts.cpus, 1);
}

#[test]
fn a_line_that_is_not_understood_is_an_error() {
    for (text, why) in [
        ("/ {\n};\n/ {\n};", "a node follows the root"),
        ("};", "did not begin"),
        ("/ {\na = <1>;\n};", "no hexadecimal number"),
        ("/ {\na = <0x100000000>;\n};", "a cell is too large"),
        ("/ {\na = \"b;\n};", "a string does not end"),
        ("/ {\na = &b;\n};", "a value begins with"),
        ("/ {\na\n};", "does not end on its line"),
        ("a;", "in no node"),
        ("/ {", "no root"),
        ("/memreserve/ 0x1;\n/ {\n};", "not two numbers"),
    ] {
        let error = format!("{:#}", text::read(text).unwrap_err());
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_first_difference_is_told() {
    let source = text::read(TEXT).unwrap();
    let (one, mut other) = (theirs::facts(&source), theirs::facts(&source));
    assert_eq!(difference(&one, &other), None);
    other.reserved.clear();
    assert_eq!(
        difference(&one, &other).unwrap(),
        "ours: reserved 0x0 to 0x1000, dtc's: 1 CPUs"
    );
}

#[test]
fn trees_are_named_below_their_folder() {
    assert_eq!(below("usr/lib/linux-image-6.1/a/b.dtb"), "a/b.dtb");
    assert_eq!(below("usr/lib/modules/7.3/dtb/a/b.dtb"), "a/b.dtb");
    assert_eq!(below("elsewhere/a/b.dtb"), "elsewhere/a/b.dtb");
}
