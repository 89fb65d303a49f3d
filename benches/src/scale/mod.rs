//! A region in virtual time: 1,000 volumes of 100 TB with their members in different racks, and a rack that fails
//! (docs/scale.md).
//!
//! Recoveries are flows over a network of links, which share each link fairly (max-min); between two ends of flows the rates are
//! constant, so a run takes as many steps as there are flows. Bitmaps and limits are those of md itself. The same
//! seed gives the same tables.

mod network;
mod region;

use ashlar_block::Sectors;
use ashlar_md::ondisk::bitmap_super::BitmapSuper;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember, create};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use uuid::Uuid;

use crate::common::{Outcome, Settings};
use network::{beside, ends, load};
use region::{
    Geometry, HOST_LINKS, HOSTS, IO_BYTES, Network, RACK_LINKS, RACKS, READS_PER_S, Rack, VOLUMES,
    Volume, WRITES_PER_S, clients, links, recoveries, volumes,
};

const GEOMETRIES: [Geometry; 2] = [
    Geometry { name: "RAID1", level: Level::Raid1, mirrors: 1 },
    Geometry { name: "RAID10 (near 2)", level: Level::Raid10, mirrors: 2 },
];

const NETWORKS: [(&str, Network); 4] = [
    ("400 Gbit/s, 1,000 (default)", Network { rack_gbit: 400.0, speed_kib: 1000.0 }),
    ("400 Gbit/s, 200,000", Network { rack_gbit: 400.0, speed_kib: 200_000.0 }),
    ("400 Gbit/s, 4,000,000", Network { rack_gbit: 400.0, speed_kib: 4_000_000.0 }),
    ("100 Gbit/s, 4,000,000", Network { rack_gbit: 100.0, speed_kib: 4_000_000.0 }),
];

/// What recoveries leave to clients.
#[derive(Clone, Copy)]
enum Reserve {
    Half,
    /// What they use.
    Load,
}

const RESERVES: [(&str, Reserve); 2] =
    [("half of each link", Reserve::Half), ("their load", Reserve::Load)];

/// How often a member fails in a year.
const FAILURES_PER_YEAR: f64 = 0.02;
/// Ceph's objects, to compare with a bit's chunk.
const OBJECT_BYTES: f64 = 4194304.0;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;
const YEAR: f64 = 365.25 * DAY;

/// How many of `chunks` chunks `writes` writes at random places touch: each misses one with probability 1 - 1/chunks.
fn touched(chunks: f64, writes: f64) -> f64 {
    chunks * -(writes * (-1.0 / chunks).ln_1p()).exp_m1()
}

/// The bitmap that md makes for such an array.
fn bitmap(geometry: Geometry) -> Outcome<BitmapSuper> {
    let device = Sectors::from_bytes_floor(geometry.member_bytes() as u64);
    let member = |number| {
        Some(NewMember {
            device,
            device_uuid: Uuid::from_u128(number),
            flags: DeviceFlags::default(),
        })
    };
    let members: Vec<_> = (1..=2 * geometry.mirrors as u128).map(member).collect();
    let made = create(&CreateSpec {
        version: Version::V1_2,
        level: geometry.level,
        layout: None,
        chunk: None,
        raid_devices: members.len() as u32,
        members,
        size: None,
        data_offset: None,
        set_uuid: Uuid::from_u128(99),
        name: "scale".into(),
        ctime: 0,
        assume_clean: true,
        bitmap: NewBitmap::Internal { chunk: None },
        write_behind: 0,
        daemon_sleep: 5,
        ppl: false,
        bad_block_log: false,
        numbers: Default::default(),
    })?;
    Ok(made.into_iter().flatten().find_map(|made| made.bitmap).ok_or("no bitmap")?)
}

/// A time in a unit that fits.
fn time(seconds: f64) -> String {
    let units = [(2.0 * YEAR, YEAR, "years"), (2.0 * DAY, DAY, "d"), (2.0 * HOUR, HOUR, "h")];
    let unit = units.into_iter().find(|(from, ..)| seconds >= *from);
    let (_, length, name) = unit.unwrap_or((0.0, MINUTE, "min"));
    format!("{:.1} {name}", seconds / length)
}

/// A number of bytes in a unit that fits.
fn size(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB")];
    // One that is shown as 1000.0 GB is 1.0 TB.
    let unit = units.into_iter().find(|(length, _)| bytes >= *length * 0.999_95);
    let (length, name) = unit.unwrap_or((1e6, "MB"));
    format!("{:.1} {name}", bytes / length)
}

/// The least of the sorted values that is not below a share `part` of them.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Times in words: one, if all are the same.
fn times(seconds: &[f64], between: &str) -> String {
    let mut words: Vec<String> = seconds.iter().copied().map(time).collect();
    if words.iter().all(|word| *word == words[0]) {
        words.truncate(1);
    }
    words.join(between)
}

