//! The first words of a daemon: a line for each array, pool and volume that it serves.

use ashlar_stack::assemble::Stack;
use ashlar_view::graph::human_size;
use ashlar_zfs::ondisk::config::Health;

/// What is running, a line each, and `ready`.
pub(crate) fn announcement(stack: &Stack) -> String {
    let mut text = String::new();
    for volume in stack.arrays.running() {
        let status = volume.view.status();
        let alias = volume.name.alias.as_deref();
        let alias = alias.map_or(String::new(), |alias| format!(" (md/{alias})"));
        text += &format!(
            "{}{alias}: {} {}, {}, {} of {} devices\n",
            volume.name.device(),
            status.level,
            human_size(status.size.bytes()),
            status.state.name(),
            status.raid_disks.saturating_sub(status.degraded),
            status.raid_disks,
        );
    }
    for array in stack.arrays.waiting() {
        text += &format!(
            "{}: {}, inactive, {} of {} devices\n",
            array.name.device(),
            array.level,
            array.members.len(),
            array.raid_disks,
        );
    }
    for served in stack.pools.all() {
        let (name, release) = (served.pool.name(), served.pool.release());
        let health = match served.health {
            Health::Online => String::new(),
            health @ (Health::Degraded | Health::Unavailable) => format!(", {health}"),
        };
        let volumes = if served.pool.opened().is_empty() { ", without volumes" } else { "" };
        text += &format!(
            "{name}: zpool of {} devices{health}, by OpenZFS {release}{volumes}\n",
            served.below.len(),
        );
    }
    for device in stack.devices.volumes().iter().filter(|device| !device.kind.is_array()) {
        let (kind, size) = (device.kind.name(), human_size(device.bytes.size_bytes()));
        text += &format!("{}: {kind} {size}\n", device.export_name());
    }
    let devices = &stack.devices;
    let waits = !stack.arrays.waiting().is_empty();
    if !waits && devices.volumes().is_empty() && !devices.all().is_empty() {
        text += "nothing is served: there is no volume yet\n";
    }
    text + "ready\n"
}
