//! The console record: the kernel's `@granule KEY=VALUE` lines, as values at JSON paths.
//!
//! Only the table of keys here lists the keys, and the JSON object's shape follows from it. A line
//! that cannot be parsed is kept as a fault, never dropped: a record with a fault is never `ok`.

use serde_json::{Map, Value};

use super::Outcome;
use super::json::Leaf;
use crate::json;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A whole number, not negative.
    Integer,
    /// A level of translation tables, -1 to 3.
    Level,
    /// `true` or `false`.
    Bool,
    /// Text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A text; the key may come several times.
    Texts,
    /// `SIZE,true|false,COUNT`; the key may come several times.
    Leaves,
    /// `KEY=VALUE KEY=VALUE ...`, one object; the key may come several times.
    Objects,
}

/// Every key that a kernel may print, in the order of the JSON object.
///
/// Some are printed under another name, one line for each object: `linear_map.leaves` as `linear_map.leaf`,
/// `cpu_facts` as `cpu`, `drivers` as `driver`, and `phases` as `phase`.
pub const KEYS: &[(&str, KeyKind)] = &[
    ("page_size", KeyKind::Integer),
    (
        "page_size_source",
        KeyKind::Word(&["command-line", "machine-table", "build-default", "fallback"]),
    ),
    ("va_bits", KeyKind::Integer),
    ("pa_bits", KeyKind::Integer),
    ("levels", KeyKind::Integer),
    ("start_level", KeyKind::Level),
    ("lpa2", KeyKind::Bool),
    ("bbm_level.id", KeyKind::Integer),
    ("bbm_level.used", KeyKind::Integer),
    ("bbm_level.system", KeyKind::Integer),
    ("entry_el", KeyKind::Integer),
    ("run_el", KeyKind::Integer),
    ("vhe", KeyKind::Bool),
    ("errata", KeyKind::Texts),
    ("cpus", KeyKind::Integer),
    ("cpus_expected", KeyKind::Integer),
    ("cpu_mismatch", KeyKind::Texts),
    ("cpu_facts", KeyKind::Objects),
    ("drivers", KeyKind::Objects),
    ("phases", KeyKind::Objects),
    ("drivers_left_out", KeyKind::Texts),
    ("tlbi_range", KeyKind::Bool),
    ("tlbi_level_hint", KeyKind::Bool),
    ("linear_map.strategy", KeyKind::Text),
    ("linear_map.barriers", KeyKind::Text),
    ("linear_map.rodata", KeyKind::Text),
    ("linear_map.ram_bytes", KeyKind::Integer),
    ("linear_map.mapped_bytes", KeyKind::Integer),
    ("linear_map.leaves", KeyKind::Leaves),
    ("linear_map.tables", KeyKind::Integer),
    ("linear_map.table_bytes", KeyKind::Integer),
    ("linear_map.descriptor_stores", KeyKind::Integer),
    ("linear_map.tlbi", KeyKind::Integer),
    ("linear_map.dsb", KeyKind::Integer),
    ("linear_map.isb", KeyKind::Integer),
    ("linear_map.instructions", KeyKind::Integer),
    ("linear_map.time_us", KeyKind::Integer),
];

/// The longest line in bytes, prefix included (docs/boot-record.md). The kernel cuts the list of the
/// linear map's pieces.
pub(crate) const LONGEST_LINE: usize = 4096;
/// The prefix of every record line.
pub(crate) const PREFIX: &str = "@granule ";

/// Keys of the JSON object that only the host sets; a guest must not print them.
const OURS: [&str; 6] = ["schema", "image", "qemu", "record_faults", "trace", "boots"];

/// The record as far as it was read.
#[derive(Debug, Default, Clone)]
pub struct RecordLines {
    values: Map<String, Value>,
    outcome: Option<Outcome>,
    reason: Option<String>,
    ended: bool,
    faults: Vec<String>,
}

