//! New arrays: the devices become members only after everything was checked.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use ashlar_block::Sectors;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_md::create::{CreatedArray, NewDevice, create, prepare};
use ashlar_md::ondisk::create::{
    CreateSpec, DEFAULT_DAEMON_SLEEP, DeviceNumbers, NewBitmap, NewMember, NewSuperblock, full_name,
};
use ashlar_md::ondisk::homehost::with_host;
use ashlar_md::ondisk::{DeviceFlags, Level, MdadmUuid, Version, words};
use ashlar_stack::names::parse_array_name;
use ashlar_stack::probe::probe;
use ashlar_stack::wipe;
use ashlar_view::graph::human_size;
use uuid::Uuid;

use super::homehost;
use crate::error::{Error, Result};

/// The word for a device that will be added later.
pub const MISSING: &str = "missing";

/// The user's choice of a bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitmapChoice {
    /// A bitmap on the members.
    Internal,
    /// One that is written without locks.
    Lockless,
    /// No bitmap.
    None,
}

impl FromStr for BitmapChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "internal" => Ok(Self::Internal),
            "lockless" => Ok(Self::Lockless),
            "none" => Ok(Self::None),
            _ => Err(format!("`{text}` is not one of internal, lockless, none")),
        }
    }
}

/// How an array is synchronised after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConsistencyPolicy {
    /// All copies.
    Resync,
    /// Those that a bitmap marks.
    Bitmap,
    /// The parity that a partial parity log completes.
    Ppl,
}

impl ConsistencyPolicy {
    /// mdadm's word for it.
    const fn word(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Bitmap => "bitmap",
            Self::Ppl => "ppl",
        }
    }
}

impl FromStr for ConsistencyPolicy {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "resync" => Ok(Self::Resync),
            "bitmap" => Ok(Self::Bitmap),
            "ppl" => Ok(Self::Ppl),
            _ => Err(format!("`{text}` is not one of resync, bitmap, ppl")),
        }
    }
}

/// The array that a user wants; what is `None` has a default.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// RAID 0, 1 or 10.
    pub level: Level,
    /// mdadm's word for the layout.
    pub layout: Option<String>,
    /// The size of chunks.
    pub chunk: Option<Sectors>,
    /// Devices in the array.
    pub raid_devices: u32,
    /// Spares, which follow these devices.
    pub spare_devices: u32,
    /// The version of the superblocks.
    pub version: Version,
    /// The name.
    pub name: Option<String>,
    /// The host in front of the name, `any` for none; by default this host.
    pub homehost: Option<String>,
    /// The UUID.
    pub uuid: Option<Uuid>,
    /// The space to use on each device.
    pub size: Option<Sectors>,
    /// Where data begins on each device.
    pub data_offset: Option<Sectors>,
    /// Whether the members are equal already.
    pub assume_clean: bool,
    /// The bitmap.
    pub bitmap: Option<BitmapChoice>,
    /// How it is synchronised after a crash.
    pub policy: Option<ConsistencyPolicy>,
    /// Data per bit of the bitmap.
    pub bitmap_chunk: Option<Sectors>,
    /// Writes that may be acknowledged before write-mostly devices have them.
    pub write_behind: Option<u32>,
}

/// A device of the command: one that becomes a member, or the word [`MISSING`].
#[derive(Clone, Debug)]
pub struct MemberPath {
    /// Its path.
    pub path: PathBuf,
    /// Its flags.
    pub flags: DeviceFlags,
}

impl MemberPath {
    fn is_missing(&self) -> bool {
        self.path == Path::new(MISSING)
    }
}

impl CreateOptions {
    /// Refuses what contradicts itself.
    fn check(&self, devices: &[MemberPath]) -> Result<()> {
        self.check_policy()?;
        if self.version == Version::V0_90 && self.name.is_some() {
            let error = Error::usage("version 0.90 superblocks have no place for a --name");
            return Err(error.hint("give the array's number, as in /dev/md0"));
        }
        self.check_write_behind(devices)
    }

