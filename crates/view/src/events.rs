//! Events of arrays in the terms of `mdadm --monitor`, derived from two consecutive observations
//! (`mdmonitor.c`).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::detail::Detail;

/// An event of an array.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// mdadm's name for it: `Fail`, `RebuildStarted`, `Rebuild20`.
    pub event: String,
    /// The array: `/dev/md0`.
    pub array: String,
    /// The affected member.
    pub device: Option<String>,
    /// Details.
    pub info: Option<String>,
}

impl Event {
    /// A test message for each array, to check delivery.
    pub fn tests(arrays: &[Detail]) -> Vec<Self> {
        arrays.iter().map(|detail| event("TestMessage", &detail.device, None, None)).collect()
    }

    /// Whether it is bad news.
    pub fn is_critical(&self) -> bool {
        matches!(
            self.event.as_str(),
            "Fail" | "FailSpare" | "DegradedArray" | "DeviceDisappeared" | "SparesMissing"
        )
    }

    /// Whether mdadm sends mail about it.
    pub fn is_mailed(&self) -> bool {
        matches!(
            self.event.as_str(),
            "Fail" | "FailSpare" | "DegradedArray" | "SparesMissing" | "TestMessage"
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} event detected on md device {}", self.event, self.array)?;
        if let Some(device) = &self.device {
            write!(f, ", component device {device}")?;
        }
        if let Some(info) = &self.info {
            write!(f, ": {info}")?;
        }
        Ok(())
    }
}

/// Percent between two events of a rebuild.
const STEP: u64 = 20;

/// Derives events from repeated looks at the arrays.
#[derive(Default)]
pub struct Monitor {
    known: BTreeMap<String, KnownArray>,
}

/// An array at the last look.
struct KnownArray {
    percent: Option<u64>,
    level: String,
    /// By number.
    members: BTreeMap<u32, Member>,
}

#[derive(Clone, PartialEq, Eq)]
struct Member {
    path: Option<String>,
    in_sync: bool,
    faulty: bool,
}

impl KnownArray {
    fn of(detail: &Detail) -> Self {
        let member = |m: &crate::detail::DetailMember| {
            let member = Member {
                path: m.path.clone(),
                in_sync: m.state.starts_with("active sync"),
                faulty: m.state.starts_with("faulty"),
            };
            Some((m.number?, member))
        };
        Self {
            percent: detail.sync.as_ref().map(|sync| sync.percent),
            level: detail.level.clone(),
            members: detail.members.iter().filter_map(member).collect(),
        }
    }
}

impl Monitor {
    /// The events since the last look, given the current arrays. At the first look all arrays are new.
    pub fn look(&mut self, now: &[Detail]) -> Vec<Event> {
        let mut events = Vec::new();
        let gone = |name: &String| now.iter().all(|detail| detail.device != *name);
        let gone: Vec<String> = self.known.keys().filter(|name| gone(name)).cloned().collect();
        for name in gone {
            self.known.remove(&name);
            events.push(event("DeviceDisappeared", &name, None, None));
        }
        for detail in now {
            let seen = KnownArray::of(detail);
            match self.known.get(&detail.device) {
                None => {
                    events.push(event("NewArray", &detail.device, None, None));
                    if detail.state.contains("degraded") {
                        events.push(event("DegradedArray", &detail.device, None, None));
                    }
                }
                Some(before) => {
                    rebuild(before, &seen, detail, &mut events);
                    members(before, &seen, &detail.device, &mut events);
                }
            }
            self.known.insert(detail.device.clone(), seen);
        }
        events
    }
}

fn event(name: &str, array: &str, device: Option<String>, info: Option<String>) -> Event {
    Event { event: name.to_owned(), array: array.to_owned(), device, info }
}

