//! The holes of a disk image, by lseek(2).

use std::os::fd::BorrowedFd;

use ashlar_block::extent::{ExtentState, Extents};
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, Result};

/// The parts of a range. A file system without holes says that all is data. Blocks.
pub(super) fn find(
    file: BorrowedFd<'_>,
    at: Sector,
    len: Sectors,
) -> std::result::Result<Extents, Status> {
    let mut extents = Extents::new(at);
    seek_holes(file, at + len, &mut extents)
        .map_err(|errno| Status::from_errno(errno.raw_os_error()))?;
    Ok(extents)
}

fn seek_holes(file: BorrowedFd<'_>, end: Sector, extents: &mut Extents) -> Result<()> {
    let (data, hole) = (ExtentState::empty(), ExtentState::HOLE | ExtentState::ZERO);
    // The rest of a file that was truncated cannot be read: it is not a hole.
    let size = Sector::from_bytes_floor(fstat(file)?.st_size.max(0) as u64);
    while extents.end() < end.min(size) && !extents.is_full() {
        let start = match seek(file, SeekFrom::Data(extents.end().bytes())) {
            // What is partly data is data.
            Ok(start) => Sector::from_bytes_floor(start),
            // No data up to the end of the file.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        extents.extend_to(start.min(end), hole);
        if start < end.min(size) {
            let stop = seek(file, SeekFrom::Hole(start.bytes()))?;
            // One sector at least, though the file may change meanwhile.
            let stop = Sector::from_bytes_floor(stop.next_multiple_of(512)).max(start + Sectors(1));
            extents.extend_to(stop.min(end), data);
        }
    }
    if extents.end() >= size {
        extents.extend_to(end, data);
    }
    Ok(())
}
