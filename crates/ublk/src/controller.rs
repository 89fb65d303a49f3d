//! The process that may control the driver.
//!
//! A server in a sandbox can neither make the rings that commands need, nor open the files of devices. It asks a controller, in another
//! process that has these rights, by a [`Word`] through a [`Channel`]. A controller starts, changes and ends the devices alone that it made
//! or took over for its server.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::ondisk_layout;
use rustix::fs::OFlags;
use rustix::process::{Pid, test_kill_process};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{self, DeviceInfo, Parameters};
use crate::control::{Control, server_file};

/// How long the kernel may take to make the file of a new device.
const PATIENCE: Duration = Duration::from_secs(10);
/// Devices with greater numbers are not looked at when a volume's device is searched for.
const MOST_DEVICES: u32 = 256;

/// Makes a device, or takes over the one that an earlier server has left; the reply is [`Made`], with the server's file.
pub(crate) const MAKE: u32 = 1;
/// Starts a device; ends when every queue has fetched.
pub(crate) const START: u32 = 2;
/// Gives a device a size.
pub(crate) const RESIZE: u32 = 3;
/// Asks whether a program, or a mount, has the block device open; the reply is a byte.
pub(crate) const IS_USED: u32 = 4;
/// Stops a device.
pub(crate) const STOP: u32 = 5;
/// Removes a device.
pub(crate) const REMOVE: u32 = 6;

/// What a server asks.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub(crate) struct Word {
    pub(crate) kind: u32,
    /// The number of a device; not for [`MAKE`].
    pub(crate) device: u32,
    /// For [`RESIZE`].
    pub(crate) sectors: u64,
    /// For [`MAKE`], as is the next.
    pub(crate) info: DeviceInfo,
    pub(crate) parameters: Parameters,
}

ondisk_layout!(Word, 144, { kind: 0, device: 4, sectors: 8, info: 16, parameters: 80 });

impl Word {
    /// A word about a device.
    pub(crate) fn about(kind: u32, device: u32) -> Self {
        Self { kind, device, ..Self::new_zeroed() }
    }
}

/// A device that was made or taken over.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub(crate) struct Made {
    pub(crate) device: u32,
    pub(crate) max_io_bytes: u32,
    /// Its size.
    pub(crate) sectors: u64,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    /// Whether it was a server's before.
    pub(crate) is_taken_over: u8,
    pub(crate) pad: [u8; 3],
}

ondisk_layout!(Made, 24, { device: 0, max_io_bytes: 4, sectors: 8, queues: 16, depth: 18, is_taken_over: 20 });

/// The way from a server to its controller.
pub trait Channel: Send + Sync {
    /// Passes a word on; returns the reply, and the descriptors that came with it. It may wait, so the pool executes it.
    ///
    /// # Errors
    /// The controller's, as a text; or it has ended.
    fn ask(&self, word: &[u8]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)>;
}

/// See the module text.
#[derive(Default)]
pub struct Controller {
    control: Option<Control>,
    /// Its devices, and whether a server had them before.
    devices: BTreeMap<u32, bool>,
}

impl Controller {
    /// Does what a server asks.
    ///
    /// # Errors
    /// The text for the server.
    pub fn obey(&mut self, word: &[u8]) -> Result<(Vec<u8>, Option<OwnedFd>), String> {
        let word = Word::read_from_bytes(word).map_err(|_| "not a word of a server".to_owned())?;
        if self.control.is_none() {
            self.control = Some(Control::open().map_err(|why| why.to_string())?);
        }
        let Some(control) = &self.control else { return Err(String::new()) };
        let nothing = |()| (Vec::new(), None);
        let done = if word.kind == MAKE {
            // The driver lets no device outlive its server that does not belong to root.
            let kind = if control.is_privileged() {
                abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE
            } else {
                abi::F_UNPRIVILEGED_DEV
            };
            let flags = kind | abi::F_CMD_IOCTL_ENCODE;
            let info = DeviceInfo { server: process(), flags, ..word.info };
            make(control, info, &word.parameters).map(|(made, file)| {
                self.devices.insert(made.device, made.is_taken_over != 0);
                (made.as_bytes().to_vec(), Some(file))
            })
        } else {
            let device = word.device;
            let known = self.devices.get(&device).copied();
            let is_taken_over =
                known.ok_or_else(|| format!("device {device} is not the server's"))?;
            match word.kind {
                START => {
                    let command =
                        if is_taken_over { abi::END_USER_RECOVERY } else { abi::START_DEV };
                    control.command(command, device, process() as u64).map(nothing)
                }
                RESIZE => resize(control, device, word.sectors).map(nothing),
                IS_USED => is_used(device).map(|is_used| (vec![is_used.into()], None)),
                STOP => control.command(abi::STOP_DEV, device, 0).map(nothing),
                REMOVE => {
                    self.devices.remove(&device);
                    control.command(abi::DEL_DEV, device, 0).map(nothing)
                }
                _ => return Err("the controller has no such word".to_owned()),
            }
        };
        done.map_err(|why| why.to_string())
    }
}

