//! Attributes of every block device: `sys/block/NAME/`.
//!
//! Names, units and formats: kernel documentation `ABI/stable/sysfs-block` and `block/stat.rst`.

use std::sync::Arc;

use ashlar_block::limits::Features;
use ashlar_block::{Flags, Gateway, Sectors};

use super::{Row, Tree, number};

/// A number that the kernel keeps in 32 bits, where the largest value means "no limit".
fn capped(sectors: Sectors) -> u64 {
    sectors.0.min(u64::from(u32::MAX))
}

fn flag(gateway: &Gateway, feature: Features) -> String {
    u8::from(gateway.disk().limits().features.contains(feature)).to_string()
}

fn nothing(_: &Gateway) -> String {
    "0".to_owned()
}

/// Write-zeroes and discards are counted in 512-byte sectors and shown in bytes.
fn bytes(sectors: Sectors) -> String {
    sectors.bytes().to_string()
}

/// The rows.
const ROWS: &[Row<Gateway>] = &[
    Row::ro("alignment_offset", nothing),
    Row::ro("dev", |g| g.disk().number().to_string()),
    Row::ro("discard_alignment", |g| g.disk().limits().discard_alignment_bytes.to_string()),
    Row::ro("inflight", |g| {
        let totals = g.disk().stats().totals();
        let reads = totals.read.in_flight;
        format!("{reads:8} {:8}", totals.in_flight() - reads)
    }),
    Row::ro("ro", |g| u8::from(g.disk().is_read_only()).to_string()),
    Row::ro("removable", nothing),
    Row::ro("size", |g| g.capacity().to_string()),
    Row::ro("stat", |g| {
        g.disk().stats().totals().fields().map(|field| format!("{field:8}")).join(" ")
    }),
    Row::ro("queue/add_random", nothing),
    Row::ro("queue/chunk_sectors", |g| capped(g.disk().limits().chunk_sectors).to_string()),
    Row::ro("queue/dax", nothing),
    Row::ro("queue/discard_granularity", |g| {
        g.disk().limits().discard_granularity_bytes.to_string()
    }),
    Row::rw(
        "queue/discard_max_bytes",
        |g| bytes(g.disk().max_discard()),
        |g, value| Ok(g.disk().set_max_discard_bytes(number(value)?)?),
    ),
    Row::ro("queue/discard_max_hw_bytes", |g| bytes(g.disk().limits().max_hw_discard)),
    Row::ro("queue/discard_zeroes_data", nothing),
    Row::ro("queue/dma_alignment", |g| {
        g.disk().limits().dma_alignment_bytes.saturating_sub(1).to_string()
    }),
    Row::ro("queue/fua", |g| flag(g, Features::FUA)),
    Row::ro("queue/hw_sector_size", |g| g.disk().limits().logical_block_bytes.to_string()),
    Row::ro("queue/io_poll", nothing),
    Row::ro("queue/iostats", |_| "1".to_owned()),
    Row::ro("queue/logical_block_size", |g| g.disk().limits().logical_block_bytes.to_string()),
    Row::ro("queue/max_discard_segments", |g| g.disk().limits().max_discard_segments.to_string()),
    Row::ro("queue/max_hw_sectors_kb", |g| {
        (capped(g.disk().limits().max_hw_sectors) / 2).to_string()
    }),
    Row::ro("queue/max_integrity_segments", nothing),
    Row::rw(
        "queue/max_sectors_kb",
        |g| (capped(g.disk().max_sectors()) / 2).to_string(),
        |g, value| Ok(g.disk().set_max_sectors_kb(number(value)?)?),
    ),
    // 16 bits in the kernel.
    Row::ro("queue/max_segments", |g| {
        g.disk().limits().max_segments.min(u16::MAX.into()).to_string()
    }),
    Row::ro("queue/max_segment_size", |_| u32::MAX.to_string()),
    Row::ro("queue/minimum_io_size", |g| g.disk().limits().io_min_bytes.to_string()),
    Row::rw(
        "queue/nomerges",
        |g| (g.disk().nomerges() as u8).to_string(),
        |g, value| Ok(g.disk().set_nomerges(number(value)?)?),
    ),
    Row::rw(
        "queue/nr_requests",
        |g| g.disk().nr_requests().to_string(),
        |g, value| Ok(g.disk().set_nr_requests(number(value)?)?),
    ),
    Row::ro("queue/nr_zones", nothing),
    Row::ro("queue/optimal_io_size", |g| g.disk().limits().io_opt_bytes.to_string()),
    Row::ro("queue/physical_block_size", |g| g.disk().limits().physical_block_bytes.to_string()),
    Row::ro("queue/rotational", |g| flag(g, Features::ROTATIONAL)),
    Row::ro("queue/scheduler", |_| "none".to_owned()),
    Row::ro("queue/stable_writes", nothing),
    Row::ro("queue/virt_boundary_mask", nothing),
    Row::ro("queue/write_cache", |g| {
        let back = g.disk().limits().features.contains(Features::WRITE_CACHE);
        if back { "write back" } else { "write through" }.to_owned()
    }),
    Row::ro("queue/write_same_max_bytes", nothing),
    Row::ro("queue/write_zeroes_max_bytes", |g| bytes(g.disk().limits().max_write_zeroes)),
    // The kernel's name for zeroes that need not be written.
    Row::ro("queue/write_zeroes_unmap_max_bytes", |g| {
        let disk = g.disk();
        let is_fast = disk.takes_zeroes(Flags::FAST);
        bytes(if is_fast { disk.limits().max_write_zeroes } else { Sectors::ZERO })
    }),
    Row::ro("queue/zone_append_max_bytes", nothing),
    Row::ro("queue/zoned", |_| "none".to_owned()),
];

