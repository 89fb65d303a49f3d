//! `btrfs filesystem df` and `btrfs device usage`.

use std::sync::Arc;

use super::size::SizeForm;
use super::space::{allocations, spaces};
use super::usage::{kind_name, members, on_device, reserve, unallocated};
use super::{InspectError, Sink};
use crate::ondisk::chunk::{BlockGroupFlags, Profile};
use crate::volume::FileSystem;

/// Prints allocated and used bytes of each kind of block groups, in the order of the kernel.
///
/// # Errors
/// A required tree cannot be read, or the sink failed.
pub async fn df(fs: &Arc<FileSystem>, form: SizeForm, out: Sink<'_>) -> Result<(), InspectError> {
    let (mut spaces, reserve) = (spaces(fs).await?, reserve(fs).await?);
    // The kernel has system groups before metadata; the sort keeps the other orders.
    let rank = |flags: BlockGroupFlags| match kind_name(flags) {
        "Data" => 0,
        "System" => 1,
        "Metadata" => 2,
        _ => 3,
    };
    spaces.sort_by_key(|space| rank(space.flags));
    for space in spaces {
        let profile = Profile::of(space.flags).map_or("unknown", Profile::name);
        let [total, used] = [space.total, space.used].map(|bytes| form.text(bytes));
        writeln!(out, "{}, {profile}: total={total}, used={used}", kind_name(space.flags))?;
    }
    let [total, used] = [reserve, 0].map(|bytes| form.text(bytes));
    writeln!(out, "GlobalReserve, single: total={total}, used={used}")?;
    Ok(())
}

/// Prints what each device is used for.
///
/// # Errors
/// A required tree cannot be read, or the sink failed.
pub async fn device_usage(
    fs: &Arc<FileSystem>,
    form: SizeForm,
    out: Sink<'_>,
) -> Result<(), InspectError> {
    let parts = allocations(fs);
    for member in members(fs).await? {
        writeln!(out, "{}, ID: {}", member.name, member.devid)?;
        let mut lines = vec![
            ("Device size".to_owned(), form.text(member.size)),
            ("Device slack".to_owned(), form.text(member.slack.unwrap_or(0))),
        ];
        for part in on_device(&parts, member.devid) {
            let profile = Profile::of(part.flags);
            let name = profile.map_or("unknown", Profile::name);
            let mut what = format!("{},{name}", kind_name(part.flags));
            // Chunks with different numbers of stripes are counted by themselves.
            if profile.is_some_and(Profile::is_striped) {
                what += &format!("/{}", part.stripes);
            }
            lines.push((what, form.text(part.physical)));
        }
        lines.push(("Unallocated".to_owned(), form.signed(unallocated(&member, &parts))));
        for (what, size) in lines {
            writeln!(out, "   {:<22}{size:>10}", what + ":")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
