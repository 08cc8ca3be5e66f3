//! Parts that the JSON objects of all commands share. The objects are structs, and the comments of their
//! fields are the descriptions that `granule schema` prints.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The object as a value.
pub(crate) fn value(object: impl Serialize) -> Value {
    // Only maps whose keys are not text have no value, and there is none.
    serde_json::to_value(object).unwrap_or_default()
}

/// The number of the description that an object follows: 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(1)
    }
}

impl JsonSchema for Version {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Version".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Number of this schema. Later versions may add keys to it, and never remove one or \
                            change its meaning.",
            "type": "integer",
            "const": 1,
        })
    }
}

/// An address: text, because many readers of JSON have numbers of 53 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hex(pub(crate) u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl JsonSchema for Hex {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^0x[0-9a-f]+$" })
    }
}

/// Serializes an address as [`Hex`].
pub(crate) fn hex<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Hex(*address).serialize(serializer)
}

/// Serializes an address as [`Hex`], or null.
pub(crate) fn maybe_hex<S: Serializer>(
    address: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    address.map(Hex).serialize(serializer)
}

/// Keys that are in an object only if there is something to report.
pub(crate) fn optional(schema: &mut Schema) {
    schema.remove("required");
}

/// A number rounded to so many decimal places.
pub(crate) fn rounded(number: f64, places: i32) -> f64 {
    let power = 10_f64.powi(places);
    (number * power).round() / power
}
