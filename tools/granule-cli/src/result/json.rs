//! The JSON object of a boot. Every key is always present; an unknown value is null.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::console_record::{KEYS, RecordLines, insert};
use super::guest::{Crash, Guest, Kexec};
use super::{Boot, Outcome};
use crate::image::Image;
use crate::json::{Version, value};

/// Result of `granule boot --json`: exactly one object, on one line of standard output, whether the boot went
/// well or not. The guest's console goes to standard error. Only for a command line that cannot be parsed (an
/// unknown option, a malformed size) there is no object, but a line on standard error, and the exit code
/// is 2.
///
/// Every key that is required is always there, and null if its value is unknown; a guest that never printed its
/// record has null nearly everywhere. Sizes are in bytes.
///
/// With several kernels (`--kexec IMAGE`, `--kexec-page-size SIZE`) the console has several records. The keys
/// about the guest describe the last kernel that printed its page size; `boots` has each kernel. All records
/// together give the outcome. Every kernel must end well, and leave for the next one if there is one. The first
/// kernel that did not gives outcome and reason; the reason names the kernel (`the next kernel: ...`) unless it
/// is the first. A next kernel of ours (its image has a boot record) must print a record of its own that ends
/// well; if it parks with its MMU off the outcome is `refused`, with the message of the boot record in its image.
/// A next kernel of others, without a record, is `ok` if it powers the machine off and the console has no
/// `Kernel panic - not syncing`; with that line the outcome is `panic`, without an end it is `timeout`. A kernel
/// that refuses to load its files is `refused`, with `kexec.refused` as the reason; one that should leave and
/// powers off instead is `guest-exit`. `digest_ok` false is `self-check-failed`; the reason names what differs.
///
/// With `--crash` the first kernel must crash: its record ends with `panic`, whose reason is in `crash`. The crash kernel
/// must end well as a next kernel must, and leave a core on its disk whose page tables can all be read; then the outcome
/// is `ok`. A crash kernel that wrote no whole core is `panic`.
///
/// By default each boot has a new KASLR seed, so its tree and its addresses differ. With `--kaslr-seed off` or a
/// number, two boots of one request have the same device tree. With `--icount` too, they agree in every
/// difference of two clock readings: the virtual clock counts instructions in one host thread. The clock does
/// not start at 0, so a single reading means nothing.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule boot --json", extend("additionalProperties" = true))]
pub(crate) struct Object {
    schema: Version,
    image: ImageObject,
    qemu: Qemu,
    #[serde(flatten)]
    #[schemars(with = "Guest")]
    guest: Map<String, Value>,
    outcome: Outcome,
    /// One line with the reason; null if the outcome is `ok`.
    reason: Option<String>,
    /// Record lines of all kernels that could not be understood, each with what was expected; empty when all is
    /// well.
    record_faults: Vec<String>,
    /// Trace that was written (docs/trace-format.md); null if none was requested, or it could not be written.
    trace: Option<Trace>,
    /// Each kernel that printed a record, in order.
    #[schemars(with = "Vec<One>")]
    boots: Vec<Value>,
    /// Cost of leaving for another kernel; null if no kernel left or was to leave.
    #[schemars(with = "Option<Kexec>")]
    kexec: Value,
    /// Kernel that crashed into a crash kernel; null if none did.
    #[schemars(with = "Option<Crash>")]
    crash: Value,
}

/// The image file; each key is null if it could not be read.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ImageObject {
    /// The file.
    path: Option<String>,
    /// SHA-256 of the file, hexadecimal, lower case.
    sha256: Option<String>,
    /// Length of the file.
    bytes: Option<u64>,
}

impl ImageObject {
    pub(crate) fn of(boot: &Boot) -> Self {
        let image = boot.image.as_ref();
        let path = |image: &Image| image.path.to_string_lossy().into_owned();
        Self {
            path: image.map(path),
            sha256: image.map(|image| image.sha256.clone()),
            bytes: image.map(|image| image.bytes),
        }
    }
}

/// The emulator.
#[derive(Serialize, JsonSchema)]
struct Qemu {
    /// QEMU's own version, such as `7.2.22`; null if QEMU is missing, or the image was refused before QEMU was
    /// started.
    version: Option<String>,
    /// Text of `--cpu`.
    cpu: String,
    /// Way in which the kernel was to be started, the word of `--firmware`: `direct`, `uefi`, `u-boot`,
    /// `u-boot-efi`, `grub`, `systemd-boot`.
    firmware: &'static str,
    /// Peak of QEMU's resident host memory, its own code and data included; null if QEMU did not run, or the
    /// host is not Linux.
    peak_resident_bytes: Option<u64>,
}

/// A trace file.
#[derive(Serialize, JsonSchema)]
struct Trace {
    /// The file.
    path: String,
    /// Events in it.
    events: u64,
    /// Whether it has every event up to the kernel's end.
    complete: bool,
}

/// Leaves of one kind in a map.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Leaf {
    /// Bytes of a leaf, or of the whole group when contiguous.
    pub(crate) size: u64,
    /// Whether they are contiguous groups.
    pub(crate) contiguous: bool,
    /// Number of leaves, or of groups.
    pub(crate) count: u64,
}

/// One kernel's record.
#[derive(Serialize, JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
struct One {
    #[serde(flatten)]
    #[schemars(with = "Guest")]
    guest: Map<String, Value>,
    /// Outcome of this kernel by its own record: `ok`, `panic`, `refused`, `self-check-failed`, `guest-exit` or
    /// null. A kernel that left printed `ok`.
    outcome: Option<&'static str>,
    /// Reason in its record; null if there is none.
    reason: Option<String>,
    /// Whether its record is complete.
    ended: bool,
    /// Its lines that could not be understood.
    record_faults: Vec<String>,
}