    /// The policy and the bitmap must not contradict each other.
    fn check_policy(&self) -> Result<()> {
        let wants_bitmap = self.bitmap.is_some_and(|bitmap| bitmap != BitmapChoice::None)
            || self.bitmap_chunk.is_some()
            || self.write_behind.is_some();
        let Some(policy) = self.policy else { return Ok(()) };
        let clash = match policy {
            ConsistencyPolicy::Resync | ConsistencyPolicy::Ppl => wants_bitmap,
            ConsistencyPolicy::Bitmap => self.bitmap == Some(BitmapChoice::None),
        };
        if policy == ConsistencyPolicy::Ppl && self.level != Level::Raid5 {
            return Err(Error::usage("--consistency-policy=ppl is for raid5"));
        }
        if !clash {
            return Ok(());
        }
        let policy = policy.word();
        let text =
            format_args!("--consistency-policy={policy} contradicts what is said of a bitmap");
        Err(Error::usage(text))
    }

    /// Write-behind needs write-mostly members, and is stored in the bitmap.
    fn check_write_behind(&self, devices: &[MemberPath]) -> Result<()> {
        let written_only = devices.iter().any(|device| device.flags.write_mostly);
        let why = match self.write_behind {
            None => return Ok(()),
            Some(_) if self.level != Level::Raid1 => "is for raid1",
            Some(_) if !written_only => "needs a device behind --write-mostly",
            Some(_) if matches!(self.bitmap, Some(BitmapChoice::None | BitmapChoice::Lockless)) => {
                "needs an internal bitmap"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::usage(format_args!("--write-behind {why}")))
    }

    /// The array's name, and its devices: the first of `devices` may be the name.
    fn split_name<'a>(&self, mut devices: &'a [MemberPath]) -> Result<(String, &'a [MemberPath])> {
        let first = devices.first().map(|device| device.path.as_path());
        let named = first.filter(|path| !path.exists()).and_then(Path::to_str);
        let named = named.and_then(parse_array_name).map(str::to_owned);
        if named.is_some() {
            devices = &devices[1..];
        }
        let wanted = self.raid_devices as usize + self.spare_devices as usize;
        if devices.len() != wanted {
            let spares = match self.spare_devices {
                0 => String::new(),
                spares => format!(" --spare-devices={spares}"),
            };
            let (raid, given) = (self.raid_devices, devices.len());
            let text = format!("--raid-devices={raid}{spares} but {given} devices are given");
            let hint = "give as many devices, with the word missing for those to come later";
            return Err(Error::usage(text).hint(hint));
        }
        if devices[self.raid_devices as usize..].iter().any(MemberPath::is_missing) {
            return Err(Error::usage("a spare cannot be missing"));
        }
        let name = self.name.clone().or(named).unwrap_or_else(|| "0".to_owned());
        Ok((name, devices))
    }

    fn new_bitmap(&self) -> NewBitmap {
        match (self.bitmap, self.policy) {
            (Some(BitmapChoice::None), _)
            | (None, Some(ConsistencyPolicy::Resync | ConsistencyPolicy::Ppl)) => NewBitmap::None,
            (Some(BitmapChoice::Lockless), _) => NewBitmap::Lockless,
            (None, None) if self.bitmap_chunk.is_none() => NewBitmap::Auto,
            (Some(BitmapChoice::Internal), _) | (None, _) => {
                NewBitmap::Internal { chunk: self.bitmap_chunk.map(Sectors::bytes) }
            }
        }
    }

    fn spec(
        &self,
        name: &str,
        layout: Option<u32>,
        members: &[Option<NewDevice>],
        devices: &[MemberPath],
    ) -> CreateSpec {
        let host = homehost(self.homehost.as_deref());
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let member = |(device, path): (&Option<NewDevice>, &MemberPath)| {
            let device = device.as_ref()?.gateway.capacity();
            Some(NewMember { device, device_uuid: Uuid::new_v4(), flags: path.flags })
        };
        let number = |device: &MemberPath| disks::device_number(&device.path).unwrap_or((0, 0));
        CreateSpec {
            version: self.version,
            level: self.level,
            layout,
            chunk: self.chunk,
            raid_devices: self.raid_devices,
            members: members.iter().zip(devices).map(member).collect(),
            size: self.size,
            data_offset: self.data_offset,
            set_uuid: self.uuid.unwrap_or_else(|| new_uuid(self.version, host.as_deref())),
            name: match self.version {
                Version::V0_90 => String::new(),
                Version::V1_0 | Version::V1_1 | Version::V1_2 => full_name(host.as_deref(), name),
            },
            ctime: since_epoch.map_or(0, |time| time.as_secs()),
            assume_clean: self.assume_clean,
            bitmap: self.new_bitmap(),
            write_behind: self.write_behind.unwrap_or(0),
            daemon_sleep: DEFAULT_DAEMON_SLEEP,
            ppl: self.policy == Some(ConsistencyPolicy::Ppl),
            bad_block_log: true,
            numbers: DeviceNumbers {
                // 127 for a name that is not a number, the first that mdadm tries.
                array: name.parse().unwrap_or(127),
                members: devices.iter().map(number).collect(),
            },
        }
    }
}

