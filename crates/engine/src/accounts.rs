//! The system's database of groups.

use std::ffi::{CString, c_char};
use std::{io, mem, ptr};

/// The most room that an entry of the database may take, bytes.
const MAX_ENTRY: usize = 16 << 20;

/// The number of the group `name`; `None` if there is no such group. Asks all sources of the system (nsswitch.conf(5)),
/// which may take a while.
///
/// # Errors
/// Those of getgrnam_r(3).
pub fn group(name: &str) -> io::Result<Option<u32>> {
    group_in(name, 1024)
}

/// As [`group`]. An entry that takes more than `first` bytes needs further attempts.
fn group_in(name: &str, first: usize) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut room: Vec<c_char> = vec![0; first];
    loop {
        // SAFETY: a group is plain memory. The call writes to it, to `room` and to `found`, which outlive the use of
        // `found`, and reads `name`, which ends with a zero byte.
        let (errno, found) = unsafe {
            let mut entry: libc::group = mem::zeroed();
            let mut found: *mut libc::group = ptr::null_mut();
            let at = room.as_mut_ptr();
            let errno =
                libc::getgrnam_r(name.as_ptr(), &raw mut entry, at, room.len(), &raw mut found);
            (errno, (!found.is_null()).then_some(entry.gr_gid))
        };
        match errno {
            0 => return Ok(found),
            // What else the sources answer where there is no such entry (getgrnam(3)).
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            libc::EINTR => {}
            libc::ERANGE if room.len() < MAX_ENTRY => room.resize(room.len() * 4, 0),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_numbers_of_the_system() {
        let text = std::fs::read_to_string("/etc/group").unwrap();
        let mut count = 0;
        for line in text.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else { continue };
            let id = Some(id.parse().unwrap());
            assert_eq!((group(name).unwrap(), group_in(name, 1).unwrap()), (id, id), "{line}");
            count += 1;
        }
        assert!(count > 0);
        for unknown in ["", "no such group", "root\0", "0"] {
            assert_eq!(group(unknown).unwrap(), None, "{unknown:?}");
        }
    }
}
