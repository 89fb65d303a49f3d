//! Makes the devices of a volume group, one by one: tables of the device mapper, and RAIDs and thin
//! pools, whose own metadata this module reads.
//!
//! RAID and thin volumes are read-only: ashlar does not keep dm-raid's superblocks or a pool's tree up to
//! date.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ashlar_block::{Gateway, Runtime, Sector, Sectors};
use ashlar_dm::Device as Mapped;
use ashlar_dm::snapshot::{Origins, Status, StatusLine};
use ashlar_dm::table::Table;
use ashlar_dm::target::{Context, Devices as Named};
use ashlar_dm::text::Line;
use ashlar_dm::thin::{Options as PoolOptions, ThinPool};
use ashlar_lvm::activate::{DeviceSource, PlannedDevice, RaidKind, RaidParts};
use ashlar_md::Array;
use ashlar_md::dm_raid::{self, Leg, Shape};
use ashlar_md::ondisk::Level;
use uuid::Uuid;

use crate::devices::Devices;

/// The name of a RAID volume's array in tables, appended to the volume's name. No plan uses this name.
const ARRAY: &str = "/array";

const SNAPSHOT: &str = "snapshot";

/// The UUID of all these arrays: nothing looks for them by UUID, since all members are at hand.
const IDENTITY: Uuid = Uuid::from_u128(1);

/// The devices of a group made so far, by their names in the plan.
#[derive(Default)]
pub(crate) struct Parts {
    made: HashMap<String, Gateway>,
    pools: HashMap<String, Arc<ThinPool>>,
    /// Origins with a snapshot that could not be made: a write to the origin would not be copied to it.
    frozen: HashSet<String>,
    /// The volumes that are invalid snapshots, which are not made.
    invalid: HashSet<String>,
}

impl Parts {
    /// Forgets a device.
    pub(crate) fn forget(&mut self, name: &str) {
        self.made.remove(name);
        self.pools.remove(name);
    }

    /// The volumes that are invalid snapshots.
    pub(crate) fn invalid(&self) -> impl Iterator<Item = &String> {
        self.invalid.iter()
    }

    /// Lets origins be written again, except those of snapshots for which `is_lost` holds.
    pub(crate) fn thaw(
        &mut self,
        plan: &[PlannedDevice],
        is_lost: impl Fn(&PlannedDevice) -> bool,
    ) {
        let lost = |real: &String| {
            plan.iter().any(|p| snapshot_of(p) == Some(real.as_str()) && is_lost(p))
        };
        self.frozen.retain(lost);
    }

    /// Gives devices other names, without order between them.
    pub(crate) fn rename(&mut self, rename: &dyn Fn(&str) -> String) {
        fn all<T>(map: &mut HashMap<String, T>, rename: &dyn Fn(&str) -> String) {
            *map = map.drain().map(|(name, value)| (rename(&name), value)).collect();
        }
        all(&mut self.made, rename);
        all(&mut self.pools, rename);
        self.frozen = self.frozen.drain().map(|name| rename(&name)).collect();
    }
}

/// Makes devices of a group.
pub(crate) struct Maker<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) origins: &'a Arc<Origins>,
    pub(crate) runtime: &'a Arc<dyn Runtime>,
    pub(crate) parts: &'a mut Parts,
}

/// The message about an invalid snapshot.
pub(crate) const INVALID_SNAPSHOT: &str = "the snapshot is invalid: its exception store was full, or could not be written; its \
                                contents are lost; remove it with lvremove";

/// Why a device was not made.
enum MakeError {
    /// An invalid snapshot.
    Invalid,
    /// A failure that may not occur next time.
    Failed(String),
}

impl From<String> for MakeError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// A device that was made.
pub(crate) struct MadeDevice {
    pub(crate) mapped: Arc<Mapped>,
    /// Whether it is read-only, whatever the group says.
    pub(crate) read_only: bool,
    /// Messages to the user.
    pub(crate) notes: Vec<String>,
}

impl Named for Maker<'_> {
    /// Devices outside the group by path, those of the group by name.
    fn find(&self, name: &str) -> Option<Gateway> {
        match name.strip_prefix("/dev/") {
            Some(name) => Some(self.devices.find(name)?.gateway().clone()),
            None => self.parts.made.get(name).cloned(),
        }
    }
}

