//! Copies of a group's description from before and after each change, as LVM keeps them below `/etc/lvm`.
//!
//! `archive/VG_00003-8217436.vg` is the state before the third change made here, `backup/VG` the current state. Their
//! format is the one that `vgcfgrestore -f` takes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ashlar_disks as disks;
use ashlar_lvm::metadata::{Creation, Header, Metadata};
use ashlar_lvm::text::Form;

use crate::error::{Error, Result};

/// The most characters of a command in a description.
const MAX_COMMAND: usize = 1000;

/// The copies of the descriptions that a command changes.
#[derive(Clone)]
pub struct Archives {
    /// The directory for copies, if any are kept.
    root: Option<PathBuf>,
    /// The command as it was given.
    command: String,
}

/// A copy that was kept.
pub struct Copy {
    /// Its file.
    pub path: PathBuf,
    /// The description.
    pub metadata: Metadata,
}

impl Archives {
    /// Those of `command` in the usual directory, or none with `false`.
    ///
    /// # Errors
    /// The directory cannot be determined.
    pub fn new(keep: bool, command: &str) -> Result<Self> {
        let command = command.to_owned();
        let root = keep.then(Self::directory).transpose()?.map(|state| state.join("lvm"));
        Ok(Self { root, command })
    }

    /// The directory of our states.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn directory() -> Result<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let state = match set("XDG_STATE_HOME").map(PathBuf::from) {
            Some(state) if state.is_absolute() => Some(state),
            Some(_) | None if rustix::process::geteuid().is_root() => Some("/var/lib".into()),
            Some(_) | None => set("HOME").map(|home| PathBuf::from(home).join(".local/state")),
        };
        let state = state.ok_or_else(|| {
            Error::failed("cannot determine the directory for archives of the metadata")
                .hint("set HOME or XDG_STATE_HOME, or keep no archives with -A n")
        })?;
        Ok(state.join("ashlar"))
    }

    /// Keeps the state before a change; for a new group only checks that copies can be written.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn before(&self, metadata: Option<&Metadata>) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let (archive, backup) = (root.join("archive"), root.join("backup"));
        for directory in [&archive, &backup] {
            fs::create_dir_all(directory).map_err(|error| cannot_keep(directory, error))?;
        }
        let Some(metadata) = metadata else { return Ok(()) };
        let name = &metadata.group.name;
        let number = next_number(&archive, name).map_err(|error| cannot_keep(&archive, error))?;
        let random = uuid::Uuid::new_v4().as_fields().0;
        let path = archive.join(format!("{name}_{number:05}-{random}.vg"));
        self.keep(&path, metadata, "before").map_err(|error| cannot_keep(&path, error))
    }

    /// Keeps the state after a change.
    ///
    /// # Errors
    /// It could not be written.
    pub fn after(&self, metadata: &Metadata) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let path = root.join("backup").join(&metadata.group.name);
        self.keep(&path, metadata, "after").map_err(|error| cannot_keep(&path, error))
    }

    /// As [`Self::before`], for a reactor's task.
    ///
    /// # Errors
    /// As there, or the file system is silent.
    pub async fn before_in_task(&self, metadata: Option<&Metadata>) -> Result<()> {
        let (this, metadata) = (self.clone(), metadata.cloned());
        self.asked(move || this.before(metadata.as_ref())).await
    }

    /// As [`Self::after`], for a reactor's task.
    ///
    /// # Errors
    /// As there, or the file system is silent.
    pub async fn after_in_task(&self, metadata: &Metadata) -> Result<()> {
        let (this, metadata) = (self.clone(), metadata.clone());
        self.asked(move || this.after(&metadata)).await
    }

    async fn asked(&self, keep: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match &self.root {
            Some(root) => disks::asked(root, |_| keep()).await?,
            None => Ok(()),
        }
    }

    /// Writes the present state to a file of the user's, and replaces it.
    ///
    /// # Errors
    /// It could not be written.
    pub fn write(&self, path: &Path, metadata: &Metadata) -> Result<()> {
        self.keep(path, metadata, "after").map_err(|error| cannot_keep(path, error))
    }

    /// The copies of the group called `group`, the oldest first; the state after the last change is the last one. Files that are no
    /// copies are left out.
    ///
    /// # Errors
    /// The directories cannot be read.
    pub fn copies(&self, group: &str) -> Result<Vec<Copy>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };
        let mut numbered = Vec::new();
        match fs::read_dir(root.join("archive")) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|error| cannot_read(root, error))?.path();
                    let name = path.file_name().and_then(|name| name.to_str());
                    numbered.extend(
                        name.and_then(|name| number(name, group)).map(|n| (n, path.clone())),
                    );
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot_read(root, error)),
        }
        numbered.sort();
        let backup = root.join("backup").join(group);
        let paths = numbered.into_iter().map(|(_, path)| path).chain([backup]);
        Ok(paths.filter_map(|path| Some(Copy { metadata: read(&path).ok()?, path })).collect())
    }

    /// Writes a copy, durably, and replaces one of the same name. Other programs may do this at the same time, also for
    /// another group of the same name.
    fn keep(&self, path: &Path, metadata: &Metadata, when: &str) -> io::Result<()> {
        let mut copy = metadata.clone();
        copy.set_header(header(format!("Created *{when}* executing '{}'", self.command)));
        let text = copy.print(Form::Backup { utc_offset: 0 });
        let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        // No group has this name, since `~` is not allowed in names.
        let prefix = format!("{}~", metadata.group.name);
        let mut new = tempfile::Builder::new().prefix(&prefix).tempfile_in(directory)?;
        new.write_all(&text)?;
        new.as_file().sync_all()?;
        new.persist(path)?;
        File::open(directory)?.sync_all()
    }
}

