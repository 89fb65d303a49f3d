//! A device: made or taken over, served, stopped.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ashlar_block::ByteVolume;
use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::{Features, Sectors};
use ashlar_engine::{Handle, ReceiveError, Receiver, blocking};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, DeviceInfo, Parameters};
use crate::controller::{self, Channel, Made, Word};
use crate::queue::{self, Setup};

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

/// The identity of the volume with these data, by which a successor of this process finds the volume's device; none is 0, and
/// nobody takes that device over.
pub fn identity_of(data: Option<&str>) -> u64 {
    let Some(data) = data else { return 0 };
    // FNV-1a.
    let hash = data.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    MARK << 48 | hash & ((1 << 48) - 1)
}

/// A device that is served.
pub struct Server {
    channel: Arc<dyn Channel>,
    device: u32,
    queues: Vec<Receiver<io::Result<()>>>,
}

impl Server {
    /// Serves `volume` under its identity on `threads`: takes over the device that an earlier server of the same data has left, or makes
    /// one. Once `abandoned` is set, no request ends any more: the process is about to end, its volumes stop, and the next server gets
    /// the requests again.
    ///
    /// # Errors
    /// Those of the driver; the device that was left has promised what the volume cannot keep; or the volume is withdrawn.
    pub async fn start(
        channel: Arc<dyn Channel>,
        volume: &Arc<ByteVolume>,
        identity: u64,
        threads: &[Handle],
        config: Config,
        abandoned: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let gone = || io::Error::other("the volume is not served any more");
        let open = Arc::new(volume.open().ok_or_else(gone)?);
        let info = DeviceInfo {
            queues: config.queues.min(threads.len() as u16).max(1),
            depth: config.depth,
            max_io_bytes: config.max_io_bytes,
            device: abi::ANY,
            own: identity,
            ..DeviceInfo::default()
        };
        let parameters = parameters(&open, config.max_io_bytes);
        let word = Word { info, parameters, ..Word::about(controller::MAKE, 0) };
        let (reply, files) = ask(&channel, word).await?;
        let strange = || io::Error::other("the controller's reply is not one");
        let made = Made::read_from_bytes(&reply).map_err(|_| strange())?;
        let mut server = Self { channel, device: made.device, queues: Vec::new() };
        let is_taken_over = made.is_taken_over != 0;
        let of_queues = <[OwnedFd; 1]>::try_from(files).map_err(|_| strange());
        let of_queues = of_queues.and_then(|[file]| {
            // The driver removes a device once all its files are closed.
            (0..made.queues).map(|_| file.try_clone()).collect::<io::Result<Vec<_>>>()
        });
        let files = match of_queues {
            Ok(files) => files,
            Err(error) => return server.leave(is_taken_over, error).await,
        };
        for (queue, file) in (0..).zip(files) {
            let setup = Setup {
                file,
                queue,
                depth: made.depth,
                max_io_bytes: made.max_io_bytes,
                volume: Arc::clone(&open),
                abandoned: Arc::clone(abandoned),
            };
            let thread = &threads[usize::from(queue) % threads.len()];
            server.queues.push(thread.spawn_on(move || queue::serve(setup)));
        }
        if let Err(error) = server.say(controller::START).await {
            return server.leave(is_taken_over, error).await;
        }
        if made.sectors < parameters.sectors
            && let Err(error) = server.resize(Sectors(parameters.sectors)).await
        {
            let device = made.device;
            tracing::warn!(device, %error, "a block device keeps the size that it had");
        }
        Ok(server)
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
        let word = Word::about(controller::RESIZE, self.device);
        ask(&self.channel, Word { sectors: size.0, ..word }).await.map(|_| ())
    }

    /// Whether programs, or a mount, have the block device open.
    ///
    /// # Errors
    /// Those of open(2).
    pub async fn is_used(&self) -> io::Result<bool> {
        Ok(self.say(controller::IS_USED).await? == [1])
    }

    /// Stops the device and removes it. Requests that the driver has end first.
    ///
    /// # Errors
    /// Those of the driver.
    pub async fn stop(mut self) -> io::Result<()> {
        self.say(controller::STOP).await?;
        let mut result = Ok(());
        for queue in std::mem::take(&mut self.queues) {
            let ended = queue
                .await
                .unwrap_or_else(|ReceiveError| Err(io::Error::other("a queue panicked")));
            result = result.and(ended);
        }
        self.say(controller::REMOVE).await.map(|_| ()).and(result)
    }

    /// The reply to a word about the device.
    async fn say(&self, kind: u32) -> io::Result<Vec<u8>> {
        Ok(ask(&self.channel, Word::about(kind, self.device)).await?.0)
    }
}

/// The controller's reply, on the pool.
async fn ask(channel: &Arc<dyn Channel>, word: Word) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let channel = Arc::clone(channel);
    blocking::run(move || channel.ask(word.as_bytes()))
        .await
        .unwrap_or_else(|ReceiveError| Err(io::Error::other("a thread panicked")))
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
        let all = ["lvm-a", "lvm-b", "md-a", ""].map(|data| identity_of(Some(data)));
        assert!(all.iter().all(|own| own >> 48 == MARK));
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        assert_eq!(identity_of(None), 0);
    }
}
