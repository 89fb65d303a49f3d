//! `proc/mdstat`, byte for byte as the kernel writes it (`drivers/md/md.c`, `md_seq_show` and
//! `status_resync`).

use std::fmt::Write;

use ashlar_md::ondisk::Level;
use ashlar_md::{ArrayState, ArrayStatus, MemberStatus};
use ashlar_stack::arrays::WaitingArray;

use crate::progress::{Progress, Run, Step, mdstat_name};
use crate::snapshot::Snapshot;

/// The text for `arrays`, each with a function that names its members, and for those that are
/// `waiting`, whose members are named by path.
pub fn mdstat<N>(
    arrays: impl IntoIterator<Item = (Snapshot, N)>,
    waiting: &[WaitingArray],
    name: impl Fn(&str) -> Option<String>,
) -> String
where
    N: Fn(&MemberStatus) -> Option<String>,
{
    let mut out = String::from(
        "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \n",
    );
    for (array, name) in arrays {
        entry(&mut out, &array, name);
    }
    waiting.iter().for_each(|array| inactive(&mut out, array, &name));
    out + "unused devices: <none>"
}

/// Appends to a string, which never fails.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        let (Ok(()) | Err(std::fmt::Error)) = write!($out, $($arg)*);
    };
}

/// An array that was never started: the kernel knows nothing of it but its members.
fn inactive(out: &mut String, array: &WaitingArray, name: impl Fn(&str) -> Option<String>) {
    put!(out, "{} : inactive", array.name.device());
    for member in array.members.iter().rev() {
        let Some(name) = name(&member.path) else { continue };
        let write_mostly = if member.write_mostly { "(W)" } else { "" };
        put!(out, " {name}[{}]{write_mostly}(S)", member.number);
    }
    let blocks: u64 = array.members.iter().map(|member| member.data_size.0 / 2).sum();
    put!(out, "\n      {blocks} blocks");
    let version = array.version.to_string();
    if version != "0.90" {
        put!(out, " super {version}");
    }
    out.push_str("\n       \n");
}

fn entry(out: &mut String, array: &Snapshot, name: impl Fn(&MemberStatus) -> Option<String>) {
    let status = &array.status;
    let running = status.state != ArrayState::Inactive;
    let read_only = match status.state {
        ArrayState::ReadOnly => " (read-only)",
        ArrayState::ReadAuto => " (auto-read-only)",
        ArrayState::Inactive | ArrayState::Clean | ArrayState::Active => "",
    };
    put!(out, "{} : {}active{read_only}", status.name, if running { "" } else { "in" });
    if running {
        put!(out, " {}", status.level);
    }
    // The kernel's list begins with the most recently added member.
    let mut members: Vec<&MemberStatus> = status.members.iter().collect();
    members.sort_by_key(|member| std::cmp::Reverse(member.index));
    for member in members {
        let Some(name) = name(member) else { continue };
        put!(out, " {name}[{}]", member.dev_number);
        // A faulty member is not also marked as spare or replacement.
        let good = !member.faulty;
        let marks = [
            ("(W)", member.write_mostly),
            ("(F)", member.faulty),
            ("(S)", good && member.slot.is_none()),
            ("(R)", good && member.replacement),
        ];
        out.extend(marks.iter().filter(|(_, is)| *is).map(|(mark, _)| *mark));
    }
    put!(out, "\n      {} blocks", status.size.0 / 2);
    let version = status.version.to_string();
    if version != "0.90" {
        put!(out, " super {version}");
    }
    if !running {
        out.push_str("\n       \n");
        return;
    }
    level(out, status);
    out.push_str("\n      ");
    if status.level.is_redundant() && progress(out, &array.progress) {
        out.push_str("\n      ");
    }
    if let Some(bitmap) = &array.bitmap {
        put!(out, "{}\n", bitmap.mdstat);
    }
    out.push('\n');
}

/// The level's own part of the line (the `status` method of each personality).
fn level(out: &mut String, array: &ArrayStatus) {
    let chunk_kib = array.chunk.0 / 2;
    match array.level {
        Level::Raid0 => {
            put!(out, " {chunk_kib}k chunks");
            return;
        }
        Level::Raid10 => {
            let (near, far) = (array.layout & 255, array.layout >> 8 & 255);
            let is_offset = array.layout & 1 << 16 != 0;
            put!(out, " {chunk_kib}K chunks");
            if near > 1 {
                put!(out, " {near} near-copies");
            }
            if far > 1 {
                put!(out, " {far} {}-copies", if is_offset { "offset" } else { "far" });
            }
        }
        Level::Linear => {
            put!(out, " {chunk_kib}k rounding");
            return;
        }
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            let (level, layout) = (array.level.raw(), array.layout);
            put!(out, " level {level}, {chunk_kib}k chunk, algorithm {layout}");
        }
        Level::Raid1 | Level::Multipath | Level::Faulty | Level::Other(_) => {}
    }
    let working = array.raid_disks - array.degraded.min(array.raid_disks);
    put!(out, " [{}/{working}] [", array.raid_disks);
    let slots = array.members.iter().take(array.raid_disks);
    out.extend(slots.map(|member| if member.in_sync { 'U' } else { '_' }));
    out.push(']');
}

/// The progress of a sync; false if there is nothing to print.
fn progress(out: &mut String, progress: &Progress) -> bool {
    let run = match progress.step {
        Step::None => return false,
        Step::Pending => {
            out.push_str("\tresync=PENDING");
            return true;
        }
        Step::Running(run) => run,
    };
    let Run { done, total, speed_kib, left } = run;
    let per_mille = run.per_mille();
    let filled = (per_mille / 50) as usize;
    put!(out, "[{}>{}] ", "=".repeat(filled), ".".repeat(20 - filled));
    put!(out, " {} ={:3}.{}%", mdstat_name(progress.action), per_mille / 10, per_mille % 10);
    put!(out, " ({}/{})", done.min(total).0 / 2, total.0 / 2);
    let seconds = left.map_or(0, |left| left.as_secs());
    put!(out, " finish={}.{}min speed={speed_kib}K/sec", seconds / 60, seconds % 60 / 6);
    true
}

#[cfg(test)]
mod tests;
