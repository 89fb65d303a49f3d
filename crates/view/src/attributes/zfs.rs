//! Attributes of volumes of ZFS pools, `sys/block/zd0/zvol/`, and OpenZFS's module parameters,
//! `sys/module/zfs/parameters/`.
//!
//! The parameters' names are OpenZFS's (`man 4 zfs`). The queue parameters are the initial settings
//! of a volume when it is opened; an open volume has the attributes in `zvol/`, which the kernel's
//! module lacks, in addition to `queue/nomerges`, `queue/max_sectors_kb` and `queue/nr_requests`.

use std::sync::Arc;

use ashlar_stack::pools::{Pools, ServedPool};
use ashlar_zfs::client::{CallError, Zvol};
use ashlar_zfs::protocol::Command;

use super::{AttributeError, Row, Tree, number};

const VOLUME: &[Row<Zvol>] = &[
    Row::ro("name", Zvol::dataset),
    Row::ro("volblocksize", |zvol| zvol.volblocksize_bytes().to_string()),
    Row::rw(
        "use_blk_mq",
        |zvol| u8::from(zvol.use_blk_mq()).to_string(),
        |zvol, value| {
            let on = match number(value)? {
                0 => false,
                1 => true,
                _ => return Err(AttributeError::Invalid(format!("`{value}` is not 0 or 1"))),
            };
            zvol.set_use_blk_mq(on);
            Ok(())
        },
    ),
    Row::rw(
        "blk_mq_blocks_per_thread",
        |zvol| zvol.blocks_per_thread().to_string(),
        |zvol, value| Ok(zvol.set_blocks_per_thread(number(value)?)?),
    ),
];

/// The row of a module parameter.
macro_rules! parameter {
    ($name:literal) => {
        Row::act(
            $name,
            |pools: &Pools| pools.parameters.get($name).unwrap_or_default().to_string(),
            |pools, value| {
                Box::pin(async move { set_parameter(pools, $name, number(value)?).await })
            },
        )
    };
}

const PARAMETERS: &[Row<Pools>] = &[
    parameter!("zfs_arc_max"),
    parameter!("zfs_arc_min"),
    parameter!("zfs_txg_timeout"),
    parameter!("zvol_blk_mq_blocks_per_thread"),
    parameter!("zvol_blk_mq_queue_depth"),
    parameter!("zvol_blk_mq_threads"),
    parameter!("zvol_max_discard_blocks"),
    parameter!("zvol_num_taskqs"),
    parameter!("zvol_request_sync"),
    parameter!("zvol_threads"),
    parameter!("zvol_use_blk_mq"),
];

/// Sets a module parameter for all pools, or for none.
///
/// # Errors
/// There is no such parameter, the value is out of range, or the worker of a pool refused it:
/// the other pools then keep the previous value.
async fn set_parameter(pools: &Pools, name: &str, value: u64) -> Result<(), AttributeError> {
    let too_large = |max| {
        AttributeError::Invalid(format!("{value} is out of range: 0 to {max} is possible here"))
    };
    // One change at a time, so that all pools end with the same value.
    let setting = pools.setting.lock().await;
    let before = pools.parameters.get(name).ok_or(AttributeError::NotFound)?;
    let checked = pools.parameters.check(name, value);
    let of_worker = checked.map_err(|max| max.map_or(AttributeError::NotFound, too_large))?;
    if of_worker {
        let mut told = Vec::new();
        for served in pools.all() {
            match tell(&served, name, value).await {
                Ok(()) => told.push(served),
                // A dead worker keeps no parameters.
                Err(CallError::Dead(_)) => {}
                Err(error @ (CallError::Refused(_) | CallError::NotUnderstood(_))) => {
                    let mut why = format!("{}: {error}", served.pool.name());
                    for other in told {
                        if let Err(error) = tell(&other, name, before).await {
                            why += &format!("; {} has it already: {error}", other.pool.name());
                        }
                    }
                    return Err(AttributeError::Busy(why));
                }
            }
        }
    }
    let set = pools.parameters.set(name, value);
    drop(setting);
    set.map(|_| ()).map_err(|max| max.map_or(AttributeError::NotFound, too_large))
}

/// Sets a module parameter in one pool's worker.
async fn tell(served: &ServedPool, name: &str, value: u64) -> Result<(), CallError> {
    served.pool.run(Command::SetParameter { name: name.to_owned(), value }).await
}

impl Tree {
    /// Adds a zvol's attributes to those of every device.
    pub(crate) fn add_zvol(&mut self, name: &str, zvol: &Arc<Zvol>) {
        self.add_rows(&format!("sys/block/{name}/zvol"), zvol, VOLUME);
    }

    /// Adds OpenZFS's module parameters.
    pub(crate) fn add_zfs_parameters(&mut self, pools: &Arc<Pools>) {
        self.add_rows("sys/module/zfs/parameters", pools, PARAMETERS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;
    use ashlar_zfs::client::Parameters;

    #[test]
    fn all_parameters_are_shown() {
        let known: Vec<&str> = Parameters::all().iter().map(|parameter| parameter.name).collect();
        for name in PARAMETERS.iter().map(|row| row.name) {
            assert!(known.contains(&name), "{name}");
        }
        assert_eq!(known.len(), PARAMETERS.len());
    }

    #[test]
    fn parameters_are_read_and_set() {
        let mut tree = Tree::default();
        tree.add_zfs_parameters(&Arc::default());
        let path = |name: &str| format!("sys/module/zfs/parameters/{name}");
        assert_eq!(tree.read(&path("zvol_blk_mq_blocks_per_thread")), Ok("8".to_owned()));
        assert_eq!(outcome(tree.set(&path("zvol_use_blk_mq"), "1\n")), Ok(()));
        assert_eq!(tree.read(&path("zvol_use_blk_mq")), Ok("1".to_owned()));
        assert_eq!(outcome(tree.set(&path("zvol_use_blk_mq"), "2")).unwrap_err().errno(), 22);
    }
}