pub(crate) fn object(boot: &Boot) -> Value {
    let guest = guest(&boot.record);
    // The kernels' own keys stand beside what is known here.
    let beside = |key: &str, known: Value| match (guest.get(key), known) {
        (Some(Value::Object(printed)), Value::Object(known)) => {
            Value::Object(printed.clone().into_iter().chain(known).collect())
        }
        (Some(printed), Value::Null) => printed.clone(),
        (_, known) => known,
    };
    let kexec = beside("kexec", value(&boot.kexec));
    let crash = beside("crash", value(&boot.crash));
    let faults = boot.boots.iter().flat_map(RecordLines::faults);
    value(Object {
        schema: Version,
        image: ImageObject::of(boot),
        qemu: Qemu {
            version: boot.qemu_version.clone(),
            cpu: boot.cpu.clone(),
            firmware: boot.firmware.word(),
            peak_resident_bytes: boot.peak_resident_bytes,
        },
        guest,
        outcome: boot.outcome,
        reason: boot.reason.clone(),
        record_faults: faults.cloned().collect(),
        trace: boot.trace.as_ref().map(|trace| Trace {
            path: trace.path.to_string_lossy().into_owned(),
            events: trace.events,
            complete: trace.complete,
        }),
        boots: boot.boots.iter().map(|record| value(one(record))).collect(),
        kexec,
        crash,
    })
}

fn one(record: &RecordLines) -> One {
    One {
        guest: guest(record),
        outcome: record.outcome().map(Outcome::word),
        reason: record.reason().map(str::to_owned),
        ended: record.has_ended(),
        record_faults: record.faults().to_vec(),
    }
}

/// The kernel's own keys, null where it did not print them.
fn guest(record: &RecordLines) -> Map<String, Value> {
    let mut object = Map::new();
    for (path, _) in KEYS {
        // No path in the table runs through another.
        let _ = insert(&mut object, path, Value::Null);
    }
    merge(&mut object, record.values());
    object
}

fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            // An object of the schema stays an object, whatever a guest prints.
            (Some(Value::Object(_)), _) => (),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::image::HeaderFields;
    use crate::result::console_record::KeyKind;
    use crate::schema::assert_matches;
    use crate::{Request, boot};

    fn failed() -> Boot {
        boot::run(&Request::default().image("/nonexistent/Image"))
    }

    #[test]
    fn a_boot_that_never_began_has_every_key_and_nulls() {
        let object = failed().json();
        assert_matches("boot", &object);
        assert_eq!(object["schema"], 1);
        assert_eq!(object["outcome"], "refused");
        assert_eq!(object["qemu"]["cpu"], "max");
        for path in ["page_size", "errata", "lpa2"] {
            assert_eq!(object[path], Value::Null);
        }
        assert_eq!(object["linear_map"]["leaves"], Value::Null);
    }

    #[test]
    fn keys_of_the_guest_stand_in_their_places() {
        let mut boot = failed();
        boot.outcome = Outcome::Ok;
        boot.reason = None;
        boot.image = Some(Image {
            path: "I".into(),
            sha256: "ab".into(),
            bytes: 5,
            header: HeaderFields {
                text_offset: 0,
                image_size: 5,
            },
            boot_record: None,
        });
        let mut record = RecordLines::default();
        for line in [
            "page_size=4096",
            "linear_map.tlbi=3",
            "linear_map.new=1",
            "bench.x=2",
            "end",
        ] {
            record.line(line);
        }
        // Refused at the record already, and harmless here as well.
        record.line("linear_map=7");
        record.line("bbm_level=7");
        boot.record = record;
        let object = boot.json();
        assert_matches("boot", &object);
        assert_eq!(
            object["image"],
            json!({ "path": "I", "sha256": "ab", "bytes": 5 })
        );
        assert_eq!(object["page_size"], 4096);
        assert_eq!(object["linear_map"]["tlbi"], 3);
        assert_eq!(object["linear_map"]["instructions"], Value::Null);
        assert_eq!(object["linear_map"]["new"], 1);
        assert_eq!(object["bench"]["x"], 2);
        assert_eq!(object["errata"], json!([]));
        assert_eq!(object["bbm_level"]["id"], Value::Null);
        assert_eq!(object["reason"], Value::Null);
        assert_eq!(object["outcome"], "ok");
    }

    #[test]
    fn keys_of_the_record_have_their_types_in_both_documents() {
        let schema = crate::schema::of("boot").unwrap();
        let document = include_str!("../../../../docs/boot-record.md");
        for (path, kind) in KEYS {
            let mut described = &schema;
            for word in path.split('.') {
                if let Some(Value::String(to)) = described.get("$ref") {
                    described = schema.pointer(to.trim_start_matches('#')).unwrap();
                }
                described = &described["properties"][word];
            }
            let expected = match kind {
                KeyKind::Integer | KeyKind::Level => "integer",
                KeyKind::Bool => "boolean",
                KeyKind::Text | KeyKind::Word(_) => "string",
                KeyKind::Texts | KeyKind::Leaves | KeyKind::Objects => "array",
            };
            assert_eq!(described["type"], json!([expected, "null"]), "{path}");
            assert!(described["description"].is_string(), "{path}");
            let line = match *path {
                "linear_map.leaves" => "linear_map.leaf",
                "cpu_facts" => "cpu",
                "drivers" => "driver",
                "phases" => "phase",
                path => path,
            };
            let is_there = document.contains(&format!("`{line}`"));
            assert!(is_there, "docs/boot-record.md lacks {line}");
        }
    }
}
