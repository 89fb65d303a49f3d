//! A region in virtual time: 1,000 volumes, each a RAID1 of two members of 100 TB in different racks, and a rack that fails
//! (docs/internals/scale.md).
//!
//! Recoveries are flows over a network of links, which share each link fairly (max-min); between two ends of flows the rates are
//! constant, so a run takes as many steps as there are flows. Bitmaps and limits are those of md itself. The same
//! seed gives the same tables.

use ashlar_block::Sectors;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember, create};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_sim::Rng;
use uuid::Uuid;

use crate::common::{Outcome, Settings};

const VOLUMES: usize = 1000;
const RACKS: usize = 20;
/// Hosts that run the daemons, 20 volumes each.
const HOSTS: usize = 50;
const MEMBER_BYTES: f64 = 100e12;
/// Random writes of 4 KiB per second and volume.
const WRITES_PER_S: f64 = 2000.0;
const WRITE_BYTES: f64 = 4096.0;
/// How often a member fails in a year.
const FAILURES_PER_YEAR: f64 = 0.02;
const SEED: u64 = 1;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;
const YEAR: f64 = 365.25 * DAY;
/// Bytes per second of a link of one Gbit/s.
const GBIT: f64 = 125e6;

/// What the network gives to recoveries, in bytes per second: the rest is for clients.
#[derive(Clone, Copy)]
struct Budget {
    member: f64,
    rack: f64,
    host: f64,
    /// `sync_speed_max` of an array.
    speed_max: f64,
}

/// A copy of data from a member through a host to another member, over the links with these numbers.
struct Flow {
    links: Vec<usize>,
    bytes: f64,
}

/// The rates of the flows that are left, which share each link fairly: the fullest link first gives each of its flows an equal
/// share, then the rest is shared in the same way.
fn fair_rates(flows: &[Flow], left: &[f64], links: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; flows.len()];
    let mut open: Vec<usize> = (0..flows.len()).filter(|flow| left[*flow] > 0.0).collect();
    let mut room = links.to_vec();
    while !open.is_empty() {
        let mut users = vec![0_u32; links.len()];
        open.iter().flat_map(|flow| &flows[*flow].links).for_each(|link| users[*link] += 1);
        let used = (0..links.len()).filter(|link| users[*link] > 0);
        let shares = used.map(|link| (room[link] / f64::from(users[link]), link));
        let Some((share, full)) = shares.min_by(|one, other| one.0.total_cmp(&other.0)) else {
            break;
        };
        let (done, rest): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|flow| flows[*flow].links.contains(&full));
        for flow in done {
            rates[flow] = share;
            flows[flow].links.iter().for_each(|link| room[*link] -= share);
        }
        open = rest;
    }
    rates
}

/// When each flow ends, in seconds, if all begin at once.
fn ends(flows: &[Flow], links: &[f64]) -> Vec<f64> {
    let mut left: Vec<f64> = flows.iter().map(|flow| flow.bytes).collect();
    let (mut now, mut ends) = (0.0, vec![0.0; flows.len()]);
    while left.iter().any(|bytes| *bytes > 0.0) {
        let rates = fair_rates(flows, &left, links);
        let active = (0..flows.len()).filter(|flow| left[*flow] > 0.0);
        let step = active.clone().map(|flow| left[flow] / rates[flow]).fold(f64::MAX, f64::min);
        now += step;
        for flow in active.collect::<Vec<_>>() {
            left[flow] -= rates[flow] * step;
            // Less than a byte is a rounding error.
            if left[flow] < 1.0 {
                (left[flow], ends[flow]) = (0.0, now);
            }
        }
    }
    ends
}

/// How many of `chunks` chunks `writes` writes at random places touch: each misses one with probability 1 - 1/chunks.
fn touched(chunks: f64, writes: f64) -> f64 {
    chunks * -(writes * (-1.0 / chunks).ln_1p()).exp_m1()
}

