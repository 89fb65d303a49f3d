//! What `scan` says of disks, as text and as JSON.

use std::collections::BTreeSet;

use ashlar_lvm::metadata::SystemIds;
use ashlar_sim::{Media, Sim};
use ashlar_stack::assemble::{Disk, probe_all};
use ashlar_view::scan::scan;

use crate::common::two_mirrors;

#[test]
fn a_scan_draws_the_whole_tree_and_writes_nothing() {
    let sim = Sim::new(9);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        let before: Vec<_> = media.iter().map(Media::snapshot).collect();
        let disk = |(n, media): (usize, &Media)| Disk {
            path: format!("d{n}.img").into(),
            gateway: ashlar_sim::SimDisk::over(format!("d{n}"), media.clone()).gateway(),
        };
        let probed = probe_all(media.iter().enumerate().map(disk).collect()).await;
        let text = scan(&probed, SystemIds::default(), &sim.runtime()).await.to_text(1000);
        let names: Vec<&str> = text
            .lines()
            .skip(1)
            .map(|line| line.split("  ").find(|part| !part.is_empty()).unwrap())
            .collect();
        let of_one = ["img", "|-img1", "| `-md0", "`-img2", "`-md1"];
        let wanted = [0, 1].map(|n| of_one.map(|name| name.replace("img", &format!("d{n}.img"))));
        assert_eq!(names, wanted.concat(), "{text}");
        assert!(text.contains("pttype=dos") && text.contains("parttype=fd"), "{text}");
        for (media, before) in media.iter().zip(&before) {
            assert_eq!(media.diff(before), []);
        }
    });
}

/// JSON in which no object has a key twice.
struct StrictJson;

impl<'de> serde::Deserialize<'de> for StrictJson {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> serde::de::Visitor<'de> for StrictJson {
    type Value = Self;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("what a scan says of a device")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, Self)) = map.next_entry::<String, Self>()? {
            if keys.contains(&key) {
                return Err(serde::de::Error::custom(format_args!("'{key}' is there twice")));
            }
            keys.insert(key);
        }
        Ok(self)
    }
}

#[test]
fn the_json_of_a_scan_says_everything_once() {
    let sim = Sim::new(10);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        let disk = |(n, media): (usize, &Media)| Disk {
            path: format!("d{n}.img").into(),
            gateway: ashlar_sim::SimDisk::over(format!("d{n}"), media.clone()).gateway(),
        };
        let probed = probe_all(media.iter().enumerate().map(disk).collect()).await;
        let json =
            serde_json::to_string(&scan(&probed, SystemIds::default(), &sim.runtime()).await)
                .unwrap();
        let strict = serde_json::from_str::<StrictJson>(&json);
        assert!(strict.is_ok(), "{}: {json}", strict.err().unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let array = &json["blockdevices"][0]["children"][0]["children"][0];
        assert_eq!((&array["name"], &array["type"]), (&"md0".into(), &"raid1".into()));
        assert_eq!(array["set"], json["blockdevices"][0]["children"][0]["member"]);
    });
}
