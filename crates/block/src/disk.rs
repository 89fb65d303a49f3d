//! The common part of every block device: a name, a size, limits, live settings and statistics
//! (the kernel's `gendisk` and its `request_queue`'s settings).

use std::fmt;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use crate::bio::Flags;
use crate::cache::Cache;
use crate::fast_zeroes::FastZeroes;
use crate::limits::{Features, Limits};
use crate::presence::{Life, Presence};
use crate::stats::Stats;
use crate::units::Sectors;

/// Which merges a queue tries (`/sys/block/*/queue/nomerges`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nomerges {
    /// 0: all of them.
    All,
    /// 1: only with the request added last.
    LastOnly,
    /// 2: none.
    None,
}

impl Nomerges {
    const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::All),
            1 => Some(Self::LastOnly),
            2 => Some(Self::None),
            _ => None,
        }
    }
}

/// Why a live setting was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SettingError {
    /// Outside the range of this device.
    #[error("{value} is out of range: {min} to {max} is possible here")]
    OutOfRange {
        /// The requested value.
        value: u64,
        /// The smallest value accepted.
        min: u64,
        /// The largest value accepted.
        max: u64,
    },
    /// Not a multiple of the device's unit.
    #[error("{value} is not a multiple of {unit}")]
    NotAMultiple {
        /// The requested value.
        value: u64,
        /// The unit it must be a multiple of.
        unit: u64,
    },
}

/// A device number, the kernel's `dev_t`, shown in `sys/block/*/dev` and in traces. ashlar assigns the
/// numbers: they distinguish the devices of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceNumber {
    /// The kind of device (`Documentation/admin-guide/devices.txt`).
    pub major: u32,
    /// Number within the kind, below [`Self::MINORS`].
    pub minor: u32,
}

impl DeviceNumber {
    /// Minor numbers of a major (the kernel's `MINORBITS` is 20).
    pub const MINORS: u32 = 1 << 20;

    /// An array's number.
    pub const fn md(minor: u32) -> Self {
        Self { major: 9, minor: minor % Self::MINORS }
    }

    /// A device-mapper device's number. The kernel assigns their major at run time; this is a usual one.
    pub const fn dm(minor: u32) -> Self {
        Self { major: 252, minor: minor % Self::MINORS }
    }

    /// The next extended number, which any device may have (the kernel's `BLOCK_EXT_MAJOR`).
    fn extended() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self { major: 259, minor: NEXT.fetch_add(1, Relaxed) % Self::MINORS }
    }

    /// The kernel's 32-bit form.
    pub const fn raw(self) -> u32 {
        self.major << 20 | self.minor
    }

    /// From the kernel's 32-bit form.
    pub const fn of_raw(raw: u32) -> Self {
        Self { major: raw >> 20, minor: raw % Self::MINORS }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Why a device cannot change its limits: layers above have stacked them, and clients rely on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LimitsError {
    /// Another logical block size.
    #[error("its logical block size would change from {now} to {wanted} bytes")]
    BlockSize {
        /// The size now, in bytes.
        now: u32,
        /// The other one.
        wanted: u32,
    },
    /// The device would get a volatile write cache. Layers that have stacked the limits without one pass no flush on.
    #[error("it would get a volatile write cache")]
    WriteCache,
    /// Discards that do not read as zeroes any more.
    #[error("its discarded ranges would no longer read as zeroes")]
    DiscardZeroes,
}

/// A version of a device's limits, and the next one, so that a reader needs no lock and a version lives as long as the device.
/// A device has few: one that it had before is used again.
struct Version {
    limits: Limits,
    next: OnceLock<Box<Self>>,
}

impl Version {
    fn new(limits: Limits) -> Self {
        Self { limits, next: OnceLock::new() }
    }
}

/// A block device's identity, limits, live settings and counters. Shared by all threads; the settings
/// are plain atomics that take effect for bios submitted later.
pub struct Disk {
    name: String,
    number: AtomicU32,
    capacity: AtomicU64,
    first: Version,
    /// The number of the version in force; the first is 0.
    version: AtomicUsize,
    /// What the user set, [`UNSET`] for the default; and what is in force.
    user_max_sectors: AtomicU64,
    max_sectors: AtomicU64,
    max_merged: AtomicU64,
    user_max_discard: AtomicU64,
    max_discard: AtomicU64,
    nomerges: AtomicU8,
    nr_requests: AtomicU32,
    /// 0 without a deadline.
    io_timeout_ms: AtomicU32,
    read_only: AtomicBool,
    shared: AtomicBool,
    stats: Stats,
    cache: Arc<Cache>,
    life: Life,
    fast_zeroes: FastZeroes,
    watcher: OnceLock<Watcher>,
}

/// What a device reports to its watcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskEvent {
    /// The size has changed.
    Resized,
    /// Its [`Presence`] has changed, or did so for a moment.
    Presence,
}

