//! Maps of GNU ddrescue: `--map`, and those beside images.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ashlar_block::Gateway;
use ashlar_block::sync::lock;
use ashlar_client::disk_path::{is_no_file, is_same};
use ashlar_control::error::{Error, Result};
use ashlar_stack::assemble::{Disk, Stack};
use ashlar_stack::ddrescue::{MAX_BYTES, RescueMap, RescuedDevice, claims_to_be_a_map};
use ashlar_view::graph::human_size;
use rustix::fs::OFlags;

use crate::decorator::Decorator;

mod map_file;

pub use map_file::{BadMapFile, MapFile};

/// The maps that the user named, and those that were found.
#[derive(Debug, Default)]
pub struct Maps {
    /// Those that the user named.
    given: Mutex<Vec<MapFile>>,
    /// What is known of the disks with a map.
    known: Mutex<Vec<MappedDisk>>,
}

/// A disk with a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedDisk {
    /// The disk.
    pub disk: PathBuf,
    /// Its map.
    pub map: PathBuf,
    /// How many of its bytes ddrescue has not read.
    pub unread_bytes: u64,
    /// In how many areas.
    pub areas: usize,
}

impl MappedDisk {
    /// `12K not read by ddrescue, in 2 areas`, or `all read by ddrescue`.
    pub fn unread(&self) -> String {
        let size = human_size(self.unread_bytes);
        match self.areas {
            0 => "all read by ddrescue".to_owned(),
            1 => format!("{size} not read by ddrescue"),
            areas => format!("{size} not read by ddrescue, in {areas} areas"),
        }
    }
}

impl Maps {
    /// These maps; the last one for a disk counts.
    pub fn new(given: Vec<MapFile>) -> Self {
        Self { given: Mutex::new(given), known: Mutex::default() }
    }

    /// These, and then `more`.
    pub fn with(&self, more: &[MapFile]) -> Self {
        let given = [&lock(&self.given)[..], more].concat();
        Self { given: Mutex::new(given), known: Mutex::new(self.known()) }
    }

    /// The disks that were opened and have a map.
    pub fn known(&self) -> Vec<MappedDisk> {
        lock(&self.known).clone()
    }

    /// Has arrays keep members with more read errors than md forgives within an hour, if a disk was not read completely: these errors are
    /// of the disk that ddrescue has read, and an image does not get worse. Otherwise each of two images that lack different parts could
    /// leave its array, and take with it what the other one lacks.
    pub fn keep_members(&self, stack: &Stack) {
        if lock(&self.known).iter().any(|found| found.areas > 0) {
            for array in stack.arrays.running() {
                array.view.members().set_max_read_errors(u32::MAX);
            }
        }
    }

    /// The file of the map that the user named for a disk.
    fn given_for(&self, disk: &Path) -> Option<PathBuf> {
        let named = |map: &&MapFile| {
            let wanted = map.disk.as_deref();
            wanted.is_some_and(|wanted| is_same(disk, wanted))
        };
        lock(&self.given).iter().rev().find(named).map(|map| map.file.clone())
    }

    /// The map of a disk and its file: the one that the user named, or else one beside the image.
    fn map_of(&self, disk: &Path) -> Result<Option<(PathBuf, RescueMap)>> {
        if let Some(file) = self.given_for(disk) {
            let text = read(&file)?;
            let map = RescueMap::parse(&text).map_err(|why| {
                let error = Error::new("cannot use the map", file.display(), why);
                error.hint("a map is the third file of ddrescue DISK IMAGE MAP")
            })?;
            return Ok(Some((file, map)));
        }
        let is_image = !is_no_file(disk) && disk.is_file();
        for file in if is_image { beside(disk) } else { Vec::new() } {
            if !file.is_file() || is_same(&file, disk) {
                continue;
            }
            let text = read(&file)?;
            match RescueMap::parse(&text) {
                Ok(map) => return Ok(Some((file, map))),
                Err(why) if claims_to_be_a_map(&text) => {
                    let error = Error::new("cannot use the map", file.display(), why);
                    return Err(error.hint(
                        "ddrescue wrote it beside the image: mend it, name another one with --map, or move it away",
                    ));
                }
                Err(why) => tracing::debug!(file = %file.display(), %why, "no map of ddrescue"),
            }
        }
        Ok(None)
    }

    fn note(&self, found: &MappedDisk) {
        let mut known = lock(&self.known);
        if known.contains(found) {
            return;
        }
        known.retain(|other| other.disk != found.disk);
        known.push(found.clone());
        let (disk, map) = (found.disk.display(), found.map.display());
        let text = found.unread();
        if found.areas == 0 {
            tracing::info!(%disk, %map, "{text}");
        } else {
            tracing::warn!(%disk, %map, "{text}: reads of that fail");
        }
    }
}

