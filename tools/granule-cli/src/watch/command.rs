//! The command that is watched: the user's own QEMU command with the options that watching needs. Pure; `mod.rs`
//! runs it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::boot::qemu::option_with_path;
use crate::sizes::parse_size;

/// The id of the memory that is added.
const RAM_ID: &str = "granule-ram";
/// The name that QEMU gives to memory files.
const MEMORY_FILE: &str = "memory-backend-memfd";
/// The supported machines: the first address of their RAM, and its size without `-m`.
const MACHINES: [(&str, u64, u64); 2] = [
    ("virt", 0x4000_0000, 128 << 20),
    ("sbsa-ref", 0x100_0000_0000, 1 << 30),
];

/// Where a QEMU that can be watched comes from.
pub(crate) const NEWER: &str = "10.0 to 11.1 can be watched: Debian 13 has 10.0, Debian 12 in its \
    backports (apt install -t bookworm-backports qemu-system-arm); --qemu PATH, or the first word of a COMMAND, \
    names another";

/// Where the plugin finds the guest's RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ram {
    /// A part of the name of the mapping.
    pub(crate) name: String,
    /// The first physical address.
    pub(crate) base: u64,
    /// The number of bytes.
    pub(crate) bytes: u64,
}

/// A command that is ready but for the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) qemu: PathBuf,
    pub(crate) options: Vec<OsString>,
    /// The options that were added or changed.
    pub(crate) added: Vec<String>,
    pub(crate) ram: Ram,
    /// Why RAM cannot be seen, if it cannot.
    pub(crate) unseen: Option<String>,
}

/// Adds what watching needs to a command.
/// Fails with one line for a command that cannot be watched.
pub(crate) fn prepare(command: &[OsString]) -> Result<Prepared, String> {
    let Some((qemu, options)) = command.split_first() else {
        return Err("no command to watch: `granule watch -- qemu-system-aarch64 ...`".into());
    };
    let mut options = options.to_vec();
    let mut added = Vec::new();
    if options.iter().any(|word| is(word, "-daemonize")) {
        return Err(
            "-daemonize: a QEMU that leaves its console cannot be waited for; leave it out".into(),
        );
    }
    threads(&mut options, &mut added)?;
    if !options.iter().any(|word| is(word, "-no-reboot")) {
        // Plugins get no event when a machine begins anew.
        add(&mut options, &mut added, &["-no-reboot"]);
    }
    let (ram, unseen) = memory(&mut options, &mut added)?;
    Ok(Prepared {
        qemu: qemu.into(),
        options,
        added,
        ram,
        unseen,
    })
}

fn add(options: &mut Vec<OsString>, added: &mut Vec<String>, words: &[&str]) {
    options.extend(words.iter().map(OsString::from));
    added.push(words.join(" "));
}

/// Whether a word is an option; QEMU takes two hyphens for one.
fn is(word: &OsStr, option: &str) -> bool {
    let word = word.to_string_lossy();
    word == option || word.strip_prefix('-') == Some(option)
}

/// The places of the values of an option.
fn places(options: &[OsString], names: &[&str]) -> Vec<usize> {
    let is_named = |index: &usize| {
        let word = index.checked_sub(1).and_then(|before| options.get(before));
        word.is_some_and(|word| names.iter().any(|name| is(word, name)))
    };
    (1..options.len()).filter(is_named).collect()
}

/// The values of an option, in order.
fn values(options: &[OsString], names: &[&str]) -> Vec<String> {
    let places = places(options, names).into_iter();
    places
        .filter_map(|index| Some(options.get(index)?.to_string_lossy().into_owned()))
        .collect()
}

fn part<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let mut parts = value.split(',').filter_map(|part| part.split_once('='));
    parts.find_map(|(name, value)| (name == key).then_some(value))
}

/// One thread for each CPU: with one for all, QEMU 10.0 names the wrong CPU.
fn threads(options: &mut Vec<OsString>, added: &mut Vec<String>) -> Result<(), String> {
    const WHY: &str = "only QEMU's TCG with a thread for each CPU can be watched";
    if options.iter().any(|word| is(word, "-icount")) {
        return Err(format!("-icount: {WHY}"));
    }
    if options.iter().any(|word| is(word, "-enable-kvm")) {
        return Err(format!("-enable-kvm: {WHY}"));
    }
    for machine in values(options, &["-machine", "-M"]) {
        if let Some(accel) = part(&machine, "accel").filter(|accel| *accel != "tcg") {
            return Err(format!("-machine accel={accel}: {WHY}"));
        }
    }
    let places = places(options, &["-accel"]);
    if places.is_empty() {
        add(options, added, &["-accel", "tcg,thread=multi"]);
        return Ok(());
    }
    for place in places {
        let Some(word) = options.get_mut(place) else {
            continue;
        };
        let value = word.to_string_lossy().into_owned();
        let kind = value.split(',').next().unwrap_or_default();
        let threads = part(&value, "thread").unwrap_or("multi");
        if kind != "tcg" || threads != "multi" {
            return Err(format!("-accel {value}: {WHY}"));
        }
        if part(&value, "thread").is_none() {
            word.push(",thread=multi");
            added.push(format!("-accel {value},thread=multi"));
        }
    }
    Ok(())
}

