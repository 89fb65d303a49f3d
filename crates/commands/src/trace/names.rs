//! The files that a traced device holds at the sectors of an I/O, if a btrfs is on it.

use std::path::PathBuf;

use ashlar_block::disk::DeviceNumber;
use ashlar_btrfs::occupants::{Occupant, Occupants};
use ashlar_btrfs::units::{DevId, Physical};
use ashlar_disks::Access;
use ashlar_disks::sandbox::Sandbox;
use ashlar_plot::trace::Record;
use ashlar_stack::devices::Device;

use crate::btrfs::{OpenFileSystem, Selection};
use crate::error::{Error, Result};

/// The major number of md arrays.
const MD: u32 = 9;

/// The names of the files of a btrfs on traced devices: the present names, which may have changed since the I/O.
pub struct NamesOnDisk {
    open: OpenFileSystem,
    occupants: Occupants,
    /// The traced devices of the file system.
    devices: Vec<(DeviceNumber, DevId)>,
}

impl NamesOnDisk {
    /// Opens the file system on `disks`, which is on one of the traced devices, or on several.
    ///
    /// # Errors
    /// It cannot be opened, or is on none of them.
    pub async fn open(
        disks: Vec<PathBuf>,
        access: Access,
        traced: &[(DeviceNumber, String)],
    ) -> Result<Self> {
        let given = disks.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let selection = Selection { devices: disks, degraded: true, ..Selection::default() };
        // The command continues with the daemon's socket, or with files that it opens later.
        let open = selection.open(access, Sandbox::none()).await?;
        let devices = matches(&open, traced);
        if devices.is_empty() {
            let names: Vec<_> =
                traced.iter().map(|(number, name)| format!("{name} ({number})")).collect();
            let on: Vec<_> =
                open.devices().iter().map(|(_, on)| on.export_name().to_owned()).collect();
            let (names, on) = (names.join(", "), on.join(", "));
            open.close().await?;
            let why = format!("it is on {on}, and the trace is of {names}");
            let error = Error::new("the file system is on no traced device", given.join(" "), why);
            return Err(error.hint("trace the device that the file system is on"));
        }
        let occupants = Occupants::new(open.fs.clone());
        Ok(Self { open, occupants, devices })
    }

    /// The files at the sectors of an event; empty if the event has no sectors, or is of another device.
    pub async fn of(&mut self, record: &Record) -> Vec<Occupant> {
        let known = self.devices.iter().find(|(number, _)| *number == record.device);
        let Some((_, devid)) = known.filter(|_| record.bytes > 0) else { return Vec::new() };
        let at = Physical(record.sector.saturating_mul(512));
        self.occupants.at(*devid, at, record.bytes.into()).await
    }

    /// Releases the disks.
    ///
    /// # Errors
    /// An array below could not be stopped cleanly.
    pub async fn close(self) -> Result<()> {
        drop(self.occupants);
        self.open.close().await
    }
}

/// The traced devices that are devices of the file system.
fn matches(open: &OpenFileSystem, traced: &[(DeviceNumber, String)]) -> Vec<(DeviceNumber, DevId)> {
    let all = open.devices();
    let is = |number: &DeviceNumber, name: &str, device: &Device| {
        let own = device.gateway().disk().number();
        let file = device.path.rsplit('/').next().unwrap_or_default();
        let names = [device.path.as_str(), device.name.as_str(), file].into_iter();
        let mut names = names.chain(device.links.iter().map(String::as_str));
        let is_named = names.any(|known| {
            // Files of a trace have no slashes in their names, and a device behind a point.
            let known = known.trim_start_matches("/dev/").replace('/', "_");
            let name = name.trim_start_matches("/dev/").replace('/', "_");
            name == known || name.strip_suffix(&known).is_some_and(|rest| rest.ends_with('.'))
        });
        is_named || number.major == MD && *number == own
    };
    let mut found = Vec::new();
    for (number, name) in traced {
        if let Some((devid, _)) = all.iter().find(|(_, device)| is(number, name, device)) {
            found.push((*number, *devid));
        }
    }
    // With one disk and one traced device the match is clear, whatever the file is called.
    if let ([], [(number, _)], [(devid, _)]) = (&found[..], traced, &all[..])
        && open.is_on_one_disk()
        && number.major != MD
    {
        found.push((*number, *devid));
    }
    found
}
