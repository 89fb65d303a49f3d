//! Serves one disk to virtual machines: `vhost_disk SOCKET (IMAGE | MIB) [QUEUES]`.
//!
//! For QEMU: `-object memory-backend-memfd,id=m,size=1G,share=on -machine memory-backend=m
//! -chardev socket,id=c,path=SOCKET,reconnect=1 -device vhost-user-blk-pci,chardev=c,num-queues=QUEUES`

use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use ashlar_block::{BlockDevice, ByteVolume, Gateway, Sectors};
use ashlar_engine::net::BoundSocket;
use ashlar_engine::{Engine, OpenOptions, RamDevice, Reactor};
use ashlar_vhost::{Config, Export, listen};
use futures_util::FutureExt;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, disk, rest @ ..] = &arguments[..] else {
        return Err("usage: vhost_disk SOCKET (IMAGE | MIB) [QUEUES]".into());
    };
    let queues = rest.first().map_or(Ok(2), |queues| queues.parse())?;
    let device: Arc<dyn BlockDevice> = match disk.parse::<u64>() {
        Ok(mib) => Arc::new(RamDevice::new("ram", Sectors(mib * 2048))?),
        Err(_) => Arc::new(ashlar_engine::open(Path::new(disk), &OpenOptions::default())?),
    };
    let bound = BoundSocket::unix(socket, 0o600, None)?;
    let export = Arc::new(Export::new("example", ByteVolume::new(Gateway::new(device))));
    let engine = Engine::start(2)?;
    let threads = engine.handles().into();
    let config = Config { queues, ..Config::default() };
    let (closed, stop) = (pending(), pending::<()>().shared());
    let served = engine.handles()[0]
        .spawn_on(move || listen(bound.into(), export, threads, config, closed, stop));
    Reactor::new(Default::default())?.block_on(served)??;
    Ok(())
}
