//! Serves a disk at `DIR/dev/disk` until `DIR` is unmounted: for measurements and for trying file systems. Usage:
//! `fuse_disk DIR MIB|FILE [REACTORS]`; a number is the size of a RAM disk.

use std::error::Error;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use ashlar_block::byte_volume::{ByteVolume, Holes};
use ashlar_block::{BlockDevice, Gateway, Sectors};
use ashlar_engine::{Engine, EngineRuntime, OpenOptions, RamDevice, Reactor, ReactorConfig};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{MountOptions, mount};
use ashlar_export::fuse::server::serve;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::{Entry, Namespace, Owner};
use rustix::io::Errno;

struct OneDisk(Arc<ByteVolume>);

impl Namespace for OneDisk {
    fn lookup(&self, path: &str) -> Option<Entry> {
        match path {
            "dev" => Some(Entry::Directory),
            "dev/disk" => Some(Entry::Volume(Arc::clone(&self.0))),
            _ => None,
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        match path {
            "" => vec!["dev".into()],
            "dev" => vec!["disk".into()],
            _ => Vec::new(),
        }
    }

    fn read(&self, _path: &str) -> Result<String, Errno> {
        Err(Errno::NOENT)
    }

    fn write(&self, _path: &str, _text: &str) -> Result<(), Errno> {
        Err(Errno::NOENT)
    }
}

fn open_disk(what: &str) -> Result<Arc<dyn BlockDevice>, Box<dyn Error>> {
    Ok(match what.parse::<u64>() {
        Ok(mib) => Arc::new(RamDevice::new("disk", Sectors(mib * 2048))?),
        Err(_) => Arc::new(ashlar_engine::open(Path::new(what), &OpenOptions::default())?),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(what)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fuse_disk DIR MIB|FILE [REACTORS]".into());
    };
    let reactors = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let disk = open_disk(&what)?;
    let volume = Arc::new(ByteVolume::new(Gateway::new(disk)));
    let owner = Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        since: ashlar_engine::wall_clock(),
    };
    let session = Arc::new(Session::new(OneDisk(volume), owner, Holes::Fast));
    let (mount, fd) = mount(Path::new(&dir), MountOptions::default())?;
    let engine = Engine::start(reactors)?;
    let mut servers = Vec::new();
    for handle in engine.handles() {
        let (fd, session) = (fd.try_clone()?, Arc::clone(&session));
        servers.push(handle.spawn_on(move || async move {
            serve(Rc::new(KernelDev::new(fd)?), session, Arc::new(EngineRuntime), 0).await
        }));
    }
    println!("{}", mount.path().join("dev/disk").display());
    Reactor::new(ReactorConfig::default())?.block_on(async {
        for server in servers {
            server.await??;
        }
        Ok(())
    })
}
