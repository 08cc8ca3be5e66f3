//! Parses the first line of a script, which names its interpreter. Pure.

/// The most bytes searched for the first line.
const LOOKED_AT: usize = 256;

/// The first line of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// The path of the interpreter.
    pub interpreter: &'a [u8],
    /// The rest of the line, as one argument.
    pub argument: Option<&'a [u8]>,
}

/// Parses the first line of `content`. `None` if it is not a script or names no interpreter.
pub fn read(content: &[u8]) -> Option<Script<'_>> {
    let start = content.get(..LOOKED_AT).unwrap_or(content);
    let rest = start.strip_prefix(b"#!")?;
    let line = match rest.iter().position(|byte| *byte == b'\n') {
        Some(end) => rest.get(..end)?,
        // A line that may be cut off would name another program.
        None if start.len() < content.len() => return None,
        None => rest,
    };
    let line = line.trim_ascii();
    let blank = line.iter().position(u8::is_ascii_whitespace);
    let (interpreter, argument) = line.split_at(blank.unwrap_or(line.len()));
    let argument = argument.trim_ascii();
    if interpreter.is_empty() || line.contains(&0) {
        return None;
    }
    Some(Script {
        interpreter,
        argument: (!argument.is_empty()).then_some(argument),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(content: &str) -> Option<(&str, Option<&str>)> {
        let script = read(content.as_bytes())?;
        let text = |bytes| core::str::from_utf8(bytes).unwrap();
        Some((text(script.interpreter), script.argument.map(text)))
    }

    #[test]
    fn the_first_line_names_a_program_and_at_most_one_argument() {
        assert_eq!(says("#!/bin/sh\necho"), Some(("/bin/sh", None)));
        assert_eq!(
            says("#! \t/bin/sh -e -x \necho"),
            Some(("/bin/sh", Some("-e -x")))
        );
        assert_eq!(says("#!/bin/sh"), Some(("/bin/sh", None)));
        for none in [
            "",
            "#",
            "#!",
            "#!\n",
            "#!  \n/bin/sh",
            "\x7fELF",
            " #!/bin/sh",
            "#!a\0b\n",
        ] {
            assert_eq!(says(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_none() {
        let long = format!("#!/bin/sh {}\n", "x".repeat(300));
        assert_eq!(says(&long), None);
        let fits = format!("#!/bin/sh {}\n", "x".repeat(200));
        assert!(says(&fits).is_some());
    }
}
