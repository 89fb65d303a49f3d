//! Layers over a device that has not answered a write in time.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Buffer, Flags, Gateway, Runtime, Sector, Sectors, Status};
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
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
