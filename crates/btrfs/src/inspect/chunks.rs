//! Lists chunks: the map from the file system's space to its devices.

use std::io;

use super::Sink;
use super::items::group_flags;
use crate::volume::FileSystem;

/// Writes a line for each chunk and for each of its stripes.
///
/// # Errors
/// The sink failed.
pub fn chunks(fs: &FileSystem, out: Sink<'_>) -> io::Result<()> {
    for chunk in fs.chunks().iter() {
        let (start, length, end) = (chunk.start, chunk.length, chunk.end());
        let kind = group_flags(chunk.flags);
        writeln!(out, "chunk {start} length {length} end {end} type {kind}")?;
        let on_device = chunk.stripe_length();
        for (index, stripe) in chunk.stripes.iter().enumerate() {
            let (devid, at) = (stripe.devid, stripe.offset);
            let name = fs.device(devid).map_or("missing", |device| device.name.as_str());
            writeln!(
                out,
                "\tstripe {index} devid {devid} physical {at} length {on_device} path {name}"
            )?;
        }
    }
    Ok(())
}