impl Maker<'_> {
    /// Makes a device named `name`; `None` for a pool, which is not a device. With `held` it begins when it is resumed.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn make(
        &mut self,
        planned: &PlannedDevice,
        name: &str,
        held: bool,
    ) -> Result<Option<MadeDevice>, String> {
        match self.try_make(planned, name, held).await {
            Ok(made) => {
                // One of that name may have been removed.
                planned.volume.iter().for_each(|volume| _ = self.parts.invalid.remove(volume));
                Ok(made)
            }
            Err(MakeError::Invalid) => {
                self.parts.invalid.extend(planned.volume.clone());
                Err(INVALID_SNAPSHOT.to_owned())
            }
            Err(MakeError::Failed(why)) => {
                self.parts.frozen.extend(snapshot_of(planned).map(str::to_owned));
                Err(why)
            }
        }
    }

    async fn try_make(
        &mut self,
        planned: &PlannedDevice,
        name: &str,
        held: bool,
    ) -> Result<Option<MadeDevice>, MakeError> {
        let mut notes = Vec::new();
        let (table, read_only) = match &planned.made_of {
            DeviceSource::Table(lines) => self.mapped(planned, lines, &mut notes).await?,
            DeviceSource::Raid(parts) => {
                let array = self.array(planned, parts, &mut notes).await?;
                let array_name = format!("{}{ARRAY}", planned.name);
                self.parts.made.insert(array_name.clone(), array);
                (self.linear(&array_name, planned.size).await?, true)
            }
            DeviceSource::ThinPool { metadata, data, chunk } => {
                let (metadata, data) = (self.part(metadata)?, self.part(data)?);
                let options = PoolOptions { data_block: Some(*chunk), ..PoolOptions::default() };
                let pool = ThinPool::open(&planned.name, metadata, data, options).await;
                let pool = pool.map_err(|error| error.to_string())?;
                self.parts.pools.insert(planned.name.clone(), pool);
                return Ok(None);
            }
            DeviceSource::Thin { pool, device_id, external_origin } => {
                let no_pool = || format!("its pool {pool} could not be opened");
                let pool = self.parts.pools.get(pool).ok_or_else(no_pool)?;
                let thin = pool.volume(*device_id, planned.size).await;
                let mut thin = thin.map_err(|error| error.to_string())?;
                if let Some(origin) = external_origin {
                    thin = thin.with_origin(origin, self.part(origin)?);
                }
                let table = Table::of(vec![(planned.size, Box::new(thin))]);
                (table.map_err(|error| error.to_string())?, true)
            }
        };
        let mut mapped = match held {
            true => Mapped::suspended(name, table, Arc::clone(self.runtime)).await,
            false => self.start(name, table).await?,
        };
        let status = mapped.status().parse().map(|line: StatusLine| line.status);
        if status == Ok(Status::Invalid) && !is_merging(planned) {
            // An origin is available without the snapshot that was to be merged into it.
            let Some(real) = view_of_origin(planned) else { return Err(MakeError::Invalid) };
            mapped = self.start(name, self.linear(real, planned.size).await?).await?;
            notes.push("the snapshot that was to be merged into it is invalid".to_owned());
        }
        self.parts.made.insert(planned.name.clone(), Gateway::new(Arc::clone(&mapped) as _));
        Ok(Some(MadeDevice { mapped, read_only, notes }))
    }

    /// Loads the table of `planned` into the device that has this place in the group, to become live when it is resumed.
    /// Returns whether the device is read-only then, whatever the group says.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn load(
        &self,
        planned: &PlannedDevice,
        mapped: &Mapped,
    ) -> Result<bool, String> {
        let DeviceSource::Table(lines) = &planned.made_of else {
            return Err("only linear and striped volumes, and snapshots, can be changed".to_owned());
        };
        let (table, read_only) = self.mapped(planned, lines, &mut Vec::new()).await?;
        mapped.load(table).await.map_err(|error| error.to_string())?;
        Ok(read_only)
    }

    /// A table of the device mapper, and whether its device is read-only.
    async fn mapped(
        &self,
        planned: &PlannedDevice,
        lines: &[Line],
        notes: &mut Vec<String>,
    ) -> Result<(Table, bool), String> {
        // A snapshot writes only to its store, not to its origin.
        let written =
            lines.iter().flat_map(|line| &line.args[usize::from(line.kind == SNAPSHOT)..]);
        let locked = |name: &String| self.find(name).is_some_and(|at| at.disk().is_read_only());
        let mut read_only = written.into_iter().any(locked);
        let frozen = origin_below(planned).is_some_and(|real| self.parts.frozen.contains(real));
        if frozen {
            read_only = true;
            notes.push(
                "can only be read: a snapshot of it cannot be used now, and writes would \
                 invalidate it; to write nevertheless, remove the snapshot with lvremove"
                    .to_owned(),
            );
        }
        if read_only && is_merging(planned) {
            // Nothing is merged: the volume shows the result of the merge.
            let mut lines = lines.to_vec();
            lines.iter_mut().for_each(|line| SNAPSHOT.clone_into(&mut line.kind));
            return Ok((self.table(&lines).await?, true));
        }
        Ok((self.table(lines).await?, read_only))
    }

    async fn linear(&self, lower: &str, len: Sectors) -> Result<Table, String> {
        let args = vec![lower.to_owned(), "0".to_owned()];
        self.table(&[Line { start: Sector::ZERO, len, kind: "linear".to_owned(), args }]).await
    }

    async fn start(&self, name: &str, table: Table) -> Result<Arc<Mapped>, String> {
        let mapped = Mapped::start(name, table, Arc::clone(self.runtime)).await;
        mapped.map_err(|status| format!("it could not be started: {status}"))
    }

    async fn table(&self, lines: &[Line]) -> Result<Table, String> {
        let (runtime, origins) = (Arc::clone(self.runtime), Arc::clone(self.origins));
        let context = Context { devices: self, runtime, origins };
        Table::load(lines, &context).await.map_err(|error| error.to_string())
    }

    fn part(&self, name: &str) -> Result<Gateway, String> {
        self.find(name).ok_or_else(|| format!("its part {name} could not be made"))
    }

    /// The array of a RAID volume: read-only, with as many legs as it needs.
    async fn array(
        &self,
        planned: &PlannedDevice,
        parts: &RaidParts,
        notes: &mut Vec<String>,
    ) -> Result<Gateway, String> {
        let level = match parts.kind {
            RaidKind::Raid0 => Level::Raid0,
            RaidKind::Raid1 => Level::Raid1,
            RaidKind::Raid10 => Level::Raid10,
            RaidKind::Raid5(_) => Level::Raid5,
            RaidKind::Raid6(_) => Level::Raid6,
        };
        let parity = match parts.kind {
            RaidKind::Raid0 | RaidKind::Raid1 | RaidKind::Raid10 => 0,
            RaidKind::Raid5(layout) | RaidKind::Raid6(layout) => layout,
        };
        let copies = parts.copies.unwrap_or(2);
        let copies = u8::try_from(copies).map_err(|_| format!("it has {copies} copies"))?;
        let shape = Shape { level, copies, parity, chunk: parts.stripe.unwrap_or_default() };
        let leg = |part: &Option<String>| part.as_ref().and_then(|name| self.find(name));
        let legs: Vec<Leg> = parts
            .legs
            .iter()
            .map(|(meta, data)| Leg { meta: leg(meta), data: leg(data) })
            .collect();
        let found = dm_raid::candidates(IDENTITY, shape, &legs).await;
        let found = found.map_err(|error| error.to_string())?;
        let options = ashlar_md::Options { run: true, read_only: true, force: false };
        let plan = ashlar_md::plan(found.candidates, &options).await;
        let plan = plan.map_err(|error| error.to_string())?;
        notes.extend(found.notes.iter().chain(&plan.notes).cloned());
        let array = Array::start(plan, &planned.name, Arc::clone(self.runtime));
        Ok(Gateway::new(array as _))
    }
}