/// How many volumes are lost, if each has one copy for such a time, and fails with the member that has it.
fn expected_lost(times: &[f64]) -> f64 {
    times.iter().map(|time| -(-time / YEAR * FAILURES_PER_YEAR).exp_m1()).sum()
}

/// When the recoveries end, sorted.
fn recovered(
    geometry: Geometry,
    volumes: &[Volume],
    network: Network,
    reserve: Reserve,
    (rack, bytes): (Rack, f64),
) -> Vec<f64> {
    let links = match reserve {
        Reserve::Half => links(geometry, network, 0.5),
        Reserve::Load => {
            let all = links(geometry, network, 1.0);
            beside(&all, &load(&clients(geometry, volumes, rack), all.len()))
        }
    };
    let mut ends = ends(&recoveries(volumes, rack, bytes), &links);
    ends.sort_by(f64::total_cmp);
    ends
}

fn print_lacks(geometry: Geometry, chunk: f64) {
    println!(
        "\nWhat a member lacks after an outage\n| outage | written to the volume | lacks, of 1 TB in use | of 10 TB | of 100 TB | of 1 TB in objects of 4 MiB |\n|---|---|---|---|---|---|"
    );
    for outage in [MINUTE, 10.0 * MINUTE, HOUR, DAY] {
        let writes = WRITES_PER_S * outage;
        let part = geometry.mirrors as f64;
        let lacks = |used: f64, chunk: f64| size(touched(used / chunk, writes) * chunk / part);
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            time(outage),
            size(writes * IO_BYTES),
            lacks(1e12, chunk),
            lacks(10e12, chunk),
            lacks(100e12, chunk),
            lacks(1e12, OBJECT_BYTES)
        );
    }
}

fn print_shares(geometry: Geometry, volumes: &[Volume]) {
    println!(
        "\nWhat clients take of the fullest link\n| links | healthy | rack away | rack back, recovering | rack lost, recovering |\n|---|---|---|---|---|"
    );
    let shares = |name: &str, rack_gbit, kind: std::ops::Range<usize>| {
        let links = links(geometry, Network { rack_gbit, speed_kib: f64::MAX }, 1.0);
        let share = |rack| {
            let load = load(&clients(geometry, volumes, rack), links.len());
            let all = kind.clone().map(|link| load[link] / links[link]);
            format!("{:.1} %", 100.0 * all.fold(0.0, f64::max))
        };
        let [up, away, back, lost] = [Rack::Up, Rack::Away, Rack::Back, Rack::Lost].map(share);
        println!("| {name} | {up} | {away} | {back} | {lost} |");
    };
    let members = HOST_LINKS.end..HOST_LINKS.end + 3 * VOLUMES * geometry.mirrors;
    shares("members, 25 Gbit/s", 400.0, members);
    shares("hosts, 100 Gbit/s", 400.0, HOST_LINKS);
    shares("racks, 400 Gbit/s", 400.0, RACK_LINKS);
    shares("racks, 100 Gbit/s", 100.0, RACK_LINKS);
}

fn print_recoveries(geometry: Geometry, volumes: &[Volume], chunk: f64) {
    let lacks = |used: f64, outage: f64| {
        touched(used / chunk, WRITES_PER_S * outage) * chunk / geometry.mirrors as f64
    };
    let cases = [
        (10.0 * MINUTE, Rack::Back, lacks(1e12, 10.0 * MINUTE)),
        (HOUR, Rack::Back, lacks(10e12, HOUR)),
        (0.0, Rack::Lost, geometry.member_bytes()),
    ];
    let rows =
        NETWORKS.iter().flat_map(|network| RESERVES.iter().map(move |reserve| (network, reserve)));
    let ends: Vec<(String, [Vec<f64>; 3])> = rows
        .map(|((network, speeds), (clients, reserve))| {
            let ends = cases.map(|(_, rack, bytes)| {
                recovered(geometry, volumes, *speeds, *reserve, (rack, bytes))
            });
            (format!("| {network} | {clients} |"), ends)
        })
        .collect();
    let count = recoveries(volumes, Rack::Back, 0.0).len();
    println!(
        "\nA rack fails, with a member of {count} volumes: time until the first and the last of them have two copies again\n| racks, `sync_speed_min` | reserved for clients | back after 10 min, 1 TB in use | back after 1 h, 10 TB | lost: whole members, elsewhere |\n|---|---|---|---|---|"
    );
    for (row, ends) in &ends {
        let span = |all: &Vec<f64>| times(&[0.0, 1.0].map(|part| percentile(all, part)), " to ");
        println!("{row} {} |", ends.each_ref().map(span).join(" | "));
    }
    println!(
        "\nTime with one copy, from the failure on: p50, p99, longest; and the volumes lost meanwhile, expected\n| racks, `sync_speed_min` | reserved for clients | back after 10 min, 1 TB in use | lost | back after 1 h, 10 TB | lost | lost: whole members, elsewhere | lost |\n|---|---|---|---|---|---|---|---|"
    );
    for (row, ends) in ends {
        let one_copy = |(ends, (outage, ..)): (Vec<f64>, (f64, Rack, f64))| {
            let all: Vec<f64> = ends.into_iter().map(|end| outage + end).collect();
            let parts = [0.5, 0.99, 1.0].map(|part| percentile(&all, part));
            format!("{} | {:.4}", times(&parts, ", "), expected_lost(&all))
        };
        let cells: Vec<String> = ends.into_iter().zip(cases).map(one_copy).collect();
        println!("{row} {} |", cells.join(" | "));
    }
}

