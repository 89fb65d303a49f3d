//! The mode of a file, as ls prints it.

use crate::files::kind_of;
use crate::ondisk::items::FileType;

/// `drwxr-xr-x`: the letter of its type, and its permissions.
pub fn mode(mode: u32) -> String {
    let letter = match kind_of(mode) {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
        FileType::Unknown | FileType::Xattr => '?',
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
