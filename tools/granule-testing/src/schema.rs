//! A check of JSON against the schema that describes it, strict in what a schema leaves open: a key that is
//! not described is an error, unless the schema lets more keys through in so many words.

use serde_json::Value;

/// Panics unless `object` is as `schema` (JSON Schema 2020-12, as `granule schema` prints it) describes it.
///
/// # Panics
///
/// With every difference, a line each.
#[track_caller]
pub fn assert_matches(schema: &Value, object: &Value) {
    let wrong = differences(schema, object);
    assert!(wrong.is_empty(), "{}\nin {object:#}", wrong.join("\n"));
}

#[must_use]
pub fn differences(schema: &Value, object: &Value) -> Vec<String> {
    let mut check = Check {
        root: schema,
        wrong: Vec::new(),
    };
    check.value(schema, object, "");
    check.wrong
}

struct Check<'s> {
    root: &'s Value,
    wrong: Vec<String>,
}

impl<'s> Check<'s> {
    fn value(&mut self, schema: &'s Value, value: &Value, path: &str) {
        if let Some(to) = schema["$ref"].as_str() {
            match self.root.pointer(to.trim_start_matches('#')) {
                Some(schema) => self.value(schema, value, path),
                None => self.wrong.push(format!("{path}: no schema {to}")),
            }
        }
        for any in ["anyOf", "oneOf"] {
            let Some(choices) = schema[any].as_array() else {
                continue;
            };
            let mut fewest: Option<Vec<String>> = None;
            for choice in choices {
                let mut check = Check {
                    root: self.root,
                    wrong: Vec::new(),
                };
                check.value(choice, value, path);
                if fewest
                    .as_ref()
                    .is_none_or(|few| check.wrong.len() < few.len())
                {
                    fewest = Some(check.wrong);
                }
            }
            self.wrong.extend(fewest.unwrap_or_default());
        }
        for (word, is_one) in [("const", false), ("enum", true)] {
            let allowed = match (&schema[word], is_one) {
                (Value::Null, _) => continue,
                (Value::Array(list), true) => list.contains(value),
                (constant, _) => constant == value,
            };
            if !allowed {
                self.wrong
                    .push(format!("{path}: {value} is not {}", schema[word]));
            }
        }
        let is = |kind: &Value| match kind.as_str() {
            Some("null") => value.is_null(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("number") => value.is_number(),
            Some("string") => value.is_string(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            _ => false,
        };
        let fits = match &schema["type"] {
            Value::Null => true,
            Value::Array(kinds) => kinds.iter().any(is),
            kind => is(kind),
        };
        if !fits {
            self.wrong
                .push(format!("{path}: {value} is not {}", schema["type"]));
        }
        match value {
            Value::Array(list) => {
                for (at, value) in list.iter().enumerate() {
                    self.value(&schema["items"], value, &format!("{path}[{at}]"));
                }
            }
            Value::Object(map) if schema["type"] != Value::Null => {
                for key in schema["required"].as_array().into_iter().flatten() {
                    if !key.as_str().is_some_and(|key| map.contains_key(key)) {
                        self.wrong.push(format!("{path}: {key} is missing"));
                    }
                }
                for (key, value) in map {
                    let path = format!("{path}.{key}");
                    match (
                        schema["properties"].get(key),
                        &schema["additionalProperties"],
                    ) {
                        (Some(schema), _) => self.value(schema, value, &path),
                        (None, Value::Bool(true)) => (),
                        (None, more @ Value::Object(_)) => self.value(more, value, &path),
                        _ => self.wrong.push(format!("{path}: not described")),
                    }
                }
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_undescribed_or_of_another_type_is_found() {
        let schema = json!({
            "type": "object",
            "properties": {
                "a": { "type": ["integer", "null"] },
                "b": { "type": "array", "items": { "$ref": "#/$defs/B" } },
            },
            "required": ["a", "b"],
            "$defs": {
                "B": { "anyOf": [{ "const": "x" }, { "type": "object", "additionalProperties": true }] },
            },
        });
        let wrong = |object: Value| differences(&schema, &object).join("; ");
        assert_eq!(wrong(json!({ "a": null, "b": ["x", { "y": 1 }] })), "");
        assert_eq!(wrong(json!({ "a": 1 })), ": \"b\" is missing");
        assert_eq!(
            wrong(json!({ "a": 1, "b": [], "c": 1 })),
            ".c: not described"
        );
        assert_eq!(
            wrong(json!({ "a": "1", "b": [] })),
            ".a: \"1\" is not [\"integer\",\"null\"]"
        );
        assert_eq!(
            wrong(json!({ "a": 1, "b": ["y"] })),
            ".b[0]: \"y\" is not \"x\""
        );
    }
}
