//! The URIs of exports, as in the NBD project's "NBD URI specification".
//!
//! | URI | meaning |
//! |---|---|
//! | `nbd://HOST[:PORT][/EXPORT]` | over TCP, port 10809 by default |
//! | `nbd+unix:///[EXPORT]?socket=PATH` | over a Unix socket |
//! | `nbds://`, `nbds+unix://` | the same with TLS; `USER@` may precede the host |
//!
//! With TLS there may be parameters, named as by libnbd (`nbd_connect_uri(3)`): `tls-certificates=DIRECTORY`, `tls-psk-file=FILE`,
//! `tls-username=USER`, `tls-hostname=NAME`, `tls-verify-peer=true|false`.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// The port without another one.
const PORT: u16 = 10809;

/// What a URI begins with, whether a Unix socket follows, and whether TLS is used.
const SCHEMES: [(&str, bool, bool); 4] = [
    ("nbd://", false, false),
    ("nbd+unix://", true, false),
    ("nbds://", false, true),
    ("nbds+unix://", true, true),
];

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
    /// TLS, and nothing without it, if the URI asks for it.
    pub tls: Option<Box<TlsParameters>>,
}

/// What a URI says of TLS.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TlsParameters {
    /// The directory of the certificates; without one, the system's CAs are accepted.
    pub certificates: Option<PathBuf>,
    /// The file of keys that both sides have; certificates are not used then.
    pub psk_file: Option<PathBuf>,
    /// The user whose key it is.
    pub username: Option<String>,
    /// The name that the server's certificate has, if it is not the host's.
    pub hostname: Option<String>,
    /// Whether the server's certificate is verified.
    pub verify_peer: bool,
}

impl Default for TlsParameters {
    fn default() -> Self {
        let (certificates, psk_file, username, hostname) = Default::default();
        Self { certificates, psk_file, username, hostname, verify_peer: true }
    }
}

/// Why a text is not a URI of an export.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UriError {
    /// It begins otherwise.
    #[error("it begins with none of nbd://, nbd+unix://, nbds:// and nbds+unix://")]
    Scheme,
    /// Keys and certificates.
    #[error("tls-psk-file and tls-certificates exclude each other")]
    KeysAndCertificates,
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
    SCHEMES.iter().any(|(scheme, ..)| text.starts_with(scheme))
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
        let split = |(scheme, is_unix, has_tls): &(&str, bool, bool)| {
            text.strip_prefix(scheme).map(|rest| (rest, *is_unix, *has_tls))
        };
        let (rest, is_unix, has_tls) = SCHEMES.iter().find_map(split).ok_or(UriError::Scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = place.split_once('/').unwrap_or((place, ""));
        let export = decoded(export)?;
        let mut tls = has_tls.then(Box::<TlsParameters>::default);
        let host = match (&mut tls, host.split_once('@')) {
            (Some(tls), Some((user, host))) => {
                tls.username = Some(decoded(user)?);
                host
            }
            _ => host,
        };
        let mut socket = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let unknown = || UriError::Parameter(parameter.to_owned());
            let (name, value) = parameter.split_once('=').ok_or_else(unknown)?;
            let value = decoded(value)?;
            match (name, &mut tls) {
                ("socket", _) if is_unix => socket = Some(value),
                // The directory or file itself is missing: libnbd would use others.
                (_, Some(_)) if value.is_empty() => return Err(unknown()),
                ("tls-certificates", Some(tls)) => tls.certificates = Some(value.into()),
                ("tls-psk-file", Some(tls)) => tls.psk_file = Some(value.into()),
                ("tls-username", Some(tls)) => tls.username = Some(value),
                ("tls-hostname", Some(tls)) => tls.hostname = Some(value),
                ("tls-verify-peer", Some(tls)) => {
                    tls.verify_peer = value.parse().map_err(|_| unknown())?;
                }
                _ => return Err(unknown()),
            }
        }
        if tls.as_ref().is_some_and(|tls| tls.certificates.is_some() && tls.psk_file.is_some()) {
            return Err(UriError::KeysAndCertificates);
        }
        let address = match (is_unix, socket.filter(|path| !path.is_empty())) {
            (true, Some(path)) if host.is_empty() => Address::Unix(path.into()),
            (true, _) => return Err(UriError::Socket),
            (false, _) => tcp(host)?,
        };
        Ok(Self { address, export, tls })
    }

    /// The export, however it is reached: the same with and without TLS.
    pub fn identity(&self) -> Self {
        Self { tls: None, ..self.clone() }
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
        let address = Address::Tcp(host.to_owned(), port);
        Ok(Uri { address, export: export.to_owned(), tls: None })
    }

    fn unix(path: &str, export: &str) -> Result<Uri, UriError> {
        Ok(Uri { address: Address::Unix(path.into()), export: export.to_owned(), tls: None })
    }

    fn with(uri: Result<Uri, UriError>, set: impl Fn(&mut TlsParameters)) -> Result<Uri, UriError> {
        let mut tls = Box::<TlsParameters>::default();
        set(&mut tls);
        uri.map(|uri| Uri { tls: Some(tls), ..uri })
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
            ("nbds://h", with(tcp("h", 10809, ""), |_| {})),
            (
                "nbds://al%40@h:1/e?tls-psk-file=/k",
                with(tcp("h", 1, "e"), |tls| {
                    tls.username = Some("al@".to_owned());
                    tls.psk_file = Some("/k".into());
                }),
            ),
            (
                "nbds+unix://bob@/?socket=s&tls-certificates=a%26b&tls-hostname=n&tls-verify-peer=true",
                with(unix("s", ""), |tls| {
                    tls.username = Some("bob".to_owned());
                    tls.certificates = Some("a&b".into());
                    tls.hostname = Some("n".to_owned());
                }),
            ),
            (
                "nbds://h?tls-verify-peer=false&tls-username=u",
                with(tcp("h", 10809, ""), |tls| {
                    tls.verify_peer = false;
                    tls.username = Some("u".to_owned());
                }),
            ),
            ("nbds://h?tls-psk-file=k&tls-certificates=c", Err(UriError::KeysAndCertificates)),
            (
                "nbds://h?tls-verify-peer=0",
                Err(UriError::Parameter("tls-verify-peer=0".to_owned())),
            ),
            (
                "nbds://h?tls-certificates=",
                Err(UriError::Parameter("tls-certificates=".to_owned())),
            ),
            ("nbds://h?socket=s", Err(UriError::Parameter("socket=s".to_owned()))),
            ("nbd://h?tls-psk-file=k", Err(UriError::Parameter("tls-psk-file=k".to_owned()))),
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
