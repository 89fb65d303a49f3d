//! A volume that front ends may use.

use std::sync::{Arc, Mutex};

use ashlar_block::ByteVolume;
use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::sync::lock;
use event_listener::{Event, EventListener};

use crate::blk::ID_BYTES;

/// An exported volume.
pub struct Export {
    name: String,
    volume: Arc<ByteVolume>,
    read_only: bool,
    changed: Event,
    /// The processes of its front ends.
    front_ends: Mutex<Vec<i32>>,
}

/// A connected front end, until it is dropped.
pub(crate) struct Connected<'a> {
    export: &'a Export,
    process: i32,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.export.front_ends);
        if let Some(at) = all.iter().position(|process| *process == self.process) {
            all.swap_remove(at);
        }
    }
}

impl Export {
    /// `volume` under `name`. All servers of the same volume must share this [`ByteVolume`].
    pub fn new(name: impl Into<String>, volume: impl Into<Arc<ByteVolume>>) -> Self {
        let (name, volume) = (name.into(), volume.into());
        let (changed, front_ends) = (Event::new(), Mutex::default());
        Self { name, volume, read_only: false, changed, front_ends }
    }

    /// Refuses all changes of the volume.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The name. Its first 20 bytes are the serial number that a guest sees.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The volume.
    pub fn volume(&self) -> &ByteVolume {
        &self.volume
    }

    /// Tells connected front ends that the size of the volume has changed.
    pub fn announce(&self) {
        self.changed.notify(usize::MAX);
    }

    /// The process of each connected front end; 0 for one whose process is not known.
    pub fn front_ends(&self) -> Vec<i32> {
        lock(&self.front_ends).clone()
    }

    pub(crate) fn connected(&self, process: i32) -> Connected<'_> {
        lock(&self.front_ends).push(process);
        Connected { export: self, process }
    }

    pub(crate) fn open(&self) -> Option<OpenVolume> {
        self.volume.open()
    }

    pub(crate) fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.volume.gateway().disk().is_read_only()
    }

    pub(crate) fn id(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        let len = self.name.len().min(ID_BYTES);
        id[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        id
    }
}