impl RecordLines {
    /// Takes one line, without `@granule `.
    pub fn line(&mut self, line: &str) {
        if let Err(fault) = self.take(line) {
            self.faults.push(fault);
        }
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let fault = |expected: &str| format!("@granule {line}: expected {expected}");
        if PREFIX.len() + line.len() > LONGEST_LINE {
            let begin: String = line.chars().take(60).collect();
            return Err(format!(
                "{PREFIX}{begin}...: expected a line of at most {LONGEST_LINE} bytes"
            ));
        }
        // Bytes that are not UTF-8 arrive as replacement characters, which are not ASCII either.
        if !line.is_ascii() {
            return Err(fault("ASCII"));
        }
        if line == "end" {
            self.ended = true;
            // The record has ended, so a list without lines is empty.
            for (path, kind) in KEYS {
                if matches!(kind, KeyKind::Texts | KeyKind::Leaves | KeyKind::Objects)
                    && self.get(path).is_none()
                {
                    insert(&mut self.values, path, Value::Array(Vec::new()));
                }
            }
            return Ok(());
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| fault("KEY=VALUE or end"))?;
        match key {
            "outcome" => {
                let outcome = Outcome::OF_KERNELS
                    .into_iter()
                    .find(|it| it.word() == value);
                let outcome = outcome
                    .ok_or_else(|| fault("ok, panic, refused, self-check-failed or guest-exit"))?;
                self.outcome = Some(outcome);
                return Ok(());
            }
            "reason" => {
                self.reason = Some(value.to_owned());
                return Ok(());
            }
            "linear_map.leaf" => {
                let leaf = leaf(value).ok_or_else(|| fault("SIZE,true|false,COUNT"))?;
                return push(&mut self.values, "linear_map.leaves", leaf)
                    .ok_or_else(|| fault("a list"));
            }
            "cpu" | "driver" | "phase" => {
                let facts = facts(value).ok_or_else(|| fault("KEY=VALUE KEY=VALUE ..."))?;
                let list = match key {
                    "cpu" => "cpu_facts",
                    "driver" => "drivers",
                    _ => "phases",
                };
                return push(&mut self.values, list, facts).ok_or_else(|| fault("a list"));
            }
            _ => (),
        }
        if !is_path(key) {
            return Err(fault("a key of lower-case words with dots between them"));
        }
        if OURS.contains(&key.split('.').next().unwrap_or(key)) {
            return Err(fault("a key about the guest; this one is about the host"));
        }
        let known = KEYS
            .iter()
            .find(|(path, _)| *path == key)
            .map(|(_, kind)| *kind);
        let parsed = match known {
            None => guess(value),
            Some(KeyKind::Integer) => value
                .parse::<u64>()
                .map_err(|_| fault("a whole number"))?
                .into(),
            Some(KeyKind::Level) => match value.parse::<i8>() {
                Ok(level @ -1..=3) => level.into(),
                _ => return Err(fault("a level from -1 to 3")),
            },
            Some(KeyKind::Bool) => value
                .parse::<bool>()
                .map_err(|_| fault("true or false"))?
                .into(),
            Some(KeyKind::Text) => value.into(),
            Some(KeyKind::Word(words)) if words.contains(&value) => value.into(),
            Some(KeyKind::Word(words)) => return Err(fault(&words.join(", "))),
            Some(KeyKind::Texts) => {
                return push(&mut self.values, key, value.into()).ok_or_else(|| fault("a list"));
            }
            Some(KeyKind::Leaves) => return Err(fault("linear_map.leaf, one line for each")),
            Some(KeyKind::Objects) => return Err(fault("cpu, driver or phase, one line for each")),
        };
        insert(&mut self.values, key, parsed)
            .ok_or_else(|| fault("a key that does not run through another key's value"))
    }

    /// The value at a path such as `linear_map.tables`.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut words = path.split('.');
        let mut value = self.values.get(words.next()?)?;
        for word in words {
            value = value.get(word)?;
        }
        Some(value)
    }

    /// All values, as nested objects.
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The outcome that the kernel reported.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The kernel's reason for an outcome that is not `ok`.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Whether the record's last line was read.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the record has no line at all.
    pub fn is_empty(&self) -> bool {
        let silent = self.values.is_empty() && self.faults.is_empty();
        silent && self.outcome.is_none() && self.reason.is_none() && !self.ended
    }

    /// Lines that could not be parsed, each with what was expected.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
}

fn is_path(key: &str) -> bool {
    key.split('.').all(|word| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
    })
}

