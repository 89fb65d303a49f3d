//! The URIs of exports, as in the NBD project's "NBD URI specification".
//!
//! | URI | meaning |
//! |---|---|
//! | `nbd://HOST[:PORT][/EXPORT]` | over TCP, port 10809 by default |
//! | `nbd+unix:///[EXPORT]?socket=PATH` | over a Unix socket |

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// The port without another one.
const PORT: u16 = 10809;
const TCP: &str = "nbd://";
const UNIX: &str = "nbd+unix://";
/// Those with TLS.
const WITH_TLS: [&str; 2] = ["nbds://", "nbds+unix://"];

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The name of the export; empty for the server's default.
    pub export: String,
}

/// Why a text is not a URI of an export.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UriError {
    /// It begins otherwise.
    #[error("it begins neither with nbd:// nor with nbd+unix://")]
    Scheme,
    /// It asks for TLS.
    #[error("TLS is not supported")]
    Tls,
    /// No host, or an invalid one.
    #[error("a host is missing: nbd://HOST[:PORT]/EXPORT")]
    Host,
    /// An invalid port.
    #[error("`{0}` is not a port")]
    Port(String),
    /// No socket.
    #[error("the socket is missing: nbd+unix:///EXPORT?socket=PATH")]
    Socket,
    /// An unknown parameter.
    #[error("unknown parameter `{0}`")]
    Parameter(String),
    /// A `%` without two hexadecimal digits, or no UTF-8.
    #[error("`{0}` is not percent-encoded UTF-8")]
    Encoding(String),
}

/// Whether a text is meant as the URI of an export, and not as a path.
pub fn is_uri(text: &str) -> bool {
    [TCP, UNIX].iter().chain(&WITH_TLS).any(|scheme| text.starts_with(scheme))
}

fn decoded(text: &str) -> Result<String, UriError> {
    ashlar_block::percent::decode(text).ok_or_else(|| UriError::Encoding(text.to_owned()))
}

impl Uri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`UriError`].
    pub fn parse(text: &str) -> Result<Self, UriError> {
        if WITH_TLS.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(UriError::Tls);
        }
        let is_unix = text.starts_with(UNIX);
        let rest = text.strip_prefix(if is_unix { UNIX } else { TCP }).ok_or(UriError::Scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = place.split_once('/').unwrap_or((place, ""));
        let export = decoded(export)?;
        let mut socket = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("socket", path)) if is_unix => socket = Some(decoded(path)?),
                Some(_) | None => return Err(UriError::Parameter(parameter.to_owned())),
            }
        }
        let address = match (is_unix, socket.filter(|path| !path.is_empty())) {
            (true, Some(path)) if host.is_empty() => Address::Unix(path.into()),
            (true, _) => return Err(UriError::Socket),
            (false, _) => tcp(host)?,
        };
        Ok(Self { address, export })
    }
}

fn tcp(text: &str) -> Result<Address, UriError> {
    // An address of IPv6 is in brackets.
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(UriError::Host)?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(['@', '[', ']']) {
        return Err(UriError::Host);
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| UriError::Port(port.to_owned()))?,
        None => PORT,
    };
    Ok(Address::Tcp(decoded(host)?, port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Result<Uri, UriError> {
        Ok(Uri { address: Address::Tcp(host.to_owned(), port), export: export.to_owned() })
    }

    fn unix(path: &str, export: &str) -> Result<Uri, UriError> {
        Ok(Uri { address: Address::Unix(path.into()), export: export.to_owned() })
    }

    #[test]
    fn uris_say_where_an_export_is() {
        for (text, expected) in [
            ("nbd://localhost", tcp("localhost", 10809, "")),
            ("nbd://nas.lan:10810/disk", tcp("nas.lan", 10810, "disk")),
            ("nbd://[::1]/a/b", tcp("::1", 10809, "a/b")),
            ("nbd://[fe80::1]:1/", tcp("fe80::1", 1, "")),
            ("nbd://h/%2fa%20b", tcp("h", 10809, "/a b")),
            ("nbd+unix:///?socket=/tmp/s", unix("/tmp/s", "")),
            ("nbd+unix:///md/data?socket=/run/a%26b", unix("/run/a&b", "md/data")),
            ("nbd+unix://?socket=/tmp/s", unix("/tmp/s", "")),
            ("nbds://h", Err(UriError::Tls)),
            ("nbds+unix:///?socket=s", Err(UriError::Tls)),
            ("/dev/nbd0", Err(UriError::Scheme)),
            ("nbd:///export", Err(UriError::Host)),
            ("nbd://user@h", Err(UriError::Host)),
            ("nbd://[::1]x", Err(UriError::Host)),
            ("nbd://h:0x1", Err(UriError::Port("0x1".to_owned()))),
            ("nbd://h:65536", Err(UriError::Port("65536".to_owned()))),
            ("nbd://h?socket=/s", Err(UriError::Parameter("socket=/s".to_owned()))),
            ("nbd+unix:///e", Err(UriError::Socket)),
            ("nbd+unix:///e?socket=", Err(UriError::Socket)),
            ("nbd+unix://h/e?socket=s", Err(UriError::Socket)),
            ("nbd+unix:///e?socket=s&x", Err(UriError::Parameter("x".to_owned()))),
            ("nbd://h/%", Err(UriError::Encoding("%".to_owned()))),
            ("nbd://h/%4", Err(UriError::Encoding("%4".to_owned()))),
            ("nbd://h/%+4", Err(UriError::Encoding("%+4".to_owned()))),
            ("nbd://h/%ff", Err(UriError::Encoding("%ff".to_owned()))),
            ("nbd://h/%\u{e9}", Err(UriError::Encoding("%\u{e9}".to_owned()))),
        ] {
            assert_eq!(Uri::parse(text), expected, "{text}");
            assert_eq!(is_uri(text), text != "/dev/nbd0");
        }
    }

    #[test]
    fn addresses_are_shown_as_in_uris() {
        for text in ["nas.lan:10809", "[::1]:7"] {
            assert_eq!(Uri::parse(&format!("nbd://{text}")).unwrap().address.to_string(), text);
        }
    }
}
