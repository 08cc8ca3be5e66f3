//! The JSON object of a boot: schema 1, documented in `docs/boot-json.md`. Every key is always
//! present; an unknown value is null.

use serde_json::{Map, Value, json};

use super::record::{KEYS, RecordLines, insert};
use super::{Boot, Figures, KernelOutcome};

/// The schema's number. Keys may be added to a schema but never removed.
const SCHEMA: u32 = 1;

pub(crate) fn object(boot: &Boot) -> Value {
    let image = boot.image.as_ref();
    let mut object = Map::new();
    object.insert("schema".into(), SCHEMA.into());
    object.insert(
        "image".into(),
        json!({
            "path": image.map(|i| i.path.to_string_lossy()),
            "sha256": image.map(|i| &i.sha256),
            "bytes": image.map(|i| i.bytes),
        }),
    );
    object.insert(
        "qemu".into(),
        json!({
            "version": boot.qemu_version,
            "cpu": boot.cpu,
            "firmware": boot.firmware.word(),
            "peak_resident_bytes": boot.peak_resident_bytes,
        }),
    );
    guest(&mut object, &boot.record);
    object.insert("outcome".into(), boot.outcome.word().into());
    object.insert("reason".into(), json!(boot.reason));
    let faults: Vec<_> = boot.boots.iter().flat_map(RecordLines::faults).collect();
    object.insert("record_faults".into(), json!(faults));
    object.insert(
        "trace".into(),
        boot.trace.as_ref().map_or(Value::Null, |trace| {
            json!({
                "path": trace.path.to_string_lossy(),
                "events": trace.events,
                "complete": trace.complete,
            })
        }),
    );
    object.insert("boots".into(), boot.boots.iter().map(one).collect());
    // The kernels' own keys for kexec stand beside the figures.
    let figures = boot.kexec.as_ref().map_or(Value::Null, Figures::json);
    match (object.get_mut("kexec"), figures) {
        (Some(Value::Object(said)), Value::Object(figures)) => said.extend(figures),
        (Some(_), Value::Null) => (),
        (_, figures) => drop(object.insert("kexec".into(), figures)),
    }
    Value::Object(object)
}

/// One kernel's record.
fn one(record: &RecordLines) -> Value {
    let mut object = Map::new();
    guest(&mut object, record);
    let outcome = record.outcome().map(KernelOutcome::word);
    object.insert("outcome".into(), json!(outcome));
    object.insert("reason".into(), json!(record.reason()));
    object.insert("ended".into(), record.has_ended().into());
    object.insert("record_faults".into(), json!(record.faults()));
    Value::Object(object)
}

/// The kernel's own keys, null where it did not print them.
fn guest(object: &mut Map<String, Value>, record: &RecordLines) {
    for (path, _) in KEYS {
        // No path in the table runs through another.
        let _ = insert(object, path, Value::Null);
    }
    merge(object, record.values());
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
    use super::*;
    use crate::image::{HeaderFields, Image};
    use crate::result::Outcome;
    use crate::{Request, boot};

    fn keys(value: &Value, path: &str, into: &mut Vec<String>) {
        for (key, value) in value.as_object().unwrap() {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            match value {
                Value::Object(_) => keys(value, &path, into),
                _ => into.push(path),
            }
        }
    }

    /// The keys as the issue of this program's schema 1 lists them, plus those
    /// added since.
    const SCHEMA_1: &[&str] = &[
        "schema",
        "image.path",
        "image.sha256",
        "image.bytes",
        "qemu.version",
        "qemu.cpu",
        "qemu.firmware",
        "qemu.peak_resident_bytes",
        "page_size",
        "page_size_source",
        "va_bits",
        "pa_bits",
        "levels",
        "start_level",
        "lpa2",
        "bbm_level.id",
        "bbm_level.used",
        "bbm_level.system",
        "entry_el",
        "run_el",
        "vhe",
        "errata",
        "cpus",
        "cpus_expected",
        "cpu_mismatch",
        "cpu_facts",
        "drivers",
        "drivers_left_out",
        "tlbi_range",
        "tlbi_level_hint",
        "linear_map.strategy",
        "linear_map.barriers",
        "linear_map.rodata",
        "linear_map.ram_bytes",
        "linear_map.mapped_bytes",
        "linear_map.leaves",
        "linear_map.tables",
        "linear_map.table_bytes",
        "linear_map.descriptor_stores",
        "linear_map.tlbi",
        "linear_map.dsb",
        "linear_map.isb",
        "linear_map.instructions",
        "linear_map.time_us",
        "outcome",
        "reason",
        "record_faults",
        "trace",
        "boots",
        "kexec",
    ];

    fn failed() -> Boot {
        boot::run(&Request {
            image: Some("/nonexistent/Image".into()),
            ..Request::default()
        })
    }

    #[test]
    fn a_boot_that_never_began_has_every_key_and_nulls() {
        let object = failed().json();
        let mut found = Vec::new();
        keys(&object, "", &mut found);
        assert_eq!(found, SCHEMA_1);
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
    fn every_key_is_documented() {
        let document = include_str!("../../../../docs/boot-json.md");
        for key in SCHEMA_1 {
            assert!(
                document.contains(&format!("`{key}`")),
                "docs/boot-json.md lacks {key}"
            );
        }
        let record = include_str!("../../../../docs/boot-record.md");
        for (key, _) in KEYS {
            let key = if *key == "linear_map.leaves" {
                "linear_map.leaf"
            } else {
                key
            };
            assert!(
                record.contains(&format!("`{key}`")),
                "docs/boot-record.md lacks {key}"
            );
        }
    }
}
