//! Layers over a device that has not answered a write in time.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Buffer, ByteVolume, Flags, Gateway, Runtime, Sector, Sectors, Status};
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use ashlar_stack::changes::{Change, Changes};
use ashlar_stack::devices::{Device as Registered, Devices as Registry, Kind, Role};
use ashlar_stack::partitions::Partition;

struct LowerDevices([Gateway; 2]);

impl Devices for LowerDevices {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.iter().find(|device| device.disk().name() == name).cloned()
    }
}

fn disk(name: &str, medium: &Media) -> Gateway {
    let (limits, model) = (Model::nvme().limits(), Model::nvme());
    let timeout = Duration::from_secs(1);
    SimDisk::with_io_timeout(name, medium.clone(), limits, model, timeout).gateway()
}

#[test]
fn partitions_and_mapped_devices_say_what_the_devices_below_may_still_do() {
    let tables = [
        "0 1024 linear part 0",
        "0 64 linear other 0\n64 64 linear part 0",
        "0 1024 striped 2 8 other 0 part 0",
        "0 1024 delay other 0 0 part 0 0",
        "0 1024 flakey part 0 10 0",
        "0 1024 log-writes other part",
        "0 1024 snapshot-origin part",
        "0 1024 snapshot other part P 8",
        "0 1024 snapshot part other N 8",
    ];
    for (seed, table) in (1..).zip(tables) {
        let media = [(); 2].map(|()| Media::new(Sectors(4096)));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let below = disk("below", &media[1]);
            let part = Partition::new("part", below.clone(), Sector(2048), Sectors(2048));
            let lower = LowerDevices([disk("other", &media[0]), Gateway::new(Arc::new(part))]);
            let context =
                Context { devices: &lower, runtime: sim.runtime(), origins: Arc::default() };
            let loaded = Table::load(&text::parse(table).unwrap(), &context).await.unwrap();
            let device = Device::start("dm-0", loaded, sim.runtime()).await.unwrap();
            let volume = Gateway::new(device);
            assert!(!volume.holds_changes(), "{table}");
            media[1].hang_nth_command(0);
            let mut data = Buffer::alloc(512);
            let hung = below.write(Sector::ZERO, &mut data, Flags::empty()).await;
            assert_eq!(hung, Err(Status::Timeout));
            assert!(volume.holds_changes(), "{table}");
            media[1].answer();
            SimRuntime.sleep(Duration::from_secs(1)).await;
            assert!(!volume.holds_changes(), "{table}");
        });
    }
}

#[test]
fn the_registry_tells_when_a_device_fails_and_when_it_answers_again() {
    for seed in 0..8 {
        let medium = Media::new(Sectors(4096));
        Sim::new(seed).block_on(async {
            let (devices, disk) = (Registry::default(), disk("disk", &medium));
            let name = "disk".to_owned();
            devices.put_back(Registered {
                path: name.clone(),
                name: name.clone(),
                links: Vec::new(),
                kind: Kind::Disk,
                role: Role::Former,
                below: Vec::new(),
                id: None,
                bytes: Arc::new(ByteVolume::new(disk.clone())),
            });
            let (_, mut known) = devices.changes_since(0);
            let mut write = async |expected| {
                let mut data = Buffer::alloc(512);
                let result = disk.write(Sector::ZERO, &mut data, Flags::empty()).await;
                assert_eq!(result, expected);
                let (changes, now) = devices.changes_since(known);
                known = now;
                changes
            };
            let news = Changes::Of([(name, Change::Presence)].into());
            let none = Changes::Of([].into());
            assert_eq!(write(Ok(())).await, none);
            medium.vanish();
            assert_eq!(write(Err(Status::Offline)).await, news);
            assert_eq!(write(Err(Status::Offline)).await, none);
            medium.heal();
            assert_eq!(write(Ok(())).await, news);
            medium.hang_nth_command(0);
            assert_eq!(write(Err(Status::Timeout)).await, news);
            medium.answer();
            SimRuntime.sleep(Duration::from_secs(1)).await;
            assert_eq!(write(Ok(())).await, news);
        });
    }
}