/// Called after each event of a device.
type Watcher = Box<dyn Fn(DiskEvent) + Send + Sync>;

/// The deadline of a device's requests unless it is changed, in milliseconds (the kernel's).
pub const DEFAULT_IO_TIMEOUT_MS: u32 = 30_000;

/// The default of `max_sectors_kb` (the kernel's `BLK_DEF_MAX_SECTORS_CAP`, in sectors).
const DEFAULT_MAX_SECTORS: u64 = 2560;
/// A setting that the user did not change.
const UNSET: u64 = u64::MAX;
/// The default of `nr_requests`, as of a kernel multi-queue device without a scheduler.
const DEFAULT_NR_REQUESTS: u32 = 128;

impl Disk {
    /// A disk with default settings.
    pub fn new(name: impl Into<String>, capacity: Sectors, limits: Limits) -> Self {
        debug_assert!(limits.logical_block_bytes.is_power_of_two(), "as in the kernel");
        let this = Self {
            name: name.into(),
            number: AtomicU32::new(DeviceNumber::extended().raw()),
            capacity: AtomicU64::new(capacity.0),
            first: Version::new(limits),
            version: AtomicUsize::new(0),
            user_max_sectors: AtomicU64::new(UNSET),
            max_sectors: AtomicU64::new(0),
            max_merged: AtomicU64::new(UNSET),
            user_max_discard: AtomicU64::new(UNSET),
            max_discard: AtomicU64::new(0),
            nomerges: AtomicU8::new(0),
            nr_requests: AtomicU32::new(DEFAULT_NR_REQUESTS),
            io_timeout_ms: AtomicU32::new(0),
            read_only: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            stats: Stats::default(),
            cache: Arc::default(),
            life: Life::default(),
            fast_zeroes: FastZeroes::default(),
            watcher: OnceLock::new(),
        };
        this.apply_settings();
        this
    }

    /// The name, as under `/dev` (`md0`, `vg/lv`); for members, the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device number: an extended one, unless [`Self::set_number`] set another.
    pub fn number(&self) -> DeviceNumber {
        DeviceNumber::of_raw(self.number.load(Relaxed))
    }

    /// Sets the device number.
    pub fn set_number(&self, number: DeviceNumber) {
        self.number.store(number.raw(), Relaxed);
    }

    /// The size.
    pub fn capacity(&self) -> Sectors {
        Sectors(self.capacity.load(Relaxed))
    }

    /// Changes the size (a grown array), and tells the watcher.
    pub fn set_capacity(&self, capacity: Sectors) {
        let before = self.capacity.swap(capacity.0, Relaxed);
        if before != capacity.0 {
            self.tell(DiskEvent::Resized);
        }
    }

    /// Has `watcher` called after each event, on the thread on which it happens. There is one watcher: later calls have no
    /// effect. It must not wait, nor use the device.
    pub fn watch(&self, watcher: impl Fn(DiskEvent) + Send + Sync + 'static) {
        self.watcher.get_or_init(|| Box::new(watcher));
    }

    /// Tells the watcher.
    pub(crate) fn tell(&self, event: DiskEvent) {
        if let Some(watcher) = self.watcher.get() {
            watcher(event);
        }
    }

    /// The hard limits in force.
    #[inline]
    pub fn limits(&self) -> &Limits {
        let mut version = &self.first;
        for _ in 0..self.version.load(Acquire) {
            let Some(next) = version.next.get() else { break };
            version = next;
        }
        &version.limits
    }

