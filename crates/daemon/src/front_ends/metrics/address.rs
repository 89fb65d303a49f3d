//! The address at which metrics are served.

use std::fmt;
use std::str::FromStr;

use ashlar_disks::options::{Listen, OptionValue};
use thiserror::Error;

/// The address that only programs on this machine reach.
const LOOPBACK: &str = "127.0.0.1";

/// An address at which metrics are served: `tcp:PORT`, on this machine alone, or `tcp:HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsAddress(String);

impl MetricsAddress {
    /// A host (a name, or an address; IPv6 in brackets) and a port, not yet resolved.
    pub fn host_and_port(&self) -> &str {
        &self.0
    }
}

impl OptionValue for MetricsAddress {}

/// Why a text is not such an address.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is neither tcp:PORT nor tcp:ADDRESS:PORT")]
pub struct BadMetricsAddress(String);

impl FromStr for MetricsAddress {
    type Err = BadMetricsAddress;

    fn from_str(text: &str) -> Result<Self, BadMetricsAddress> {
        let port = text.strip_prefix("tcp:").and_then(|port| port.parse::<u16>().ok());
        if let Some(port) = port {
            return Ok(Self(format!("{LOOPBACK}:{port}")));
        }
        match text.parse() {
            Ok(Listen::Tcp(address)) => Ok(Self(address)),
            Ok(Listen::Unix(_)) | Err(_) => Err(BadMetricsAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_only_this_machine_is_meant() {
        for (text, address) in [
            ("tcp:9100", "tcp:127.0.0.1:9100"),
            ("tcp:0", "tcp:127.0.0.1:0"),
            ("tcp:localhost:9100", "tcp:localhost:9100"),
            ("tcp:[::1]:9100", "tcp:[::1]:9100"),
            ("tcp:0.0.0.0:9100", "tcp:0.0.0.0:9100"),
        ] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), address);
        }
        for bad in [
            "",
            "9100",
            "tcp:",
            "tcp::9100",
            "tcp:65536",
            "tcp:-1",
            "unix:/a",
            "udp:9100",
            "tcp:::1:9",
        ] {
            let error = bad.parse::<MetricsAddress>().unwrap_err();
            assert_eq!(error, BadMetricsAddress(bad.to_owned()));
        }
    }
}