/// The rows of a device whose requests have a deadline.
const DEADLINE: &[Row<Gateway>] = &[Row::rw(
    "queue/io_timeout",
    |g| g.disk().io_timeout_ms().unwrap_or(0).to_string(),
    |g, value| Ok(g.disk().set_io_timeout_ms(number(value)?)?),
)];

impl Tree {
    /// Adds `sys/block/NAME` for a device.
    pub(crate) fn add_device(&mut self, name: &str, gateway: &Gateway) {
        let (path, gateway) = (format!("sys/block/{name}"), Arc::new(gateway.clone()));
        self.add_rows(&path, &gateway, ROWS);
        if gateway.disk().io_timeout_ms().is_some() {
            self.add_rows(&path, &gateway, DEADLINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;
    use ashlar_block::device::{BlockDevice, IoFuture};
    use ashlar_block::{Bio, Disk, Driver, Limits, Op, Queue, Request};

    struct NullDevice(Disk);

    impl BlockDevice for NullDevice {
        fn disk(&self) -> &Disk {
            &self.0
        }

        fn submit_bio(&self, _: Bio) -> IoFuture<'_> {
            IoFuture::ready(Ok(()))
        }
    }

    struct NullDriver;

    impl Driver for NullDriver {
        fn queue_rq(&self, rq: Request) {
            rq.complete(Ok(()));
        }
    }

    fn gateway(limits: Limits) -> Gateway {
        Gateway::new(Arc::new(NullDevice(Disk::new("t", Sectors(2048), limits))))
    }

    fn tree(gateway: &Gateway) -> Tree {
        let mut tree = Tree::default();
        tree.add_device("t", gateway);
        tree
    }

    fn limits() -> Limits {
        Limits {
            max_hw_sectors: Sectors(8192),
            max_hw_discard: Sectors(1 << 20),
            discard_granularity_bytes: 4096,
            discard_alignment_bytes: 512,
            io_min_bytes: 65536,
            io_opt_bytes: 131_072,
            physical_block_bytes: 4096,
            max_write_zeroes: Sectors(16),
            features: Features::WRITE_CACHE | Features::FUA,
            ..Limits::default()
        }
    }

    #[test]
    fn units_are_the_kernels() {
        let tree = tree(&gateway(limits()));
        for (name, text) in [
            ("size", "2048"),
            ("ro", "0"),
            ("discard_alignment", "512"),
            ("queue/discard_max_bytes", "536870912"),
            ("queue/discard_max_hw_bytes", "536870912"),
            ("queue/discard_granularity", "4096"),
            ("queue/max_hw_sectors_kb", "4096"),
            ("queue/max_sectors_kb", "1280"),
            ("queue/logical_block_size", "512"),
            ("queue/physical_block_size", "4096"),
            ("queue/minimum_io_size", "65536"),
            ("queue/optimal_io_size", "131072"),
            ("queue/write_zeroes_max_bytes", "8192"),
            ("queue/write_zeroes_unmap_max_bytes", "0"),
            ("queue/write_cache", "write back"),
            ("queue/fua", "1"),
            ("queue/rotational", "0"),
            ("queue/nomerges", "0"),
            ("queue/dma_alignment", "511"),
        ] {
            let path = format!("sys/block/t/{name}");
            assert_eq!(tree.read(&path), Ok(text.to_owned()), "{name}");
        }
    }

    #[test]
    fn settings_take_effect_and_hard_limits_hold() {
        let gateway = gateway(limits());
        let tree = tree(&gateway);
        let set = |name: &str, value: &str| {
            outcome(tree.set(&format!("sys/block/t/queue/{name}"), value))
        };
        assert_eq!(set("discard_max_bytes", "524288\n"), Ok(()));
        assert_eq!(gateway.disk().max_discard(), Sectors(1024));
        assert_eq!(set("discard_max_bytes", "1000").unwrap_err().errno(), 22);
        assert_eq!(set("discard_max_bytes", "99999999995904"), Ok(()));
        assert_eq!(gateway.disk().max_discard(), Sectors(1 << 20));
        assert_eq!(set("max_sectors_kb", "4097").unwrap_err().errno(), 22);
        assert_eq!(set("nomerges", "2"), Ok(()));
        assert_eq!(tree.read("sys/block/t/queue/nomerges"), Ok("2".to_owned()));
        assert_eq!(set("rotational", "1").unwrap_err().errno(), 13);
    }

    #[test]
    fn only_a_device_with_a_deadline_has_one_to_set() {
        let path = "sys/block/t/queue/io_timeout";
        assert!(tree(&gateway(limits())).read(path).is_err());
        let sim = ashlar_sim::Sim::new(1);
        let disk = Disk::new("t", Sectors(2048), limits());
        let queue = Queue::with_deadline(disk, NullDriver, sim.runtime());
        let gateway = Gateway::new(Arc::new(queue));
        let tree = tree(&gateway);
        assert_eq!(tree.read(path), Ok("30000".to_owned()));
        assert_eq!(outcome(tree.set(path, "0\n")).unwrap_err().errno(), 22);
        assert_eq!(outcome(tree.set(path, "2500\n")), Ok(()));
        assert_eq!(gateway.disk().io_timeout_ms(), Some(2500));
    }

    #[test]
    fn limits_without_bound_print_as_the_kernel_prints_them() {
        let tree = tree(&gateway(Limits::stacking()));
        let read = |name: &str| tree.read(&format!("sys/block/t/queue/{name}")).unwrap();
        assert_eq!(read("max_hw_sectors_kb"), "2147483647");
        assert_eq!(read("max_segments"), "65535");
    }

    #[test]
    fn stat_and_inflight_have_the_kernels_columns() {
        let gateway = gateway(limits());
        let tree = tree(&gateway);
        let read = gateway.disk().stats().start(Op::Read, Sectors(8));
        let write = gateway.disk().stats().start(Op::Discard, Sectors(8));
        assert_eq!(tree.read("sys/block/t/inflight").unwrap(), "       1        1");
        drop((read, write));
        let stat = tree.read("sys/block/t/stat").unwrap();
        assert_eq!(stat.len(), 17 * 9 - 1);
        assert!(stat.starts_with("       1        0        8        0 "), "{stat}");
    }

    /// The reference for names and formats is a device of the running kernel.
    #[test]
    fn names_and_formats_are_those_of_a_kernel_device() {
        let Some(theirs) = std::fs::read_dir("/sys/block").ok().and_then(|mut all| all.next())
        else {
            return eprintln!("skipped: no block device here");
        };
        let theirs = theirs.unwrap().path();
        let tree = tree(&gateway(limits()));
        // Removed from newer kernels or added by them.
        let of_some_kernels = ["discard_zeroes_data", "write_same_max_bytes", "add_random"];
        for row in ROWS {
            if of_some_kernels.iter().any(|name| row.name.ends_with(name)) {
                continue;
            }
            let text = match std::fs::read_to_string(theirs.join(row.name)) {
                Ok(text) => text,
                Err(error) => panic!("{}: the kernel has no such attribute: {error}", row.name),
            };
            let ours = tree.read(&format!("sys/block/t/{}", row.name)).unwrap();
            let shape = |text: &str| {
                let fields = text.split_whitespace().map(|field| field.parse::<u64>().is_ok());
                fields.collect::<Vec<_>>()
            };
            if row.name != "queue/scheduler" && row.name != "queue/write_cache" {
                assert_eq!(shape(&ours), shape(&text), "{}: {ours:?} and {text:?}", row.name);
            }
        }
    }
}