impl Decorator for Maps {
    /// Finds the disk that an unnamed map is for.
    fn check(&self, disks: &[PathBuf]) -> Result<()> {
        for map in lock(&self.given).iter_mut() {
            let listed = || disks.iter().map(|disk| disk.display().to_string()).collect::<Vec<_>>();
            match (&map.disk, disks) {
                (None, [only]) => map.disk = Some(only.clone()),
                (None, _) => {
                    let text = format!("which disk is the map {} for?", map.file.display());
                    let hint = format!("--map DISK={}", map.file.display());
                    return Err(Error::usage(text).hint(hint));
                }
                (Some(wanted), _) if disks.iter().any(|disk| is_same(disk, wanted)) => {}
                (Some(wanted), _) => {
                    let wanted = wanted.display();
                    let text = format!("a map for {wanted}, which is not among the disks");
                    return Err(
                        Error::usage(text).hint(format!("they are {}", listed().join(", ")))
                    );
                }
            }
        }
        Ok(())
    }

    /// Reads fail in the areas that the map of the disk, if it has one, lists as unread.
    fn over(&self, disk: Disk) -> Result<Disk> {
        let Some((file, map)) = self.map_of(&disk.path)? else { return Ok(disk) };
        let size = disk.gateway.capacity().bytes();
        if map.end() / 512 > size / 512 {
            return Err(too_large(&disk.path, &file, map.end(), size));
        }
        let unread = map.unread(size);
        let found = MappedDisk {
            disk: disk.path.clone(),
            map: file,
            unread_bytes: unread.iter().map(|area| area.end - area.start).sum(),
            areas: unread.len(),
        };
        self.note(&found);
        if unread.is_empty() {
            return Ok(disk);
        }
        let device = RescuedDevice::new(disk.gateway, &unread);
        Ok(Disk { path: disk.path, gateway: Gateway::new(Arc::new(device)) })
    }

    /// The lender has looked for a map beside the image, and lends no disk with one. A map that this daemon was given cannot be
    /// read in its sandbox.
    fn over_lent(&self, disk: Disk) -> Result<Disk> {
        let Some(file) = self.given_for(&disk.path) else { return Ok(disk) };
        let why = format!("the daemon cannot read its map {} any more", file.display());
        let error = Error::new("cannot use", disk.path.display(), why);
        Err(error.hint("stop the daemon, and start it with this disk among the others"))
    }

    fn is_for_lent(&self) -> bool {
        !lock(&self.given).is_empty()
    }

    fn may_lend(&self, path: &Path) -> Result<()> {
        let Some((file, _)) = self.map_of(path)? else { return Ok(()) };
        let why = format!("a running daemon takes no map, and this disk has {}", file.display());
        let error = Error::new("cannot hand in", path.display(), why);
        Err(error.hint("serve it from the start, or move the map away if all of the disk was read"))
    }

    fn may_call(&self) -> Result<()> {
        let given = lock(&self.given);
        let Some(map) = given.first() else { return Ok(()) };
        let text = format!("cannot use the map {}: the daemon opens the disks", map.file.display());
        Err(Error::usage(text).hint("ashlar serve --map uses it from the start"))
    }
}

fn too_large(disk: &Path, map: &Path, end: u64, size: u64) -> Error {
    let (map, shown) = (map.display(), disk.display());
    let why = format!("{map} describes {end} bytes, and it has {size}");
    let hint = format!(
        "is the map another disk's? Then name the right one with --map, or move it away. If the disk ends with what was \
         not read, so that the image is too short: truncate -s {end} {shown}"
    );
    Error::new("cannot use the map of", shown, why).hint(hint)
}

/// Where the map of an image may be: `disk.img.map`, and for `disk.img` also `disk.map`.
fn beside(image: &Path) -> Vec<PathBuf> {
    let mut longer = image.as_os_str().to_owned();
    longer.push(".map");
    let is_img = image.extension().is_some_and(|extension| extension == "img");
    let shorter = is_img.then(|| image.with_extension("map"));
    [Some(longer.into()), shorter].into_iter().flatten().collect()
}

/// The contents of a map: at most a byte more than a map may have.
fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |why: std::io::Error| Error::new("cannot read the map", path.display(), why);
    // A pipe in its place must not hold up the command.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file: File = opened.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let why = std::io::Error::other("it is not a regular file");
        return Err(failed(why));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}
