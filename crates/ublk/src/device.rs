//! A device: made or taken over, served, stopped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::ByteVolume;
use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::{Features, Sectors};
use ashlar_engine::{Handle, ReceiveError, Receiver, blocking};
use rustix::fs::OFlags;
use zerocopy::IntoBytes;

use crate::abi::{self, DeviceInfo, Parameters};
use crate::control::Control;
use crate::queue::{self, Setup};

/// How long udev may take to make the file of a new device.
const PATIENCE: Duration = Duration::from_secs(10);
/// Devices with greater numbers are not looked at when a volume's device is searched for.
const MOST_DEVICES: u32 = 256;
/// Marks the identities as ours, in the upper bits.
const MARK: u64 = 0xa51a;

/// How a volume is served.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most queues of a device.
    pub queues: u16,
    /// Requests of a queue at a time.
    pub depth: u16,
    /// The most bytes of a request.
    pub max_io_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { queues: 4, depth: 64, max_io_bytes: 512 << 10 }
    }
}

/// The identity of the volume with this name: a successor of this process finds the volume's device by it.
pub fn identity_of(name: &str) -> u64 {
    // FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    MARK << 48 | hash & ((1 << 48) - 1)
}

/// A device that is served.
pub struct Server {
    control: Arc<Control>,
    device: u32,
    queues: Vec<Receiver<io::Result<()>>>,
}

impl Server {
    /// Serves `volume` under its identity on `threads`: takes over the device that an earlier server has left, or makes one. Once `abandoned` is
    /// set, no request ends any more: the process is about to end, its volumes stop, and the next server gets the requests again.
    ///
    /// # Errors
    /// Those of the driver; the volume is withdrawn.
    pub async fn start(
        control: Arc<Control>,
        volume: &Arc<ByteVolume>,
        name: &str,
        threads: &[Handle],
        config: Config,
        abandoned: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let gone = || io::Error::other("the volume is not served any more");
        let open = Arc::new(volume.open().ok_or_else(gone)?);
        let parameters = parameters(&open, config.max_io_bytes);
        let wanted = DeviceInfo {
            queues: config.queues.min(threads.len() as u16).max(1),
            depth: config.depth,
            max_io_bytes: config.max_io_bytes,
            device: abi::ANY,
            server: process(),
            flags: abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE | abi::F_CMD_IOCTL_ENCODE,
            own: identity_of(name),
            ..DeviceInfo::default()
        };
        let making = Arc::clone(&control);
        let made = on_pool(move || make(&making, wanted, &parameters)).await?;
        let Made { info, file, is_taken_over } = made;
        let files = (0..info.queues).map(|_| file.try_clone()).collect::<io::Result<Vec<_>>>();
        // The driver removes a device once all its files are closed.
        drop(file);
        let mut server = Self { control, device: info.device, queues: Vec::new() };
        let files = match files {
            Ok(files) => files,
            Err(error) => return server.leave(is_taken_over, error).await,
        };
        for (queue, file) in (0..).zip(files) {
            let setup = Setup {
                file,
                queue,
                depth: info.depth,
                max_io_bytes: info.max_io_bytes,
                volume: Arc::clone(&open),
                abandoned: Arc::clone(abandoned),
            };
            let thread = &threads[usize::from(queue) % threads.len()];
            server.queues.push(thread.spawn_on(move || queue::serve(setup)));
        }
        let (control, device) = (Arc::clone(&server.control), info.device);
        // It ends when every queue has fetched.
        let started = on_pool(move || {
            let command = if is_taken_over { abi::END_USER_RECOVERY } else { abi::START_DEV };
            control.command(command, device, process() as u64)
        });
        match started.await {
            Ok(()) => Ok(server),
            Err(error) => server.leave(is_taken_over, error).await,
        }
    }

    /// Ends a start that has failed with `why`. A new device is removed. One that was taken over may be mounted, with I/O that waits: it
    /// stays for the next server.
    async fn leave(self, is_taken_over: bool, why: io::Error) -> io::Result<Self> {
        if !is_taken_over {
            // Why a queue does not fetch says more.
            self.stop().await?;
        }
        Err(why)
    }