/// RAM that the plugin finds: in a memory file.
fn memory(
    options: &mut Vec<OsString>,
    added: &mut Vec<String>,
) -> Result<(Ram, Option<String>), String> {
    let machines = values(options, &["-machine", "-M"]);
    let kind = machines.iter().find_map(|value| {
        let first = value.split(',').next()?;
        match first.split_once('=') {
            None => Some(first.to_owned()),
            Some(("type", kind)) => Some(kind.to_owned()),
            _ => None,
        }
    });
    let kind = kind.unwrap_or_else(|| "none".into());
    // Versioned machines: virt-10.0.
    let known = MACHINES.iter().find(|(name, ..)| {
        let rest = kind.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
    let bytes = match values(options, &["-m"]).last() {
        None => known.map_or(0, |(_, _, bytes)| *bytes),
        Some(value) => ram_bytes(value)?,
    };
    let ram = |name: &str| Ram {
        name: name.into(),
        base: known.map_or(0, |(_, base, _)| *base),
        bytes,
    };
    if known.is_none() {
        let why = format!(
            "the address of RAM of -machine {kind} is not known: of virt and sbsa-ref it is"
        );
        return Ok((ram(MEMORY_FILE), Some(why)));
    }
    let backend = machines
        .iter()
        .rev()
        .find_map(|it| part(it, "memory-backend"));
    if let Some(backend) = backend {
        let objects = values(options, &["-object"]);
        let object = objects.iter().find(|it| part(it, "id") == Some(backend));
        let object = object.map_or("", String::as_str);
        let kind = object.split(',').next().unwrap_or_default();
        return Ok(match (kind, part(object, "mem-path")) {
            (MEMORY_FILE, _) => (ram(MEMORY_FILE), None),
            ("memory-backend-file", Some(path)) if part(object, "share") == Some("on") => {
                (ram(path), None)
            }
            _ => {
                let why = format!(
                    "the memory {backend} of the command is in no file that is shared: leave out \
                     memory-backend={backend}, or use memory-backend-memfd"
                );
                (ram(MEMORY_FILE), Some(why))
            }
        });
    }
    let nodes = values(options, &["-numa"]);
    if let Some(node) = nodes.iter().find(|it| part(it, "memdev").is_some()) {
        let why = format!(
            "-numa {node}: only RAM in one piece can be seen; leave -numa and its memory out"
        );
        return Ok((ram(MEMORY_FILE), Some(why)));
    }
    let object = format!("{MEMORY_FILE},id={RAM_ID},size={bytes},share=on,reserve=off");
    add(options, added, &["-object", &object]);
    let backend = format!("memory-backend={RAM_ID}");
    add(options, added, &["-machine", &backend]);
    Ok((ram(MEMORY_FILE), None))
}

/// Has RAM that a command keeps to itself be in a memory file, where the plugin finds it.
pub(crate) fn in_memory_file(options: &mut [OsString], base: u64, bytes: u64) -> Ram {
    for word in options {
        let own = word.to_string_lossy();
        if let Some(rest) = own.strip_prefix("memory-backend-ram,") {
            *word = format!("{MEMORY_FILE},share=on,{rest}").into();
        }
    }
    Ram {
        name: MEMORY_FILE.into(),
        base,
        bytes,
    }
}

/// The size in a value of `-m`: MiB without a unit.
fn ram_bytes(value: &str) -> Result<u64, String> {
    let first = value.split(',').next().unwrap_or_default();
    let size = match first.split_once('=') {
        None => first,
        Some(_) => part(value, "size").unwrap_or_default(),
    };
    let bytes = match size.parse::<u64>() {
        Ok(mebibytes) => mebibytes.checked_mul(1 << 20),
        Err(_) => parse_size(size).ok(),
    };
    // QEMU rounds up to 8 KiB.
    bytes
        .and_then(|bytes| bytes.checked_next_multiple_of(8 << 10))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("-m {value} is not a size of RAM"))
}

/// The words that load the plugin.
pub(crate) fn plugin_options(plugin: &Path, socket: &Path, ram: &Ram) -> [OsString; 2] {
    let mut value = option_with_path("file=", plugin, ",");
    value.push(option_with_path("socket=", socket, ","));
    value.push(option_with_path("ram-name=", Path::new(&ram.name), ""));
    value.push(format!(",ram-base={},ram-bytes={}", ram.base, ram.bytes));
    ["-plugin".into(), value]
}

/// The version of the plugin interface that a version of QEMU has, or `None` for the plugin to find
/// out.
/// Fails with one line for a version without what is needed.
pub(crate) fn interface(version: &str) -> Result<Option<u32>, String> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    let (Some(major), Some(minor)) = (next(), next()) else {
        return Err(format!("QEMU {version} is not a known version"));
    };
    match (major, minor) {
        (..=9, _) => Err(format!("QEMU {version} is too old; {NEWER}")),
        (10, 0) => Ok(Some(4)),
        (11, 0) => Ok(Some(6)),
        (10, _) => Ok(None),
        _ => Ok(Some(7)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn prepared(line: &str) -> Result<Prepared, String> {
        prepare(&words(line))
    }

    fn options(prepared: &Prepared) -> String {
        let words: Vec<_> = prepared
            .options
            .iter()
            .map(|it| it.to_string_lossy())
            .collect();
        words.join(" ")
    }

    #[test]
    fn missing_options_are_added_and_listed() {
        let ready = prepared("q -machine virt,gic-version=3 -m 2G -kernel I").unwrap();
        assert_eq!(ready.qemu, Path::new("q"));
        let added = [
            "-accel tcg,thread=multi",
            "-no-reboot",
            "-object memory-backend-memfd,id=granule-ram,size=2147483648,share=on,reserve=off",
            "-machine memory-backend=granule-ram",
        ];
        assert_eq!(ready.added, added);
        let expected = format!(
            "-machine virt,gic-version=3 -m 2G -kernel I {}",
            added.join(" ")
        );
        assert_eq!(options(&ready), expected);
        assert_eq!(
            ready.ram,
            Ram {
                name: "memory-backend-memfd".into(),
                base: 0x4000_0000,
                bytes: 2 << 30
            }
        );
        assert_eq!(ready.unseen, None);
    }

    #[test]
    fn existing_options_stay() {
        let line = "-M virt-10.0,memory-backend=m -object memory-backend-memfd,id=m,size=64M -m 64M \
                    -accel tcg,thread=multi -no-reboot";
        let ready = prepared(&format!("q {line}")).unwrap();
        assert!(ready.added.is_empty(), "{:?}", ready.added);
        assert_eq!(ready.unseen, None);
        let ready = prepared("q --accel tcg,tb-size=64 -M sbsa-ref").unwrap();
        assert!(options(&ready).starts_with("--accel tcg,tb-size=64,thread=multi -M"));
        assert_eq!(ready.ram.base, 0x100_0000_0000);
        assert_eq!(ready.ram.bytes, 1 << 30);
        assert_eq!(prepared("q -M virt").unwrap().ram.bytes, 128 << 20);
    }

    #[test]
    fn ram_that_cannot_be_seen_is_reported() {
        for (line, part) in [
            ("q -M raspi3b", "raspi3b"),
            ("q", "-machine none"),
            ("q -M virtual", "virtual"),
            (
                "q -M virt,memory-backend=m -object memory-backend-ram,id=m,size=1G -m 1G",
                "the memory m",
            ),
            (
                "q -M virt -object memory-backend-ram,id=m,size=1G -m 1G -numa node,memdev=m",
                "-numa node,memdev=m: ",
            ),
        ] {
            let ready = prepared(line).unwrap();
            assert!(!options(&ready).contains(RAM_ID), "{line}");
            let unseen = ready.unseen.unwrap();
            assert!(unseen.contains(part) && !unseen.contains('\n'), "{unseen}");
        }
    }

    #[test]
    fn a_command_that_cannot_be_watched_is_one_line() {
        for (line, part) in [
            ("", "no command"),
            ("q -accel kvm", "-accel kvm"),
            ("q -accel tcg,thread=single", "thread=single"),
            ("q -icount shift=0", "-icount"),
            ("q -M virt,accel=hvf", "accel=hvf"),
            ("q -enable-kvm", "-enable-kvm"),
            ("q -M virt --daemonize", "-daemonize"),
            ("q -M virt -m much", "-m much"),
            ("q -M virt -m 0", "-m 0"),
        ] {
            let error = prepared(line).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn sizes_of_ram_are_in_the_units_of_qemu() {
        for (value, bytes) in [
            ("1024", 1 << 30),
            ("1G", 1 << 30),
            ("size=512M,slots=2,maxmem=2G", 512 << 20),
            ("512M,slots=2", 512 << 20),
        ] {
            assert_eq!(ram_bytes(value), Ok(bytes), "{value}");
        }
    }

    #[test]
    fn paths_with_commas_are_doubled() {
        let ram = Ram {
            name: "a,b".into(),
            base: 1,
            bytes: 2,
        };
        let [_, value] = plugin_options(Path::new("/p,q.so"), Path::new("/s"), &ram);
        assert_eq!(
            value.to_str().unwrap(),
            "file=/p,,q.so,socket=/s,ram-name=a,,b,ram-base=1,ram-bytes=2"
        );
    }

    #[test]
    fn each_version_has_its_interface_or_a_reason() {
        for (version, expected) in [
            ("10.0.2", Some(4)),
            ("10.1.0", None),
            ("11.0.0", Some(6)),
            ("11.1.3", Some(7)),
            ("12.0.0", Some(7)),
        ] {
            assert_eq!(interface(version), Ok(expected), "{version}");
        }
        let error = interface("7.2.22").unwrap_err();
        assert!(error.contains("bookworm-backports") && !error.contains('\n'));
        assert!(interface("x").is_err());
    }
}
