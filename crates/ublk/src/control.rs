//! The commands of the control file.
//!
//! They may wait: START_DEV for the server of every queue, STOP_DEV and DEL_DEV for the end of I/O, but no longer than [`PATIENCE`].
//! Each has a ring of its own, whose entries have 128 bytes: closing it interrupts a command that still waits.

use std::fs::OpenOptions;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{self, ControlCommand, DeviceInfo, Parameters};

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The control file.
const PATH: &str = "/dev/ublk-control";

/// Why there is no ublk.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The driver is missing.
    #[error("there is no {PATH}: the kernel's module ublk_drv is not loaded")]
    Missing,
    /// The control file cannot be opened.
    #[error("{PATH}: {0}")]
    Open(io::Error),
    /// There is no io_uring with long entries.
    #[error("io_uring with entries of 128 bytes (Linux 5.19): {0}")]
    Ring(io::Error),
    /// The driver is older than Linux 6.4, which has commands that are encoded as ioctls.
    #[error("the driver does not tell its features (Linux 6.5 does): {0}")]
    Features(io::Error),
}

/// The control file.
///
/// Who may not administer the system can have devices of its own, if it may open this file. A command must name the server's file of such a
/// device then, by which the driver checks the rights.
pub struct Control {
    file: OwnedFd,
    features: u64,
    is_privileged: bool,
}

/// The path of a device's file for its server.
pub(crate) fn server_file(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

/// The ring of a command.
fn new_ring() -> io::Result<IoUring<squeue::Entry128>> {
    IoUring::builder().build(4)
}

impl Control {
    /// Opens the control file.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open() -> Result<Self, Unavailable> {
        let opened = OpenOptions::new().read(true).write(true).open(PATH);
        let file = opened.map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if is_missing { Unavailable::Missing } else { Unavailable::Open(error) }
        })?;
        new_ring().map_err(Unavailable::Ring)?;
        let is_privileged = rustix::process::geteuid().is_root();
        let mut control = Self { file: file.into(), features: 0, is_privileged };
        let mut features = [0u64];
        control
            .with(abi::GET_FEATURES, abi::ANY, features.as_mut_bytes())
            .map_err(Unavailable::Features)?;
        [control.features] = features;
        Ok(control)
    }

    /// Whether this process may make devices that outlive their server.
    pub(crate) fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    /// Whether the driver has a feature.
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Executes a command without memory.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn command(&self, command: u32, device: u32, data: u64) -> io::Result<()> {
        self.execute(command, device, data, &mut [])
    }

    /// Executes a command that reads or writes memory.
    ///
    /// # Errors
    /// Those of the driver.
    fn with(&self, command: u32, device: u32, memory: &mut [u8]) -> io::Result<()> {
        self.execute(command, device, 0, memory)
    }

    /// Makes a device; its number is in `info` afterwards.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn add(&self, info: &mut DeviceInfo) -> io::Result<()> {
        self.with(abi::ADD_DEV, info.device, info.as_mut_bytes())
    }

    /// What a device is; `None` if there is no device with this number.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn info(&self, device: u32) -> io::Result<Option<DeviceInfo>> {
        let mut info = DeviceInfo::new_zeroed();
        match self.with(abi::GET_DEV_INFO, device, info.as_mut_bytes()) {
            Ok(()) => Ok(Some(info)),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says what a device is like, before it starts.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn set(&self, device: u32, parameters: &Parameters) -> io::Result<()> {
        // The driver only reads them, or corrects their length.
        self.with(abi::SET_PARAMS, device, &mut parameters.as_bytes().to_vec())
    }

    /// What a device was said to be like.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn parameters(&self, device: u32) -> io::Result<Parameters> {
        let mut parameters = Parameters::new_zeroed();
        // The driver copies as many bytes as it says.
        parameters.len = size_of::<Parameters>() as u32;
        self.with(abi::GET_PARAMS, device, parameters.as_mut_bytes())?;
        Ok(parameters)
    }

    #[allow(unsafe_code)]
    fn execute(&self, command: u32, device: u32, data: u64, memory: &mut [u8]) -> io::Result<()> {
        // The data come behind the path, if there is one.
        let path = if self.is_privileged || device == abi::ANY {
            Vec::new()
        } else {
            format!("{}\0", server_file(device)).into_bytes()
        };
        let mut own = [&path, &*memory].concat();
        let header = ControlCommand {
            device,
            queue: abi::NO_QUEUE,
            len: own.len() as u16,
            address: own.as_mut_ptr() as u64,
            data,
            path_len: path.len() as u16,
            pad: 0,
            reserved: 0,
        };
        let mut words = [0; 80];
        words[..size_of::<ControlCommand>()].copy_from_slice(header.as_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command);
        let entry = entry.cmd(words).build();
        let mut ring = new_ring()?;
        // SAFETY: the memory is kept until the command has ended, and the file is open as long as the ring.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let end = Instant::now() + PATIENCE;
        loop {
            let left = Timespec::from(end.saturating_duration_since(Instant::now()));
            let arguments = SubmitArgs::new().timespec(&left);
            match ring.submitter().submit_with_args(1, &arguments) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // The driver may still use it.
                    mem::forget(own);
                    let is_late = error.raw_os_error() == Some(Errno::TIME.raw_os_error());
                    return Err(if is_late { io::ErrorKind::TimedOut.into() } else { error });
                }
            }
            let ended: Option<cqueue::Entry> = ring.completion().next();
            let Some(ended) = ended else { continue };
            memory.copy_from_slice(&own[path.len()..]);
            return match ended.result() {
                result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                _ => Ok(()),
            };
        }
    }
}