    /// Changes the hard limits, as the kernel's `queue_limits_commit_update`. Settings of the user stay, within the new limits.
    ///
    /// Bios that passed the gateway before, and layers that have stacked these limits, know the former ones: a device must
    /// split what is too long now, as the gateways of its lower devices do. A device that cannot keep the promise of zeroes
    /// keeps the feature and has no discards ([`Limits::keep_promises`]). Callers take turns.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn set_limits(&self, limits: Limits) -> Result<(), LimitsError> {
        let old = self.limits();
        let (now, wanted) = (old.logical_block_bytes, limits.logical_block_bytes);
        if now != wanted {
            return Err(LimitsError::BlockSize { now, wanted });
        }
        let gains = limits.features - old.features;
        if gains.contains(Features::WRITE_CACHE) {
            return Err(LimitsError::WriteCache);
        }
        let loses = old.features - limits.features;
        if loses.contains(Features::DISCARD_ZEROES) {
            return Err(LimitsError::DiscardZeroes);
        }
        let (mut number, mut version) = (0, &self.first);
        while version.limits != limits {
            version = version.next.get_or_init(|| Box::new(Version::new(limits)));
            number += 1;
        }
        self.version.store(number, Release);
        self.fast_zeroes.forget();
        self.apply_settings();
        Ok(())
    }

    /// Recalculates the soft limits.
    fn apply_settings(&self) {
        let limits = self.limits();
        // A larger preferred size raises the default cap, as in the kernel.
        let default = DEFAULT_MAX_SECTORS.max(u64::from(limits.io_opt_bytes) / 512);
        let user = self.user_max_sectors.load(Relaxed);
        let sectors = if user == UNSET { default } else { user };
        self.max_sectors.store(sectors.min(limits.max_hw_sectors.0), Relaxed);
        let discard = self.user_max_discard.load(Relaxed);
        self.max_discard.store(discard.min(limits.max_hw_discard.0), Relaxed);
    }

    /// Whether other hosts can write the device, and no lock keeps them away: a layer that has its own ways to notice that uses them.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// Sets [`Self::is_shared`].
    pub fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Relaxed);
    }

    /// Whether the device takes a write-zeroes with `flags`: by its limits ([`Limits::takes_zeroes`]), and as far as its answers say.
    pub fn takes_zeroes(&self, flags: Flags) -> bool {
        let is_refused = || flags.contains(Flags::FAST) && self.fast_zeroes.are_refused();
        self.limits().takes_zeroes(flags) && !is_refused()
    }

    pub(crate) fn fast_zeroes(&self) -> &FastZeroes {
        &self.fast_zeroes
    }

    /// I/O statistics.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// Whether the device answers. Queues notice this of their devices; a layer always answers.
    pub fn presence(&self) -> Presence {
        self.life.presence()
    }

    /// Whether a driver still has a change of data that it did not answer in time.
    pub(crate) fn holds_changes(&self) -> bool {
        self.life.holds_changes()
    }

    /// Notes that acknowledged writes that no flush has covered may be lost: the next flush of each opener fails. For a
    /// layer that answers for the devices below it; queues note what failed requests may have lost.
    pub fn note_loss(&self) {
        self.cache.note_loss();
    }

    /// How often acknowledged writes may have been lost.
    pub fn losses(&self) -> u64 {
        self.cache.losses()
    }

    /// Current limit of sectors in a read or write (`max_sectors_kb`).
    pub fn max_sectors(&self) -> Sectors {
        Sectors(self.max_sectors.load(Relaxed))
    }

    /// Sets `max_sectors_kb`: at least a page, at most the hard limit.
    ///
    /// # Errors
    /// Out of that range.
    pub fn set_max_sectors_kb(&self, kib: u64) -> Result<(), SettingError> {
        let max = self.limits().max_hw_sectors.0 / 2;
        if !(4..=max).contains(&kib) {
            return Err(SettingError::OutOfRange { value: kib, min: 4, max });
        }
        self.user_max_sectors.store(kib * 2, Relaxed);
        self.apply_settings();
        Ok(())
    }

    /// The most sectors to which reads or writes merge: [`Self::max_sectors`], or less.
    pub(crate) fn max_merged(&self) -> Sectors {
        Sectors(self.max_merged.load(Relaxed)).min(self.max_sectors())
    }

    /// Sets how far reads or writes merge; zero: as far as one may be long. This splits nothing, unlike `max_sectors_kb`.
    pub fn set_max_merged(&self, max: Sectors) {
        self.max_merged.store(if max.is_zero() { UNSET } else { max.0 }, Relaxed);
    }

    /// Current limit of sectors in a discard (`discard_max_bytes`).
    pub fn max_discard(&self) -> Sectors {
        Sectors(self.max_discard.load(Relaxed))
    }

    /// Sets `discard_max_bytes`. As in the kernel, a value above the hard limit becomes the hard limit,
    /// 0 turns discards off, and the value must be a multiple of the granularity.
    ///
    /// # Errors
    /// Not a multiple of the granularity.
    pub fn set_max_discard_bytes(&self, bytes: u64) -> Result<(), SettingError> {
        let limits = self.limits();
        let unit = u64::from(limits.discard_granularity_bytes.max(limits.logical_block_bytes));
        if !bytes.is_multiple_of(unit) {
            return Err(SettingError::NotAMultiple { value: bytes, unit });
        }
        self.user_max_discard.store(Sectors::from_bytes_floor(bytes).0, Relaxed);
        self.apply_settings();
        Ok(())
    }

    /// The merges that are tried.
    pub fn nomerges(&self) -> Nomerges {
        Nomerges::from_u8(self.nomerges.load(Relaxed)).unwrap_or(Nomerges::None)
    }

    /// Sets `nomerges`: 0, 1 or 2.
    ///
    /// # Errors
    /// Any other value.
    pub fn set_nomerges(&self, value: u64) -> Result<(), SettingError> {
        match u8::try_from(value).ok().filter(|v| Nomerges::from_u8(*v).is_some()) {
            Some(v) => {
                self.nomerges.store(v, Relaxed);
                Ok(())
            }
            None => Err(SettingError::OutOfRange { value, min: 0, max: 2 }),
        }
    }

    /// Most requests in flight for each thread.
    pub fn nr_requests(&self) -> u32 {
        self.nr_requests.load(Relaxed)
    }

    /// Sets `nr_requests`: 4 (the kernel's smallest) to 65536.
    ///
    /// # Errors
    /// Out of that range.
    pub fn set_nr_requests(&self, value: u64) -> Result<(), SettingError> {
        match u32::try_from(value) {
            Ok(n @ 4..=65536) => {
                self.nr_requests.store(n, Relaxed);
                Ok(())
            }
            Ok(_) | Err(_) => Err(SettingError::OutOfRange { value, min: 4, max: 65536 }),
        }
    }

    /// The deadline of a request in milliseconds, from when the driver gets it; `None` on a device without one.
    pub fn io_timeout_ms(&self) -> Option<u32> {
        match self.io_timeout_ms.load(Relaxed) {
            0 => None,
            timeout_ms => Some(timeout_ms),
        }
    }

    /// Gives the requests deadlines.
    pub(crate) fn begin_timeouts(&self, timeout_ms: u32) {
        self.io_timeout_ms.store(timeout_ms, Relaxed);
    }

    /// Sets `io_timeout`, in milliseconds, of a device that has one: 1 to the largest number of 32 bits.
    ///
    /// # Errors
    /// Out of that range; the device has no deadline.
    pub fn set_io_timeout_ms(&self, value: u64) -> Result<(), SettingError> {
        let max = self.io_timeout_ms().map_or(0, |_| u64::from(u32::MAX));
        match u32::try_from(value) {
            Ok(timeout_ms @ 1..) if max > 0 => {
                self.io_timeout_ms.store(timeout_ms, Relaxed);
                Ok(())
            }
            Ok(_) | Err(_) => Err(SettingError::OutOfRange { value, min: 1.min(max), max }),
        }
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    /// Refuses writes from now on, or accepts them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        let limits = Limits {
            max_hw_sectors: Sectors(8192),
            max_hw_discard: Sectors(1 << 20),
            discard_granularity_bytes: 4096,
            ..Limits::default()
        };
        Disk::new("t", Sectors(1 << 20), limits)
    }

    #[test]
    fn soft_limits_never_exceed_hard_ones() {
        let d = disk();
        assert_eq!(d.max_sectors(), Sectors(2560));
        assert!(d.set_max_sectors_kb(4096).is_ok());
        assert_eq!(
            d.set_max_sectors_kb(4097),
            Err(SettingError::OutOfRange { value: 4097, min: 4, max: 4096 })
        );
        assert!(d.set_max_discard_bytes(1 << 40).is_ok());
        assert_eq!(d.max_discard(), Sectors(1 << 20));
        assert!(d.set_max_discard_bytes(524_288).is_ok());
        assert_eq!(d.max_discard(), Sectors(1024));
        assert_eq!(
            d.set_max_discard_bytes(1000),
            Err(SettingError::NotAMultiple { value: 1000, unit: 4096 })
        );
    }

    #[test]
    fn settings_of_the_user_survive_a_change_of_limits() {
        let d = disk();
        let first = *d.limits();
        let small = Limits { max_hw_sectors: Sectors(256), max_hw_discard: Sectors(512), ..first };
        let soft = |d: &Disk| (d.max_sectors().0, d.max_discard().0);
        assert_eq!((d.set_limits(small), soft(&d)), (Ok(()), (256, 512)));
        assert_eq!((d.set_limits(first), soft(&d)), (Ok(()), (2560, 1 << 20)));
        assert!(d.set_max_sectors_kb(512).is_ok() && d.set_max_discard_bytes(1 << 20).is_ok());
        assert_eq!((d.set_limits(small), soft(&d)), (Ok(()), (256, 512)));
        assert_eq!((d.set_limits(first), soft(&d)), (Ok(()), (1024, 2048)));
        // The same versions again.
        assert!(d.first.next.get().is_some_and(|second| second.next.get().is_none()));
    }

    #[test]
    fn what_others_rely_on_does_not_change() {
        let zeroes = Limits { features: Features::DISCARD_ZEROES, ..*disk().limits() };
        let d = Disk::new("t", Sectors(1 << 20), zeroes);
        let with = |features| Limits { features, ..zeroes };
        for (limits, error) in [
            (
                Limits { logical_block_bytes: 4096, ..zeroes },
                LimitsError::BlockSize { now: 512, wanted: 4096 },
            ),
            (with(Features::DISCARD_ZEROES | Features::WRITE_CACHE), LimitsError::WriteCache),
            (with(Features::empty()), LimitsError::DiscardZeroes),
        ] {
            assert_eq!((d.set_limits(limits), *d.limits()), (Err(error), zeroes));
        }
        let kept = with(Features::empty()).keep_promises(&zeroes);
        assert_eq!((d.set_limits(kept), d.max_discard()), (Ok(()), Sectors::ZERO));
        assert_eq!(d.set_limits(with(Features::empty())), Err(LimitsError::DiscardZeroes));
        assert_eq!((d.set_limits(zeroes), d.max_discard()), (Ok(()), zeroes.max_hw_discard));
    }

    #[test]
    fn device_numbers_are_packed_as_in_the_kernel() {
        assert_eq!(DeviceNumber::md(127).raw(), 0x90_007f);
        for number in [DeviceNumber::md(0), DeviceNumber::dm(0xf_ffff), disk().number()] {
            assert_eq!(DeviceNumber::of_raw(number.raw()), number);
        }
        assert_ne!(disk().number(), disk().number());
        assert_eq!(DeviceNumber::dm(3).to_string(), "252:3");
    }

    #[test]
    fn a_deadline_can_be_changed_but_not_taken_away() {
        let d = disk();
        let out = |value, min, max| Err(SettingError::OutOfRange { value, min, max });
        assert_eq!((d.io_timeout_ms(), d.set_io_timeout_ms(5)), (None, out(5, 0, 0)));
        d.begin_timeouts(DEFAULT_IO_TIMEOUT_MS);
        let max = u64::from(u32::MAX);
        assert_eq!(d.set_io_timeout_ms(0), out(0, 1, max));
        assert_eq!(d.set_io_timeout_ms(max + 1), out(max + 1, 1, max));
        assert_eq!((d.set_io_timeout_ms(1), d.io_timeout_ms()), (Ok(()), Some(1)));
    }

    #[test]
    fn settings_out_of_range_change_nothing() {
        let d = disk();
        assert!(d.set_nomerges(3).is_err() && d.set_nr_requests(3).is_err());
        assert_eq!((d.nomerges(), d.nr_requests()), (Nomerges::All, 128));
    }
}