/// Prints the tables.
///
/// # Errors
/// md refuses such an array.
pub(crate) fn run(_: Settings) -> Outcome {
    println!(
        "{VOLUMES} volumes in {RACKS} racks, daemons on {HOSTS} hosts; clients of each volume: {WRITES_PER_S} random writes and {READS_PER_S} random reads of 4 KiB per second"
    );
    for geometry in GEOMETRIES {
        let bitmap = bitmap(geometry)?;
        let chunk = bitmap.chunk().bytes() as f64;
        println!(
            "\n{}: {} members of {} for each volume; bitmap: {} per bit, {} bits, {:.0} KiB on each member",
            geometry.name,
            2 * geometry.mirrors,
            size(geometry.member_bytes()),
            size(chunk),
            bitmap.bits(),
            bitmap.bits() as f64 / 8192.0
        );
        let volumes = volumes(geometry);
        print_lacks(geometry, chunk);
        print_shares(geometry, &volumes);
        print_recoveries(geometry, &volumes, chunk);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ashlar_sim::Rng;

    use super::*;

    #[test]
    fn random_writes_touch_as_many_chunks_as_the_formula_says() {
        let (chunks, writes) = (1000, 1500);
        let mut rng = Rng::new(7);
        let rounds = 200;
        let mut sum = 0;
        for _ in 0..rounds {
            let mut seen = vec![false; chunks];
            (0..writes).for_each(|_| seen[rng.index(chunks)] = true);
            sum += seen.iter().filter(|seen| **seen).count();
        }
        let mean = sum as f64 / f64::from(rounds);
        let expected = touched(chunks as f64, f64::from(writes));
        // The deviation of the mean is about 1.
        assert!((mean - expected).abs() < 5.0, "{mean} {expected}");
        assert!((touched(10.0, 1.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_values_by_nearest_rank() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        let found = [0.0, 0.5, 0.99, 1.0].map(|part| percentile(&sorted, part));
        assert_eq!(found, [1.0, 100.0, 198.0, 200.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn volumes_are_lost_at_the_rate_of_their_last_members() {
        // One of fifty in a year, of short times: the product. Of any time, no more than there are.
        let day = expected_lost(&[DAY; 100]);
        assert!((day - 100.0 * FAILURES_PER_YEAR / 365.25).abs() < 1e-5, "{day}");
        assert!((expected_lost(&[YEAR]) - (1.0 - (-0.02_f64).exp())).abs() < 1e-12);
        assert!(expected_lost(&[1e6 * YEAR; 3]) <= 3.0);
    }

    #[test]
    fn units_fit() {
        assert_eq!(
            [MINUTE, HOUR, 2.0 * HOUR, DAY, 2.0 * YEAR].map(time),
            ["1.0 min", "60.0 min", "2.0 h", "24.0 h", "2.0 years"]
        );
        assert_eq!(
            [5e6, 999.94e9, 999.96e9, 8e12].map(size),
            ["5.0 MB", "999.9 GB", "1.0 TB", "8.0 TB"]
        );
    }

    #[test]
    fn equal_times_are_written_once() {
        assert_eq!(times(&[HOUR, HOUR + 1.0], " to "), "60.0 min");
        assert_eq!(times(&[HOUR, HOUR, DAY], ", "), "60.0 min, 60.0 min, 24.0 h");
    }

    #[test]
    fn a_bit_of_a_raid10_bitmap_stands_for_half_as_much_of_each_member() {
        let [one, ten] = GEOMETRIES.map(|geometry| bitmap(geometry).unwrap());
        // Both cover 100 TB with the area that md reserves, of 128 KiB; RAID10 loses the end of a member to whole chunks.
        assert_eq!(one.chunk(), ten.chunk());
        assert_eq!([one.bits(), ten.bits()], [745_058, 745_057]);
    }

    #[test]
    fn a_recovery_without_rivals_takes_its_bytes_at_its_limit() {
        let [raid1, _] = GEOMETRIES;
        let network = Network { rack_gbit: 400.0, speed_kib: 1000.0 };
        let (volumes, case) = (volumes(raid1), (Rack::Lost, 1024e6));
        for (_, reserve) in RESERVES {
            let ends = recovered(raid1, &volumes, network, reserve, case);
            assert!(ends.iter().all(|end| (end - 1000.0).abs() < 1e-6), "{ends:?}");
        }
    }
}