fn only_line(planned: &PlannedDevice) -> Option<&Line> {
    match &planned.made_of {
        DeviceSource::Table(lines) => match &lines[..] {
            [line] => Some(line),
            _ => None,
        },
        DeviceSource::Raid(_) | DeviceSource::ThinPool { .. } | DeviceSource::Thin { .. } => None,
    }
}

fn is_merging(planned: &PlannedDevice) -> bool {
    only_line(planned).is_some_and(|line| line.kind == "snapshot-merge")
}

/// The device with the origin's data, if this device is the origin as users see it.
fn origin_below(planned: &PlannedDevice) -> Option<&str> {
    let line = only_line(planned)?;
    let is = matches!(&*line.kind, "snapshot-origin" | "snapshot-merge");
    let real = line.args.first().filter(|_| is || line.kind == SNAPSHOT)?;
    (is || *real == format!("{}-real", planned.name)).then_some(real)
}

/// The same, for an origin that shows the result of a merge and is not written.
fn view_of_origin(planned: &PlannedDevice) -> Option<&str> {
    origin_below(planned).filter(|_| only_line(planned).is_some_and(|line| line.kind == SNAPSHOT))
}

/// The device with the origin's data, if this device is a snapshot.
fn snapshot_of(planned: &PlannedDevice) -> Option<&str> {
    let line = only_line(planned).filter(|line| line.kind == SNAPSHOT)?;
    line.args.first().filter(|_| origin_below(planned).is_none()).map(String::as_str)
}
