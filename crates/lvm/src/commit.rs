//! Writes a new text to all physical volumes of a group, so that a crash leaves the old text or the new one.
//!
//! Three steps, each durable everywhere before the next one begins:
//!
//! | step | what is written | a crash during it leaves |
//! |---|---|---|
//! | 1 | the text, into the free part of each ring | the old group: no header names the text |
//! | 2 | each header: the text in its second slot | the old group: LVM and ashlar read only the first slot |
//! | 3 | each header: the text in its first slot, the second one empty | per area old or new; the highest sequence number wins, so the new group once one area has it |
//!
//! A header is one sector, which is written completely or not at all. The current text is never
//! overwritten, so at any moment an area has either the old text or the new one. Volumes left
//! behind by a crash in step 3, or that were missing, are stale: the next commit brings them up to
//! date, and its first step derives each area's free part from the area's header.
//!
//! An error in steps 1 and 2 fails the commit: the second slots are emptied again, and the old
//! group stays current. After the first successful header write in step 3, the new group is
//! current, and errors only leave volumes stale. If every header write fails there, it is unknown
//! whether one of them reached the disk.

use ashlar_block::{ByteVolume, Flags, Gateway, Status};
use thiserror::Error;
use tracing::warn;

use crate::format::write_bytes;
use crate::metadata::Metadata;
use crate::ondisk::{MdaHeader, Placement, WriteError};
use crate::pv::PvOnDisk;
use crate::text::Form;
use crate::uuid::Uuid;

/// A physical volume of the group.
pub struct Member<'a> {
    /// Its device.
    pub gateway: &'a Gateway,
    /// Its contents; updated by the commit.
    pub pv: &'a mut PvOnDisk,
}

/// Why the old group is, or may be, still current.
#[derive(Debug, Error)]
pub enum CommitError {
    /// There is no writable metadata area.
    #[error("none of the physical volumes has a metadata area that can be written")]
    NoArea,
    /// The text does not fit.
    #[error("physical volume {uuid}: {error}")]
    NoRoom {
        /// The physical volume.
        uuid: Uuid,
        /// The reason.
        error: WriteError,
    },
    /// A write failed before the new text was current anywhere.
    #[error(
        "physical volume {uuid}: cannot write the metadata: {status}; the volume group is unchanged"
    )]
    Write {
        /// The physical volume.
        uuid: Uuid,
        /// The error.
        status: Status,
    },
    /// All writes that would have made the new text current failed.
    #[error(
        "physical volume {uuid}: cannot write the header of the metadata area: {status}; \
         whether the volume group is as it was will be known when it is read again"
    )]
    Uncertain {
        /// The physical volume.
        uuid: Uuid,
        /// The error.
        status: Status,
    },
}

/// The result of a commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommitResult {
    /// Physical volumes that still have the old text, and the errors.
    pub stale: Vec<(Uuid, Status)>,
}

/// An area to write.
struct Target {
    member: usize,
    area: usize,
    header: MdaHeader,
    placement: Placement,
}

/// Writes `metadata` to all used areas of `members`. The caller has incremented the sequence number.
///
/// # Errors
/// The old group is, or may be, still current; see [`CommitError`].
pub async fn commit(
    members: &mut [Member<'_>],
    metadata: &Metadata,
) -> Result<CommitResult, CommitError> {
    let mut text = metadata.print(Form::Disk);
    text.push(0);
    let volumes: Vec<ByteVolume> =
        members.iter().map(|member| ByteVolume::new(member.gateway.clone())).collect();
    let targets = plan(members, &text)?;
    let done = prepare(members, &volumes, &targets, &text).await;
    if let Err(error) = done {
        revert(&volumes, &targets).await;
        return Err(error);
    }
    let mut first_error = None;
    let mut stale: Vec<(Uuid, Status)> = Vec::new();
    for target in &targets {
        let member = &mut members[target.member];
        let uuid = member.pv.label.uuid;
        let header = MdaHeader {
            current: Some(target.placement.text),
            precommitted: None,
            ..target.header.clone()
        };
        let volume = &volumes[target.member];
        match write_header(volume, &header).await {
            Ok(()) => {
                if let Ok(contents) = &mut member.pv.areas[target.area].state {
                    contents.header = header;
                    contents.text = Some(text[..text.len() - 1].to_vec());
                }
            }
            Err(status) => {
                warn!(%uuid, %status, "the metadata area keeps the old metadata");
                first_error.get_or_insert((uuid, status));
                stale.push((uuid, status));
            }
        }
    }
    match first_error {
        Some((uuid, status)) if stale.len() == targets.len() => {
            Err(CommitError::Uncertain { uuid, status })
        }
        Some(_) | None => Ok(CommitResult { stale }),
    }
}

/// The areas to write, and the location in each.
fn plan(members: &[Member<'_>], text: &[u8]) -> Result<Vec<Target>, CommitError> {
    let mut targets = Vec::new();
    for (i, member) in members.iter().enumerate() {
        for (area, state) in member.pv.areas.iter().enumerate() {
            let Ok(contents) = &state.state else { continue };
            let header = &contents.header;
            if header.ignored {
                continue;
            }
            let uuid = member.pv.label.uuid;
            let placement =
                header.place(text).map_err(|error| CommitError::NoRoom { uuid, error })?;
            targets.push(Target { member: i, area, header: header.clone(), placement });
        }
    }
    if targets.is_empty() { Err(CommitError::NoArea) } else { Ok(targets) }
}

/// Steps 1 and 2.
async fn prepare(
    members: &[Member<'_>],
    volumes: &[ByteVolume],
    targets: &[Target],
    text: &[u8],
) -> Result<(), CommitError> {
    let failed = |target: &Target, status| CommitError::Write {
        uuid: members[target.member].pv.label.uuid,
        status,
    };
    for target in targets {
        write_text(&volumes[target.member], &target.placement, text)
            .await
            .map_err(|status| failed(target, status))?;
    }
    for target in targets {
        let flushed = volumes[target.member].gateway().flush().await;
        flushed.map_err(|status| failed(target, status))?;
    }
    for target in targets {
        let precommitted = Some(target.placement.text);
        let header = MdaHeader { precommitted, ..target.header.clone() };
        write_header(&volumes[target.member], &header)
            .await
            .map_err(|status| failed(target, status))?;
    }
    Ok(())
}

/// Empties the second slots. Nothing reads them, so an error is only logged.
async fn revert(volumes: &[ByteVolume], targets: &[Target]) {
    for target in targets {
        let header = MdaHeader { precommitted: None, ..target.header.clone() };
        if let Err(status) = write_header(&volumes[target.member], &header).await {
            warn!(%status, "the metadata area keeps a text that was not committed");
        }
    }
}

/// Writes the text, and zeroes the rest of its last sector, as LVM does.
async fn write_text(volume: &ByteVolume, place: &Placement, text: &[u8]) -> Result<(), Status> {
    let [first, wrapped] = place.parts;
    let (front, back) = text.split_at(first.size as usize);
    let mut last = if back.is_empty() { front } else { back }.to_vec();
    last.resize(last.len() + place.padding as usize, 0);
    if back.is_empty() {
        return write_bytes(volume, first.offset, &last, Flags::META).await;
    }
    write_bytes(volume, first.offset, front, Flags::META).await?;
    write_bytes(volume, wrapped.offset, &last, Flags::META).await
}

async fn write_header(volume: &ByteVolume, header: &MdaHeader) -> Result<(), Status> {
    let flags = Flags::META | Flags::FUA;
    write_bytes(volume, header.area.offset, &header.encode(), flags).await
}
