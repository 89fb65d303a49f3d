//! Arrays of a daemon.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_stack::detail::{Detail, DetailSync, INACTIVE};
use ashlar_stack::names::parse_array_name;

use crate::client::Client;
use crate::error::Result;

/// How often the daemon is asked.
const POLL: Duration = Duration::from_millis(200);

/// The name of a running array in the daemon: `md0`, `md/data`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedArrayName(String);

impl ServedArrayName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The array named `text`, unless that is a file.
    pub fn of_running(text: &str) -> Option<Self> {
        if Path::new(text).is_file() { None } else { text.parse().ok() }
    }
}

impl FromStr for ServedArrayName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let name = parse_array_name(text);
        let name = name.ok_or_else(|| format!("`{text}` is no array: md0, /dev/md0 or md/NAME"))?;
        let number = name.bytes().all(|byte| byte.is_ascii_digit());
        let named = text.contains("md/");
        Ok(Self(if number && !named { format!("md{name}") } else { format!("md/{name}") }))
    }
}

/// Has an array of a daemon do `action`, a word for its `sync_action`.
///
/// # Errors
/// There is no such array, it refuses, or the daemon is gone.
pub fn start_action(client: &mut Client, name: &str, action: &str) -> Result<()> {
    let device = client.detail(name)?.device;
    let device = device.strip_prefix("/dev/").unwrap_or(&device);
    client.set(&format!("sys/block/{device}/md/sync_action"), action)
}

/// The ranges of an array of a daemon whose parity may be wrong, ascending.
///
/// # Errors
/// There is no such array, the level has no parity, or the daemon is gone.
pub fn suspects(client: &mut Client, name: &str) -> Result<Vec<Range<Sector>>> {
    let device = client.detail(name)?.device;
    let device = device.strip_prefix("/dev/").unwrap_or(&device);
    let lines = client.get(&format!("sys/block/{device}/md/suspect"))?;
    let range = |line: &str| {
        let (start, len) = line.split_once(' ')?;
        let start = Sector(start.parse().ok()?);
        Some(start..start.checked_add(Sectors(len.parse().ok()?))?)
    };
    Ok(lines.lines().filter_map(range).collect())
}

/// Waits until the background work of an array of a daemon has ended, and tells `progress` of it several times a second.
/// Returns the array's last state; `None` if there was no work.
///
/// # Errors
/// There is no such array, the daemon is gone, or `progress` failed.
pub fn await_action(
    client: &mut Client,
    name: &str,
    mut progress: impl FnMut(&Detail, &DetailSync) -> Result<()>,
) -> Result<Option<Detail>> {
    let mut detail = client.detail(name)?;
    if !detail.sync_busy {
        return Ok(None);
    }
    while detail.sync_busy {
        if let Some(sync) = &detail.sync {
            progress(&detail, sync)?;
        }
        std::thread::sleep(POLL);
        detail = client.detail(name)?;
    }
    Ok(Some(detail))
}

/// The arrays of a daemon that run: those of these names, or all.
///
/// # Errors
/// There is no array of a name, or the daemon is gone.
pub fn running_arrays(client: &mut Client, names: &[ServedArrayName]) -> Result<Vec<Detail>> {
    let mut all = match names {
        [] => served_arrays(client)?,
        names => names.iter().map(|name| client.detail(name.as_str())).collect::<Result<_>>()?,
    };
    all.retain(|detail| detail.state != INACTIVE);
    Ok(all)
}

/// Stops an array of a daemon, unless it is the daemon's only volume. Returns the array's device if it was stopped.
///
/// # Errors
/// There is no such array, it is in use, or the daemon is gone.
pub fn stop_array(client: &mut Client, name: &str) -> Result<Option<String>> {
    let device = client.detail(name)?.device;
    let name = device.trim_start_matches("/dev/");
    if client.status()?.volumes.iter().all(|other| other.name == name) {
        return Ok(None);
    }
    client.set(&format!("sys/block/{name}/md/array_state"), "clear")?;
    Ok(Some(device))
}

/// The arrays of a daemon, with those that wait for members.
///
/// # Errors
/// The daemon is gone.
pub fn served_arrays(client: &mut Client) -> Result<Vec<Detail>> {
    let volumes = client.status()?.volumes;
    // The level of other volumes is their kind: disk, part, lvm, zvol.
    let arrays = volumes.iter().filter(|volume| volume.level.starts_with("raid"));
    arrays.map(|volume| client.detail(&volume.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_named_as_the_daemon_names_them() {
        for (text, name) in [
            ("md0", "md0"),
            ("/dev/md127", "md127"),
            ("7", "md7"),
            ("/dev/md/data", "md/data"),
            ("md/5", "md/5"),
        ] {
            assert_eq!(text.parse(), Ok(ServedArrayName(name.to_owned())), "{text}");
        }
        assert!("data".parse::<ServedArrayName>().is_err());
    }
}
