//! The requested commands, out of the words of an argument list or of a line. Nothing is opened or
//! called here.

use core::fmt;

use granule_programs::start::Start;

/// The form of commands, for lines about a wrong one.
const USAGE: &str = "kexec load IMAGE [--crash] [--initrd FILE] [--copy] [--append TEXT], kexec unload, \
                     kexec status, kexec exec, kexec crash, kexec core FILE DEVICE [--zeroed] or \
                     kexec poweroff";

/// Where words come from.
#[derive(Clone, Copy)]
pub(crate) enum Words<'a> {
    /// The arguments from this one on.
    Arguments(Start, usize),
    /// The rest of a line.
    Line(&'a [u8]),
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Self::Arguments(start, index) => {
                let word = (*index < start.count()).then(|| start.argument(*index))?;
                *index += 1;
                Some(word)
            }
            Self::Line(line) => {
                let text = line.trim_ascii();
                let end = text.iter().position(u8::is_ascii_whitespace);
                let (word, rest) = text.split_at(end.unwrap_or(text.len()));
                *line = rest;
                (!word.is_empty()).then_some(word)
            }
        }
    }

    /// A text that may have spaces: one argument, or all that is left of a line.
    fn text(&mut self) -> Option<&'a [u8]> {
        match self {
            Self::Arguments(..) => self.next(),
            Self::Line(line) => {
                let text = line.trim_ascii();
                *line = &[];
                Some(text)
            }
        }
    }
}

/// One thing to do.
#[derive(Clone, Copy)]
pub(crate) enum Command<'a> {
    Load(Load<'a>),
    Unload,
    Status,
    Exec,
    Crash,
    Core(Core<'a>),
    PowerOff,
}

#[derive(Clone, Copy)]
pub(crate) struct Core<'a> {
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
    /// Whether the device has nothing but zeros.
    pub(crate) zeroed: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) image: &'a [u8],
    pub(crate) initrd: Option<&'a [u8]>,
    pub(crate) append: &'a [u8],
    /// Whether nothing may be put where it goes at once.
    pub(crate) copy: bool,
    /// Whether it is entered when the running kernel crashes.
    pub(crate) crash: bool,
}

/// Words that are not a command.
#[derive(Clone, Copy)]
pub(crate) enum Wrong<'a> {
    NoCommand,
    Unknown(&'a [u8]),
    Surplus(&'a [u8]),
    NoImage,
    NoFiles,
    NoValue(&'a [u8]),
}

impl fmt::Display for Wrong<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(to, "no command: expected {USAGE}"),
            Self::Unknown(word) => {
                write!(to, "{}: no such command: expected {USAGE}", Text(word))
            }
            Self::Surplus(word) => {
                write!(to, "{}: not understood: expected {USAGE}", Text(word))
            }
            Self::NoImage => write!(to, "load: no image is named: expected {USAGE}"),
            Self::NoFiles => write!(
                to,
                "core: a file and a device are not named: expected {USAGE}"
            ),
            Self::NoValue(option) => {
                write!(to, "{}: nothing behind it: expected {USAGE}", Text(option))
            }
        }
    }
}

/// Bytes that are mostly text, as text.
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .utf8_chunks()
            .try_for_each(|chunk| match chunk.invalid() {
                [] => to.write_str(chunk.valid()),
                _ => write!(to, "{}?", chunk.valid()),
            })
    }
}

impl<'a> Command<'a> {
    /// The command that these words are, all of them.
    pub(crate) fn read(mut words: Words<'a>) -> Result<Self, Wrong<'a>> {
        let command = match words.next().ok_or(Wrong::NoCommand)? {
            b"load" => Self::Load(load(&mut words)?),
            b"unload" => Self::Unload,
            b"status" => Self::Status,
            b"exec" => Self::Exec,
            b"crash" => Self::Crash,
            b"core" => Self::Core(core(&mut words)?),
            b"poweroff" => Self::PowerOff,
            other => return Err(Wrong::Unknown(other)),
        };
        match words.next() {
            None => Ok(command),
            Some(word) => Err(Wrong::Surplus(word)),
        }
    }
}

fn load<'a>(words: &mut Words<'a>) -> Result<Load<'a>, Wrong<'a>> {
    let mut image = None;
    let (mut initrd, mut append) = (None, &b""[..]);
    let (mut copy, mut crash) = (false, false);
    while let Some(word) = words.next() {
        match word {
            b"--copy" => copy = true,
            b"--crash" => crash = true,
            b"--initrd" => initrd = Some(words.next().ok_or(Wrong::NoValue(word))?),
            b"--append" => append = words.text().ok_or(Wrong::NoValue(word))?,
            _ if word.starts_with(b"-") || image.is_some() => return Err(Wrong::Surplus(word)),
            _ => image = Some(word),
        }
    }
    Ok(Load {
        image: image.ok_or(Wrong::NoImage)?,
        initrd,
        append,
        copy,
        crash,
    })
}

fn core<'a>(words: &mut Words<'a>) -> Result<Core<'a>, Wrong<'a>> {
    let mut paths = [None; 2];
    let mut zeroed = false;
    while let Some(word) = words.next() {
        let free = paths.iter_mut().find(|path| path.is_none());
        match (word, free) {
            (b"--zeroed", _) => zeroed = true,
            (_, Some(path)) if !word.starts_with(b"-") => *path = Some(word),
            _ => return Err(Wrong::Surplus(word)),
        }
    }
    let [Some(from), Some(to)] = paths else {
        return Err(Wrong::NoFiles);
    };
    Ok(Core { from, to, zeroed })
}
