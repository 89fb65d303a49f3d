//! `ashlar zvol create`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_daemon::error::Result;
use ashlar_zfs::client::parse_size;
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::property;
use crate::commands::zpool::place::PoolArgs;

/// Make a volume
///
/// Its size is reserved in the pool, unless it is sparse.
#[derive(Args, Debug)]
#[command(
    disable_version_flag = true,
    after_help = "\
Exit codes: 0 made, 1 failed, 2 wrong usage.

Examples:
  ashlar zvol create -V 10G tank/vol
  ashlar zvol create -s -b 64K -o compression=zstd -V 1T tank/vm/disk0 -p
  ashlar zvol create -d a.img,b.img -V 10G tank/vol"
)]
pub(crate) struct Create {
    /// Its size: a number of bytes, or with K, M, G, T
    #[arg(short = 'V', value_name = "SIZE", value_parser = parse_size)]
    size: u64,

    /// Reserve nothing
    #[arg(short, long)]
    sparse: bool,

    /// Its block size: a power of two, 512 to 16M as the pool allows
    #[arg(short = 'b', value_name = "SIZE")]
    blocksize: Option<String>,

    /// A property (may be repeated)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// Also make missing parents
    #[arg(short = 'p')]
    parents: bool,

    /// Its name: POOL/NAME
    #[arg(value_name = "VOLUME")]
    name: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Create {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut properties = BTreeMap::from_iter(self.properties);
        properties.extend(self.blocksize.map(|size| ("volblocksize".to_owned(), size)));
        let create = Command::CreateVolume {
            name: self.name.clone(),
            volsize_bytes: self.size,
            sparse: self.sparse,
            parents: self.parents,
            properties,
        };
        self.place.change(&self.name, create)
    }
}
