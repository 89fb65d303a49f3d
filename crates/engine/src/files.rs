//! Registered files: the ring looks the descriptor up once instead of at every I/O.
//!
//! A [`RingFile`] is shared by all reactors and gets a slot in each ring that uses it. Each ring keeps the file open
//! until the last [`RingFile`] is dropped and the ring is informed.
//!
//! A file can be closed although it is shared: another file takes its number, one that can be neither read nor written, and the rings
//! forget it. Operations under way hold the file open, and so its lock, until they end. The slots stay empty, because entries that name
//! them may be on their way.

mod ring_file;

pub(crate) use ring_file::RingFile;

use crate::ring::Ring;

/// How a ring knows a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Unknown,
    Slot(u32),
    /// The table was full, or the kernel refused: use the descriptor.
    Unregistered,
}

/// One ring's registered files.
pub(crate) struct FileTable {
    is_registered: bool,
    free: Vec<u32>,
    /// Indexed by the file's id.
    places: Vec<Place>,
}

impl FileTable {
    pub(crate) fn new(ring: &Ring, size: u32) -> Self {
        let size = match ring.register_table(size) {
            Ok(()) => size,
            Err(error) => {
                tracing::debug!(%error, "no registered files");
                0
            }
        };
        Self { is_registered: size > 0, free: (0..size).rev().collect(), places: Vec::new() }
    }

    /// Makes the ring release all files; it registers no more files.
    pub(crate) fn release_all(&mut self, ring: &Ring) {
        self.free.clear();
        self.places.clear();
        if std::mem::take(&mut self.is_registered)
            && let Err(error) = ring.unregister_files()
        {
            tracing::warn!(%error, "the files stay open until the kernel has ended the ring");
        }
    }

    fn place(&mut self, id: usize) -> &mut Place {
        if id >= self.places.len() {
            self.places.resize(id + 1, Place::Unknown);
        }
        &mut self.places[id]
    }
}