fn cannot_keep(path: &Path, error: io::Error) -> Error {
    Error::new("cannot archive the metadata", path.display(), error)
        .hint("make the directory writable, or keep no archives with -A n")
}

fn cannot_read(path: &Path, error: io::Error) -> Error {
    Error::new("cannot read copies of the metadata", path.display(), error)
}

/// The description in a file.
///
/// # Errors
/// It cannot be read, or is not a description of a group.
pub fn read(path: &Path) -> Result<Metadata> {
    let text = fs::read(path).map_err(|error| cannot_read(path, error))?;
    Metadata::parse(&text).map_err(|error| Error::new("cannot use the file", path.display(), error))
}

/// The number in the name of an archive of this group.
fn number(name: &str, group: &str) -> Option<u32> {
    let (number, _) = name.strip_prefix(group)?.strip_prefix('_')?.split_once('-')?;
    number.parse().ok()
}

/// The number after the highest one used for this group.
fn next_number(directory: &Path, group: &str) -> io::Result<u32> {
    let mut next = 0;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| number(name, group));
        next = next.max(number.map_or(0, |number| number.saturating_add(1)));
    }
    Ok(next)
}

/// The header of a text: program, place and time.
pub fn header(description: String) -> Header {
    let Creation { time, host } = creation();
    let kernel = |name: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
        text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    let [system, release, version] = ["ostype", "osrelease", "version"].map(kernel);
    let machine = std::env::consts::ARCH;
    Header {
        generator: format!("ashlar {}", env!("CARGO_PKG_VERSION")),
        description,
        host_details: format!("{system} {host} {release} {version} {machine}"),
        creation_host: host,
        creation_time: time,
    }
}

/// The current time and host.
pub fn creation() -> Creation {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Creation { time: ashlar_engine::wall_clock().as_secs(), host: host.trim().to_owned() }
}

/// The command as it was given: `ashlar lvm lvcreate -L 4M vg`.
pub fn command() -> String {
    let args = std::env::args_os().skip(1);
    let words: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    let text = format!("ashlar {}", words.join(" "));
    text.chars().take(MAX_COMMAND).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn group(seqno: u32) -> Metadata {
        let id = "AAAAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAAAA";
        let text = format!(
            "vg {{\nid = \"{id}\"\nseqno = {seqno}\nformat = \"lvm2\"\nstatus = [\"READ\", \"WRITE\"]\nflags = []\n\
             extent_size = 8192\nmax_lv = 0\nmax_pv = 0\nmetadata_copies = 0\n}}\n\
             contents = \"Text Format Volume Group\"\nversion = 1\ndescription = \"\"\n\
             creation_host = \"host\"\ncreation_time = 1\n"
        );
        Metadata::parse(text.as_bytes()).unwrap()
    }

    /// Two hosts' groups may have one name: each copy is whole, and none is lost.
    #[test]
    fn programs_that_keep_copies_at_the_same_time_disturb_none() {
        const EACH: u32 = 20;
        let directory = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for program in 0..4 {
                let root = Some(directory.path().to_owned());
                let archives = Archives { root, command: format!("program {program}") };
                scope.spawn(move || {
                    for change in 0..EACH {
                        let metadata = group(program * EACH + change + 1);
                        archives.before(Some(&metadata)).unwrap();
                        archives.after(&metadata).unwrap();
                    }
                });
            }
        });
        let files = fs::read_dir(directory.path().join("archive")).unwrap();
        let kept = files.map(|file| {
            let text = fs::read(file.unwrap().path()).unwrap();
            Metadata::parse(&text).unwrap().group.seqno
        });
        let kept: BTreeSet<u64> = kept.map(u64::from).collect();
        assert_eq!(kept, (1..=4 * u64::from(EACH)).collect());
        let backup: Vec<_> = fs::read_dir(directory.path().join("backup")).unwrap().collect();
        assert_eq!(backup.len(), 1, "no other file is left");
    }
}
