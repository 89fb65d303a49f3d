//! `proc/mdstat`, byte for byte as the kernel writes it (`drivers/md/md.c`, `md_seq_show`).

use std::fmt::Write;

use ashlar_md::ondisk::Level;
use ashlar_md::{ArrayState, ArrayStatus, MemberStatus};

/// The text for `arrays`; `name` gives the name of an array's member by its slot.
pub fn mdstat<'a>(
    arrays: impl IntoIterator<Item = ArrayStatus>,
    name: impl Fn(&ArrayStatus, &MemberStatus) -> Option<&'a str>,
) -> String {
    let mut out = String::from("Personalities : [raid0] [raid1] [raid10] \n");
    for array in arrays {
        line(&mut out, &array, &name);
    }
    out + "unused devices: <none>"
}

/// Appends to a string, which never fails.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        let (Ok(()) | Err(std::fmt::Error)) = write!($out, $($arg)*);
    };
}

fn line<'a>(
    out: &mut String,
    array: &ArrayStatus,
    name: impl Fn(&ArrayStatus, &MemberStatus) -> Option<&'a str>,
) {
    let running = array.state != ArrayState::Inactive;
    let read_only = if array.state == ArrayState::ReadOnly { " (read-only)" } else { "" };
    put!(out, "{} : {}active{read_only}", array.name, if running { "" } else { "in" });
    if running {
        put!(out, " {}", array.level);
    }
    // The kernel's list has the member that was added last in front.
    for member in array.members.iter().rev() {
        let Some(name) = name(array, member) else { continue };
        put!(out, " {name}[{}]", member.dev_number);
        let marks = [("(W)", member.write_mostly), ("(F)", member.faulty)];
        out.extend(marks.iter().filter(|(_, is)| *is).map(|(mark, _)| *mark));
    }
    put!(out, "\n      {} blocks", array.size.0 / 2);
    let version = array.version.to_string();
    if version != "0.90" {
        put!(out, " super {version}");
    }
    if !running {
        out.push_str("\n       \n");
        return;
    }
    level(out, array);
    out.push_str("\n      ");
    if array.unsynced {
        out.push_str("\tresync=PENDING\n      ");
    }
    out.push('\n');
}

/// What the level says of itself (the `status` of each personality).
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
        Level::Raid1
        | Level::Linear
        | Level::Raid4
        | Level::Raid5
        | Level::Raid6
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => {}
    }
    let working = array.raid_disks - array.degraded.min(array.raid_disks);
    put!(out, " [{}/{working}] [", array.raid_disks);
    out.extend(array.members.iter().map(|member| if member.in_sync { 'U' } else { '_' }));
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::Sectors;
    use ashlar_md::ondisk::{Timestamp, Version};

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn array(level: Level, layout: u32, chunk: u64, members: usize) -> ArrayStatus {
        let member = |slot: usize| MemberStatus {
            path: Some(NAMES[slot].to_owned()),
            in_sync: true,
            faulty: false,
            write_mostly: false,
            data_offset: Sectors(2048),
            data_size: Sectors(4096),
            dev_number: slot as u32,
            ..MemberStatus::empty(slot)
        };
        ArrayStatus {
            name: "md0".to_owned(),
            uuid: Default::default(),
            set_name: String::new(),
            version: Version::V1_2,
            level,
            layout,
            chunk: Sectors(chunk),
            raid_disks: members,
            degraded: 0,
            size: Sectors(4_186_112),
            used_dev_size: Sectors(2_093_056),
            state: ArrayState::Clean,
            unsynced: false,
            events: 17,
            ctime: Timestamp::default(),
            utime: Timestamp::default(),
            members: (0..members).map(member).collect(),
            notes: Vec::new(),
        }
    }

    fn text(array: ArrayStatus) -> String {
        let text = mdstat([array], |_, member| Some(NAMES[usize::from(member.slot.unwrap())]));
        let text = text.strip_prefix("Personalities : [raid0] [raid1] [raid10] \n").unwrap();
        text.strip_suffix("unused devices: <none>").unwrap().to_owned()
    }

    #[test]
    fn no_array_is_two_lines() {
        let none = mdstat([], |_, _| None);
        assert_eq!(none, "Personalities : [raid0] [raid1] [raid10] \nunused devices: <none>");
    }

    #[test]
    fn each_level_reads_as_the_kernel_writes_it() {
        assert_eq!(
            text(array(Level::Raid10, 0x102, 1024, 4)),
            "md0 : active raid10 d[3] c[2] b[1] a[0]\n      \
             2093056 blocks super 1.2 512K chunks 2 near-copies [4/4] [UUUU]\n      \n"
        );
        let far = text(array(Level::Raid10, 0x201, 128, 3));
        assert!(far.contains(" super 1.2 64K chunks 2 far-copies [3/3] [UUU]\n"), "{far}");
        let offset = text(array(Level::Raid10, 0x1_0201, 128, 3));
        assert!(offset.contains(" 64K chunks 2 offset-copies [3/3] [UUU]\n"), "{offset}");
        assert_eq!(
            text(array(Level::Raid0, 2, 1024, 2)),
            "md0 : active raid0 b[1] a[0]\n      2093056 blocks super 1.2 512k chunks\n      \n"
        );
        assert_eq!(
            text(array(Level::Raid1, 0, 0, 2)),
            "md0 : active raid1 b[1] a[0]\n      2093056 blocks super 1.2 [2/2] [UU]\n      \n"
        );
    }

    #[test]
    fn failed_missing_and_read_only_are_shown() {
        let mut sick = array(Level::Raid1, 0, 0, 3);
        sick.degraded = 2;
        sick.state = ArrayState::ReadOnly;
        sick.unsynced = true;
        sick.members[0].in_sync = false;
        sick.members[0].faulty = true;
        sick.members[1].in_sync = false;
        sick.members[2].write_mostly = true;
        let names = [Some("a"), None, Some("c")];
        let text = mdstat([sick], |_, member| names[usize::from(member.slot.unwrap())]);
        let expected = "md0 : active (read-only) raid1 c[2](W) a[0](F)\n      \
                        2093056 blocks super 1.2 [3/1] [__U]\n      \tresync=PENDING\n      \n";
        assert!(text.contains(expected), "{text}");
    }
}