fn rebuild(before: &KnownArray, now: &KnownArray, detail: &Detail, events: &mut Vec<Event>) {
    let array = detail.device.as_str();
    match (before.percent, now.percent) {
        (None, Some(_)) => events.push(event("RebuildStarted", array, None, None)),
        (Some(was), Some(is)) if is / STEP > was / STEP => {
            events.push(event(&format!("Rebuild{is:02}"), array, None, None));
        }
        (Some(_), None) => {
            let level = now.level.trim_start_matches("raid");
            let found = detail.mismatch_count;
            let info =
                (found > 0).then(|| format!("mismatches found: {found} (on raid level {level})"));
            events.push(event("RebuildFinished", array, None, info));
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
}

fn members(before: &KnownArray, now: &KnownArray, array: &str, events: &mut Vec<Event>) {
    let numbers = before.members.keys().chain(now.members.keys());
    let numbers: std::collections::BTreeSet<u32> = numbers.copied().collect();
    for number in numbers {
        let (was, is) = (before.members.get(&number), now.members.get(&number));
        let synced = |member: Option<&Member>| member.is_some_and(|member| member.in_sync);
        let same_device = was.zip(is).is_some_and(|(was, is)| was.path == is.path);
        let failed = is.is_some_and(|is| is.faulty) && was.is_some_and(|was| !was.faulty);
        let name = match (synced(was), synced(is)) {
            (true, false) => "Fail",
            (false, false) if failed && same_device => "FailSpare",
            (false, true) => "SpareActive",
            (true, true) | (false, false) => continue,
        };
        let path = is.or(was).and_then(|member| member.path.clone());
        events.push(event(name, array, path, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{Run, Step};
    use crate::snapshot::Snapshot;
    use crate::testing::{member, snapshot, spare};
    use ashlar_block::Sectors;
    use ashlar_md::MemberStatus;
    use ashlar_md::SyncAction;
    use ashlar_md::ondisk::Level;

    fn mirror() -> Snapshot {
        snapshot(Level::Raid1, 0, 0, 2)
    }

    fn at(percent: u64) -> Snapshot {
        let mut array = mirror();
        array.progress.action = SyncAction::Recover;
        let (done, total) = (Sectors((percent << 20) + (1 << 19)), Sectors(100 << 20));
        array.progress.step = Step::Running(Run { done, total, speed_kib: 1, left: None });
        array
    }

    /// The events of these looks, one line each.
    fn told(looks: &[&[&Snapshot]]) -> Vec<String> {
        let mut monitor = Monitor::default();
        let mut told = Vec::new();
        for look in looks {
            let now: Vec<Detail> = look.iter().map(|a| Detail::new(a, "/dev/md0")).collect();
            told.extend(monitor.look(&now).into_iter().map(|event| {
                let device = event.device.map_or(String::new(), |device| format!(" {device}"));
                let info = event.info.map_or(String::new(), |info| format!(" {info}"));
                format!("{}{device}{info}", event.event)
            }));
        }
        told
    }

    #[test]
    fn arrays_come_and_go() {
        let mut degraded = mirror();
        degraded.status.degraded = 1;
        degraded.status.members[1] = MemberStatus::empty(1);
        assert_eq!(told(&[&[&mirror()], &[&mirror()]]), ["NewArray"]);
        assert_eq!(told(&[&[&degraded]]), ["NewArray", "DegradedArray"]);
        assert_eq!(
            told(&[&[&mirror()], &[], &[], &[&mirror()]]),
            ["NewArray", "DeviceDisappeared", "NewArray"]
        );
    }

    #[test]
    fn a_rebuild_is_told_in_steps_of_twenty() {
        let looks = [mirror(), at(3), at(19), at(21), at(39), at(97), mirror()];
        let looks: Vec<Vec<&Snapshot>> = looks.iter().map(|look| vec![look]).collect();
        let looks: Vec<&[&Snapshot]> = looks.iter().map(Vec::as_slice).collect();
        assert_eq!(
            told(&looks),
            ["NewArray", "RebuildStarted", "Rebuild21", "Rebuild97", "RebuildFinished"]
        );
        // A rebuild that was running at the first look is not reported as started.
        assert_eq!(told(&[&[&at(3)], &[&at(4)]]), ["NewArray"]);
        let mut different = mirror();
        different.progress.mismatches = Sectors(128);
        assert_eq!(
            told(&[&[&at(97)], &[&different]]),
            ["NewArray", "RebuildFinished mismatches found: 128 (on raid level 1)"]
        );
    }

    #[test]
    fn members_fail_and_spares_take_over() {
        let with = |second: MemberStatus| {
            let mut array = mirror();
            array.status.members[1] = second;
            array.status.members.push(spare(2));
            array
        };
        let whole = with(member(1, 1));
        let mut failed = with(MemberStatus::empty(1));
        failed.status.members.push(MemberStatus { faulty: true, ..spare(1) });
        let mut rebuilt = with(member(1, 2));
        rebuilt.status.members.pop();
        let mut spare_failed = with(member(1, 1));
        spare_failed.status.members[2].faulty = true;
        let gone = mirror();
        assert_eq!(
            told(&[&[&whole], &[&failed], &[&rebuilt]]),
            ["NewArray", "Fail b", "SpareActive c"]
        );
        assert_eq!(told(&[&[&whole], &[&spare_failed], &[&gone]]), ["NewArray", "FailSpare c"]);
        // A member that failed and was removed between two looks.
        let mut out = mirror();
        out.status.members[1] = MemberStatus::empty(1);
        assert_eq!(told(&[&[&gone], &[&out]]), ["NewArray", "Fail b"]);
    }

    #[test]
    fn an_event_reads_as_mdadm_prints_it() {
        let device = Some("/dev/sdb".to_owned());
        assert_eq!(
            event("Fail", "/dev/md0", device, None).to_string(),
            "Fail event detected on md device /dev/md0, component device /dev/sdb"
        );
        let info = Some("mismatches found: 8 (on raid level 1)".to_owned());
        assert_eq!(
            event("RebuildFinished", "/dev/md0", None, info).to_string(),
            "RebuildFinished event detected on md device /dev/md0: \
             mismatches found: 8 (on raid level 1)"
        );
    }
}