/// Takes the device over that has the wanted identity and no server, or makes one.
fn make(
    control: &Control,
    wanted: DeviceInfo,
    parameters: &Parameters,
) -> io::Result<(Made, OwnedFd)> {
    let made = |info: DeviceInfo, sectors: u64, is_taken_over: bool| Made {
        device: info.device,
        max_io_bytes: info.max_io_bytes,
        sectors,
        queues: info.queues,
        depth: info.depth,
        is_taken_over: is_taken_over.into(),
        pad: [0; 3],
    };
    let may_have_waited = wanted.own != 0 && control.is_privileged();
    for device in (0..MOST_DEVICES).filter(|_| may_have_waited) {
        let Some(info) = settled(control, device, wanted.own)? else { continue };
        let known = control.parameters(device)?;
        if !known.is_like(parameters) {
            if !is_used(device)? {
                // No I/O waits, and a new one is as it should be.
                control.command(abi::DEL_DEV, device, 0)?;
                break;
            }
            if let Some(why) = known.hindrance(parameters) {
                let what =
                    format!("/dev/ublkb{device} is in use since an earlier daemon, and {why}");
                return Err(io::Error::other(what));
            }
        }
        control.command(abi::START_USER_RECOVERY, device, 0)?;
        return Ok((made(info, known.sectors, true), opened(device)?));
    }
    let mut info = wanted;
    control.add(&mut info)?;
    // Who does not administer the system may do the rest once udev has given it the file.
    let file = opened(info.device);
    let ready = file.and_then(|file| control.set(info.device, parameters).map(|()| file));
    match ready {
        Ok(file) => Ok((made(info, parameters.sectors, false), file)),
        Err(error) => {
            // Why it was not made says more.
            let (Ok(()) | Err(_)) = control.command(abi::DEL_DEV, info.device, 0);
            Err(error)
        }
    }
}

/// The device with this number, if it has this identity and no server.
fn settled(control: &Control, device: u32, own: u64) -> io::Result<Option<DeviceInfo>> {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = control.info(device)?.filter(|info| info.own == own);
        let Some(info) = found else { return Ok(None) };
        match info.state {
            abi::QUIESCED => return Ok(Some(info)),
            // Its server was killed just now, and the driver follows.
            abi::LIVE if !is_process(info.server) && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            // Another server of the same data: they are read-only for both.
            _ => return Ok(None),
        }
    }
}

/// The process that a device belongs to. Linux 6.17 wants the one that has opened the server's file, and that is this one; it ends with its
/// server.
fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn is_process(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn resize(control: &Control, device: u32, sectors: u64) -> io::Result<()> {
    if !control.has(abi::F_UPDATE_SIZE) {
        let why = "the kernel cannot change the size of a ublk device (Linux 6.16 can)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    control.command(abi::UPDATE_SIZE, device, sectors)
}

/// Whether programs, or a mount, have the block device open.
fn is_used(device: u32) -> io::Result<bool> {
    let flags = OFlags::EXCL.bits() as i32;
    let path = format!("/dev/ublkb{device}");
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        // It has not started.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The server's file of a device.
fn opened(device: u32) -> io::Result<OwnedFd> {
    let path = server_file(device);
    let end = Instant::now() + PATIENCE;
    loop {
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file.into()),
            // An earlier server that is just ending has it, or udev has not given it to its owner yet.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::ResourceBusy
                        | io::ErrorKind::PermissionDenied
                ) && Instant::now() < end =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_devices_that_are_not_the_servers_are_refused() {
        // Where there is a driver, and where there is not.
        let mut controller = Controller::default();
        for kind in [START, RESIZE, IS_USED, STOP, REMOVE, 7] {
            let why = controller.obey(Word::about(kind, 0).as_bytes()).map(|_| ()).unwrap_err();
            assert!(why.contains("not the server's") || why.contains("ublk"), "{why}");
        }
        for word in [&b""[..], &[0; 143], &[0; 145]] {
            assert_eq!(controller.obey(word).map(|_| ()).unwrap_err(), "not a word of a server");
        }
    }
}
