//! Files as a directory listing shows them.

use std::io::{self, Write};

use ashlar_files::{FileError, FileType, Name, Place, Stat, Tree, mode, utc};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

/// A file in a listing.
pub struct ListedFile {
    path: Vec<u8>,
    place: Place,
    stat: Option<Stat>,
    target: Option<Vec<u8>>,
}

/// Its data as JSON.
#[derive(Serialize)]
struct ListedData {
    path: String,
    /// The bytes of the path, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified: i64,
    subvolume: Option<u64>,
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl Serialize for ListedFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.data().serialize(serializer)
    }
}

/// The word for a kind.
const fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink => "link",
        FileType::Unknown => "unknown",
    }
}

impl ListedFile {
    /// The file `place`, at `path`. The target of a link is read by [`Self::read_target`].
    ///
    /// # Errors
    /// The inode cannot be read.
    pub async fn read(files: &dyn Tree, path: &[u8], place: Place) -> Result<Self, FileError> {
        let stat = files.stat(place).await?;
        Ok(Self { path: path.to_vec(), place, stat, target: None })
    }

    /// Reads the target, if it is a link.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read_target(&mut self, files: &dyn Tree) -> Result<(), FileError> {
        if FileType::of(self.mode()) == FileType::Symlink {
            self.target = Some(files.target(self.place).await?);
        }
        Ok(())
    }

    /// The mode; a subvolume's stand-in directory without an inode has 0755.
    fn mode(&self) -> u32 {
        self.stat.as_ref().map_or(0o040_755, |stat| stat.mode)
    }

    fn device(&self) -> Option<String> {
        let stat = self.stat.as_ref()?;
        match stat.kind() {
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = stat.device;
                Some(format!("{major}:{minor}"))
            }
            FileType::Unknown
            | FileType::Regular
            | FileType::Directory
            | FileType::Fifo
            | FileType::Socket
            | FileType::Symlink => None,
        }
    }

    fn data(&self) -> ListedData {
        let stat = self.stat.as_ref();
        let (subvolume, inode) = match self.place {
            Place::Inode { tree, inode } => (Some(tree), Some(inode)),
            Place::Empty => (None, None),
        };
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_text = std::str::from_utf8(&self.path).is_ok();
        let base64 = || STANDARD.encode(&self.path);
        ListedData {
            path: lossy(&self.path),
            path_base64: (!is_text).then(base64),
            kind: kind_word(FileType::of(self.mode())),
            mode: format!("{:04o}", self.mode() & 0o7777),
            links: stat.map_or(1, |stat| stat.links),
            uid: stat.map_or(0, |stat| stat.uid),
            gid: stat.map_or(0, |stat| stat.gid),
            size: stat.map_or(0, |stat| stat.size),
            modified: stat.map_or(0, |stat| stat.modified.seconds),
            subvolume,
            inode,
            target: self.target.as_deref().map(lossy),
            device: self.device(),
        }
    }

    /// Its line, as `ls -l` prints it.
    ///
    /// # Errors
    /// The sink failed.
    pub fn print_long(&self, out: &mut dyn Write) -> io::Result<()> {
        let mode = mode(self.mode());
        let stat = self.stat.as_ref();
        let (links, uid, gid) = stat.map_or((1, 0, 0), |stat| (stat.links, stat.uid, stat.gid));
        let size = stat.map_or(0, |stat| stat.size).to_string();
        let size = self.device().unwrap_or(size);
        let time = utc(stat.map_or(0, |stat| stat.modified.seconds));
        let name = Name(self.path.clone());
        write!(out, "{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} {name}")?;
        match &self.target {
            Some(target) => writeln!(out, " -> {}", Name(target.clone())),
            None => writeln!(out),
        }
    }
}
