//! The lines of `mdadm --detail --brief` and `--export`: for `mdadm.conf`, and for scripts.

use std::path::Path;

use ashlar_md::ondisk::brief::exported_name;
use ashlar_md::ondisk::text::{file_name, quoted};
use ashlar_stack::names::unique_name;

use super::{Detail, INACTIVE};

impl Detail {
    /// `mdadm --detail --brief`. `verbose` adds level, number of devices and their paths.
    pub fn brief(&self, verbose: bool) -> String {
        let runs = self.state != INACTIVE;
        let mut text = if runs { "ARRAY " } else { "INACTIVE-ARRAY " }.to_owned() + &self.device;
        if verbose && runs {
            text += &format!(" level={} num-devices={}", self.level, self.raid_devices);
        } else if verbose {
            text += &format!(" num-devices={}", self.total_devices);
        }
        text += &format!(" metadata={}", self.version);
        let spares = self.members.iter().filter(|member| member.is_plain_spare()).count();
        if runs && spares > 0 {
            text += &format!(" spares={spares}");
        }
        if !self.name.is_empty() {
            text += &format!(" name={}", quoted(&self.name));
        }
        text += &format!(" UUID={}\n", self.uuid);
        let mut paths: Vec<&str> = self.paths().collect();
        if verbose && !paths.is_empty() {
            paths.sort_unstable();
            text += &format!("   devices={}\n", paths.join(","));
        }
        text
    }

    /// `mdadm --detail --export`. A device has the name of its directory in `sys/block/md0/md`,
    /// with an underscore for each character that is not allowed in a variable.
    pub fn export(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            text += &format!("MD_{key}={value}\n");
        };
        if self.state == INACTIVE {
            line("DEVICES", &self.total_devices);
        } else {
            line("LEVEL", &self.level);
            line("DEVICES", &self.raid_devices);
        }
        line("METADATA", &self.version);
        line("UUID", &self.uuid);
        let name = self.alias.as_ref().and_then(|alias| alias.strip_prefix("/dev/md/"));
        if let Some(alias) = name {
            line("DEVNAME", &file_name(alias));
        }
        if !self.name.is_empty() {
            line("NAME", &exported_name(&self.name));
        }
        let mut names: Vec<String> = Vec::new();
        for member in &self.members {
            let Some(path) = &member.path else { continue };
            let name = unique_name(Path::new(path), |name| names.iter().any(|n| n == name));
            let variable = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            match member.slot {
                Some(slot) => line(&format!("DEVICE_dev_{variable}_ROLE"), &slot),
                None => line(&format!("DEVICE_dev_{variable}_ROLE"), &"spare"),
            }
            line(&format!("DEVICE_dev_{variable}_DEV"), path);
            names.push(name);
        }
        text
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|member| member.path.as_deref())
    }
}