/// A random UUID for an array of `host`, which it encodes in version 0.90.
fn new_uuid(version: Version, host: Option<&str>) -> Uuid {
    match (version, host) {
        (Version::V0_90, Some(host)) => with_host(Uuid::new_v4(), host),
        (Version::V0_90 | Version::V1_0 | Version::V1_1 | Version::V1_2, _) => Uuid::new_v4(),
    }
}

/// An array that can be created: its devices are open, and nothing was written.
pub struct NewArray {
    spec: CreateSpec,
    members: Vec<Option<NewDevice>>,
}

/// An array that was created, or would be.
pub struct ArrayPlan {
    spec: CreateSpec,
    size: Sectors,
    /// The members by number.
    pub members: Vec<PlannedMember>,
}

/// A member of an array that was created, or would be.
pub struct PlannedMember {
    /// Its path; `None` if it is missing.
    pub path: Option<String>,
    /// Whether it is a spare.
    pub is_spare: bool,
    /// Its superblock, if it is there.
    pub superblock: Option<NewSuperblock>,
    /// The contents that the device loses, in words; `None` if it is empty.
    pub contents: Option<String>,
}

impl NewArray {
    /// Checks the options, and opens the devices; the first of them may be the array's name.
    ///
    /// # Errors
    /// The options contradict each other, or a device cannot be opened.
    pub fn open(options: &CreateOptions, devices: &[MemberPath], access: Access) -> Result<Self> {
        options.check(devices)?;
        let (name, devices) = options.split_name(devices)?;
        let layout = options.layout.as_deref().map(|text| words::layout(options.level, text));
        let layout =
            layout.transpose().map_err(|why| Error::usage(format_args!("--layout: {why}")))?;
        let present = devices.iter().filter(|device| !device.is_missing());
        let present: Vec<PathBuf> = present.map(|device| device.path.clone()).collect();
        let mut opened = Opener::new(access).all(&present)?.into_iter();
        let member = |device: &MemberPath| {
            if device.is_missing() {
                return None;
            }
            let gateway = opened.next()?.gateway;
            let known_zero = disks::is_all_hole(&device.path);
            let path = device.path.display().to_string();
            Some(NewDevice { gateway, path, known_zero, wiped: Vec::new() })
        };
        let members: Vec<Option<NewDevice>> = devices.iter().map(member).collect();
        let spec = options.spec(&name, layout, &members, devices);
        Ok(Self { spec, members })
    }

    /// What [`Self::create`] would create, and what the devices would lose.
    ///
    /// # Errors
    /// The options do not describe an array, or a device cannot be read.
    pub async fn plan(&self) -> Result<ArrayPlan> {
        let contents = self.contents().await?;
        let created = prepare(&self.spec, &self.members).map_err(|error| self.failed(error))?;
        Ok(self.planned(created, contents))
    }

    /// Creates the array; with `force` of devices that are not empty, too.
    ///
    /// # Errors
    /// The options do not describe an array, or a device is not empty or cannot be written.
    pub async fn create(mut self, force: bool) -> Result<ArrayPlan> {
        if force {
            for device in self.members.iter_mut().flatten() {
                let ranges = wipe::ranges(&device.gateway).await;
                device.wiped =
                    ranges.map_err(|status| Error::new("cannot read", &device.path, status))?;
            }
        } else {
            let contents = self.contents().await?;
            let mut used = self.members.iter().zip(&contents).filter_map(|(device, contents)| {
                Some(refusal(&device.as_ref()?.path, contents.as_deref()?))
            });
            if let Some(refusal) = used.next() {
                return Err(refusal);
            }
        }
        let created = create(&self.spec, &self.members).await;
        let created = created.map_err(|error| self.failed(error))?;
        let contents = vec![None; self.members.len()];
        Ok(self.planned(created, contents))
    }