/// The bytes per bit of the bitmap that md makes for a mirror of such members.
fn bitmap_chunk_bytes(bitmap: NewBitmap) -> Outcome<f64> {
    let device = Sectors::from_bytes_floor(MEMBER_BYTES as u64);
    let member = |number| {
        Some(NewMember {
            device,
            device_uuid: Uuid::from_u128(number),
            flags: DeviceFlags::default(),
        })
    };
    let made = create(&CreateSpec {
        version: Version::V1_2,
        level: Level::Raid1,
        layout: None,
        chunk: None,
        raid_devices: 2,
        members: vec![member(1), member(2)],
        size: None,
        data_offset: None,
        set_uuid: Uuid::from_u128(3),
        name: "scale".into(),
        ctime: 0,
        assume_clean: true,
        bitmap,
        write_behind: 0,
        daemon_sleep: 5,
        bad_block_log: false,
        numbers: Default::default(),
    })?;
    let bitmap = made.into_iter().flatten().find_map(|made| made.bitmap);
    Ok(bitmap.ok_or("no bitmap")?.chunk().bytes() as f64)
}

/// The recoveries after rack 0 has failed: of each volume with a member there, `bytes`, to the same rack once it is back, or to others.
fn after_rack_failure(bytes: f64, is_back: bool, budget: Budget) -> (Vec<Flow>, Vec<f64>) {
    let mut rng = Rng::new(SEED);
    // The links of racks (out, in), hosts (in, out), then of the members and the limit of each flow.
    let mut links = vec![budget.rack; 2 * RACKS];
    links.extend(vec![budget.host; 2 * HOSTS]);
    let mut flows = Vec::new();
    for volume in 0..VOLUMES {
        let one = rng.index(RACKS);
        let other = (one + 1 + rng.index(RACKS - 1)) % RACKS;
        let source = match (one, other) {
            (0, there) | (there, 0) => there,
            _ => continue,
        };
        // Drawn in any case, so that both cases have the same volumes.
        let elsewhere = 1 + (source + rng.index(RACKS - 2)) % (RACKS - 1);
        let target = if is_back { 0 } else { elsewhere };
        let host = volume % HOSTS;
        let own = links.len();
        links.extend([budget.member, budget.member, budget.speed_max]);
        let racks = [source, RACKS + target];
        let hosts = [2 * RACKS + host, 2 * RACKS + HOSTS + host];
        let all = racks.into_iter().chain(hosts).chain(own..own + 3).collect();
        flows.push(Flow { links: all, bytes });
    }
    (flows, links)
}

/// A time in a unit that fits.
fn time(seconds: f64) -> String {
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min")];
    let unit = units.into_iter().find(|(length, _)| seconds >= 2.0 * length);
    let (length, name) = unit.unwrap_or((1.0, "s"));
    format!("{:.1} {name}", seconds / length)
}

/// A number of bytes in a unit that fits.
fn size(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB")];
    let unit = units.into_iter().find(|(length, _)| bytes >= *length);
    let (length, name) = unit.unwrap_or((1e6, "MB"));
    format!("{:.1} {name}", bytes / length)
}

