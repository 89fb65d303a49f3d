//! The status of a snapshot or of a merge, as `dmsetup status` prints it.

use std::fmt;
use std::str::FromStr;

use ashlar_block::Sectors;
use thiserror::Error;

/// The part of its COW device that a snapshot uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What is in use, with the metadata.
    pub allocated: Sectors,
    /// The size of the COW device.
    pub total: Sectors,
    /// The metadata.
    pub metadata: Sectors,
}

/// The state of a snapshot, or of a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It was not loaded yet.
    Unknown,
    /// It works.
    Valid(Usage),
    /// Its own writes found no room: it can still be read.
    Overflow,
    /// It lost exceptions, and all its I/O fails.
    Invalid,
    /// It is being merged, and the merge cannot continue.
    MergeFailed,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("Unknown"),
            Self::Valid(Usage { allocated, total, metadata }) => {
                write!(f, "{allocated}/{total} {metadata}")
            }
            Self::Overflow => f.write_str("Overflow"),
            Self::Invalid => f.write_str("Invalid"),
            Self::MergeFailed => f.write_str("Merge failed"),
        }
    }
}

/// The text is not the status line of one snapshot, nor of one merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("it is not the status of a snapshot")]
pub struct NoSnapshotStatus;

/// A line of `dmsetup status`: `0 8192 snapshot 128/4096 16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusLine {
    /// Whether it is that of a `snapshot-merge`.
    pub is_merge: bool,
    /// The state.
    pub status: Status,
}

impl FromStr for StatusLine {
    type Err = NoSnapshotStatus;

    fn from_str(line: &str) -> Result<Self, NoSnapshotStatus> {
        let mut words = line.split_ascii_whitespace().skip(2);
        let is_merge = match words.next() {
            Some("snapshot") => false,
            Some("snapshot-merge") => true,
            Some(_) | None => return Err(NoSnapshotStatus),
        };
        let words: Vec<&str> = words.collect();
        let status = match &words[..] {
            ["Unknown"] => Some(Status::Unknown),
            ["Overflow"] => Some(Status::Overflow),
            ["Invalid"] => Some(Status::Invalid),
            ["Merge", "failed"] => Some(Status::MergeFailed),
            [used, metadata] => usage(used, metadata).map(Status::Valid),
            [..] => None,
        };
        Ok(Self { is_merge, status: status.ok_or(NoSnapshotStatus)? })
    }
}

fn usage(used: &str, metadata: &str) -> Option<Usage> {
    let number = |text: &str| text.parse().ok().map(Sectors);
    let (allocated, total) = used.split_once('/')?;
    let (allocated, total) = (number(allocated)?, number(total)?);
    Some(Usage { allocated, total, metadata: number(metadata)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_it_prints() {
        let usage = Usage { allocated: Sectors(128), total: Sectors(4096), metadata: Sectors(16) };
        assert_eq!(Status::Valid(usage).to_string(), "128/4096 16");
        for status in [
            Status::Unknown,
            Status::Valid(usage),
            Status::Overflow,
            Status::Invalid,
            Status::MergeFailed,
        ] {
            for (kind, is_merge) in [("snapshot", false), ("snapshot-merge", true)] {
                let line = format!("0 8192 {kind} {status}\n");
                assert_eq!(line.parse(), Ok(StatusLine { is_merge, status }), "{line}");
            }
        }
        for other in [
            "",
            "0 8192 snapshot",
            "0 8192 snapshot-origin",
            "0 8192 linear",
            "0 8192 snapshot 128 16",
            "0 8192 snapshot 128/x 16",
            "0 8192 snapshot 1/2 16\n8192 8 linear",
        ] {
            assert_eq!(other.parse::<StatusLine>(), Err(NoSnapshotStatus), "{other}");
        }
    }
}
