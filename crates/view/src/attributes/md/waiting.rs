//! Arrays that wait for members: the few attributes of an inactive array in `sys/block/NAME/md/`.

use std::sync::Arc;

use ashlar_stack::arrays::WaitingArray;
use ashlar_stack::devices::Devices;

use crate::attributes::{EnderSource, Tree};

impl Tree {
    /// Adds the directory of an array that is not running; its members are among `devices`.
    pub(crate) fn add_waiting(
        &mut self,
        array: &WaitingArray,
        devices: &Devices,
        ender: &Arc<EnderSource>,
    ) {
        let name = array.name.device();
        let directory = format!("sys/block/{name}/md");
        self.add_fixed(&format!("sys/block/{name}/dev"), format!("9:{}", array.name.number));
        self.add_fixed(&format!("sys/block/{name}/size"), "0");
        self.add_state(&directory, &name, None, ender);
        for (attribute, text) in [
            ("level", array.level.to_string()),
            ("metadata_version", array.version.to_string()),
            ("raid_disks", array.raid_disks.to_string()),
            ("uuid", array.uuid.hyphenated().to_string()),
        ] {
            self.add_fixed(&format!("{directory}/{attribute}"), text);
        }
        for member in &array.members {
            let Some(member_name) = devices.name(&member.path) else { continue };
            let device = format!("{directory}/dev-{member_name}");
            for (attribute, text) in [
                ("offset", member.data_offset.to_string()),
                ("size", (member.data_size.0 / 2).to_string()),
                ("slot", "none".to_owned()),
                ("state", "spare".to_owned()),
            ] {
                self.add_fixed(&format!("{device}/{attribute}"), text);
            }
            self.add_symlink(&format!("{device}/block"), &format!("../../../{member_name}"));
            let slaves = format!("sys/block/{name}/slaves/{member_name}");
            self.add_symlink(&slaves, &format!("../../{member_name}"));
            let holders = format!("sys/block/{member_name}/holders/{name}");
            self.add_symlink(&holders, &format!("../../{name}"));
        }
    }
}