/// Prints the tables.
///
/// # Errors
/// md refuses such an array.
pub(crate) fn run(_: Settings) -> Outcome {
    let chunk = bitmap_chunk_bytes(NewBitmap::Internal { chunk: None })?;
    println!(
        "{VOLUMES} volumes, each a RAID1 of two members of {}, in {RACKS} racks; daemons on {HOSTS} hosts",
        size(MEMBER_BYTES)
    );
    println!(
        "md's bitmap: {} per bit, {:.0} bits, {:.0} KiB on each member",
        size(chunk),
        MEMBER_BYTES / chunk,
        MEMBER_BYTES / chunk / 8192.0
    );
    println!("clients: {WRITES_PER_S} random writes of 4 KiB per second and volume\n");

    println!(
        "What a member lacks after an outage (written: {}/s)",
        size(WRITES_PER_S * WRITE_BYTES)
    );
    println!("| outage | written | of 1 TB in use | of 10 TB | of 100 TB |\n|---|---|---|---|---|");
    for outage in [MINUTE, 10.0 * MINUTE, HOUR, DAY] {
        let writes = WRITES_PER_S * outage;
        let lacks = |used: f64| size(touched(used / chunk, writes) * chunk);
        println!(
            "| {} | {} | {} | {} | {} |",
            time(outage),
            size(writes * WRITE_BYTES),
            lacks(1e12),
            lacks(10e12),
            lacks(100e12)
        );
    }

    let budgets = [
        (
            "25 Gbit/s members, 400 racks, 100 hosts; half for recovery; sync_speed_max 200,000 (default)",
            400.0,
            204.8e6,
        ),
        ("the same, sync_speed_max 2,000,000", 400.0, 2048e6),
        ("racks with 100 Gbit/s, sync_speed_max 2,000,000", 100.0, 2048e6),
    ];
    println!("\nA rack fails: when the first and the last volume have two copies again");
    println!(
        "| network | volumes | rack back after 10 min, 1 TB in use | after 1 h, 10 TB | rack lost: whole members | expected volumes lost meanwhile |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, rack, speed_max) in budgets {
        let budget = Budget {
            member: 25.0 * GBIT / 2.0,
            rack: rack * GBIT / 2.0,
            host: 100.0 * GBIT / 2.0,
            speed_max,
        };
        let recovery = |bytes, is_back| {
            let (flows, links) = after_rack_failure(bytes, is_back, budget);
            let mut all = ends(&flows, &links);
            all.sort_by(f64::total_cmp);
            all
        };
        let span = |all: &[f64]| match all {
            [first, .., last] => format!("{} to {}", time(*first), time(*last)),
            _ => String::new(),
        };
        let short = recovery(touched(1e12 / chunk, WRITES_PER_S * 10.0 * MINUTE) * chunk, true);
        let long = recovery(touched(10e12 / chunk, WRITES_PER_S * HOUR) * chunk, true);
        let whole = recovery(MEMBER_BYTES, false);
        // Each waits with one copy, which fails with the rate of its member.
        let lost = whole.iter().sum::<f64>() / YEAR * FAILURES_PER_YEAR;
        println!(
            "| {name} | {} | {} | {} | {} | {lost:.3} |",
            whole.len(),
            span(&short),
            span(&long),
            span(&whole)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() <= other.abs() * 1e-9
    }

    #[test]
    fn flows_share_the_fullest_link_and_then_what_is_left() {
        let flow = |links: &[usize], bytes| Flow { links: links.to_vec(), bytes };
        // One alone takes its bytes at the narrowest link's rate; k equal ones through one link, k times as long.
        assert!(near(ends(&[flow(&[0, 1], 100.0)], &[10.0, 4.0])[0], 25.0));
        let equal: Vec<Flow> = (0..7).map(|_| flow(&[0], 100.0)).collect();
        assert!(ends(&equal, &[10.0]).iter().all(|end| near(*end, 70.0)));
        // A narrow flow leaves its share to the other one, which has the link alone in the end.
        let flows = [flow(&[0, 1], 20.0), flow(&[0], 100.0)];
        let ends = ends(&flows, &[10.0, 2.0]);
        assert!(near(ends[0], 10.0) && near(ends[1], 12.0), "{ends:?}");
    }

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
        assert!(near(touched(10.0, 1.0), 1.0));
    }

    #[test]
    fn each_volume_that_had_a_member_in_the_rack_is_recovered_elsewhere() {
        let budget = Budget { member: 1.0, rack: 10.0, host: 10.0, speed_max: 1.0 };
        let sources = |is_back| -> Vec<usize> {
            let (flows, _) = after_rack_failure(1.0, is_back, budget);
            flows.iter().map(|flow| flow.links[0]).collect()
        };
        assert_eq!(sources(false), sources(true), "the same volumes");
        for is_back in [false, true] {
            let (flows, links) = after_rack_failure(1.0, is_back, budget);
            assert!(flows.len() > VOLUMES / RACKS && flows.len() < 3 * VOLUMES / RACKS);
            for flow in &flows {
                let target = flow.links[1] - RACKS;
                assert_eq!(target == 0, is_back);
                assert_ne!(target, flow.links[0], "both copies in one rack");
                assert!(flow.links.iter().all(|link| *link < links.len()));
            }
        }
    }
}