fn leaf(value: &str) -> Option<Value> {
    let mut parts = value.split(',');
    let size = parts.next()?.parse::<u64>().ok()?;
    let contiguous = parts.next()?.parse::<bool>().ok()?;
    let count = parts.next()?.parse::<u64>().ok()?;
    if parts.next().is_some() {
        return None;
    }
    let leaf = Leaf {
        size,
        contiguous,
        count,
    };
    Some(json::value(leaf))
}

/// `KEY=VALUE` pairs with spaces between them, each key once.
fn facts(value: &str) -> Option<Value> {
    let mut object = Map::new();
    for pair in value.split(' ') {
        let (key, value) = pair.split_once('=')?;
        let fresh = is_path(key) && !key.contains('.') && !object.contains_key(key);
        if !fresh {
            return None;
        }
        object.insert(key.to_owned(), guess(value));
    }
    Some(Value::Object(object))
}

/// The value of a key that is not in the table. It is a number or truth value only if it would be
/// written back the same, so that `007` and `12e5` stay text.
fn guess(value: &str) -> Value {
    let parsed = match serde_json::from_str::<Value>(value) {
        Ok(parsed @ (Value::Number(_) | Value::Bool(_))) => parsed,
        _ => return value.into(),
    };
    let written = parsed.to_string();
    if written == value {
        parsed
    } else {
        value.into()
    }
}

/// Walks to the object that holds the path's last word and creates objects on the way; `None` if
/// the path runs through a value that is not an object.
fn parent<'a, 'p>(
    mut map: &'a mut Map<String, Value>,
    path: &'p str,
) -> Option<(&'a mut Map<String, Value>, &'p str)> {
    let mut rest = path;
    while let Some((word, behind)) = rest.split_once('.') {
        map = map
            .entry(word)
            .or_insert_with(|| Value::Object(Map::new()))
            .as_object_mut()?;
        rest = behind;
    }
    Some((map, rest))
}

/// Puts a value at a path; an object stays an object. A later line wins over an earlier one, so
/// that a kernel that panics while it prints can correct itself.
pub(crate) fn insert(map: &mut Map<String, Value>, path: &str, value: Value) -> Option<()> {
    let (map, word) = parent(map, path)?;
    if map.get(word).is_some_and(Value::is_object) {
        return None;
    }
    map.insert(word.to_owned(), value);
    Some(())
}

