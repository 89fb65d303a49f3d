//! The sources of a stack's attributes: its devices and its arrays.

use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_md::MemberStatus;
use ashlar_stack::arrays::{Arrays, WaitingArray};
use ashlar_stack::assemble::Stack;
use ashlar_stack::devices::{Device, Devices, Kind, Role};
use ashlar_stack::pools::Pools;

use super::md::ArrayShape;
use super::{Attributes, EnderSource, Source, Tree, mdstat};
use crate::snapshot::Snapshot;

/// See the module text.
struct StackSource {
    devices: Arc<Devices>,
    arrays: Arc<Arrays>,
    pools: Arc<Pools>,
    runtime: Arc<dyn Runtime>,
    ender: Arc<EnderSource>,
}

impl Attributes {
    /// The attributes of all devices of `stack`; `runtime` is that of their I/O.
    pub fn of(stack: &Stack, runtime: Arc<dyn Runtime>) -> Self {
        let Stack { devices, arrays, pools, .. } = stack;
        let ender = Arc::<EnderSource>::default();
        let source = StackSource {
            devices: Arc::clone(devices),
            arrays: Arc::clone(arrays),
            pools: Arc::clone(pools),
            runtime,
            ender: Arc::clone(&ender),
        };
        Self { ender, ..Self::new(source) }
    }
}

impl Source for StackSource {
    /// The change count of the devices, whether there are pools, the names and shapes of the running arrays,
    /// and the waiting arrays.
    type Shape = (u64, bool, Vec<(String, ArrayShape)>, Vec<WaitingArray>);

    fn shape(&self) -> Self::Shape {
        // Read the count first: a device that is added in between changes the shape at the next call.
        let changes = self.devices.registered();
        let running = self.arrays.running();
        let arrays =
            running.iter().map(|volume| (volume.name.device(), ArrayShape::of(&volume.view)));
        (changes, !self.pools.all().is_empty(), arrays.collect(), self.arrays.waiting())
    }

    fn build(&self, (_, has_pools, shapes, waiting): &Self::Shape) -> Tree {
        let mut tree = Tree::default();
        let devices = self.devices.all();
        // Arrays come first, then the waiting ones. Of two devices with one name, the first to be
        // added gets it.
        let (arrays, others): (Vec<_>, Vec<_>) =
            devices.iter().partition(|device| device.kind.is_array());
        for device in &arrays {
            tree.add_block_device(device, &self.runtime);
        }
        // Arrays may have been added or removed since; that is another shape.
        for (name, shape) in shapes {
            if let Some(volume) = self.arrays.find(name) {
                tree.add_array(name, &volume.view, shape, &self.ender);
            }
        }
        for array in waiting {
            tree.add_waiting(array, &self.devices, &self.ender);
        }
        for device in &others {
            tree.add_block_device(device, &self.runtime);
        }
        if *has_pools {
            tree.add_zfs_parameters(&self.pools);
        }
        let (arrays, devices) = (Arc::clone(&self.arrays), Arc::clone(&self.devices));
        tree.add_text("proc/mdstat", move || {
            let running = arrays.running();
            let running = running.iter().map(|volume| {
                let view = &volume.view;
                (Snapshot::of(view), |member: &MemberStatus| view.member_name(member))
            });
            mdstat::mdstat(running, &arrays.waiting(), |path| devices.name(path))
        });
        tree
    }
}

impl Tree {
    /// Adds a device: its directory below `sys/block`, and if it is exported, its names in `dev` and its limits.
    fn add_block_device(&mut self, device: &Device, runtime: &Arc<dyn Runtime>) {
        let Device { name, kind, .. } = device;
        let directory = format!("sys/block/{name}");
        if device.role == Role::Volume {
            self.add_volume(&format!("dev/{name}"), &device.bytes);
            self.add_io_max(name, device.bytes.limiter(), runtime);
            for link in &device.links {
                let up = "../".repeat(link.matches('/').count());
                self.add_symlink(&format!("dev/{link}"), &format!("{up}{name}"));
            }
        }
        self.add_device(name, device.gateway());
        match kind {
            Kind::Partition(entry) => {
                self.add_fixed(&format!("{directory}/partition"), entry.number.to_string());
                self.add_fixed(&format!("{directory}/start"), entry.start.to_string());
                for disk in &device.below {
                    self.add_symlink(&format!("sys/block/{disk}/{name}"), &format!("../{name}"));
                }
            }
            Kind::Logical(_) => {
                for lower in &device.below {
                    self.add_symlink(
                        &format!("{directory}/slaves/{lower}"),
                        &format!("../../{lower}"),
                    );
                    let holder = format!("sys/block/{lower}/holders/{name}");
                    self.add_symlink(&holder, &format!("../../{name}"));
                }
            }
            Kind::Zvol(zvol) => self.add_zvol(name, zvol),
            // Arrays list their members themselves, because members change. A pool's members are
            // not listed per volume.
            Kind::Array | Kind::Disk => {}
        }
    }
}
