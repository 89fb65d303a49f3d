//! Arrays of a daemon.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_client::client::Client;
use ashlar_stack::names::parse_array_name;
use ashlar_view::detail::{Detail, DetailSync, INACTIVE};

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

    /// The array named `text`, unless that is a file or, for a name without `md`, anything that exists.
    pub fn of_running(text: &str) -> Option<Self> {
        let path = Path::new(text);
        let is_path = if Self::is_plain(text) { path.exists() } else { path.is_file() };
        if is_path { None } else { text.parse().ok() }
    }

    /// Whether only the place where `text` stands says that it is an array's name, and not a file's.
    pub fn is_plain(text: &str) -> bool {
        parse_array_name(text).is_none()
    }
}

impl FromStr for ServedArrayName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let link = format!("md/{text}");
        let text = if parse_array_name(text).is_some() { text } else { link.as_str() };
        let name = parse_array_name(text);
        let name = name.ok_or("an array is md0, /dev/md0, /dev/md/NAME or NAME")?;
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

/// Writes `word` to the `array_state` of an array of a daemon; returns the array's device.
///
/// # Errors
/// There is no such array, it refuses, or the daemon is gone.
pub fn set_array_state(client: &mut Client, name: &str, word: &str) -> Result<String> {
    let device = client.detail(name)?.device;
    let name = device.strip_prefix("/dev/").unwrap_or(&device);
    client.set(&format!("sys/block/{name}/md/array_state"), word)?;
    Ok(device)
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
    set_array_state(client, name, "clear").map(Some)
}

/// The arrays of a daemon, with those that wait for members.
///
/// # Errors
/// The daemon is gone.
pub fn served_arrays(client: &mut Client) -> Result<Vec<Detail>> {
    let volumes = client.status()?.volumes;
    let arrays = volumes.iter().filter(|volume| volume.is_array());
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
            ("data", "md/data"),
        ] {
            assert_eq!(text.parse(), Ok(ServedArrayName(name.to_owned())), "{text}");
        }
        for text in ["", ".", "/dev/sdb", "a/b", "md/a/b"] {
            assert!(text.parse::<ServedArrayName>().is_err(), "{text}");
        }
    }
}
