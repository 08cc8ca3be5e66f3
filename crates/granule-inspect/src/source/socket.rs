//! Sockets of a QEMU, by path or by host and port. No protocol is used here.

use super::memory::OpenError;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The longest wait for a connection, and for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl FromStr for Endpoint {
    type Err = OpenError;

    /// A path has a slash; `HOST:PORT` or `:PORT` of this machine has none.
    fn from_str(text: &str) -> Result<Self, OpenError> {
        let port = |port: &str| port.parse::<u16>().is_ok();
        match text.rsplit_once(':') {
            _ if text.contains('/') => Ok(Self::Unix(text.into())),
            Some(("", number)) if port(number) => Ok(Self::Tcp(format!("localhost:{number}"))),
            Some((_, number)) if port(number) => Ok(Self::Tcp(text.into())),
            _ => Err(OpenError(format!(
                "{text:?} is not a socket: give the path of a unix socket (./NAME here) or HOST:PORT"
            ))),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(host) => f.write_str(host),
        }
    }
}

impl Endpoint {
    pub(super) fn connect(&self) -> Result<Socket, OpenError> {
        let connected = match self {
            Self::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
            Self::Tcp(host) => connect(host).map(Socket::Tcp),
        };
        let connected = connected.and_then(|socket| {
            socket.set_timeout(PATIENCE)?;
            Ok(socket)
        });
        connected.map_err(|error| OpenError(format!("{self}: no connection: {error}")))
    }
}

fn connect(host: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection to a QEMU.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Ends a read or a write after this time.
    pub(super) fn set_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(time))?;
                stream.set_write_timeout(Some(PATIENCE))
            }
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(time))?;
                stream.set_write_timeout(Some(PATIENCE))
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_distinguished() {
        for (text, endpoint) in [
            (
                "/run/qemu.sock",
                Some(Endpoint::Unix("/run/qemu.sock".into())),
            ),
            ("./a:1", Some(Endpoint::Unix("./a:1".into()))),
            (":1234", Some(Endpoint::Tcp("localhost:1234".into()))),
            ("host:1234", Some(Endpoint::Tcp("host:1234".into()))),
            ("[::1]:1", Some(Endpoint::Tcp("[::1]:1".into()))),
            ("host", None),
            ("host:70000", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), endpoint, "{text}");
        }
        let error = "nowhere".parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.contains("\"nowhere\" is not a socket"), "{error}");
        let error = Endpoint::Unix("/nowhere/at/all".into())
            .connect()
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("/nowhere/at/all: no connection"),
            "{error}"
        );
    }
}
