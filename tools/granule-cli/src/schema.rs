//! `granule schema`: the JSON Schema of what each command prints with `--json`, from the structs that are
//! printed.

use clap::Args;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use crate::{bench, check, inspect, plan, result, watch};

pub(crate) const LONG: &str = "\
Print the JSON Schema (2020-12) of the object that a command prints with `--json`: each key with its
type, unit and meaning, when it is null, and the exit codes of the command. Without a command, list
those that have one.

Keys that are `required` are always there. Later versions may add keys, and never remove one or
change its meaning; `schema` in each object is the number of the schema.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  The commands that have a schema:
    granule schema

  What `granule boot --json` prints, one key, and the outcomes:
    granule schema boot
    granule schema boot | jq -r .properties.page_size.description
    granule schema boot | jq '.\"$defs\".Outcome'

  Check an output with a validator of your own:
    granule schema bench user > user.schema.json
    granule bench user --json 2>/dev/null | check-jsonschema --schemafile user.schema.json -

docs/boot-record.md documents what the kernel prints for programs, docs/trace-format.md traces.";

/// The options of `granule schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Command whose object to describe, such as `boot` or `bench user`; default: list the commands
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A command that prints JSON.
struct Described {
    command: &'static str,
    schema: fn() -> Schema,
}

const ALL: &[Described] = &[
    described::<result::json::Object>("boot"),
    described::<bench::linear_map::report::Object>("bench linear-map"),
    described::<bench::permissions::report::Object>("bench permissions"),
    described::<bench::user::report::Object>("bench user"),
    described::<bench::kexec::report::Object>("bench kexec"),
    described::<bench::tlb::report::Object>("bench tlb"),
    described::<plan::json::Object>("plan"),
    described::<check::words::Object<'_>>("check"),
    described::<watch::report::Object<'_>>("watch"),
    described::<inspect::json::Dump>("dump"),
    described::<inspect::lint::Object>("lint"),
];

const fn described<T: JsonSchema>(command: &'static str) -> Described {
    Described {
        command,
        schema: generate::<T>,
    }
}

fn generate<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// The commands that have a schema, a line each.
pub fn commands() -> String {
    let lines: Vec<_> = ALL.iter().map(|one| one.command).collect();
    lines.join("\n")
}

/// The schema of a command's object; `None` if the command prints none.
pub fn of(command: &str) -> Option<Value> {
    let one = ALL.iter().find(|one| one.command == command)?;
    Some(readable((one.schema)().to_value()))
}

/// The same schema with its texts first, and their paragraphs in one line each.
fn readable(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let of = |(key, value): (String, Value)| match (key.as_str(), value) {
                ("description", Value::String(text)) => (key, paragraphs(&text).into()),
                (_, value) => (key, readable(value)),
            };
            let is_text = |key: &str| key == "title" || key == "description";
            let (texts, others): (Vec<_>, Vec<_>) = map
                .into_iter()
                .map(of)
                .partition(|(key, value)| is_text(key) && value.is_string());
            Value::Object(texts.into_iter().chain(others).collect())
        }
        Value::Array(list) => list.into_iter().map(readable).collect(),
        other => other,
    }
}

/// Joins the lines of each paragraph and of each point of a list.
fn paragraphs(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim) {
        joined += match line {
            "" => "\n\n",
            _ if line.starts_with("- ") => "\n",
            _ if joined.is_empty() || joined.ends_with('\n') => "",
            _ => " ",
        };
        joined += line;
    }
    joined
}

/// The text of `granule schema`: the schema of the command, or the list.
/// Fails with one line if the command prints no JSON, with those that do.
pub fn text(args: &SchemaArgs) -> Result<String, String> {
    if args.command.is_empty() {
        return Ok(commands());
    }
    let command = args.command.join(" ");
    match of(&command) {
        Some(schema) => Ok(format!("{schema:#}")),
        None => Err(format!(
            "{command}: no such command prints JSON; expected one of: {}",
            commands().replace('\n', ", ")
        )),
    }
}

/// Panics unless `object` is as the schema of `command` describes it.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_matches(command: &str, object: &Value) {
    granule_testing::schema::assert_matches(&of(command).unwrap(), object);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(command: &[&str]) -> SchemaArgs {
        SchemaArgs {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    #[test]
    fn lines_are_joined_and_paragraphs_and_points_are_not() {
        let text = "One\ntwo.\n\nThree:\n- four\n  five;\n- six.\n\nSeven";
        let expected = "One two.\n\nThree:\n- four five;\n- six.\n\nSeven";
        assert_eq!(paragraphs(text), expected);
    }

    #[test]
    fn a_command_without_json_is_refused_with_those_that_have_it() {
        let line = text(&args(&["bench", "report"])).unwrap_err();
        assert!(
            line.starts_with("bench report: no such command prints JSON; expected one of: boot, ")
        );
        assert_eq!(text(&args(&[])).unwrap().lines().count(), ALL.len());
    }

    /// Neither a key nor an object goes without its description.
    #[test]
    fn every_key_is_described() {
        fn keys(schema: &Value, root: &Value, path: &str, missing: &mut Vec<String>) {
            for (key, value) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{key}");
                let to = value["$ref"].as_str().map(|to| to.trim_start_matches('#'));
                let described = |of: &Value| of["description"].is_string();
                let there = to.and_then(|to| root.pointer(to)).is_some_and(described);
                if !described(value) && !there {
                    missing.push(path);
                }
            }
        }
        let mut missing = Vec::new();
        for one in ALL {
            let schema = of(one.command).unwrap();
            assert!(schema["description"].is_string() && schema["title"].is_string());
            keys(&schema, &schema, one.command, &mut missing);
            for (name, of) in schema["$defs"].as_object().into_iter().flatten() {
                keys(of, &schema, name, &mut missing);
            }
        }
        assert_eq!(missing, [""; 0]);
    }
}