    /// The contents of the devices, in words; `None` for empty and for missing ones.
    async fn contents(&self) -> Result<Vec<Option<String>>> {
        let mut all = Vec::with_capacity(self.members.len());
        for device in &self.members {
            let Some(device) = device else {
                all.push(None);
                continue;
            };
            let contents = probe(&device.gateway).await;
            let contents =
                contents.map_err(|status| Error::new("cannot read", &device.path, status))?;
            all.push((!contents.is_empty()).then(|| contents.claims().join(", ")));
        }
        Ok(all)
    }

    fn planned(&self, created: CreatedArray, contents: Vec<Option<String>>) -> ArrayPlan {
        let CreatedArray { size, superblocks } = created;
        let parts = self.members.iter().zip(superblocks).zip(contents).enumerate();
        let members = parts.map(|(number, ((device, superblock), contents))| PlannedMember {
            path: device.as_ref().map(|device| device.path.clone()),
            is_spare: number >= self.spec.raid_devices as usize,
            superblock,
            contents,
        });
        ArrayPlan { spec: self.spec.clone(), size, members: members.collect() }
    }

    fn failed(&self, error: impl Display) -> Error {
        Error::new("cannot create", shown_name(&self.spec), error)
    }
}

impl ArrayPlan {
    /// The array's name in its superblocks, or words for none.
    pub fn name(&self) -> &str {
        shown_name(&self.spec)
    }

    /// Why the array is not created without force: a device is not empty.
    pub fn refusal(&self) -> Option<Error> {
        let mut members = self.members.iter();
        members.find_map(|it| Some(refusal(it.path.as_deref()?, it.contents.as_deref()?)))
    }

    /// What would be created, and what would be lost on which device.
    pub fn dry_report(&self) -> String {
        let mut text = format!("array would be created: {self}\n");
        for (number, member) in self.members.iter().enumerate() {
            let (Some(path), Some(new)) = (&member.path, &member.superblock) else {
                text += &format!("{number}: {MISSING}\n");
                continue;
            };
            let sb = &new.superblock;
            let kind = if member.is_spare { "spare, " } else { "" };
            let data = if sb.level.is_redundant() { sb.size } else { sb.data_size };
            text += &format!(
                "{number}: {path}: {kind}superblock {} at sector {}, data from sector {}, {}",
                sb.version,
                sb.super_offset.0,
                sb.data_offset.0,
                human_size(data.bytes())
            );
            if let (Some(bitmap), Some(at)) = (&new.bitmap, sb.bitmap_start()) {
                let chunk = human_size(bitmap.chunksize.get().into());
                text += &format!(", bitmap of {chunk} chunks at sector {}", at.0);
            }
            text.push('\n');
            if let Some(contents) = &member.contents {
                text += &format!("   overwrites {contents}\n");
            }
        }
        text + "nothing was changed\n"
    }

    /// What was created, and how it is served.
    pub fn report(&self) -> String {
        let paths: Vec<&str> =
            self.members.iter().filter_map(|member| member.path.as_deref()).collect();
        let is_degraded = paths.len() < self.members.len();
        let serve = if is_degraded { "ashlar serve --run" } else { "ashlar serve" };
        format!(
            "array {} created: {self}\nserve it with: {serve} {}\n",
            self.name(),
            paths.join(" "),
        )
    }
}

/// `raid1, 2 devices, 1 spare, 1G, UUID 01234567:...`
impl Display for ArrayPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spares = match self.members.iter().filter(|member| member.is_spare).count() {
            0 => String::new(),
            1 => ", 1 spare".to_owned(),
            spares => format!(", {spares} spares"),
        };
        let (size, uuid) = (human_size(self.size.bytes()), MdadmUuid(self.spec.set_uuid));
        let (level, devices) = (self.spec.level, self.spec.raid_devices);
        write!(f, "{level}, {devices} devices{spares}, {size}, UUID {uuid}")
    }
}

fn shown_name(spec: &CreateSpec) -> &str {
    if spec.name.is_empty() { "without name" } else { &spec.name }
}

fn refusal(path: &str, contents: &str) -> Error {
    Error::new("cannot create", path, format_args!("has {contents}"))
        .hint("nothing was changed; --force overwrites what is there")
}
