//! The type of a file, and its mode as ls prints it.

use std::fmt;

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// Not recorded, or none of the others.
    Unknown,
    /// A file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

impl FileType {
    /// The type in the mode of an inode.
    pub const fn of(mode: u32) -> Self {
        // S_IFMT
        match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o120_000 => Self::Symlink,
            _ => Self::Unknown,
        }
    }
}

/// In words: `a file`.
impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "something unknown",
            Self::Regular => "a file",
            Self::Directory => "a directory",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Fifo => "a pipe",
            Self::Socket => "a socket",
            Self::Symlink => "a symbolic link",
        })
    }
}

/// `drwxr-xr-x`: the letter of its type, and its permissions.
pub fn mode(mode: u32) -> String {
    let letter = match FileType::of(mode) {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
        FileType::Unknown => '?',
    };
    format!("{letter}{}", permissions(mode))
}

/// `rwxr-xr-x`.
fn permissions(mode: u32) -> String {
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    let mut text = String::with_capacity(9);
    for (class, (bit, with, without)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_as_ls_has_them() {
        let modes = [0o755, 0o4755, 0o2640, 0o1777, 0];
        let texts = ["rwxr-xr-x", "rwsr-xr-x", "rw-r-S---", "rwxrwxrwt", "---------"];
        assert_eq!(modes.map(permissions), texts);
        assert_eq!(mode(0o040_755), "drwxr-xr-x");
    }
}
