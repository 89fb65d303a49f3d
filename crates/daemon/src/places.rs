//! The places where clients find a daemon: its sockets and its mount.
//!
//! A daemon makes them before it reads the first byte of a disk, since this takes rights that it needs for nothing else.
//! Early clients wait: connections queue, and the kernel holds requests to the mount.

use std::path::{self, PathBuf};
use std::sync::Arc;

use ashlar_client::access::Access;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::socket_file::SocketFile;

use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::front_ends::{FrontEnd, Parts, Place};

/// See the module text. Dropping them ends the mount, and removes the files of sockets.
pub(crate) struct Places {
    /// Those of the front ends. The one that was made last comes first, and is removed first.
    waiting: Vec<Box<dyn Place>>,
    control: BoundSocket,
}

impl Places {
    /// Makes them.
    ///
    /// # Errors
    /// One cannot be made; the others are removed again.
    pub(crate) fn make(config: &Config, access: &Access) -> Result<Self> {
        let control = access.bind(config.control.as_deref())?;
        let mut waiting = Vec::new();
        for front_end in config.front_ends().into_iter().rev() {
            waiting.extend(front_end.bind(config.read_only)?);
        }
        waiting.reverse();
        Ok(Self { waiting, control })
    }

    /// The memory that clients may take, bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.waiting.iter().map(|place| place.memory_bytes()).sum()
    }

    /// Whether clients pass memory of theirs.
    pub(crate) fn have_foreign_memory(&self) -> bool {
        self.waiting.iter().any(|place| place.has_foreign_memory())
    }

    /// The files and directories that front ends read again while they serve.
    pub(crate) fn reads(&self) -> Vec<PathBuf> {
        self.waiting.iter().flat_map(|place| place.reads()).collect()
    }

    /// Starts the front ends. Returns the control socket, too.
    ///
    /// # Errors
    /// As [`Place::start`].
    pub(crate) fn start(self, daemon: &Parts<'_>) -> Result<(BoundSocket, Vec<Box<dyn FrontEnd>>)> {
        let Self { waiting, control } = self;
        let front_ends = waiting.into_iter().rev().map(|place| place.start(daemon));
        Ok((control, front_ends.collect::<Result<_>>()?))
    }

    /// Starts the process that ends the mount and removes the sockets' files from now on, and starts workers for a daemon in its
    /// sandbox; `None` for a daemon outside without mount and files.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn keep(&mut self, is_confined: bool) -> Result<Option<Arc<CleanupHelper>>> {
        let mut tasks = CleanupTasks::default();
        self.waiting.iter().for_each(|place| place.leave_to(&mut tasks));
        for file in self.files() {
            // The cleanup helper is in another directory.
            let path = path::absolute(file.path());
            let failed = |why| Error::new("cannot find", file.path().display(), why);
            tasks.files.push((path.map_err(failed)?, file.identity()));
        }
        if tasks.is_empty() && !is_confined {
            return Ok(None);
        }
        let files = tasks.files.clone();
        let helper = CleanupHelper::start(tasks)?;
        for (file, (path, identity)) in self.files().zip(files) {
            let helper = Arc::clone(&helper);
            file.removed_by(Box::new(move || helper.remove(&path, identity)));
        }
        for place in &mut self.waiting {
            place.cleaned_up_by(&helper);
        }
        Ok(Some(helper))
    }

    fn files(&mut self) -> impl Iterator<Item = &mut SocketFile> {
        let waiting = self.waiting.iter_mut().rev().flat_map(|place| place.files());
        self.control.file_mut().into_iter().chain(waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ashlar_block::LocalFuture;
    use ashlar_engine::{Engine, ReactorConfig};
    use ashlar_stack::assemble::{Options, assemble};
    use ashlar_stack::devices::Device;
    use ashlar_view::attributes::Attributes;

    use super::*;
    use crate::ending::Ending;
    use crate::front_ends::FrontEnds;
    use ashlar_disks as disks;

    type Log = Arc<Mutex<Vec<String>>>;

    /// A front end, or its place, that writes down what happens to it.
    struct Recorder {
        name: &'static str,
        socket: BoundSocket,
        memory_bytes: u64,
        log: Log,
    }

    impl Recorder {
        fn note(&self, what: &str) {
            self.log.lock().unwrap().push(format!("{} {what}", self.name));
        }
    }

    impl Drop for Recorder {
        fn drop(&mut self) {
            self.note("removed");
        }
    }

    impl Place for Recorder {
        fn files(&mut self) -> Vec<&mut SocketFile> {
            self.socket.file_mut().into_iter().collect()
        }

        fn memory_bytes(&self) -> u64 {
            self.memory_bytes
        }

        fn start(self: Box<Self>, _: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
            self.note("started");
            Ok(self)
        }
    }

    impl FrontEnd for Recorder {
        fn offer(&self, _: &Device) -> std::result::Result<(), String> {
            Ok(())
        }

        fn withdraw(&self, _: &str) {}

        fn resized(&self, _: &Device) {}

        fn drain<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
            self.note("ended");
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn front_ends_start_in_their_order_and_end_in_the_reverse_one() {
        let dir = tempfile::tempdir().unwrap();
        let bind = |name| BoundSocket::unix(dir.path().join(name), 0o600, None).unwrap();
        let log = Log::default();
        let make = || {
            let place = |name, memory_bytes| -> Box<dyn Place> {
                Box::new(Recorder { name, socket: bind(name), memory_bytes, log: Arc::clone(&log) })
            };
            Places {
                waiting: vec![place("second", 2), place("first", 1)],
                control: bind("control"),
            }
        };
        let noted = || std::mem::take(&mut *log.lock().unwrap());

        let mut places = make();
        assert_eq!(places.memory_bytes(), 3);
        let names: Vec<_> = places.files().map(|file| file.path().to_owned()).collect();
        assert_eq!(names, ["control", "first", "second"].map(|name| dir.path().join(name)));
        drop(places);
        assert_eq!(noted(), ["second removed", "first removed"]);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);

        disks::reactor().unwrap().block_on(async {
            let stack = assemble(&[], Options::default(), &disks::runtime()).await;
            let (devices, attributes) =
                (Arc::clone(&stack.devices), Arc::new(Attributes::of(&stack, disks::runtime())));
            let engine = Engine::with_config(1, ReactorConfig::default()).unwrap();
            let ending = Ending::default();
            let parts = Parts {
                engine: &engine,
                devices: &devices,
                attributes: &attributes,
                ending: &ending,
            };
            let (_control, started) = make().start(&parts).unwrap();
            assert_eq!(noted(), ["first started", "second started"]);
            FrontEnds::new(devices, started).drain(&ending).await;
            assert_eq!(noted()[..2], ["second ended", "first ended"]);
            engine.shutdown();
        });
    }
}
