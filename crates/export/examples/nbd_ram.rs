//! Serves a RAM disk over NBD on a Unix socket until standard input ends: for interoperation tests
//! and measurements. Usage: `nbd_ram SOCKET MIB`.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;

use ashlar_block::Sectors;
use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::gateway::Gateway;
use ashlar_engine::net::Listener;
use ashlar_engine::ram::RamDevice;
use ashlar_engine::{Reactor, ReactorConfig, blocking};
use ashlar_export::nbd::export::{Export, Exports};
use ashlar_export::nbd::listen::{Config, Tls, listen};
use ashlar_export::nbd::placement::Placement;
use futures_util::FutureExt;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(mib)) = (arguments.next(), arguments.next()) else {
        return Err("usage: nbd_ram SOCKET MIB".into());
    };
    let ram = RamDevice::new("ram0", Sectors(mib.parse::<u64>()? * 2048))?;
    let exports = Arc::new(Exports::new());
    let volume = ByteVolume::new(Gateway::new(Arc::new(ram)));
    exports.add(Export::new("ram0", volume)?.described("RAM disk")?)?;
    let reactor = Reactor::new(ReactorConfig::default())?;
    reactor.block_on(async {
        let stop = blocking::run(|| std::io::stdin().read_to_end(&mut Vec::new()));
        let stop = stop.map(|_ended_or_failed| ()).shared();
        let listener = Listener::bind_unix(&path, 0o600)?;
        let (on, config) = (Placement::here(), Config::default());
        listen(listener, exports, Arc::default(), on, config, Tls::default(), stop).await
    })?;
    Ok(())
}