fn push(map: &mut Map<String, Value>, path: &str, value: Value) -> Option<()> {
    let (map, word) = parent(map, path)?;
    map.entry(word)
        .or_insert_with(|| Value::Array(Vec::new()))
        .as_array_mut()?
        .push(value);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(lines: &[&str]) -> RecordLines {
        let mut record = RecordLines::default();
        for line in lines {
            record.line(line);
        }
        record
    }

    #[test]
    fn known_keys_become_typed_values_at_their_paths() {
        let record = record(&[
            "page_size=16384",
            "page_size_source=command-line",
            "start_level=-1",
            "lpa2=false",
            "bbm_level.id=2",
            "errata=a",
            "errata=b",
            "linear_map.strategy=direct",
            "linear_map.leaf=2097152,false,7",
            "linear_map.leaf=33554432,true,3",
            "linear_map.ram_bytes=549755813888",
            "cpu=number=0 mpidr=0x0 calls=12",
            "cpu=number=1 mpidr=0x1 calls=0",
            "cpu_mismatch=CPU 2 is parked: no",
            "driver=name=pl011 page_sizes=4k,16k in_use=true",
            "phase=name=cpus microseconds=3",
            "drivers_left_out=driver x works with 4k pages only",
            "outcome=ok",
            "end",
        ]);
        assert_eq!(record.faults(), [""; 0]);
        assert_eq!(
            Value::Object(record.values().clone()),
            json!({
                "page_size": 16384,
                "page_size_source": "command-line",
                "start_level": -1,
                "lpa2": false,
                "bbm_level": { "id": 2 },
                "errata": ["a", "b"],
                "linear_map": {
                    "strategy": "direct",
                    "leaves": [
                        { "size": 2097152, "contiguous": false, "count": 7 },
                        { "size": 33554432, "contiguous": true, "count": 3 },
                    ],
                    "ram_bytes": 549_755_813_888_u64,
                },
                "cpu_facts": [
                    { "number": 0, "mpidr": "0x0", "calls": 12 },
                    { "number": 1, "mpidr": "0x1", "calls": 0 },
                ],
                "cpu_mismatch": ["CPU 2 is parked: no"],
                "drivers": [{ "name": "pl011", "page_sizes": "4k,16k", "in_use": true }],
                "phases": [{ "name": "cpus", "microseconds": 3 }],
                "drivers_left_out": ["driver x works with 4k pages only"],
            })
        );
        assert_eq!(
            (record.outcome(), record.has_ended()),
            (Some(Outcome::Ok), true)
        );
    }

    #[test]
    fn the_end_completes_a_list() {
        assert_eq!(record(&["outcome=ok"]).get("errata"), None);
        let ended = record(&["end"]);
        assert_eq!(ended.get("errata"), Some(&json!([])));
        assert_eq!(ended.get("linear_map.leaves"), Some(&json!([])));
    }

    #[test]
    fn unknown_keys_pass_through_by_path() {
        let record = record(&[
            "kexec.bytes=84",
            "kexec.ratio=0.5",
            "kexec.mmu_on=true",
            "kexec.delta=-3",
            "kexec.id=007",
            "kexec.hash=12e5",
            "kexec.word=null",
            "kexec.empty=",
            "kexec.text=a=b, c",
        ]);
        assert_eq!(record.faults(), [""; 0]);
        assert_eq!(
            record.get("kexec"),
            Some(&json!({
                "bytes": 84, "ratio": 0.5, "mmu_on": true, "delta": -3, "id": "007", "hash": "12e5",
                "word": "null", "empty": "", "text": "a=b, c",
            }))
        );
    }

    #[test]
    fn a_panic_with_its_reason() {
        let record = record(&[
            "outcome=ok",
            "reason=x",
            "outcome=panic",
            "reason=out of = tables",
            "end",
        ]);
        assert_eq!(record.outcome(), Some(Outcome::Panic));
        assert_eq!(record.reason(), Some("out of = tables"));
    }

    #[test]
    fn each_line_that_cannot_be_understood_is_kept() {
        for (line, expected) in [
            ("nonsense", "KEY=VALUE"),
            ("page_size=4k", "whole number"),
            ("page_size=-1", "whole number"),
            ("page_size_source=guess", "machine-table"),
            ("start_level=4", "-1 to 3"),
            ("lpa2=yes", "true or false"),
            ("outcome=fine", "self-check-failed"),
            ("linear_map.leaf=1,true", "SIZE"),
            ("linear_map.leaf=1,true,2,3", "SIZE"),
            ("linear_map.leaves=1", "linear_map.leaf"),
            ("linear_map=5", "run through"),
            ("cpu=", "KEY=VALUE"),
            ("cpu=number=1 number=2", "KEY=VALUE"),
            ("cpu=number=1  calls=2", "KEY=VALUE"),
            ("driver=pl011", "KEY=VALUE"),
            ("cpu_facts=1", "cpu, driver or phase, one line"),
            ("a..b=1", "lower-case"),
            ("Page=1", "lower-case"),
            ("=1", "lower-case"),
            ("schema=2", "host"),
            ("image.path=x", "host"),
        ] {
            let record = record(&["linear_map.tables=1", line]);
            let [fault] = record.faults() else {
                panic!("{line}: {:?}", record.faults())
            };
            assert!(fault.contains(line) && fault.contains(expected), "{fault}");
            assert_eq!(record.get("linear_map.tables"), Some(&json!(1)));
        }
        for (line, expected) in [
            ("reason=caf\u{e9}".to_owned(), "ASCII"),
            (format!("reason={}", "x".repeat(4081)), "4096 bytes"),
        ] {
            let record = record(&[&line]);
            let fault = &record.faults()[0];
            assert!(fault.contains(expected) && fault.len() < 200, "{fault}");
            assert_eq!((record.faults().len(), record.reason()), (1, None));
        }
        assert_eq!(
            record(&[&format!("a={}", "x".repeat(4085))]).faults(),
            [""; 0]
        );
        let through = record(&["errata=a", "errata.b=1", "x=1", "x.y=2"]);
        assert_eq!(through.faults().len(), 2);
    }
}