    /// The path of the block device.
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.device).into()
    }

    /// Gives the device the size of its volume.
    ///
    /// # Errors
    /// The driver cannot (Linux 6.16 can), or those of the driver.
    pub async fn resize(&self, size: Sectors) -> io::Result<()> {
        if !self.control.has(abi::F_UPDATE_SIZE) {
            let why = "the kernel cannot change the size of a ublk device (Linux 6.16 can)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (control, device) = (Arc::clone(&self.control), self.device);
        on_pool(move || control.command(abi::UPDATE_SIZE, device, size.0)).await
    }

    /// Whether programs, or a mount, have the block device open.
    ///
    /// # Errors
    /// Those of open(2).
    pub async fn is_used(&self) -> io::Result<bool> {
        let path = self.path();
        on_pool(move || {
            let flags = OFlags::EXCL.bits() as i32;
            match OpenOptions::new().read(true).custom_flags(flags).open(path) {
                Ok(_) => Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
                // udev has not made it, or has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Stops the device and removes it. Requests that the driver has end first.
    ///
    /// # Errors
    /// Those of the driver.
    pub async fn stop(self) -> io::Result<()> {
        let Self { control, device, queues } = self;
        let stopping = Arc::clone(&control);
        on_pool(move || stopping.command(abi::STOP_DEV, device, 0)).await?;
        let mut result = Ok(());
        for queue in queues {
            let ended = queue
                .await
                .unwrap_or_else(|ReceiveError| Err(io::Error::other("a queue panicked")));
            result = result.and(ended);
        }
        on_pool(move || control.command(abi::DEL_DEV, device, 0)).await.and(result)
    }
}

/// Executes what may wait.
async fn on_pool<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    blocking::run(work)
        .await
        .unwrap_or_else(|ReceiveError| Err(io::Error::other("a thread panicked")))
}

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A device before it is served.
struct Made {
    info: DeviceInfo,
    file: OwnedFd,
    /// It was a server's before.
    is_taken_over: bool,
}

/// Takes the device over that has the wanted identity and no server, or makes one.
fn make(control: &Control, wanted: DeviceInfo, parameters: &Parameters) -> io::Result<Made> {
    for device in 0..MOST_DEVICES {
        let Some(info) = control.info(device)? else { continue };
        if info.own != wanted.own || info.state != abi::QUIESCED {
            continue;
        }
        control.command(abi::START_USER_RECOVERY, device, 0)?;
        return Ok(Made { info, file: opened(device)?, is_taken_over: true });
    }
    let mut info = wanted;
    control.add(&mut info)?;
    let ready = control.set(info.device, parameters).and_then(|()| opened(info.device));
    match ready {
        Ok(file) => Ok(Made { info, file, is_taken_over: false }),
        Err(error) => {
            control.command(abi::DEL_DEV, info.device, 0)?;
            Err(error)
        }
    }
}

/// The server's file of a device. udev makes it.
fn opened(device: u32) -> io::Result<OwnedFd> {
    let path = format!("/dev/ublkc{device}");
    let end = Instant::now() + PATIENCE;
    loop {
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file.into()),
            // An earlier server that is just ending has it.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy
                ) && Instant::now() < end =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }
}

/// What a volume's device is like.
fn parameters(volume: &OpenVolume, max_io_bytes: u32) -> Parameters {
    let disk = volume.gateway().disk();
    let limits = disk.limits();
    let shift = |bytes: u32| bytes.max(512).ilog2() as u8;
    let has_cache = limits.features.contains(Features::WRITE_CACHE);
    let mut attributes =
        if has_cache { abi::ATTRIBUTE_VOLATILE_CACHE | abi::ATTRIBUTE_FUA } else { 0 };
    if disk.is_read_only() {
        attributes |= abi::ATTRIBUTE_READ_ONLY;
    }
    let has_discard = !limits.max_hw_discard.is_zero() && !disk.is_read_only();
    let block_sectors = (limits.logical_block_bytes / 512).max(1);
    let most = u32::MAX / 512 / block_sectors * block_sectors;
    let mut parameters = Parameters {
        len: 0,
        kinds: abi::BASIC | abi::DISCARD,
        attributes,
        logical_block_shift: shift(limits.logical_block_bytes),
        physical_block_shift: shift(limits.physical_block_bytes),
        io_opt_shift: shift(limits.io_opt_bytes.max(limits.physical_block_bytes)),
        io_min_shift: shift(limits.io_min_bytes.max(limits.logical_block_bytes)),
        max_sectors: max_io_bytes / 512,
        chunk_sectors: 0,
        sectors: volume.size_bytes() / 512,
        virt_boundary_mask: 0,
        discard_alignment: 0,
        discard_granularity: limits.discard_granularity_bytes.max(limits.logical_block_bytes),
        max_discard_sectors: if has_discard { most } else { 0 },
        max_write_zeroes_sectors: if disk.is_read_only() { 0 } else { most },
        max_discard_segments: 1,
        reserved: 0,
        pad: 0,
    };
    parameters.len = parameters.as_bytes().len() as u32;
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_ours_and_differ() {
        let all = ["vg/data", "vg/data2", "md0", ""].map(identity_of);
        assert!(all.iter().all(|own| own >> 48 == MARK));
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
    }
}
